//! What Linux knows about a process and its connections, from `/proc`.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Clock ticks per second in `/proc/PID/stat`: fixed at 100 for user space on every Linux platform we run on.
const TICKS_PER_SECOND: u64 = 100;
/// States of a connection in `/proc/net/tcp` of which the server has got rid: it has sent all and closed its side
/// (FIN_WAIT2), or both sides are closed (TIME_WAIT).
const GONE: [&str; 2] = ["05", "06"];

/// A process by its id. Every figure is `None` once it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proc(pub(crate) u32);

impl Proc {
    fn file(self, name: &str) -> Option<String> {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.0)).ok()
    }

    fn status_bytes(self, field: &str) -> Option<u64> {
        let status = self.file("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    }

    /// Memory in use.
    pub(crate) fn rss(self) -> Option<u64> {
        self.status_bytes("VmRSS")
    }

    /// The most memory in use since [`Proc::reset_peak`].
    pub(crate) fn rss_peak(self) -> Option<u64> {
        self.status_bytes("VmHWM")
    }

    pub(crate) fn reset_peak(self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.0), "5").expect("the peak of a child can be reset");
    }

    /// Processor time, in steps of 10 ms.
    pub(crate) fn cpu(self) -> Option<Duration> {
        let stat = self.file("stat")?;
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        Some(Duration::from_millis((ticks()? + ticks()?) * 1_000 / TICKS_PER_SECOND))
    }

    /// Processor time of the threads that exist now, in nanoseconds.
    pub(crate) fn cpu_nanos(self) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0)).into_iter().flatten().flatten();
        let nanos = threads.filter_map(|thread| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        nanos.sum()
    }

    /// Bytes that it made the system write to disks. Files in RAM do not count.
    pub(crate) fn written(self) -> Option<u64> {
        let io = self.file("io")?;
        io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
    }
}

/// Connections of one client address to a server, as the kernel has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// All that are open on the server's side, also those that the process has closed and the kernel still tries to
    /// empty.
    pub(crate) open: usize,
    /// Bytes that the server has sent and the client has not taken.
    pub(crate) unread_bytes: u64,
}

/// The connections between this client address and the server.
pub(crate) fn connections(server: SocketAddr, client: Ipv4Addr) -> Connections {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has this table");
    connections_in(&table, server.port(), client)
}

fn connections_in(table: &str, port: u16, client: Ipv4Addr) -> Connections {
    let mut found = Connections::default();
    // Addresses are in the byte order of the machine.
    let client = format!("{:08X}", u32::from_le_bytes(client.octets()));
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, queues, ..] = fields[..] else { continue };
        if GONE.contains(&state) || !local.ends_with(&format!(":{port:04X}")) || !remote.starts_with(&client) {
            continue;
        }
        found.open += 1;
        let unread = queues.split(':').next().and_then(|bytes| u64::from_str_radix(bytes, 16).ok());
        found.unread_bytes += unread.unwrap_or(0);
    }
    found
}

/// How often each value occurs, for people.
pub(crate) fn tally<T: std::hash::Hash + Eq + Ord + std::fmt::Display>(values: impl Iterator<Item = T>) -> String {
    let mut counts: HashMap<T, usize> = HashMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let mut counts: Vec<(T, usize)> = counts.into_iter().collect();
    counts.sort();
    let texts: Vec<String> = counts.iter().map(|(value, count)| format!("{count} × {value}")).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

#[test]
fn the_table_of_connections_is_read_by_port_address_and_state() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:1F90 0100007F:9C40 01 00001000:00000000 00:00000000 00000000     0        0 2
   2: 0100007F:1F90 0100007F:9C41 04 00000010:00000000 00:00000000 00000000     0        0 3
   3: 0100007F:1F90 0200007F:9C42 01 00000010:00000000 00:00000000 00000000     0        0 4
   4: 0100007F:1F90 0100007F:9C43 06 00000000:00000000 00:00000000 00000000     0        0 5
   5: 0100007F:1F90 0100007F:9C44 05 00000000:00000000 00:00000000 00000000     0        0 5
   6: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 6\n";
    let expected = Connections { open: 2, unread_bytes: 0x1010 };
    assert_eq!(connections_in(table, 8080, Ipv4Addr::LOCALHOST), expected);
}
