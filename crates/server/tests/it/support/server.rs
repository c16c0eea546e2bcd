//! A server of its own for every test, with the time in the test's hand.

use super::{Answer, Request, eventually};
use posthaste::clock::Clock;
use posthaste::config::{Config, Mode, Settings};
use posthaste::core::CoreHandle;
use posthaste::data_dir::{FreeBytes, free_bytes};
use posthaste::server::{Parts, Server};
use posthaste::tenants::TenantSettings;
use posthaste_delivery::resolve::{Lookup, Resolve};
use posthaste_store::journal::{JournalOptions, JournalStore};
use posthaste_store::memory::MemoryStore;
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};
use posthaste_store::{Counts, Store};
use posthaste_wire::id::TenantId;
use posthaste_wire::redact::Marks;
use posthaste_wire::time::Timestamp;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// When every manual clock starts: 2026-06-01T12:00:00Z.
pub(crate) const START_MS: u64 = 1_780_315_200_000;

/// The tenant that requests are made for unless they say otherwise.
pub(crate) const TOKEN: &str = "pht_token_of_tenant_a_3fJ8sKq2";
/// The same tenant's token that may only read.
pub(crate) const READ_ONLY: &str = "pht_read_only_of_tenant_a_9dLw4";
/// Another tenant.
pub(crate) const TOKEN_B: &str = "pht_token_of_tenant_b_7hRt5Zx1";
pub(crate) const CURRENT_KEY: &str = "sig_current_of_tenant_a_Qm4";
pub(crate) const NEXT_KEY: &str = "sig_next_of_tenant_a_Vb8";
pub(crate) const CURRENT_KEY_B: &str = "sig_current_of_tenant_b_Tp2";

/// Where a test server keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// As by default.
    Journal,
    Sqlite,
    Memory,
}

impl Backend {
    /// For stories that must hold on every backend.
    pub(crate) const ALL: [Backend; 3] = [Backend::Journal, Backend::Sqlite, Backend::Memory];
}

/// How a test server is made.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    pub(crate) backend: Backend,
    pub(crate) settings: Settings,
    /// Started by hand, at [`START_MS`]; `false` takes the system's clock.
    pub(crate) manual_clock: bool,
    /// Knows no name unless a test says otherwise.
    pub(crate) resolver: Arc<dyn Resolve>,
    /// How much room the disk has.
    pub(crate) free_bytes: FreeBytes,
}

impl Setup {
    /// As `posthaste dev` runs, with two tenants besides the published users.
    pub(crate) fn dev() -> Setup {
        let settings = Settings {
            tenants: vec![tenant_a(), tenant_b()],
            shutdown_grace: Some("1s".to_owned()),
            ..Settings::default()
        };
        Setup {
            mode: Mode::Dev,
            backend: Backend::Journal,
            settings,
            manual_clock: true,
            resolver: Arc::new(NoNames),
            free_bytes,
        }
    }

    /// As `posthaste serve` runs, with loopback allowed as a private network would be.
    pub(crate) fn serve() -> Setup {
        let mut setup = Setup { mode: Mode::Serve, ..Setup::dev() };
        setup.settings.egress_allow_cidrs = Some(vec!["127.0.0.0/8".to_owned()]);
        setup
    }

    pub(crate) fn on(self, backend: Backend) -> Setup {
        Setup { backend, ..self }
    }
}

fn tenant_a() -> TenantSettings {
    TenantSettings {
        name: "tenant-a".to_owned(),
        token: Some(TOKEN.to_owned()),
        read_only_token: Some(READ_ONLY.to_owned()),
        current_signing_key: Some(CURRENT_KEY.to_owned()),
        next_signing_key: Some(NEXT_KEY.to_owned()),
        ..TenantSettings::default()
    }
}

fn tenant_b() -> TenantSettings {
    TenantSettings {
        name: "tenant-b".to_owned(),
        token: Some(TOKEN_B.to_owned()),
        current_signing_key: Some(CURRENT_KEY_B.to_owned()),
        next_signing_key: Some("sig_next_of_tenant_b_Ln6".to_owned()),
        ..TenantSettings::default()
    }
}

/// A resolver that knows no name: nothing that a test publishes leaves the machine.
struct NoNames;

impl Resolve for NoNames {
    fn resolve(&self, _host: &str) -> Lookup {
        Box::pin(async { Err(io::Error::other("tests resolve no names")) })
    }
}

/// See the module's text. A test ends it with [`TestServer::finish`].
pub(crate) struct TestServer {
    /// `None` once it is stopped.
    server: Option<Server>,
    pub(crate) address: SocketAddr,
    setup: Setup,
    store: Arc<dyn Store>,
    dir: TempDir,
    clock: Clock,
}

impl TestServer {
    /// A development server on SQLite.
    pub(crate) async fn start() -> TestServer {
        TestServer::with(Setup::dev()).await
    }

    pub(crate) async fn with(setup: Setup) -> TestServer {
        let clock = if setup.manual_clock { Clock::manual(Timestamp(START_MS)) } else { Clock::default() };
        let dir = TempDir::new().expect("a temporary directory can be made");
        let store = open(setup.backend, dir.path());
        TestServer::run(setup, store, dir, clock).await
    }

    async fn run(setup: Setup, store: Arc<dyn Store>, dir: TempDir, clock: Clock) -> TestServer {
        let mut settings = setup.settings.clone();
        settings.data_dir = Some(dir.path().to_owned());
        let config = Config::resolve(setup.mode, settings).expect("the settings are valid");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let (resolver, free_bytes) = (setup.resolver.clone(), setup.free_bytes);
        let parts = Parts { store: store.clone(), clock: clock.clone(), resolver, free_bytes, reports: None };
        let server = Server::start(config, parts, listener).await.expect("the server starts");
        TestServer { address: server.address, server: Some(server), setup, store, dir, clock }
    }

    // Ending.

    /// Every message must have ended; then the server is stopped.
    pub(crate) async fn finish(self) {
        eventually("no live message is left", || async { (self.counts().live == 0).then_some(()) }).await;
        self.finish_with_pending().await;
    }

    /// Stops the server although messages are live: the test says so.
    pub(crate) async fn finish_with_pending(mut self) {
        self.stop().await;
    }

    /// Stops the server as soon as every message has ended, and gives all bytes of its files, as text.
    pub(crate) async fn finish_and_read_files(self) -> String {
        eventually("no live message is left", || async { (self.counts().live == 0).then_some(()) }).await;
        self.stop_and_read_files().await
    }

    /// The same although messages are live.
    pub(crate) async fn stop_and_read_files(self) -> String {
        String::from_utf8_lossy(&self.stop_and_read_bytes().await).into_owned()
    }

    /// The same as bytes.
    pub(crate) async fn stop_and_read_bytes(mut self) -> Vec<u8> {
        self.stop().await;
        read_bytes(self.dir.path())
    }

    /// Stops the server and starts another one on what it left behind.
    pub(crate) async fn restart(self) -> TestServer {
        self.restart_after(0).await
    }

    /// Stops the server, lets time pass while none runs, and starts another one.
    pub(crate) async fn restart_after(mut self, millis: u64) -> TestServer {
        self.stop().await;
        let clock = if self.setup.manual_clock {
            Clock::manual(self.clock.now().plus_millis(millis))
        } else {
            Clock::default()
        };
        let (setup, dir) = (self.setup.clone(), TempDir::new());
        let dir = std::mem::replace(&mut self.dir, dir.expect("a temporary directory can be made"));
        let store = match setup.backend {
            Backend::Memory => self.store.clone(),
            Backend::Journal | Backend::Sqlite => {
                drop(self);
                open(setup.backend, dir.path())
            }
        };
        TestServer::run(setup, store, dir, clock).await
    }

    /// Stops the server and starts another one with other settings.
    pub(crate) async fn restart_with(mut self, change: impl FnOnce(&mut Settings)) -> TestServer {
        change(&mut self.setup.settings);
        self.restart().await
    }

    /// Makes the bodies of all messages unreadable: whoever reads one fails.
    pub(crate) fn ruin_bodies(&self) {
        let database = rusqlite::Connection::open(self.dir.path().join("posthaste.db")).expect("there is a database");
        let named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'message_*'";
        let mut tables = database.prepare(named).expect("the database can be read");
        let tables = tables.query_map([], |row| row.get::<_, String>(0)).expect("the database can be read");
        for table in tables {
            let table = table.expect("a table has a name");
            database.execute(&format!("UPDATE {table} SET body = 0"), []).expect("the database can be changed");
        }
    }

    /// A second server that takes the data from this one, as a mistake or a failover would.
    pub(crate) async fn start_another_on_the_same_data(&self) -> TestServer {
        let dir = TempDir::new().expect("a temporary directory can be made");
        TestServer::run(self.setup.clone(), self.store.clone(), dir, self.clock.clone()).await
    }

    /// Stops a server whose core has failed.
    pub(crate) async fn finish_failed(mut self) {
        let server = self.server.take().expect("it is stopped only once");
        server.stop().await.expect_err("the core has failed");
    }

    async fn stop(&mut self) {
        let server = self.server.take().expect("it is stopped only once");
        server.stop().await.expect("the server stops");
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it is running")
    }

    pub(crate) fn core(&self) -> &CoreHandle {
        &self.server().app.core
    }

    /// The tenant that requests are made for.
    pub(crate) fn tenant(&self) -> TenantId {
        self.store.tenant("tenant-a").expect("the store answers")
    }

    // Time.

    /// Lets time pass, and waits until everything that became due by it has been started.
    pub(crate) async fn advance(&self, millis: u64) {
        self.clock.advance(millis);
        self.server().app.core.tick();
        self.settle().await;
    }

    /// The wall clock jumps ahead; no time passes.
    pub(crate) async fn jump(&self, millis: u64) {
        self.clock.jump_to(self.clock.now().plus_millis(millis));
        self.server().app.core.tick();
        self.settle().await;
    }

    /// The wall clock is put back; no time passes.
    pub(crate) async fn jump_back(&self, millis: u64) {
        self.clock.jump_to(self.clock.now().minus_millis(millis));
        self.server().app.core.tick();
        self.settle().await;
    }

    /// Waits until the core has dealt with everything it was told so far. The second round is for what
    /// the first one had to load.
    pub(crate) async fn settle(&self) {
        for _ in 0..2 {
            let nothing = self.server().app.core.delete_dead_letters(TenantId(0), Vec::new());
            nothing.await.expect("the core answers");
        }
    }

    /// Drops what is past its retention. The server does so by itself only once it has run for a while
    /// and trusts the clock.
    pub(crate) fn retain(&self) {
        let policy = self.server().app.config.retention;
        while self.store.retain(&policy, self.clock.now()).expect("the store drops what is old").more {}
    }

    // What it holds.

    pub(crate) fn counts(&self) -> Counts {
        self.store.counts().expect("the store counts")
    }

    /// What `/metrics` would show.
    pub(crate) fn metrics(&self) -> String {
        self.server().app.metrics.text(self.counts()).expect("metrics can be written")
    }

    /// The value of one line of the metrics; zero when there is no such line.
    pub(crate) fn metric(&self, line: &str) -> f64 {
        let text = self.metrics();
        let found = text.lines().find_map(|candidate| candidate.strip_prefix(line)?.strip_prefix(' '));
        found.map_or(0.0, |value| value.parse().expect("metrics are numbers"))
    }

    /// What stands in the place of a hidden value of the tenant that requests are made for.
    pub(crate) fn mark(&self, original: impl AsRef<[u8]>) -> String {
        let secret = self.store.secret(&[0; 32]).expect("the store answers");
        Marks::of(&secret, self.tenant()).mark(original.as_ref())
    }

    // Asking.

    pub(crate) fn request(&self, method: &str, target: &str) -> Request {
        Request::new(self.address, method, target).token(TOKEN)
    }

    pub(crate) fn get(&self, target: &str) -> Request {
        self.request("GET", target)
    }

    pub(crate) fn post(&self, target: &str) -> Request {
        self.request("POST", target)
    }

    pub(crate) fn delete(&self, target: &str) -> Request {
        self.request("DELETE", target)
    }

    pub(crate) fn publish(&self, destination: &str) -> Request {
        self.post(&format!("/v2/publish/{destination}"))
    }

    /// Publishes with these headers and gives the id of the new message.
    pub(crate) async fn publish_with(&self, destination: &str, headers: &[(&str, &str)], body: &str) -> String {
        let answer = self.publish(destination).headers(headers).body(body).expect(200).await;
        message_id(&answer)
    }

    pub(crate) fn enqueue(&self, queue: &str, destination: &str) -> Request {
        self.post(&format!("/v2/enqueue/{queue}/{destination}"))
    }

    /// Enqueues with these headers and gives the id of the new message.
    pub(crate) async fn enqueue_with(&self, queue: &str, destination: &str, headers: &[(&str, &str)]) -> String {
        message_id(&self.enqueue(queue, destination).headers(headers).expect(200).await)
    }

    /// A queue as the API shows it.
    pub(crate) async fn queue(&self, name: &str) -> Value {
        self.get(&format!("/v2/queues/{name}")).expect(200).await.json()
    }

    /// A flow-control key as the API shows it.
    pub(crate) async fn flow(&self, key: &str) -> Value {
        self.get(&format!("/v2/flowControl/{key}")).expect(200).await.json()
    }

    /// Makes a schedule with these headers and gives its id.
    pub(crate) async fn schedule_with(&self, destination: &str, headers: &[(&str, &str)], body: &str) -> String {
        let request = self.post(&format!("/v2/schedules/{destination}")).headers(headers).body(body);
        let answer = request.expect(201).await.json();
        answer["scheduleId"].as_str().unwrap_or_else(|| panic!("no id in {answer}")).to_owned()
    }

    /// A schedule as the API shows it.
    pub(crate) async fn schedule(&self, id: &str) -> Value {
        self.get(&format!("/v2/schedules/{id}")).expect(200).await.json()
    }

    /// A message as the API shows it.
    pub(crate) async fn message(&self, id: &str) -> Value {
        self.get(&format!("/v2/messages/{id}")).expect(200).await.json()
    }

    /// The log lines that a query selects, in the order of the answer.
    pub(crate) async fn events(&self, query: &str) -> Vec<Value> {
        let answer = self.get(&format!("/v2/events?{query}")).expect(200).await.json();
        answer["events"].as_array().expect("events are a list").clone()
    }

    /// The log lines of a message, oldest first.
    pub(crate) async fn events_of(&self, id: &str) -> Vec<Value> {
        self.events(&format!("messageId={id}&order=earliestFirst")).await
    }

    /// The states that a message has been through.
    pub(crate) async fn states_of(&self, id: &str) -> Vec<String> {
        let events = self.events_of(id).await;
        events.iter().map(|event| event["state"].as_str().expect("a state is text").to_owned()).collect()
    }

    /// Waits until a message has been through exactly these states.
    pub(crate) async fn reaches(&self, id: &str, states: &[&str]) {
        let what = format!("{id} reaches {states:?}");
        let reached = eventually(&what, || async {
            let reached = self.states_of(id).await;
            (reached.len() >= states.len()).then_some(reached)
        });
        assert_eq!(reached.await, states);
    }

    /// The dead letters that a query selects, in the order of the answer.
    pub(crate) async fn dead_letters(&self, query: &str) -> Vec<Value> {
        let answer = self.get(&format!("/v2/dlq?{query}")).expect(200).await.json();
        answer["messages"].as_array().expect("dead letters are a list").clone()
    }

    /// The dead letter of a message, as soon as there is one.
    pub(crate) async fn dead_letter_of(&self, id: &str) -> Value {
        let query = format!("messageId={id}");
        eventually("a dead letter", || async { self.dead_letters(&query).await.into_iter().next() }).await
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.server.is_some() && !std::thread::panicking() {
            panic!("the test did not finish its server");
        }
    }
}

/// The id in the answer to a publish.
pub(crate) fn message_id(answer: &Answer) -> String {
    answer.json()["messageId"].as_str().unwrap_or_else(|| panic!("no id in {}", answer.text())).to_owned()
}

/// All bytes of the files in a directory and below.
fn read_bytes(dir: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(dir).expect("the directory can be read");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        if path.is_dir() { read_bytes(&path) } else { std::fs::read(path).expect("a file can be read") }
    };
    entries.flat_map(read).collect()
}

fn open(backend: Backend, dir: &Path) -> Arc<dyn Store> {
    match backend {
        Backend::Memory => Arc::new(MemoryStore::new()),
        Backend::Journal => {
            let store = JournalStore::open(&dir.join("posthaste.db"), &dir.join("journal"), JournalOptions::default());
            Arc::new(store.expect("the database can be opened"))
        }
        Backend::Sqlite => {
            let store = SqliteStore::open(&dir.join("posthaste.db"), SqliteOptions::default());
            Arc::new(store.expect("the database can be opened"))
        }
    }
}
