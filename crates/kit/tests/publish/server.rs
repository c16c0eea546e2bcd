//! The real server, as a child process on a free port, with its own data.

use crate::PATIENCE;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use tempfile::TempDir;

/// The first of the published development users.
pub(crate) const TOKEN: &str = "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=";
/// Its signing keys.
pub(crate) const SIGNING_KEYS: [&str; 2] = ["sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r", "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs"];

/// A running server, which is killed when this value is dropped.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    data: TempDir,
}

impl Server {
    pub(crate) fn start() -> Server {
        let data = TempDir::new().unwrap();
        let (child, address) = spawn(&data, "127.0.0.1:0");
        Server { child, address, data }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends SIGKILL: no chance to clean up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again on the same port, with the data that it left.
    pub(crate) fn restart(&mut self) {
        let (child, address) = spawn(&self.data, &self.address.to_string());
        assert_eq!(address, self.address);
        self.child = child;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("POSTHASTE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("posthaste");
    assert!(built.exists(), "there is no {}: cargo build -p posthaste, or set POSTHASTE_BIN", built.display());
    built
}

fn spawn(data: &TempDir, listen: &str) -> (Child, SocketAddr) {
    let mut command = Command::new(binary());
    command
        .args(["dev", "--listen", listen, "--log", "info", "--disk-reserve-bytes", "0", "--data-dir"])
        .arg(data.path());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
        command.env_remove(name);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (said, address) = mpsc::channel();
    read_along(child.stdout.take().unwrap(), said.clone());
    read_along(child.stderr.take().unwrap(), said);
    let mut lines = Vec::new();
    loop {
        match address.recv_timeout(PATIENCE) {
            Ok(line) => {
                if let Some((_, rest)) = line.split_once("is running at http://") {
                    return (child, rest.trim().parse().unwrap());
                }
                lines.push(line);
            }
            Err(_) => {
                drop(child.kill());
                drop(child.wait());
                panic!("the server did not start:\n{}", lines.join("\n"));
            }
        }
    }
}

/// Reads a pipe to its end, so that the server never blocks on it.
fn read_along(pipe: impl Read + Send + 'static, lines: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // After the start there is no receiver any more.
            let _ = lines.send(line);
        }
    });
}
