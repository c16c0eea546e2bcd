//! The guard in front of hyper, for the target `heads` of `fuzz/`. Nothing else calls it, but tests share its pipe.

pub use super::heads::Refusal;

use super::exchange::{Exchange, HeadBudget};
use super::guarded::{Guarded, Transport};
use super::heads::{Heads, Room};
use super::{HungUp, builder};
use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// Most bytes of a head.
pub const HEAD_BYTES_MAX: usize = super::HEAD_BYTES_MAX;
/// Bytes of a head that need no room.
pub const HEAD_FREE_BYTES: usize = super::HEAD_FREE_BYTES;
/// Most headers of a request.
pub const HEADERS_MAX: usize = super::HEADERS_MAX;
/// Longest line of a `Content-Length` that is read, with its CR.
pub const LENGTH_LINE_BYTES_MAX: usize = super::heads::LINE_KEPT;

/// The requests of one connection, read along.
#[derive(Debug)]
pub struct Scanner {
    heads: Heads,
    room: Asked,
}

/// Room for so many bytes, and the most that was asked for.
#[derive(Debug)]
struct Asked {
    bytes: usize,
    most: Cell<usize>,
}

impl Room for Asked {
    fn hold(&self, bytes: usize) -> bool {
        self.most.set(self.most.get().max(bytes));
        bytes <= self.bytes
    }
}

/// Where a [`Scanner`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Heads that were complete.
    pub complete: u64,
    /// In a body, or between its last byte and its end.
    pub is_in_body: bool,
    /// Bytes of the body, or of its chunk, that are known to follow.
    pub body_left: u64,
    /// In a head that needs room.
    pub is_long: bool,
    /// The most room that was asked for.
    pub asked: usize,
}

impl Scanner {
    /// Before the first byte of a connection, with room for this much of a large head.
    pub fn new(room: usize) -> Scanner {
        Scanner { heads: Heads::default(), room: Asked { bytes: room, most: Cell::new(0) } }
    }

    /// Reads on. An error says how many of these bytes were good, and why the next ones are refused.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), (usize, Refusal)> {
        self.heads.read(bytes, &self.room)
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place {
            complete: self.heads.complete(),
            is_in_body: self.heads.is_in_body(),
            body_left: self.heads.body_left(),
            is_long: self.heads.is_long(),
            asked: self.room.most.get(),
        }
    }
}

impl Transport for DuplexStream {
    fn abandon(&self) {}
}

/// A request that hyper has read through the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its method.
    pub method: String,
    /// Its target.
    pub target: String,
    /// How many headers it has.
    pub headers: usize,
    /// Its body; `None` if it broke off.
    pub body: Option<Vec<u8>>,
}

/// Serves what a client sends in these pieces before it closes its side, as the listener does: the requests, and all that
/// was written to the client. A request whose body broke off is answered with 400, others with 200.
pub async fn served(pieces: &[&[u8]], room: usize) -> (Vec<Served>, Vec<u8>) {
    let (client, server) = duplex(super::HEAD_FREE_BYTES);
    let exchange = Arc::new(Exchange::new(Arc::new(HeadBudget::new(room)), None));
    let stream = TokioIo::new(Guarded::new(server, exchange.clone()));
    let seen = Mutex::new(Vec::new());
    let service = service_fn(|request: Request<Incoming>| {
        let (seen, exchange) = (&seen, exchange.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.ok().map(|body| body.to_bytes().to_vec());
            let mut response = Response::new(Body::from("ok"));
            if body.is_none() {
                *response.status_mut() = hyper::StatusCode::BAD_REQUEST;
            }
            let (method, target) = (head.method.to_string(), head.uri.to_string());
            let headers = head.headers.len();
            seen.lock().expect("no thread panics with the lock").push(Served { method, target, headers, body });
            Ok::<_, HungUp>(response.map(|body| exchange.answer(body)))
        }
    });
    let connection = builder(true).serve_connection(stream, service);
    let (mut from_server, mut to_server) = tokio::io::split(client);
    let writing = async {
        for piece in pieces {
            // Whoever is refused early does not read the rest.
            if to_server.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        to_server.shutdown().await.unwrap_or_default();
    };
    let mut written = Vec::new();
    let reading = async { from_server.read_to_end(&mut written).await.unwrap_or_default() };
    // A connection that breaks is no failure of the server's.
    let (ended, (), _) = tokio::join!(connection, writing, reading);
    drop(ended);
    (seen.into_inner().expect("no thread panics with the lock"), written)
}
