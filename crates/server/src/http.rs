//! The listener: accepts connections, bounds what they may do, and lets them finish at shutdown.

use crate::api::{Api, Peer, internal_error};
use crate::console::Console;
use crate::panics::{Panicked, caught};
use axum::body::Body;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 10_000;
/// How long a client may take to send the head of a request; also how long a connection may wait for one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a request's head; over it the answer is a bare 431. The API refuses much less, with a text.
const HEAD_BYTES_MAX: usize = 512 * 1024;
/// Most headers of a request; over it the answer is a bare 431. The API refuses much less, with a text.
const HEADERS_MAX: usize = 1_024;
/// How long accepting pauses when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
#[error("the server gave no answer")]
pub(crate) struct HungUp;

impl Serve for Site {
    const HALF_CLOSE: bool = true;

    async fn serve(&self, request: Request<Body>) -> Result<Response, HungUp> {
        Ok(match Console::has(request.uri().path()) {
            true => match caught(Box::pin(self.console.serve(request))).await {
                Ok(response) => response,
                Err(Panicked) => internal_error(),
            },
            false => self.api.serve(request).await,
        })
    }
}

/// Serves until `stop`, then lets open requests finish for at most `grace`.
pub(crate) async fn serve<S: Serve>(listener: TcpListener, site: Arc<S>, stop: CancellationToken, grace: Duration) {
    // HTTP/1.1 only: every official client speaks it, and the head timeout holds from the first byte on.
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(S::HALF_CLOSE);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.cancelled() => break,
        };
        let Some((stream, peer, place)) = accepted else { continue };
        let (site, peer) = (site.clone(), Peer::new(peer));
        let service = service_fn(move |request| {
            let (site, peer) = (site.clone(), peer.clone());
            async move { site.serve(with_peer(request, peer)).await }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A connection that breaks concerns nobody but its client.
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were still open at the end of the grace time");
    }
}

type Place = tokio::sync::OwnedSemaphorePermit;

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<(TcpStream, SocketAddr, Place)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(error = %error, "connection without TCP_NODELAY");
            }
            Some((stream, peer, place))
        }
        Err(error) => {
            tracing::warn!(error = %error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

    #[tokio::test]
    async fn without_half_close_a_request_ends_with_its_client_and_without_an_answer_its_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, mut dropped) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, Arc::new(Mute(sender)), stop.clone(), Duration::ZERO));
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
