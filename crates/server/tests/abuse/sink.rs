//! The receiver of the attacker's messages: takes any body and answers by path.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

pub(crate) struct Sink {
    pub(crate) address: SocketAddr,
    counts: Arc<Counts>,
    _listening: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Counts {
    succeeded: AtomicUsize,
    failed: AtomicUsize,
}

impl Sink {
    pub(crate) async fn start() -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let counts: Arc<Counts> = Arc::default();
        let counted = counts.clone();
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counted = counted.clone();
                // A connection that breaks has lost its server.
                tokio::spawn(async move { drop(receive(stream, &counted).await) });
            }
        });
        Sink { address, counts, _listening: AbortOnDropHandle::new(listening) }
    }

    /// A URL that answers 500 if its path begins with `/fail`, and 200 otherwise.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Requests that were answered with 200.
    pub(crate) fn succeeded(&self) -> usize {
        self.counts.succeeded.load(Ordering::Relaxed)
    }

    /// Requests that were answered with 500.
    pub(crate) fn failed(&self) -> usize {
        self.counts.failed.load(Ordering::Relaxed)
    }
}

async fn receive(stream: TcpStream, counts: &Counts) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        let (mut length, mut line) = (0, String::new());
        while stream.read_line(&mut line).await? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        tokio::io::copy(&mut (&mut stream).take(length), &mut tokio::io::sink()).await?;
        let (status, count) = match first.split(' ').nth(1).is_some_and(|path| path.starts_with("/fail")) {
            true => ("500 Internal Server Error", &counts.failed),
            false => ("200 OK", &counts.succeeded),
        };
        count.fetch_add(1, Ordering::Relaxed);
        stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await?;
    }
}
