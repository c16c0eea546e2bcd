//! A store on Redis: one script, and therefore one round trip, per step.
//!
//! **Redis cannot guarantee that locks survive a failover.** It responds before its replicas and its disk have the
//! write. If a Redis that has granted a lock dies or is cut off, its replica takes over without that lock and grants it
//! again: with a partition and a failover at the wrong time this happened in ten of ten tries. Eviction and `FLUSHALL`
//! also lose locks. So this store prevents concurrent work only *while Redis loses nothing*. That is enough if an
//! effect may occasionally happen twice, or if something else rejects the second one. Otherwise, use the store on
//! PostgreSQL or, better, the `table` next to the effect.
//!
//! [`RedisStore::replicas`] makes the loss rarer and visible: steps fail while too few replicas respond. Set
//! `maxmemory-policy noeviction`, and use a database in which `FLUSHALL` is never called.
//!
//! Needs Redis 2.6 or any compatible server with `EVAL`. Leases have no fence, because Redis could not guarantee it.

mod connection;

pub use connection::Connection;

use super::{Begun, IdempotencyStore, Lease, StoreError, StoreFuture, hex, millis, storable, token, within};
use redis::aio::ConnectionLike;
use redis::{Client, RedisError, Value};
use std::fmt;
use std::time::Duration;

/// Default time limit of a step. After that the work must not continue.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);

/// Default prefix of all keys.
pub const PREFIX_DEFAULT: &str = "posthaste:idempotency:";

/// The value of a key that is in progress is this character and the token of its holder. A key that is done has the
/// other one.
const UNDER_WAY: char = 'u';
const DONE: char = 'd';
const VALUE_BYTES: usize = 33;

/// Returns `{'', 0}` if the key was taken. Otherwise returns its value and its remaining milliseconds.
const BEGIN: &str = "
local value = redis.call('GET', KEYS[1])
if not value then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {'', 0}
end
return {value, redis.call('PTTL', KEYS[1])}";

const EXTEND: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0";

const COMPLETE: &str = "
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] and value ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1";

const RELEASE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0";

/// An idempotency store in Redis. Cheap to clone; all clones share a connection.
///
/// ```no_run
/// use posthaste_kit::idempotency::redis::RedisStore;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379")?.prefix("shop:jobs:");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore<C = Connection> {
    connection: C,
    prefix: String,
    timeout: Duration,
    replicas: Option<Replicas>,
}

#[derive(Clone, Copy, Debug)]
struct Replicas {
    count: u32,
    within: Duration,
}

impl RedisStore {
    /// A store at this URL. It connects when the first step needs it, and connects again if the connection breaks or
    /// does not respond; no step is sent twice. Fails if the URL is invalid.
    pub fn connect(url: &str) -> Result<RedisStore, StoreError> {
        let client = Client::open(url).map_err(StoreError::unavailable)?;
        Ok(RedisStore::new(Connection::new(client, TIMEOUT_DEFAULT)))
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// A store on your own connection, for example with TLS, Sentinel or a cluster.
    pub fn new(connection: C) -> RedisStore<C> {
        RedisStore { connection, prefix: PREFIX_DEFAULT.to_owned(), timeout: TIMEOUT_DEFAULT, replicas: None }
    }

    /// Sets the prefix of all keys. Services that share a Redis but not their work need different prefixes.
    pub fn prefix(mut self, prefix: impl Into<String>) -> RedisStore<C> {
        self.prefix = prefix.into();
        self
    }

    /// Sets the time limit of a step.
    pub fn timeout(mut self, timeout: Duration) -> RedisStore<C> {
        self.timeout = timeout;
        self
    }

    /// Makes a step wait until this number of replicas have the write (`WAIT`), and fail if they do not have it within
    /// this time. The connection of the store waits too. Not for clusters.
    pub fn replicas(mut self, count: u32, within: Duration) -> RedisStore<C> {
        self.replicas = Some(Replicas { count, within });
        self
    }

    async fn run(&self, script: &str, key: &str, arguments: &[&str]) -> Result<Value, StoreError> {
        let key = format!("{}{}", self.prefix, storable(key));
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg(key).arg(arguments);
        let mut connection = self.connection.clone();
        let limit = self.timeout + self.replicas.map_or(Duration::ZERO, |replicas| replicas.within);
        let answer = async {
            match self.replicas {
                None => eval.query_async(&mut connection).await.map_err(failed),
                Some(replicas) => replicas.run(&eval, &mut connection).await,
            }
        };
        within(limit, answer).await
    }

    /// Runs a script that returns one or zero.
    async fn decide(&self, script: &str, key: &str, arguments: &[&str]) -> Result<bool, StoreError> {
        match self.run(script, key, arguments).await? {
            Value::Int(1) => Ok(true),
            Value::Int(0) => Ok(false),
            _ => Err(StoreError::malformed("neither one nor zero")),
        }
    }
}

impl Replicas {
    async fn run(self, eval: &redis::Cmd, connection: &mut impl ConnectionLike) -> Result<Value, StoreError> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.count).arg(millis(self.within));
        let mut both = redis::pipe();
        both.add_command(eval.clone()).add_command(wait);
        let mut answers: Vec<Value> = both.query_async(connection).await.map_err(failed)?;
        match (answers.pop(), answers.pop()) {
            (Some(Value::Int(found)), Some(answer)) if found >= i64::from(self.count) => Ok(answer),
            (Some(Value::Int(found)), Some(_)) => {
                Err(StoreError::unavailable(format!("only {found} of {} replicas have the write", self.count)))
            }
            _ => Err(StoreError::malformed("not one answer per command")),
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> IdempotencyStore for RedisStore<C> {
    fn begin<'a>(&'a self, key: &'a str, lock: Duration) -> StoreFuture<'a, Begun> {
        Box::pin(async move {
            let token = token()?;
            let (value, lock) = (value(UNDER_WAY, token), millis(lock).to_string());
            match begun(&self.run(BEGIN, key, &[&value, &lock]).await?)? {
                None => Ok(Begun::Acquired(Lease { key: key.to_owned(), token, fence: 0 })),
                Some(other) => Ok(other),
            }
        })
    }

    fn extend<'a>(&'a self, lease: &'a Lease, lock: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let (value, lock) = (value(UNDER_WAY, lease.token), millis(lock).to_string());
            self.decide(EXTEND, &lease.key, &[&value, &lock]).await
        })
    }

    fn complete<'a>(&'a self, lease: &'a Lease, keep: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let (before, after) = (value(UNDER_WAY, lease.token), value(DONE, lease.token));
            self.decide(COMPLETE, &lease.key, &[&before, &after, &millis(keep).to_string()]).await
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, bool> {
        Box::pin(async move { self.decide(RELEASE, &lease.key, &[&value(UNDER_WAY, lease.token)]).await })
    }
}

fn value(state: char, token: [u8; 16]) -> String {
    format!("{state}{}", hex(&token))
}

/// Interprets the response to [`BEGIN`]; `None` if the key was taken. A value that no holder can have written is
/// malformed. Its meaning is unknown, so the work must not continue.
fn begun(answer: &Value) -> Result<Option<Begun>, StoreError> {
    let Value::Array(parts) = answer else { return Err(StoreError::malformed("not a list")) };
    let [Value::BulkString(value), Value::Int(left_ms)] = &parts[..] else {
        return Err(StoreError::malformed("not a value and its time"));
    };
    let is_token = value.len() == VALUE_BYTES && value[1..].iter().all(u8::is_ascii_hexdigit);
    match (value.first().copied().map(char::from), u64::try_from(*left_ms)) {
        (None, Ok(0)) => Ok(None),
        (Some(UNDER_WAY), Ok(left_ms)) if is_token => {
            Ok(Some(Begun::UnderWay { retry_after: Duration::from_millis(left_ms) }))
        }
        (Some(DONE), _) if is_token => Ok(Some(Begun::Done)),
        (Some(UNDER_WAY), Err(_)) if is_token => Err(StoreError::malformed("a lock that never expires")),
        _ => Err(StoreError::malformed("a value that this store did not write")),
    }
}

fn failed(error: RedisError) -> StoreError {
    if error.is_timeout() { StoreError::timed_out() } else { StoreError::unavailable(error) }
}

impl<C> fmt::Debug for RedisStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(value: &str, left_ms: i64) -> Value {
        Value::Array(vec![Value::BulkString(value.into()), Value::Int(left_ms)])
    }

    #[test]
    fn only_values_that_a_holder_wrote_are_accepted() {
        let (under_way, done) = (value(UNDER_WAY, [0xA5; 16]), value(DONE, [0xA5; 16]));
        assert_eq!(under_way, format!("u{}", "a5".repeat(16)));
        assert!(matches!(begun(&answer("", 0)), Ok(None)));
        let left = Duration::from_millis(7);
        assert!(
            matches!(begun(&answer(&under_way, 7)), Ok(Some(Begun::UnderWay { retry_after })) if retry_after == left)
        );
        assert!(matches!(begun(&answer(&done, 7)), Ok(Some(Begun::Done))));
        assert!(matches!(begun(&answer(&done, -1)), Ok(Some(Begun::Done))), "somebody made it last");
        let malformed = [
            answer("", 1),
            answer("", -2),
            answer(&under_way, -1),
            answer(&under_way[..32], 7),
            answer(&done.replace('a', "x"), 7),
            answer("1", 7),
            answer("OK", 0),
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::BulkString(vec![])]),
            Value::Array(vec![Value::Int(0), Value::BulkString(vec![])]),
            Value::Array(vec![Value::BulkString(vec![]), Value::Int(0), Value::Int(0)]),
        ];
        for answer in malformed {
            assert!(begun(&answer).unwrap_err().is_malformed(), "{answer:?}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected_and_not_repeated() {
        let error = RedisStore::connect("sesame").unwrap_err();
        assert!(!format!("{error:?}").contains("sesame"));
    }
}
