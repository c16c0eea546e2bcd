//! Scripted receivers. The tests in `receivers` use this file too.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Short enough that a timeout which restarted with each byte would never end an attempt of these tests.
const DRIP_EVERY: Duration = Duration::from_millis(20);

/// The actions of a receiver on one connection, in order. At the end it closes the connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Waits until bytes have arrived, without reading them.
    Peek,
    /// Reads one request with its body.
    Read,
    /// Reads this many bytes.
    ReadBytes(usize),
    /// Reads up to and including these bytes.
    ReadUntil(&'static [u8]),
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Notifies the test.
    Tell(Arc<Notify>),
    /// Sends these bytes repeatedly until the other side closes.
    Flood(Vec<u8>),
    /// Sends these bytes one at a time, one per [`DRIP_EVERY`], and repeats the last one until the other side closes.
    Drip(Vec<u8>),
    /// Closes with RST.
    Reset,
    /// Sends a fatal TLS alert outside the encryption.
    Alert,
    /// Closes with FIN, but without the closing alert of TLS.
    Vanish,
    /// Reads and discards until the other side closes.
    Hang,
}

pub(crate) fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

impl Step {
    /// Whether it ends only when the other side closes.
    pub(crate) fn hangs(&self) -> bool {
        matches!(self, Step::Hang | Step::Drip(_))
    }
}

/// Reads a request and responds with this text.
pub(crate) fn answer(text: &str) -> Vec<Step> {
    vec![Step::Read, send(text)]
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().expect("a request line")
    }

    /// All values of a header. The name must match exactly.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(known, _)| *known == name).map(|(_, value)| value).collect()
    }

    pub(crate) fn value(&self, name: &str) -> &str {
        let values = self.values(name);
        assert_eq!(values.len(), 1, "{name} in {}", self.head);
        values[0]
    }
}

/// A receiver on loopback. The n-th connection uses the n-th script; later connections use the last one.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    pub(crate) async fn start(scripts: Vec<Vec<Step>>) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        Receiver::serve(listener, scripts, None)
    }

    pub(crate) async fn start_tls(scripts: Vec<Vec<Step>>, tls: TlsAcceptor) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        Receiver::serve(listener, scripts, Some(tls))
    }

    pub(crate) fn serve(listener: TcpListener, scripts: Vec<Vec<Step>>, tls: Option<TlsAcceptor>) -> Receiver {
        let address = listener.local_addr().expect("address");
        let connections = Arc::new(AtomicUsize::new(0));
        let received = Arc::new(Mutex::new(Vec::new()));
        let receiver = Receiver { address, connections: connections.clone(), received: received.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accept");
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let script = scripts[number.min(scripts.len() - 1)].clone();
                tokio::spawn(play(stream, tls.clone(), script, received.clone()));
            }
        });
        receiver
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().expect("lock").clone()
    }
}

/// A connection, encrypted or not.
trait Wire: AsyncRead + AsyncWrite + Unpin {
    /// The stream below the encryption.
    fn bare(&mut self) -> &mut TcpStream;
}

impl Wire for TcpStream {
    fn bare(&mut self) -> &mut TcpStream {
        self
    }
}

impl Wire for TlsStream<TcpStream> {
    fn bare(&mut self) -> &mut TcpStream {
        self.get_mut().0
    }
}

async fn play(stream: TcpStream, tls: Option<TlsAcceptor>, script: Vec<Step>, received: Arc<Mutex<Vec<Received>>>) {
    stream.set_nodelay(true).expect("nodelay");
    if script.iter().any(|step| matches!(step, Step::Reset)) {
        stream.set_zero_linger().expect("linger");
    }
    // A receiver fails only if its client closes the connection, which the test sees on the other side.
    let _ = match tls {
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => follow(stream, script, &received).await,
            Err(_) => return,
        },
        None => follow(stream, script, &received).await,
    };
}

async fn follow<S: Wire>(mut stream: S, script: Vec<Step>, received: &Mutex<Vec<Received>>) -> io::Result<()> {
    for step in script {
        match step {
            Step::Peek => drop(stream.bare().peek(&mut [0]).await?),
            Step::Read => {
                let request = read_request(&mut stream).await?;
                received.lock().expect("lock").push(request);
            }
            Step::ReadBytes(count) => {
                stream.read_exact(&mut vec![0; count]).await?;
            }
            Step::ReadUntil(end) => {
                let mut seen = Vec::new();
                while !seen.ends_with(end) {
                    seen.push(stream.read_u8().await?);
                }
            }
            Step::Send(bytes) => {
                stream.write_all(&bytes).await?;
                stream.flush().await?;
            }
            Step::Alert => stream.bare().write_all(&[0x15, 3, 3, 0, 2, 2, 80]).await?,
            Step::Tell(reached) => reached.notify_one(),
            Step::Flood(bytes) => while stream.write_all(&bytes).await.is_ok() {},
            Step::Drip(bytes) => drip(&mut stream, &bytes).await,
            // Dropping the stream closes it. With a linger time of zero this sends a reset.
            Step::Reset | Step::Vanish => return Ok(()),
            Step::Hang => {
                tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
            }
        }
    }
    stream.shutdown().await
}

async fn drip<S: Wire>(stream: &mut S, bytes: &[u8]) {
    let mut ticks = tokio::time::interval(DRIP_EVERY);
    for byte in bytes.iter().chain(bytes.last().into_iter().cycle()) {
        ticks.tick().await;
        if stream.write_all(&[*byte]).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

pub(crate) async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Received> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await?);
    }
    let mut request = Received { head: String::from_utf8(bytes).expect("ASCII head"), body: Vec::new() };
    if let [length] = request.values("Content-Length")[..] {
        request.body = vec![0; length.parse().expect("length")];
        stream.read_exact(&mut request.body).await?;
    }
    Ok(request)
}
