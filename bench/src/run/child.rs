//! Child processes: started, waited for, ended by their id, also when we end early.
//!
//! Three nets: [`Child::stop`] in the normal course, `Drop` on errors and signals, and `tied` (the kernel
//! kills the child when this process is gone) for everything else.

use crate::clock::{now_ns, seconds_between};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

const READY_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a child gets to end by itself when we have to leave.
const DROP_TIMEOUT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);

/// How a child shows that it is ready.
pub(super) enum Ready<'a> {
    /// It answers a GET for this path with 200.
    Path(&'a str),
    /// It takes connections.
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
    /// From the start until it was ready.
    pub(super) ready_s: f64,
}

impl Child {
    /// Starts `words` and waits until it is ready. Output goes to a file in `dir`.
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

    /// An error with its last words when the child has ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("{} ended ({status}); its last words:\n{}", self.name, self.last_words());
        }
        Ok(())
    }

    /// Asks the child to end and waits for it; returns how many seconds that took.
    pub(super) async fn stop(mut self) -> Result<f64> {
        let start_ns = now_ns();
        self.signal(Signal::TERM);
        match tokio::time::timeout(STOP_TIMEOUT, self.process.wait()).await {
            Ok(status) => drop(status?),
            Err(_) => bail!("{} did not end {STOP_TIMEOUT:?} after SIGTERM", self.name),
        }
        Ok(seconds_between(start_ns, now_ns()))
    }

    /// Ends the child at once, for one that would wait for what never ends and has nothing left to lose.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.process.kill().await.with_context(|| format!("{} cannot be ended", self.name))
    }

    fn signal(&self, signal: Signal) {
        // `id` is `None` once the child has been waited for, so that a reused id is never hit.
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

/// A command that the kernel kills when this process ends, in a process group of its own (so that Ctrl-C
/// reaches only us), without settings from our environment.
pub(super) fn tied_command(words: &[String]) -> Result<Command> {
    let mut command = Command::new(this_program()?);
    command.arg("tied").arg("--parent").arg(std::process::id().to_string()).arg("--").args(words);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POSTHASTE_") {
            command.env_remove(name);
        }
    }
    // All of the load comes from one address. Versions before this setting ignore it.
    command.env("POSTHASTE_CONNECTIONS_PER_ADDRESS", "10000");
    command.process_group(0).stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

pub(super) fn this_program() -> Result<String> {
    let path = std::env::current_exe()?;
    Ok(path.to_str().context("the path of this program is not UTF-8")?.to_owned())
}

/// A loopback port that nobody listens on.
pub(super) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
