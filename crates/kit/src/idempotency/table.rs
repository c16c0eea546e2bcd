//! A durable table of idempotency keys: the result of a request is committed **together with its effect**, in one
//! transaction of yours.
//!
//! Start at [`IdempotencyTable`]. There are two ways to use it:
//!
//! - *In one transaction* with the effect, if the effect is quick and happens in this database. Either both are
//!   committed or neither is, whatever crashes. Nothing can be done twice.
//! - *In two transactions*, if the work takes long or happens elsewhere: begin and commit, do the work, then complete
//!   in the transaction that stores the result. If another process has taken over meanwhile, the [fence](Claim::fence)
//!   is out of date and the transaction fails.
//!
//! If `COMMIT` returns an error, the outcome is not known. Begin again with the same key to find out.
//!
//! In both cases, begin and commit the transaction explicitly: a pooled connection of sqlx 0.9 may still be in an
//! abandoned transaction (whose `Pool::begin` was dropped while it waited), and uncommitted work in it is lost.

use super::postgres::{length, signed, unsigned};
use super::{BusinessKey, KEEP_DEFAULT, LOCK_DEFAULT, storable};
use crate::problem::Problem;
use http::StatusCode;
use serde::Serialize;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use std::time::Duration;

/// Maximum size of a stored response, in bytes. Completing with a longer one fails, and so must the transaction.
pub const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Maximum size of a stored error, in bytes. A longer one is cut.
pub const ERROR_BYTES_MAX: usize = 4_096;

/// When to retry if another transaction works on the request; it is not known how long that takes.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Rows are pruned this long after they expire. Not immediately, because a waiting insert has already drawn its fence.
const PRUNE_AFTER_S: i32 = 3_600;

/// Returns immediately where an insert would wait for the end of another transaction. It is only an optimization: the
/// row decides.
const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock($1)";

const BEGIN: &str = "
INSERT INTO idempotency_keys AS known
    (domain, user_id, key, status, request_hash, fence, locked_until, created_at, updated_at, expires_at)
VALUES ($1, $2, $3, 'processing', $4, nextval('idempotency_fence'),
    statement_timestamp() + $5 * interval '1 millisecond', statement_timestamp(), statement_timestamp(),
    statement_timestamp() + $6 * interval '1 millisecond')
ON CONFLICT (domain, user_id, key) DO UPDATE
SET status = 'processing', request_hash = excluded.request_hash, response = NULL, error = NULL,
    fence = nextval('idempotency_fence'), locked_until = excluded.locked_until,
    created_at = CASE WHEN known.expires_at <= excluded.updated_at THEN excluded.created_at ELSE known.created_at END,
    updated_at = excluded.updated_at, expires_at = excluded.expires_at
WHERE known.expires_at <= statement_timestamp()
    OR known.status = 'processing' AND known.request_hash = excluded.request_hash
        AND known.locked_until <= statement_timestamp()
RETURNING fence";

const LOOK: &str = "
SELECT status, request_hash, response, error,
    greatest(0, ceil(extract(epoch FROM locked_until - statement_timestamp()) * 1000))::bigint AS left_ms
FROM idempotency_keys WHERE domain = $1 AND user_id = $2 AND key = $3";

const FINISH: &str = "
UPDATE idempotency_keys
SET status = $5, response = $6, error = $7, updated_at = statement_timestamp(),
    expires_at = statement_timestamp() + $8 * interval '1 millisecond'
WHERE domain = $1 AND user_id = $2 AND key = $3 AND fence = $4 AND status = 'processing'";

const EXTEND: &str = "
UPDATE idempotency_keys
SET locked_until = statement_timestamp() + $5 * interval '1 millisecond', updated_at = statement_timestamp(),
    expires_at = greatest(expires_at, statement_timestamp() + $5 * interval '1 millisecond')
WHERE domain = $1 AND user_id = $2 AND key = $3 AND fence = $4 AND status = 'processing'";

const RELEASE: &str = "
UPDATE idempotency_keys SET locked_until = statement_timestamp(), updated_at = statement_timestamp()
WHERE domain = $1 AND user_id = $2 AND key = $3 AND fence = $4 AND status = 'processing'";

const PRUNE: &str = "
DELETE FROM idempotency_keys WHERE (domain, user_id, key) IN (
    SELECT domain, user_id, key FROM idempotency_keys
    WHERE expires_at < statement_timestamp() - $1 * interval '1 second'
    ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)";

/// The table `idempotency_keys`, with the times for which it locks and remembers requests.
///
/// ```no_run
/// use posthaste_kit::idempotency::BusinessKey;
/// use posthaste_kit::idempotency::table::{Entry, IdempotencyTable, RequestHash, TableKey};
///
/// # async fn run(pool: sqlx::PgPool, body: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
/// let table = IdempotencyTable::new();
/// let key = BusinessKey::new("billing", "user_7", "invoice_42", "pay", "v1")?;
///
/// let mut transaction = pool.begin().await?;
/// match table.begin(&mut transaction, &TableKey::from(&key), RequestHash::of(body)).await? {
///     Entry::Claimed(claim) => {
///         sqlx::query("INSERT INTO payments (invoice) VALUES ('invoice_42')").execute(&mut *transaction).await?;
///         claim.complete(&mut transaction, b"paid").await?;
///         transaction.commit().await?;
///         Ok(b"paid".to_vec())
///     }
///     Entry::Completed(response) => Ok(response),
///     Entry::Failed(error) => Err(error.into()),
///     Entry::UnderWay { .. } => Err("409, come back later".into()),
///     Entry::OtherRequest => Err("422, this key belongs to another request".into()),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct IdempotencyTable {
    lock: Duration,
    keep: Duration,
}

impl IdempotencyTable {
    /// Locks for [`LOCK_DEFAULT`] and remembers for [`KEEP_DEFAULT`].
    pub const fn new() -> IdempotencyTable {
        IdempotencyTable { lock: LOCK_DEFAULT, keep: KEEP_DEFAULT }
    }

    /// Sets how long a committed claim is locked before another process can take it over.
    pub fn lock(mut self, lock: Duration) -> IdempotencyTable {
        self.lock = lock;
        self
    }

    /// Sets how long a request and its response are remembered.
    pub fn keep(mut self, keep: Duration) -> IdempotencyTable {
        self.keep = keep;
        self
    }

    /// Claims the request, or returns its result. Does not wait for other transactions.
    pub async fn begin(
        &self,
        connection: &mut PgConnection,
        key: &TableKey,
        request: RequestHash,
    ) -> Result<Entry, TableError> {
        let is_alone: bool = sqlx::query_scalar(TRY_LOCK).bind(key.lock_number()).fetch_one(&mut *connection).await?;
        if !is_alone {
            return Ok(Entry::UnderWay { retry_after: RETRY_AFTER });
        }
        // It must be remembered at least as long as it is locked.
        let remembered = self.keep.max(self.lock);
        let query = sqlx::query(BEGIN).bind(&key.domain).bind(&key.user).bind(&key.key).bind(&request.0[..]);
        let query = query.bind(length(self.lock)).bind(length(remembered));
        if let Some(row) = query.fetch_optional(&mut *connection).await? {
            let fence = unsigned(row.try_get(0)?)?;
            return Ok(Entry::Claimed(Claim { key: key.clone(), fence, keep: self.keep }));
        }
        let query = sqlx::query(LOOK).bind(&key.domain).bind(&key.user).bind(&key.key);
        match query.fetch_optional(&mut *connection).await? {
            Some(row) => Ok(Known::read(&row)?.entry(request)),
            // It was held a moment ago.
            None => Ok(Entry::UnderWay { retry_after: RETRY_AFTER }),
        }
    }

    /// Deletes up to `limit` rows that expired at least an hour ago; returns their number. Call it regularly.
    pub async fn prune(&self, connection: &mut PgConnection, limit: u32) -> Result<u64, TableError> {
        let query = sqlx::query(PRUNE).bind(PRUNE_AFTER_S).bind(i64::from(limit));
        Ok(query.execute(connection).await?.rows_affected())
    }
}

impl Default for IdempotencyTable {
    fn default() -> Self {
        IdempotencyTable::new()
    }
}

/// A key and its owner: two users who choose the same key do not get each other's responses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableKey {
    domain: String,
    user: String,
    key: String,
}

impl TableKey {
    /// A key chosen by a user, for example as `Idempotency-Key`. Parts that are longer than
    /// [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) are replaced by their hashes.
    pub fn new(domain: &str, user: &str, key: &str) -> TableKey {
        let [domain, user, key] = [domain, user, key].map(|part| storable(part).into_owned());
        TableKey { domain, user, key }
    }

    /// The number of the advisory lock. If two keys share a number, one of them is asked to retry later.
    fn lock_number(&self) -> i64 {
        let parts = [b"idempotency_keys", self.domain.as_bytes(), self.user.as_bytes(), self.key.as_bytes()];
        let [a, b, c, d, e, f, g, h, ..] = digest(&parts);
        i64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl From<&BusinessKey> for TableKey {
    fn from(key: &BusinessKey) -> TableKey {
        TableKey::new(key.domain(), key.user(), key.as_str())
    }
}

/// Detects whether two requests with the same key are the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestHash([u8; 32]);

impl RequestHash {
    /// The hash of the bytes of a request.
    pub fn of(bytes: &[u8]) -> RequestHash {
        RequestHash::of_parts(&[bytes])
    }

    /// The hash of several parts, such as method, path and body. The boundaries of the parts matter.
    pub fn of_parts(parts: &[&[u8]]) -> RequestHash {
        RequestHash(digest(parts))
    }

    /// The hash of a value as JSON. Equal values must serialise identically, so do not use `HashMap`.
    pub fn of_json<T: Serialize + ?Sized>(value: &T) -> Result<RequestHash, serde_json::Error> {
        Ok(RequestHash::of(&serde_json::to_vec(value)?))
    }
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// The state of a request.
#[derive(Debug)]
pub enum Entry {
    /// The request is yours to process.
    Claimed(Claim),
    /// The request was completed with this response.
    Completed(Vec<u8>),
    /// The request failed permanently with this error.
    Failed(String),
    /// Another process is working on it: 409.
    UnderWay {
        /// When to retry.
        retry_after: Duration,
    },
    /// The key belongs to another request: 422.
    OtherRequest,
}

impl Entry {
    /// The response to a request that cannot continue: 409 or 422. `None` for all others.
    pub fn problem(&self) -> Option<Problem> {
        match self {
            Entry::UnderWay { retry_after } => {
                let problem = Problem::new(StatusCode::CONFLICT, "the request is in progress");
                Some(
                    problem
                        .detail("another request with this idempotency key is in progress")
                        .retry_after(*retry_after),
                )
            }
            Entry::OtherRequest => {
                let title = "the idempotency key belongs to another request";
                let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, title);
                Some(problem.detail("repeat the original request unchanged, or choose a new key"))
            }
            Entry::Claimed(_) | Entry::Completed(_) | Entry::Failed(_) => None,
        }
    }
}

/// A request that is yours. If it is dropped in a transaction that does not commit, nothing has happened. If its
/// beginning was committed, it is held until its lock expires.
#[derive(Debug)]
pub struct Claim {
    key: TableKey,
    fence: u64,
    keep: Duration,
}

impl Claim {
    /// Grows with every claim. Write it next to effects elsewhere, and reject writes with a smaller one there.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Completes the request. Repeated requests get this response. If this fails, the transaction must fail too.
    pub async fn complete(self, connection: &mut PgConnection, response: &[u8]) -> Result<(), TableError> {
        if response.len() > RESPONSE_BYTES_MAX {
            return Err(TableError(Cause::TooLarge(response.len())));
        }
        self.finish(connection, "completed", Some(response), None).await
    }

    /// Like [`Claim::complete`], with a value as JSON.
    pub async fn complete_json<T: Serialize + Sync + ?Sized>(
        self,
        connection: &mut PgConnection,
        response: &T,
    ) -> Result<(), TableError> {
        let response = serde_json::to_vec(response).map_err(|error| TableError(Cause::Json(error)))?;
        self.complete(connection, &response).await
    }

    /// Marks the request as permanently failed. Repeated requests get the same error. For temporary failures, roll back
    /// or [release](Claim::release) instead.
    pub async fn fail(self, connection: &mut PgConnection, error: &str) -> Result<(), TableError> {
        self.finish(connection, "failed", None, Some(storable_error(error))).await
    }

    /// Extends the lock to `lock` from now, if its beginning was committed.
    pub async fn extend(&self, connection: &mut PgConnection, lock: Duration) -> Result<(), TableError> {
        let query = self.of(EXTEND).bind(length(lock));
        changed_one(query.execute(connection).await?.rows_affected())
    }

    /// Releases the request, so that it can be retried immediately.
    pub async fn release(self, connection: &mut PgConnection) -> Result<(), TableError> {
        changed_one(self.of(RELEASE).execute(connection).await?.rows_affected())
    }

    async fn finish(
        &self,
        connection: &mut PgConnection,
        status: &str,
        response: Option<&[u8]>,
        error: Option<String>,
    ) -> Result<(), TableError> {
        let query = self.of(FINISH).bind(status).bind(response).bind(error).bind(length(self.keep));
        changed_one(query.execute(connection).await?.rows_affected())
    }

    fn of(&self, statement: &'static str) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
        let query = sqlx::query(statement).bind(&self.key.domain).bind(&self.key.user).bind(&self.key.key);
        query.bind(signed(self.fence))
    }
}

/// Fails if the claim was lost, so that the transaction fails too.
fn changed_one(rows: u64) -> Result<(), TableError> {
    if rows == 1 { Ok(()) } else { Err(TableError(Cause::Lost)) }
}

/// The error in a form that the database can store: without zero bytes, and at most [`ERROR_BYTES_MAX`] long.
fn storable_error(error: &str) -> String {
    let end = error.floor_char_boundary(ERROR_BYTES_MAX);
    error[..end].replace('\0', " ")
}

/// A row of another holder.
struct Known {
    status: Status,
    request: Vec<u8>,
    left: Duration,
}

enum Status {
    Processing,
    Completed(Vec<u8>),
    Failed(String),
}

impl Known {
    fn read(row: &PgRow) -> Result<Known, sqlx::Error> {
        let status = match row.try_get("status")? {
            "processing" => Status::Processing,
            "completed" => Status::Completed(row.try_get("response")?),
            "failed" => Status::Failed(row.try_get("error")?),
            other => return Err(sqlx::Error::Decode(format!("unknown request status {other:?}").into())),
        };
        let left = Duration::from_millis(unsigned(row.try_get("left_ms")?)?);
        Ok(Known { status, request: row.try_get("request_hash")?, left })
    }

    /// The entry for this request. If the row belongs to another request, its response must not be revealed.
    fn entry(self, request: RequestHash) -> Entry {
        if self.request != request.0 {
            return Entry::OtherRequest;
        }
        match self.status {
            Status::Processing => Entry::UnderWay { retry_after: self.left },
            Status::Completed(response) => Entry::Completed(response),
            Status::Failed(error) => Entry::Failed(error),
        }
    }
}

/// Why a step on the table failed. Roll back; the methods say whether a retry may succeed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TableError(Cause);

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("the request was taken over by another process, or is already finished")]
    Lost,
    #[error("the response has {0} bytes, at most {RESPONSE_BYTES_MAX} are allowed")]
    TooLarge(usize),
    #[error("the response is not JSON")]
    Json(#[source] serde_json::Error),
    #[error("the table of idempotency keys is not available")]
    Database(#[source] sqlx::Error),
}

impl TableError {
    /// Whether another process has taken the request over. Your work must not be committed.
    pub fn is_lost(&self) -> bool {
        matches!(self.0, Cause::Lost)
    }

    /// Whether the response was too large or could not be written, so that a retry cannot succeed.
    pub fn is_response(&self) -> bool {
        matches!(self.0, Cause::TooLarge(_) | Cause::Json(_))
    }

    /// Whether the database could not be reached, rejected the request, or returned invalid data. A retry may succeed.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0, Cause::Database(_))
    }
}

impl From<sqlx::Error> for TableError {
    fn from(error: sqlx::Error) -> TableError {
        TableError(Cause::Database(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_requests_do_not_see_the_first_response() {
        let (request, other) = (RequestHash::of(b"a"), RequestHash::of(b"b"));
        let known = |status| Known { status, request: request.0.to_vec(), left: RETRY_AFTER };
        let statuses =
            || [Status::Processing, Status::Completed(b"ok".to_vec()), Status::Failed("no such card".to_owned())];
        for status in statuses() {
            let entry = known(status).entry(other);
            assert!(matches!(entry, Entry::OtherRequest));
            assert_eq!(entry.problem().unwrap().status, 422);
        }
        let [processing, completed, failed] = statuses().map(|status| known(status).entry(request));
        assert_eq!(processing.problem().unwrap().status, 409);
        assert!(matches!(&completed, Entry::Completed(response) if response == b"ok"));
        assert!(matches!(&failed, Entry::Failed(error) if error == "no such card"));
        assert!(completed.problem().is_none() && failed.problem().is_none());
    }

    #[test]
    fn hashes_depend_on_the_boundaries_of_parts() {
        assert_eq!(RequestHash::of(b"ab"), RequestHash::of_parts(&[b"ab"]));
        assert_ne!(RequestHash::of_parts(&[b"a", b"b"]), RequestHash::of_parts(&[b"ab", b""]));
        assert_eq!(RequestHash::of_json(&[1, 2]).unwrap(), RequestHash::of(b"[1,2]"));
    }

    #[test]
    fn keys_are_scoped_and_fit() {
        let key = BusinessKey::new("billing", "user_7", "invoice_42", "pay", "v1").unwrap();
        assert_eq!(TableKey::from(&key), TableKey::new("billing", "user_7", key.as_str()));
        let long = TableKey::new("a", "b", &"x".repeat(10_000));
        assert!(long.key.starts_with("sha256:"));
        assert_ne!(TableKey::new("a", "bc", "d").lock_number(), TableKey::new("ab", "c", "d").lock_number());
    }

    #[test]
    fn errors_are_cut_between_characters() {
        let error = format!("{}ü\0", "x".repeat(ERROR_BYTES_MAX - 1));
        assert_eq!(storable_error(&error), "x".repeat(ERROR_BYTES_MAX - 1));
        assert_eq!(storable_error("a\0b"), "a b");
    }
}
