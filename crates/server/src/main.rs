//! The `posthaste` command.

use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use posthaste::clock::Clock;
use posthaste::config::{Config, Mode, Settings, Source};
use posthaste::data_dir::{DataDir, free_bytes};
use posthaste::dev_output::{attempt_lines, banner, exports};
use posthaste::port_holder::{holder_of, taken};
use posthaste::server::{Parts, Server};
use posthaste::simulate::{self, simulate};
use posthaste::telemetry;
use posthaste::tenants::{NewTenant, Scope, add_tenant, new_tenant, new_token};
use posthaste_delivery::resolve::SystemResolver;
use posthaste_faults::crash_point::crash_point;
use posthaste_faults::panics;
use posthaste_store::Store;
use posthaste_store::journal::{JournalOpenError, JournalOptions, JournalStore, open_without_journal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};

/// Every message is allocated on one thread and freed on another; the system's allocator takes 15 % of the time for
/// it. mimalloc is as fast, with half as much memory again under load.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The version with the profile of the build: benchmarks accept `dist` alone, which `cargo xtask dist` makes.
const VERSION: &str = match option_env!("POSTHASTE_PROFILE") {
    Some(_) => concat!(env!("CARGO_PKG_VERSION"), " (dist)"),
    None if cfg!(debug_assertions) => concat!(env!("CARGO_PKG_VERSION"), " (debug)"),
    None => concat!(env!("CARGO_PKG_VERSION"), " (release)"),
};

/// Durable, signed, retried, deduplicated HTTP message delivery that speaks the QStash protocol.
#[derive(Parser)]
#[command(name = "posthaste", version = VERSION, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run for development: on loopback only, with the public QStash development credentials
    Dev(DevArguments),
    /// Run in production: with your own tokens and keys; private destinations only if allowed
    Serve(RunArguments),
    /// Generate a tenant (tokens and signing keys): an .env block for its programs and a block for the configuration
    NewTenant {
        /// Name of the tenant
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// Append the block for the configuration to this file, and print the .env block alone
        #[arg(long, value_name = "FILE")]
        write: Option<PathBuf>,
        /// Print the .env block alone to stdout, and the block for the configuration to stderr
        #[arg(long, conflicts_with = "write")]
        env: bool,
        /// QSTASH_URL of the .env block [default: public_url in FILE, or http://127.0.0.1:8080]
        #[arg(long, env = "POSTHASTE_PUBLIC_URL", value_name = "URL", value_parser = server_url)]
        url: Option<String>,
    },
    /// Print a new named token to paste into the block of its tenant in the configuration
    NewToken {
        /// Name of the tenant
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        tenant: String,
        /// Name of the token: the person or program that uses it
        name: String,
        /// Make the token read-only
        #[arg(long)]
        read_only: bool,
    },
    /// Simulate the engine with faults and check its guarantees
    #[command(after_help = simulate::HELP)]
    Sim(simulate::Arguments),
}

#[derive(clap::Args)]
struct RunArguments {
    /// TOML file with the settings below (names with underscores) and [[tenants]]
    #[arg(long, env = "POSTHASTE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective settings, with secrets hidden, and exit
    #[arg(long)]
    print_config: bool,
    /// Start although the journal is damaged; everything in it from the damage on is set aside and lost
    #[arg(long)]
    discard_damaged_journal: bool,
    #[command(flatten)]
    settings: Settings,
}

/// The flags of the official development server, besides ours. It also spells them with one dash.
#[derive(clap::Args)]
struct DevArguments {
    /// Port to listen on at 127.0.0.1; --listen takes precedence [env: QSTASH_DEV_PORT=] [default: 8080]
    #[arg(long, help_heading = "Official development server", value_name = "PORT")]
    port: Option<u16>,
    /// Second port that serves the same API at the same address [default: none]
    #[arg(long, help_heading = "Official development server", env = "QSTASH_DEV_LOG_PORT", value_name = "PORT")]
    log_port: Option<u16>,
    /// Accepted for compatibility, without effect; use the quota settings instead
    #[arg(long, help_heading = "Official development server", env = "QSTASH_DEV_QUOTA", value_name = "PLAN")]
    quota: Option<Plan>,
    /// Print no line for each delivery
    #[arg(long)]
    quiet: bool,
    /// Print the variables that the SDKs read, for eval, and exit
    #[arg(long)]
    print_env: bool,
    #[command(flatten)]
    run: RunArguments,
}

/// The choices that only `dev` has.
#[derive(Clone, Copy, Default)]
struct DevOptions {
    log_port: Option<u16>,
    quiet: bool,
    print_env: bool,
}

/// The plans that the official development server can imitate.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Plan {
    Payg,
    Pro,
}

/// Flags that may be written with one dash, as Go programs have them.
const ONE_DASH: [&str; 3] = ["-port", "-log-port", "-quota"];

/// An argument, with the flags of the official development server spelt our way.
fn spelt(argument: OsString) -> OsString {
    let name = argument.to_str().map(|text| text.split_once('=').map_or(text, |(name, _)| name));
    if !name.is_some_and(|name| ONE_DASH.contains(&name)) {
        return argument;
    }
    let mut with_two = OsString::from("-");
    with_two.push(argument);
    with_two
}

/// How long threads that block may keep the process from ending.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let matches = Cli::command().get_matches_from(std::env::args_os().map(spelt));
    let sources = sources(&matches);
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    let result = match command {
        Command::Dev(DevArguments { port, log_port, quota: _, quiet, print_env, run: mut arguments }) => {
            let port = port.or_else(|| dev_port(&std::env::var_os("QSTASH_DEV_PORT")?));
            let listen = port.map(|port| format!("127.0.0.1:{port}"));
            arguments.settings.listen = arguments.settings.listen.or(listen);
            run(Mode::Dev, arguments, sources, DevOptions { log_port, quiet, print_env })
        }
        Command::Serve(arguments) => run(Mode::Serve, arguments, sources, DevOptions::default()),
        Command::NewTenant { name, write, env, url } => generate_tenant(&name, write.as_deref(), env, url.as_deref()),
        Command::NewToken { tenant, name, read_only } => {
            let scope = if read_only { Scope::ReadOnly } else { Scope::Full };
            new_token(&tenant, &name, scope).map(|token| print!("{token}")).map_err(Into::into)
        }
        Command::Sim(arguments) => {
            let clock = Clock::default();
            simulate(&arguments, &|| clock.uptime())
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

/// Prints a fresh tenant, or adds it to a file and prints the rest.
fn generate_tenant(name: &str, file: Option<&Path>, env_alone: bool, url: Option<&str>) -> anyhow::Result<()> {
    if let Some(file) = file {
        print!("{}", add_tenant(file, name, url)?.env);
        eprintln!("posthaste: tenant {name:?} was added to {}; restart the server to load it", file.display());
        return Ok(());
    }
    let NewTenant { env, toml } = new_tenant(name, url);
    let toml = format!("# Settings of the tenant for the configuration file of the server.\n{toml}");
    if env_alone {
        print!("{env}");
        eprint!("{toml}");
    } else {
        print!("{env}\n{toml}");
    }
    Ok(())
}

/// A URL that can stand in an .env file.
fn server_url(text: &str) -> Result<String, String> {
    let is_plain = !text.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'#$\\".contains(c));
    match is_plain && (text.starts_with("http://") || text.starts_with("https://")) {
        true => Ok(text.to_owned()),
        false => Err("it must be a URL such as https://posthaste.example.com".to_owned()),
    }
}

/// Where the arguments of the subcommand come from that are there, by the names that settings have.
fn sources(matches: &ArgMatches) -> BTreeMap<String, Source> {
    let Some((_, matches)) = matches.subcommand() else { return BTreeMap::new() };
    let source = |id: &clap::Id| match matches.value_source(id.as_str())? {
        ValueSource::CommandLine => Some((id.to_string(), Source::Flag)),
        ValueSource::EnvVariable => Some((id.to_string(), Source::Environment)),
        _ => None,
    };
    matches.ids().filter_map(source).collect()
}

/// The port of `QSTASH_DEV_PORT`. An invalid port is ignored: the SDK then uses the default one.
fn dev_port(text: &OsStr) -> Option<u16> {
    text.to_str()?.parse().ok()
}

fn run(
    mode: Mode,
    arguments: RunArguments,
    sources: BTreeMap<String, Source>,
    DevOptions { log_port, quiet, print_env }: DevOptions,
) -> anyhow::Result<()> {
    let mut settings = arguments.settings;
    let mut in_file = Vec::new();
    if let Some(path) = &arguments.config {
        let file = Settings::from_file(path)?;
        in_file = file.names()?;
        settings = settings.or(file)?;
    }
    let mut config = Config::resolve(mode, settings)?;
    config.sources.extend(in_file.into_iter().map(|name| (name, Source::File)));
    config.sources.extend(sources);
    if arguments.print_config {
        println!("{}", config.describe());
        return Ok(());
    }
    if print_env {
        print!("{}", exports(config.listen));
        return Ok(());
    }
    telemetry::init(config.log_format, &config.log)?;
    panics::install_hook();
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("api").enable_all().build()?;
    let result = runtime.block_on(serve(config, log_port, arguments.discard_damaged_journal, quiet));
    // A query that still runs on a blocking thread must not keep the process from ending.
    runtime.shutdown_timeout(EXIT_PATIENCE);
    result
}

async fn serve(config: Config, log_port: Option<u16>, discard_damaged: bool, quiet: bool) -> anyhow::Result<()> {
    let data_dir = DataDir::lock(&config.data_dir)?;
    crash_point("start_locked");
    let store = open_store(&data_dir, config.journal, discard_damaged)
        .with_context(|| format!("the data in {} cannot be opened", config.data_dir.display()))?;
    // The lock ends with the process: whoever still has the store when this function ends may write.
    std::mem::forget(data_dir);
    let mode = config.mode;
    let mut listeners = vec![listen(mode, config.listen)?];
    if let Some(port) = log_port {
        listeners.push(listen(mode, SocketAddr::new(config.listen.ip(), port))?);
    }
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let resolver = Arc::new(SystemResolver::default());
    let (reports, lines) = attempt_lines();
    let reports = (mode == Mode::Dev && !quiet).then_some(reports);
    let parts = Parts { store, clock: Clock::default(), resolver, free_bytes, reports };
    let mut server = Server::start_on(config, parts, listeners).await?;
    crash_point("start_serving");
    announce(mode, &server);
    if mode == Mode::Dev && !quiet {
        let address = server.address;
        std::thread::Builder::new().name("terminal".to_owned()).spawn(move || lines.print(address, has_colours()))?;
    }
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
    crash_point("stop_done");
    tracing::info!("stopped");
    Ok(())
}

fn open_store(data_dir: &DataDir, journal: bool, discard_damaged: bool) -> Result<Arc<dyn Store>, JournalOpenError> {
    let (database, directory) = (data_dir.database(), data_dir.journal());
    let options = JournalOptions { discard_damaged, ..JournalOptions::default() };
    Ok(match journal {
        true => Arc::new(JournalStore::open(&database, &directory, options)?),
        false => Arc::new(open_without_journal(&database, &directory, &options)?),
    })
}

/// Connections that the kernel keeps until they are accepted, so that many may come at once; the system may allow less
/// (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;

fn listen(mode: Mode, address: SocketAddr) -> anyhow::Result<TcpListener> {
    bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow::anyhow!(taken(mode, address, holder_of(address).as_ref())),
        _ => anyhow::Error::new(error).context(format!("cannot listen on {address}")),
    })
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that starts again must not wait for the connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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
    let (address, data_dir) = (server.address, server.app.config.data_dir.display());
    match mode {
        Mode::Dev => {
            println!("{}", banner(address));
            tracing::debug!(%address, %data_dir, "posthaste is running");
        }
        Mode::Serve => tracing::info!(%address, %data_dir, "posthaste is running"),
    }
}

/// Colours are for terminals, and for those who want them (<https://no-color.org>).
fn has_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_the_official_development_server_may_have_one_dash() {
        for line in [
            "posthaste dev -port 9 -log-port=10 -quota pro",
            "posthaste dev --port 9 --log-port=10 --quota=pro",
            "posthaste dev -port=9 --log-port 10 -quota=payg",
        ] {
            let cli = Cli::try_parse_from(line.split(' ').map(OsString::from).map(spelt));
            let Ok(Cli { command: Command::Dev(arguments) }) = cli else { panic!("{line}") };
            assert_eq!((arguments.port, arguments.log_port), (Some(9), Some(10)), "{line}");
            assert!(arguments.quota.is_some(), "{line}");
        }
        for line in ["posthaste dev -quota free", "posthaste dev -listen 127.0.0.1:9", "posthaste serve -port 9"] {
            assert!(Cli::try_parse_from(line.split(' ').map(OsString::from).map(spelt)).is_err(), "{line}");
        }
    }

    #[test]
    fn a_port_that_is_none_is_left_to_the_default() {
        let cases = [("8082", Some(8082)), ("abc", None), ("", None), ("-1", None), ("65536", None)];
        for (text, expected) in cases {
            assert_eq!(dev_port(OsStr::new(text)), expected, "{text}");
        }
    }
}
