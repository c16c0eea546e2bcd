//! The listener: accepts connections, bounds what they may do, and lets them finish at shutdown.

use crate::api::{Api, Peer};
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
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

/// Serves until `stop`, then lets open requests finish for at most `grace`.
pub(crate) async fn serve(listener: TcpListener, api: Arc<Api>, stop: CancellationToken, grace: Duration) {
    // HTTP/1.1 only: every official client speaks it, and the head timeout holds from the first byte on.
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(true);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.cancelled() => break,
        };
        let Some((stream, peer, place)) = accepted else { continue };
        let (api, peer) = (api.clone(), Peer::new(peer));
        let service = service_fn(move |request| {
            let (api, peer) = (api.clone(), peer.clone());
            async move { Ok::<_, Infallible>(api.serve(with_peer(request, peer)).await) }
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
