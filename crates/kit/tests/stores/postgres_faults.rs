//! The store on PostgreSQL while PostgreSQL fails: no work continues without a lock.

use crate::support::acquired;
use crate::support::faults::{answering, begins, fails_closed, invented};
use crate::support::postgres::Postgres;
use posthaste_kit::idempotency::postgres::PostgresStore;
use posthaste_kit::idempotency::{Begun, IdempotencyStore as _, KEEP_DEFAULT, LOCK_DEFAULT};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(1_500);

#[tokio::test]
async fn a_server_that_is_killed_forgets_nothing() {
    let mut postgres = Postgres::start().await;
    let store = postgres.store().timeout(TIMEOUT);
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    let done = acquired(store.begin("done", LOCK_DEFAULT).await);
    assert!(store.complete(&done, KEEP_DEFAULT).await.unwrap());
    postgres.kill().await;
    fails_closed(&store, &lease).await;
    postgres.run().await;
    let next = begins(&store, "next").await;
    assert!(next.fence > done.fence);
    assert!(matches!(store.begin("message", LOCK_DEFAULT).await.unwrap(), Begun::UnderWay { .. }));
    assert!(matches!(store.begin("done", LOCK_DEFAULT).await.unwrap(), Begun::Done));
    assert!(store.complete(&lease, KEEP_DEFAULT).await.unwrap());
}

#[tokio::test]
async fn a_stalled_server_fails_closed() {
    let postgres = Postgres::start().await;
    let store = postgres.store().timeout(TIMEOUT);
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    postgres.stop();
    for error in fails_closed(&store, &lease).await {
        assert!(error.is_timed_out(), "{error:?}");
    }
    postgres.go_on();
    begins(&store, "next").await;
}

#[tokio::test]
async fn a_locked_row_fails_within_the_time_limit() {
    let postgres = Postgres::start().await;
    let store = postgres.store().timeout(TIMEOUT);
    let lease = acquired(store.begin("another", LOCK_DEFAULT).await);
    let mut other = postgres.pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM idempotency_locks FOR UPDATE").execute(&mut *other).await.unwrap();
    for error in fails_closed(&store, &lease).await {
        assert!(error.is_timed_out(), "{error:?}");
    }
}

/// A dropped `Pool::begin` leaves a connection in this state.
#[tokio::test]
async fn a_connection_in_a_forgotten_transaction_does_no_harm() {
    let postgres = Postgres::start().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&postgres.url()).await.unwrap();
    let store = PostgresStore::new(pool.clone());
    let forget = || async { sqlx::raw_sql("BEGIN").execute(&pool).await.unwrap() };
    forget().await;
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    let count = "SELECT count(*) FROM idempotency_locks WHERE is_done =";
    assert_eq!(postgres.count(format!("{count} false")).await, 1, "others have to see it");
    forget().await;
    assert!(store.complete(&lease, KEEP_DEFAULT).await.unwrap());
    assert_eq!(postgres.count(format!("{count} true")).await, 1);
}

#[tokio::test]
async fn a_read_only_replica_fails_closed() {
    let standby = Postgres::standby().await;
    for error in fails_closed(&standby.store().timeout(TIMEOUT), &invented()).await {
        assert!(error.is_unavailable(), "{error:?}");
    }
}

#[tokio::test]
async fn missing_or_incompatible_tables_fail_closed() {
    let postgres = Postgres::start().await;
    let store = postgres.store().timeout(TIMEOUT);
    let lease = acquired(store.begin("message", LOCK_DEFAULT).await);
    let others = [
        "DROP TABLE idempotency_locks",
        "CREATE TABLE idempotency_locks (key text PRIMARY KEY)",
        "DROP TABLE idempotency_locks;
        CREATE TABLE idempotency_locks (key int PRIMARY KEY, token text, fence text, is_done int, until text)",
        "DROP TABLE idempotency_locks;
        CREATE VIEW idempotency_locks AS
        SELECT ''::text AS key, ''::bytea AS token, 1::bigint AS fence, false AS is_done, now() AS until",
    ];
    for other in others {
        postgres.run_sql(other).await;
        for error in fails_closed(&store, &lease).await {
            assert!(error.is_unavailable() || error.is_malformed(), "{other}: {error:?}");
        }
    }
}

#[tokio::test]
async fn an_invalid_fence_fails_closed() {
    let postgres = Postgres::start().await;
    postgres.run_sql("ALTER SEQUENCE idempotency_fence MINVALUE -5 START -5 RESTART").await;
    let error = postgres.store().begin("message", LOCK_DEFAULT).await.unwrap_err();
    assert!(error.is_malformed(), "{error:?}");
}

#[tokio::test]
async fn malformed_responses_fail_closed() {
    let answers: [&'static [u8]; 6] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05X",
        b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I",
        b"E\0\0\0\x05\0",
        b"\0\0\0\0\0\0\0\0",
        b"R\xff\xff\xff\xff",
    ];
    let mut stores = tokio::task::JoinSet::new();
    for answer in answers {
        let port = answering(answer).await.port();
        let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port);
        let options = options.username("postgres").ssl_mode(PgSslMode::Disable);
        let store = PostgresStore::new(PgPoolOptions::new().connect_lazy_with(options)).timeout(TIMEOUT);
        stores.spawn(async move { fails_closed(&store, &invented()).await });
    }
    stores.join_all().await;
}
