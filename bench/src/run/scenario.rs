//! Relay and server in turn under the same load, and the server without any.

use super::Plan;
use super::child::{Child, free_port, this_program, tied_command};
use super::figure::{self, Figure, Goal, Rounds, TARGET, goal, number};
use super::work::Work;
use crate::account::Account;
use crate::http::get_ok;
use crate::load::Report;
use crate::process::{NamedPid, Usage};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// The token of the first development user, as published for `qstash dev`.
pub(super) const AUTHORIZATION: &str =
    "Authorization: Bearer eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=";
const RATE_PER_S: u32 = 500;
const RATE_NAME: &str = "500/s";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Relay,
    Server,
}

/// What all scenarios share. Fields drop in order: children before their files.
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
}

/// A started relay or server with its data directory.
pub(super) struct Target {
    pub(super) child: Child,
    pub(super) side: Side,
    pub(super) dir: TempDir,
}

impl Bench {
    pub(super) async fn open(plan: Plan, server_command: Vec<String>, work_dir: &Path) -> Result<Self> {
        let work = tempfile::Builder::new().prefix(".posthaste-bench-").tempdir_in(work_dir);
        let work = work.with_context(|| format!("cannot make a directory in {}", work_dir.display()))?;
        let port = free_port()?;
        let words = [this_program()?, "sink".into(), "--port".into(), port.to_string()];
        let sink = Child::start("sink", &words, port, "/_stats", work.path()).await?;
        let (noise, warnings, runs) = (Noise::default(), Vec::new(), Vec::new());
        Ok(Self { sink, work, plan, server_command, noise, lost: 0, warnings, runs })
    }

    /// The sink's base URL.
    pub(super) fn sink(&self) -> &str {
        &self.sink.base
    }

    pub(super) fn sink_pid(&self) -> u32 {
        self.sink.pid
    }

    /// Starts one side on a fresh data directory.
    pub(super) async fn start(&self, side: Side) -> Result<Target> {
        self.start_in(side, TempDir::new_in(self.work.path())?).await
    }

    /// Starts one side on a data directory that may hold something. Every start has a port of its own.
    pub(super) async fn start_in(&self, side: Side, dir: TempDir) -> Result<Target> {
        const RELAY: &str = "{bench} ref --mode syncrelay --sign --port {port} --dest {sink}/x --file {dir}/relay.log";
        let relay: Vec<String> = RELAY.split(' ').map(str::to_owned).collect();
        let (name, template) = match side {
            Side::Relay => ("relay", &relay),
            Side::Server => ("server", &self.server_command),
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
        let words: Vec<String> = words.collect();
        let child = Child::start(name, &words, port, "/ready", dir.path()).await?;
        Ok(Target { child, side, dir })
    }

    /// Publishes to `target`, waits for arrival, and keeps count of what was lost.
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
        if work.arrives {
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

    /// One measured run after a warm-up with plain messages.
    pub(super) async fn measure(&mut self, target: &mut Target, label: &str, work: &Work) -> Result<Report> {
        let warm_up = Work::timed(self.sink(), self.plan.warm_up_seconds, work.rate);
        self.load(target, &format!("{label}, warm-up"), &warm_up).await?;
        let report = self.load(target, label, work).await?;
        self.noise.add(label, target.side, report.foreign_cpu_pct);
        eprintln!("{label}: {}", summary(&report));
        self.runs.push(report.clone());
        Ok(report)
    }

    /// Relay and server in turn, each started afresh for its turn.
    async fn rounds(&mut self, name: &str, rate: u32) -> Result<Rounds> {
        let mut rounds = Rounds::default();
        let work = Work::timed(self.sink(), f64::from(self.plan.seconds), rate);
        for round in 1..=self.plan.rounds {
            for side in [Side::Relay, Side::Server] {
                let label = format!("{name} {round}/{}, {side:?}", self.plan.rounds).to_lowercase();
                let mut target = self.start(side).await?;
                let report = self.measure(&mut target, &label, &work).await?;
                self.stop(target).await;
                match side {
                    Side::Relay => rounds.relay.push(report),
                    Side::Server => rounds.server.push(report),
                }
            }
        }
        Ok(rounds)
    }

    /// Ends a target; returns its data directory and how long ending took, if it ended by itself.
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
    Ok(figure::saturation(&bench.rounds("saturation", 0).await?))
}

pub(super) async fn fixed_rate(bench: &mut Bench) -> Result<Vec<Figure>> {
    Ok(figure::fixed_rate(&bench.rounds(RATE_NAME, RATE_PER_S).await?, RATE_NAME))
}

/// A freshly started server that nobody talks to.
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

/// How much CPU programs outside the measurement used, run by run.
#[derive(Default)]
pub(super) struct Noise(Vec<(String, Side, f64)>);

impl Noise {
    pub(super) fn add(&mut self, label: &str, side: Side, foreign_cpu_pct: f64) {
        self.0.push((label.to_owned(), side, foreign_cpu_pct));
    }

    /// The worst run of each side.
    pub(super) fn figure(&self) -> Figure {
        let worst = |of: Side| self.0.iter().filter(|run| run.1 == of).map(|run| run.2).reduce(f64::max);
        let figure = Figure::both("all", "foreign CPU, %, worst run", worst(Side::Relay), worst(Side::Server));
        figure.goal(Goal::AtMost(goal::FOREIGN_CPU_PCT))
    }

    pub(super) fn warning(&self) -> Option<String> {
        let noisy = self.0.iter().filter(|run| run.2 > goal::FOREIGN_CPU_PCT);
        let noisy: Vec<String> = noisy.map(|(label, _, pct)| format!("{label} ({pct}%)")).collect();
        (!noisy.is_empty()).then(|| {
            format!(
                "results are NOT comparable: other programs used more than {}% of the CPU during {}. \
                 Run again on a quiet machine.",
                goal::FOREIGN_CPU_PCT,
                noisy.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_over_the_limit_is_told_by_run() {
        let mut noise = Noise::default();
        noise.add("first", Side::Relay, 15.0);
        noise.add("second", Side::Server, 3.0);
        assert_eq!(noise.warning(), None);
        noise.add("third", Side::Server, 15.1);
        let warning = noise.warning().unwrap();
        assert!(warning.contains("NOT comparable") && warning.contains("third (15.1%)"), "{warning}");
        assert!(!warning.contains("first"), "{warning}");
        assert_eq!((noise.figure().relay, noise.figure().server), (Some(15.0), Some(15.1)));
    }
}
