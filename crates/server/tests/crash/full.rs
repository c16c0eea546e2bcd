//! A disk that fills up: nothing is acknowledged that is not kept, the process says why it ends, and after the repair
//! everything that was acknowledged is there. Below its reserve it refuses new messages and delivers the old ones.
//!
//! Needs root, for small file systems in RAM.

use crate::checker::Counts;
use crate::client::{Client, Response};
use crate::history::History;
use crate::process::Launch;
use crate::report::Row;
use crate::tools::{may_mount, run};
use crate::witness::{Witness, body_of};
use bytes::Bytes;
use hyper::Method;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::time::interval;

pub(crate) const KIND: &str = "full disk";
const MIB: usize = 1024 * 1024;
/// How long the end of a server may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Messages that wait while the disk is below its reserve.
const WAITING: usize = 20;

/// Both: the disk of one server runs full, that of another only below its reserve.
pub(crate) async fn run_both() -> Row {
    let mut row = Row::new(KIND);
    for fault in [Fault::Full, Fault::BelowReserve] {
        let disk = match SmallDisk::mount(if fault == Fault::Full { 8 * MIB } else { 64 * MIB }) {
            Ok(disk) => disk,
            Err(reason) => return Row::skipped(KIND, reason),
        };
        let counts = match fault {
            Fault::Full => runs_full(&disk).await,
            Fault::BelowReserve => falls_below_its_reserve(&disk).await,
        };
        row.add_counts(&counts);
        row.cycles += 1;
    }
    row.expect_deliveries();
    row
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Full,
    BelowReserve,
}

/// Publishes until the server ends for want of room, and looks for everything when there is some again.
async fn runs_full(disk: &SmallDisk) -> Counts {
    // The quota of its one tenant would refuse it before the disk is full.
    let launch = Launch::on(&disk.data_dir()).with("POSTHASTE_MAX_STORED_BYTES", "1000000000");
    let mut server = launch.spawn();
    let acknowledged = publish_until_it_fails(server.address(), 64 * 1024).await;
    let status = server.wait_for(PATIENCE).await.expect("a server without a disk ends");
    let output = server.output();
    assert!(status.code().is_some_and(|code| code != 0), "ended with {status}:\n{}", server.last_words());
    assert!(!output.contains("panicked"), "it must end in order:\n{}", server.last_words());
    let last = output.lines().rev().find(|line| line.starts_with("posthaste: ")).unwrap_or_default();
    assert!(last.contains("the store failed"), "the reason is missing:\n{}", server.last_words());
    assert!(["full", "space"].iter().any(|word| last.contains(word)), "the cause is missing in: {last}");
    assert!(acknowledged.len() > 10, "only {} were acknowledged", acknowledged.len());

    disk.grow(64 * MIB);
    let mut server = launch.spawn();
    let (client, address) = (Client::new(), server.address());
    for id in &acknowledged {
        assert_eq!(client.get(address, &format!("/v2/messages/{id}")).await.status, 200, "{id} is lost");
    }
    assert!(client.pending(address).await >= acknowledged.len() as u64);
    let again = publish(&client, address, NEVER, "1h", vec![b'x'; 1024]).await.expect("an answer");
    assert_eq!(again.status, 200, "it takes messages again");
    server.kill();
    Counts { acknowledged: acknowledged.len(), ..Counts::default() }
}

/// Takes away the room: new messages are refused, those that wait are delivered. Gives it back: all goes on.
async fn falls_below_its_reserve(disk: &SmallDisk) -> Counts {
    let reserve = (32 * MIB).to_string();
    let launch = Launch::on(&disk.data_dir()).with_settings(&["--disk-reserve-bytes", &reserve]);
    let mut server = launch.spawn();
    let (client, address, witness) = (Client::new(), server.address(), Witness::start().await);
    for number in 0..WAITING {
        let key = format!("waiting{number}");
        let target = format!("/v2/publish/http://{}/plain/{key}", witness.address);
        let response = publish(&client, address, &target, "3s", body_of(&key).into()).await.expect("an answer");
        assert_eq!(response.status, 200, "{:?}", response.body);
    }
    disk.fill(40 * MIB);
    publish_until(&client, address, 503).await;
    assert_eq!(client.get(address, "/ready").await.status, 503);
    assert_eq!(client.get(address, "/health").await.status, 200);
    let arrivals = wait_for_arrivals(&witness, WAITING).await;
    assert_eq!(client.get(address, "/ready").await.status, 503, "there was room meanwhile");

    disk.empty();
    publish_until(&client, address, 200).await;
    assert_eq!(client.get(address, "/ready").await.status, 200);
    server.kill();
    Counts { acknowledged: WAITING, delivered: WAITING, duplicates: arrivals - WAITING, ..Counts::default() }
}

/// Waits until so many messages have arrived; says how many requests that took.
async fn wait_for_arrivals(witness: &Witness, count: usize) -> usize {
    let mut ticks = interval(Duration::from_millis(50));
    for _ in 0..1_200 {
        let mut history = History::default();
        witness.tell(&mut history);
        let mut keys: Vec<&str> = history.arrivals.iter().map(|arrival| arrival.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.len() == count {
            return history.arrivals.len();
        }
        ticks.tick().await;
    }
    panic!("what waits is not delivered while the disk is below its reserve");
}

/// Publishes until the answer has this status; any other has to be one of the two that may come before it.
async fn publish_until(client: &Client, server: SocketAddr, status: u16) {
    let mut ticks = interval(Duration::from_millis(50));
    let patience = 1_200;
    for _ in 0..patience {
        let response = publish(client, server, NEVER, "1h", vec![b'x'; 16]).await.expect("an answer");
        if response.status == status {
            return;
        }
        assert!([200, 503].contains(&response.status), "{} {:?}", response.status, response.body);
        ticks.tick().await;
    }
    panic!("no publish was answered with {status}");
}

/// Publishes messages that are due in an hour, a few at a time, until the server takes no more; says which it took.
async fn publish_until_it_fails(server: SocketAddr, body_bytes: usize) -> Vec<String> {
    const AT_ONCE: usize = 4;
    const ROUNDS_MAX: usize = 5_000;
    let client = Client::new();
    let mut acknowledged = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let publishes = (0..AT_ONCE).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { publish(&client, server, NEVER, "1h", vec![b'x'; body_bytes]).await })
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
            return acknowledged;
        }
    }
    panic!("the server acknowledged {} messages and did not fail", acknowledged.len());
}

const NEVER: &str = "/v2/publish/http://127.0.0.1:1/never";

async fn publish(client: &Client, server: SocketAddr, target: &str, delay: &str, body: Vec<u8>) -> Option<Response> {
    let headers = [("upstash-delay", delay.to_owned())];
    client.send(Method::POST, server, target, &headers, Bytes::from(body)).await
}

/// A file system of a fixed size, in RAM.
struct SmallDisk {
    mount_point: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(bytes: usize) -> Result<SmallDisk, String> {
        may_mount()?;
        let mount_point = tempfile::tempdir().map_err(|error| error.to_string())?;
        let size = format!("size={bytes}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(mount_point.path()))?;
        Ok(SmallDisk { mount_point })
    }

    fn path(&self) -> &Path {
        self.mount_point.path()
    }

    fn data_dir(&self) -> PathBuf {
        self.path().join("data")
    }

    fn grow(&self, bytes: usize) {
        let options = format!("remount,size={bytes}");
        run(Command::new("mount").args(["-o", &options]).arg(self.path())).expect("it can be made larger");
    }

    fn fill(&self, bytes: usize) {
        std::fs::write(self.path().join("filler"), vec![0; bytes]).expect("there is room for it");
    }

    fn empty(&self) {
        std::fs::remove_file(self.path().join("filler")).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(run(Command::new("umount").arg("-l").arg(self.path())));
    }
}
