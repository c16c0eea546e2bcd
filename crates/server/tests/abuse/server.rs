//! The server under attack: `posthaste serve` with two tenants, as a child process.

use crate::proc::Proc;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often memory is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// Lines of its output that a failure shows.
const LAST_LINES: usize = 6;

pub(crate) const ATTACKER_TOKEN: &str = "attacker-0123456789abcdef";
pub(crate) const NEIGHBOUR_TOKEN: &str = "neighbour-0123456789abcdef";

/// A running server. It ends with this value.
pub(crate) struct Server {
    child: Arc<Mutex<Child>>,
    pub(crate) proc: Proc,
    pub(crate) address: SocketAddr,
    output: Arc<Mutex<String>>,
}

impl Server {
    /// Starts this binary on an empty directory.
    pub(crate) fn start(binary: &Path, directory: &Path, settings: &str) -> Server {
        let config = directory.join("posthaste.toml");
        std::fs::write(&config, configuration(&directory.join("data"), settings)).expect("a file can be written");
        let mut command = Command::new(binary);
        command.args(["serve", "--config"]).arg(config);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be started");
        let (sender, address) = mpsc::channel();
        let output = Arc::new(Mutex::new(String::new()));
        read_along(child.stdout.take().expect("a pipe"), output.clone(), sender.clone());
        read_along(child.stderr.take().expect("a pipe"), output.clone(), sender);
        let proc = Proc(child.id());
        let child = Arc::new(Mutex::new(child));
        let Ok(address) = address.recv_timeout(PATIENCE) else {
            panic!("the server did not start:\n{}", output.lock().expect("no reader panics"))
        };
        Server { child, proc, address, output }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().expect("nobody panicked").try_wait().expect("a child can be asked")
    }

    /// The end of its output.
    pub(crate) fn last_words(&self) -> String {
        let output = self.output.lock().expect("no reader panics");
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// Measures it from now on, and kills it above this much memory over what it has now.
    pub(crate) fn watch(&self, kill_bytes: u64) -> Watch {
        self.proc.reset_peak();
        let first = Sample::take(self.proc).expect("the server runs");
        let (stop, stopped) = mpsc::channel();
        let (child, proc) = (self.child.clone(), self.proc);
        let begun = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut used = Used::default();
            loop {
                let is_last = stopped.recv_timeout(SAMPLE_EVERY) != Err(mpsc::RecvTimeoutError::Timeout);
                let Some(sample) = Sample::take(proc) else { break };
                used.add(&first, &sample);
                if used.rss_over_idle > kill_bytes && !used.was_killed {
                    used.was_killed = true;
                    // It may have ended meanwhile.
                    drop(child.lock().expect("nobody panicked").kill());
                }
                if is_last {
                    break;
                }
            }
            used.elapsed = begun.elapsed();
            used
        });
        Watch { stop, thread }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self.child.lock().expect("nobody panicked");
        drop(child.kill());
        drop(child.wait());
    }
}

/// One look at the process.
struct Sample {
    rss: u64,
    rss_peak: u64,
    cpu: Duration,
    written: u64,
}

impl Sample {
    fn take(proc: Proc) -> Option<Sample> {
        let (rss, rss_peak) = (proc.rss()?, proc.rss_peak()?);
        Some(Sample { rss, rss_peak, cpu: proc.cpu()?, written: proc.written()? })
    }
}

/// The resources that an attack has taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    /// Peak of memory in use, above what was in use before.
    pub(crate) rss_over_idle: u64,
    pub(crate) cpu: Duration,
    pub(crate) written: u64,
    pub(crate) elapsed: Duration,
    /// The suite has killed the server to protect the machine.
    pub(crate) was_killed: bool,
}

impl Used {
    fn add(&mut self, first: &Sample, now: &Sample) {
        self.rss_over_idle = self.rss_over_idle.max(now.rss_peak.saturating_sub(first.rss));
        self.cpu = now.cpu.saturating_sub(first.cpu);
        self.written = now.written.saturating_sub(first.written);
    }
}

/// A measurement in progress.
pub(crate) struct Watch {
    stop: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Used>,
}

impl Watch {
    pub(crate) fn end(self) -> Used {
        // The thread may have ended with the server.
        let _ = self.stop.send(());
        self.thread.join().expect("the thread only reads")
    }
}

fn configuration(data_dir: &Path, settings: &str) -> String {
    let tenant = |name: &str, token: &str| {
        format!(
            "\n[[tenants]]\nname = \"{name}\"\ntoken = \"{token}\"\n\
             current_signing_key = \"sig_{name}_current_0123456789\"\nnext_signing_key = \"sig_{name}_next_0123456789\"\n"
        )
    };
    format!(
        "listen = \"127.0.0.1:0\"\ndata_dir = \"{}\"\negress_allow_cidrs = [\"127.0.0.0/8\"]\n\
         metrics_token = \"metrics-0123456789abcdef\"\nlog_format = \"json\"\nlog = \"info\"\n{settings}\n{}{}",
        data_dir.display(),
        tenant("attacker", ATTACKER_TOKEN),
        tenant("neighbour", NEIGHBOUR_TOKEN),
    )
}

/// Reads a pipe to its end, so that the server never waits for us; finds its address.
fn read_along(pipe: impl Read + Send + 'static, output: Arc<Mutex<String>>, address: mpsc::Sender<SocketAddr>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if line.contains("posthaste is running")
                && let Some((_, rest)) = line.split_once("\"address\":\"")
                && let Some((text, _)) = rest.split_once('"')
            {
                // Only the first is waited for.
                let _ = address.send(text.parse().expect("an address"));
            }
            let mut output = output.lock().expect("no reader panics");
            output.push_str(&line);
            output.push('\n');
        }
    });
}
