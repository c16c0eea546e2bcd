//! Child processes. They are started, awaited, and ended by their id, also when this process ends early.
//!
//! There are three mechanisms: [`Child::stop`] in the normal course, `Drop` after errors and signals, and `tied` (the
//! kernel kills the child when this process ends) in all other cases.

use crate::clock::{now_ns, seconds_between};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

const READY_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a child may take to end after an early exit of this process.
const DROP_TIMEOUT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);

/// How a child shows that it is ready.
pub(super) enum Ready<'a> {
    /// It responds to a GET of this path with 200.
    Path(&'a str),
    /// It accepts connections.
    Port,
}

impl<'a> From<&'a str> for Ready<'a> {
    fn from(path: &'a str) -> Self {
        Self::Path(path)
    }
}

pub(super) struct Child {
    name: String,
    process: tokio::process::Child,
    pub(super) pid: u32,
    /// `http://127.0.0.1:port`
    pub(super) base: String,
    log: PathBuf,
    /// Seconds from its start until it was ready.
    pub(super) ready_s: f64,
}

impl Child {
    /// Starts `words` and waits until it is ready. Its output goes to a file in `dir`.
    pub(super) async fn start<'a>(
        name: &str,
        words: &[String],
        port: u16,
        ready: impl Into<Ready<'a>>,
        dir: &Path,
    ) -> Result<Self> {
        let ready = ready.into();
        let log = dir.join(format!("{name}.out"));
        let output = std::fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let start_ns = now_ns();
        let process = tied_command(words)?.stdout(output.try_clone()?).stderr(output).spawn();
        let process = process.with_context(|| format!("cannot start {name}"))?;
        let pid = process.id().context("the child has already ended")?;
        let base = format!("http://127.0.0.1:{port}");
        let mut child = Self { name: name.into(), process, pid, base, log, ready_s: 0.0 };
        loop {
            let is_ready = match ready {
                Ready::Path(path) => {
                    matches!(crate::http::get(&child.base, path, &[], Duration::from_secs(1)).await, Ok((200, _)))
                }
                Ready::Port => tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok(),
            };
            if is_ready {
                child.ready_s = seconds_between(start_ns, now_ns());
                return Ok(child);
            }
            child.check_alive()?;
            if seconds_between(start_ns, now_ns()) > READY_TIMEOUT.as_secs_f64() {
                bail!("{name} was not ready after {READY_TIMEOUT:?}; its last words:\n{}", child.last_words());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns an error with its last output if the child has ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("{} ended ({status}); its last words:\n{}", self.name, self.last_words());
        }
        Ok(())
    }

    /// Asks the child to end, waits for it, and returns how many seconds that took.
    pub(super) async fn stop(mut self) -> Result<f64> {
        let start_ns = now_ns();
        self.signal(Signal::TERM);
        match tokio::time::timeout(STOP_TIMEOUT, self.process.wait()).await {
            Ok(status) => drop(status?),
            Err(_) => bail!("{} did not end {STOP_TIMEOUT:?} after SIGTERM", self.name),
        }
        Ok(seconds_between(start_ns, now_ns()))
    }

    /// Kills the child, for one that would wait for something endless and has nothing to lose.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.process.kill().await.with_context(|| format!("{} cannot be ended", self.name))
    }

    fn signal(&self, signal: Signal) {
        // `id` is `None` once the child was awaited, so that a reused id is never signalled.
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(8192)..]).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn ended_within(&mut self, limit: Duration) -> bool {
        let start_ns = now_ns();
        while !matches!(self.process.try_wait(), Ok(Some(_))) {
            if seconds_between(start_ns, now_ns()) > limit.as_secs_f64() {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        if !self.ended_within(DROP_TIMEOUT) {
            self.signal(Signal::KILL);
            self.ended_within(DROP_TIMEOUT);
        }
    }
}

/// A command that the kernel kills when this process ends. It has its own process group (so that Ctrl-C reaches only
/// this process), and no settings from our environment.
pub(super) fn tied_command(words: &[String]) -> Result<Command> {
    let mut command = Command::new(this_program()?);
    command.arg("tied").arg("--parent").arg(std::process::id().to_string()).arg("--").args(words);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POSTHASTE_") {
            command.env_remove(name);
        }
    }
    // The whole load comes from one address. Versions before this setting ignore it.
    command.env("POSTHASTE_CONNECTIONS_PER_ADDRESS", "10000");
    command.process_group(0).stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

pub(super) fn this_program() -> Result<String> {
    let path = std::env::current_exe()?;
    Ok(path.to_str().context("the path of this program is not UTF-8")?.to_owned())
}

/// A free loopback port.
pub(super) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
