// A genuine OIDC issuer (npm's oidc-provider) on 127.0.0.1:PORT: access tokens are JWTs for the audience "kedge", with groups.
import fs from 'node:fs';
import https from 'node:https';
import Provider from 'oidc-provider';

const [port, key, cert] = process.argv.slice(2);
const resource = { scope: 'api', audience: 'kedge', accessTokenFormat: 'jwt', accessTokenTTL: 600, jwt: { sign: { alg: 'RS256' } } };
const provider = new Provider(`https://127.0.0.1:${port}`, {
  clients: [{ client_id: 'ci', client_secret: 'not-a-secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [] }],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => 'urn:kedge',
      useGrantedResource: () => true,
      getResourceServerInfo: () => resource,
    },
  },
  extraTokenClaims: () => ({ email: 'robot@example.org', email_verified: true, groups: ['robots'] }),
});
const files = { key: fs.readFileSync(key), cert: fs.readFileSync(cert) };
https.createServer(files, provider.callback()).listen(Number(port), '127.0.0.1');
