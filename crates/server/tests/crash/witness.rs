//! The receiver in this process: records every request and answers as the path says.
//!
//! `/plain/KEY` answers 200, `/flaky/KEY` answers 500 the first time, `/dead/KEY` always 500.

use crate::history::{Arrival, Millis};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::collections::HashSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::net::TcpListener;

pub(crate) struct Witness {
    pub(crate) address: SocketAddr,
    started: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    arrivals: Vec<Arrival>,
    failed_once: HashSet<String>,
}

/// The body of the message with this key; long enough to span pages of the store now and then.
pub(crate) fn body_of(key: &str) -> String {
    let number: usize = key.bytes().map(usize::from).sum();
    format!("{key} {}", "x".repeat(number % 97 * 40))
}

impl Witness {
    pub(crate) async fn start() -> Arc<Witness> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let witness = Arc::new(Witness { address, started: Instant::now(), seen: Mutex::default() });
        tokio::spawn(accept(witness.clone(), listener));
        witness
    }

    /// Time since the run began.
    pub(crate) fn now(&self) -> Millis {
        self.started.elapsed().as_millis() as Millis
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.seen.lock().expect("no handler panics").arrivals.clone()
    }

    fn record(&self, path: &str, id: String, body: &[u8]) -> StatusCode {
        let at = self.now();
        let (kind, key) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        let mut seen = self.seen.lock().expect("no handler panics");
        let fails = match kind {
            "dead" => true,
            "flaky" => seen.failed_once.insert(key.to_owned()),
            _ => false,
        };
        let status = if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
        let intact = body == body_of(key).as_bytes();
        seen.arrivals.push(Arrival { key: key.to_owned(), id, at, status: status.as_u16(), intact });
        status
    }
}

async fn accept(witness: Arc<Witness>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let witness = witness.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(witness.clone(), request));
            // A sender that is killed breaks its connection: nothing to report.
            drop(auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn answer(witness: Arc<Witness>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let mut response = Response::new(Full::default());
    // A request that did not arrive whole did not arrive.
    if let Ok(body) = body.collect().await {
        let id = parts.headers.get("upstash-message-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        *response.status_mut() = witness.record(parts.uri.path(), id.to_owned(), &body.to_bytes());
    }
    Ok(response)
}
