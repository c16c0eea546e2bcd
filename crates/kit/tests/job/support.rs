//! A store that fails on demand, and a handler that counts its runs.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use posthaste_kit::idempotency::{Begun, IdempotencyStore, Lease, MemoryStore, StoreError, StoreFuture};
use posthaste_kit::job::{Job, JobHandler};
use posthaste_kit::problem::ResponseBody;
use posthaste_kit::testing::{ManualClock, TestDelivery};
use posthaste_kit::{HandlerResult, Receiver};
use serde_json::Value;
use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

pub(crate) const KEY: &str = "sig_current_canary_7f3a9c20d1";
pub(crate) const NEXT_KEY: &str = "sig_next_canary_91bce4a80f";
pub(crate) const BASE: &str = "https://app.example.com";
pub(crate) const URL: &str = "https://app.example.com/jobs/mail";

/// The fault of one step of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The store is unavailable.
    Down,
    /// The store never responds.
    Silent,
    /// The store reports that another holder has the key.
    Lost,
    /// The store panics.
    Panics,
}

/// The store of a test. It stores in memory, records the calls, and fails on demand.
#[derive(Default)]
pub(crate) struct TestStore {
    memory: MemoryStore,
    faults: Mutex<HashMap<&'static str, Fault>>,
    calls: Mutex<Vec<&'static str>>,
}

impl TestStore {
    pub(crate) fn fails(&self, step: &'static str, fault: Fault) {
        self.faults.lock().unwrap().insert(step, fault);
    }

    pub(crate) fn heals(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }

    /// Records the call and applies the fault. Returns `true` if the key is to be lost.
    async fn meet(&self, step: &'static str) -> Result<bool, StoreError> {
        self.calls.lock().unwrap().push(step);
        let fault = self.faults.lock().unwrap().get(step).copied();
        match fault {
            None => Ok(false),
            Some(Fault::Lost) => Ok(true),
            Some(Fault::Down) => Err(StoreError::unavailable("connection refused")),
            Some(Fault::Silent) => pending().await,
            Some(Fault::Panics) => panic!("the store is wrong"),
        }
    }
}

impl IdempotencyStore for TestStore {
    fn begin<'a>(&'a self, key: &'a str, lock: Duration) -> StoreFuture<'a, Begun> {
        Box::pin(async move {
            self.meet("begin").await?;
            self.memory.begin(key, lock).await
        })
    }

    fn extend<'a>(&'a self, lease: &'a Lease, lock: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(!self.meet("extend").await? && self.memory.extend(lease, lock).await?) })
    }

    fn complete<'a>(&'a self, lease: &'a Lease, keep: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(!self.meet("complete").await? && self.memory.complete(lease, keep).await?) })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(!self.meet("release").await? && self.memory.release(lease).await?) })
    }
}

/// How often a handler began, and how often it finished.
#[derive(Clone, Default)]
pub(crate) struct Witness {
    began: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Witness {
    pub(crate) fn begin(&self) {
        self.began.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn began(&self) -> usize {
        self.began.load(Ordering::SeqCst)
    }

    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A subscriber on every thread. Without it, a log line that is first reached on a thread without a subscriber would be
/// disabled, also for tests that need it.
static SUBSCRIBER: LazyLock<()> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
});

/// A handler and everything around it.
pub(crate) struct Harness {
    pub(crate) jobs: JobHandler<Value>,
    pub(crate) store: Arc<TestStore>,
    pub(crate) clock: ManualClock,
    pub(crate) witness: Witness,
}

impl Harness {
    /// A handler that runs this between its begin and its end.
    pub(crate) fn new<F, R>(work: F) -> Harness
    where
        F: Fn(Job<Value>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = HandlerResult> + Send + 'static,
    {
        LazyLock::force(&SUBSCRIBER);
        let (clock, store, witness) = (ManualClock::new(), Arc::new(TestStore::default()), Witness::default());
        let receiver = Receiver::new(KEY, NEXT_KEY).unwrap().at_base(BASE).clock(clock.clock());
        let seen = witness.clone();
        let jobs = JobHandler::json("mail", receiver, store.clone(), move |job| {
            let (seen, work) = (seen.clone(), work.clone());
            async move {
                seen.begin();
                let result = work(job).await;
                seen.end();
                result
            }
        });
        Harness { jobs: jobs.unwrap(), store, clock, witness }
    }

    /// A handler that succeeds immediately.
    pub(crate) fn good() -> Harness {
        Harness::new(|_| async { Ok(()) })
    }

    pub(crate) fn configure(self, change: impl FnOnce(JobHandler<Value>) -> JobHandler<Value>) -> Harness {
        Harness { jobs: change(self.jobs), ..self }
    }

    pub(crate) fn signed(&self, delivery: &TestDelivery) -> Request<Full<Bytes>> {
        delivery.sign(KEY, self.clock.now())
    }

    pub(crate) async fn deliver(&self, delivery: &TestDelivery) -> Answer {
        Answer::read(self.jobs.handle(self.signed(delivery)).await).await
    }

    /// Delivers in its own task.
    pub(crate) fn start(&self, delivery: &TestDelivery) -> tokio::task::JoinHandle<Answer> {
        let (jobs, request) = (self.jobs.clone(), self.signed(delivery));
        tokio::spawn(async move { Answer::read(jobs.handle(request).await).await })
    }
}

/// A message that the handler accepts.
pub(crate) fn message() -> TestDelivery {
    TestDelivery::to(URL).body(r#"{"to":"ada@example.com"}"#)
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn read(response: Response<ResponseBody>) -> Answer {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) fn problem(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        Some(self.headers.get("retry-after")?.to_str().unwrap().parse().unwrap())
    }

    pub(crate) fn is_final(&self) -> bool {
        self.headers.get("upstash-nonretryable-error").is_some_and(|value| value == "true")
    }
}

/// Takes time by Tokio's clock. Tests have paused it: it jumps as soon as no task can continue.
pub(crate) async fn takes(time: Duration) {
    tokio::time::sleep(time).await;
}
