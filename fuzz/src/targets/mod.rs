//! One file per target, and one for all webhooks. The assertions of a target are its documentation.

pub(crate) mod answer;
pub(crate) mod batch;
pub(crate) mod caller;
pub(crate) mod console;
pub(crate) mod cron;
pub(crate) mod destination;
pub(crate) mod duration;
pub(crate) mod egress;
pub(crate) mod filters;
pub(crate) mod flow_control;
pub(crate) mod heads;
mod heads_reread;
pub(crate) mod ids;
pub(crate) mod journal;
pub(crate) mod publish_headers;
pub(crate) mod receiver;
pub(crate) mod redact;
pub(crate) mod retry_after;
pub(crate) mod retry_delay;
pub(crate) mod signature;
pub(crate) mod stored;
pub(crate) mod url_group;
pub(crate) mod webhook;
pub(crate) mod workflow_kept;
pub(crate) mod workflow_publish;
pub(crate) mod workflow_steps;

use posthaste_wire::time::Timestamp;

/// The current time in all targets.
pub(crate) const NOW: Timestamp = Timestamp(1_780_315_200_000);

/// Longest rejection: a response never repeats a whole hostile request.
const REFUSAL_BYTES_MAX: usize = 20 * 1024;

/// A rejection is not empty, and not too long.
fn check_refusal(text: &str) {
    assert!(!text.is_empty() && text.len() <= REFUSAL_BYTES_MAX, "a refusal of {} bytes", text.len());
}

/// The same for a page, which shows the input to its author. Each letter may need several bytes.
fn check_refusal_of(text: &str, typed: usize) {
    assert!(!text.is_empty() && text.len() <= REFUSAL_BYTES_MAX + 16 * typed, "a refusal of {} bytes", text.len());
}

/// The first byte selects a variant, the rest is the input.
fn choice(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}
