//! HTTP over raw sockets, from a chosen loopback address.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, interval_at, timeout};

/// Where attacks come from.
pub(crate) const ATTACKER: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The tenant that must not notice has another address.
pub(crate) const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Bytes of a response body that are kept; the rest is counted.
const KEPT_BYTES: usize = 64 * 1024;

/// A response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The start of the body.
    body: Vec<u8>,
    pub(crate) body_bytes: u64,
    /// The connection cannot be used again.
    pub(crate) closes: bool,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The text of the error in the JSON body, if that is what it is.
    pub(crate) fn error(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        body["error"].as_str().map(str::to_owned)
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A request as bytes.
pub(crate) fn request(method: &str, target: &str, token: Option<&str>, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: abuse.test\r\n{headers}");
    if let Some(token) = token {
        head += &format!("Authorization: Bearer {token}\r\n");
    }
    if !body.is_empty() || method == "POST" {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    head += "\r\n";
    let mut bytes = Vec::with_capacity(head.len() + body.len());
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Connects from this address.
pub(crate) async fn connect(from: Ipv4Addr, server: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream = socket.connect(server).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends one request on a connection of its own, and reads the response also when the server answers early.
pub(crate) async fn exchange(from: Ipv4Addr, server: SocketAddr, request: &[u8]) -> io::Result<Reply> {
    let (read, mut write) = connect(from, server).await?.into_split();
    let sending = async move {
        // A server that refuses a request need not read all of it.
        drop(write.write_all(request).await);
        write
    };
    let mut read = BufReader::new(read);
    let (_write, reply) = tokio::join!(sending, read_reply(&mut read, true));
    reply
}

/// The same with a deadline.
pub(crate) async fn exchange_within(
    patience: Duration,
    from: Ipv4Addr,
    server: SocketAddr,
    request: &[u8],
) -> io::Result<Reply> {
    timeout(patience, exchange(from, server, request)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads one response. One to HEAD has no body.
pub(crate) async fn read_reply<R: AsyncBufReadExt + Unpin>(stream: &mut R, has_body: bool) -> io::Result<Reply> {
    let mut reply = Reply::default();
    let (mut length, mut is_chunked) = (None, false);
    let first = read_line(stream).await?;
    reply.status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    loop {
        let line = read_line(stream).await?.to_ascii_lowercase();
        let Some((name, value)) = line.split_once(':') else { break };
        match (name, value.trim()) {
            ("content-length", value) => length = value.parse::<u64>().ok(),
            ("transfer-encoding", "chunked") => is_chunked = true,
            ("connection", "close") => reply.closes = true,
            _ => {}
        }
    }
    if !has_body || [204, 304].contains(&reply.status) {
        return Ok(reply);
    }
    match length {
        _ if is_chunked => read_chunks(stream, &mut reply).await?,
        Some(length) => read_bytes(stream, length, &mut reply).await?,
        None => {
            reply.closes = true;
            while read_some(stream, u64::MAX, &mut reply).await? > 0 {}
        }
    }
    Ok(reply)
}

async fn read_chunks<R: AsyncBufReadExt + Unpin>(stream: &mut R, reply: &mut Reply) -> io::Result<()> {
    loop {
        let line = read_line(stream).await?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::InvalidData)?;
        read_bytes(stream, length, reply).await?;
        read_line(stream).await?;
        if length == 0 {
            return Ok(());
        }
    }
}

async fn read_bytes<R: AsyncBufReadExt + Unpin>(stream: &mut R, mut left: u64, reply: &mut Reply) -> io::Result<()> {
    while left > 0 {
        match read_some(stream, left, reply).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left -= read,
        }
    }
    Ok(())
}

/// Takes what is there, at most this much.
async fn read_some<R: AsyncBufReadExt + Unpin>(stream: &mut R, most: u64, reply: &mut Reply) -> io::Result<u64> {
    let available = stream.fill_buf().await?;
    let taken = available.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    let kept = taken.min(KEPT_BYTES.saturating_sub(reply.body.len()));
    reply.body.extend_from_slice(&available[..kept]);
    stream.consume(taken);
    reply.body_bytes += taken as u64;
    Ok(taken as u64)
}

async fn read_line<R: AsyncBufReadExt + Unpin>(stream: &mut R) -> io::Result<String> {
    let mut line = String::new();
    match stream.take(KEPT_BYTES as u64).read_line(&mut line).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// Floods need more open files than the usual soft limit.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
}

/// Open files that this process may have.
pub(crate) fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Lets this much time pass: the attack is to hold something for as long.
pub(crate) async fn elapse(time: Duration) {
    interval_at(Instant::now() + time, Duration::from_secs(1)).tick().await;
}

#[tokio::test]
async fn responses_end_by_length_by_chunks_or_with_the_connection() {
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd", 200, "abc", false),
        ("HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", 201, "abc", false),
        ("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\nabc", 408, "abc", true),
    ];
    for (bytes, status, text, closes) in cases {
        let reply = read_reply(&mut bytes.as_bytes(), true).await.expect("a response");
        assert_eq!((reply.status, reply.text().as_str(), reply.closes), (status, text, closes));
    }
    assert!(read_reply(&mut &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na"[..], true).await.is_err());
    let error = read_reply(&mut &b"HTTP/1.1 413 x\r\nContent-Length: 13\r\n\r\n{\"error\":\"a\"}"[..], true).await;
    assert_eq!(error.expect("a response").error().as_deref(), Some("a"));
}
