//! The service as a process: this test program, started again with another test.

use super::example::service::{self, Settings};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// A running service. It ends when this value is dropped, or with the process that owns it.
pub(crate) struct Worker {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Worker {
    /// Starts it with these variables in addition to its own [`Settings`].
    pub(crate) fn start(environment: &[(&str, String)]) -> Worker {
        let address = SocketAddr::from(([127, 0, 0, 1], super::support::process::free_port()));
        let mut command = program();
        command.envs(environment.iter().cloned()).env("LISTEN", address.to_string());
        Worker { child: command.spawn().unwrap(), address }
    }

    /// Sends SIGKILL: the service has no time to clean up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it in the middle of its work, or continues it.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The command that starts the service.
pub(crate) fn program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["worker::the_service", "--exact", "--ignored", "--nocapture"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

#[test]
#[ignore = "it is no test: others start it as a process"]
fn the_service() {
    // However the test ends, its end of the pipe is closed then.
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { service::serve(&Settings::from_env().unwrap()).await.unwrap() });
}
