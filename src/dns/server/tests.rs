//! Claims about questions and answers on the wire, and about those who ask too much.

use super::*;
use hickory_proto::op::Query;

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
    for (n, transport, whole) in
        [(3, Transport::Udp, true), (5_000, Transport::Udp, false), (1_200, Transport::Tcp, true), (9_000, Transport::Tcp, false)]
    {
        let bytes = encode(&request(), addresses(n), transport).unwrap();
        let limit = if transport == Transport::Udp { 512 } else { 65_535 };
        let reply = Message::from_vec(&bytes).unwrap();
        assert!(bytes.len() <= limit, "{n}: {}", bytes.len());
        assert_eq!((reply.metadata.truncation, reply.answers.len() == usize::try_from(n).unwrap()), (!whole, whole), "{n}");
        // Nothing that would have fitted is missing: a record more takes 16 bytes, or 45 where names are not shortened any more.
        assert!(whole || bytes.len() + 46 > limit, "{n}: {}", bytes.len());
    }
}

#[test]
fn what_is_cut_costs_what_fits_and_not_what_there_is() {
    let began = Stopwatch::start();
    let answer = addresses(60_000);
    for _ in 0..20 {
        encode(&request(), answer.clone(), Transport::Udp).unwrap();
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

pub(super) fn server() -> Arc<Server> {
    let (fatal, _) = mpsc::channel(1);
    Arc::new(Server::new(Vec::new(), 53, Arc::default(), Rng::from_seed(1), fatal))
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
    assert_eq!(server.places.available_permits(), QUESTIONS_MAX);
    group.shutdown().await;
}
