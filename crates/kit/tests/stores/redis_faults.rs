//! The store on Redis while Redis fails: no work continues without a lock.

use crate::support::acquired;
use crate::support::faults::{answering, begins, fails_closed, invented};
use crate::support::redis::Redis;
use crate::support::wait::until;
use posthaste_kit::idempotency::redis::{RedisStore, TIMEOUT_DEFAULT};
use posthaste_kit::idempotency::{Begun, IdempotencyStore as _, KEEP_DEFAULT, LOCK_DEFAULT, StoreError};
use redis::cmd;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[tokio::test]
async fn a_killed_server_fails_closed_until_it_is_back() {
    let mut redis = Redis::start().await;
    let store = redis.store();
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    redis.kill().await;
    fails_closed(&store, &lease).await;
    redis.run().await;
    begins(&store, "next").await;
    // It restarted empty, because Redis cannot guarantee more. At least the holder learns of it.
    assert!(!store.extend(&lease, LOCK_DEFAULT).await.unwrap());
}

#[tokio::test]
async fn a_store_can_be_made_before_its_server_runs() {
    let mut redis = Redis::start().await;
    redis.kill().await;
    let store = redis.store();
    assert!(store.begin("message", LOCK_DEFAULT).await.is_err());
    redis.run().await;
    begins(&store, "message").await;
}

#[tokio::test]
async fn a_stalled_server_fails_closed() {
    let redis = Redis::start().await;
    let store = redis.store();
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    redis.stop();
    for error in fails_closed(&store, &lease).await {
        assert!(error.is_timed_out(), "{error:?}");
    }
    redis.go_on();
    begins(&store, "next").await;
    // The first step was sent and took effect when the server continued: the outcome of a failed step is unknown.
    assert!(matches!(store.begin("another", LOCK_DEFAULT).await.unwrap(), Begun::UnderWay { .. }));
}

/// A proxy between a store and its Redis. When it is cut, existing connections stay open but carry no data, as when a
/// firewall forgets them. New connections work.
struct Cable {
    url: String,
    cut: watch::Sender<()>,
}

impl Cable {
    async fn to(redis: &Redis) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let (cut, cuts) = watch::channel(());
        let server = redis.url().replace("redis://", "");
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut far = TcpStream::connect(&server).await.unwrap();
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        Ok(()) = cuts.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Cable { url, cut }
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_off_silently_is_replaced() {
    let redis = Redis::start().await;
    let cable = Cable::to(&redis).await;
    for store in [
        RedisStore::connect(&cable.url).unwrap(),
        RedisStore::connect(&cable.url).unwrap().replicas(0, Duration::from_millis(1)),
    ] {
        let lease = begins(&store, "message").await;
        cable.cut.send(()).unwrap();
        assert!(store.begin("lost", LOCK_DEFAULT).await.unwrap_err().is_timed_out());
        assert!(store.release(&lease).await.unwrap(), "one step is lost, and no more");
    }
}

/// With a password that the server does not accept yet.
#[tokio::test]
async fn a_refused_connection_is_retried() {
    let redis = Redis::start().await;
    let store = RedisStore::connect(&redis.url().replace("redis://", "redis://:sesame@")).unwrap();
    for _ in 0..2 {
        assert!(store.begin("message", LOCK_DEFAULT).await.unwrap_err().is_unavailable());
    }
    redis.ask::<()>(cmd("CONFIG").arg("SET").arg("requirepass").arg("sesame")).await;
    begins(&store, "message").await;
}

#[tokio::test]
async fn a_rejected_step_keeps_the_connection() {
    let redis = Redis::start().await;
    let store = redis.store();
    redis.ask::<()>(cmd("LPUSH").arg(Redis::name("odd")).arg("x")).await;
    let connections = || async {
        let info: String = redis.ask(cmd("INFO").arg("stats")).await;
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        line.parse::<u64>().unwrap()
    };
    begins(&store, "message").await;
    let before = connections().await;
    for _ in 0..3 {
        assert!(store.begin("odd", LOCK_DEFAULT).await.is_err());
    }
    assert_eq!(connections().await, before + 1, "the question itself is one");
}

#[tokio::test]
async fn a_flush_is_noticed_by_the_holder_and_completion_still_counts() {
    let redis = Redis::start().await;
    let store = redis.store();
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    redis.ask::<()>(&cmd("FLUSHALL")).await;
    assert!(!store.extend(&lease, LOCK_DEFAULT).await.unwrap());
    assert!(!store.release(&lease).await.unwrap());
    assert!(store.complete(&lease, KEEP_DEFAULT).await.unwrap());
    assert!(matches!(store.begin("message", LOCK_DEFAULT).await.unwrap(), Begun::Done));

    let lease = acquired(store.begin("taken over", LOCK_DEFAULT).await);
    redis.ask::<()>(&cmd("FLUSHALL")).await;
    acquired(store.begin("taken over", LOCK_DEFAULT).await);
    assert!(!store.complete(&lease, KEEP_DEFAULT).await.unwrap());
}

#[tokio::test]
async fn a_value_of_another_type_fails_closed() {
    let redis = Redis::start().await;
    let store = redis.store();
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    for name in [Redis::name("message"), Redis::name("another")] {
        redis.ask::<()>(cmd("DEL").arg(&name)).await;
        redis.ask::<()>(cmd("LPUSH").arg(&name).arg("x")).await;
    }
    for error in fails_closed(&store, &lease).await {
        assert!(error.is_unavailable(), "{error:?}");
    }
    for value in ["", "1", "true", "u", "unlocked", "done"] {
        redis.ask::<()>(cmd("SET").arg(Redis::name("another")).arg(value).arg("EX").arg(60)).await;
        let error = store.begin("another", LOCK_DEFAULT).await.expect_err(value);
        assert!(error.is_malformed(), "{value:?}: {error:?}");
    }
    let endless = acquired(store.begin("endless", LOCK_DEFAULT).await);
    redis.ask::<()>(cmd("PERSIST").arg(Redis::name("endless"))).await;
    assert!(store.begin("endless", LOCK_DEFAULT).await.unwrap_err().is_malformed());
    assert!(store.complete(&endless, KEEP_DEFAULT).await.unwrap(), "its holder may finish");
}

#[tokio::test]
async fn a_read_only_replica_fails_closed() {
    let redis = Redis::start().await;
    let lease = acquired(redis.store().begin("message", LOCK_DEFAULT).await);
    let replica = redis.replica_of().await;
    for error in fails_closed(&replica.store(), &lease).await {
        assert!(error.is_unavailable(), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_without_memory_rejects_new_keys() {
    let redis = Redis::start().await;
    let store = redis.store();
    redis.ask::<()>(cmd("CONFIG").arg("SET").arg("maxmemory").arg("1")).await;
    assert!(store.begin("message", LOCK_DEFAULT).await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn too_few_replicas_fail_closed() {
    let redis = Redis::start().await;
    let lease = acquired(redis.store().begin("message", LOCK_DEFAULT).await);
    let store = redis.store().replicas(1, Duration::from_millis(50));
    let error = store.begin("unheard of", LOCK_DEFAULT).await.unwrap_err();
    assert!(error.is_unavailable());
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "only 0 of 1 replicas have the write");
    redis.ask::<()>(cmd("CONFIG").arg("SET").arg("min-replicas-to-write").arg("1")).await;
    let errors = fails_closed(&redis.store(), &lease).await;
    assert!(errors.iter().all(StoreError::is_unavailable));
}

/// Tests a statement of the documentation, so that a change is noticed.
#[tokio::test]
async fn a_failover_grants_a_lock_twice_unless_replicas_must_confirm() {
    let mut redis = Redis::start().await;
    let replica = redis.replica_of().await;
    // The link between them breaks.
    replica.ask::<()>(cmd("REPLICAOF").arg("127.0.0.1").arg(1)).await;
    until("the end of the link", || async {
        let info: String = redis.ask(cmd("INFO").arg("replication")).await;
        if info.contains("connected_slaves:0") { Ok(()) } else { Err(info) }
    })
    .await;
    let strict = redis.store().replicas(1, Duration::from_millis(50));
    assert!(strict.begin("strict", LOCK_DEFAULT).await.is_err(), "who asks hears of it");
    acquired(redis.store().begin("message", LOCK_DEFAULT).await);
    redis.kill().await;
    replica.ask::<()>(cmd("REPLICAOF").arg("NO").arg("ONE")).await;
    acquired(replica.store().begin("message", LOCK_DEFAULT).await);
}

#[tokio::test]
async fn malformed_responses_fail_closed() {
    let answers: [&'static [u8]; 18] = [
        b"+OK\r\n",
        b"+QUEUED\r\n",
        b":7\r\n",
        b":-1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*1\r\n:1\r\n",
        b"*2\r\n$0\r\n\r\n:9\r\n",
        b"*2\r\n$3\r\nxyz\r\n:9\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
        b"-NOSCRIPT No matching script\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        b"$9999999999\r\nx",
        b"\r\n\r\n\0\0\0",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    let mut stores = tokio::task::JoinSet::new();
    for answer in answers {
        let url = format!("redis://{}", answering(answer).await);
        let store = RedisStore::connect(&url).unwrap().timeout(TIMEOUT_DEFAULT / 4);
        stores.spawn(async move { fails_closed(&store, &invented()).await });
    }
    stores.join_all().await;
}
