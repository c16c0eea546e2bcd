//! The ops that the end of an attempt causes: log lines, and the dead letter.

use crate::event::{DeadLetter, EventDetail, Op, Response, State};
use crate::limits::LOG_RESPONSE_BYTES_MAX;
use crate::message::Live;
use crate::outcome::{Outcome, Verdict};
use crate::shard::Output;
use posthaste_wire::id::DlqId;
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

/// The message is delivered.
pub(crate) fn delivered(live: &Live, outcome: Outcome, now: Timestamp, out: &mut Output) {
    out.log(live.tenant, live.id, now, State::Delivered, delivered_detail(live, outcome));
    out.ops.push(Op::Remove { id: live.id });
}

/// The attempt failed and another one is due.
pub(crate) fn retried(live: &Live, outcome: Outcome, due: Timestamp, now: Timestamp, out: &mut Output) {
    let (_, detail) = failed_detail(live, outcome);
    out.log(live.tenant, live.id, now, State::Error, detail);
    let retry = EventDetail { next_due: Some(due), retried: live.retried, ..EventDetail::default() };
    out.log(live.tenant, live.id, now, State::Retry, retry);
}

/// The attempt of a cancelled message has ended.
pub(crate) fn cancelled(live: &Live, outcome: Outcome, now: Timestamp, out: &mut Output) {
    let detail = if outcome.verdict() == Verdict::Success {
        delivered_detail(live, outcome)
    } else {
        let (_, detail) = failed_detail(live, outcome);
        out.log(live.tenant, live.id, now, State::Error, detail);
        EventDetail::default()
    };
    out.log(live.tenant, live.id, now, State::Canceled, detail);
    out.ops.push(Op::Remove { id: live.id });
}

/// A message is cancelled while no attempt is in flight.
pub(crate) fn cancelled_waiting(live: &Live, now: Timestamp, out: &mut Output) {
    out.log(live.tenant, live.id, now, State::Canceled, EventDetail::default());
    out.ops.push(Op::Remove { id: live.id });
}

/// The id of the dead letter of a message that fails now.
pub(crate) fn dlq_id(live: &Live, now: Timestamp) -> DlqId {
    DlqId { at: now, n: live.id.seq.0 }
}

/// The message has failed for good.
pub(crate) fn failed(live: &Live, outcome: Outcome, now: Timestamp, out: &mut Output) {
    let dlq_id = dlq_id(live, now);
    let (response, detail) = failed_detail(live, outcome);
    let (error, retried) = (detail.error.clone(), live.retried);
    let last =
        EventDetail { dlq_id: Some(dlq_id.to_string()), error: error.clone(), retried, ..EventDetail::default() };
    out.log(live.tenant, live.id, now, State::Error, detail);
    out.log(live.tenant, live.id, now, State::Failed, last);
    let (tenant, id) = (live.tenant, live.id);
    out.ops.push(Op::InsertDeadLetter(DeadLetter { dlq_id, tenant, id, retried, error, response }));
}

/// The log line of a success contains only its status and its times.
fn delivered_detail(live: &Live, outcome: Outcome) -> EventDetail {
    let status = outcome.result.map_or(0, |response| response.status);
    let response = Some(Arc::new(Response { status, ..Response::default() }));
    let (phases, reused_first_byte_us) = match outcome.phases {
        Some(phases) if phases.reused && phases.first_byte_us.is_some() => (None, phases.first_byte_us),
        phases => (phases, None),
    };
    let (duration_ms, retried) = (Some(outcome.duration_ms), live.retried);
    EventDetail { response, duration_ms, phases, reused_first_byte_us, retried, ..EventDetail::default() }
}

/// The whole response, and the part of it for the log line.
fn failed_detail(live: &Live, outcome: Outcome) -> (Option<Arc<Response>>, EventDetail) {
    let (duration_ms, phases) = (Some(outcome.duration_ms), outcome.phases);
    let timing = EventDetail { duration_ms, phases, retried: live.retried, ..EventDetail::default() };
    match outcome.result {
        Err(error) => (None, EventDetail { error: Some(error.message), ..timing }),
        Ok(response) => {
            let response = Arc::new(response);
            let kept = if response.body.len() <= LOG_RESPONSE_BYTES_MAX {
                response.clone()
            } else {
                Arc::new(response.kept(LOG_RESPONSE_BYTES_MAX))
            };
            (Some(response), EventDetail { response: Some(kept), ..timing })
        }
    }
}
