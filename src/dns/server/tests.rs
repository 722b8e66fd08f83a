//! Claims about questions and answers on the wire, and about those who ask too much.

use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Query};
use hickory_proto::rr::{RData, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::listen::{framed, serve_tcp};
use super::reply::encode;
use super::*;
use crate::config;

pub(super) fn request() -> Message {
    let mut message = Message::query();
    message.metadata.id = 7;
    message.add_query(Query::query(Name::from_ascii("web.default.svc.cluster.local.").unwrap(), RecordType::A));
    message
}

pub(super) fn addresses(n: u32) -> Answer {
    let mut answer = Answer::new(ResponseCode::NoError, "test");
    let name = request().queries[0].name.clone();
    (0..n).for_each(|i| answer.add(&name, 5, RData::A(Ipv4Addr::from(0x0a2a_0000 + i).into())));
    answer
}

#[test]
fn an_answer_is_cut_to_what_fits_and_says_so() {
    for (n, transport, whole) in [
        (3, Transport::Udp, true),
        (5_000, Transport::Udp, false),
        (1_200, Transport::Tcp, true),
        (9_000, Transport::Tcp, false),
    ] {
        let bytes = encode(&request(), &mut addresses(n), transport, reply::Shape::default()).unwrap().0;
        let limit = if transport == Transport::Udp { 512 } else { 65_535 };
        let reply = Message::from_vec(&bytes).unwrap();
        assert!(bytes.len() <= limit, "{n}: {}", bytes.len());
        assert_eq!(
            (reply.metadata.truncation, reply.answers.len() == usize::try_from(n).unwrap()),
            (!whole, whole),
            "{n}"
        );
        // Nothing that would have fitted is missing: a record more takes 16 bytes, or 45 where names are not shortened
        // any more.
        assert!(whole || bytes.len() + 46 > limit, "{n}: {}", bytes.len());
    }
}

#[test]
fn what_is_cut_costs_what_fits_and_not_what_there_is() {
    let began = Stopwatch::start();
    let answer = addresses(60_000);
    for _ in 0..20 {
        encode(&request(), &mut answer.clone(), Transport::Udp, reply::Shape::default()).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn one_clients_connections_leave_places_for_others() {
    let server = server();
    let client = |text: &str| text.parse::<IpAddr>().unwrap();
    let held: Vec<_> = std::iter::from_fn(|| server.connections.take(client("2001:db8::1")).ok()).collect();
    assert_eq!(held.len(), CONNECTIONS_OF_CLIENT_MAX);
    assert!(server.connections.take(client("2001:db8::2")).is_ok(), "another pod of the same node");
}

/// A server of these blocks, which counts in a page of its own.
pub(super) fn server_of(sites: Vec<Arc<Site>>, group: &Group) -> Arc<Server> {
    let (fatal, _) = mpsc::channel(1);
    let shared = Shared { metrics: Arc::default(), rng: Rng::from_seed(1), fatal, group: group.clone() };
    Arc::new(Server::new(sites, "dns://:53", shared))
}

pub(super) fn server() -> Arc<Server> {
    server_of(Vec::new(), &Group::root("test").0)
}

#[tokio::test]
async fn idle_connections_stop_no_questions() {
    let (group, _reports) = Group::root("test");
    let server = server();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    group.spawn_short("tcp", serve_tcp(Arc::clone(&server), Arc::new(listener), group.clone()));
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(addr).await.unwrap());
    }
    // Those above the client's limit are closed, the others wait, and questions have all their places.
    let mut byte = [0];
    assert_eq!(idle.last_mut().unwrap().read(&mut byte).await.unwrap(), 0);
    assert!(server.forwarded.iter().all(|places| places.n_keys() == 0));
    group.shutdown().await;
}

/// A server that knows `here.test` with `n` addresses, and asks one resolver, which never says anything, for all
/// others.
fn busy(n: u32, group: &Group) -> (Arc<Server>, UdpSocket) {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let silent = UdpSocket::from_std(silent).unwrap();
    let inline: String = (0..n).map(|i| format!("{} here.test\n", Ipv4Addr::from(0x0a2a_0000 + i))).collect();
    let hosts = config::Hosts {
        path: "/nowhere".into(),
        zones: vec![Name::root()],
        inline,
        fall: crate::around::Fall::all(),
        ..Default::default()
    };
    let to = config::Target { addr: silent.local_addr().unwrap(), tls: false };
    let forward = config::Forward { fails_max: 0, ..config::Forward::new(vec![to]) };
    let zone = config::Zone { name: Name::root(), port: 53 };
    let mut site = Site::of(Block { zones: vec![zone], ..Block::default() });
    site.hosts = Some(Hosts::new(hosts));
    site.forwarders = vec![Forwarder::new(forward, &Rng::from_seed(1), group, &Arc::default())];
    site.loop_probe = Some(LoopProbe::new(Name::from_ascii("probe.test.").unwrap()));
    (server_of(vec![Arc::new(site)], group), silent)
}

fn about(name: &str) -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

async fn code(server: &Arc<Server>, name: &str, client: &str) -> ResponseCode {
    let reply = server.handle(&about(name), format!("{client}:4000").parse().unwrap(), Transport::Udp).await;
    Message::from_vec(&reply.unwrap()).unwrap().metadata.response_code
}

#[tokio::test]
async fn names_of_a_dead_zone_take_neither_what_is_here_nor_what_others_ask() {
    let (group, _reports) = Group::root("test");
    let (server, silent) = busy(1, &group);
    // As many as may wait for a resolver that says nothing, of nine pods.
    let pod = |n: u8| IpAddr::from([10, 42, 0, n]);
    let waiting: Vec<_> =
        (1..=9).flat_map(|n| std::iter::from_fn(|| server.permit_to_forward(pod(n))).collect::<Vec<_>>()).collect();
    assert_eq!(waiting.len(), FORWARDED_MAX + 9 * SPARE_OF_CLIENT_MAX);
    assert_eq!(code(&server, "b.dead.test.", "10.42.0.1").await, ResponseCode::Refused);
    assert_eq!(code(&server, "here.test.", "10.42.0.1").await, ResponseCode::NoError);
    assert_eq!(code(&server, "here.test.", "10.42.0.99").await, ResponseCode::NoError);
    // Another client's question is passed on.
    let (other, mut buffer) = (Arc::clone(&server), [0; 512]);
    group.spawn_short("question", async move {
        let _unanswered = code(&other, "live.test.", "10.42.0.99").await;
    });
    let len = silent.recv(&mut buffer).await.unwrap();
    assert_eq!(Message::from_vec(&buffer[..len]).unwrap().queries[0].name.to_ascii(), "live.test.");
    group.shutdown().await;
}

#[tokio::test]
async fn answers_that_nobody_reads_take_a_bounded_place() {
    let (group, _reports) = Group::root("test");
    let (server, _silent) = busy(4_000, &group);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    group.spawn_short("tcp", serve_tcp(Arc::clone(&server), Arc::new(listener), group.clone()));
    let mut deaf = Vec::new();
    let question = framed(&about("here.test."));
    for _ in 0..2 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(addr).await.unwrap();
        // What the kernel takes is not the server's: much more is asked for than that.
        let (mut asked, limit) = (0, Stopwatch::start());
        while asked < 60 && limit.elapsed() < Duration::from_secs(2) {
            let sent = tokio::time::timeout(Duration::from_millis(300), stream.write_all(&question)).await;
            asked += usize::from(matches!(sent, Ok(Ok(()))));
        }
        deaf.push(stream);
    }
    assert!(UNREAD_MAX - server.unread.available_permits() <= 2 * UNREAD_OF_CONNECTION_MAX);
    let mut client = TcpStream::connect(addr).await.unwrap();
    client.write_all(&question).await.unwrap();
    assert!(client.read_u16().await.unwrap() > 60_000);
    // A question of 64 KiB is none.
    let mut long = TcpStream::connect(addr).await.unwrap();
    long.write_all(&u16::MAX.to_be_bytes()).await.unwrap();
    assert_eq!(long.read(&mut [0]).await.unwrap(), 0);
    group.shutdown().await;
}

#[test]
fn a_probe_that_comes_late_ends_no_process() {
    let probe = LoopProbe::new(Name::from_ascii("probe.test.").unwrap());
    let question = |name: &str| Question::of(&Message::from_vec(&about(name)).unwrap(), Transport::Udp).unwrap();
    let now = probe.made;
    assert!((0..8).all(|_| !probe.circles(&question("other.test."), now)));
    let early: Vec<bool> = (0..4).map(|_| probe.circles(&question("probe.test."), now)).collect();
    assert_eq!(early, [false, false, true, true]);
    assert!(!probe.circles(&question("probe.test."), now + LOOP_LOOK));
}

/// The code and the header's bits of the answer to these bytes; `None` where there is none.
async fn header(bytes: &[u8]) -> Option<(ResponseCode, bool, bool)> {
    let (group, _reports) = Group::root("test");
    let (server, _silent) = busy(1, &group);
    let reply = server.handle(bytes, "10.42.0.1:4000".parse().unwrap(), Transport::Udp).await;
    group.shutdown().await;
    let reply = Message::from_vec(&reply?).unwrap();
    assert_eq!(reply.metadata.id.to_be_bytes(), bytes[..2], "an answer has the question's id");
    Some((reply.metadata.response_code, reply.metadata.recursion_available, reply.metadata.recursion_desired))
}

/// RFC 1035 and 6891: each question that cannot be answered has a code that says why.
#[tokio::test]
async fn a_question_that_is_none_is_told_what_is_wrong_with_it() {
    let changed = |change: &dyn Fn(&mut Message)| {
        let mut message = Message::from_vec(&about("here.test.")).unwrap();
        change(&mut message);
        message.to_vec().unwrap()
    };
    let usual = changed(&|_| {});
    for (case, bytes, wanted) in [
        ("a question", usual.clone(), Some(ResponseCode::NoError)),
        ("half a question", usual[..usual.len() - 3].to_vec(), Some(ResponseCode::FormErr)),
        ("less than a header", usual[..11].to_vec(), None),
        ("nothing", Vec::new(), None),
        ("no question", changed(&|message| message.queries.clear()), Some(ResponseCode::FormErr)),
        (
            "two questions",
            changed(&|message| message.queries.push(message.queries[0].clone())),
            Some(ResponseCode::FormErr),
        ),
        (
            "another class",
            changed(&|message| message.queries[0].query_class = DNSClass::CH),
            Some(ResponseCode::Refused),
        ),
        ("an update", changed(&|message| message.metadata.op_code = OpCode::Update), Some(ResponseCode::NotImp)),
        ("an answer", changed(&|message| message.metadata.message_type = MessageType::Response), None),
        (
            "a later EDNS",
            changed(&|message| {
                let mut edns = Edns::new();
                edns.set_version(1);
                message.set_edns(edns);
            }),
            // RFC 6891, 9: code 16 is BADVERS beside an OPT record. The reader names it as RFC 8945 does.
            Some(ResponseCode::BADSIG),
        ),
    ] {
        assert_eq!(header(&bytes).await.map(|(code, ..)| code), wanted, "{case}");
    }
    let recursive = changed(&|message| message.metadata.recursion_desired = true);
    let plain = changed(&|message| message.metadata.recursion_desired = false);
    assert_eq!(header(&recursive).await, Some((ResponseCode::NoError, true, true)));
    assert_eq!(header(&plain).await, Some((ResponseCode::NoError, true, false)));
}

/// RFC 6891: over UDP a client gets what it says it can take, within what every network carries.
#[test]
fn an_answer_over_udp_has_the_size_that_the_client_can_take() {
    for (payload, limit) in [(None, 512), (Some(100), 512), (Some(900), 900), (Some(4096), 1232)] {
        let mut asked = request();
        if let Some(payload) = payload {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            asked.set_edns(edns);
        }
        let bytes = encode(&asked, &mut addresses(200), Transport::Udp, reply::Shape::default()).unwrap().0;
        let reply = Message::from_vec(&bytes).unwrap();
        assert!(bytes.len() <= limit && bytes.len() + 46 > limit, "{payload:?}: {}", bytes.len());
        assert_eq!(reply.edns.is_some(), payload.is_some(), "EDNS is for clients that speak it");
    }
}

#[tokio::test]
async fn the_longest_zone_answers() {
    let zone = |text: &str| config::Zone { name: Name::from_ascii(text).unwrap(), port: 53 };
    let site = |zones: &[&str]| {
        let zones = zones.iter().map(|text| zone(text)).collect();
        Arc::new(Site::of(Block { zones, ..Block::default() }))
    };
    let sites = vec![site(&["test."]), site(&["b.a.test.", "example.org."]), site(&["a.test."])];
    let (group, _reports) = Group::root("test");
    let server = server_of(sites, &group);
    let zone_of = |text: &str| server.site(&Name::from_ascii(text).unwrap()).map(|(_, zone)| zone.to_string());
    for (name, wanted) in [
        ("x.b.a.test.", Some("b.a.test.")),
        ("b.a.test.", Some("b.a.test.")),
        ("c.a.test.", Some("a.test.")),
        ("ba.test.", Some("test.")),
        ("www.example.org.", Some("example.org.")),
        ("org.", None),
    ] {
        assert_eq!(zone_of(name).as_deref(), wanted, "{name}");
    }
}
