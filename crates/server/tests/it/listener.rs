//! The listener's bounds: on what slow clients, large heads and many connections can hold.

use crate::support::http::{exchange, read_answer};
use crate::support::server::TOKEN;
use crate::support::{Answer, Setup, TestServer, eventually, within};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Clients that ask and never read.
const SILENT: usize = 10;
/// How long they may keep their connection: `WRITE_TIMEOUT`, and what a busy machine needs.
const LET_GO_WITHIN: Duration = Duration::from_secs(55);
/// Bytes that the kernel may keep for each: `SEND_BUFFER_BYTES` with its overhead. Without that bound it keeps 2.8 MB.
const SEND_QUEUE_MAX: u64 = 1024 * 1024;

#[tokio::test]
async fn clients_that_do_not_read_are_let_go_and_hold_little_meanwhile() {
    let server = TestServer::start().await;
    let request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..SILENT {
        let (mut stream, request) = (TcpStream::connect(server.address).await.expect("it listens"), request.clone());
        clients.spawn(async move {
            let asking = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
            tokio::time::timeout(LET_GO_WITHIN, asking).await.is_ok()
        });
    }
    let full = || async { (send_queues(server.address) > 1_000_000).then_some(()) };
    eventually("the kernel keeps responses that nobody reads", full).await;
    server.publish("https://example.com/").expect(200).await;
    let queued = send_queues(server.address);
    assert!(queued < SILENT as u64 * SEND_QUEUE_MAX, "{queued} bytes wait to be sent");
    let let_go = clients.join_all().await;
    assert!(let_go.iter().all(|let_go| *let_go), "some are still connected after {:?}", begun.elapsed());
    assert!(begun.elapsed() > Duration::from_secs(25), "they had time to read");
    let empty = || async { (send_queues(server.address) == 0).then_some(()) };
    eventually("the kernel keeps nothing for them", empty).await;
    server.finish_with_pending().await;
}

/// Bytes that wait to be sent from this address.
fn send_queues(address: SocketAddr) -> u64 {
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("it runs on Linux");
    let sockets = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = sockets.filter(|columns| columns[1].ends_with(&port) && columns[3] != "0A");
    let queued = ours.map(|columns| {
        let bytes = columns[4].split(':').next().and_then(|hex| u64::from_str_radix(hex, 16).ok());
        (columns[2].to_owned(), bytes.expect("a queue is a number"))
    });
    // While sockets come and go, the table may list one of them twice.
    queued.collect::<BTreeMap<_, _>>().into_values().sum()
}

#[tokio::test]
async fn an_address_has_so_many_connections_and_gets_others_when_they_end() {
    const MAX: usize = 3;
    let mut setup = Setup::serve();
    setup.settings.connections_per_address = Some(MAX);
    let server = TestServer::with(setup).await;
    let mut open = Vec::new();
    for _ in 0..MAX {
        open.push(connected(server.address).await);
    }
    let mut stream = TcpStream::connect(server.address).await.expect("it listens");
    let refused = within("an answer", read_answer(&mut stream, &mut Vec::new())).await.expect("an answer");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert!(refused.error().contains("at most 3 at once"), "{}", refused.text());
    drop(open);
    let again = || async {
        let answer = server.get("/health").try_send().await.ok()?;
        (answer.status == 200).then_some(())
    };
    eventually("places are free again", again).await;
    let server = server.restart_with(|settings| settings.trusted_proxies = Some(vec!["127.0.0.1/32".to_owned()])).await;
    let mut open = Vec::new();
    for _ in 0..3 * MAX {
        open.push(connected(server.address).await);
    }
    drop(open);
    server.finish().await;
}

/// A connection that has had a request.
async fn connected(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it reads");
    let answer = within("an answer", read_answer(&mut stream, &mut Vec::new())).await.expect("an answer");
    assert_eq!(answer.status, 200);
    stream
}

#[tokio::test]
async fn large_heads_share_a_bound_and_small_ones_need_none() {
    /// Each takes 134 KiB of the 32 MiB that all may have.
    const HEAD: usize = 150 * 1024;
    const CLIENTS: usize = 260;
    let server = TestServer::start().await;
    let head = format!("GET /health HTTP/1.1\r\nHost: x\r\nX-Large: {}", "a".repeat(HEAD));
    let mut open = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = TcpStream::connect(server.address).await.expect("it listens");
        // The last ones may be refused before they have sent everything.
        drop(stream.write_all(head.as_bytes()).await);
        open.push(stream);
    }
    let mut last = open.pop().expect("there are many");
    let refused = within("an answer", read_answer(&mut last, &mut Vec::new())).await.expect("an answer");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert!(refused.error().contains("too many large request heads"), "{}", refused.text());
    server.publish("https://example.com/").expect(200).await;
    drop(open);
    // The API itself refuses what it gets: there is room again.
    let room = || async {
        let answer = exchange(server.address, format!("{head}\r\n\r\n").as_bytes()).await.ok()?;
        (answer.status == 431 && answer.error().contains("at most 256")).then_some(())
    };
    eventually("there is room again", room).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_never_reaches_the_api_is_refused_with_a_text_after_the_answers_before() {
    let server = TestServer::with(Setup::serve()).await;
    let publish =
        format!("POST /v2/publish/https://example.com/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n");
    let cases = [
        ("A: b\nC: d\r\n\r\n".to_owned(), 400, "ends with LF alone"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n".to_owned(), 400, "only one of them"),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), 400, "only one of them"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello".to_owned(), 400, "Content-Length"),
        ("Content Length: 5\r\n\r\nhello".to_owned(), 400, "not a valid HTTP/1.1 request"),
        ("Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n".to_owned(), 400, "broke off"),
        (format!("X-Large: {}\r\n\r\n", "a".repeat(1024 * 1024)), 431, "at most 163840 bytes"),
    ];
    for (rest, status, text) in cases {
        let bytes = format!("GET /health HTTP/1.1\r\nHost: x\r\n\r\n{publish}{rest}");
        let (before, refused) =
            within("both answers", conversation(server.address, &bytes)).await.expect("both answers");
        assert_eq!(before.status, 200);
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(refused.error().contains(text), "{}", refused.text());
        // The API itself sees a body that breaks off.
        let is_ours = text != "broke off";
        assert_eq!(refused.header("connection").is_some(), is_ours, "{:?}", refused.headers);
        assert!(refused.header("date").is_some(), "{:?}", refused.headers);
    }
    assert_eq!(server.metric("posthaste_published_total{result=\"accepted\"}"), 0.0);
    server.finish().await;
}

/// Sends everything, and reads two answers meanwhile.
async fn conversation(address: SocketAddr, bytes: &str) -> io::Result<(Answer, Answer)> {
    let (mut reader, mut writer) = TcpStream::connect(address).await?.into_split();
    let mut buffer = Vec::new();
    let reading = async {
        let before = read_answer(&mut reader, &mut buffer).await?;
        Ok((before, read_answer(&mut reader, &mut buffer).await?))
    };
    let (_, answers) = tokio::join!(writer.write_all(bytes.as_bytes()), reading);
    answers
}
