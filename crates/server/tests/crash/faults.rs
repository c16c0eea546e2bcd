//! A disk that fills up or fails to sync: nothing is acknowledged that is not kept, the process says why it
//! ends, and after the repair everything that was acknowledged is there.
//!
//! These need tools and rights that not every machine has; a test that cannot run says so and passes.

use crate::client::{Client, Response};
use crate::process::Process;
use bytes::Bytes;
use hyper::Method;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::time::interval;

const MIB: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing() {
    let mount_point = tempfile::tempdir().expect("a temporary directory");
    let disk = match SmallDisk::mount(mount_point.path(), 8 * MIB) {
        Ok(disk) => disk,
        Err(reason) => return skipped("a_full_disk_loses_nothing", &reason),
    };
    let data_dir = mount_point.path().join("data");
    let mut server = Process::spawn(&data_dir);
    let outcome = publish_until_it_fails(server.address(), 64 * 1024).await;
    assert_ended_with_a_reason(&mut server, &["full", "space"]);
    assert!(outcome.acknowledged.len() > 10, "only {} were acknowledged", outcome.acknowledged.len());

    disk.grow(64 * MIB);
    assert_all_are_there(&data_dir, &outcome.acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_below_its_reserve_refuses_and_goes_on_when_there_is_room() {
    let mount_point = tempfile::tempdir().expect("a temporary directory");
    let disk = match SmallDisk::mount(mount_point.path(), 8 * MIB) {
        Ok(disk) => disk,
        Err(reason) => return skipped("a_disk_below_its_reserve_refuses_and_goes_on_when_there_is_room", &reason),
    };
    let reserve = (32 * MIB).to_string();
    let mut server = Process::spawn_with(&[], &["--disk-reserve-bytes", &reserve], &mount_point.path().join("data"));
    let (client, address) = (Client::new(), server.address());
    publish_until(&client, address, 503).await;
    assert_eq!(client.get(address, "/ready").await.status, 503);
    assert_eq!(client.get(address, "/health").await.status, 200);

    disk.grow(64 * MIB);
    publish_until(&client, address, 200).await;
    assert_eq!(client.get(address, "/ready").await.status, 200);
    server.kill();
}

/// Publishes until the answer has this status; any other has to be one of the two that may come before it.
async fn publish_until(client: &Client, server: SocketAddr, status: u16) {
    let mut ticks = interval(Duration::from_millis(50));
    let patience = 200;
    for _ in 0..patience {
        let response = publish(client, server, 16).await.expect("an answer");
        if response.status == status {
            return;
        }
        assert!([200, 503].contains(&response.status), "{} {:?}", response.status, response.body);
        ticks.tick().await;
    }
    panic!("no publish was answered with {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fails_to_sync_loses_nothing() {
    // From the 30th sync on, all fail; the first ones belong to the start.
    let inject = "inject=fsync,fdatasync:error=EIO:when=30+";
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", inject];
    if let Err(reason) = can_run(&strace) {
        return skipped("a_disk_that_fails_to_sync_loses_nothing", &reason);
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data_dir = dir.path().join("data");
    let mut server = Process::spawn_under(&strace, &data_dir);
    let outcome = publish_until_it_fails(server.address(), 1024).await;
    assert_ended_with_a_reason(&mut server, &["sync", "I/O"]);
    assert!(!outcome.acknowledged.is_empty(), "nothing was acknowledged");

    assert_all_are_there(&data_dir, &outcome.acknowledged).await;
}

struct Outcome {
    /// Ids of what was answered with 2xx.
    acknowledged: Vec<String>,
}

/// Publishes messages that are due in an hour, a few at a time, until the server takes no more.
async fn publish_until_it_fails(server: SocketAddr, body_bytes: usize) -> Outcome {
    const AT_ONCE: usize = 4;
    const ROUNDS_MAX: usize = 5_000;
    let client = Client::new();
    let mut acknowledged = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let publishes = (0..AT_ONCE).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { publish(&client, server, body_bytes).await })
        });
        let mut failed = false;
        for publish in publishes.collect::<Vec<_>>() {
            match publish.await.expect("no publisher panics") {
                Some(response) if response.status == 200 => {
                    acknowledged.push(response.json()["messageId"].as_str().expect("an id").to_owned());
                }
                Some(response) => {
                    assert_eq!(response.status, 503, "{:?}", response.body);
                    failed = true;
                }
                None => failed = true,
            }
        }
        if failed {
            return Outcome { acknowledged };
        }
    }
    panic!("the server acknowledged {} messages and did not fail", acknowledged.len());
}

async fn publish(client: &Client, server: SocketAddr, body_bytes: usize) -> Option<Response> {
    let target = "/v2/publish/http://127.0.0.1:1/never";
    let headers = [("upstash-delay", "1h".to_owned())];
    client.send(Method::POST, server, target, &headers, Bytes::from(vec![b'x'; body_bytes])).await
}

fn assert_ended_with_a_reason(server: &mut Process, words: &[&str]) {
    let status = server.wait();
    let output = server.output();
    assert!(status.code().is_some_and(|code| code != 0), "ended with {status}:\n{output}");
    assert!(!output.contains("panicked"), "it must end in order:\n{output}");
    let last = output.lines().rev().find(|line| line.starts_with("posthaste: ")).unwrap_or_default();
    assert!(last.contains("the store failed"), "the reason is missing:\n{output}");
    assert!(words.iter().any(|word| last.contains(word)), "the cause ({words:?}) is missing in: {last}");
}

async fn assert_all_are_there(data_dir: &Path, acknowledged: &[String]) {
    let mut server = Process::spawn(data_dir);
    let address = server.address();
    let client = Client::new();
    for id in acknowledged {
        assert_eq!(client.get(address, &format!("/v2/messages/{id}")).await.status, 200, "{id} is lost");
    }
    assert!(client.pending(address).await >= acknowledged.len() as u64);
    let again = publish(&client, address, 1024).await.expect("an answer");
    assert_eq!(again.status, 200, "it takes messages again");
    server.kill();
}

/// A file system of a fixed size, in RAM.
struct SmallDisk<'a> {
    mount_point: &'a Path,
}

impl SmallDisk<'_> {
    fn mount(mount_point: &Path, bytes: usize) -> Result<SmallDisk<'_>, String> {
        let size = format!("size={bytes}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(mount_point))?;
        Ok(SmallDisk { mount_point })
    }

    fn grow(&self, bytes: usize) {
        let options = format!("remount,size={bytes}");
        run(Command::new("mount").args(["-o", &options]).arg(self.mount_point)).expect("it can be made larger");
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        drop(run(Command::new("umount").arg("-l").arg(self.mount_point)));
    }
}

fn can_run(wrapper: &[&str]) -> Result<(), String> {
    run(Command::new(wrapper[0]).args(&wrapper[1..]).arg("true"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn skipped(test: &str, reason: &str) {
    drop(writeln!(std::io::stderr(), "crash: SKIPPED {test}: {reason}"));
}
