#!/bin/sh
# oidc.sh KEDGE: a genuine OIDC issuer's tokens let in whom their claims name, and a forged one nobody. By hand: npm
# fetches the issuer. The server runs without a node on loopback; ports 17443 and 19443 must be free.
set -eu
kedge=$1
here=$(cd -- "$(dirname -- "$0")" && pwd)
dir=$(mktemp -d)
issuer='' server=''
finish() {
    for pid in $issuer $server; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM
die() { echo "FAILED: $*" >&2; tail -n 20 "$dir"/*.log >&2; exit 1; }
until_ok() { # until_ok WHAT COMMAND...
    what=$1 n=0
    shift
    until "$@" >/dev/null 2>&1; do
        n=$((n + 1))
        [ "$n" -lt 120 ] || die "$what: not in time"
        sleep 0.5
    done
}

cd "$dir"
cp "$here/oidc/issuer.mjs" .
npm install --silent --no-audit --no-fund oidc-provider@9 >npm.log 2>&1 || die "npm"
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=127.0.0.1 \
    -addext subjectAltName=IP:127.0.0.1 2>/dev/null
node issuer.mjs 19443 key.pem cert.pem >issuer.log 2>&1 &
issuer=$!
until_ok "the issuer" curl -fs --cacert cert.pem https://127.0.0.1:19443/.well-known/openid-configuration
"$kedge" server --disable-agent --data-dir "$dir/data" --bind-address 127.0.0.1 --node-ip 127.0.0.1 \
    --advertise-address 192.0.2.1 \
    --https-listen-port 17443 --node-name oidc --disable coredns --write-kubeconfig "$dir/admin" \
    --kube-apiserver-arg oidc-issuer-url=https://127.0.0.1:19443 --kube-apiserver-arg oidc-client-id=kedge \
    --kube-apiserver-arg oidc-ca-file="$dir/cert.pem" --kube-apiserver-arg oidc-username-claim=email \
    --kube-apiserver-arg oidc-groups-claim=groups --kube-apiserver-arg oidc-groups-prefix=oidc: >server.log 2>&1 &
server=$!
until_ok "the server" kubectl --kubeconfig "$dir/admin" get --raw /readyz

curl -fs --cacert cert.pem -u ci:not-a-secret -d 'grant_type=client_credentials&resource=urn:kedge&scope=api' \
    https://127.0.0.1:19443/token >token.json
token=$(sed 's/.*"access_token":"\([^"]*\)".*/\1/' token.json)
as() { # as TOKEN ARGS...
    bearer=$1
    shift
    kubectl --kubeconfig=/dev/null --server=https://127.0.0.1:17443 --insecure-skip-tls-verify --token="$bearer" "$@"
}
until_ok "a token of the issuer's" as "$token" auth whoami
as "$token" auth whoami | grep -q robot@example.org || die "the name is not the claim's"
as "$token" auth whoami | grep -q oidc:robots || die "the groups are not the claim's"
if as "$token" get pods 2>/dev/null; then die "somebody new may read pods"; fi
kubectl --kubeconfig "$dir/admin" create clusterrolebinding robots --clusterrole=view --group=oidc:robots >/dev/null
until_ok "a role for the group" as "$token" get pods
if as "${token%?????}AAAAA" get --raw /api 2>/dev/null; then die "a forged token lets in"; fi
echo "ok: an OIDC issuer's token is who its claims say, a forged one is nobody"
