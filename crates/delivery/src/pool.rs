//! Open connections, and the idle ones among them.
//!
//! A connection is only ever reused for the same tenant, scheme, host and port. HTTP/1 connections are taken and given
//! back. All attempts with the same key share one HTTP/2 connection.

use super::failure;
use super::frames::{Flood, Flooded};
use super::stream::{Activity, Interim};
use super::target::Target;
use bytes::Bytes;
use http::uri::Authority;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use posthaste_engine::outcome::AttemptError;
use posthaste_wire::id::TenantId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Idle connections per key. Further ones are closed.
const IDLE_PER_KEY_MAX: usize = 256;
/// Idle connections in total. Further ones are closed.
const IDLE_MAX: usize = 1_024;
/// How long a connection may take to become ready again after its response was read.
const SETTLE: Duration = Duration::from_secs(1);

/// Attempts with the same key may share a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    tenant: TenantId,
    https: bool,
    authority: Authority,
}

impl Key {
    pub(super) fn new(tenant: TenantId, target: &Target) -> Key {
        Key { tenant, https: target.https, authority: target.authority.clone() }
    }

    /// The tenant that uses the connection.
    pub(super) fn tenant(&self) -> TenantId {
        self.tenant
    }
}

/// A connection that one attempt uses.
pub(super) enum Connection {
    /// Used by this attempt only.
    Http1 { sender: http1::SendRequest<Full<Bytes>>, activity: Arc<Activity> },
    /// May be used by other attempts at the same time.
    Http2 { sender: http2::SendRequest<Full<Bytes>>, flooded: Flooded },
}

/// A request without a response.
pub(super) struct Unanswered {
    pub(super) error: AttemptError,
    /// Whether the request may be sent once more. On HTTP/1 the receiver sent nothing back; most likely it closed the
    /// connection just as we sent. On HTTP/2 the request was never sent, or the receiver reports that it was not
    /// processed.
    pub(super) untouched: bool,
}

impl Connection {
    pub(super) fn is_http2(&self) -> bool {
        matches!(self, Connection::Http2 { .. })
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Unanswered> {
        let interim = Arc::new(Interim::default());
        let watching = interim.clone();
        hyper::ext::on_informational(&mut request, move |_| watching.add());
        tokio::select! {
            biased;
            answer = self.exchange(request) => answer,
            () = interim.flooded() => Err(Unanswered {
                error: failure::not_http(&Flood::Interim),
                untouched: false,
            }),
        }
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Unanswered> {
        let unanswered =
            |error: hyper::Error, untouched: bool| Unanswered { error: failure::exchange(&error), untouched };
        match self {
            Connection::Http1 { sender, activity } => {
                activity.begin();
                let answer = sender.send_request(request).await;
                answer.map_err(|error| {
                    let untouched = !activity.answered() || failure::unprocessed(&error);
                    unanswered(error, untouched)
                })
            }
            Connection::Http2 { sender, flooded } => {
                let answer = match sender.ready().await {
                    Ok(()) => sender.send_request(request).await.map_err(|error| {
                        let untouched = failure::unprocessed(&error);
                        unanswered(error, untouched)
                    }),
                    Err(error) => Err(unanswered(error, true)),
                };
                // If the connection was closed because of a flood before the request was sent, hyper only reports the
                // closed connection.
                answer.map_err(|unanswered| match flooded.get() {
                    Some(flood) => Unanswered { error: failure::not_http(flood), ..unanswered },
                    None => unanswered,
                })
            }
        }
    }
}

/// The idle and shared connections.
pub(super) struct Pool {
    waiting: Mutex<IdleConnections>,
    idle_timeout: Duration,
}

#[derive(Default)]
struct IdleConnections {
    by_key: HashMap<Key, Entry>,
    /// HTTP/1 connections in all entries.
    idle: usize,
    /// Whether a task sweeps them.
    swept: bool,
}

#[derive(Default)]
struct Entry {
    /// Oldest first.
    idle: Vec<Idle>,
    shared: Option<Shared>,
}

struct Idle {
    sender: http1::SendRequest<Full<Bytes>>,
    activity: Arc<Activity>,
    since: Instant,
}

struct Shared {
    sender: http2::SendRequest<Full<Bytes>>,
    flooded: Flooded,
    used: Instant,
}

impl Pool {
    pub(super) fn new(idle_timeout: Duration) -> Arc<Pool> {
        Arc::new(Pool { waiting: Mutex::default(), idle_timeout })
    }

    /// The newest idle connection that is still open.
    pub(super) fn take(&self, key: &Key) -> Option<Connection> {
        let mut waiting = self.lock();
        let IdleConnections { by_key, idle: total, .. } = &mut *waiting;
        let entry = by_key.get_mut(key)?;
        let now = Instant::now();
        if let Some(shared) = &mut entry.shared {
            if !shared.sender.is_closed() {
                shared.used = now;
                return Some(Connection::Http2 { sender: shared.sender.clone(), flooded: shared.flooded.clone() });
            }
            entry.shared = None;
        }
        while let Some(Idle { sender, activity, since }) = entry.idle.pop() {
            *total -= 1;
            if sender.is_ready() && now.duration_since(since) < self.idle_timeout {
                return Some(Connection::Http1 { sender, activity });
            }
        }
        None
    }

    /// Returns a connection after its response was read completely.
    pub(super) fn give_back(self: &Arc<Self>, key: Key, connection: Connection) {
        let Connection::Http1 { mut sender, activity } = connection else { return };
        if sender.is_ready() {
            self.keep(key, sender, activity);
        } else if !sender.is_closed() {
            // The connection's task has not finished yet, or is still sending.
            let pool = self.clone();
            tokio::spawn(async move {
                if let Ok(Ok(())) = timeout(SETTLE, sender.ready()).await {
                    pool.keep(key, sender, activity);
                }
            });
        }
    }

    /// Lets other attempts use an HTTP/2 connection at the same time.
    pub(super) fn share(self: &Arc<Self>, key: &Key, connection: &Connection) {
        let Connection::Http2 { sender, flooded } = connection else { return };
        let shared = Shared { sender: sender.clone(), flooded: flooded.clone(), used: Instant::now() };
        let mut waiting = self.lock();
        let entry = waiting.by_key.entry(key.clone()).or_default();
        // If several were opened at the same time, the first stays. The others close after their request.
        if entry.shared.as_ref().is_none_or(|first| first.sender.is_closed()) {
            entry.shared = Some(shared);
        }
        self.ensure_swept(&mut waiting);
    }

    /// Stops sharing an HTTP/2 connection that does not respond.
    pub(super) fn retire(&self, key: &Key) {
        if let Some(entry) = self.lock().by_key.get_mut(key) {
            entry.shared = None;
        }
    }

    fn keep(self: &Arc<Self>, key: Key, sender: http1::SendRequest<Full<Bytes>>, activity: Arc<Activity>) {
        let mut waiting = self.lock();
        let IdleConnections { by_key, idle: total, .. } = &mut *waiting;
        let entry = by_key.entry(key).or_default();
        if entry.idle.len() < IDLE_PER_KEY_MAX && *total < IDLE_MAX {
            entry.idle.push(Idle { sender, activity, since: Instant::now() });
            *total += 1;
        }
        self.ensure_swept(&mut waiting);
    }

    fn ensure_swept(self: &Arc<Self>, waiting: &mut IdleConnections) {
        if !waiting.swept {
            waiting.swept = true;
            tokio::spawn(sweep_while_used(Arc::downgrade(self), self.idle_timeout));
        }
    }

    /// Closes connections that were idle for too long. Returns false if none remain.
    fn sweep(&self) -> bool {
        let mut waiting = self.lock();
        let IdleConnections { by_key, idle: total, swept } = &mut *waiting;
        let now = Instant::now();
        by_key.retain(|_, entry| {
            let fresh = |since: Instant| now.duration_since(since) < self.idle_timeout;
            entry.idle.retain(|idle| !idle.sender.is_closed() && fresh(idle.since));
            entry.shared.take_if(|shared| shared.sender.is_closed() || !fresh(shared.used));
            !entry.idle.is_empty() || entry.shared.is_some()
        });
        *total = by_key.values().map(|entry| entry.idle.len()).sum();
        *swept = !by_key.is_empty();
        *swept
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn sweep_while_used(pool: Weak<Pool>, every: Duration) {
    loop {
        sleep(every).await;
        match pool.upgrade() {
            Some(pool) if pool.sweep() => {}
            _ => return,
        }
    }
}
