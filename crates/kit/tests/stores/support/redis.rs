//! A Redis for a test.

use super::World;
use super::process::{Process, free_port};
use super::wait::{DEADLINE, until};
use posthaste_kit::idempotency::IdempotencyStore;
use posthaste_kit::idempotency::redis::{PREFIX_DEFAULT, RedisStore};
use redis::{Client, Cmd, FromRedisValue, cmd};
use rustix::process::Signal;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) struct Redis {
    dir: TempDir,
    port: u16,
    options: Vec<String>,
    process: Option<Process>,
}

impl Redis {
    pub(crate) async fn start() -> Redis {
        Redis::with(&[]).await
    }

    /// With further options, as on the command line.
    pub(crate) async fn with(options: &[&str]) -> Redis {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut redis = Redis { dir: TempDir::new().unwrap(), port: free_port(), options, process: None };
        redis.run().await;
        redis
    }

    pub(crate) async fn replica_of(&self) -> Redis {
        let replica = Redis::with(&["--replicaof", &format!("127.0.0.1 {}", self.port)]).await;
        until("replication", || async {
            let info: String = replica.ask(cmd("INFO").arg("replication")).await;
            if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
        })
        .await;
        replica
    }

    /// Starts it again after a kill, empty.
    pub(crate) async fn run(&mut self) {
        let (port, dir) = (self.port.to_string(), self.dir.path().to_str().unwrap());
        let mut words = vec!["redis-server", "--bind", "127.0.0.1", "--port", &port, "--dir", dir];
        words.extend(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
        words.extend(self.options.iter().map(String::as_str));
        self.process = Some(Process::start(&mut Process::command(&words, &self.dir.path().join("log"), "KILL")));
        until("the start of redis-server (on Debian: apt-get install redis-server)", || async {
            let connection = self.client().get_multiplexed_async_connection().await;
            let mut connection = connection.map_err(|error| format!("{error}; {}", self.log()))?;
            cmd("PING").query_async::<()>(&mut connection).await.map_err(|error| error.to_string())
        })
        .await;
    }

    pub(crate) async fn kill(&mut self) {
        self.process.take().unwrap().kill().await;
    }

    pub(crate) fn stop(&self) {
        self.process.as_ref().unwrap().signal_all(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.process.as_ref().unwrap().signal_all(Signal::CONT);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn store(&self) -> RedisStore {
        RedisStore::connect(&self.url()).unwrap()
    }

    /// The name of a key in Redis.
    pub(crate) fn name(key: &str) -> String {
        format!("{PREFIX_DEFAULT}{key}")
    }

    /// Sends a command on a separate connection.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let mut connection = self.client().get_multiplexed_async_connection().await.unwrap();
        command.query_async(&mut connection).await.unwrap()
    }

    fn client(&self) -> Client {
        Client::open(self.url()).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl World for Redis {
    fn store(&self) -> Arc<dyn IdempotencyStore> {
        Arc::new(Redis::store(self).timeout(DEADLINE))
    }

    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        const PASS: &str = "
for _, key in ipairs(redis.call('KEYS', '*')) do
  redis.call('PEXPIRE', key, math.max(0, redis.call('PTTL', key) - ARGV[1]))
end";
        Box::pin(async move { self.ask::<()>(cmd("EVAL").arg(PASS).arg(0).arg(time.as_millis() as u64)).await })
    }

    fn has_fences(&self) -> bool {
        false
    }
}
