//! The `posthaste` command.

use anyhow::Context;
use clap::{Parser, Subcommand};
use posthaste::clock::Clock;
use posthaste::config::{Config, Mode, Settings};
use posthaste::data_dir::DataDir;
use posthaste::delivery::resolve::SystemResolver;
use posthaste::server::{Parts, Server};
use posthaste::store::sqlite::{SqliteOptions, SqliteStore};
use posthaste::telemetry;
use posthaste::tenants::{DEV_USERS, new_tenant};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Durable, signed, retried, deduplicated HTTP message delivery that speaks the QStash protocol.
#[derive(Parser)]
#[command(name = "posthaste", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run on a developer's machine: loopback only, the published QStash development credentials
    Dev(DevArguments),
    /// Run in production: own tokens and keys, private destinations only where allowed
    Serve(RunArguments),
    /// Print a fresh tenant (tokens and signing keys) to paste into the configuration
    NewTenant {
        /// Name of the tenant
        name: String,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// TOML file with the same settings as the flags (names with underscores), and [[tenants]]
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective settings, with secrets hidden, and end
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    settings: Settings,
}

#[derive(clap::Args)]
struct DevArguments {
    /// Port to listen on at 127.0.0.1, as the official development server spells it
    #[arg(long, env = "QSTASH_DEV_PORT", value_name = "PORT")]
    port: Option<u16>,
    #[command(flatten)]
    run: RunArguments,
}

/// How long threads that block may keep the process from ending.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Dev(DevArguments { port, run: mut arguments }) => {
            let listen = port.map(|port| format!("127.0.0.1:{port}"));
            arguments.settings.listen = arguments.settings.listen.or(listen);
            run(Mode::Dev, arguments)
        }
        Command::Serve(arguments) => run(Mode::Serve, arguments),
        Command::NewTenant { name } => {
            print!("{}", new_tenant(&name));
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("posthaste: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mode: Mode, arguments: RunArguments) -> anyhow::Result<()> {
    let mut settings = arguments.settings;
    if let Some(path) = &arguments.config {
        settings = settings.or(Settings::from_file(path)?)?;
    }
    let config = Config::resolve(mode, settings)?;
    if arguments.print_config {
        println!("{}", config.describe());
        return Ok(());
    }
    telemetry::init(config.log_format, &config.log)?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(config));
    // Whatever still runs on a blocking thread must not keep the process from ending.
    runtime.shutdown_timeout(EXIT_PATIENCE);
    result
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let data_dir = DataDir::lock(&config.data_dir)?;
    let store = SqliteStore::open(&data_dir.database(), SqliteOptions::default())
        .with_context(|| format!("the database {} cannot be opened", data_dir.database().display()))?;
    let listener =
        TcpListener::bind(config.listen).await.with_context(|| format!("cannot listen on {}", config.listen))?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mode = config.mode;
    let parts =
        Parts { store: Arc::new(store), clock: Clock::default(), resolver: Arc::new(SystemResolver::default()) };
    let mut server = Server::start(config, parts, listener).await?;
    announce(mode, &server);
    tokio::select! {
        failure = server.failed() => {
            server.abandon().await;
            return Err(failure);
        }
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    tracing::info!("stopping");
    server.stop().await?;
    tracing::info!("stopped");
    Ok(())
}

/// Every connection is an open file; the usual soft limit of 1,024 is far below what we allow.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(error = %error, current = ?limit.current, "the limit of open files cannot be raised");
    }
}

/// Says where the server is, and in `dev` what a program needs to use it.
fn announce(mode: Mode, server: &Server) {
    let address = server.address;
    tracing::info!(%address, data_dir = %server.app.config.data_dir.display(), "posthaste is running");
    if mode == Mode::Dev {
        let user = &DEV_USERS[0];
        println!("Posthaste is running at http://{address}\n\nPaste into your .env:\n");
        println!("QSTASH_URL=http://{address}");
        println!("QSTASH_TOKEN={}", user.token);
        println!("QSTASH_CURRENT_SIGNING_KEY={}", user.current);
        println!("QSTASH_NEXT_SIGNING_KEY={}\n", user.next);
    }
}
