//! A proxy between two processes that can hold a request or a response. Each connection carries one exchange.

use super::within;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// The half of an exchange to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Request,
    Answer,
}

pub(crate) struct Hop {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Shared {
    /// The target address. When it changes, exchanges with the old target are cut off.
    target: watch::Sender<Option<SocketAddr>>,
    traps: Mutex<Vec<Trap>>,
    /// The paths of all requests.
    paths: Mutex<Vec<String>>,
    /// Ids of messages in responses.
    published: Mutex<BTreeSet<String>>,
    /// Ids of messages whose response was a success.
    delivered: Mutex<BTreeSet<String>>,
}

struct Trap {
    half: Half,
    /// The end of the path.
    end: &'static str,
    caught: oneshot::Sender<oneshot::Sender<Release>>,
}

/// The action for a held exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Drop it, as if its sender or its receiver had died just before.
    Lose,
    /// Let it pass.
    GoOn,
}

/// An armed trap.
pub(crate) struct Armed(oneshot::Receiver<oneshot::Sender<Release>>);

impl Armed {
    /// Returns when an exchange is held.
    pub(crate) async fn caught(self) -> oneshot::Sender<Release> {
        within("an exchange to be held", self.0).await.unwrap()
    }
}

impl Hop {
    pub(crate) async fn start(target: Option<SocketAddr>) -> Hop {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = watch::Sender::new(target);
        let shared = Arc::new(Shared {
            target,
            traps: Mutex::default(),
            paths: Mutex::default(),
            published: Mutex::default(),
            delivered: Mutex::default(),
        });
        let for_all = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&for_all);
                // Exchanges may be cut off at any point; that is the purpose.
                tokio::spawn(async move { drop(shared.carry(stream).await) });
            }
        });
        Hop { address, shared, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Leads to another target. Without a target, requests wait.
    pub(crate) fn lead_to(&self, target: Option<SocketAddr>) {
        self.shared.target.send_replace(target);
    }

    /// Holds the first request for a path with this end, or the response to it. A held exchange is lost when the trap
    /// is dropped. Later exchanges pass.
    pub(crate) fn hold(&self, half: Half, end: &'static str) -> Armed {
        let (caught, armed) = oneshot::channel();
        self.shared.traps.lock().unwrap().push(Trap { half, end, caught });
        Armed(armed)
    }

    /// The number of requests for paths with this end.
    pub(crate) fn requests(&self, end: &str) -> usize {
        self.shared.paths.lock().unwrap().iter().filter(|path| path.ends_with(end)).count()
    }

    /// The messages that the queue at the far end has accepted.
    pub(crate) fn published(&self) -> BTreeSet<String> {
        self.shared.published.lock().unwrap().clone()
    }

    /// The messages for which the queue at the near end got a success.
    pub(crate) fn delivered(&self) -> BTreeSet<String> {
        self.shared.delivered.lock().unwrap().clone()
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    async fn carry(&self, mut client: TcpStream) -> io::Result<()> {
        let Request { path, message_id, bytes } = Request::read(&mut client).await?;
        self.paths.lock().unwrap().push(path.clone());
        self.passes(Half::Request, &path).await?;
        let mut target = self.target.subscribe();
        let address = target.wait_for(Option::is_some).await.map_err(io::Error::other)?.unwrap();
        let answer = tokio::select! {
            answer = ask(address, &bytes) => answer?,
            _ = target.changed() => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let text = String::from_utf8_lossy(&answer);
        if let Some((_, rest)) = text.split_once("\"messageId\":\"") {
            let id = rest.split('"').next().unwrap().to_owned();
            self.published.lock().unwrap().insert(id);
        }
        self.passes(Half::Answer, &path).await?;
        client.write_all(&answer).await?;
        client.shutdown().await?;
        if text.starts_with("HTTP/1.1 2") {
            self.delivered.lock().unwrap().extend(message_id);
        }
        Ok(())
    }

    /// Returns when the exchange may pass.
    async fn passes(&self, half: Half, path: &str) -> io::Result<()> {
        let trap = {
            let mut traps = self.traps.lock().unwrap();
            traps.retain(|trap| !trap.caught.is_closed());
            let found = traps.iter().position(|trap| trap.half == half && path.ends_with(trap.end));
            found.map(|found| traps.remove(found))
        };
        let Some(Trap { caught, .. }) = trap else { return Ok(()) };
        let (release, released) = oneshot::channel();
        drop(caught.send(release));
        match released.await {
            Ok(Release::GoOn) => Ok(()),
            Ok(Release::Lose) | Err(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

/// A request.
struct Request {
    path: String,
    /// The message id of a delivery.
    message_id: Option<String>,
    /// All bytes, with a header that asks to close the connection after the response.
    bytes: Vec<u8>,
}

impl Request {
    async fn read(client: &mut TcpStream) -> io::Result<Request> {
        let mut client = BufReader::new(client);
        let (mut head, mut length, mut message_id) = (String::new(), 0, None);
        client.read_line(&mut head).await?;
        let path = head.split(' ').nth(1).ok_or(io::ErrorKind::UnexpectedEof)?.to_owned();
        loop {
            let mut line = String::new();
            client.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "connection" => continue,
                "content-length" => length = value.parse().map_err(io::Error::other)?,
                "upstash-message-id" => message_id = Some(value.to_owned()),
                _ => {}
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        client.read_exact(&mut body).await?;
        let bytes = [format!("{head}connection: close\r\n\r\n").as_bytes(), &body].concat();
        Ok(Request { path, message_id, bytes })
    }
}

/// Sends the request as soon as the target listens. A missing response is an error.
async fn ask(address: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut target = super::support::wait::until("a connection", || async {
        TcpStream::connect(address).await.map_err(|error| error.to_string())
    })
    .await;
    target.write_all(request).await?;
    let mut answer = Vec::new();
    target.read_to_end(&mut answer).await?;
    if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
}
