//! Queries and bodies that select log lines: an accepted filter never selects more than it says.
//!
//! The first line is the query, the rest is the body.

use posthaste::api::fuzzing::{PAGE_MAX, filters};
use posthaste_engine::limits::FILTER_VALUES_MAX;
use posthaste_store::Filter;

/// Filters besides dates.
const FIELDS: [&str; 15] = [
    "messageIds",
    "messageId",
    "url",
    "host",
    "path",
    "label",
    "callerIp",
    "callerIP",
    "topicName",
    "urlGroup",
    "queueName",
    "scheduleId",
    "flowControlKey",
    "responseStatus",
    "state",
];

pub(crate) fn run(data: &[u8]) {
    let line = data.iter().position(|byte| *byte == b'\n');
    let (query, body) = line.map_or((data, [].as_slice()), |end| (&data[..end], &data[end + 1..]));
    let Ok(query) = std::str::from_utf8(query) else { return };
    let (filter, page) = match filters(Some(query), body) {
        Ok(read) => read,
        Err(refusal) => return super::check_refusal(&refusal),
    };
    assert!((1..=PAGE_MAX).contains(&page.count));
    let Filter { ids, urls, hosts, labels, .. } = &filter.message;
    assert!([ids.len(), hosts.len(), labels.len()].iter().all(|count| *count <= FILTER_VALUES_MAX));
    assert!(urls.len() <= 2 * FILTER_VALUES_MAX);
    let named = url::form_urlencoded::parse(query.as_bytes()).any(|(name, _)| FIELDS.contains(&name.as_ref()));
    let unrestricted =
        Filter { from: None, to: None, ..filter.message } == Filter::default() && filter.states.is_empty();
    assert!(!(named && unrestricted), "{query:?} narrows nothing");
}
