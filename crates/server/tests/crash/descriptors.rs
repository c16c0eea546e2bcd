//! A server that runs out of descriptors waits, says so, and goes on when there are some again.

use crate::client::{Client, Response};
use crate::process::Launch;
use bytes::Bytes;
use hyper::Method;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

/// Descriptors of a server that has few. It needs some forty itself.
const DESCRIPTORS: usize = 100;

async fn publish(client: &Client, server: SocketAddr) -> Option<Response> {
    let headers = [("upstash-delay", "1h".to_owned())];
    let body = Bytes::from_static(&[b'x'; 2_000]);
    client.send(Method::POST, server, "/v2/publish/http://127.0.0.1:1/never", &headers, body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_descriptors_waits_and_recovers() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut server = Launch::on(&dir.path().join("data")).with_descriptors(DESCRIPTORS).spawn();
    let address = server.address();
    let client = Client::new();
    assert_eq!(publish(&client, address).await.expect("an answer").status, 200);

    // The kernel takes them all; the server can accept only some.
    let mut idle = Vec::new();
    for _ in 0..2 * DESCRIPTORS {
        idle.push(TcpStream::connect(address).await.expect("the kernel accepts"));
    }
    let refused = timeout(Duration::from_secs(1), publish(&Client::new(), address)).await;
    let refused = refused.map_or(true, |answer| answer.is_none_or(|answer| answer.status == 503));
    assert!(refused, "there were descriptors left");
    let is_told = timeout(Duration::from_secs(30), async {
        let mut ticks = interval(Duration::from_millis(50));
        while !server.output().contains("cannot accept a connection") {
            ticks.tick().await;
        }
    });
    assert!(is_told.await.is_ok(), "{}", server.output());
    // Whoever is connected goes on, also when the journal is due for its next file.
    for _ in 0..200 {
        assert_eq!(publish(&client, address).await.expect("an answer").status, 200);
    }

    drop(idle);
    let again = timeout(Duration::from_secs(30), async {
        loop {
            if let Some(answer) = publish(&Client::new(), address).await {
                return answer.status;
            }
        }
    });
    assert_eq!(again.await.expect("it recovers"), 200);
    assert!(!server.output().contains("panicked"), "{}", server.output());
    server.kill();
}
