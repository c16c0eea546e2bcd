//! The suite on a real PostgreSQL.

use crate::support::acquired;
use crate::support::postgres::Postgres;
use crate::{conformance, crash, property};
use posthaste_kit::idempotency::postgres::create_tables;
use posthaste_kit::idempotency::{Begun, IdempotencyStore as _, KEEP_DEFAULT, LOCK_DEFAULT};
use sqlx::{Connection as _, PgConnection};
use std::time::Duration;

#[tokio::test]
async fn conforms() {
    conformance::all(&Postgres::start().await).await;
}

#[test]
fn matches_the_model() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let postgres = runtime.block_on(Postgres::start());
    property::check(&postgres, runtime.handle(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_crashes_at_every_await() {
    crash::all(&Postgres::start().await).await;
}

#[tokio::test]
async fn tables_can_be_created_concurrently_and_repeatedly() {
    let postgres = Postgres::start().await;
    postgres.run_sql("DROP TABLE idempotency_keys, idempotency_locks; DROP SEQUENCE idempotency_fence").await;
    let mut services = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = postgres.url();
        services.spawn(async move {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            create_tables(&mut connection).await.unwrap();
        });
    }
    services.join_all().await;
    acquired(postgres.store().begin("message", LOCK_DEFAULT).await);
}

#[tokio::test]
async fn rows_are_pruned_an_hour_after_they_expire() {
    let postgres = Postgres::start().await;
    let store = postgres.store();
    for key in ["abandoned 1", "abandoned 2", "abandoned 3"] {
        acquired(store.begin(key, Duration::from_secs(1)).await);
    }
    let done = acquired(store.begin("done", LOCK_DEFAULT).await);
    assert!(store.complete(&done, KEEP_DEFAULT).await.unwrap());
    let age = "UPDATE idempotency_locks SET until = until - interval";
    postgres.run_sql(format!("{age} '59 minutes'")).await;
    assert_eq!(store.prune(100).await.unwrap(), 0, "an insert may still wait for one of them");
    postgres.run_sql(format!("{age} '2 minutes'")).await;
    assert_eq!(store.prune(2).await.unwrap(), 2, "no more than the limit");
    assert_eq!(store.prune(100).await.unwrap(), 1);
    assert!(matches!(store.begin("done", LOCK_DEFAULT).await.unwrap(), Begun::Done));
}

/// An insert that waits for another one has already drawn its fence, and must not use it afterwards.
#[tokio::test]
async fn fences_grow_for_waiting_inserts_too() {
    let postgres = Postgres::start().await;
    let store = postgres.store();
    let mut other = postgres.pool.begin().await.unwrap();
    let insert = "INSERT INTO idempotency_locks VALUES ('key', '', 0, false, statement_timestamp())";
    sqlx::query(insert).execute(&mut *other).await.unwrap();
    let waiting = tokio::spawn(async move { store.begin("key", LOCK_DEFAULT).await });
    crate::support::wait::until("the wait of the insert", || async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let waits: i64 = sqlx::query_scalar(waits).fetch_one(&postgres.pool).await.unwrap();
        if waits > 0 { Ok(()) } else { Err("it does not wait".to_owned()) }
    })
    .await;
    let raise = "UPDATE idempotency_locks SET fence = nextval('idempotency_fence') RETURNING fence";
    let between: i64 = sqlx::query_scalar(raise).fetch_one(&mut *other).await.unwrap();
    other.commit().await.unwrap();
    let lease = acquired(waiting.await.unwrap());
    assert!(lease.fence > u64::try_from(between).unwrap(), "{} was drawn before {between}", lease.fence);
}
