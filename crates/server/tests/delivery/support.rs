//! Scripted receivers, a scripted resolver, and a short way to make one attempt.

use bytes::Bytes;
use posthaste::delivery::egress::EgressPolicy;
use posthaste::delivery::resolve::{Lookup, Resolve};
use posthaste::delivery::{Attempt, Deliverer, DeliveryConfig};
use posthaste_engine::message::{Message, MessageSpec};
use posthaste_engine::outcome::Outcome;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::signature::{SigningKey, SigningKeys};
use posthaste_wire::time::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

pub(crate) const NOW: Timestamp = Timestamp(1_780_315_200_999);

/// What a receiver does on one connection, in order. At the end it closes the connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Reads one request with its body.
    Read,
    /// Reads this many bytes.
    ReadBytes(usize),
    /// Reads until these bytes were seen.
    ReadUntil(&'static [u8]),
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Lets the test go on.
    Tell(Arc<Notify>),
    /// Sends these bytes again and again until the other side goes away.
    Flood(Vec<u8>),
    /// Closes with RST.
    Reset,
    /// Closes with FIN, but without the goodbye of TLS.
    Vanish,
    /// Reads and drops until the other side closes.
    Hang,
}

pub(crate) fn send(text: &str) -> Step {
    Step::Send(text.as_bytes().to_vec())
}

/// Reads a request and answers with this text.
pub(crate) fn answer(text: &str) -> Vec<Step> {
    vec![Step::Read, send(text)]
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().expect("a request line")
    }

    /// All values of a header; the name must be spelled exactly so.
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

/// A receiver on loopback. The n-th connection follows the n-th script, later ones the last.
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

async fn play(stream: TcpStream, tls: Option<TlsAcceptor>, script: Vec<Step>, received: Arc<Mutex<Vec<Received>>>) {
    stream.set_nodelay(true).expect("nodelay");
    if script.iter().any(|step| matches!(step, Step::Reset)) {
        stream.set_zero_linger().expect("linger");
    }
    // A receiver that fails here has a client that went away, which the test sees on the other side.
    let _ = match tls {
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => follow(stream, script, &received).await,
            Err(_) => return,
        },
        None => follow(stream, script, &received).await,
    };
}

async fn follow<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    script: Vec<Step>,
    received: &Mutex<Vec<Received>>,
) -> io::Result<()> {
    for step in script {
        match step {
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
            Step::Tell(reached) => reached.notify_one(),
            Step::Flood(bytes) => loop {
                stream.write_all(&bytes).await?;
            },
            // Dropping the stream closes it; with a linger time of zero, by a reset.
            Step::Reset | Step::Vanish => return Ok(()),
            Step::Hang => {
                tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
            }
        }
    }
    stream.shutdown().await
}

async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Received> {
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

/// Answers with the next entry of a name's list; the last one stays. Unknown names do not exist.
#[derive(Default)]
pub(crate) struct ScriptedDns {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    lookups: AtomicUsize,
    hangs: bool,
}

impl ScriptedDns {
    pub(crate) fn of<const N: usize>(host: &str, sequence: [&[&str]; N]) -> Arc<ScriptedDns> {
        let parse = |answer: &[&str]| answer.iter().map(|text| text.parse().expect("address")).collect();
        let answers = HashMap::from([(host.to_owned(), sequence.iter().map(|answer| parse(answer)).collect())]);
        Arc::new(ScriptedDns { answers: Mutex::new(answers), ..ScriptedDns::default() })
    }

    /// Never answers.
    pub(crate) fn hanging() -> Arc<ScriptedDns> {
        Arc::new(ScriptedDns { hangs: true, ..ScriptedDns::default() })
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolve for ScriptedDns {
    fn resolve(&self, host: &str) -> Lookup {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            return Box::pin(std::future::pending());
        }
        let mut answers = self.answers.lock().expect("lock");
        let answer = match answers.get_mut(host) {
            Some(sequence) if sequence.len() > 1 => Ok(sequence.pop_front().expect("not empty")),
            Some(sequence) => Ok(sequence.front().cloned().unwrap_or_default()),
            None => Err(io::Error::other("NXDOMAIN")),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// Short phases, loopback allowed.
pub(crate) fn config() -> DeliveryConfig {
    DeliveryConfig {
        egress: EgressPolicy { allow_loopback: true, ..EgressPolicy::default() },
        dns_timeout: Duration::from_millis(100),
        tls_timeout: Duration::from_millis(500),
        body_grace: Duration::from_millis(100),
        ..DeliveryConfig::default()
    }
}

pub(crate) fn deliverer() -> Deliverer {
    Deliverer::new(config(), Arc::new(ScriptedDns::default())).expect("deliverer")
}

pub(crate) fn message(url: &str) -> Message {
    Message {
        id: MessageId { seq: Seq(1_780_315_200_000 << 20), tag: 7 },
        tenant: TenantId(1),
        created_at: NOW,
        not_before: NOW,
        spec: MessageSpec {
            url: url.to_owned(),
            method: "POST".into(),
            headers: vec![("Content-Type".into(), "text/plain".into())],
            retries: 3,
            retry_delay: None,
            timeout_ms: None,
            labels: Vec::new(),
            redact: RedactFields::default(),
            caller_ip: "203.0.114.9".into(),
            topic: None,
            ..MessageSpec::default()
        },
        body: Bytes::from_static(b"hello"),
    }
}

pub(crate) fn keys() -> SigningKeys {
    SigningKeys { current: SigningKey::new("sig_current"), next: SigningKey::new("sig_next") }
}

/// One attempt with a generous timeout.
pub(crate) async fn attempt(deliverer: &Deliverer, message: &Message) -> Outcome {
    attempt_within(deliverer, message, 10_000, false).await
}

pub(crate) async fn attempt_within(
    deliverer: &Deliverer,
    message: &Message,
    timeout_ms: u64,
    needs_body: bool,
) -> Outcome {
    static NONCE: AtomicU8 = AtomicU8::new(0);
    let nonce = [NONCE.fetch_add(1, Ordering::SeqCst); 20];
    let keys = keys();
    let outcome =
        deliverer.attempt(&Attempt { message, retried: 0, keys: &keys, now: NOW, nonce, timeout_ms, needs_body }).await;
    // Lets the connection's own task see the end of the answer, so that the next attempt can reuse it.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    outcome
}
