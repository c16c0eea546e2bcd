//! Puts a server together, and takes it apart without losing anything.

use crate::api::{Allowances, Api, BodyBudget, Duplicates, LlmUpstream, ResponseBudget, Streams};
use crate::app::App;
use crate::bulk::{self, BulkActions};
use crate::clock::{Clock, random};
use crate::config::Config;
use crate::console::Console;
use crate::core::{Attempts, Core, CoreFailure, CoreHandle, SHARD, Throttle};
use crate::credentials::Credentials;
use crate::data_dir::{DiskWatch, FreeBytes, half_of_disk};
use crate::dev_output::AttemptReports;
use crate::http::{self, CONNECTIONS_MAX, Site, Terms};
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::reads::Reads;
use crate::receiver::{Inboxes, Receiver};
use crate::tenants::Tokens;
use crate::token_uses;
use anyhow::Context;
use posthaste_delivery::loop_mark::LoopMark;
use posthaste_delivery::resolve::Resolve;
use posthaste_delivery::{ConfigError, Deliverer, DeliveryConfig};
use posthaste_faults::crash_point::crash_point;
use posthaste_faults::panics::{Panicked, caught, caught_in};
use posthaste_store::{SigningKeys, Store, StoreError};
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{self, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A running server.
pub struct Server {
    /// What its request handlers reach.
    pub app: Arc<App>,
    /// Where it listens.
    pub address: SocketAddr,
    listeners: Vec<JoinHandle<()>>,
    stop_listening: CancellationToken,
    bulk_worker: JoinHandle<()>,
    use_keeper: JoinHandle<()>,
    /// Ends after the attempts: those to it are ours as well.
    receiver: Option<(JoinHandle<()>, CancellationToken)>,
    attempts: Arc<Attempts>,
    _delivery_threads: DeliveryThreads,
    core_ended: oneshot::Receiver<Result<(), CoreFailure>>,
    /// Says which task ended in a panic, of those without which there is no server.
    panicked: mpsc::UnboundedReceiver<&'static str>,
    _disk_watch: DiskWatch,
}

/// How long callers may take to hear of a failure.
const FAILURE_GRACE: Duration = Duration::from_secs(1);

/// How long looking up the name of the public URL may delay the start.
const PUBLIC_URL_PATIENCE: Duration = Duration::from_secs(3);

/// What a server is made of, besides its configuration.
pub struct Parts {
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// Where the time comes from.
    pub clock: Clock,
    /// How names become addresses.
    pub resolver: Arc<dyn Resolve>,
    /// How much room the disk has.
    pub free_bytes: FreeBytes,
    /// Where each attempt is reported for the terminal of a developer.
    pub reports: Option<AttemptReports>,
}

impl Server {
    /// Starts serving on a listener that is already bound.
    pub async fn start(config: Config, parts: Parts, listener: TcpListener) -> anyhow::Result<Server> {
        Server::start_on(config, parts, vec![listener]).await
    }

    /// Starts serving the same on several listeners; the first is the server's address.
    pub async fn start_on(mut config: Config, parts: Parts, listeners: Vec<TcpListener>) -> anyhow::Result<Server> {
        let Parts { store, clock, resolver, free_bytes, reports } = parts;
        let address = find_own_addresses(&mut config, &listeners, resolver.as_ref()).await?;
        let receiver = if config.console_receiver { Some(listen_for_tests(&mut config).await?) } else { None };
        let (tokens, configured_keys) = load_tokens(store.as_ref(), &config)?;
        let (keys, credentials) = load_secrets(&store, &config, &configured_keys, clock.now())?;
        let metrics = Arc::new(Metrics::new());
        let loop_mark = config.public_url.as_ref().map(|_| LoopMark::new(random()));
        let (deliverer, llm) = deliverers(&config, loop_mark, resolver)?;
        let (delivery_threads, runtime) = DeliveryThreads::start()?;
        let (handle, commands) = CoreHandle::new(credentials);
        let attempts = Arc::new(Attempts {
            runtime,
            deliverer,
            llm: llm.clone(),
            keys: keys.clone(),
            unreadable: Throttle::default(),
            store: store.clone(),
            core: handle.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            answers: Arc::default(),
            tracker: TaskTracker::new(),
            abandon: CancellationToken::new(),
            reports,
        });
        config.quotas.stored_bytes = config.quotas.stored_bytes.or_else(|| half_of_disk(&config.data_dir));
        let core_running = Arc::new(AtomicBool::new(true));
        let (disk, disk_watch) = DiskWatch::start(&config, store.as_ref(), free_bytes);
        let (shard, retention, quotas) = (config.shard, config.retention, config.quotas);
        let core = Core::new(store.clone(), shard, commands, attempts.clone(), retention, quotas, disk.clone())?;
        let core_ended = spawn_core(core, core_running.clone())?;
        let tenants = || configured_keys.iter().map(|(tenant, _)| *tenant);
        let allowances = Allowances::new(config.quotas.messages_per_day, config.quotas.requests_per_second);
        let inboxes = receiver.as_ref().map(|(_, address)| Arc::new(Inboxes::new(*address, tenants())));
        let app = Arc::new(App {
            mark_secret: store.secret(&random())?,
            config,
            tokens,
            core: handle,
            store,
            keys,
            clock,
            llm: llm.map(LlmUpstream::new),
            loop_mark,
            metrics,
            body_budget: BodyBudget::new(tenants()),
            response_budget: ResponseBudget::new(tenants()),
            reads: Reads::default(),
            allowances,
            inboxes: inboxes.clone(),
            bulk_actions: BulkActions::default(),
            streams: Streams::default(),
            duplicates: Duplicates::default(),
            stopping: CancellationToken::new(),
            group_edits: std::sync::Mutex::default(),
            last_probe: tokio::sync::Mutex::new(None),
            disk_low: disk.low,
            disk_room: disk.room,
            core_running,
        });
        let api = Arc::new(Api::new(app.clone()));
        let site = Arc::new(Site { console: Console::new(app.clone(), api.clone()), api });
        let Tasks { listeners, bulk_worker, use_keeper, panicked } = Tasks::spawn(&app, &site, listeners);
        let receiver = receiver.zip(inboxes).map(|((listener, _), inboxes)| receive_tests(&app, listener, inboxes));
        Ok(Server {
            stop_listening: app.stopping.clone(),
            app,
            address,
            listeners,
            bulk_worker,
            use_keeper,
            receiver,
            attempts,
            _delivery_threads: delivery_threads,
            core_ended,
            panicked,
            _disk_watch: disk_watch,
        })
    }

    /// Waits until the core, or a task without which there is no server, fails. Never returns while all is well.
    pub async fn failed(&mut self) -> anyhow::Error {
        tokio::select! {
            ended = &mut self.core_ended => match ended {
                Ok(Err(failure)) => failure.into(),
                Ok(Ok(())) | Err(_) => anyhow::anyhow!("the core thread ended unexpectedly"),
            },
            // Closed only when all of them have ended, at a stop.
            Some(task) = self.panicked.recv() => anyhow::anyhow!("the {task} panicked; the log has the details"),
        }
    }

    /// After a failure: lets callers who wait hear of it, and ends what is under way. What was acknowledged is
    /// in the store.
    pub async fn abandon(self) {
        self.stop_listening.cancel();
        self.attempts.abandon.cancel();
        if let Some((_, stop)) = &self.receiver {
            stop.cancel();
        }
        let listeners = async {
            for listener in self.listeners {
                // One that failed has nobody left to tell.
                let _ = listener.await;
            }
        };
        if tokio::time::timeout(FAILURE_GRACE, listeners).await.is_err() {
            tracing::warn!("some requests were dropped without a response");
        }
    }

    /// Stops accepting, lets what is under way finish within the grace time, hands the rest back to the
    /// store, and ends. Nothing that was acknowledged is lost.
    pub async fn stop(self) -> anyhow::Result<()> {
        let grace = self.app.config.shutdown_grace;
        self.stop_listening.cancel();
        crash_point("stop_begun");
        // If the core has ended already, waiting for it below says why.
        let _ = self.app.core.drain().await;
        crash_point("stop_drained");
        for listener in self.listeners {
            listener.await.context("the listener failed")?;
        }
        self.bulk_worker.await.context("the bulk action worker failed")?;
        self.use_keeper.await.context("the task that stores token uses failed")?;
        token_uses::save_last(&self.app).await;
        self.attempts.tracker.close();
        if tokio::time::timeout(grace, self.attempts.tracker.wait()).await.is_err() {
            let left = self.attempts.tracker.len();
            tracing::info!(attempts = left, "returning unfinished attempts to the store");
            self.attempts.abandon.cancel();
            self.attempts.tracker.wait().await;
        }
        crash_point("stop_attempts_ended");
        if let Some((receiver, stop)) = self.receiver {
            stop.cancel();
            receiver.await.context("the test receiver failed")?;
        }
        self.app.core.stop();
        match self.core_ended.await {
            Ok(result) => result.context("while stopping"),
            Err(_) => anyhow::bail!("the core thread ended unexpectedly"),
        }
    }
}

/// Notes under which addresses messages would come back: those of the listeners and of the public URL. Gives the first one.
async fn find_own_addresses(
    config: &mut Config,
    listeners: &[TcpListener],
    resolver: &dyn Resolve,
) -> anyhow::Result<SocketAddr> {
    let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>();
    let addresses = addresses.context("a listener has no address")?;
    let address = *addresses.first().context("there is no listener")?;
    config.egress.own_addrs.extend(addresses);
    find_public_addresses(config, resolver).await;
    Ok(address)
}

/// Looks up the addresses of the public URL: messages to them would come back. Without them the server starts all the same; those
/// messages are then recognised when they arrive.
async fn find_public_addresses(config: &mut Config, resolver: &dyn Resolve) {
    for (name, port) in &config.egress.own_hosts {
        match timeout(PUBLIC_URL_PATIENCE, resolver.resolve(name)).await {
            Ok(Ok(found)) if !found.is_empty() => {
                let addresses = found.into_iter().map(|address| SocketAddr::new(address.to_canonical(), *port));
                config.egress.public_addrs.extend(addresses);
            }
            _ => tracing::warn!(name, "the addresses of public_url cannot be looked up"),
        }
    }
}

/// The tasks without which there is no server.
struct Tasks {
    listeners: Vec<JoinHandle<()>>,
    bulk_worker: JoinHandle<()>,
    use_keeper: JoinHandle<()>,
    panicked: mpsc::UnboundedReceiver<&'static str>,
}

impl Tasks {
    fn spawn(app: &Arc<App>, site: &Arc<Site>, listeners: Vec<TcpListener>) -> Tasks {
        let (watch, panicked) = mpsc::unbounded_channel();
        let stop = &app.stopping;
        let serve = |listener| {
            let serving = http::serve(listener, site.clone(), Terms::of(&app.config), stop.clone());
            spawn_watched("listener", serving, watch.clone())
        };
        let listeners = listeners.into_iter().map(serve).collect();
        let bulk_worker = spawn_watched("worker of bulk actions", bulk::run(app.clone(), stop.clone()), watch.clone());
        let use_keeper = tokio::spawn(token_uses::run(app.clone(), stop.clone()));
        Tasks { listeners, bulk_worker, use_keeper, panicked }
    }
}

/// A task without which there is no server: its panic is reported.
fn spawn_watched(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
    watch: mpsc::UnboundedSender<&'static str>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        if caught(pin!(work)).await == Err(Panicked) {
            // A server that is being stopped listens no more, and ends anyway.
            let _ = watch.send(name);
        }
    })
}

/// The tokens of all tenants, with their last uses before the start.
fn load_tokens(store: &dyn Store, config: &Config) -> Result<(Tokens, Vec<(TenantId, SigningKeys)>), StoreError> {
    let (tokens, keys) = Tokens::load(store, &config.tenants)?;
    tokens.recall(&token_uses::read(&config.data_dir));
    Ok((tokens, keys))
}

/// The stored secrets, encrypted with the newest key if there is one.
fn load_secrets(
    store: &Arc<dyn Store>,
    config: &Config,
    configured: &[(TenantId, SigningKeys)],
    now: Timestamp,
) -> anyhow::Result<(Arc<Keys>, Credentials)> {
    let keys = Keys::load(store.clone(), config.encryption.clone(), config.mode, configured)?;
    let credentials = Credentials::new(config.encryption.clone());
    credentials.renew_stored(store.as_ref(), SHARD, now)?;
    Ok((Arc::new(keys), credentials))
}

/// The socket of the console's test receiver, which deliveries may reach.
async fn listen_for_tests(config: &mut Config) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the test receiver cannot listen")?;
    let address = listener.local_addr().context("the test receiver has no address")?;
    config.egress.receiver = Some(address);
    Ok((listener, address))
}

/// Starts the console's test receiver; the token ends it.
fn receive_tests(app: &Arc<App>, listener: TcpListener, inboxes: Arc<Inboxes>) -> (JoinHandle<()>, CancellationToken) {
    let (receiver, stop) = (Arc::new(Receiver { app: app.clone(), inboxes }), CancellationToken::new());
    // Its clients are our own deliveries.
    let terms = Terms { connections_per_address: CONNECTIONS_MAX, uncounted: Vec::new(), grace: FAILURE_GRACE };
    (tokio::spawn(http::serve(listener, receiver, terms, stop.clone())), stop)
}

/// What delivers messages, and what delivers those to the language model, if there is one.
fn deliverers(
    config: &Config,
    loop_mark: Option<LoopMark>,
    resolver: Arc<dyn Resolve>,
) -> Result<(Arc<Deliverer>, Option<Arc<Deliverer>>), ConfigError> {
    let delivery = DeliveryConfig {
        egress: config.egress.clone(),
        extra_ca_pem: config.egress_ca_pem.clone(),
        region: config.region.clone(),
        timeout_max: Duration::from_millis(config.quotas.timeout_ms),
        loop_mark,
        ..DeliveryConfig::default()
    };
    let to_llm = config.llm.clone();
    let to_llm = to_llm.map(|llm| DeliveryConfig { upstream: Some(llm), loop_mark: None, ..delivery.clone() });
    let llm = to_llm.map(|to_llm| Deliverer::new(to_llm, resolver.clone()).map(Arc::new)).transpose()?;
    Ok((Arc::new(Deliverer::new(delivery, resolver)?), llm))
}

/// The threads that deliver, as many as there are processors. They are not those that serve requests: threads that do both
/// hardly ever sleep when there is much to do, so that whoever wakes up interrupts one of them (`docs/decisions/0011`).
struct DeliveryThreads(Option<Runtime>);

impl DeliveryThreads {
    fn start() -> anyhow::Result<(DeliveryThreads, Handle)> {
        let runtime = runtime::Builder::new_multi_thread().thread_name("delivery").enable_all().build();
        let runtime = runtime.context("the runtime of the deliveries cannot be started")?;
        let handle = runtime.handle().clone();
        Ok((DeliveryThreads(Some(runtime)), handle))
    }
}

impl Drop for DeliveryThreads {
    /// Without waiting, which async code may not do. Whatever is still under way, after a failure, ends here; its message stays
    /// live and is attempted again.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The core blocks on the disk, so it has a thread of its own.
fn spawn_core(core: Core, running: Arc<AtomicBool>) -> anyhow::Result<oneshot::Receiver<Result<(), CoreFailure>>> {
    let (sender, receiver) = oneshot::channel();
    let body = move || {
        let result = caught_in(|| core.run()).unwrap_or(Err(CoreFailure::Panicked));
        running.store(false, Ordering::Release);
        drop(sender.send(result));
    };
    std::thread::Builder::new().name("core".to_owned()).spawn(body).context("the core thread cannot be started")?;
    Ok(receiver)
}
