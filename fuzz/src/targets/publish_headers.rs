//! The headers of a publish: accepted ones are within the limits and can be sent over HTTP.
//!
//! One header per line, `Name: value`; a first line that begins with `?` is the query.

use http::{HeaderName, HeaderValue};
use posthaste::api::fuzzing::LIMITS;
use posthaste_wire::destination::{check_url, is_name, split_query};
use posthaste_wire::encoding::{header_bytes, header_shown, header_text};
use posthaste_wire::header;
use posthaste_wire::publish::{Dedup, PublishOptions, hops, merge_query, parse};

pub(crate) fn run(data: &[u8]) {
    assert_eq!(header_bytes(&header_text(data)), data, "the bytes of a header come back");
    let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let (query, lines) = match lines.split_first() {
        Some((first, rest)) if first.starts_with(b"?") => (std::str::from_utf8(&first[1..]).ok(), rest),
        _ => (None, lines.as_slice()),
    };
    let headers: Vec<(&str, &[u8])> = lines.iter().filter_map(|line| header_of(line)).collect();
    check(&headers, &split_query(query).config);
}

/// Splits a line.
fn header_of(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
}

/// Reads headers and settings of a query, and checks the result.
pub(crate) fn check(headers: &[(&str, &[u8])], config: &[(String, String)]) {
    let read = |headers: &[(&str, &[u8])]| parse(merge_query(headers.iter().copied(), config), &LIMITS, super::NOW);
    let options = read(headers);
    assert_eq!(options, read(headers), "reading twice");
    let shouted: Vec<(String, &[u8])> =
        headers.iter().map(|(name, value)| (name.to_ascii_uppercase(), *value)).collect();
    let shouted: Vec<(&str, &[u8])> = shouted.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(options.as_ref().ok(), read(&shouted).as_ref().ok(), "names have no case");
    match options {
        Err(rejection) => {
            super::check_refusal(&rejection.message);
            assert!([400, 412].contains(&rejection.status.code()));
        }
        Ok(options) => {
            check_options(&options);
            assert_eq!(options.hops, hops(merge_query(headers.iter().copied(), config)));
            assert!(options.headers_explicit <= options.headers.len());
            assert!(options.content_headers().len() >= options.headers_explicit);
            for callback in [&options.callback, &options.failure_callback].into_iter().flatten() {
                assert_eq!(check_url(&callback.url, LIMITS.url_bytes_max), Ok(()), "{:?}", callback.url);
                assert!(!callback.url.contains('#'), "{:?}", callback.url);
                let of_callback = &callback.options;
                check_options(of_callback);
                assert!(of_callback.callback.is_none() && of_callback.failure_callback.is_none());
                assert!(of_callback.queue.is_none() && of_callback.cron.is_none() && of_callback.dedup.is_none());
            }
        }
    }
}

fn check_options(options: &PublishOptions) {
    let bytes: usize = options.headers.iter().map(|(name, value)| name.len() + header_bytes(value).len()).sum();
    assert!(options.headers.len() <= LIMITS.forward_headers_max && bytes <= LIMITS.forward_header_bytes_max);
    for (name, value) in &options.headers {
        assert_eq!(header::canonical(name), *name);
        assert!(!header::is_hop_by_hop_or_framing(name) && !header::is_set_by_server(name), "{name:?} is forwarded");
        assert!(HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name:?} cannot be sent");
        assert!(HeaderValue::from_bytes(&header_bytes(value)).is_ok(), "{value:?} cannot be sent");
        assert!(!header_shown(value).contains(['\r', '\n', '\0']), "{value:?}");
    }
    assert!(options.delay_ms.is_none_or(|ms| ms <= LIMITS.delay_ms_max));
    assert!(options.timeout_ms.is_none_or(|ms| (LIMITS.timeout_ms_min..=LIMITS.timeout_ms_max).contains(&ms)));
    assert!(options.not_before.is_none_or(|time| time <= super::NOW.plus_millis(LIMITS.delay_ms_max)));
    assert!(options.retries.is_none_or(|retries| retries <= LIMITS.retries_max));
    let labels = options.labels.as_deref().unwrap_or_default();
    assert!(labels.len() <= LIMITS.labels_max);
    assert!(labels.iter().all(|label| (1..=LIMITS.label_bytes_max).contains(&label.len()) && !label.contains(',')));
    if let Some(Dedup::Id(id)) = &options.dedup {
        assert!((1..=LIMITS.dedup_id_bytes_max).contains(&id.len()));
    }
    for name in [&options.queue, &options.schedule_id].into_iter().flatten() {
        assert!(is_name(name) && name.len() <= LIMITS.key_bytes_max, "{name:?}");
    }
    assert!(options.flow_control.is_none() || options.flow_control_key.is_some());
    let _checked = options.check_retry_delay(options.retries.unwrap_or(3));
    let _queued = options.check_queued();
}
