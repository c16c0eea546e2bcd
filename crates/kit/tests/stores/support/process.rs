//! A server that the tests start, and that always ends with them.

use super::wait::until;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts the server and waits for the end of its input, which comes when the test drops it or dies. A stopped server
/// must be continued, so that it can shut down.
const WATCHDOG: &str = r#"
"$@" </dev/null >>"$LOG" 2>&1 &
server=$!
echo $server
exec 2>>"$LOG"
read -r _
kill -CONT $server 2>/dev/null
kill "-$END" $server 2>/dev/null
wait $server
"#;

pub(crate) struct Process {
    watchdog: Child,
    pid: Pid,
}

impl Process {
    /// Starts a server. The command comes from [`Process::command`], and may also set a user.
    pub(crate) fn start(command: &mut Command) -> Process {
        let mut watchdog = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(watchdog.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        Process { watchdog, pid }
    }

    /// The command of a server, its log file, and the signal that ends it immediately.
    pub(crate) fn command(words: &[&str], log: &Path, end: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", WATCHDOG, "watchdog"]).args(words).env("LOG", log).env("END", end);
        command
    }

    /// Kills the server and all its child processes. Returns when they have ended.
    pub(crate) async fn kill(self) {
        // A stopped server starts no further processes that would be missed.
        kill(self.pid, Signal::STOP);
        let all = self.all();
        all.iter().for_each(|pid| kill(*pid, Signal::KILL));
        ended(&all).await;
    }

    /// Asks the server to shut down. Returns when it has ended.
    #[cfg(feature = "postgres")]
    pub(crate) async fn shut_down(self) {
        let all = self.all();
        kill(self.pid, Signal::INT);
        ended(&all).await;
    }

    /// Sends a signal to the server and its child processes.
    pub(crate) fn signal_all(&self, signal: Signal) {
        self.all().into_iter().for_each(|pid| kill(pid, signal));
    }

    /// The server and its direct child processes.
    fn all(&self) -> Vec<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid.as_raw_nonzero());
        let children = std::fs::read_to_string(path).unwrap();
        let children = children.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
        children.chain([self.pid]).collect()
    }

    fn end(&mut self) {
        drop(self.watchdog.stdin.take());
        self.watchdog.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

async fn ended(all: &[Pid]) {
    until("the end of a server", || async {
        let left: Vec<_> = all.iter().filter(|pid| !has_ended(**pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} run")) }
    })
    .await;
}

/// Ignores errors, because some processes end when another one does.
fn kill(pid: Pid, signal: Signal) {
    match kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Whether a process has ended, including one that was not reaped yet.
fn has_ended(pid: Pid) -> bool {
    match std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
