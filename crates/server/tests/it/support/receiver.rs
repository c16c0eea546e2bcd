//! A destination that records every request and answers as the test says, path by path.

use super::http::{read_exactly, read_head};
use super::within;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What the receiver does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Answers.
    Answer { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// Answers so once the gate is opened.
    Held(Gate, Box<Reply>),
    /// Closes the connection without an answer.
    Close,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Reply {
        Reply::Answer { status, headers: Vec::new(), body: Vec::new() }
    }

    /// The same answer with this body.
    pub(crate) fn with_body(self, text: impl Into<Vec<u8>>) -> Reply {
        match self {
            Reply::Answer { status, headers, .. } => Reply::Answer { status, headers, body: text.into() },
            other => other,
        }
    }

    /// The same answer with one more header.
    pub(crate) fn with_header(self, name: &str, value: &str) -> Reply {
        match self {
            Reply::Answer { status, mut headers, body } => {
                headers.push((name.to_owned(), value.to_owned()));
                Reply::Answer { status, headers, body }
            }
            other => other,
        }
    }

    /// The same answer, but not before the gate is opened.
    pub(crate) fn held(self) -> (Reply, Gate) {
        let gate = Gate(Arc::new(Semaphore::new(0)));
        (Reply::Held(gate.clone(), Box::new(self)), gate)
    }
}

/// Holds answers back until it is opened.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.close();
    }

    async fn opened(&self) {
        // Nothing is ever given out: the wait ends when the semaphore is closed.
        drop(self.0.acquire().await);
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) method: String,
    /// Path and query as on the request line.
    pub(crate) target: String,
    /// Lines in the order received.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Delivery {
    /// The value of a header, if there is exactly one line of it.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.all(name).into_iter();
        let first = lines.next();
        assert!(lines.next().is_none(), "{name} comes twice in {:?}", self.headers);
        first
    }

    /// All values of a header.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// See the module's text.
pub(crate) struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    _listening: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Default)]
struct State {
    /// By path without query; the last reply repeats.
    scripts: HashMap<String, VecDeque<Reply>>,
    arrived: Vec<Delivery>,
    /// How many of them the test has looked at.
    seen: usize,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Receiver {
    /// A receiver that answers 200 to everything it was not told about.
    pub(crate) async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (shared, stop) = (Arc::new(Shared::default()), CancellationToken::new());
        let accepting = accept(listener, shared.clone(), stop.clone());
        Receiver { address, shared, stop, _listening: AbortOnDropHandle::new(tokio::spawn(accepting)) }
    }

    /// The URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says how requests to a path are answered: one reply each, the last one for all that follow.
    pub(crate) fn script(&self, path: &str, replies: impl IntoIterator<Item = Reply>) {
        self.shared.state().scripts.insert(path.to_owned(), replies.into_iter().collect());
    }

    /// The next request that the test has not looked at, as soon as there is one.
    pub(crate) async fn next(&self) -> Delivery {
        within("a delivery", async {
            loop {
                let arrived = self.shared.arrived.notified();
                {
                    let mut state = self.shared.state();
                    if let Some(delivery) = state.arrived.get(state.seen).cloned() {
                        state.seen += 1;
                        return delivery;
                    }
                }
                arrived.await;
            }
        })
        .await
    }

    /// The next so many requests, in the order of their arrival.
    pub(crate) async fn take(&self, count: usize) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for _ in 0..count {
            deliveries.push(self.next().await);
        }
        deliveries
    }

    /// Looks at all requests once more, from the first.
    pub(crate) fn rewind(&self) {
        self.shared.state().seen = 0;
    }

    /// How many requests have arrived.
    pub(crate) fn count(&self) -> usize {
        self.shared.state().arrived.len()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    while let Ok((stream, _)) = listener.accept().await {
        let (shared, stop) = (shared.clone(), stop.clone());
        tokio::spawn(async move {
            // A connection ends when the server closes it, or when the test is over.
            tokio::select! {
                _ = serve(stream, &shared) => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let (head, rest) = read_head(&mut stream, &mut buffer).await?;
        buffer = rest;
        let delivery = read_delivery(&head, &mut stream, &mut buffer).await?;
        let path = delivery.target.split('?').next().unwrap_or_default().to_owned();
        let mut reply = shared.record(delivery, &path);
        while let Reply::Held(gate, then) = reply {
            gate.opened().await;
            reply = *then;
        }
        tokio::time::sleep(late()).await;
        match reply {
            Reply::Answer { status, headers, body } => stream.write_all(&answer(status, &headers, &body)).await?,
            Reply::Held(..) | Reply::Close => return Ok(()),
        }
    }
}

/// How long every answer waits: `LATE_MS=50` finds tests that take an arrival for what comes of it.
fn late() -> Duration {
    let millis = std::env::var("LATE_MS").map_or(0, |millis| millis.parse().expect("LATE_MS is a number"));
    Duration::from_millis(millis)
}

impl Shared {
    /// Keeps the request, wakes the test, and says what to do.
    fn record(&self, delivery: Delivery, path: &str) -> Reply {
        let mut state = self.state();
        state.arrived.push(delivery);
        let reply = match state.scripts.get_mut(path) {
            Some(replies) if replies.len() > 1 => replies.pop_front(),
            Some(replies) => replies.front().cloned(),
            None => None,
        };
        drop(state);
        self.arrived.notify_one();
        reply.unwrap_or_else(|| Reply::status(200).with_body("thanks"))
    }
}

async fn read_delivery(head: &str, stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Delivery> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut delivery = Delivery { method, target, headers, body: Vec::new() };
    assert_eq!(delivery.header("transfer-encoding"), None, "a delivery always has a length");
    let length = delivery.header("content-length").map_or(Ok(0), str::parse).map_err(io::Error::other)?;
    delivery.body = read_exactly(stream, buffer, length).await?;
    Ok(delivery)
}

fn answer(status: u16, headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status} As-Scripted\r\nContent-Length: {}\r\n", body.len()).into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}
