//! A minimal HTTP/1.1 client: one keep-alive connection, ready-made requests, no pool, nothing to measure.

use anyhow::{Context, Result, bail};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest answer that is read; the sink's list of a few million messages stays far below.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Status and body.
pub(crate) type Answer = (u16, Vec<u8>);

pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// `Retry-After` of the last answer, in seconds.
    pub(crate) retry_after: Option<u64>,
}

impl Connection {
    /// `host` is `address:port`.
    pub(crate) async fn open(host: &str) -> Result<Self> {
        let stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(8192), retry_after: None })
    }

    /// Sends one request and reads one whole answer.
    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<Answer> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let head = loop {
            self.read_more().await?;
            if let Some(head) = parse_head(&self.buffer)? {
                break head;
            }
        };
        self.retry_after = head.retry_after;
        let body = match head.length {
            Some(length) => self.sized_body(head.len, length).await?,
            None => self.chunked_body(head.len).await?,
        };
        Ok((head.status, body))
    }

    async fn sized_body(&mut self, start: usize, length: usize) -> Result<Vec<u8>> {
        let end = start + length.min(ANSWER_BYTES_MAX + 1);
        while self.buffer.len() < end {
            self.read_more().await?;
        }
        Ok(self.buffer[start..end].to_vec())
    }

    async fn chunked_body(&mut self, start: usize) -> Result<Vec<u8>> {
        let (mut body, mut at) = (Vec::new(), start);
        loop {
            match httparse::parse_chunk_size(&self.buffer[at..]) {
                Err(_) => bail!("bad chunk in the answer"),
                Ok(httparse::Status::Partial) => self.read_more().await?,
                Ok(httparse::Status::Complete((head, size))) => {
                    let from = at + head;
                    let end = from + (size as usize).min(ANSWER_BYTES_MAX) + 2;
                    while self.buffer.len() < end {
                        self.read_more().await?;
                    }
                    body.extend_from_slice(&self.buffer[from..end - 2]);
                    at = end;
                    if size == 0 {
                        return Ok(body);
                    }
                }
            }
        }
    }

    async fn read_more(&mut self) -> Result<()> {
        if self.buffer.len() > ANSWER_BYTES_MAX {
            bail!("the answer is longer than {ANSWER_BYTES_MAX} bytes");
        }
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            bail!("connection closed");
        }
        Ok(())
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
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(len) = response.parse(buffer)? else { return Ok(None) };
    let value = |name: &str| response.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value);
    let length = match value("transfer-encoding") {
        Some(_) => None,
        None => Some(match value("content-length") {
            Some(text) => std::str::from_utf8(text)?.trim().parse()?,
            None => 0,
        }),
    };
    let retry_after = value("retry-after").and_then(|text| std::str::from_utf8(text).ok()?.trim().parse().ok());
    Ok(Some(Head { status: response.code.unwrap_or(0), len, length, retry_after }))
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
}
