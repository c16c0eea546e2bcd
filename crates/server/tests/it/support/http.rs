//! A client that sends exactly what it is told: raw paths, raw header bytes, and raw requests.

use super::within;
use posthaste_wire::encoding::header_text;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request under construction.
#[derive(Clone)]
#[must_use]
pub(crate) struct Request {
    address: SocketAddr,
    method: String,
    target: String,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    body: Option<Vec<u8>>,
    unframed: Vec<u8>,
}

impl Request {
    pub(crate) fn new(address: SocketAddr, method: &str, target: &str) -> Request {
        let headers = vec![(b"Host".to_vec(), address.to_string().into_bytes())];
        Request {
            address,
            method: method.to_owned(),
            target: target.to_owned(),
            headers,
            body: None,
            unframed: Vec::new(),
        }
    }

    /// Adds a line; names and values go out as they are.
    pub(crate) fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Request {
        self.headers.push((name.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn headers(self, lines: &[(&str, &str)]) -> Request {
        lines.iter().fold(self, |request, (name, value)| request.header(name, value))
    }

    /// Sends this token instead of the one before.
    pub(crate) fn token(self, token: &str) -> Request {
        self.without("Authorization").header("Authorization", format!("Bearer {token}"))
    }

    pub(crate) fn without(mut self, name: &str) -> Request {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name.as_bytes()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = Some(body.into());
        self
    }

    /// Bytes behind the head, for a request that frames them itself.
    pub(crate) fn unframed_body(mut self, bytes: Vec<u8>) -> Request {
        self.unframed = bytes;
        self
    }

    pub(crate) fn json(self, value: &Value) -> Request {
        self.header("Content-Type", "application/json").body(value.to_string())
    }

    /// Sends it on a connection of its own and reads the answer.
    pub(crate) async fn send(self) -> Answer {
        let what = format!("{} {:.200}", self.method, self.target);
        let exchange = async { exchange(self.address, &self.bytes()).await };
        within(&what, exchange).await.unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Sends it to a server that may be gone.
    pub(crate) async fn try_send(self) -> io::Result<Answer> {
        within(&self.target, exchange(self.address, &self.bytes())).await
    }

    /// Sends it and expects this status.
    pub(crate) async fn expect(self, status: u16) -> Answer {
        let what = format!("{} {:.200}", self.method, self.target);
        let answer = self.send().await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        answer
    }

    /// Sends it whole before it reads anything.
    pub(crate) async fn write_then_read(self) -> Answer {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await?;
            stream.write_all(&self.bytes()).await?;
            read_answer(&mut stream, &mut Vec::new()).await
        };
        within(&self.target, exchange).await.unwrap_or_else(|error| panic!("{}: {error}", self.target))
    }

    /// The request as it goes over the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if let Some(body) = &self.body {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes.extend_from_slice(&self.unframed);
        bytes
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The value of a header, if there is exactly one line of it.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let first = lines.next().map(|(_, value)| value.as_str());
        assert!(lines.next().is_none(), "{name} comes twice in {:?}", self.headers);
        first
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body, which says that it is JSON and is.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.text());
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The text of the error envelope, which holds nothing else.
    pub(crate) fn error(&self) -> String {
        assert!(self.status >= 400, "{} is no error: {}", self.status, self.text());
        let envelope = self.json();
        let members = envelope.as_object().unwrap_or_else(|| panic!("no object: {envelope}"));
        match members.get("error") {
            Some(Value::String(text)) if members.len() == 1 && !text.is_empty() => text.clone(),
            _ => panic!("not an error envelope: {envelope}"),
        }
    }

    /// The body with ids, cursors and the like replaced by what kind they are.
    pub(crate) fn redacted(&self) -> Value {
        redact(self.json())
    }
}

/// Replaces what differs from run to run by what it is.
pub(crate) fn redact(value: Value) -> Value {
    match value {
        Value::Object(members) => members
            .into_iter()
            .map(|(name, value)| match name.as_str() {
                "messageId" if is_message_id(&value) => (name, "<message>".into()),
                "dlqId" if is_position(&value) => (name, "<dlq>".into()),
                "cursor" if is_position(&value) => (name, "<cursor>".into()),
                "duration" if value.is_u64() => (name, "<ms>".into()),
                "connection" if value.is_object() => (name, "<connection>".into()),
                _ => (name, redact(value)),
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(redact).collect(),
        value => value,
    }
}

fn is_message_id(value: &Value) -> bool {
    value
        .as_str()
        .and_then(|text| text.strip_prefix("msg_"))
        .is_some_and(|rest| rest.len() > 15 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

fn is_position(value: &Value) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    value.as_str().and_then(|text| text.split_once('-')).is_some_and(|(at, n)| is_number(at) && is_number(n))
}

/// Sends bytes on a new connection and reads one answer, also while the bytes are still being sent.
pub(crate) async fn exchange(address: SocketAddr, bytes: &[u8]) -> io::Result<Answer> {
    let (mut reader, mut writer) = TcpStream::connect(address).await?.into_split();
    // A server may answer and close before it has read everything: that is not our error.
    let writing = async {
        drop(writer.write_all(bytes).await);
        std::future::pending().await
    };
    let mut buffer = Vec::new();
    tokio::select! {
        () = writing => unreachable!("writing never ends"),
        answer = read_answer(&mut reader, &mut buffer) => answer,
    }
}

/// Reads one answer; what was read beyond it stays in `buffer`.
pub(crate) async fn read_answer(reader: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> io::Result<Answer> {
    loop {
        let (head, rest) = read_head(reader, buffer).await?;
        *buffer = rest;
        let mut lines = head.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.split(' ').nth(1).and_then(|text| text.parse().ok());
        let status: u16 = status.ok_or_else(|| io::Error::other(format!("not an answer: {status_line:?}")))?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        if (100..200).contains(&status) {
            continue;
        }
        let mut answer = Answer { status, headers, body: Vec::new() };
        let length = answer.header("content-length").map(|text| text.parse::<usize>().map_err(io::Error::other));
        answer.body = match length.transpose()? {
            Some(length) => read_exactly(reader, buffer, length).await?,
            None => {
                reader.read_to_end(buffer).await?;
                std::mem::take(buffer)
            }
        };
        return Ok(answer);
    }
}

/// Reads up to and including the empty line; gives the head, and what came behind it. A head that is not UTF-8 is
/// given as [`header_text`] writes it, so that every byte can be told.
pub(crate) async fn read_head(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> io::Result<(String, Vec<u8>)> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = buffer.split_off(end + 4);
            let head = std::mem::take(buffer);
            return Ok((header_text(&head[..end]).into_owned(), rest));
        }
        if reader.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Reads so many bytes, the first of them from `buffer`.
pub(crate) async fn read_exactly(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    length: usize,
) -> io::Result<Vec<u8>> {
    while buffer.len() < length {
        if reader.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let rest = buffer.split_off(length);
    Ok(std::mem::replace(buffer, rest))
}
