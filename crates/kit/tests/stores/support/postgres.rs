//! A PostgreSQL for a test. The cluster is created once per test run and copied for each server.

use super::World;
use super::process::{Process, free_port};
use super::wait::{DEADLINE, until};
use posthaste_kit::idempotency::IdempotencyStore;
use posthaste_kit::idempotency::postgres::{PostgresStore, create_tables};
use rustix::process::{Signal, geteuid};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use std::future::Future;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) struct Postgres {
    dir: TempDir,
    port: u16,
    process: Option<Process>,
    /// As many connections as the busiest test has tasks.
    pub(crate) pool: PgPool,
}

impl Postgres {
    /// A server with the tables of the kit.
    pub(crate) async fn start() -> Postgres {
        Postgres::from_cluster(false).await
    }

    /// A read-only server, because it follows another one.
    pub(crate) async fn standby() -> Postgres {
        Postgres::from_cluster(true).await
    }

    async fn from_cluster(is_standby: bool) -> Postgres {
        let template = tokio::task::spawn_blocking(template).await.unwrap();
        let dir = TempDir::new().unwrap();
        let copy = Command::new("cp").arg("-a").arg(template).arg(dir.path().join("data")).status().unwrap();
        assert!(copy.success());
        if is_standby {
            let signal = dir.path().join("data/standby.signal");
            std::fs::write(&signal, "").unwrap();
            own(&signal);
        }
        own(dir.path());
        let port = free_port();
        let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port);
        let options = options.username("postgres").database("postgres");
        let pool = PgPoolOptions::new().max_connections(40).acquire_timeout(Duration::from_secs(20));
        let mut postgres = Postgres { dir, port, process: None, pool: pool.connect_lazy_with(options) };
        postgres.run().await;
        postgres
    }

    /// Starts it again after a kill.
    pub(crate) async fn run(&mut self) {
        self.process = Some(serve(&self.dir.path().join("data"), self.port));
        until("the start of postgres", || async {
            let connection = PgConnection::connect(&self.url()).await;
            connection.map(drop).map_err(|error| format!("{error}; {}", log(self.dir.path())))
        })
        .await;
    }

    /// Kills all its processes at once.
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
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn store(&self) -> PostgresStore {
        PostgresStore::new(self.pool.clone())
    }

    /// Runs SQL that returns nothing, on a connection that no crash has touched.
    pub(crate) async fn run_sql(&self, sql: impl Into<String>) {
        let mut connection = self.connect().await;
        sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(&mut connection).await.unwrap();
    }

    /// Queries one number, on the same kind of connection.
    pub(crate) async fn count(&self, sql: impl Into<String>) -> i64 {
        let mut connection = self.connect().await;
        sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(&mut connection).await.unwrap()
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }
}

impl World for Postgres {
    fn store(&self) -> Arc<dyn IdempotencyStore> {
        Arc::new(Postgres::store(self).timeout(DEADLINE))
    }

    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let time = format!("interval '{} milliseconds'", time.as_millis());
            self.run_sql(format!(
                "UPDATE idempotency_locks SET until = until - {time};
                UPDATE idempotency_keys SET locked_until = locked_until - {time}, expires_at = expires_at - {time}"
            ))
            .await;
        })
    }

    fn has_fences(&self) -> bool {
        true
    }
}

/// The directory of a cleanly shut down cluster with the tables, created once per process and deleted at its end.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let dir = TempDir::new().unwrap().keep();
        delete_at_end(&dir);
        own(&dir);
        let data = dir.join("data");
        let mut initdb = Command::new(program("initdb"));
        initdb.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N", "--wal-segsize=1", "-D"]);
        let made = as_server(initdb.arg(&data)).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let server = serve(&data, port);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
            let mut connection = until("the first start of postgres", || async {
                PgConnection::connect(&url).await.map_err(|error| format!("{error}; {}", log(&dir)))
            })
            .await;
            create_tables(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            server.shut_down().await; // A clean shutdown, so that copies need no recovery.
        });
        data
    })
}

fn serve(data: &Path, port: u16) -> Process {
    let (program, port) = (program("postgres"), port.to_string());
    let (program, data_text) = (program.to_str().unwrap(), data.to_str().unwrap());
    let mut words = vec![program, "-D", data_text, "-p", &port, "-k", data_text];
    // Safe without fsync: the tests kill processes, not machines.
    words.extend(["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=16MB"]);
    words.extend(["-c", "max_wal_size=64MB", "-c", "min_wal_size=2MB"]);
    Process::start(as_server(&mut Process::command(&words, &data.with_file_name("log"), "QUIT")))
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).unwrap_or_default()
}

/// A program of the newest PostgreSQL. Debian does not add it to the path.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    match versions.max() {
        Some(version) => PathBuf::from(format!("/usr/lib/postgresql/{version}/bin/{name}")),
        None => PathBuf::from(name),
    }
}

/// PostgreSQL refuses to run as root, so it runs as the user that its package created.
fn as_server(command: &mut Command) -> &mut Command {
    match server_user() {
        Some((user, group)) => command.uid(user).gid(group),
        None => command,
    }
}

fn own(dir: &Path) {
    if let Some((user, group)) = server_user() {
        std::os::unix::fs::chown(dir, Some(user), Some(group)).unwrap();
    }
}

fn server_user() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let line = line.expect("a user postgres has to exist (on Debian: apt-get install postgresql)");
    let fields: Vec<&str> = line.split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

/// Statics are not dropped, so a shell waits for the end of this process and deletes the directory.
fn delete_at_end(dir: &Path) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "read -r _; rm -rf \"$1\"", "cleaner"]).arg(dir).stdin(std::process::Stdio::piped());
    std::mem::forget(shell.spawn().unwrap().stdin);
}
