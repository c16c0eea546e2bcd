//! One file per target, and one for all webhooks. What a target asserts is its documentation.

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

/// The time that targets tell whoever asks.
pub(crate) const NOW: Timestamp = Timestamp(1_780_315_200_000);

/// Longest refusal: an answer never repeats a whole hostile request.
const REFUSAL_BYTES_MAX: usize = 20 * 1024;

/// A refusal says something, and not too much.
fn check_refusal(text: &str) {
    assert!(!text.is_empty() && text.len() <= REFUSAL_BYTES_MAX, "a refusal of {} bytes", text.len());
}

/// The same for a page, which shows what was typed to whoever typed it: a few letters may need several.
fn check_refusal_of(text: &str, typed: usize) {
    assert!(!text.is_empty() && text.len() <= REFUSAL_BYTES_MAX + 16 * typed, "a refusal of {} bytes", text.len());
}

/// The first byte chooses, the rest is the input.
fn choice(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}
