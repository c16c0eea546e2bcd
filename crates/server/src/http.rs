//! The listener: accepts connections, bounds what they may do, and lets them finish at shutdown.

mod connections;
mod exchange;
pub mod fuzzing;
mod guarded;
mod heads;
mod refusal;

use crate::api::{Api, Peer, internal_error};
use crate::config::Config;
use crate::console::Console;
use axum::body::Body;
use axum::response::Response;
use connections::{Connections, Place};
use exchange::{Exchange, HeadBudget};
use guarded::Guarded;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use ipnet::IpNet;
use posthaste_faults::panics::{Panicked, caught};
use rustix::net::sockopt;
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Connections at once; more wait in the kernel's queue.
pub(crate) const CONNECTIONS_MAX: usize = 10_000;
/// Connections at once from one address (IPv6: a /64 network) by default; one more is answered with 429 and closed.
pub(crate) const CONNECTIONS_PER_ADDRESS: usize = 1_000;
/// How long a client may take to send the head of a request; also how long a connection may wait for one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a request's head; over it the answer is 431. The API accepts 64 KiB of path and 64 KiB of headers.
const HEAD_BYTES_MAX: usize = 160 * 1024;
/// Bytes of a head that every connection may hold; more is taken from [`HEADS_BYTES_MAX`].
const HEAD_FREE_BYTES: usize = 16 * 1024;
/// Bytes of heads over [`HEAD_FREE_BYTES`] that all connections hold together, until their requests are answered; without
/// room the answer is 503.
const HEADS_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of [`HEADS_BYTES_MAX`] that the connections of one address hold together, so that one caller leaves room for others;
/// trusted proxies are not bounded by it.
const HEADS_BYTES_PER_ADDRESS: usize = 8 * 1024 * 1024;
/// Most headers of a request; over it the answer is 431. The API accepts 256.
const HEADERS_MAX: usize = 1_024;
/// Bytes that are read beyond the request that is being answered: what a client pipelines beyond that waits in the kernel.
const READ_AHEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of responses that the kernel keeps for one client (Linux counts twice as many, with its overhead).
const SEND_BUFFER_BYTES: usize = 128 * 1024;
/// How long a client may take to read some of what is written to it; then the connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection stays open after a request was refused, so that the client can read why.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped meanwhile.
const LINGER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long accepting pauses when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const _: () = assert!(HEAD_FREE_BYTES < HEAD_BYTES_MAX && HEAD_BYTES_MAX < HEADS_BYTES_PER_ADDRESS);
const _: () = assert!(HEADS_BYTES_PER_ADDRESS < HEADS_BYTES_MAX);

/// All that is served: the API for programs, the console for people.
pub(crate) struct Site {
    pub(crate) api: Arc<Api>,
    pub(crate) console: Console,
}

/// Whatever answers requests.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Whether a client that has closed its side still gets its answer. If not, its request ends with it.
    const HALF_CLOSE: bool;

    fn serve(&self, request: Request<Body>) -> impl Future<Output = Result<Response, HungUp>> + Send;
}

/// There is no answer: the connection is closed.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("the server did not respond")]
pub(crate) struct HungUp;

impl Serve for Site {
    const HALF_CLOSE: bool = true;

    async fn serve(&self, request: Request<Body>) -> Result<Response, HungUp> {
        Ok(match Console::has(request.uri().path()) {
            true => match caught(Box::pin(self.console.serve(request)).as_mut()).await {
                Ok(response) => response,
                Err(Panicked) => internal_error(),
            },
            false => self.api.serve(request).await,
        })
    }
}

/// How a listener treats its clients.
pub(crate) struct Terms {
    /// Connections at once from one address.
    pub(crate) connections_per_address: usize,
    /// Networks whose connections are not counted: proxies that bring many clients.
    pub(crate) uncounted: Vec<IpNet>,
    /// How long open requests may take to finish at the end.
    pub(crate) grace: Duration,
}

impl Terms {
    /// As they are configured.
    pub(crate) fn of(config: &Config) -> Terms {
        Terms {
            connections_per_address: config.connections_per_address,
            uncounted: config.trusted_proxies.clone(),
            grace: config.shutdown_grace,
        }
    }
}

/// Serves until `stop`, then lets open requests finish for the grace time.
pub(crate) async fn serve<S: Serve>(listener: TcpListener, site: Arc<S>, terms: Terms, stop: CancellationToken) {
    let builder = builder(S::HALF_CLOSE);
    bound_send_queues(&listener);
    let door = Door {
        listener,
        all: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        connections: Connections::new(terms.connections_per_address, terms.uncounted),
        refusal: refusal::too_many_connections(terms.connections_per_address),
    };
    let budget = Arc::new(HeadBudget::new(HEADS_BYTES_MAX));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = door.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Some((stream, peer, place)) = accepted else { continue };
        let (site, peer) = (site.clone(), Peer::new(peer));
        let exchange = Arc::new(Exchange::new(budget.clone(), place.1.heads()));
        let (stream, turns) = (Guarded::new(stream, exchange.clone()), exchange.clone());
        let service = service_fn(move |request| {
            let (site, peer, exchange) = (site.clone(), peer.clone(), exchange.clone());
            async move {
                if exchange.begin() {
                    exchange.next_turn().await;
                }
                let response = site.serve(with_peer(request, peer)).await?;
                Ok::<_, HungUp>(response.map(|body| exchange.answer(body)))
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let in_turns = poll_fn(|cx| {
                turns.begin_turn();
                connection.as_mut().poll(cx)
            });
            // A connection that breaks concerns nobody but its client.
            if let Err(error) = in_turns.await {
                tracing::debug!(error = %error, "connection ended");
            }
            drop(place);
        });
    }
    drop(door);
    if tokio::time::timeout(terms.grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were still open at the end of the grace period");
    }
}

/// How hyper reads: HTTP/1.1 only, because every official client speaks it, and the head timeout holds from the first byte on.
fn builder(half_close: bool) -> Builder {
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(half_close);
    builder
}

/// Every connection has these options from its listener. Without them the kernel keeps megabytes for each client that does
/// not read, and for minutes after the connection was closed.
fn bound_send_queues(listener: &TcpListener) {
    let bounded = sockopt::set_socket_send_buffer_size(listener, SEND_BUFFER_BYTES);
    #[cfg(target_os = "linux")]
    let bounded = bounded.and_then(|()| sockopt::set_tcp_user_timeout(listener, WRITE_TIMEOUT.as_millis() as u32));
    if let Err(error) = bounded {
        tracing::warn!(error = %error, "cannot limit the kernel's send buffers for slow clients");
    }
}

/// Where connections come in.
struct Door {
    listener: TcpListener,
    all: Arc<Semaphore>,
    connections: Arc<Connections>,
    refusal: Vec<u8>,
}

impl Door {
    async fn accept(&self) -> Option<(TcpStream, SocketAddr, (OwnedSemaphorePermit, Place))> {
        let place = self.all.clone().acquire_owned().await.ok()?;
        let (stream, peer) = match self.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(error = %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                return None;
            }
        };
        let Some(of_address) = self.connections.enter(peer.ip()) else {
            // A client that does not read the reason loses nothing but the reason.
            if let Err(error) = self.refuse(stream) {
                tracing::debug!(error = %error, "connection rejected without a response");
            }
            return None;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(error = %error, "cannot set TCP_NODELAY on a connection");
        }
        Some((stream, peer, (place, of_address)))
    }

    /// Says why, if that can be said without waiting, and closes.
    fn refuse(&self, stream: TcpStream) -> io::Result<()> {
        tracing::debug!("connection rejected: too many connections from its address");
        let mut stream = stream.into_std()?;
        stream.write_all(&self.refusal)?;
        stream.shutdown(std::net::Shutdown::Write)
    }
}

fn with_peer(request: Request<Incoming>, peer: Peer) -> Request<Body> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::sync::mpsc;

    /// Hangs up on `/leave`, and never answers anything else; says when a request is dropped.
    struct Mute(mpsc::UnboundedSender<()>);

    struct Dropped(mpsc::UnboundedSender<()>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }

    impl Serve for Mute {
        const HALF_CLOSE: bool = false;

        async fn serve(&self, request: Request<Body>) -> Result<Response, HungUp> {
            let _dropped = Dropped(self.0.clone());
            match request.uri().path() {
                "/leave" => Err(HungUp),
                _ => std::future::pending().await,
            }
        }
    }

    /// Counts the turns of a task beside it, as it was at each request.
    struct Turns(Arc<AtomicU64>, mpsc::UnboundedSender<u64>);

    impl Serve for Turns {
        const HALF_CLOSE: bool = true;

        async fn serve(&self, _: Request<Body>) -> Result<Response, HungUp> {
            self.1.send(self.0.load(Ordering::Relaxed)).unwrap();
            Ok(Response::new(Body::from("ok")))
        }
    }

    /// Says when a request has come, and never answers it.
    struct Holding(mpsc::UnboundedSender<()>);

    impl Serve for Holding {
        const HALF_CLOSE: bool = false;

        async fn serve(&self, _: Request<Body>) -> Result<Response, HungUp> {
            self.0.send(()).unwrap();
            std::future::pending().await
        }
    }

    async fn send_from(last: u8, server: SocketAddr, bytes: &[u8]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        let mut stream = socket.connect(server).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Complete heads hold their room until they are answered, so no time limit ends this.
    #[tokio::test]
    async fn each_address_has_its_share_of_the_room_for_large_heads_and_all_share_the_whole() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(150 * 1024));
        let taken = head.len() - HEAD_FREE_BYTES;
        let per_address = HEADS_BYTES_PER_ADDRESS / taken;
        let addresses = 2..2 + u8::try_from(HEADS_BYTES_MAX / HEADS_BYTES_PER_ADDRESS).unwrap();
        let left = HEADS_BYTES_MAX - addresses.len() * per_address * taken;
        assert!(left < taken, "the addresses leave no room for one more head");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (server, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (sender, mut arrived) = mpsc::unbounded_channel();
        let terms = Terms { connections_per_address: 100, uncounted: Vec::new(), grace: Duration::ZERO };
        let serving = tokio::spawn(serve(listener, Arc::new(Holding(sender)), terms, stop.clone()));
        let is_refused = async |last: u8| {
            let mut stream = send_from(last, server, head.as_bytes()).await;
            let mut status = [0; 12];
            tokio::time::timeout(PATIENCE, stream.read_exact(&mut status)).await.expect("an answer").unwrap();
            assert_eq!(status.as_slice(), b"HTTP/1.1 503");
        };
        let mut held = Vec::new();
        for address in addresses.clone() {
            for _ in 0..per_address {
                held.push(send_from(address, server, head.as_bytes()).await);
                tokio::time::timeout(PATIENCE, arrived.recv()).await.expect("there is room").unwrap();
            }
            is_refused(address).await;
        }
        is_refused(addresses.end).await;
        drop(held);
        // Room comes back as the server notices that its clients are gone.
        let room_again = async {
            loop {
                let mut stream = send_from(2, server, head.as_bytes()).await;
                tokio::select! {
                    _ = arrived.recv() => break,
                    refused = stream.read_u8() => drop(refused),
                }
            }
        };
        tokio::time::timeout(PATIENCE, room_again).await.expect("there is room again");
        stop.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn others_have_their_turn_between_pipelined_requests() {
        const REQUESTS: usize = 200;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (turns, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let (sender, mut seen) = mpsc::unbounded_channel();
        let terms = Terms { connections_per_address: 10, uncounted: Vec::new(), grace: Duration::ZERO };
        let server = tokio::spawn(serve(listener, Arc::new(Turns(turns.clone(), sender)), terms, stop.clone()));
        let counted = turns.clone();
        let neighbour = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(REQUESTS).as_bytes()).await.unwrap();
        let mut at = Vec::new();
        for _ in 0..REQUESTS {
            at.push(tokio::time::timeout(Duration::from_secs(30), seen.recv()).await.unwrap().unwrap());
        }
        // The order of the two tasks alternates, so two requests may follow one another, but not three.
        let without_turn = at.windows(3).filter(|three| three[0] == three[2]).count();
        assert!(without_turn < REQUESTS / 10, "{without_turn} of {REQUESTS} requests followed one another at once");
        neighbour.abort();
        stop.cancel();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn without_half_close_a_request_ends_with_its_client_and_without_an_answer_its_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, mut dropped) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let terms = Terms { connections_per_address: 10, uncounted: Vec::new(), grace: Duration::ZERO };
        let server = tokio::spawn(serve(listener, Arc::new(Mute(sender)), terms, stop.clone()));
        let patience = Duration::from_secs(10);

        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /leave HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(patience, client.read_to_end(&mut answer)).await;
        assert_eq!(read.expect("the connection is closed").unwrap(), 0, "{answer:?}");
        dropped.recv().await.unwrap();

        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /stay HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        drop(client);
        tokio::time::timeout(patience, dropped.recv()).await.expect("nobody waits for the answer").unwrap();
        stop.cancel();
        server.await.unwrap();
    }
}
