//! A minimal HTTP/1.1 client and server with keep-alive connections. It has no pool and no library, because a library
//! would be measured too.

use anyhow::{Context, Result, bail};
use std::ops::Range;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest request or response that is read. The sink's list of a few million messages is far smaller.
const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Most headers of a request or a response. More close the connection.
const HEADERS_MAX: usize = 128;
/// Every response has a date, as those of real receivers do. Shorter responses would make the sender seem faster.
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Status and body.
pub(crate) type Answer = (u16, Vec<u8>);

/// The client side of a connection.
pub(crate) struct Connection {
    wire: Wire,
    /// `Retry-After` of the last response, in seconds.
    pub(crate) retry_after: Option<u64>,
}

impl Connection {
    /// `host` is `address:port`.
    pub(crate) async fn open(host: &str) -> Result<Self> {
        let stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
        Ok(Self { wire: Wire::new(stream)?, retry_after: None })
    }

    /// Sends one request and reads one whole response.
    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<Answer> {
        let Self { wire, retry_after } = self;
        wire.stream.write_all(request).await?;
        wire.read.clear();
        let head = loop {
            wire.must_read_more().await?;
            if let Some(head) = parse_answer_head(&wire.read)? {
                break head;
            }
        };
        *retry_after = head.retry_after;
        let body = wire.body(head.len, head.length).await?;
        Ok((head.status, wire.read[body.place].to_vec()))
    }
}

/// The server side of a connection. It ignores `Expect`, leaves closing to clients, and closes a connection without a
/// response if it cannot parse a request.
pub(crate) struct Requests {
    wire: Wire,
    /// Bytes of the request that was read last.
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
        Ok(Self { wire: Wire::new(stream)?, done: 0 })
    }

    /// Reads the next request completely; `None` if the client has closed its side.
    pub(crate) async fn next(&mut self) -> Result<Option<Request<'_>>> {
        self.wire.read.drain(..self.done);
        self.done = 0;
        let head = loop {
            if let Some(head) = parse_request_head(&self.wire.read)? {
                break head;
            }
            if !self.wire.read_more().await? {
                return if self.wire.read.is_empty() { Ok(None) } else { bail!("the request is not whole") };
            }
        };
        let body = self.wire.body(head.len, head.length).await?;
        self.done = body.next;
        let read = &self.wire.read;
        let target = std::str::from_utf8(&read[head.target])?;
        Ok(Some(Request { head: &read[..head.len], target, body: &read[body.place] }))
    }

    pub(crate) async fn answer(&mut self, status: u16, body: &str) -> Result<()> {
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} \r\ncontent-length: {length}\r\ndate: {DATE}\r\n\r\n{body}");
        Ok(self.wire.stream.write_all(answer.as_bytes()).await?)
    }
}

/// A connection and the bytes read from it.
struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

/// The position of a body.
struct Body {
    place: Range<usize>,
    /// The start of the next message.
    next: usize,
}

impl Wire {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(8192) })
    }

    /// Reads the body that begins at `start`, of this length or in chunks.
    async fn body(&mut self, start: usize, length: Option<usize>) -> Result<Body> {
        match length {
            Some(length) => {
                let end = start + within_bound(length)?;
                self.fill(end).await?;
                Ok(Body { place: start..end, next: end })
            }
            None => self.chunks(start).await,
        }
    }

    /// Reads chunks and joins their contents. Trailers are not supported.
    async fn chunks(&mut self, start: usize) -> Result<Body> {
        let (mut end, mut at) = (start, start);
        loop {
            match httparse::parse_chunk_size(&self.read[at..]) {
                Err(_) => bail!("bad chunk"),
                Ok(httparse::Status::Partial) => self.must_read_more().await?,
                Ok(httparse::Status::Complete((head, size))) => {
                    let data = at + head..at + head + within_bound(usize::try_from(size)?)?;
                    at = data.end + 2;
                    self.fill(at).await?;
                    if &self.read[data.end..at] != b"\r\n" {
                        bail!("a chunk does not end where it says");
                    }
                    self.read.copy_within(data.clone(), end);
                    end += data.len();
                    if size == 0 {
                        return Ok(Body { place: start..end, next: at });
                    }
                }
            }
        }
    }

    /// Reads until there are this many bytes.
    async fn fill(&mut self, end: usize) -> Result<()> {
        while self.read.len() < end {
            self.must_read_more().await?;
        }
        Ok(())
    }

    async fn must_read_more(&mut self) -> Result<()> {
        if self.read_more().await? { Ok(()) } else { bail!("connection closed") }
    }

    /// Returns false at the end of the connection.
    async fn read_more(&mut self) -> Result<bool> {
        // There may be many short chunks.
        within_bound(self.read.len())?;
        Ok(self.stream.read_buf(&mut self.read).await? > 0)
    }
}

fn within_bound(length: usize) -> Result<usize> {
    if length > MESSAGE_BYTES_MAX {
        bail!("a message is longer than {MESSAGE_BYTES_MAX} bytes");
    }
    Ok(length)
}

struct AnswerHead {
    status: u16,
    /// Bytes before the body.
    len: usize,
    /// Bytes of the body; `None` if it is chunked.
    length: Option<usize>,
    /// `Retry-After` in seconds.
    retry_after: Option<u64>,
}

fn parse_answer_head(buffer: &[u8]) -> Result<Option<AnswerHead>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(len) = response.parse(buffer)? else { return Ok(None) };
    let retry_after = value_of(response.headers, "retry-after");
    let retry_after = retry_after.and_then(|text| std::str::from_utf8(text).ok()?.trim().parse().ok());
    let length = body_length(response.headers)?;
    Ok(Some(AnswerHead { status: response.code.unwrap_or(0), len, length, retry_after }))
}

struct RequestHead {
    /// The position of path and query.
    target: Range<usize>,
    /// Bytes before the body.
    len: usize,
    /// Bytes of the body; `None` if it is chunked.
    length: Option<usize>,
}

fn parse_request_head(buffer: &[u8]) -> Result<Option<RequestHead>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(len) = request.parse(buffer)? else { return Ok(None) };
    let path = request.path.unwrap_or_default();
    // Empty lines may precede the method.
    let start = path.as_ptr() as usize - buffer.as_ptr() as usize;
    Ok(Some(RequestHead { target: start..start + path.len(), len, length: body_length(request.headers)? }))
}

fn value_of<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// Bytes of the body; `None` if it is chunked.
fn body_length(headers: &[httparse::Header<'_>]) -> Result<Option<usize>> {
    if value_of(headers, "transfer-encoding").is_some() {
        return Ok(None);
    }
    let length = value_of(headers, "content-length").map(|text| anyhow::Ok(std::str::from_utf8(text)?.trim().parse()?));
    Ok(Some(length.transpose()?.unwrap_or(0)))
}

/// Splits `http://address:port/path` into (`address:port`, `/path`). Only loopback addresses are accepted.
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

/// Sends one GET on its own connection, with the given headers (`Name: value`).
pub(crate) async fn get(base: &str, path: &str, headers: &[&str], timeout: Duration) -> Result<Answer> {
    exchange("GET", base, path, headers, &[], timeout).await
}

/// Sends one POST of JSON on its own connection, with the given headers (`Name: value`).
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

/// The body of a GET whose response must be 200.
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
    fn a_head_defines_the_length_of_its_body() {
        let sized = parse_answer_head(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap().unwrap();
        assert_eq!((sized.status, sized.length), (200, Some(5)));
        let chunked = parse_answer_head(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap().unwrap();
        assert_eq!((chunked.status, chunked.length), (500, None));
        assert!(parse_answer_head(b"HTTP/1.1 200 OK\r\n").unwrap().is_none());
    }

    #[tokio::test]
    async fn sized_and_chunked_responses_are_read_completely() {
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
    async fn requests_are_read_one_by_one_in_whatever_pieces() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sent = [
            "POST /a/1?b=2 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloPOST /c HTTP/1.1\r\ntransfer-enc",
            "oding: chunked\r\n\r\n3\r\nhel\r\n2\r",
            "\nlo\r\n0\r\n\r\n\r\nGET /d HTTP/1.1\r\n\r\n",
        ];
        let (mut requests, sender) = send(&listener, &sent).await;
        for (target, body) in [("/a/1?b=2", "hello"), ("/c", "hello"), ("/d", "")] {
            let request = requests.next().await.unwrap().unwrap();
            assert_eq!((request.target, request.body), (target, body.as_bytes()));
            assert!(request.head.ends_with(b"\r\n\r\n"));
            requests.answer(200, target).await.unwrap();
        }
        assert!(requests.next().await.unwrap().is_none());
        drop(requests);
        let answer =
            |body: &str| format!("HTTP/1.1 200 \r\ncontent-length: {}\r\ndate: {DATE}\r\n\r\n{body}", body.len());
        assert_eq!(sender.await.unwrap(), ["/a/1?b=2", "/c", "/d"].map(answer).concat());
    }

    #[tokio::test]
    async fn an_incomplete_or_too_long_request_is_an_error() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let too_long = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n", MESSAGE_BYTES_MAX + 1);
        let sent = [
            ("POST / HTT", "the request is not whole"),
            ("POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhell", "connection closed"),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello", "a chunk does not end where it says"),
            (&too_long, "a message is longer than 268435456 bytes"),
        ];
        for (sent, expected) in sent {
            let (mut requests, sender) = send(&listener, &[sent]).await;
            let refused = requests.next().await.map(|request| request.map(|request| request.body.to_vec()));
            assert_eq!(refused.unwrap_err().to_string(), expected, "{sent}");
            drop(requests);
            assert_eq!(sender.await.unwrap(), "");
        }
    }

    /// Sends these parts one by one, and then nothing more. Returns the server side and the responses.
    async fn send(listener: &tokio::net::TcpListener, parts: &[&str]) -> (Requests, tokio::task::JoinHandle<String>) {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let requests = Requests::new(listener.accept().await.unwrap().0).unwrap();
        let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        let sender = tokio::spawn(async move {
            for part in parts {
                client.write_all(&part).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            answers
        });
        (requests, sender)
    }
}
