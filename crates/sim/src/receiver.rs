//! Receivers, and the network in front of them.

use crate::random::Random;
use crate::swarm::Faults;
use posthaste_engine::event::Response;
use posthaste_engine::message::Message;
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome};

/// How long an attempt takes when nothing fails any more.
const HEALTHY_MS: u64 = 5;

/// What became of an attempt.
#[derive(Debug)]
pub(crate) struct Reception {
    /// What the process that started it hears.
    pub outcome: Outcome,
    /// The receiver has said 2xx, whatever was heard of it.
    pub said_success: bool,
    /// When the process hears of it.
    pub takes_ms: u64,
}

impl Reception {
    pub(crate) fn describe(&self) -> String {
        let heard = match &self.outcome.result {
            Ok(response) => response.status.to_string(),
            Err(error) => format!("{:?}", error.class),
        };
        let lost = if self.said_success && self.outcome.result.is_err() { " (the receiver said 200)" } else { "" };
        format!("will bring {heard}{lost} after {} ms", self.takes_ms)
    }
}

/// A receiver gets a message, or does not.
pub(crate) fn receive(random: &mut Random, faults: &Faults, healed: bool, message: &Message) -> Reception {
    if healed || !random.permille(faults.bad_answers) {
        let takes_ms = if healed { HEALTHY_MS } else { random.any_size(1, faults.answer_ms.max(2)) };
        let status = random.pick(&[200, 200, 201, 204]);
        return reception(answer(status, None), true, takes_ms, message);
    }
    let takes_ms = random.any_size(1, faults.answer_ms.max(2) * 4);
    let (result, said_success) = match random.weighted(&[5, 2, 2, 2, 2, 2, 1]) {
        0 => (answer(random.pick(&[500, 502, 404, 301]), None), false),
        1 => (answer(429, Some(("Retry-After", random.within(0, 20).to_string()))), false),
        2 => (answer(489, Some(("Upstash-NonRetryable-Error", "true".to_owned()))), false),
        3 => (failure(ErrorClass::Timeout), random.permille(500)),
        4 => (failure(ErrorClass::Connect), false),
        5 => (failure(ErrorClass::Closed), true),
        _ => (answer(503, None), false),
    };
    reception(result, said_success, takes_ms, message)
}

/// Whoever waits for too long gives up, whatever the receiver says then.
fn reception(
    result: Result<Response, AttemptError>,
    said_success: bool,
    takes_ms: u64,
    message: &Message,
) -> Reception {
    let patience_ms = message.spec.timeout_ms.unwrap_or(u64::MAX);
    let late = takes_ms > patience_ms;
    let result = if late { failure(ErrorClass::Timeout) } else { result };
    let takes_ms = takes_ms.min(patience_ms);
    Reception { outcome: Outcome { result, duration_ms: takes_ms, phases: None }, said_success, takes_ms }
}

fn answer(status: u16, header: Option<(&str, String)>) -> Result<Response, AttemptError> {
    let headers = header.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Ok(Response { status, headers, ..Response::default() })
}

fn failure(class: ErrorClass) -> Result<Response, AttemptError> {
    Err(AttemptError { class, message: "no answer".to_owned() })
}
