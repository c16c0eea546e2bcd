//! Bytes that commands store, more or less: what admission, pieces of large requests and promises of disk space count.

use crate::new_message::NewMessage;
use bytes::Bytes;
use posthaste_engine::message::{MessageSpec, is_same_body};
use posthaste_engine::workflow::run::FailureCall;
use posthaste_engine::workflow::{NewEntry, WaitFor};

/// Bytes that a message, a schedule, a run or an entry takes besides its body and what its publisher wrote, more or less.
const OVERHEAD_BYTES: usize = 512;

/// Bytes that messages store: their bodies, of which one that neighbours share counts once, and their settings.
pub fn stored_bytes<'a>(messages: impl IntoIterator<Item = &'a NewMessage>) -> usize {
    let mut before: Option<&Bytes> = None;
    let mut bytes = 0;
    for NewMessage { body, spec, .. } in messages {
        if !before.is_some_and(|before| is_same_body(before, body)) {
            bytes += body.len();
        }
        bytes += spec_bytes(spec);
        before = Some(body);
    }
    bytes
}

/// Bytes that the settings of a message, or of a schedule, store.
pub fn spec_bytes(spec: &MessageSpec) -> usize {
    let callbacks = [&spec.callback, &spec.failure_callback].into_iter().flatten();
    let callbacks: usize = callbacks.map(|callback| callback.url.len() + header_bytes(&callback.headers)).sum();
    OVERHEAD_BYTES + spec.url.len() + header_bytes(&spec.headers) + callbacks
}

/// Bytes that an entry of a run stores.
pub fn entry_bytes(entry: &NewEntry) -> usize {
    let call = entry.call.as_ref().map_or(0, |call| call.url.len() + header_bytes(&call.result_headers));
    OVERHEAD_BYTES + entry.body.len() + header_bytes(&entry.headers) + call + failure_bytes(entry.failure.as_ref())
}

/// Bytes that a wait for an event stores.
pub fn wait_bytes(wait: &WaitFor) -> usize {
    let headers = wait.headers.iter();
    let headers = headers.map(|(name, values)| name.len() + values.iter().map(String::len).sum::<usize>());
    // The name of the event is in the run and in the list of runs that wait for it.
    OVERHEAD_BYTES + 2 * wait.event.len() + headers.sum::<usize>()
}

/// Bytes that the call of a failure function stores.
pub fn failure_bytes(failure: Option<&FailureCall>) -> usize {
    failure.map_or(0, |call| call.url.len() + header_bytes(&call.headers))
}

/// Bytes of names and values of headers.
pub fn header_bytes(headers: &[(String, String)]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}
