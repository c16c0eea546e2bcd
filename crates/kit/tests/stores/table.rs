//! The table `idempotency_keys`, in transactions of the caller.

use crate::support::World as _;
use crate::support::postgres::Postgres;
use posthaste_kit::idempotency::table::{
    Claim, Entry, IdempotencyTable, RESPONSE_BYTES_MAX, RequestHash, TableError, TableKey,
};
use posthaste_kit::idempotency::{BusinessKey, KEEP_DEFAULT, LOCK_DEFAULT};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::time::Duration;

static TABLE: IdempotencyTable = IdempotencyTable::new();
const SLACK: Duration = Duration::from_secs(20);

fn key(name: &str) -> TableKey {
    TableKey::from(&BusinessKey::new("billing", "user_7", name, "pay", "v1").unwrap())
}

fn request(body: &str) -> RequestHash {
    RequestHash::of(body.as_bytes())
}

#[track_caller]
fn claimed(entry: Result<Entry, TableError>) -> Claim {
    match entry {
        Ok(Entry::Claimed(claim)) => claim,
        other => panic!("not claimed: {other:?}"),
    }
}

#[tokio::test]
async fn effect_and_mark_commit_together_or_not_at_all() {
    let postgres = Postgres::start().await;
    postgres.run_sql("CREATE TABLE effects (name text)").await;
    for is_committed in [false, true] {
        let mut transaction = postgres.pool.begin().await.unwrap();
        let claim = claimed(TABLE.begin(&mut transaction, &key("a"), request("1")).await);
        sqlx::query("INSERT INTO effects VALUES ('a')").execute(&mut *transaction).await.unwrap();
        claim.complete(&mut transaction, b"paid").await.unwrap();
        if is_committed {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }
    assert_eq!(postgres.count("SELECT count(*) FROM effects").await, 1);
    let mut transaction = postgres.pool.begin().await.unwrap();
    let entry = TABLE.begin(&mut transaction, &key("a"), request("1")).await.unwrap();
    assert!(matches!(entry, Entry::Completed(response) if response == b"paid"));
}

#[tokio::test]
async fn a_key_belongs_to_one_request_of_one_user() {
    let postgres = Postgres::start().await;
    let mut connection = postgres.pool.acquire().await.unwrap();
    let [mine, yours] = ["user_1", "user_2"].map(|user| TableKey::new("billing", user, "the same key"));
    let claim = claimed(TABLE.begin(&mut connection, &mine, request("1")).await);
    assert!(matches!(TABLE.begin(&mut connection, &mine, request("2")).await.unwrap(), Entry::OtherRequest));
    claim.complete(&mut connection, b"secret").await.unwrap();
    assert!(matches!(TABLE.begin(&mut connection, &mine, request("2")).await.unwrap(), Entry::OtherRequest));
    claimed(TABLE.begin(&mut connection, &yours, request("1")).await);
    claimed(TABLE.begin(&mut connection, &TableKey::new("blog", "user_1", "the same key"), request("1")).await);
}

#[tokio::test]
async fn a_request_in_an_open_transaction_is_in_progress_for_others_without_waiting() {
    let postgres = Postgres::start().await;
    let (mut first, mut second) = (postgres.pool.begin().await.unwrap(), postgres.pool.begin().await.unwrap());
    let claim = claimed(TABLE.begin(&mut first, &key("a"), request("1")).await);
    // If it waited, it would wait forever.
    let (other, again) = (key("a"), request("1"));
    let begin = tokio::time::timeout(SLACK, TABLE.begin(&mut second, &other, again));
    let entry = begin.await.expect("it waits").unwrap();
    assert_eq!(entry.problem().unwrap().status, 409);
    claim.complete(&mut first, b"paid").await.unwrap();
    assert!(matches!(TABLE.begin(&mut second, &key("a"), request("1")).await.unwrap(), Entry::UnderWay { .. }));
    first.commit().await.unwrap();
    assert!(matches!(
        TABLE.begin(&mut second, &key("a"), request("1")).await.unwrap(),
        Entry::Completed(response) if response == b"paid"
    ));
}

#[tokio::test]
async fn a_claim_that_was_taken_over_cannot_commit() {
    let postgres = Postgres::start().await;
    postgres.run_sql("CREATE TABLE effects (name text)").await;
    let mut connection = postgres.pool.acquire().await.unwrap();
    let slow = claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    let Entry::UnderWay { retry_after } = TABLE.begin(&mut connection, &key("a"), request("1")).await.unwrap() else {
        panic!("claimed twice")
    };
    assert!(retry_after <= LOCK_DEFAULT && retry_after > LOCK_DEFAULT - SLACK);
    postgres.pass(LOCK_DEFAULT).await;
    assert!(matches!(TABLE.begin(&mut connection, &key("a"), request("2")).await.unwrap(), Entry::OtherRequest));
    let next = claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    assert!(next.fence() > slow.fence());
    let mut transaction = postgres.pool.begin().await.unwrap();
    sqlx::query("INSERT INTO effects VALUES ('slow')").execute(&mut *transaction).await.unwrap();
    let error = slow.complete(&mut transaction, b"slow").await.unwrap_err();
    assert!(error.is_lost() && !error.is_unavailable() && !error.is_response());
    drop(transaction);
    next.complete(&mut connection, b"next").await.unwrap();
    assert_eq!(postgres.count("SELECT count(*) FROM effects").await, 0);
}

#[tokio::test]
async fn a_late_claim_without_rivals_can_commit_and_extending_keeps_rivals_away() {
    let postgres = Postgres::start().await;
    let mut connection = postgres.pool.acquire().await.unwrap();
    let claim = claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    postgres.pass(LOCK_DEFAULT - SLACK).await;
    claim.extend(&mut connection, LOCK_DEFAULT).await.unwrap();
    postgres.pass(LOCK_DEFAULT - SLACK).await;
    let entry = TABLE.begin(&mut connection, &key("a"), request("1")).await.unwrap();
    assert!(matches!(entry, Entry::UnderWay { .. }));
    postgres.pass(LOCK_DEFAULT).await;
    claim.complete(&mut connection, b"late").await.unwrap();
    let entry = TABLE.begin(&mut connection, &key("a"), request("1")).await.unwrap();
    assert!(matches!(entry, Entry::Completed(response) if response == b"late"));
}

#[tokio::test]
async fn failures_are_stored_or_retried_as_the_handler_chooses() {
    let postgres = Postgres::start().await;
    let mut connection = postgres.pool.acquire().await.unwrap();
    let claim = claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    claim.release(&mut connection).await.unwrap();
    assert!(matches!(TABLE.begin(&mut connection, &key("a"), request("2")).await.unwrap(), Entry::OtherRequest));
    let claim = claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    claim.fail(&mut connection, "no such\0card").await.unwrap();
    let entry = TABLE.begin(&mut connection, &key("a"), request("1")).await.unwrap();
    assert!(matches!(entry, Entry::Failed(error) if error == "no such card"));
    let status =
        "SELECT count(*) FROM idempotency_keys WHERE status = 'failed' AND domain = 'billing' AND user_id = 'user_7'";
    assert_eq!(postgres.count(status).await, 1);
}

#[tokio::test]
async fn rows_expire_and_are_pruned_later() {
    let postgres = Postgres::start().await;
    let mut connection = postgres.pool.acquire().await.unwrap();
    let claim = claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    claim.complete_json(&mut connection, &["paid"]).await.unwrap();
    postgres.pass(KEEP_DEFAULT - SLACK).await;
    let entry = TABLE.begin(&mut connection, &key("a"), request("1")).await.unwrap();
    assert!(matches!(entry, Entry::Completed(response) if response == br#"["paid"]"#));
    postgres.pass(SLACK).await;
    claimed(TABLE.begin(&mut connection, &key("a"), request("2")).await);
    postgres.pass(KEEP_DEFAULT + Duration::from_secs(3_500)).await;
    assert_eq!(TABLE.prune(&mut connection, 10).await.unwrap(), 0);
    postgres.pass(Duration::from_secs(101)).await;
    assert_eq!(TABLE.prune(&mut connection, 10).await.unwrap(), 1);
}

#[tokio::test]
async fn responses_have_a_limit() {
    let postgres = Postgres::start().await;
    let mut connection = postgres.pool.acquire().await.unwrap();
    let claim = claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    claim.complete(&mut connection, &vec![0; RESPONSE_BYTES_MAX]).await.unwrap();
    let claim = claimed(TABLE.begin(&mut connection, &key("b"), request("1")).await);
    let error = claim.complete(&mut connection, &vec![0; RESPONSE_BYTES_MAX + 1]).await.unwrap_err();
    assert!(error.is_response());
    assert_eq!(error.to_string(), "the response has 1048577 bytes, at most 1048576 are allowed");
}

#[tokio::test]
async fn malformed_rows_and_missing_tables_fail_closed() {
    let postgres = Postgres::start().await;
    let mut connection = postgres.pool.acquire().await.unwrap();
    claimed(TABLE.begin(&mut connection, &key("a"), request("1")).await);
    let spoil = "ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_status_check;
        UPDATE idempotency_keys SET status = 'perhaps'";
    let steps = [spoil, "UPDATE idempotency_keys SET status = 'completed'", "DROP TABLE idempotency_keys"];
    for step in steps {
        postgres.run_sql(step).await;
        let error = TABLE.begin(&mut connection, &key("a"), request("1")).await.expect_err(step);
        assert!(error.is_unavailable(), "{step}: {error:?}");
    }
}

/// The expected state of one key; times in seconds.
#[derive(Clone, Copy, Debug)]
struct Expected {
    status: Status,
    request: u8,
    /// The number of the claim that may complete it.
    claim: usize,
    locked_until: u64,
    expires_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Status {
    Processing,
    Completed,
    Failed,
}

#[derive(Clone, Debug)]
enum Step {
    Begin {
        request: u8,
    },
    /// By the n-th last claim.
    Complete {
        back: usize,
    },
    Fail {
        back: usize,
    },
    Release {
        back: usize,
    },
    Extend {
        back: usize,
    },
    PassLock,
    PassKeep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..2_u8).prop_map(|request| Step::Begin { request }),
        2 => (0..3_usize).prop_map(|back| Step::Complete { back }),
        1 => (0..3_usize).prop_map(|back| Step::Fail { back }),
        2 => (0..3_usize).prop_map(|back| Step::Release { back }),
        2 => (0..3_usize).prop_map(|back| Step::Extend { back }),
        3 => Just(Step::PassLock),
        1 => Just(Step::PassKeep),
    ];
    prop::collection::vec(step, 1..30)
}

/// Each step runs in its own transaction, and is compared with a small model.
#[test]
fn matches_its_model() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let postgres = runtime.block_on(Postgres::start());
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let case = std::sync::atomic::AtomicU32::new(0);
    let outcome = TestRunner::new(config).run(&steps(), |steps| {
        let case = case.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        runtime.block_on(run(&postgres, &steps, &key(&format!("case_{case}"))))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

async fn run(postgres: &Postgres, steps: &[Step], key: &TableKey) -> Result<(), TestCaseError> {
    let mut connection = postgres.pool.acquire().await.unwrap();
    let (mut expected, mut now) = (None::<Expected>, 0);
    // Claims are used up; their numbers stay.
    let mut claims: Vec<Option<Claim>> = Vec::new();
    for step in steps {
        match *step {
            Step::Begin { request } => {
                let entry = TABLE.begin(&mut connection, key, RequestHash::of(&[request])).await.unwrap();
                let seen = format!("{entry:?}");
                prop_assert!(is_right(expected, now, request, &entry), "{} instead of {:?} at {}", seen, expected, now);
                if let Entry::Claimed(claim) = entry {
                    let (locked_until, expires_at) = (now + LOCK_DEFAULT.as_secs(), now + KEEP_DEFAULT.as_secs());
                    let (status, number) = (Status::Processing, claims.len());
                    expected = Some(Expected { status, request, claim: number, locked_until, expires_at });
                    claims.push(Some(claim));
                }
            }
            Step::PassLock | Step::PassKeep => {
                let time = if matches!(step, Step::PassLock) { LOCK_DEFAULT } else { KEEP_DEFAULT };
                postgres.pass(time).await;
                now += time.as_secs();
            }
            Step::Complete { back } | Step::Fail { back } | Step::Release { back } | Step::Extend { back } => {
                let Some(number) = claims.len().checked_sub(back + 1) else { continue };
                let Some(claim) = claims[number].take() else { continue };
                let held = expected.as_mut().filter(|row| row.claim == number && row.status == Status::Processing);
                let response = [held.as_ref().map_or(9, |row| row.request)];
                let outcome = match step {
                    Step::Complete { .. } => claim.complete(&mut connection, &response).await,
                    Step::Fail { .. } => claim.fail(&mut connection, "no").await,
                    Step::Release { .. } => claim.release(&mut connection).await,
                    _ => {
                        let outcome = claim.extend(&mut connection, LOCK_DEFAULT).await;
                        claims[number] = Some(claim);
                        outcome
                    }
                };
                let is_lost = outcome.as_ref().is_err_and(TableError::is_lost);
                prop_assert!(outcome.is_ok() || is_lost, "{:?}", outcome);
                prop_assert_eq!(is_lost, held.is_none(), "{:?} by claim {}", step, number);
                if let Some(row) = held {
                    row.finish(step, now);
                }
            }
        }
    }
    Ok(())
}

/// Whether this entry is correct for a request that begins.
fn is_right(expected: Option<Expected>, now: u64, request: u8, entry: &Entry) -> bool {
    let Some(row) = expected.filter(|row| now < row.expires_at) else { return matches!(entry, Entry::Claimed(_)) };
    match (row.status, entry) {
        _ if row.request != request => matches!(entry, Entry::OtherRequest),
        (Status::Processing, Entry::Claimed(_)) => now >= row.locked_until,
        (Status::Processing, Entry::UnderWay { .. }) => now < row.locked_until,
        (Status::Completed, Entry::Completed(response)) => *response == [row.request],
        (Status::Failed, Entry::Failed(error)) => error == "no",
        _ => false,
    }
}

impl Expected {
    /// Applies the step of a holder.
    fn finish(&mut self, step: &Step, now: u64) {
        match step {
            Step::Complete { .. } => {
                (self.status, self.expires_at) = (Status::Completed, now + KEEP_DEFAULT.as_secs());
            }
            Step::Fail { .. } => (self.status, self.expires_at) = (Status::Failed, now + KEEP_DEFAULT.as_secs()),
            Step::Release { .. } => self.locked_until = now,
            _ => {
                self.locked_until = now + LOCK_DEFAULT.as_secs();
                self.expires_at = self.expires_at.max(self.locked_until);
            }
        }
    }
}
