//! A minimal HTTP/1.1, both ends: keep-alive connections, no pool, no library that would be measured too.

use anyhow::{Context, Result, bail};
use std::ops::Range;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest request or answer that is read; the sink's list of a few million messages stays far below.
const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Most headers of one.
const HEADERS_MAX: usize = 64;

/// Status and body.
pub(crate) type Answer = (u16, Vec<u8>);

/// The client's end.
pub(crate) struct Connection {
    bytes: Bytes,
    /// `Retry-After` of the last answer, in seconds.
    pub(crate) retry_after: Option<u64>,
}

impl Connection {
    /// `host` is `address:port`.
    pub(crate) async fn open(host: &str) -> Result<Self> {
        let stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
        Ok(Self { bytes: Bytes::new(stream)?, retry_after: None })
    }

    /// Sends one request and reads one whole answer.
    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<Answer> {
        let Self { bytes, retry_after } = self;
        bytes.stream.write_all(request).await?;
        bytes.read.clear();
        let head = loop {
            bytes.must_read_more().await?;
            if let Some(head) = parse_head(&bytes.read)? {
                break head;
            }
        };
        *retry_after = head.retry_after;
        let body = bytes.body(head.len, head.length).await?;
        Ok((head.status, bytes.read[body.place].to_vec()))
    }
}

/// The server's end.
pub(crate) struct Requests {
    bytes: Bytes,
    /// How many of the bytes belong to the request that was read last.
    done: usize,
}

/// One request.
pub(crate) struct Request<'a> {
    /// From the method to the empty line.
    pub(crate) head: &'a [u8],
    /// Path and query.
    pub(crate) target: &'a str,
    pub(crate) body: &'a [u8],
}

impl Requests {
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        Ok(Self { bytes: Bytes::new(stream)?, done: 0 })
    }

    /// The next request, read to its end; `None` when the client has closed its side.
    pub(crate) async fn next(&mut self) -> Result<Option<Request<'_>>> {
        self.bytes.read.drain(..self.done);
        self.done = 0;
        let head = loop {
            if let Some(head) = parse_request_head(&self.bytes.read)? {
                break head;
            }
            if !self.bytes.read_more().await? {
                return if self.bytes.read.is_empty() { Ok(None) } else { bail!("the request is not whole") };
            }
        };
        let body = self.bytes.body(head.len, head.length).await?;
        self.done = body.end;
        let read = &self.bytes.read;
        let target = std::str::from_utf8(&read[head.target])?;
        Ok(Some(Request { head: &read[..head.len], target, body: &read[body.place] }))
    }

    pub(crate) async fn answer(&mut self, status: u16, body: &str) -> Result<()> {
        let answer = format!("HTTP/1.1 {status} \r\ncontent-length: {}\r\n\r\n{body}", body.len());
        Ok(self.bytes.stream.write_all(answer.as_bytes()).await?)
    }
}

/// A connection, and what was read of it.
struct Bytes {
    stream: TcpStream,
    read: Vec<u8>,
}

/// Where a body is.
struct Body {
    place: Range<usize>,
    /// Where the next message begins.
    end: usize,
}

impl Bytes {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(8192) })
    }

    /// Reads the body that begins at `start`, of this length or in chunks.
    async fn body(&mut self, start: usize, length: Option<usize>) -> Result<Body> {
        match length {
            Some(length) => {
                let end = start + length.min(MESSAGE_BYTES_MAX + 1);
                self.fill(end).await?;
                Ok(Body { place: start..end, end })
            }
            None => self.chunks(start).await,
        }
    }

    /// Reads chunks, and moves what they hold together.
    async fn chunks(&mut self, start: usize) -> Result<Body> {
        let (mut end, mut at) = (start, start);
        loop {
            match httparse::parse_chunk_size(&self.read[at..]) {
                Err(_) => bail!("bad chunk"),
                Ok(httparse::Status::Partial) => self.must_read_more().await?,
                Ok(httparse::Status::Complete((head, size))) => {
                    let from = at + head;
                    at = from + (size as usize).min(MESSAGE_BYTES_MAX) + 2;
                    self.fill(at).await?;
                    self.read.copy_within(from..at - 2, end);
                    end += at - 2 - from;
                    if size == 0 {
                        return Ok(Body { place: start..end, end: at });
                    }
                }
            }
        }
    }

    /// Reads on until there are so many bytes.
    async fn fill(&mut self, end: usize) -> Result<()> {
        while self.read.len() < end {
            self.must_read_more().await?;
        }
        Ok(())
    }

    async fn must_read_more(&mut self) -> Result<()> {
        if self.read_more().await? { Ok(()) } else { bail!("connection closed") }
    }

    /// False at the end of the connection.
    async fn read_more(&mut self) -> Result<bool> {
        if self.read.len() > MESSAGE_BYTES_MAX {
            bail!("a message is longer than {MESSAGE_BYTES_MAX} bytes");
        }
        Ok(self.stream.read_buf(&mut self.read).await? > 0)
    }
}

struct Head {
    status: u16,
    /// Bytes up to the body.
    len: usize,
    /// Bytes of the body; `None` when it comes in chunks.
    length: Option<usize>,
    /// `Retry-After` in seconds.
    retry_after: Option<u64>,
}

fn parse_head(buffer: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(len) = response.parse(buffer)? else { return Ok(None) };
    let retry_after = value_of(response.headers, "retry-after");
    let retry_after = retry_after.and_then(|text| std::str::from_utf8(text).ok()?.trim().parse().ok());
    let length = body_length(response.headers)?;
    Ok(Some(Head { status: response.code.unwrap_or(0), len, length, retry_after }))
}

struct RequestHead {
    /// Where path and query are.
    target: Range<usize>,
    /// Bytes up to the body.
    len: usize,
    /// Bytes of the body; `None` when it comes in chunks.
    length: Option<usize>,
}

fn parse_request_head(buffer: &[u8]) -> Result<Option<RequestHead>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(len) = request.parse(buffer)? else { return Ok(None) };
    let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let start = method.len() + 1;
    Ok(Some(RequestHead { target: start..start + path.len(), len, length: body_length(request.headers)? }))
}

fn value_of<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// Bytes of the body; `None` when it comes in chunks.
fn body_length(headers: &[httparse::Header<'_>]) -> Result<Option<usize>> {
    if value_of(headers, "transfer-encoding").is_some() {
        return Ok(None);
    }
    let length = value_of(headers, "content-length").map(|text| anyhow::Ok(std::str::from_utf8(text)?.trim().parse()?));
    Ok(Some(length.transpose()?.unwrap_or(0)))
}

/// `http://address:port/path` as (`address:port`, `/path`). Only loopback addresses are taken.
pub(crate) fn split_url(url: &str) -> Result<(&str, String)> {
    let rest = url.strip_prefix("http://").context("only http:// URLs")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address: std::net::SocketAddr =
        host.replace("localhost", "127.0.0.1").parse().with_context(|| format!("{host} is not address:port"))?;
    if !address.ip().is_loopback() {
        bail!("{host} is not a loopback address");
    }
    Ok((host, format!("/{path}")))
}

/// One GET on a connection of its own, with the given headers (`Name: value`).
pub(crate) async fn get(base: &str, path: &str, headers: &[&str], timeout: Duration) -> Result<Answer> {
    exchange("GET", base, path, headers, &[], timeout).await
}

/// One POST of JSON on a connection of its own, with the given headers (`Name: value`).
pub(crate) async fn post(base: &str, path: &str, headers: &[&str], json: &[u8]) -> Result<Answer> {
    let length = format!("Content-Length: {}", json.len());
    let headers = [headers, &["Content-Type: application/json", &length]].concat();
    exchange("POST", base, path, &headers, json, Duration::from_secs(10)).await
}

async fn exchange(
    method: &str,
    base: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
    timeout: Duration,
) -> Result<Answer> {
    let (host, prefix) = split_url(base)?;
    let mut request = format!("{method} {}{path} HTTP/1.1\r\nHost: {host}\r\n", prefix.trim_end_matches('/'));
    for header in headers {
        request.push_str(&format!("{header}\r\n"));
    }
    request.push_str("\r\n");
    let request = [request.as_bytes(), body].concat();
    let call = async { Connection::open(host).await?.call(&request).await };
    tokio::time::timeout(timeout, call).await.with_context(|| format!("no answer from {host} in {timeout:?}"))?
}

/// The body of a GET that must be answered with 200.
pub(crate) async fn get_ok(base: &str, path: &str) -> Result<Vec<u8>> {
    match get(base, path, &[], Duration::from_secs(10)).await? {
        (200, body) => Ok(body),
        (status, _) => bail!("{base}{path} answered {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_urls_are_taken() {
        assert_eq!(split_url("http://127.0.0.1:80/a/b").unwrap(), ("127.0.0.1:80", "/a/b".to_owned()));
        assert_eq!(split_url("http://[::1]:80").unwrap(), ("[::1]:80", "/".to_owned()));
        for url in ["https://127.0.0.1:80", "http://10.0.0.1:80/", "http://example.com/", "http://127.0.0.1/"] {
            assert!(split_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_head_tells_how_its_body_comes() {
        let sized = parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap().unwrap();
        assert_eq!((sized.status, sized.length), (200, Some(5)));
        let chunked = parse_head(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap().unwrap();
        assert_eq!((chunked.status, chunked.length), (500, None));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n").unwrap().is_none());
    }

    #[tokio::test]
    async fn answers_are_read_whole_whether_sized_or_chunked() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let answers: [&[&str]; 2] = [
                &["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", "llo"],
                &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r", "\nhel\r\n2\r\nlo\r\n0\r\n\r\n"],
            ];
            for parts in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 1024]).await.unwrap();
                for part in parts {
                    stream.write_all(part.as_bytes()).await.unwrap();
                    stream.flush().await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        for _ in 0..2 {
            assert_eq!(get_ok(&base, "/").await.unwrap(), b"hello");
        }
        server.await.unwrap();
    }

    #[tokio::test]
    async fn requests_are_read_one_by_one_however_they_come() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut requests = Requests::new(listener.accept().await.unwrap().0).unwrap();
        let sent = [
            "POST /a/1?b=2 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloPOST /c HTTP/1.1\r\ntransfer-enc",
            "oding: chunked\r\n\r\n3\r\nhel\r\n2\r",
            "\nlo\r\n0\r\n\r\nGET /d HTTP/1.1\r\n\r\n",
        ];
        let sender = tokio::spawn(async move {
            for part in sent {
                client.write_all(part.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            answers
        });
        for (target, body) in [("/a/1?b=2", "hello"), ("/c", "hello"), ("/d", "")] {
            let request = requests.next().await.unwrap().unwrap();
            assert_eq!((request.target, request.body), (target, body.as_bytes()));
            assert!(request.head.ends_with(b"\r\n\r\n"));
            requests.answer(200, target).await.unwrap();
        }
        assert!(requests.next().await.unwrap().is_none());
        drop(requests);
        let answers = sender.await.unwrap();
        assert!(answers.starts_with("HTTP/1.1 200 \r\ncontent-length: 8\r\n\r\n/a/1?b=2HTTP/1.1 200 "), "{answers}");
    }
}
