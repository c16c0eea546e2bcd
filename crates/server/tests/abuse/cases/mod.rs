//! The attacks: one entry per case. Each was seen to fail on the build before its fix, except slow heads and distinct costly
//! expressions, which that build withstood.

mod amplification;
mod connections;
mod fan_out;
mod lists;
mod strangers;
mod writes;

use crate::client::{ATTACKER, Reply, connect, read_reply};
use crate::proc::tally;
use crate::stage::{Attack, Beside, Stage, Step};
use crate::verdict::Limits;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::time::{Instant, timeout};

/// How long an attack may take unless it says more.
const TIME_MAX: Duration = Duration::from_secs(45);
/// Cases that wait for a timeout of the server may take this long.
const WAIT_MAX: Duration = Duration::from_secs(80);

/// One attack and its limits.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Lines of the configuration.
    pub(crate) settings: &'static str,
    /// The data is on a file system of this size.
    pub(crate) disk_bytes: Option<u64>,
    /// Makes what the attack needs; not measured.
    pub(crate) prepare: Option<Step>,
    pub(crate) attack: Step,
    /// The attack mostly waits, so other cases may run beside it.
    pub(crate) waits: bool,
    pub(crate) beside: Beside,
    pub(crate) time_max: Duration,
    pub(crate) limits: Limits,
}

impl Case {
    fn new(name: &'static str, attack: Step) -> Case {
        Case {
            name,
            settings: "",
            disk_bytes: None,
            prepare: None,
            attack,
            waits: false,
            beside: Beside::Neighbour,
            time_max: TIME_MAX,
            limits: Limits::default(),
        }
    }

    fn prepared(self, prepare: Step) -> Case {
        Case { prepare: Some(prepare), ..self }
    }

    fn waiting(self) -> Case {
        Case { waits: true, time_max: WAIT_MAX, ..self }
    }

    fn limited(self, limits: Limits) -> Case {
        Case { limits, ..self }
    }
}

/// Every case.
pub(crate) fn all() -> Vec<Case> {
    [
        fan_out::cases(),
        strangers::cases(),
        connections::cases(),
        lists::cases(),
        amplification::cases(),
        writes::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Sends these requests in turns, in a loop on each of many connections for this long; complains of other statuses than these.
async fn flood(
    stage: &Stage,
    requests: &[Vec<u8>],
    connections: usize,
    duration: Duration,
    statuses: &[u16],
) -> Attack {
    let mut attack = Attack::default();
    let server = stage.server.address;
    let tasks: Vec<_> = (0..connections)
        .map(|number| {
            let requests = requests.to_vec();
            tokio::spawn(timeout(duration * 5, async move {
                let mut stream = BufReader::new(connect(ATTACKER, server).await?);
                let (begun, mut sent, mut statuses) = (Instant::now(), 0, Vec::new());
                for request in requests.iter().cycle().skip(number % requests.len()) {
                    if begun.elapsed() >= duration {
                        break;
                    }
                    stream.write_all(request).await?;
                    sent += request.len() as u64;
                    let reply = read_reply(&mut stream, true).await?;
                    statuses.push(reply.status);
                    if reply.closes {
                        stream = BufReader::new(connect(ATTACKER, server).await?);
                    }
                }
                io::Result::Ok((sent, statuses))
            }))
        })
        .collect();
    let mut seen = Vec::new();
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(Ok((sent, some))) => {
                attack.bytes += sent;
                seen.extend(some);
            }
            Ok(Err(error)) => attack.complain(format!("a connection failed: {error}")),
            Err(_) => attack.complain("a request had no response"),
        }
    }
    attack.note(format!("responses: {}", tally(seen.iter())));
    if let Some(status) = seen.iter().find(|status| !statuses.contains(status)) {
        attack.complain(format!("a response has the status {status}"));
    }
    attack
}

/// Notes a response that has to be a success, or a refusal that names a limit.
fn expect_success_or_limit(attack: &mut Attack, what: &str, reply: &io::Result<Reply>) {
    match reply {
        Ok(reply) if reply.is_success() => attack.note(format!("{what}: accepted with {}", reply.status)),
        Ok(reply) if [400, 412, 413].contains(&reply.status) => match reply.error() {
            Some(error) if error.contains(|digit: char| digit.is_ascii_digit()) => {
                attack.note(format!("{what}: {} {error}", reply.status));
            }
            _ => attack.complain(format!("{what}: {} without the limit: {}", reply.status, reply.text())),
        },
        Ok(reply) => attack.complain(format!("{what}: {} {}", reply.status, reply.text())),
        Err(error) => attack.complain(format!("{what}: no response: {error}")),
    }
}
