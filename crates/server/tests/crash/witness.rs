//! The receiver in this process: records every request and answers as the path says.
//!
//! `/plain/KEY` answers 200, `/flaky/KEY` answers 500 the first time, `/dead/KEY` always 500. More parts may
//! follow: how many milliseconds the answer takes, and the flow-control key. `/group/N` is an endpoint of the
//! URL group and takes the key from the body, `/callback/KEY` takes callbacks, `/schedule/ID` what fires.

use crate::history::{Arrival, Callback, History, Micros, Millis, SHORT_WINDOW};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::Value;
use std::collections::HashSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long the answer to a callback takes, so that it can be seen to hold up what must wait for it.
const CALLBACK_PAUSE_MS: u64 = 3;

pub(crate) struct Witness {
    pub(crate) address: SocketAddr,
    started: Instant,
    seen: Mutex<Seen>,
    /// Requests so far of the flow-control key with the short window.
    pub(crate) throttled: watch::Sender<u64>,
    /// Messages of schedules so far.
    pub(crate) fired: watch::Sender<u64>,
}

#[derive(Default)]
struct Seen {
    arrivals: Vec<Arrival>,
    callbacks: Vec<Callback>,
    fired: Vec<Arrival>,
    failed_once: HashSet<String>,
}

impl Seen {
    fn arrival(&mut self, list: List, index: usize) -> Option<&mut Arrival> {
        match list {
            List::Messages => self.arrivals.get_mut(index),
            List::Callbacks => self.callbacks.get_mut(index).map(|callback| &mut callback.arrival),
            List::Fired => self.fired.get_mut(index),
        }
    }
}

/// Where a request is recorded.
#[derive(Clone, Copy, Debug)]
enum List {
    Messages,
    Callbacks,
    Fired,
}

/// A request that is not answered yet. When it goes, the request has ended: answered, or its connection broke.
struct Open {
    witness: Arc<Witness>,
    list: List,
    index: usize,
    status: StatusCode,
    pause_ms: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        let now_us = self.witness.now_us();
        // A poisoned lock has been told already.
        if let Ok(mut seen) = self.witness.seen.lock()
            && let Some(arrival) = seen.arrival(self.list, self.index)
        {
            arrival.ended_us = now_us;
        }
    }
}

/// The body of the message with this key; long enough to span pages of the store now and then.
pub(crate) fn body_of(key: &str) -> String {
    let number: usize = key.bytes().map(usize::from).sum();
    format!("{key} {}", "x".repeat(number % 97 * 40))
}

/// The key of the message that the endpoint `place` of the group gets.
pub(crate) fn member_key(key: &str, place: &str) -> String {
    format!("{key}@{place}")
}

impl Witness {
    pub(crate) async fn start() -> Arc<Witness> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (throttled, fired) = (watch::Sender::new(0), watch::Sender::new(0));
        let witness = Arc::new(Witness { address, started: Instant::now(), seen: Mutex::default(), throttled, fired });
        tokio::spawn(accept(witness.clone(), listener));
        witness
    }

    /// Time since the run began.
    pub(crate) fn now(&self) -> Millis {
        self.now_us() / 1_000
    }

    pub(crate) fn now_us(&self) -> Micros {
        self.started.elapsed().as_micros() as Micros
    }

    /// Adds what has arrived.
    pub(crate) fn tell(&self, history: &mut History) {
        let seen = self.seen.lock().expect("no handler panics");
        history.arrivals = seen.arrivals.clone();
        history.callbacks = seen.callbacks.clone();
        history.fired = seen.fired.clone();
    }

    fn record(self: &Arc<Witness>, began_us: Micros, head: &Parts, body: &[u8]) -> Open {
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut parts = head.uri.path().trim_start_matches('/').split('/');
        let mut part = || parts.next().unwrap_or_default();
        let (kind, last, pause, flow) = (part(), part(), part(), part());
        let text = String::from_utf8_lossy(body);
        let word = text.split(' ').next().unwrap_or_default();
        let (key, expected) = match kind {
            "group" => (member_key(word, last), body_of(word)),
            _ => (last.to_owned(), body_of(last)),
        };
        let mut guard = self.seen.lock().expect("no handler panics");
        let seen = &mut *guard;
        let fails = match kind {
            "dead" => true,
            "flaky" => seen.failed_once.insert(key.clone()),
            _ => false,
        };
        let status = if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
        let id = header("upstash-message-id").to_owned();
        let intact = text == expected && (kind != "schedule" || header("upstash-schedule-id") == key);
        let arrival = Arrival { key, id, began_us, ended_us: Micros::MAX, status: status.as_u16(), intact };
        let (list, index) = match kind {
            "callback" => {
                seen.callbacks.push(callback(arrival, body));
                (List::Callbacks, seen.callbacks.len() - 1)
            }
            "schedule" => {
                seen.fired.push(arrival);
                self.fired.send_modify(|count| *count += 1);
                (List::Fired, seen.fired.len() - 1)
            }
            _ => {
                seen.arrivals.push(arrival);
                (List::Messages, seen.arrivals.len() - 1)
            }
        };
        if flow == flow_name(SHORT_WINDOW) {
            self.throttled.send_modify(|count| *count += 1);
        }
        let pause_ms = if kind == "callback" { CALLBACK_PAUSE_MS } else { pause.parse().unwrap_or(0) };
        Open { witness: self.clone(), list, index, status, pause_ms }
    }
}

/// The name of a flow-control key.
pub(crate) fn flow_name(flow: usize) -> String {
    format!("f{flow}")
}

fn callback(mut arrival: Arrival, body: &[u8]) -> Callback {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    arrival.intact = told["sourceMessageId"].is_string();
    Callback {
        arrival,
        source: told["sourceMessageId"].as_str().unwrap_or_default().to_owned(),
        retried: told["retried"].as_u64().unwrap_or(u64::MAX),
        status: told["status"].as_u64().unwrap_or(0),
        is_failure: told["dlqId"].is_string(),
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
    let began_us = witness.now_us();
    let (head, body) = request.into_parts();
    let mut response = Response::new(Full::default());
    // A request that did not arrive whole did not arrive.
    if let Ok(body) = body.collect().await {
        let open = witness.record(began_us, &head, &body.to_bytes());
        if open.pause_ms > 0 {
            // Requests that take no time never overlap, whatever the server does.
            tokio::time::sleep(Duration::from_millis(open.pause_ms)).await;
        }
        *response.status_mut() = open.status;
    }
    Ok(response)
}
