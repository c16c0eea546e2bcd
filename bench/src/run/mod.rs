//! `run`: the whole comparison in one command.
//!
//! Starts a sink, the signed durable relay and the server as child processes, each server on a fresh data directory.
//! They do the same work in turn, and the result is a table of medians and goals. Start at [`main`]. The scenarios are
//! in [`scenario`], [`delayed`], [`keyed`], [`schedules`], [`fanout`], [`isolation`], [`overload`], [`workflows`],
//! [`console`] and [`peers`]; the goals are in [`figure`].

mod child;
mod console;
mod delayed;
mod fanout;
mod figure;
mod fill;
mod flood;
mod isolation;
mod keyed;
mod machine;
mod overload;
mod peers;
mod plot;
mod scenario;
mod schedules;
mod slow_disk;
mod summary;
mod work;
mod workflow_apps;
mod workflow_runs;
mod workflows;

use anyhow::{Context, Result, bail};
use figure::Figure;
use machine::Unrest;
use plot::Plots;
use scenario::Bench;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use summary::Member;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's executable.
    #[arg(long, default_value = "target/dist/posthaste")]
    server: PathBuf,
    /// Start this instead of the server: words split at spaces, with {bench}, {port}, {dir} and {sink} filled in.
    #[arg(long, hide = true)]
    server_command: Option<String>,
    /// Seconds per measurement [default: 6; 12 of `isolation`, 60 of `overload`].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Number of times that relay and server take turns [default: 5].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: Option<u32>,
    /// Directory for the summary and the plots.
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
    /// Directory for the raw reports of all single runs.
    #[arg(long, default_value = "target/bench-samples")]
    samples_dir: PathBuf,
    /// Only these scenarios.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    only: Vec<Scenario>,
    /// Print the summary instead of the table.
    #[arg(long)]
    json: bool,
    /// Check quickly that everything works and nothing is missing; figures are not judged.
    #[arg(long)]
    smoke: bool,
    /// Where the data directories are created: the disk under test.
    #[arg(long, default_value = ".")]
    work_dir: PathBuf,
    /// Everything: with peers, and with ten million stored messages unless --stored says otherwise.
    #[arg(long)]
    all: bool,
    /// Compare with other systems too, which are installed with npm and pip [default with --all].
    #[arg(long)]
    peers: bool,
    /// Where they are installed.
    #[arg(long, default_value = "target/bench-peers")]
    peers_dir: PathBuf,
    /// Delayed messages to store [default: 1000000].
    #[arg(long, alias = "delayed-count", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    stored: Option<u32>,
    /// Body size of delayed messages.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(35..=100_000))]
    delayed_body_bytes: u32,
    /// Queues of `queues` and flow-control keys of `flow` [default: 10000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keys: Option<u32>,
    /// Schedules of `schedules` [default: 10000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    schedules: Option<u32>,
    /// Runs of five steps of `workflows` [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workflow_runs: Option<u32>,
    /// Runs that sleep of `workflows` [default: 100000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sleeping_runs: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Scenario {
    /// 64 connections, closed loop, 1 KiB.
    Saturation,
    /// 500 messages per second, open loop.
    Rate,
    /// Publishes without deliveries, beside a server that only appends.
    Publish,
    /// Memory and CPU without load.
    Idle,
    /// A backlog of delayed messages: memory, restart, speed on top of it.
    Delayed,
    /// 10,000 FIFO queues with 10 messages each, beside messages without one.
    Queues,
    /// 10,000 flow-control keys with 10 messages each, beside messages without one.
    Flow,
    /// 10,000 schedules that fire in the same minute, twice.
    Schedules,
    /// Publishes to a URL group of 100 endpoints.
    Fanout,
    /// Healthy destinations beside bad ones, dead ones, and a tenant that floods the server.
    Isolation,
    /// Publishing ten times what can be stored, to a slow receiver.
    Overload,
    /// 1,000 durable runs of five steps, and 100,000 that sleep.
    Workflows,
    /// The console's pages on top of a million messages, and what live charts cost.
    Console,
    /// Other durable systems under the load of `saturation` and `rate`.
    Peers,
}

impl Scenario {
    const ALL: [Scenario; 14] = [
        Scenario::Saturation,
        Scenario::Publish,
        Scenario::Rate,
        Scenario::Idle,
        Scenario::Delayed,
        Scenario::Queues,
        Scenario::Flow,
        Scenario::Schedules,
        Scenario::Fanout,
        Scenario::Isolation,
        Scenario::Overload,
        Scenario::Workflows,
        Scenario::Console,
        Scenario::Peers,
    ];
}

/// The amounts to measure, after defaults.
#[derive(Clone, Debug, Serialize)]
struct Plan {
    scenarios: Vec<Scenario>,
    seconds: u32,
    isolation_seconds: u32,
    overload_seconds: u32,
    rounds: u32,
    warm_up_seconds: f64,
    /// Wait between a start (or a fill) and reading memory.
    settle: Duration,
    /// Duration over which idle CPU is measured.
    idle: Duration,
    /// Delayed messages.
    stored: u32,
    delayed_body_bytes: u32,
    /// Queues, and flow-control keys.
    keys: u32,
    schedules: u32,
    /// Number of minutes in which they fire.
    minutes: u32,
    /// Publishes to the URL group.
    publishes: u32,
    workflow_runs: u32,
    sleeping_runs: u32,
    /// Whether to compare with other systems.
    with_peers: bool,
    /// False in smoke runs, where only losses count.
    judged: bool,
}

impl Plan {
    fn new(args: &Args) -> Self {
        let asked = |scenario: &Scenario| match args.only.is_empty() {
            true => *scenario != Scenario::Peers || args.peers || args.all,
            false => args.only.contains(scenario),
        };
        let smoke = args.smoke;
        let seconds = |usual: u32| args.seconds.unwrap_or(if smoke { 1 } else { usual });
        let stored = match (smoke, args.all) {
            (true, _) => 20_000,
            (false, false) => 1_000_000,
            (false, true) => 10_000_000,
        };
        Self {
            scenarios: Scenario::ALL.into_iter().filter(asked).collect(),
            seconds: seconds(6),
            isolation_seconds: seconds(isolation::SECONDS),
            overload_seconds: seconds(overload::SECONDS),
            rounds: args.rounds.unwrap_or(if smoke { 1 } else { 5 }),
            warm_up_seconds: if smoke { 0.2 } else { 1.0 },
            settle: Duration::from_secs(if smoke { 1 } else { 5 }),
            idle: Duration::from_secs(if smoke { 1 } else { 10 }),
            stored: args.stored.unwrap_or(stored),
            delayed_body_bytes: args.delayed_body_bytes,
            keys: args.keys.unwrap_or(if smoke { 100 } else { 10_000 }),
            schedules: args.schedules.unwrap_or(if smoke { 100 } else { 10_000 }),
            minutes: if smoke { 1 } else { 2 },
            publishes: if smoke { 10 } else { 200 },
            workflow_runs: args.workflow_runs.unwrap_or(if smoke { 50 } else { 1_000 }),
            sleeping_runs: args.sleeping_runs.unwrap_or(if smoke { 500 } else { 100_000 }),
            with_peers: args.peers || args.all,
            judged: !smoke,
        }
    }
}

/// The results of a run. Its summary is committed, its samples are not.
struct Outcome {
    started: String,
    machine: String,
    /// The commit of the sources, with `-dirty` for uncommitted changes; `None` outside a repository.
    commit: Option<String>,
    plan: Plan,
    server: Server,
    /// False if other programs used so much CPU that the figures cannot be compared.
    comparable: bool,
    /// Messages that were acknowledged and then lost, anywhere.
    lost: u64,
    figures: Vec<Figure>,
    plots: Plots,
    warnings: Vec<String>,
    /// Scenarios that could not be finished.
    failures: Vec<String>,
    samples: Samples,
}

/// The server under test.
#[derive(Clone, Debug, Default, Serialize)]
struct Server {
    command: String,
    /// The version that the executable reports; `None` for another command.
    version: Option<String>,
}

/// The raw reports of the single runs.
#[derive(Default, Serialize)]
struct Samples {
    runs: Vec<crate::load::Report>,
    workflows: Vec<workflows::Report>,
}

impl Outcome {
    fn summary(&self) -> serde_json::Result<String> {
        let measurements = summary::measurements(&self.samples.runs, &self.samples.workflows);
        Ok(summary::layout(&[
            ("started", Member::one(&self.started)?),
            ("machine", Member::one(&self.machine)?),
            ("commit", Member::one(&self.commit)?),
            ("server", Member::one(&self.server)?),
            ("plan", Member::one(&self.plan)?),
            ("comparable", Member::one(&self.comparable)?),
            ("lost", Member::one(&self.lost)?),
            ("warnings", Member::list(&self.warnings)?),
            ("failures", Member::list(&self.failures)?),
            ("figures", Member::list(&self.figures)?),
            ("plots", Member::one(&self.plots)?),
            ("measurements", Member::list(&measurements)?),
        ]))
    }
}

/// How long the machine is watched before anything is started.
const UNREST_WATCH: Duration = Duration::from_secs(3);

const EXIT_FAILED: u8 = 1;
/// A message was lost, or delivered before its time.
const EXIT_LOST: u8 = 3;
const EXIT_INTERRUPTED: u8 = 130;

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    // One thread, because the children are tied to the thread that starts them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        // Dropping the comparison ends its children and removes its files.
        tokio::select! {
            outcome = compare(args) => conclude(args, &outcome?),
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
            _ = terminate.recv() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
            _ = hang_up.recv() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        }
    })
}

async fn compare(args: &Args) -> Result<Outcome> {
    let plan = Plan::new(args);
    let started = machine::utc(std::time::SystemTime::now());
    let server_command = server_command(args)?;
    // Results are published, so they contain the path as it was given, not the absolute path on this machine.
    let mut server = server_command.clone();
    if args.server_command.is_none() {
        server[0] = args.server.display().to_string();
    }
    let server = Server { command: server.join(" "), version: version(args)? };
    let (machine, mut warnings) = machine::describe(&args.work_dir)?;
    eprintln!("{machine}");
    if plan.judged {
        let unrest = Unrest::watch(UNREST_WATCH).await.warning(figure::goal::FOREIGN_CPU_PCT);
        unrest.iter().for_each(|warning| eprintln!("warning: {warning}"));
        warnings.extend(unrest);
    }
    let mut bench = Bench::open(plan.clone(), server_command, &args.work_dir).await?;

    let (mut figures, mut failures) = (Vec::new(), Vec::new());
    for (nth, scenario) in (1..).zip(&plan.scenarios) {
        eprintln!("--- {nth}/{}: {scenario:?}", plan.scenarios.len());
        let found = match scenario {
            Scenario::Saturation => scenario::saturation(&mut bench).await,
            Scenario::Publish => scenario::publish(&mut bench).await,
            Scenario::Rate => scenario::fixed_rate(&mut bench).await,
            Scenario::Idle => scenario::idle(&mut bench).await,
            Scenario::Delayed => delayed::measure(&mut bench).await,
            Scenario::Queues => keyed::queues(&mut bench).await,
            Scenario::Flow => keyed::flow(&mut bench).await,
            Scenario::Schedules => schedules::measure(&mut bench).await,
            Scenario::Fanout => fanout::measure(&mut bench).await,
            Scenario::Isolation => isolation::measure(&mut bench).await,
            Scenario::Overload => overload::measure(&mut bench).await,
            Scenario::Workflows => workflows::measure(&mut bench, &args.peers_dir).await,
            Scenario::Console => console::measure(&mut bench).await,
            Scenario::Peers => peers::measure(&mut bench, &args.peers_dir).await,
        };
        match found {
            Ok(found) => figures.extend(found),
            Err(error) => {
                eprintln!("{scenario:?} failed: {error:#}");
                failures.push(format!("{scenario:?}: {error:#}"));
            }
        }
    }
    figures.push(bench.noise.figure());
    let noise = bench.noise.warning();
    let comparable = noise.is_none();
    warnings.extend(noise);
    warnings.append(&mut bench.warnings);
    let lost = bench.lost;
    let plots = std::mem::take(&mut bench.plots);
    let samples = Samples { runs: std::mem::take(&mut bench.runs), workflows: std::mem::take(&mut bench.workflows) };
    Ok(Outcome {
        started,
        machine,
        commit: machine::commit(),
        plan,
        server,
        comparable,
        lost,
        figures,
        plots,
        warnings,
        failures,
        samples,
    })
}

/// The command of the server. Each start fills in `{port}` and `{dir}`.
fn server_command(args: &Args) -> Result<Vec<String>> {
    if let Some(command) = &args.server_command {
        return Ok(command.split_whitespace().map(str::to_owned).collect());
    }
    if !args.server.is_file() {
        bail!("{} does not exist; build it with `cargo xtask dist`", args.server.display());
    }
    if !args.smoke {
        check_profile(args)?;
    }
    let path = std::path::absolute(&args.server)?;
    let path = path.to_str().context("the server's path is not UTF-8")?;
    Ok([path, "dev", "--quiet", "--listen", "127.0.0.1:{port}", "--data-dir", "{dir}/data"].map(str::to_owned).to_vec())
}

/// The version of the server's executable; `None` if another command plays the server.
fn version(args: &Args) -> Result<Option<String>> {
    if args.server_command.is_some() {
        return Ok(None);
    }
    let output = std::process::Command::new(&args.server).arg("--version").output()?;
    Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

/// Rejects builds other than the shipped one, because their figures say nothing.
fn check_profile(args: &Args) -> Result<()> {
    let version = version(args)?.unwrap_or_default();
    if !version.contains("(dist)") {
        bail!("{} is {version}, not a dist build; build one with `cargo xtask dist`", args.server.display());
    }
    Ok(())
}

fn conclude(args: &Args, outcome: &Outcome) -> Result<ExitCode> {
    let name = format!("{}-{}.json", if args.smoke { "smoke" } else { "run" }, outcome.started.replace([':', '-'], ""));
    let summary = outcome.summary()?;
    eprintln!("summary: {}", write(&args.out, &name, &summary)?.display());
    let samples = serde_json::to_string(&outcome.samples)?;
    eprintln!("samples: {}", write(&args.samples_dir, &name, &samples)?.display());
    for (name, picture) in outcome.plots.files() {
        eprintln!("plot: {}", write(&args.out, name, &picture)?.display());
    }
    if args.json {
        print!("{summary}");
    } else {
        println!("{}", render(outcome));
    }
    Ok(ExitCode::from(match outcome {
        Outcome { lost, figures, .. } if *lost > 0 || figures.iter().any(Figure::breaks_promise) => EXIT_LOST,
        Outcome { failures, .. } if !failures.is_empty() => EXIT_FAILED,
        _ => 0,
    }))
}

fn write(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The Markdown that people read and paste.
fn render(outcome: &Outcome) -> String {
    let plan = &outcome.plan;
    let mut text = format!(
        "{}, {}. Medians; rounds: {}, seconds each: {}.\n\n{}",
        outcome.machine,
        outcome.started,
        plan.rounds,
        plan.seconds,
        figure::table(&outcome.figures, plan.judged)
    );
    let lost =
        (outcome.lost > 0).then(|| format!("{} acknowledged messages were lost (warm-ups included)", outcome.lost));
    let problems = lost.iter().map(|lost| ("LOST", lost));
    let problems = problems.chain(outcome.failures.iter().map(|failure| ("FAILED", failure)));
    for (kind, problem) in problems.chain(outcome.warnings.iter().map(|warning| ("WARNING", warning))) {
        text.push_str(&format!("\n**{kind}**: {problem}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Cli::parse_from(std::iter::once("run").chain(line.split_whitespace())).args
    }

    #[test]
    fn smoke_is_short_and_unjudged_but_flags_win() {
        let plan = Plan::new(&args("--smoke"));
        assert_eq!((plan.seconds, plan.rounds, plan.stored, plan.judged), (1, 1, 20_000, false));
        assert_eq!(plan.scenarios, Scenario::ALL[..13]);
        assert_eq!((plan.workflow_runs, plan.sleeping_runs, plan.with_peers), (50, 500, false));
        let plan = Plan::new(&args("--smoke --seconds 2 --only idle,rate"));
        assert_eq!((plan.seconds, plan.scenarios), (2, vec![Scenario::Rate, Scenario::Idle]));
        assert_eq!((plan.isolation_seconds, plan.overload_seconds), (2, 2));
        let plan = Plan::new(&args(""));
        assert_eq!((plan.seconds, plan.rounds, plan.stored, plan.judged), (6, 5, 1_000_000, true));
        assert_eq!((plan.isolation_seconds, plan.overload_seconds), (12, 60));
    }

    #[test]
    fn all_means_peers_and_ten_million_stored() {
        let plan = Plan::new(&args("--all"));
        assert!(plan.with_peers);
        assert_eq!((plan.stored, plan.scenarios), (10_000_000, Scenario::ALL.to_vec()));
        let plan = Plan::new(&args("--all --stored 5 --only peers,delayed"));
        assert_eq!((plan.stored, plan.scenarios), (5, vec![Scenario::Delayed, Scenario::Peers]));
    }

    #[test]
    fn a_missing_server_is_reported_with_the_build_command() {
        let error = server_command(&args("--server /nowhere/posthaste")).unwrap_err().to_string();
        assert!(error.contains("cargo xtask dist"), "{error}");
    }

    #[test]
    fn losses_failures_and_warnings_follow_the_table() {
        let outcome = Outcome {
            started: "2026-01-02T03:04:05Z".into(),
            machine: "a machine".into(),
            commit: None,
            plan: Plan::new(&args("")),
            server: Server::default(),
            comparable: false,
            lost: 2,
            figures: Vec::new(),
            plots: Plots::default(),
            warnings: vec!["noisy".into()],
            failures: vec!["Idle: broken".into()],
            samples: Samples::default(),
        };
        let text = render(&outcome);
        assert!(
            text.starts_with("a machine, 2026-01-02T03:04:05Z. Medians; rounds: 5, seconds each: 6.\n\n| scenario |"),
            "{text}"
        );
        let tail = "\n**LOST**: 2 acknowledged messages were lost (warm-ups included)\n\n**FAILED**: Idle: broken\n\n**WARNING**: noisy\n";
        assert!(text.ends_with(tail), "{text}");
    }
}
