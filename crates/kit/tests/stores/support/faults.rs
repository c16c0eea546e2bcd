//! Shared parts of the fault suites: a store that must fail closed, and a server that returns malformed data.

use super::acquired;
use super::wait::until;
use posthaste_kit::idempotency::{IdempotencyStore, KEEP_DEFAULT, LOCK_DEFAULT, Lease, StoreError};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A step may take its time limit, and a busy machine some more time.
const PROMPT: Duration = Duration::from_secs(5);

/// All four steps fail, and none takes long.
pub(crate) async fn fails_closed(store: &dyn IdempotencyStore, lease: &Lease) -> [StoreError; 4] {
    let started = Instant::now();
    let begin = store.begin("another", LOCK_DEFAULT).await.expect_err("nobody may begin");
    let extend = store.extend(lease, LOCK_DEFAULT).await.expect_err("nobody may go on");
    let complete = store.complete(lease, KEEP_DEFAULT).await.expect_err("nobody can mark it");
    let release = store.release(lease).await.expect_err("nobody can let go of it");
    let took = started.elapsed();
    assert!(took < PROMPT * 4, "{took:?} for four steps that fail");
    [begin, extend, complete, release]
}

/// Waits until the store works again.
pub(crate) async fn begins(store: &dyn IdempotencyStore, key: &str) -> Lease {
    until("beginning again", || async {
        match store.begin(key, LOCK_DEFAULT).await {
            Ok(begun) => Ok(acquired(Ok(begun))),
            Err(error) => Err(format!("{error:?}")),
        }
    })
    .await
}

/// A lease that no store has handed out.
pub(crate) fn invented() -> Lease {
    Lease { key: "message".into(), token: [7; 16], fence: 1 }
}

/// The address of a server that sends one response to every request.
pub(crate) async fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4_096];
                while let Ok(1..) = stream.read(&mut bytes).await {
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}
