//! The server as a child process.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a start or an end may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much of its output a failure shows.
const LAST_LINES: usize = 12;

/// How a server is started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    data_dir: PathBuf,
    settings: Vec<String>,
    environment: Vec<(&'static str, String)>,
    /// Most open files; as the system has it if `None`.
    descriptors: Option<usize>,
}

impl Launch {
    /// `posthaste dev` on this data, whatever room the disk has.
    pub(crate) fn on(data_dir: &Path) -> Launch {
        let settings = ["--disk-reserve-bytes", "0"].map(str::to_owned).to_vec();
        Launch { data_dir: data_dir.to_owned(), settings, environment: Vec::new(), descriptors: None }
    }

    /// With these flags instead of ours.
    pub(crate) fn with_settings(mut self, settings: &[&str]) -> Launch {
        self.settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        self
    }

    /// With this in its environment.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Launch {
        self.environment.push((name, value.into()));
        self
    }

    /// With so few open files.
    pub(crate) fn with_descriptors(mut self, descriptors: usize) -> Launch {
        self.descriptors = Some(descriptors);
        self
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub(crate) fn spawn(&self) -> Process {
        let binary = env!("CARGO_BIN_EXE_posthaste");
        let mut command = match self.descriptors {
            None => Command::new(binary),
            Some(descriptors) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""), binary]);
                shell
            }
        };
        command.args(["dev", "--listen", "127.0.0.1:0", "--log", "info"]);
        command.args(&self.settings).arg("--data-dir").arg(&self.data_dir);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be started");
        let (address_sender, address) = mpsc::channel();
        let closed_pipes = Arc::new(watch::Sender::new(0));
        let output = Arc::new(Mutex::new(String::new()));
        let (stdout, stderr) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        read_along(stdout, output.clone(), address_sender.clone(), closed_pipes.clone());
        read_along(stderr, output.clone(), address_sender, closed_pipes.clone());
        Process { child, output, address: Mutex::new(address), closed_pipes }
    }
}

/// A running server. It ends with this value.
pub(crate) struct Process {
    child: Child,
    output: Arc<Mutex<String>>,
    address: Mutex<mpsc::Receiver<SocketAddr>>,
    /// Both are closed when it ends.
    closed_pipes: Arc<watch::Sender<usize>>,
}

impl Process {
    /// Waits until it says where it listens; `None` when it ended instead.
    pub(crate) fn try_address(&self) -> Option<SocketAddr> {
        self.address.lock().expect("nobody panicked").recv_timeout(PATIENCE).ok()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.try_address().unwrap_or_else(|| panic!("the server did not start:\n{}", self.last_words()))
    }

    /// SIGKILL: no chance to tidy up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process ends");
    }

    /// SIGTERM: a request to end in order.
    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, Signal::TERM).expect("the process can be signalled");
    }

    /// Waits until it ends by itself; `None` when it goes on for longer than this.
    pub(crate) async fn wait_for(&mut self, patience: Duration) -> Option<ExitStatus> {
        let mut closed = self.closed_pipes.subscribe();
        timeout(patience, closed.wait_for(|closed| *closed == 2)).await.ok()?.expect("the sender is ours");
        Some(self.child.wait().expect("the process ends"))
    }

    /// What it has printed so far.
    pub(crate) fn output(&self) -> String {
        self.output.lock().expect("no reader panics").clone()
    }

    /// The end of what it has printed so far.
    pub(crate) fn last_words(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads a pipe to its end, so that the server never waits for us.
fn read_along(
    pipe: impl Read + Send + 'static,
    output: Arc<Mutex<String>>,
    address: mpsc::Sender<SocketAddr>,
    closed_pipes: Arc<watch::Sender<usize>>,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if let Some((_, rest)) = line.split_once("is running at http://") {
                let _ = address.send(rest.trim().parse().expect("an address"));
            }
            let mut output = output.lock().expect("no reader panics");
            output.push_str(&line);
            output.push('\n');
        }
        closed_pipes.send_modify(|closed| *closed += 1);
    });
}
