//! A whole server in this process, a client for it, and time that flies: a retry that is due in minutes comes
//! at once.

use crate::secure_cases::{Authority, HOST, WEAK_AUTHORITY};
use posthaste::clock::Clock;
use posthaste::config::{Config, Mode, Settings};
use posthaste::data_dir::free_bytes;
use posthaste::server::{Parts, Server};
use posthaste::tenants::TenantSettings;
use posthaste_delivery::resolve::{Lookup, Resolve};
use posthaste_store::Store;
use posthaste_store::memory::MemoryStore;
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_wire::time::Timestamp;
use serde_json::Value;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// When the clock starts: 2026-06-01T12:00:00Z.
const START: Timestamp = Timestamp(1_780_315_200_000);
/// The clock goes ahead by a second this often.
const SECOND: Duration = Duration::from_millis(5);
/// How long anything may take: a handshake that hangs takes ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(5);

pub(crate) const TENANT: &str = "token-of-the-tenant-of-the-catalogue";
pub(crate) const OTHER_TENANT: &str = "token-of-another-tenant";

/// Where the server keeps its data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backend {
    Sqlite,
    Memory,
}

pub(crate) struct World {
    server: Server,
    store: Arc<dyn Store>,
    pub(crate) authority: Authority,
    _time: AbortOnDropHandle<()>,
    _dir: TempDir,
}

impl World {
    pub(crate) async fn start(backend: Backend) -> World {
        let dir = TempDir::new().expect("a temporary directory");
        let authority = Authority::new();
        let ca_file = dir.path().join("authorities.pem");
        std::fs::write(&ca_file, authority.pem() + WEAK_AUTHORITY).expect("the file can be written");
        let settings = Settings {
            tenants: vec![tenant("catalogue", TENANT), tenant("other", OTHER_TENANT)],
            shutdown_grace: Some("1s".to_owned()),
            egress_ca_file: Some(ca_file),
            data_dir: Some(dir.path().to_owned()),
            ..Settings::default()
        };
        let config = Config::resolve(Mode::Dev, settings).expect("the settings are valid");
        let (store, clock) = (open(backend, dir.path()), Clock::manual(START));
        let parts =
            Parts { store: store.clone(), clock: clock.clone(), resolver: Arc::new(Names), free_bytes, reports: None };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let server = Server::start(config, parts, listener).await.expect("the server starts");
        let core = server.app.core.clone();
        let time = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(SECOND);
            loop {
                ticks.tick().await;
                clock.advance(1_000);
                core.tick();
            }
        });
        World { server, store, authority, _time: AbortOnDropHandle::new(time), _dir: dir }
    }

    /// Waits until every message has ended.
    pub(crate) async fn settled(&self) {
        eventually("all messages have ended", || async { (self.live() == 0).then_some(()) }).await;
    }

    /// Messages that have not ended.
    pub(crate) fn live(&self) -> u64 {
        self.store.counts().expect("the store counts").live
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await.expect("the server stops");
    }

    /// Attempts that ended so, as `/metrics` counts them.
    pub(crate) fn attempts(&self, outcome: &str) -> u64 {
        let text = self.server.app.metrics.text(self.store.counts().expect("counts")).expect("metrics");
        let line = format!("posthaste_attempts_total{{outcome=\"{outcome}\"}} ");
        text.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |value| value.parse().expect("a number"))
    }

    /// Publishes and gives the answer.
    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Value {
        let (status, answer) = request(self.server.address, TENANT, "POST", path, headers, body).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }

    /// Publishes one message and gives its id.
    pub(crate) async fn publish(&self, url: &str, headers: &[(&str, &str)]) -> String {
        let answer = self.post(&format!("/v2/publish/{url}"), headers, "hello").await;
        answer["messageId"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Value {
        let (status, answer) = request(self.server.address, token, "GET", path, &[], "").await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// The log lines of a message, oldest first.
    pub(crate) async fn events(&self, id: &str) -> Vec<Value> {
        let path = format!("/v2/events?messageId={id}&order=earliestFirst");
        self.get(TENANT, &path).await["events"].as_array().expect("a list").clone()
    }

    /// The states a message has been through.
    pub(crate) async fn states(&self, id: &str) -> Vec<String> {
        let state = |event: &Value| event["state"].as_str().expect("a state").to_owned();
        self.events(id).await.iter().map(state).collect()
    }

    /// The dead letter of a message, if there is one.
    pub(crate) async fn dead_letter(&self, id: &str) -> Option<Value> {
        let path = format!("/v2/dlq?messageId={id}");
        self.get(TENANT, &path).await["messages"].as_array().expect("a list").first().cloned()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address
    }
}

/// Asks until there is an answer.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut polls = tokio::time::interval(POLL_EVERY);
    loop {
        polls.tick().await;
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
    }
}

fn tenant(name: &str, token: &str) -> TenantSettings {
    TenantSettings {
        name: name.to_owned(),
        token: Some(token.to_owned()),
        current_signing_key: Some(format!("sig_current_of_{name}")),
        next_signing_key: Some(format!("sig_next_of_{name}")),
        ..TenantSettings::default()
    }
}

fn open(backend: Backend, dir: &Path) -> Arc<dyn Store> {
    match backend {
        Backend::Memory => Arc::new(MemoryStore::new()),
        Backend::Sqlite => {
            let store = SqliteStore::open(&dir.join("posthaste.db"), SqliteOptions::default());
            Arc::new(store.expect("the database can be opened"))
        }
    }
}

/// One request on a connection of its own: the status, and the body as JSON.
pub(crate) async fn request(
    address: SocketAddr,
    token: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Value) {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    text.push_str(&format!("Authorization: Bearer {token}\r\nContent-Length: {}\r\n", body.len()));
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(format!("{text}\r\n{body}").as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error} in {answer}")))
}

/// Names as the catalogue's DNS cases need them. Nothing leaves the machine.
struct Names;

impl Resolve for Names {
    fn resolve(&self, host: &str) -> Lookup {
        let loopback = |last: u8| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
        let answer = match host {
            HOST => Ok(vec![loopback(1)]),
            // The first has no listener.
            "flapping.example" => Ok(vec![loopback(2), loopback(1)]),
            // Nobody listens there.
            "many.example" => {
                let address = |n: u16| IpAddr::from(Ipv4Addr::new(127, 1, (n / 250) as u8, (n % 250) as u8));
                Ok((0..4_000).map(address).collect())
            }
            "slow.example" => return Box::pin(std::future::pending()),
            "refused.example" => Err(io::Error::other("SERVFAIL")),
            _ => Err(io::Error::other("NXDOMAIN")),
        };
        Box::pin(std::future::ready(answer))
    }
}
