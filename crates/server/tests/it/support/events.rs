//! A reader of server-sent events, over a connection of its own.

use super::http::read_head;
use super::within;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An open stream.
pub(crate) struct EventStream {
    stream: TcpStream,
    /// What was read and not yet looked at: the body, its chunks put together.
    text: String,
    raw: Vec<u8>,
    has_ended: bool,
}

impl EventStream {
    /// Asks with these header lines, and reads until the stream says that it is there.
    pub(crate) async fn open(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> EventStream {
        EventStream::try_open(address, target, headers).await.unwrap_or_else(|head| panic!("no stream: {head}"))
    }

    /// The same; an error is the head of another answer.
    pub(crate) async fn try_open(
        address: SocketAddr,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<EventStream, String> {
        let mut stream = TcpStream::connect(address).await.expect("the server accepts");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n{lines}\r\n");
        stream.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut buffer = Vec::new();
        let (head, rest) = within("the head of a stream", read_head(&mut stream, &mut buffer)).await.expect("a head");
        let head = head.to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") || !head.contains("content-type: text/event-stream") {
            return Err(head);
        }
        let mut events = EventStream { stream, text: String::new(), raw: rest, has_ended: false };
        events.unchunk();
        within("the first line of a stream", events.block()).await;
        Ok(events)
    }

    /// The next event: its name and its data. `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<(String, String)> {
        loop {
            let block = within("an event", self.block()).await?;
            let value = |line: &str, name: &str| line.strip_prefix(name).map(str::to_owned);
            if let Some(name) = block.lines().find_map(|line| value(line, "event: ")) {
                let data: Vec<String> = block.lines().filter_map(|line| value(line, "data: ")).collect();
                return Some((name, data.join("\n")));
            }
        }
    }

    /// What stands up to the next empty line.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(block);
            }
            if self.has_ended {
                return None;
            }
            let mut bytes = [0; 4_096];
            match self.stream.read(&mut bytes).await.expect("the stream is readable") {
                0 => self.has_ended = true,
                count => self.raw.extend_from_slice(&bytes[..count]),
            }
            self.unchunk();
        }
    }

    fn unchunk(&mut self) {
        while let Some(end) = self.raw.windows(2).position(|pair| pair == b"\r\n") {
            let size = std::str::from_utf8(&self.raw[..end]).expect("a size is text");
            let size = usize::from_str_radix(size, 16).expect("a size in hex");
            if self.raw.len() < end + 2 + size + 2 {
                return;
            }
            self.has_ended |= size == 0;
            self.text += std::str::from_utf8(&self.raw[end + 2..end + 2 + size]).expect("events are text");
            self.raw.drain(..end + 2 + size + 2);
        }
    }
}
