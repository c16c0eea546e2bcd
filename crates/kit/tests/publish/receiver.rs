//! A scripted receiver: records every request and responds as the test specifies, path by path.

use crate::within;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The response to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    },
    /// Closes the connection without a response.
    Close,
    /// Never responds.
    Hang,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Reply {
        Reply::Answer { status, headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn json(body: &str) -> Reply {
        Reply::Answer { status: 200, headers: vec![("content-type", "application/json".into())], body: body.into() }
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Reply {
        if let Reply::Answer { headers, .. } = &mut self {
            headers.push((name, value.to_owned()));
        }
        self
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// Path and query, verbatim.
    pub(crate) target: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Status of the response; `None` if there was none.
    pub(crate) status: Option<u16>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

pub(crate) struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    scripts: Mutex<HashMap<String, VecDeque<Reply>>>,
    seen: watch::Sender<Vec<Seen>>,
}

impl Receiver {
    /// Responds with 200 to all paths without a script.
    pub(crate) async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::new(Shared::default()));
        let for_all = shared.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = for_all.clone();
                // A caller that disconnects does not fail the test.
                tokio::spawn(async move { drop(serve(stream, &shared).await) });
            }
        });
        Receiver { address, shared, accepting }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sets the responses to the next requests for a path. The last one repeats.
    pub(crate) fn script(&self, path: &str, replies: impl IntoIterator<Item = Reply>) {
        self.shared.scripts.lock().unwrap().insert(path.to_owned(), replies.into_iter().collect());
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.borrow().clone()
    }

    /// All requests so far, once there are at least `count`.
    pub(crate) async fn after(&self, count: usize) -> Vec<Seen> {
        let mut seen = self.shared.seen.subscribe();
        let enough = seen.wait_for(|seen| seen.len() >= count);
        within(&format!("{count} requests"), enough).await.unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Handles one request and one response per connection.
async fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut seen = read(&mut stream).await?;
    let (path, _) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
    let reply = {
        let mut scripts = shared.scripts.lock().unwrap();
        match scripts.get_mut(path) {
            Some(script) if script.len() > 1 => script.pop_front(),
            Some(script) => script.front().cloned(),
            None => None,
        }
    };
    let reply = reply.unwrap_or_else(|| Reply::status(200));
    if let Reply::Answer { status, .. } = reply {
        seen.status = Some(status);
    }
    shared.seen.send_modify(|all| all.push(seen));
    match reply {
        Reply::Close => Ok(()),
        Reply::Hang => std::future::pending().await,
        Reply::Answer { status, headers, body } => {
            let mut head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            stream.write_all(format!("{head}\r\n").as_bytes()).await?;
            stream.write_all(&body).await?;
            stream.shutdown().await
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Seen> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    };
    let mut headers = http::HeaderMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.append(http::HeaderName::try_from(name).unwrap(), value.trim().parse().unwrap());
    }
    let length = headers.get("content-length").map_or(0, |value| value.to_str().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Seen { method, target, headers, body, status: None })
}
