//! The guarantee of the table: a request has its effect once, whatever dies at whatever moment.

use crate::crash::crash_after;
use crate::support::World as _;
use crate::support::postgres::Postgres;
use posthaste_kit::idempotency::LOCK_DEFAULT;
use posthaste_kit::idempotency::table::{Entry, IdempotencyTable, RequestHash, TableKey};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use sqlx::PgPool;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::task::yield_now;

/// Only the kit prevents the same effect from happening twice.
const EFFECTS: &str = "CREATE TABLE effects (message text NOT NULL, fence bigint NOT NULL)";

type Outcome = Result<Option<Vec<u8>>, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy, Debug)]
enum Form {
    /// Begun, done and completed in one transaction.
    OneTransaction,
    /// Begun in a transaction that commits before the work.
    TwoTransactions,
}

/// The code of a handler. Returns the response, or `None` if it has to retry later. It can die wherever it yields, even
/// if the responses of the server have already arrived.
async fn handle(pool: &PgPool, message: &str, form: Form) -> Outcome {
    let (table, key) = (IdempotencyTable::new(), TableKey::new("orders", "user_7", message));
    let request = RequestHash::of(message.as_bytes());
    yield_now().await;
    let mut transaction = pool.begin().await?;
    yield_now().await;
    let entry = match form {
        Form::OneTransaction => table.begin(&mut transaction, &key, request).await?,
        Form::TwoTransactions => {
            let entry = table.begin(&mut transaction, &key, request).await?;
            yield_now().await;
            transaction.commit().await?;
            yield_now().await;
            transaction = pool.begin().await?;
            entry
        }
    };
    yield_now().await;
    match entry {
        Entry::Claimed(claim) => {
            let (effect, fence) = ("INSERT INTO effects VALUES ($1, $2)", i64::try_from(claim.fence())?);
            sqlx::query(effect).bind(message).bind(fence).execute(&mut *transaction).await?;
            yield_now().await;
            claim.complete(&mut transaction, message.as_bytes()).await?;
            yield_now().await;
            transaction.commit().await?;
            yield_now().await;
            Ok(Some(message.as_bytes().to_vec()))
        }
        Entry::Completed(response) => Ok(Some(response)),
        Entry::UnderWay { .. } => Ok(None),
        entry => Err(format!("{entry:?}").into()),
    }
}

/// Checks that every message had its effect once.
async fn judge(postgres: &Postgres, messages: i64) {
    let counts = "SELECT count(*) FROM (SELECT message FROM effects GROUP BY message HAVING count(*) = 1) AS once";
    assert_eq!(postgres.count(counts).await, messages, "messages that had their effect once");
    assert_eq!(postgres.count("SELECT count(*) FROM effects").await, messages, "effects");
    let status = "SELECT count(*) FROM idempotency_keys WHERE status = 'completed'";
    assert_eq!(postgres.count(status).await, messages, "messages that are marked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_dies_at_any_await_has_its_effect_once() {
    let postgres = Postgres::start().await;
    postgres.run_sql(EFFECTS).await;
    let mut messages = 0;
    for form in [Form::OneTransaction, Form::TwoTransactions] {
        for polls in 0.. {
            let message = format!("{form:?}, dead after {polls}");
            let first = crash_after(polls, handle(&postgres.pool, &message, form)).await;
            let mut response = None;
            for _ in 0..100 {
                // A statement of the dead process may still be running in the server.
                response = handle(&postgres.pool, &message, form).await.unwrap();
                if response.is_some() {
                    break;
                }
                postgres.pass(LOCK_DEFAULT).await;
            }
            assert_eq!(response.as_deref(), Some(message.as_bytes()), "{message}");
            messages += 1;
            if let Some(outcome) = first {
                assert_eq!(outcome.unwrap().as_deref(), Some(message.as_bytes()));
                assert!(polls > 6, "a crash at each await means several: {polls}");
                break;
            }
        }
    }
    judge(&postgres, messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_handlers_that_die_anywhere_one_has_its_effect() {
    let postgres = Postgres::start().await;
    postgres.run_sql(EFFECTS).await;
    let mut random = TestRunner::deterministic();
    for round in 0..20 {
        let (message, form) =
            (format!("message {round}"), [Form::OneTransaction, Form::TwoTransactions][round as usize % 2]);
        for attempt in 0.. {
            assert!(attempt < 200, "nobody gets through");
            let mut handlers = tokio::task::JoinSet::new();
            for _ in 0..12 {
                let polls = (0..40_u32).new_tree(&mut random).unwrap().current();
                let (pool, message) = (postgres.pool.clone(), message.clone());
                handlers.spawn(async move { crash_after(polls, handle(&pool, &message, form)).await });
            }
            // A handler that was too slow gets an error and has no effect.
            let mut heard = handlers.join_all().await.into_iter().flatten().filter_map(Result::ok).flatten();
            if heard.any(|response| response == message.as_bytes()) {
                break;
            }
            postgres.pass(LOCK_DEFAULT).await;
        }
    }
    judge(&postgres, 20).await;
}

/// Handlers that never die, with a server that does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeatedly_killed_server_has_every_effect_once() {
    const MESSAGES: usize = 300;
    const KILLS: usize = 4;
    let mut postgres = Postgres::start().await;
    postgres.run_sql(EFFECTS).await;
    let (next, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let failures = Arc::new(AtomicUsize::new(0));
    let mut handlers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (pool, next, done) = (postgres.pool.clone(), Arc::clone(&next), Arc::clone(&done));
        let failures = Arc::clone(&failures);
        handlers.spawn(async move {
            // Every message is delivered twice, at about the same time.
            loop {
                let number = next.fetch_add(1, SeqCst);
                if number >= MESSAGES * 2 {
                    return;
                }
                let message = format!("message {}", number / 2);
                loop {
                    match handle(&pool, &message, Form::OneTransaction).await {
                        Ok(Some(response)) => break assert_eq!(response, message.as_bytes()),
                        Ok(None) => {}
                        Err(_) => drop(failures.fetch_add(1, SeqCst)),
                    }
                    yield_now().await;
                }
                done.fetch_add(1, SeqCst);
            }
        });
    }
    for kill in 1..=KILLS {
        crate::support::wait::until("progress", || async {
            let done = done.load(SeqCst);
            if done >= MESSAGES * 2 * kill / (KILLS + 1) { Ok(()) } else { Err(format!("{done} are done")) }
        })
        .await;
        postgres.kill().await;
        postgres.run().await;
    }
    handlers.join_all().await;
    assert!(failures.load(SeqCst) > 0, "nobody noticed that the server was killed");
    judge(&postgres, MESSAGES as i64).await;
}
