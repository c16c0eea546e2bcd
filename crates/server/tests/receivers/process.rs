//! The real binary as a child process, a client for it, and a receiver that remembers when each message came.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// The first two of the published development users.
pub(crate) const TOKENS: [&str; 2] = [
    "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=",
    "eyJVc2VySUQiOiJ0ZXN0VXNlcjEiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
];

/// A server of its own, killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
    _dir: TempDir,
}

impl Process {
    /// Starts it with these settings.
    pub(crate) fn start(settings: &[&str]) -> Process {
        let dir = TempDir::new().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(["dev", "--listen", "127.0.0.1:0", "--log", "warn", "--disk-reserve-bytes", "0"]);
        command.args(settings).arg("--data-dir").arg(dir.path());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary can be started");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once("is running at http://")?.1.trim().parse().ok());
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, address: address.expect("it says where it listens"), _dir: dir }
    }

    /// The most memory it has had so far, in megabytes.
    pub(crate) fn rss_peak_mb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs on Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024 / 1_000_000
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An answer of the server.
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: String,
}

/// A connection that is kept open.
pub(crate) struct Caller {
    stream: TcpStream,
    server: SocketAddr,
    token: &'static str,
}

impl Caller {
    pub(crate) async fn connect(server: SocketAddr, token: &'static str) -> io::Result<Caller> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Caller { stream, server, token })
    }

    /// Publishes, to one URL or as a batch.
    pub(crate) async fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> io::Result<Told> {
        let (Caller { server, token, .. }, length) = (&*self, body.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: {server}\r\nAuthorization: Bearer {token}\r\n");
        let head = format!("{head}{headers}Content-Length: {length}\r\n\r\n");
        self.stream.write_all(&[head.as_bytes(), body].concat()).await?;
        let (head, body) = read_message(&mut self.stream, &mut Vec::new()).await?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let retry_after = value(&head, "retry-after").and_then(|seconds| seconds.parse().ok());
        Ok(Told { status, retry_after, body: String::from_utf8_lossy(&body).into_owned() })
    }
}

/// Reads a head and its body.
async fn read_message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<(String, Vec<u8>)> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let length: usize = value(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while buffer.len() < end + length {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let body = buffer[end..end + length].to_vec();
    buffer.drain(..end + length);
    Ok((head, body))
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// A healthy receiver that remembers when the message of each path came first.
pub(crate) struct Witness {
    pub(crate) address: SocketAddr,
    arrived: Arc<Mutex<HashMap<String, Instant>>>,
    _listening: AbortOnDropHandle<()>,
}

impl Witness {
    /// Answers 200 after so long.
    pub(crate) async fn start(answers_after: Duration) -> Witness {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let arrived: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
        let seen = arrived.clone();
        let listening = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accept");
                // A server that goes away has ended.
                let seen = seen.clone();
                tokio::spawn(async move { drop(receive(stream, answers_after, &seen).await) });
            }
        });
        Witness { address, arrived, _listening: AbortOnDropHandle::new(listening) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn arrived(&self, path: &str) -> Option<Instant> {
        self.arrived.lock().expect("lock").get(path).copied()
    }

    pub(crate) fn count(&self) -> usize {
        self.arrived.lock().expect("lock").len()
    }
}

async fn receive(
    mut stream: TcpStream,
    answers_after: Duration,
    seen: &Mutex<HashMap<String, Instant>>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let (head, _) = read_message(&mut stream, &mut buffer).await?;
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        seen.lock().expect("lock").entry(path).or_insert_with(Instant::now);
        if !answers_after.is_zero() {
            tokio::time::interval_at(tokio::time::Instant::now() + answers_after, answers_after).tick().await;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
    }
}
