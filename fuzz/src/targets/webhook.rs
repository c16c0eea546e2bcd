//! The kit's verification of webhooks, one target for each scheme: an accepted request contains the MAC of this body. A
//! signed request is accepted within its time, and requests with any changed character are not.
//!
//! Header lines, `Name: value`, an empty line, the body.

use super::signature::hmac_sha256;
use super::{NOW, choice};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use posthaste_kit::webhook::{
    Authentic, EVENT_ID_BYTES_MAX, GitHub, Hmac, Incoming, Scheme, SharedSecret, Slack, Standard, Stripe, StripeEvent,
    SupabaseChange,
};
use std::time::{Duration, UNIX_EPOCH};

/// Secrets of the vectors, so that some seeds are valid.
const STRIPE: &str = "whsec_test_stripe_secret_0123456789";
const GITHUB: &str = "github-test-secret";
const STANDARD_KEY: &str = "whsec_AQIDBAUGBwgBAgMEBQYHCAECAwQFBgcIAQIDBAUGBwg=";
const GENERIC: &str = "generic-secret";
const STATIC: &str = "static-secret-123";
/// The maximum age of a request.
const TOLERANCE: i64 = 300;

/// Header lines.
type Lines = Vec<(&'static str, String)>;

/// Returns the required value and the time from the headers, given the headers by name and the body.
type Proof = for<'a> fn(&dyn Fn(&str) -> &'a str, &[u8]) -> (String, Option<&'a str>);

/// A scheme, and what this target knows about it.
struct Checked {
    scheme: Box<dyn Scheme>,
    /// The headers for a body at a time.
    sign: fn(&[u8], i64) -> Lines,
    /// The required value in the headers, and the time that they contain.
    proof: Proof,
    /// In this many lines each character counts. The others are not signed.
    signed_lines: usize,
    /// Whether old requests are rejected.
    is_timed: bool,
    /// Whether the body is signed.
    is_body_signed: bool,
}

pub(crate) fn stripe(data: &[u8]) {
    let checked = Checked {
        scheme: Box::new(Stripe::new(STRIPE).expect("a secret")),
        sign: |body, at| vec![("stripe-signature", format!("t={at},v1={}", hex(STRIPE, &format!("{at}."), body)))],
        proof: |header, body| {
            let at =
                header("stripe-signature").split(',').find_map(|entry| entry.strip_prefix("t=")).unwrap_or_default();
            (format!("v1={}", hex(STRIPE, &format!("{at}."), body)), Some(at))
        },
        signed_lines: 1,
        is_timed: true,
        is_body_signed: true,
    };
    check(data, &checked);
    if let Ok(event) = serde_json::from_slice::<StripeEvent>(data) {
        let again = serde_json::to_vec(&event).expect("it can be written");
        assert_eq!(serde_json::from_slice::<StripeEvent>(&again).expect("it was written"), event);
    }
}

pub(crate) fn github(data: &[u8]) {
    let checked = Checked {
        scheme: Box::new(GitHub::new(GITHUB).expect("a secret")),
        sign: |body, _| {
            let signature = format!("sha256={}", hex(GITHUB, "", body));
            vec![("x-hub-signature-256", signature), ("x-github-delivery", "d-1".to_owned())]
        },
        proof: |_, body| (format!("sha256={}", hex(GITHUB, "", body)), None),
        signed_lines: 1,
        is_timed: false,
        is_body_signed: true,
    };
    check(data, &checked);
}

pub(crate) fn standard(data: &[u8]) {
    let checked = Checked {
        scheme: Box::new(Standard::new(STANDARD_KEY).expect("a secret")),
        sign: |body, at| {
            let mac = standard_mac("msg_1", &at.to_string(), body);
            vec![("webhook-id", "msg_1".to_owned()), ("webhook-timestamp", at.to_string()), ("webhook-signature", mac)]
        },
        proof: |header, body| {
            let either = |own, svix| if header(own).is_empty() { header(svix) } else { header(own) };
            let (id, at) = (either("webhook-id", "svix-id"), either("webhook-timestamp", "svix-timestamp"));
            (standard_mac(id, at, body), Some(at))
        },
        signed_lines: 3,
        is_timed: true,
        is_body_signed: true,
    };
    check(data, &checked);
}

fn standard_mac(id: &str, at: &str, body: &[u8]) -> String {
    let key = STANDARD.decode(STANDARD_KEY.trim_start_matches("whsec_")).expect("it is base64");
    let mac = hmac_sha256(&key, &[format!("{id}.{at}.").as_bytes(), body].concat());
    format!("v1,{}", STANDARD.encode(mac))
}

pub(crate) fn slack(data: &[u8]) {
    let checked = Checked {
        scheme: Box::new(Slack::new(GENERIC).expect("a secret")),
        sign: |body, at| {
            let mac = hex(GENERIC, &format!("v0:{at}:"), body);
            vec![("x-slack-request-timestamp", at.to_string()), ("x-slack-signature", format!("v0={mac}"))]
        },
        proof: |header, body| {
            let at = header("x-slack-request-timestamp");
            (format!("v0={}", hex(GENERIC, &format!("v0:{at}:"), body)), Some(at))
        },
        signed_lines: 2,
        is_timed: true,
        is_body_signed: true,
    };
    check(data, &checked);
}

pub(crate) fn hmac(data: &[u8]) {
    let scheme = Hmac::in_header("x-signature", GENERIC).expect("a secret");
    let plain = Checked {
        scheme: Box::new(scheme.clone()),
        sign: |body, _| vec![("x-signature", hex(GENERIC, "", body))],
        proof: |_, body| (hex(GENERIC, "", body), None),
        signed_lines: 1,
        is_timed: false,
        is_body_signed: true,
    };
    check(data, &plain);
    let timed = Checked {
        scheme: Box::new(scheme.timestamp_in("x-time", "").expect("a header")),
        sign: |body, at| vec![("x-signature", hex(GENERIC, &at.to_string(), body)), ("x-time", at.to_string())],
        proof: |header, body| (hex(GENERIC, header("x-time"), body), Some(header("x-time"))),
        signed_lines: 2,
        is_timed: true,
        is_body_signed: true,
    };
    check(data, &timed);
}

pub(crate) fn shared_secret(data: &[u8]) {
    let checked = Checked {
        scheme: Box::new(SharedSecret::in_header("x-webhook-secret", STATIC).expect("a secret")),
        sign: |_, _| vec![("x-webhook-secret", STATIC.to_owned())],
        proof: |_, _| (STATIC.to_owned(), None),
        signed_lines: 1,
        is_timed: false,
        is_body_signed: false,
    };
    check(data, &checked);
    if let Ok(change) = serde_json::from_slice::<SupabaseChange>(data) {
        assert!(change.record().is_some() || change.old_record().is_some());
        let again = serde_json::to_vec(&change).expect("it can be written");
        assert_eq!(serde_json::from_slice::<SupabaseChange>(&again).expect("it was written"), change);
    }
}

fn check(data: &[u8], checked: &Checked) {
    let (headers, body) = read(data);
    if let Some(authentic) = verify(checked, &headers, body) {
        assert!(is_proven(checked, &headers, body), "{headers:?}");
        check_id(&authentic);
    }
    let (high, rest) = choice(data);
    let (low, body) = choice(rest);
    // Mostly near the ends of the accepted time.
    let offset = i64::from(high as i8) * 5 + i64::from(low % 5);
    let now = i64::try_from(NOW.as_seconds()).expect("it is not that late");
    let lines = (checked.sign)(body, now + offset);
    let authentic = verify(checked, &map(&lines), body);
    assert_eq!(authentic.is_some(), !checked.is_timed || offset.abs() <= TOLERANCE, "{offset} s");
    let Some(authentic) = authentic else { return };
    check_id(&authentic);
    assert_eq!(verify(checked, &map(&lines), body), Some(authentic), "it is always the same event");
    if checked.is_body_signed {
        assert_eq!(verify(checked, &map(&lines), &[body, b"x"].concat()), None, "another body");
    }
    check_forgeries(checked, &lines, body, low.into());
}

/// A changed character, a missing one, or a line too many or too few.
fn check_forgeries(checked: &Checked, lines: &Lines, body: &[u8], at: usize) {
    for line in 0..checked.signed_lines {
        let (name, value) = &lines[line];
        let with = |value: Option<String>| {
            let mut lines = lines.clone();
            match value {
                Some(value) => lines[line].1 = value,
                None => drop(lines.remove(line)),
            }
            map(&lines)
        };
        let at = at % value.len();
        let other = if value.as_bytes()[at] == b'A' { "g" } else { "A" };
        let changed = format!("{}{other}{}", &value[..at], &value[at + 1..]);
        assert_eq!(verify(checked, &with(Some(changed)), body), None, "another character at {at} of {name}");
        assert_eq!(verify(checked, &with(Some(value[..value.len() - 1].to_owned())), body), None, "a part of {name}");
        assert_eq!(verify(checked, &with(None), body), None, "without {name}");
        let mut twice = map(lines);
        twice.append(*name, HeaderValue::from_str(value).expect("it was one before"));
        assert_eq!(verify(checked, &twice, body), None, "{name} twice");
    }
}

fn verify(checked: &Checked, headers: &HeaderMap, body: &[u8]) -> Option<Authentic> {
    let now = UNIX_EPOCH + Duration::from_millis(NOW.0);
    checked.scheme.verify(&Incoming { headers, uri: &Uri::default(), body }, now).ok()
}

/// Verifies the same headers independently: they contain the value for this body, and the time is recent.
fn is_proven(checked: &Checked, headers: &HeaderMap, body: &[u8]) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (expected, at) = (checked.proof)(&text, body);
    let now = i64::try_from(NOW.as_seconds()).expect("it is not that late");
    let is_near = |at: i64| (now - TOLERANCE..=now + TOLERANCE).contains(&at);
    let is_there = headers.values().filter_map(|value| value.to_str().ok()).any(|text| text.contains(&expected));
    is_there && at.is_none_or(|at| at.parse().is_ok_and(is_near))
}

/// An id is valid as a header and as a part of a key, whatever the sender wrote.
fn check_id(authentic: &Authentic) {
    let id = authentic.id.as_str();
    assert!((1..=EVENT_ID_BYTES_MAX).contains(&id.len()), "{id}");
    assert!(id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'), "{id}");
}

fn read(data: &[u8]) -> (HeaderMap, &[u8]) {
    let mut headers = HeaderMap::new();
    let mut rest = data;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    (headers, rest)
}

fn map(lines: &Lines) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_str(value).expect("a line that we made"));
    }
    headers
}

fn hex(key: &str, before: &str, body: &[u8]) -> String {
    let mac = hmac_sha256(key.as_bytes(), &[before.as_bytes(), body].concat());
    mac.iter().map(|byte| format!("{byte:02x}")).collect()
}
