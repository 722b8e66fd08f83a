//! Claims about resolvers: who is asked, in which order, and what is taken for an answer.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use base::sync::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;

use super::upstream::fits;
use super::*;

/// A resolver that knows no EDNS: FORMERR to whoever speaks it. Tells the ports of those who ask.
async fn old_resolver(group: &Group) -> (SocketAddr, Arc<Mutex<BTreeSet<u16>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (addr, ports) = (socket.local_addr().unwrap(), Arc::<Mutex<BTreeSet<u16>>>::default());
    let seen = Arc::clone(&ports);
    group.spawn_short("resolver", async move {
        let mut buffer = vec![0; 4096];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer).await {
            let asked = Message::from_vec(&buffer[..len]).unwrap();
            seen.lock().insert(peer.port());
            let mut reply = Message::response(asked.metadata.id, asked.metadata.op_code);
            reply.queries.clone_from(&asked.queries);
            reply.metadata.response_code =
                if asked.edns.is_some() { ResponseCode::FormErr } else { ResponseCode::NoError };
            socket.send_to(&reply.to_vec().unwrap(), peer).await.unwrap();
        }
    });
    (addr, ports)
}

fn config(to: Vec<SocketAddr>) -> config::Forward {
    let to = to.into_iter().map(|addr| config::Target { addr, tls: false }).collect();
    config::Forward { policy: Policy::Sequential, ..config::Forward::new(to) }
}

fn forwarder(config: config::Forward, group: &Group) -> Arc<Forwarder> {
    Forwarder::new(config, &Rng::from_seed(1), group, &Arc::default())
}

#[tokio::test]
async fn edns_is_spoken_only_by_clients_that_speak_it_and_sockets_are_used_again() {
    let (group, _reports) = Group::root("test");
    let (addr, ports) = old_resolver(&group).await;
    let forwarder = self::forwarder(config(vec![addr]), &group);
    let mut message = query(1, Name::from_ascii("example.org.").unwrap(), RecordType::A);
    for _ in 0..5 {
        let plain = Question::of(&message, Transport::Udp).unwrap();
        assert_eq!(forwarder.answer(&plain).await.code, ResponseCode::NoError);
    }
    assert_eq!(ports.lock().len(), 1);
    message.set_edns(Edns::new());
    let modern = Question::of(&message, Transport::Udp).unwrap();
    assert_eq!(forwarder.answer(&modern).await.code, ResponseCode::FormErr);
    group.shutdown().await;
}

/// A forwarder to three resolvers that nobody asks, and the order of its next question by their ports.
fn three(policy: Policy, group: &Group) -> (Arc<Forwarder>, impl Fn() -> Vec<u16>) {
    let to = [1, 2, 3].map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)).to_vec();
    let forwarder = self::forwarder(config::Forward { policy, ..config(to) }, group);
    let same = Arc::clone(&forwarder);
    (forwarder, move || same.order().iter().map(|upstream| upstream.port()).collect())
}

#[tokio::test]
async fn resolvers_are_asked_in_the_order_of_the_policy() {
    let (group, _reports) = Group::root("test");
    let (_, order) = three(Policy::Sequential, &group);
    assert_eq!([order(), order()], [[1, 2, 3], [1, 2, 3]]);
    let (_, order) = three(Policy::RoundRobin, &group);
    assert_eq!([order(), order(), order(), order()], [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    let (_, order) = three(Policy::Random, &group);
    let seen: BTreeSet<Vec<u16>> = (0..200).map(|_| order()).collect();
    assert_eq!(seen.len(), 6, "every order comes");
    group.shutdown().await;
}

#[tokio::test]
async fn a_resolver_that_failed_too_often_is_asked_last() {
    let (group, _reports) = Group::root("test");
    let (forwarder, order) = three(Policy::Sequential, &group);
    forwarder.upstreams[0].set_fails(1);
    assert_eq!(order(), [1, 2, 3], "once is not too often");
    forwarder.upstreams[0].set_fails(2);
    assert_eq!(order(), [2, 3, 1]);
    forwarder.upstreams.iter().for_each(|upstream| upstream.set_fails(9));
    assert_eq!(order(), [1, 2, 3], "when all are down each may be asked");
    group.shutdown().await;
}

#[tokio::test]
async fn names_outside_the_zones_and_excepted_ones_are_not_forwarded() {
    let (group, _reports) = Group::root("test");
    let zones = |texts: &[&str]| texts.iter().map(|text| Name::from_ascii(text).unwrap()).collect::<Vec<_>>();
    let config = config::Forward {
        from: zones(&["16.172.in-addr.arpa.", "example.org."]),
        except: zones(&["local.example.org."]),
        ..config(Vec::new())
    };
    let forwarder = self::forwarder(config, &group);
    let wants = |name: &str| {
        let message = query(1, Name::from_ascii(name).unwrap(), RecordType::A);
        forwarder.wants(&Question::of(&message, Transport::Udp).unwrap())
    };
    assert!(wants("www.Example.org.") && wants("example.org.") && wants("1.0.16.172.in-addr.arpa."));
    assert!(!wants("a.local.example.org.") && !wants("example.com.") && !wants("1.0.17.172.in-addr.arpa."));
    group.shutdown().await;
}

#[test]
fn an_answer_must_have_the_id_and_the_question_that_were_asked() {
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let asked = query(7, name("a.test."), RecordType::A);
    let refusal = |code: ResponseCode| {
        let mut message = query(7, name("a.test."), RecordType::A);
        message.queries.clear();
        message.metadata.response_code = code;
        message
    };
    for (case, answer, wanted) in [
        ("the same", query(7, name("a.test."), RecordType::A), true),
        ("other letters", query(7, name("A.TEST."), RecordType::A), true),
        ("another id", query(8, name("a.test."), RecordType::A), false),
        ("another name", query(7, name("b.test."), RecordType::A), false),
        ("another type", query(7, name("a.test."), RecordType::AAAA), false),
        ("a refusal without a question", refusal(ResponseCode::Refused), true),
        ("an answer without a question", refusal(ResponseCode::NoError), false),
    ] {
        assert_eq!(fits(&answer, &asked), wanted, "{case}");
    }
}

#[test]
fn places_are_given_back() {
    let running = AtomicUsize::new(0);
    let held = [Slot::take(&running, 2), Slot::take(&running, 2)];
    assert!(held.iter().all(Option::is_some) && Slot::take(&running, 2).is_none());
    drop(held);
    assert!(Slot::take(&running, 2).is_some());
    assert_eq!(running.load(Ordering::Relaxed), 0);
    let unbounded: Vec<_> = (0..9).map(|_| Slot::take(&running, 0)).collect();
    assert!(unbounded.iter().all(Option::is_some));
}

/// A resolver over TLS under the name `dns.test`; tells how many connections it was asked over.
async fn tls_resolver(group: &Group) -> (SocketAddr, rustls::RootCertStore, Arc<AtomicUsize>) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["dns.test".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, n) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let (seen, conversations) = (Arc::clone(&n), group.clone());
    group.spawn_short("resolver", async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
            conversations.spawn_short("conversation", async move {
                let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                seen.fetch_add(1, Ordering::Relaxed);
                while let Ok(len) = tls.read_u16().await {
                    let mut bytes = vec![0; usize::from(len)];
                    tls.read_exact(&mut bytes).await.unwrap();
                    let asked = Message::from_vec(&bytes).unwrap();
                    let mut reply = Message::response(asked.metadata.id, asked.metadata.op_code);
                    reply.queries.clone_from(&asked.queries);
                    let reply = reply.to_vec().unwrap();
                    tls.write_u16(u16::try_from(reply.len()).unwrap()).await.unwrap();
                    tls.write_all(&reply).await.unwrap();
                }
            });
        }
    });
    (addr, roots, n)
}

#[tokio::test]
async fn a_resolver_over_tls_must_show_the_name_and_its_connection_is_used_again() {
    let (group, _reports) = Group::root("test");
    let (addr, roots, n_connections) = tls_resolver(&group).await;
    let tls_config = Arc::new(crate::apiserver::tls_of(roots, None).unwrap());
    let named = |name: Option<&str>| {
        let server_name = name.map(|name| rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap());
        let to = vec![config::Target { addr, tls: true }];
        let tls = Some(config::Tls { config: Arc::clone(&tls_config), server_name });
        self::forwarder(config::Forward { tls, ..config::Forward::new(to) }, &group)
    };
    let message = query(1, Name::from_ascii("example.org.").unwrap(), RecordType::A);
    let question = Question::of(&message, Transport::Udp).unwrap();
    let right = named(Some("dns.test"));
    for _ in 0..3 {
        assert_eq!(right.answer(&question).await.code, ResponseCode::NoError);
    }
    assert_eq!(n_connections.load(Ordering::Relaxed), 1);
    for wrong in [Some("dns.example"), None] {
        let answer = named(wrong).answer(&question).await;
        let why = answer.fault.unwrap().to_string();
        assert!(answer.code == ResponseCode::ServFail && why.contains("certificate"), "{wrong:?}: {why}");
    }
    group.shutdown().await;
}

#[tokio::test]
async fn a_resolver_that_answers_garbage_is_not_believed_and_the_next_one_is_asked() {
    let (group, _reports) = Group::root("test");
    let garbage = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let bad = garbage.local_addr().unwrap();
    group.spawn_short("garbage", async move {
        let mut buffer = vec![0; 4096];
        while let Ok((len, peer)) = garbage.recv_from(&mut buffer).await {
            // Noise, a circle of compression pointers, and an answer to another question.
            let mut circle = buffer[..12].to_vec();
            circle.extend([0xc0, 12, 0, 1, 0, 1]);
            let mut other = buffer[..len].to_vec();
            other[0] ^= 0xff;
            for bytes in [&b"nonsense"[..], &circle, &other] {
                garbage.send_to(bytes, peer).await.unwrap();
            }
        }
    });
    let (good, _) = old_resolver(&group).await;
    let forwarder = self::forwarder(config(vec![bad, good]), &group);
    let message = query(1, Name::from_ascii("example.org.").unwrap(), RecordType::A);
    let question = Question::of(&message, Transport::Udp).unwrap();
    assert_eq!(forwarder.answer(&question).await.code, ResponseCode::NoError);
    group.shutdown().await;
}
