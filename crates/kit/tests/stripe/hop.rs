//! A way between two processes on which a request or an answer can be held: each connection carries one exchange.

use super::within;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// What can be held of an exchange.
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
    /// Where it leads. Those who are on another way when it changes are cut off.
    target: watch::Sender<Option<SocketAddr>>,
    traps: Mutex<Vec<Trap>>,
    /// The paths of all requests.
    paths: Mutex<Vec<String>>,
    /// Messages whose ids were in an answer.
    published: Mutex<BTreeSet<String>>,
    /// Messages that were answered with a success.
    delivered: Mutex<BTreeSet<String>>,
}

struct Trap {
    half: Half,
    /// How the path ends.
    end: &'static str,
    caught: oneshot::Sender<oneshot::Sender<Release>>,
}

/// What becomes of what was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// It is lost, as if its sender had died a moment before, or its receiver.
    Lose,
    /// It goes on.
    GoOn,
}

/// A trap that waits for its prey.
pub(crate) struct Armed(oneshot::Receiver<oneshot::Sender<Release>>);

impl Armed {
    /// Returns when something is held.
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
                // Who goes away in the middle is what this is for.
                tokio::spawn(async move { drop(shared.carry(stream).await) });
            }
        });
        Hop { address, shared, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Leads elsewhere, or nowhere for now: then requests wait.
    pub(crate) fn lead_to(&self, target: Option<SocketAddr>) {
        self.shared.target.send_replace(target);
    }

    /// Holds the first request for a path that ends like this, or the answer to it. What is held when the trap is dropped is
    /// lost; who comes later goes on.
    pub(crate) fn hold(&self, half: Half, end: &'static str) -> Armed {
        let (caught, armed) = oneshot::channel();
        self.shared.traps.lock().unwrap().push(Trap { half, end, caught });
        Armed(armed)
    }

    /// How many requests there were for paths that end like this.
    pub(crate) fn requests(&self, end: &str) -> usize {
        self.shared.paths.lock().unwrap().iter().filter(|path| path.ends_with(end)).count()
    }

    /// The messages that a queue at its end has taken.
    pub(crate) fn published(&self) -> BTreeSet<String> {
        self.shared.published.lock().unwrap().clone()
    }

    /// The messages that a queue at its beginning has heard a success of.
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

    /// Returns when it may go on.
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

/// One request.
struct Request {
    path: String,
    /// Of a delivery.
    message_id: Option<String>,
    /// All of it, with a header that asks for an end after the answer.
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

/// Asks as soon as somebody is there. No answer at all is an error.
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
