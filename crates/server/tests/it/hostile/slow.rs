//! The cases that take as long as the bounds on time are: connections that are opened and hardly used.

use super::{Case, hardened, tests_of_cases};
use crate::support::server::TOKEN;
use crate::support::within;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

tests_of_cases! {
    "raw-slow-headers" => a_head_that_drips_is_cut_off,
    "raw-idle" => idle_connections_are_closed_and_hold_up_nobody,
}

/// Ten seconds is the bound on a head; a loaded machine may be late.
const CLOSED_WITHIN: Duration = Duration::from_secs(20);
/// Idle connections at once; the vectors ask for 10,000, a process has not that many descriptors.
const IDLE: usize = 200;

/// The library closes without an answer: whoever drips bytes does not read one.
async fn a_head_that_drips_is_cut_off(case: Case) {
    assert_eq!(case.expected(), [408], "the case has changed");
    let server = hardened(true).await;
    let mut stream = TcpStream::connect(server.address).await.expect("it listens");
    let head =
        format!("POST /v2/publish/https://example.com/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nX: ");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let started = Instant::now();
    let mut answer = Vec::new();
    loop {
        // The pace of the drip is how long each read may wait.
        match tokio::time::timeout(Duration::from_secs(2), stream.read_buf(&mut answer)).await {
            Ok(read) => break assert!(matches!(read, Ok(0) | Err(_)), "answered {:?}", answer.escape_ascii()),
            Err(_) => drop(stream.write_all(b"a").await),
        }
        assert!(started.elapsed() < CLOSED_WITHIN, "it is still open");
    }
    server.publish("https://example.com/").expect(200).await;
    assert_eq!(super::accepted(&server), 1.0);
    server.finish_with_pending().await;
}

async fn idle_connections_are_closed_and_hold_up_nobody(case: Case) {
    assert!(case.expected().is_empty(), "the case has changed");
    let server = hardened(true).await;
    let mut waiting = JoinSet::new();
    for n in 0..IDLE {
        let mut stream = TcpStream::connect(server.address).await.expect("it listens");
        // Every other one has had a request before.
        if n % 2 == 0 {
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it reads");
        }
        waiting.spawn(async move {
            let mut answer = Vec::new();
            let closed = tokio::time::timeout(CLOSED_WITHIN, stream.read_to_end(&mut answer)).await;
            closed.is_ok().then_some(answer.len())
        });
    }
    let publish = server.publish("https://example.com/").expect(200);
    within("a publish meanwhile", publish).await;
    let ends = waiting.join_all().await;
    assert!(ends.iter().all(Option::is_some), "some are still open");
    assert_eq!(ends.iter().filter(|end| end.is_some_and(|bytes| bytes > 0)).count(), IDLE / 2);
    server.publish("https://example.com/").expect(200).await;
    server.finish_with_pending().await;
}
