//! The body of a batch: it is parsed as JSON, and every item is a publish.

use super::publish_headers;
use posthaste::api::fuzzing::{LIMITS, batch};
use posthaste_wire::destination::Destination;
use serde::de::IgnoredAny;
use serde_json::Value;

pub(crate) fn run(data: &[u8]) {
    let items = match batch(data) {
        Ok(items) => items,
        Err(refusal) => return super::check_refusal(&refusal),
    };
    serde_json::from_slice::<IgnoredAny>(data).expect("it was read as JSON");
    // Ignored members may contain invalid text.
    let Ok(all) = serde_json::from_slice::<Value>(data) else { return };
    let all = all.as_array().expect("it was read as a list");
    assert_eq!(items.len(), all.len());
    for (item, value) in items.iter().zip(all) {
        assert!(value.is_object(), "{value} was read as an item");
        assert_eq!(item.destination.as_deref(), value["destination"].as_str());
        let body = match &value["body"] {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => text.clone(),
            // The JSON as it was written, which this comparison does not know.
            _ => item.body.clone(),
        };
        assert_eq!(item.body, body);
        assert_eq!(item.queue.as_deref(), value["queue"].as_str());
        if let Some(destination) = &item.destination {
            let read = Destination::parse_whole(destination, LIMITS.url_bytes_max);
            read.map_or_else(|refusal| super::check_refusal(&refusal.to_string()), drop);
        }
        let lines: Vec<(&str, &[u8])> =
            item.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        publish_headers::check(&lines, &[]);
    }
}
