//! The suite on a real Redis.

use crate::support::acquired;
use crate::support::redis::Redis;
use crate::{conformance, crash, property};
use posthaste_kit::idempotency::redis::RedisStore;
use posthaste_kit::idempotency::{Begun, IdempotencyStore as _, KEEP_DEFAULT, LOCK_DEFAULT};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Client, Cmd, Pipeline, RedisFuture, Value, cmd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[tokio::test]
async fn conforms() {
    conformance::all(&Redis::start().await).await;
}

#[test]
fn matches_the_model() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = runtime.block_on(Redis::start());
    property::check(&redis, runtime.handle(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_crashes_at_every_await() {
    crash::all(&Redis::start().await).await;
}

#[tokio::test]
async fn conforms_when_replicas_must_confirm() {
    let redis = Redis::start().await;
    let replica = redis.replica_of().await;
    let store = redis.store().replicas(1, Duration::from_secs(5));
    let lease = acquired(store.begin("replicated", LOCK_DEFAULT).await);
    let (name, value) = (Redis::name("replicated"), || async {
        replica.ask::<Option<String>>(cmd("GET").arg(Redis::name("replicated"))).await.unwrap_or_default()
    });
    assert_eq!(value().await.chars().next(), Some('u'), "the replica knows {name} before the holder does");
    assert!(store.complete(&lease, KEEP_DEFAULT).await.unwrap());
    assert_eq!(value().await.chars().next(), Some('d'));
}

/// A connection that counts its requests.
#[derive(Clone)]
struct Counting {
    inner: MultiplexedConnection,
    round_trips: Arc<AtomicU32>,
}

impl ConnectionLike for Counting {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        self.inner.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        self.inner.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

/// The store of a delivery, and its number of requests.
async fn counting(redis: &Redis) -> (RedisStore<Counting>, Arc<AtomicU32>) {
    let inner = Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let round_trips = Arc::new(AtomicU32::new(0));
    (RedisStore::new(Counting { inner, round_trips: Arc::clone(&round_trips) }), round_trips)
}

#[tokio::test]
async fn every_step_takes_one_round_trip() {
    let redis = Redis::start().await;
    let (store, round_trips) = counting(&redis).await;
    // This includes the first step: no script has to be loaded.
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    assert_eq!(round_trips.swap(0, Ordering::Relaxed), 1);
    assert!(store.extend(&lease, LOCK_DEFAULT).await.unwrap());
    assert_eq!(round_trips.swap(0, Ordering::Relaxed), 1);
    assert!(store.complete(&lease, KEEP_DEFAULT).await.unwrap());
    assert_eq!(round_trips.swap(0, Ordering::Relaxed), 1);
    let strict = store.replicas(0, Duration::from_millis(1));
    assert!(matches!(strict.begin("message", LOCK_DEFAULT).await.unwrap(), Begun::Done));
    assert_eq!(round_trips.swap(0, Ordering::Relaxed), 1, "waiting for replicas is in the same one");
}

#[cfg(feature = "testing")]
#[tokio::test]
async fn a_delivery_takes_four_round_trips_and_a_repeated_one_takes_three() {
    use posthaste_kit::job::{Job, JobHandler};
    use posthaste_kit::testing::{ManualClock, TestDelivery};
    use posthaste_kit::{Failure, Receiver};

    let redis = Redis::start().await;
    let (store, round_trips) = counting(&redis).await;
    let clock = ManualClock::new();
    let receiver =
        Receiver::for_development("sig_1", "sig_2").unwrap().at_base("https://app.example.com").clock(clock.clock());
    let jobs = JobHandler::json("count", receiver, Arc::new(store), |job: Job<bool>| async move {
        if job.payload { Ok(()) } else { Err(Failure::retryable("not yet")) }
    });
    let jobs = jobs.unwrap();
    let deliver = async |message: &str, body: &'static str| {
        let delivery = TestDelivery::to("https://app.example.com/jobs").message_id(message).body(body);
        let status = jobs.handle(delivery.sign("sig_1", clock.now())).await.status().as_u16();
        (status, round_trips.swap(0, Ordering::Relaxed))
    };
    assert_eq!(deliver("msg_1", "true").await, (204, 4), "signature and lock, and a marker for each");
    assert_eq!(
        deliver("msg_1", "true").await,
        (204, 3),
        "it was done before: signature and lock, and the marker of the signature"
    );
    assert_eq!(deliver("msg_2", "false").await, (503, 3), "signature and lock, and the end of the lock");
    assert_eq!(deliver("msg_2", "malformed").await, (489, 3), "it is read under the lock");
}

#[tokio::test]
async fn stores_with_other_prefixes_have_other_keys() {
    let redis = Redis::start().await;
    acquired(redis.store().prefix("shop:").begin("message", LOCK_DEFAULT).await);
    acquired(redis.store().prefix("blog:").begin("message", LOCK_DEFAULT).await);
    let mut keys: Vec<String> = redis.ask(cmd("KEYS").arg("*")).await;
    keys.sort();
    assert_eq!(keys, ["blog:message", "shop:message"]);
}
