//! A connection to Redis that is opened on demand and replaced as soon as it may be broken.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind,
    Value,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// A connection to one Redis. Clones share it.
///
/// It is opened for the first step, and again after a step that failed or got no response, because a silently broken
/// connection would not respond to other steps either. An error response keeps the connection, unless the server has
/// become a replica. A failure to connect is not remembered: the next step tries again. No step is sent twice.
#[derive(Clone)]
pub struct Connection {
    client: Client,
    timeout: Duration,
    current: Arc<Mutex<Option<Arc<Current>>>>,
}

struct Current {
    connection: MultiplexedConnection,
    is_in_doubt: AtomicBool,
}

impl Connection {
    pub(super) fn new(client: Client, timeout: Duration) -> Connection {
        Connection { client, timeout, current: Arc::default() }
    }

    async fn current(&self) -> RedisResult<Arc<Current>> {
        let mut slot = Arc::clone(&self.current).lock_owned().await;
        if let Some(current) = slot.as_ref().filter(|current| !current.is_in_doubt.load(Ordering::Relaxed)) {
            return Ok(Arc::clone(current));
        }
        *slot = None;
        let (client, timeout) = (self.client.clone(), self.timeout);
        // In its own task: if many steps wait and each times out, none of them alone would wait long enough to connect.
        let connecting = tokio::spawn(async move {
            // Without a timeout for responses, because the store has its own.
            let config = AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(None);
            let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let current = Arc::new(Current { connection, is_in_doubt: AtomicBool::new(false) });
            *slot = Some(Arc::clone(&current));
            Ok(current)
        });
        connecting.await.unwrap_or_else(|error| Err(RedisError::from(std::io::Error::other(error))))
    }
}

impl Current {
    /// Waits for the response to a step. Without a response, also because the caller stopped waiting, the connection is
    /// in doubt.
    async fn answered<T>(&self, step: RedisFuture<'_, T>) -> RedisResult<T> {
        let mut doubt = Doubt { is_in_doubt: &self.is_in_doubt, is_settled: false };
        let answer = step.await;
        doubt.is_settled = answer.as_ref().err().is_none_or(is_refusal);
        answer
    }
}

/// Puts a connection in doubt when it is dropped, unless it is settled.
struct Doubt<'a> {
    is_in_doubt: &'a AtomicBool,
    is_settled: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.is_in_doubt.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether the right server rejected the step. A read-only server was once a primary: after a failover its address may
/// lead to another server.
fn is_refusal(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => kind != ServerErrorKind::ReadOnly,
        ErrorKind::Extension => true,
        _ => false,
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let current = self.current().await?;
            let mut connection = current.connection.clone();
            current.answered(connection.req_packed_command(cmd)).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let current = self.current().await?;
            let mut connection = current.connection.clone();
            current.answered(connection.req_packed_commands(pipeline, offset, count)).await
        })
    }

    fn get_db(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }
}

/// The address may contain a password.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
