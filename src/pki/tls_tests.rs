//! Handshakes between the configurations, in memory.

use base::time::Clock;
use rustls::{ClientConnection, ServerConnection};
use rustls_pki_types::{CertificateDer, ServerName};

use super::*;
use crate::certstore::Pair;
use crate::leaf::{Ca, Leaf};
use crate::server::{Options, Pki};

fn pki(dir: &std::path::Path) -> Pki {
    let options = Options {
        clock: Clock::system(),
        leaf_life: crate::authority::LEAF_LIFE,
        node_name: "n1".to_owned(),
        node_ips: vec!["192.0.2.7".parse().unwrap()],
        service_ips: vec!["10.43.0.1".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        tls_sans: Vec::new(),
    };
    Pki::load_or_create(dir, options).unwrap()
}

type Seen = (Vec<CertificateDer<'static>>, Vec<u8>, ClientConnection);

fn shake(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    name: &str,
) -> Result<(usize, Vec<u8>, ClientConnection), rustls::Error> {
    shake_and_see(server, client, name).map(|(chain, alpn, client)| (chain.len(), alpn, client))
}

/// The server's view after the handshake: the client's chain, and the protocol.
fn shake_and_see(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, name: &str) -> Result<Seen, rustls::Error> {
    let mut server = ServerConnection::new(server.clone()).unwrap();
    let mut client = ClientConnection::new(client.clone(), ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    for _ in 0..10 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        let verdict = server.process_new_packets();
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
        verdict?;
    }
    let chain = server
        .peer_certificates()
        .map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect())
        .unwrap_or_default();
    Ok((chain, server.alpn_protocol().unwrap_or_default().to_vec(), client))
}

#[test]
fn users_and_proxies_and_nobody_are_let_in_but_no_strangers() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (pki, other) = (pki(ours.path()), pki(theirs.path()));
    let server = server_config(pki.leaf(Leaf::ServingApiserver).clone(), Some(&pki.client_bundle().unwrap())).unwrap();
    let trust = pki.server_bundle().unwrap();
    let client = |cert| client_config(&trust, cert).unwrap();
    for name in ["10.43.0.1", "127.0.0.1", "n1", "kubernetes.default.svc.cluster.local"] {
        let (chain, alpn, _) = shake(&server, &client(None), name).unwrap();
        assert_eq!((chain, alpn.as_slice()), (0, b"h2".as_slice()), "{name}");
    }
    assert!(shake(&server, &client(None), "evil.example.org").is_err());
    for leaf in [Leaf::ClientAdmin, Leaf::ClientKubelet, Leaf::ClientAuthProxy] {
        assert!(shake(&server, &client(Some(pki.leaf(leaf).clone())), "n1").unwrap().0 > 0, "{leaf:?}");
    }
    assert!(shake(&server, &client(Some(other.leaf(Leaf::ClientAdmin).clone())), "n1").is_err());
    let strange = client_config(&other.server_bundle().unwrap(), None).unwrap();
    assert!(shake(&server, &strange, "n1").is_err());
    assert!(shake(&server, &unverified_client_config().unwrap(), "anything").is_ok());
}

#[test]
fn a_swapped_certificate_shows_at_the_next_handshake() {
    let dir = tempfile::tempdir().unwrap();
    let pki = pki(dir.path());
    let store = pki.leaf(Leaf::ServingApiserver);
    let server = server_config(store.clone(), None).unwrap();
    // A client of its own each time: one that comes back resumes its session, and sees the certificate of the first
    // time.
    let shown = || {
        let client = client_config(&pki.server_bundle().unwrap(), None).unwrap();
        shake(&server, &client, "n1").unwrap().2.peer_certificates().unwrap()[0].clone()
    };
    let before = shown();
    let issued =
        pki.authority(Ca::Server).issue(&Leaf::ServingApiserver.spec(pki.options()), Clock::system().now()).unwrap();
    store.swap(Pair::from_pem(&issued.cert_pem, &issued.key_pem).unwrap());
    assert_ne!(before, shown());
}

#[test]
fn a_client_that_comes_back_is_known_by_its_renewed_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let pki = pki(dir.path());
    let server = server_config(pki.leaf(Leaf::ServingApiserver).clone(), Some(&pki.client_bundle().unwrap())).unwrap();
    let store = pki.leaf(Leaf::ClientKubelet);
    let mut client = ClientConfig::clone(&client_config(&pki.server_bundle().unwrap(), Some(store.clone())).unwrap());
    // As clients that are not ours have it: they resume.
    client.resumption = rustls::client::Resumption::default();
    let client = Arc::new(client);
    let shown = || shake_and_see(&server, &client, "n1").unwrap().0.into_iter().next();
    let before = shown();
    let issued =
        pki.authority(Ca::Client).issue(&Leaf::ClientKubelet.spec(pki.options()), Clock::system().now()).unwrap();
    store.swap(Pair::from_pem(&issued.cert_pem, &issued.key_pem).unwrap());
    let after = shown();
    assert!(before.is_some() && after.is_some() && before != after);
}
