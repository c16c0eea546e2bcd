//! The server as a child process.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a start or an end may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Process {
    child: Child,
    output: Arc<Mutex<String>>,
    address: Receiver<SocketAddr>,
    ended: Receiver<()>,
}

impl Process {
    /// Starts `posthaste dev` on this data, whatever room the disk has.
    pub(crate) fn spawn(data_dir: &Path) -> Process {
        Process::spawn_under(&[], data_dir)
    }

    /// The same, run by another program, such as `strace` with its arguments.
    pub(crate) fn spawn_under(wrapper: &[&str], data_dir: &Path) -> Process {
        Process::spawn_with(wrapper, &["--disk-reserve-bytes", "0"], data_dir)
    }

    /// The same, with settings.
    pub(crate) fn spawn_with(wrapper: &[&str], settings: &[&str], data_dir: &Path) -> Process {
        let words: Vec<&str> = [wrapper, &[env!("CARGO_BIN_EXE_posthaste")]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["dev", "--listen", "127.0.0.1:0", "--log", "info"]);
        command.args(settings).arg("--data-dir").arg(data_dir);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be started");
        let (address_sender, address) = channel();
        let (ended_sender, ended) = channel();
        let output = Arc::new(Mutex::new(String::new()));
        let (stdout, stderr) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        read_along(stdout, output.clone(), address_sender.clone(), ended_sender.clone());
        read_along(stderr, output.clone(), address_sender, ended_sender);
        Process { child, output, address, ended }
    }

    /// Waits until it says where it listens; `None` when it ended instead.
    pub(crate) fn try_address(&self) -> Option<SocketAddr> {
        self.address.recv_timeout(PATIENCE).ok()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.try_address().unwrap_or_else(|| panic!("the server did not start:\n{}", self.output()))
    }

    /// SIGKILL: no chance to tidy up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process ends");
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        // Both pipes are closed when it ends.
        for _ in 0..2 {
            if self.ended.recv_timeout(PATIENCE).is_err() {
                self.kill();
                panic!("the server should have ended, but goes on:\n{}", self.output());
            }
        }
        self.child.wait().expect("the process ends")
    }

    /// What it has printed so far.
    pub(crate) fn output(&self) -> String {
        self.output.lock().expect("no reader panics").clone()
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
    address: Sender<SocketAddr>,
    ended: Sender<()>,
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
        let _ = ended.send(());
    });
}
