//! The attacks: one entry per case. Each was seen to fail on the build before its fix, except slow heads and distinct costly
//! expressions, which that build withstood.

mod amplification;
mod connections;
mod fan_out;
mod lists;
mod strangers;

use crate::client::Reply;
use crate::stage::{Attack, Beside, Step};
use crate::verdict::Limits;
use std::io;
use std::time::Duration;

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
    [fan_out::cases(), strangers::cases(), connections::cases(), lists::cases(), amplification::cases()]
        .into_iter()
        .flatten()
        .collect()
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
