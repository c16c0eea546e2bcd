//! A store on PostgreSQL: one short transaction per step, using the clock of the database.
//!
//! Committed steps survive a crash (unless `synchronous_commit` is off) and, with synchronous replication, a failover.
//! Every lease has a [fence](Lease::fence) that grows. Two risks remain: if the database clock jumps forward, locks
//! expire early, and a holder that was paused does not know that its lock has expired. Both are harmless if you write
//! the fence next to the effect. If the effect is in the same database, the [table](super::table) does this for you.
//!
//! Set a `statement_timeout` on the connections, so that abandoned steps also end in the database.

use super::{Begun, IdempotencyStore, Lease, StoreError, StoreFuture, millis, storable, token};
use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres, Row as _};
use std::fmt;
use std::future::Future;
use std::time::Duration;

/// Default time limit of a step, including the wait for a connection. After that the work must not continue.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// The SQL that creates the objects for the store and the table, for your own migrations.
pub const SCHEMA: &str = include_str!("schema.sql");

/// Rows are pruned this long after they expire. Not immediately, because a waiting insert has already drawn its fence.
const PRUNE_AFTER_S: i32 = 3_600;

/// The advisory lock under which the tables are created, so that services that start together do not conflict.
const CREATE_LOCK: i64 = 0x706f_7374_6861_7374;

/// `statement_timestamp()` is constant within a statement and never later than the current time. A statement that
/// waited for a row therefore takes nothing that was extended in the meantime.
const BEGIN: &str = "
INSERT INTO idempotency_locks AS held (key, token, fence, is_done, until)
VALUES ($1, $2, nextval('idempotency_fence'), false, statement_timestamp() + $3 * interval '1 millisecond')
ON CONFLICT (key) DO UPDATE
SET token = excluded.token, fence = nextval('idempotency_fence'), is_done = false, until = excluded.until
WHERE held.until <= statement_timestamp()
RETURNING fence";

const LOOK: &str = "
SELECT is_done, greatest(0, ceil(extract(epoch FROM until - statement_timestamp()) * 1000))::bigint AS left_ms
FROM idempotency_locks WHERE key = $1";

const EXTEND: &str = "
UPDATE idempotency_locks SET until = statement_timestamp() + $3 * interval '1 millisecond'
WHERE key = $1 AND token = $2 AND NOT is_done AND until > statement_timestamp()";

const COMPLETE: &str = "
INSERT INTO idempotency_locks AS held (key, token, fence, is_done, until)
VALUES ($1, $2, $4, true, statement_timestamp() + $3 * interval '1 millisecond')
ON CONFLICT (key) DO UPDATE
SET token = excluded.token, fence = greatest(held.fence, excluded.fence), is_done = true, until = excluded.until
WHERE held.token = excluded.token OR held.until <= statement_timestamp()";

/// The row stays for a while; see `PRUNE_AFTER_S`.
const RELEASE: &str = "
UPDATE idempotency_locks SET until = statement_timestamp()
WHERE key = $1 AND token = $2 AND NOT is_done AND until > statement_timestamp()";

const PRUNE: &str = "
DELETE FROM idempotency_locks WHERE key IN (
    SELECT key FROM idempotency_locks WHERE until < statement_timestamp() - $1 * interval '1 second'
    ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED
)";

/// An idempotency store in PostgreSQL, in the table `idempotency_locks`.
///
/// ```no_run
/// use posthaste_kit::idempotency::postgres::{PostgresStore, create_tables};
/// use sqlx::PgPool;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PgPool::connect("postgres://localhost/shop").await?;
/// create_tables(&mut *pool.acquire().await?).await?;
/// let store = PostgresStore::new(pool);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pool: PgPool,
    timeout: Duration,
}

/// Creates the missing objects of [`SCHEMA`]. Several services can do this at the same time.
pub async fn create_tables(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(CREATE_LOCK).execute(&mut *transaction).await?;
    sqlx::raw_sql(SCHEMA).execute(&mut *transaction).await?;
    transaction.commit().await
}

impl PostgresStore {
    /// A store on this pool, in the first schema of its search path.
    pub fn new(pool: PgPool) -> PostgresStore {
        PostgresStore { pool, timeout: TIMEOUT_DEFAULT }
    }

    /// Sets the time limit of a step, including the wait for a connection.
    pub fn timeout(mut self, timeout: Duration) -> PostgresStore {
        self.timeout = timeout;
        self
    }

    /// Deletes up to `limit` rows that expired at least an hour ago; returns their number. Call it regularly.
    pub async fn prune(&self, limit: u32) -> Result<u64, StoreError> {
        self.within(self.run(sqlx::query(PRUNE).bind(PRUNE_AFTER_S).bind(i64::from(limit)))).await
    }

    async fn within<T>(&self, step: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, StoreError> {
        match tokio::time::timeout(self.timeout, step).await {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(StoreError::timed_out()),
        }
    }

    async fn take(&self, key: &str, token: [u8; 16], lock: Duration) -> Result<Begun, sqlx::Error> {
        let stored = storable(key);
        let mut step = Step::open(&self.pool).await?;
        let query = sqlx::query(BEGIN).bind(stored.as_ref()).bind(&token[..]).bind(length(lock));
        if let Some(row) = query.fetch_optional(&mut *step.connection).await? {
            let fence = unsigned(row.try_get(0)?)?;
            step.commit().await?;
            return Ok(Begun::Acquired(Lease { key: key.to_owned(), token, fence }));
        }
        let begun = match sqlx::query(LOOK).bind(stored.as_ref()).fetch_optional(&mut *step.connection).await? {
            Some(row) if row.try_get("is_done")? => Begun::Done,
            Some(row) => under_way(unsigned(row.try_get("left_ms")?)?),
            // It was held a moment ago.
            None => under_way(0),
        };
        step.commit().await?;
        Ok(begun)
    }

    /// Runs a statement and returns the number of changed rows.
    async fn run(&self, query: Statement) -> Result<u64, sqlx::Error> {
        let mut step = Step::open(&self.pool).await?;
        let rows = query.execute(&mut *step.connection).await?.rows_affected();
        step.commit().await?;
        Ok(rows)
    }

    /// Whether the statement changed the holder's row.
    async fn changes(&self, query: Statement) -> Result<bool, StoreError> {
        Ok(self.within(self.run(query)).await? > 0)
    }
}

/// A transaction for one step. Without one, a step could become part of another transaction that never commits. If
/// `Pool::begin` of sqlx 0.9 is dropped while it waits, for example with its request, the connection returns to the
/// pool although the server has begun a transaction. A step with its own begin and commit is not affected.
struct Step {
    connection: PoolConnection<Postgres>,
    is_committed: bool,
}

impl Step {
    async fn open(pool: &PgPool) -> Result<Step, sqlx::Error> {
        let mut step = Step { connection: pool.acquire().await?, is_committed: false };
        sqlx::raw_sql("BEGIN").execute(&mut *step.connection).await?;
        Ok(step)
    }

    async fn commit(mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("COMMIT").execute(&mut *self.connection).await?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for Step {
    /// An unfinished step closes its connection.
    fn drop(&mut self) {
        if !self.is_committed {
            self.connection.close_on_drop();
        }
    }
}

type Statement = sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments>;

/// A statement about the key of this holder.
fn of(lease: &Lease, statement: &'static str) -> Statement {
    sqlx::query(statement).bind(storable(&lease.key).into_owned()).bind(lease.token.to_vec())
}

impl IdempotencyStore for PostgresStore {
    fn begin<'a>(&'a self, key: &'a str, lock: Duration) -> StoreFuture<'a, Begun> {
        Box::pin(async move { self.within(self.take(key, token()?, lock)).await })
    }

    fn extend<'a>(&'a self, lease: &'a Lease, lock: Duration) -> StoreFuture<'a, bool> {
        Box::pin(self.changes(of(lease, EXTEND).bind(length(lock))))
    }

    fn complete<'a>(&'a self, lease: &'a Lease, keep: Duration) -> StoreFuture<'a, bool> {
        Box::pin(self.changes(of(lease, COMPLETE).bind(length(keep)).bind(signed(lease.fence))))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, bool> {
        Box::pin(self.changes(of(lease, RELEASE)))
    }
}

fn under_way(left_ms: u64) -> Begun {
    Begun::UnderWay { retry_after: Duration::from_millis(left_ms) }
}

/// A duration in the form that the statements take.
pub(super) fn length(time: Duration) -> i64 {
    signed(millis(time))
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Fences and times are never negative. A negative one was not written by the kit.
pub(super) fn unsigned(number: i64) -> Result<u64, sqlx::Error> {
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn failed(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::PoolTimedOut => StoreError::timed_out(),
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Protocol(_) => {
            StoreError::malformed(error)
        }
        error => StoreError::unavailable(error),
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
