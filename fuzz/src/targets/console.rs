//! Forms and queries of the console: the API request contains exactly what was selected or filtered, and no more. No
//! input becomes a part of the page, of a path or of the identity of the caller.
//!
//! The first byte selects the page, the rest is its form.

use posthaste::console_fuzzing::{dead_letters, messages, sent};
use std::borrow::Cow;
use url::form_urlencoded::{Serializer, parse};

/// Filters for dead letters.
const DEAD_LETTERS: [&str; 12] = [
    "label",
    "responseStatus",
    "url",
    "urlGroup",
    "queueName",
    "scheduleId",
    "flowControlKey",
    "messageId",
    "callerIp",
    "fromDate",
    "toDate",
    "cause",
];
/// Filters for messages. A cancel does not support the last two.
const MESSAGES: [&str; 14] = [
    "messageId",
    "label",
    "host",
    "queueName",
    "flowControlKey",
    "url",
    "path",
    "urlGroup",
    "scheduleId",
    "callerIp",
    "fromDate",
    "toDate",
    "state",
    "sourceMessageId",
];

pub(crate) fn run(data: &[u8]) {
    let (page, form) = super::choice(data);
    match page % 3 {
        0 => check_dead_letters(form),
        1 => check_messages(form),
        _ => check_sent(form),
    }
}

/// The values of these names that are not empty.
fn said<'a>(form: &'a [u8], names: &'a [&str]) -> impl Iterator<Item = (Cow<'a, str>, String)> {
    let known = parse(form).filter(|(name, _)| names.contains(&name.as_ref()));
    known.map(|(name, value)| (name, value.trim().to_owned())).filter(|(_, value)| !value.is_empty())
}

/// Every given filter is in the query. Times may be written differently.
fn check_filters(form: &[u8], names: &[&str], query: &str) {
    for (name, value) in said(form, names) {
        let is_time = ["fromDate", "toDate"].contains(&name.as_ref());
        let is_there = parse(query.as_bytes()).any(|(other, asked)| other == name && (is_time || asked == value));
        assert!(is_there, "{name} is {value:?} in the form, and the API is asked with {query:?}");
    }
}

fn check_dead_letters(form: &[u8]) {
    let Some(order) = dead_letters(form) else { return };
    assert!(order.back.starts_with("/console"), "the next page is {:?}", order.back);
    let ids: Vec<String> = said(form, &["id", "dlqIds"]).map(|(_, id)| id).collect();
    assert!(order.named.iter().all(|id| ids.contains(id)), "{:?} were not named", order.named);
    let asked: Vec<_> = parse(order.query.as_bytes()).filter(|(name, _)| name == "dlqIds").collect();
    match order.named.is_empty() {
        true => {
            assert!(asked.is_empty(), "{asked:?} were not named");
            check_filters(form, &DEAD_LETTERS, &order.query);
        }
        false => assert!(asked.len() == 1 && asked[0].1 == order.named.join(","), "{:?}", order.query),
    }
    match order.changes {
        Ok(changes) => check_headers(&changes),
        Err(refusal) => super::check_refusal_of(&refusal, form.len()),
    }
}

fn check_messages(form: &[u8]) {
    let Ok(query) = std::str::from_utf8(form) else { return };
    let read = messages(query);
    match &read.list {
        Ok(asked) => check_filters(form, &MESSAGES, asked),
        Err(refusal) => super::check_refusal_of(refusal, form.len()),
    }
    match &read.cancel {
        Ok(asked) => {
            check_filters(form, &MESSAGES, asked);
            let more = said(form, &MESSAGES[12..]).next();
            assert!(more.is_none(), "a cancel leaves out {more:?}");
        }
        Err(refusal) => super::check_refusal_of(refusal, form.len()),
    }
    // Other texts in the same places must give the same page.
    let neutral = parse(form).map(|(name, value)| (name, if value.trim().is_empty() { "" } else { "x" }));
    let neutral = Serializer::new(String::new()).extend_pairs(neutral).finish();
    let marks = |markup: &str| ['<', '>', '"'].map(|mark| markup.matches(mark).count());
    assert_eq!(marks(&read.markup), marks(&messages(&neutral).markup), "{}", read.markup);
}

fn check_sent(form: &[u8]) {
    let Some(sent) = std::str::from_utf8(form).ok().and_then(sent) else { return };
    assert!(["/v2/publish/", "/v2/enqueue/"].iter().any(|start| sent.path.starts_with(start)), "{}", sent.path);
    let uri: http::Uri = sent.path.parse().expect("a path");
    assert_eq!((uri.path(), uri.query()), (sent.path.as_str(), None), "what was typed is a part of the path");
    match sent.headers {
        Ok(headers) => check_headers(&headers),
        Err(refusal) => super::check_refusal_of(&refusal, form.len()),
    }
}

/// They concern a message, and not the caller.
fn check_headers(headers: &[(String, String)]) {
    for (name, _) in headers {
        let is_setting = name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("Upstash-"));
        assert!(is_setting || name == "Content-Type", "{name:?} is not about a message");
        assert!(!name.contains('\n'), "{name:?} has two lines");
    }
}
