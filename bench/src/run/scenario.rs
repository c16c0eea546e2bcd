//! The relay and the server in turn under the same load, and the idle server.

use super::Plan;
use super::child::{Child, free_port, this_program, tied_command};
use super::figure::{self, Figure, Goal, Rounds, TARGET, delivered_per_s, goal, number};
use super::plot::{OURS, Plots};
use super::work::Work;
use crate::account::Account;
use crate::http::get_ok;
use crate::load::Report;
use crate::process::{NamedPid, Usage};
use crate::stats::median;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// The token of the first development user, as published for `qstash dev`.
pub(super) const AUTHORIZATION: &str =
    "Authorization: Bearer eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=";
/// Addresses of the sink from 127.0.1.0 on. Each one is a destination.
pub(super) const SINK_ADDRESSES: u8 = 100;
pub(super) const RATE_PER_S: u32 = 500;
pub(super) const RATE_NAME: &str = "500/s";
/// Its name in plots.
const RELAY_NAME: &str = "signed durable relay";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The signed durable relay.
    Relay,
    /// The server that only appends, syncs and responds.
    Append,
    /// Another system.
    Peer,
    Server,
}

/// The state that all scenarios share. Fields drop in order: children before their files.
pub(super) struct Bench {
    sink: Child,
    work: TempDir,
    pub(super) plan: Plan,
    server_command: Vec<String>,
    pub(super) noise: Noise,
    /// Acknowledged messages that were lost, on either side.
    pub(super) lost: u64,
    pub(super) warnings: Vec<String>,
    pub(super) runs: Vec<Report>,
    /// The measurements of workflows.
    pub(super) workflows: Vec<super::workflows::Report>,
    pub(super) plots: Plots,
}

/// A started relay or server with its data directory. Fields drop in order: children before their files.
pub(super) struct Target {
    pub(super) child: Child,
    /// Other processes that it needs.
    pub(super) helpers: Vec<Child>,
    /// Processes that belong to the measurement, so their time is not foreign.
    pub(super) beside: Vec<u32>,
    pub(super) side: Side,
    pub(super) dir: TempDir,
}

impl Bench {
    pub(super) async fn open(plan: Plan, server_command: Vec<String>, work_dir: &Path) -> Result<Self> {
        let work = tempfile::Builder::new().prefix(".posthaste-bench-").tempdir_in(work_dir);
        let work = work.with_context(|| format!("cannot make a directory in {}", work_dir.display()))?;
        let port = free_port()?;
        let words = [
            this_program()?,
            "sink".into(),
            "--port".into(),
            port.to_string(),
            format!("--addresses={SINK_ADDRESSES}"),
        ];
        let sink = Child::start("sink", &words, port, "/_stats", work.path()).await?;
        let (noise, plots) = (Noise::default(), Plots::default());
        let (warnings, runs, workflows) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { sink, work, plan, server_command, noise, lost: 0, warnings, runs, workflows, plots })
    }

    /// The sink's base URL.
    pub(super) fn sink(&self) -> &str {
        &self.sink.base
    }

    /// Where data directories are created.
    pub(super) fn work_path(&self) -> &Path {
        self.work.path()
    }

    pub(super) fn sink_pid(&self) -> u32 {
        self.sink.pid
    }

    /// Starts one side on a fresh data directory.
    pub(super) async fn start(&self, side: Side) -> Result<Target> {
        self.start_in(side, TempDir::new_in(self.work.path())?).await
    }

    /// Starts one side on a data directory that may contain data. Every start has its own port.
    pub(super) async fn start_in(&self, side: Side, dir: TempDir) -> Result<Target> {
        self.start_by(side, dir, &[]).await
    }

    /// Like [`Self::start_in`], with words in front of the command: those of a program that becomes the command.
    pub(super) async fn start_by(&self, side: Side, dir: TempDir, before: &[String]) -> Result<Target> {
        const RELAY: &str = "{bench} ref --mode syncrelay --sign --port {port} --dest {sink}/x --file {dir}/relay.log";
        const APPEND: &str = "{bench} ref --mode sync --port {port} --file {dir}/append.log";
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        let (name, template): (_, Vec<String>) = match side {
            Side::Relay => ("relay", words(RELAY)),
            Side::Append => ("append", words(APPEND)),
            Side::Server => ("server", self.server_command.clone()),
            Side::Peer => bail!("a peer is not started like a server"),
        };
        let port = free_port()?;
        let path = std::path::absolute(dir.path())?;
        let words = [
            ("{bench}", this_program()?),
            ("{port}", port.to_string()),
            ("{dir}", path.to_str().context("the working directory is not UTF-8")?.to_owned()),
            ("{sink}", self.sink().to_owned()),
        ];
        let words = template.iter().map(|word| words.iter().fold(word.clone(), |w, (from, to)| w.replace(from, to)));
        let words: Vec<String> = before.iter().cloned().chain(words).collect();
        let child = Child::start(name, &words, port, "/ready", dir.path()).await?;
        Ok(Target { child, helpers: Vec::new(), beside: Vec::new(), side, dir })
    }

    /// Publishes to `target`, waits for the arrival, and counts lost messages.
    pub(super) async fn load(&mut self, target: &mut Target, label: &str, work: &Work) -> Result<Report> {
        get_ok(self.sink(), "/_reset").await?;
        let mut words = vec![this_program()?];
        words.extend(work.words(target, self.sink(), label));
        let limit = Duration::from_secs_f64(work.limit_s());
        let load = tied_command(&words)?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = tokio::time::timeout(limit, load.wait_with_output()).await;
        target.child.check_alive()?;
        let output = output.with_context(|| format!("the load generator did not end in {limit:?}"))??;
        if !output.status.success() {
            bail!("the load generator failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let report: Report = serde_json::from_slice(&output.stdout).context("the load generator's report")?;
        self.take_stock(&report)?;
        if work.arrives && target.side != Side::Peer {
            self.lost += report.delivery.as_ref().map_or(report.acked, |delivery| delivery.missing);
        }
        Ok(report)
    }

    fn take_stock(&mut self, report: &Report) -> Result<()> {
        let error = report.first_error.as_deref().unwrap_or("no error was reported");
        if report.acked == 0 {
            bail!("{}: no message was acknowledged: {error}", report.label);
        }
        if report.errors > 0 {
            let Report { label, errors, .. } = report;
            self.warnings.push(format!("{label}: {errors} publishes failed, the first with: {error}"));
        }
        Ok(())
    }

    /// One measured run after a warm-up. The warm-up uses plain messages, or the same messages if they do not arrive.
    pub(super) async fn measure(&mut self, target: &mut Target, label: &str, work: &Work) -> Result<Report> {
        let report = self.load_warm(target, label, work).await?;
        self.keep(label, target.side, &report);
        Ok(report)
    }

    /// Like [`Self::measure`], but does not record the run yet, because it may have to be repeated.
    pub(super) async fn load_warm(&mut self, target: &mut Target, label: &str, work: &Work) -> Result<Report> {
        let seconds = self.plan.warm_up_seconds;
        let warm_up = match work.arrives {
            true => Work::timed(self.sink(), seconds, work.rate),
            false => Work { seconds, ..work.clone() },
        };
        self.load(target, &format!("{label}, warm-up"), &warm_up).await?;
        self.load(target, label, work).await
    }

    /// Logs the result of a run, and records it.
    pub(super) fn keep(&mut self, label: &str, side: Side, report: &Report) {
        self.noise.add(label, side, report.foreign_cpu_pct);
        eprintln!("{label}: {}", summary(report));
        self.runs.push(report.clone());
    }

    /// A reference and the server in turn, each started afresh for its turn. A round that other programs disturbed is
    /// repeated, up to as many times as there are rounds.
    async fn rounds(&mut self, name: &str, reference: Side, work: &Work) -> Result<Rounds> {
        let mut rounds = Rounds::default();
        let mut again = Repeats::new(&self.plan);
        let mut round = 1;
        while round <= self.plan.rounds {
            let mut reports = Vec::new();
            for side in [reference, Side::Server] {
                let label = format!("{name} {round}/{}, {side:?}", self.plan.rounds).to_lowercase();
                let mut target = self.start(side).await?;
                reports.push((side, self.load_warm(&mut target, &label, work).await?, label));
                self.stop(target).await;
            }
            if again.is_due(reports.iter().map(|(_, report, _)| report)) {
                continue;
            }
            for (side, report, label) in reports {
                self.keep(&label, side, &report);
                match side {
                    Side::Server => rounds.server.push(report),
                    Side::Relay | Side::Append | Side::Peer => rounds.reference.push(report),
                }
            }
            round += 1;
        }
        Ok(rounds)
    }

    /// Stops a target. Returns its data directory, and how long it took to stop, if it stopped normally.
    pub(super) async fn stop(&mut self, target: Target) -> (TempDir, Option<f64>) {
        match target.child.stop().await {
            Ok(seconds) => (target.dir, Some(seconds)),
            Err(error) => {
                self.warnings.push(format!("{error:#}"));
                (target.dir, None)
            }
        }
    }
}

pub(super) async fn saturation(bench: &mut Bench) -> Result<Vec<Figure>> {
    let work = Work::timed(bench.sink(), f64::from(bench.plan.seconds), 0);
    let rounds = bench.rounds("saturation", Side::Relay, &work).await?;
    for (name, reports) in [(RELAY_NAME, &rounds.reference), (OURS, &rounds.server)] {
        bench
            .plots
            .delivered
            .extend(median(reports.iter().filter_map(delivered_per_s)).map(|rate| (name.into(), rate)));
    }
    Ok(figure::saturation(&rounds))
}

/// Publishes without deliveries: the capacity of the path to the disk.
pub(super) async fn publish(bench: &mut Bench) -> Result<Vec<Figure>> {
    const SCENARIO: &str = "publish";
    let work = Work::stored(bench.sink(), f64::from(bench.plan.seconds));
    Ok(figure::publishes(&bench.rounds(SCENARIO, Side::Append, &work).await?, SCENARIO))
}

pub(super) async fn fixed_rate(bench: &mut Bench) -> Result<Vec<Figure>> {
    let work = Work::timed(bench.sink(), f64::from(bench.plan.seconds), RATE_PER_S);
    let rounds = bench.rounds(RATE_NAME, Side::Relay, &work).await?;
    for (name, reports) in [(RELAY_NAME, &rounds.reference), (OURS, &rounds.server)] {
        bench.plots.latency.extend(figure::latency(reports).map(|latency| (name.into(), latency)));
    }
    Ok(figure::fixed_rate(&rounds, RATE_NAME))
}

/// A freshly started server without requests.
pub(super) async fn idle(bench: &mut Bench) -> Result<Vec<Figure>> {
    const SCENARIO: &str = "idle";
    let target = bench.start(Side::Server).await?;
    tokio::time::sleep(bench.plan.settle).await;
    let account = Account::open(vec![NamedPid { name: TARGET.into(), pid: target.child.pid }]);
    tokio::time::sleep(bench.plan.idle).await;
    let cpu_pct = account.read().cpu_s_of(TARGET) / bench.plan.idle.as_secs_f64() * 100.0;
    let rss_mb = Usage::of_tree(target.child.pid).rss_mb;
    eprintln!("idle: {} MB, {}% of a core", number(rss_mb), number(cpu_pct));
    bench.stop(target).await;
    Ok(vec![
        Figure::server(SCENARIO, "RSS, MB", Some(rss_mb)).goal(goal::IDLE_RSS_MB),
        Figure::server(SCENARIO, "CPU, % of a core", Some(cpu_pct)).goal(goal::IDLE_CPU_PCT),
    ])
}

fn summary(report: &Report) -> String {
    let mut text = format!("{} published/s", number(report.publish_per_s));
    if let Some(delivery) = &report.delivery {
        text.push_str(&format!(", {} delivered/s, {} missing", number(delivery.delivered_per_s), delivery.missing));
    }
    text.push_str(&format!(", foreign CPU {}%", number(report.foreign_cpu_pct)));
    text
}

/// How many disturbed rounds may still be repeated: as many as there are rounds. On a machine that is never quiet, the
/// measurement therefore ends, with a warning.
#[derive(Default)]
pub(super) struct Repeats(u32);

impl Repeats {
    pub(super) fn new(plan: &Plan) -> Self {
        Self(plan.rounds)
    }

    /// Whether the round with these runs must be repeated. Logs the reason.
    pub(super) fn is_due<'a>(&mut self, runs: impl IntoIterator<Item = &'a Report>) -> bool {
        let noisy = runs.into_iter().find(|run| run.foreign_cpu_pct > goal::FOREIGN_CPU_PCT);
        match noisy {
            Some(run) if self.0 > 0 => {
                self.0 -= 1;
                eprintln!("{}: disturbed by others ({}% CPU), once more", run.label, number(run.foreign_cpu_pct));
                true
            }
            _ => false,
        }
    }
}

/// The CPU that other programs used, for each run.
#[derive(Default)]
pub(super) struct Noise(Vec<(String, Side, f64)>);

/// Most noisy runs that a warning names.
const WORST_NAMED: usize = 3;

impl Noise {
    pub(super) fn add(&mut self, label: &str, side: Side, foreign_cpu_pct: f64) {
        self.0.push((label.to_owned(), side, foreign_cpu_pct));
    }

    /// The worst run of each side.
    pub(super) fn figure(&self) -> Figure {
        let worst = |server: bool| {
            self.0.iter().filter(|run| (run.1 == Side::Server) == server).map(|run| run.2).reduce(f64::max)
        };
        let figure = Figure::both("all", "foreign CPU, %, worst run", worst(false), worst(true));
        figure.goal(Goal::AtMost(goal::FOREIGN_CPU_PCT))
    }

    pub(super) fn warning(&self) -> Option<String> {
        let mut noisy: Vec<_> = self.0.iter().filter(|run| run.2 > goal::FOREIGN_CPU_PCT).collect();
        noisy.sort_by(|a, b| b.2.total_cmp(&a.2));
        let worst: Vec<String> =
            noisy.iter().take(WORST_NAMED).map(|(label, _, pct)| format!("{label} ({pct}%)")).collect();
        (!noisy.is_empty()).then(|| {
            format!(
                "results are NOT comparable: others used more than {}% of the CPU during {} of {} runs, most during {}. \
                 Run again on a quiet machine.",
                goal::FOREIGN_CPU_PCT,
                noisy.len(),
                self.0.len(),
                worst.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_names_the_runs_with_noise_over_the_limit() {
        let mut noise = Noise::default();
        noise.add("first", Side::Relay, 15.0);
        noise.add("second", Side::Server, 3.0);
        assert_eq!(noise.warning(), None);
        noise.add("third", Side::Server, 15.1);
        let warning = noise.warning().unwrap();
        assert!(warning.contains("NOT comparable") && warning.contains("third (15.1%)"), "{warning}");
        assert!(!warning.contains("first"), "{warning}");
        assert_eq!((noise.figure().reference, noise.figure().server), (Some(15.0), Some(15.1)));
    }
}
