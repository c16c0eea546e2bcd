//! Tables over the rules of a publish, the API vectors, and a property over random headers.

use super::*;
use crate::encoding::header_bytes;
use proptest::prelude::*;
use serde_json::Value;

const NOW: Timestamp = Timestamp(1_780_315_200_000);
const LIMITS: PublishLimits = PublishLimits {
    delay_ms_max: 31_536_000_000,
    delay_units: Units::Short,
    timeout_ms_min: 1_000,
    timeout_ms_max: 7_200_000,
    retries_max: 1_000,
    forward_headers_max: 100,
    forward_header_bytes_max: 32 * 1024,
    labels_max: 32,
    label_bytes_max: 256,
    dedup_id_bytes_max: 1_024,
    url_bytes_max: 8_192,
    key_bytes_max: 256,
};

pub(super) fn read(headers: &[(&str, &str)]) -> Result<PublishOptions, Rejection> {
    parse(headers.iter().map(|(name, value)| (*name, value.as_bytes())), &LIMITS, NOW)
}

pub(super) fn options() -> PublishOptions {
    PublishOptions::default()
}

pub(super) fn headers(pairs: &[(&str, &str)]) -> PublishOptions {
    let headers = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    PublishOptions { headers, ..options() }
}

pub(super) fn callback(url: &str, options: PublishOptions) -> Option<CallbackOptions> {
    Some(CallbackOptions { url: url.to_owned(), options: Box::new(options) })
}

/// Headers, the status of their rejection, and the start of its message.
pub(super) type Refused<'a> = (&'a [(&'a str, &'a str)], u16, &'a str);

pub(super) fn assert_refused(cases: &[Refused<'_>]) {
    for (given, code, message) in cases {
        let rejection = read(given).unwrap_err();
        assert_eq!(rejection.status.code(), *code, "{given:?}: {rejection}");
        assert!(rejection.message.starts_with(message), "{given:?}: {rejection}");
    }
}

pub(super) fn callback_only(url: &str) -> PublishOptions {
    PublishOptions { callback: callback(url, options()), ..options() }
}

#[test]
fn settings_are_read() {
    let text = |text: &str| Some(text.to_owned());
    let cases = [
        ("upstash-method", "post", PublishOptions { method: Some("POST"), ..options() }),
        ("UPSTASH-METHOD", "Patch", PublishOptions { method: Some("PATCH"), ..options() }),
        ("Upstash-Delay", "1d1h30m", PublishOptions { delay_ms: Some(91_800_000), ..options() }),
        ("Upstash-Delay", "31536000", PublishOptions { delay_ms: Some(31_536_000_000), ..options() }),
        ("Upstash-Timeout", "30", PublishOptions { timeout_ms: Some(30_000), ..options() }),
        ("Upstash-Retries", " 3\t", PublishOptions { retries: Some(3), ..options() }),
        ("Upstash-Retries", "0", PublishOptions { retries: Some(0), ..options() }),
        ("Upstash-Retry-Delay", "7000 * retried", PublishOptions { retry_delay: text("7000 * retried"), ..options() }),
        ("Upstash-Deduplication-Id", "a:b c", PublishOptions { dedup: Some(Dedup::Id("a:b c".into())), ..options() }),
        ("Upstash-Content-Based-Deduplication", "True", PublishOptions { dedup: Some(Dedup::Content), ..options() }),
        ("Upstash-Content-Based-Deduplication", "False", options()),
        ("Upstash-Label", " a,, b ,", PublishOptions { labels: Some(vec!["a".into(), "b".into()]), ..options() }),
        ("Upstash-Redact-Fields", "body", PublishOptions { redact: RedactFields::parse("body").ok(), ..options() }),
        (
            "Upstash-Flow-Control-Key",
            "grün / a,b",
            PublishOptions { flow_control_key: text("grün / a,b"), ..options() },
        ),
        ("Upstash-Queue-Name", " a.b_c-1 ", PublishOptions { queue: text("a.b_c-1"), ..options() }),
        ("Upstash-Schedule-Id", "...", PublishOptions { schedule_id: text("..."), ..options() }),
        (
            "Upstash-Cron",
            " CRON_TZ=Europe/Berlin 0 9 * * MON ",
            PublishOptions { cron: Cron::parse("CRON_TZ=Europe/Berlin 0 9 * * MON").ok(), ..options() },
        ),
        ("Upstash-Callback", "https://a.example/?q#f", callback_only("https://a.example/?q")),
        ("Posthaste-Hops", "3", PublishOptions { hops: 3, ..options() }),
        ("Upstash-Telemetry-Sdk", "", options()),
        ("Upstash-NotBefore", "0", options()),
        ("Upstash-Whatever", "\u{1}", options()),
        ("Upstash-Callback-Retries", "-1", options()),
        ("Upstash-Failure-Callback-Retries", "-1", options()),
        ("Upstash-Callback-My-Header", "x", options()),
        ("X-Plain", "ignored", options()),
        ("Authorization", "Bearer secret", options()),
    ];
    for (name, value, expected) in cases {
        assert_eq!(read(&[(name, value)]), Ok(expected), "{name}: {value}");
    }
}

#[test]
fn not_before_follows_the_vectors() {
    let vectors: Value = serde_json::from_str(include_str!("../../../../vectors/durations.json")).unwrap();
    let cases = vectors["not_before"].as_array().unwrap();
    assert_eq!(cases.len(), 9);
    for case in cases {
        let value = case["value"].as_str().unwrap();
        let result = read(&[("Upstash-Not-Before", value), ("Upstash-Delay", "1h")]);
        match case["expect"].as_str() {
            Some("1780315260500") => assert_eq!(result.unwrap().not_before, Some(Timestamp(1_780_315_260_500))),
            Some("deliver now") => assert!(result.unwrap().not_before.is_some_and(|time| time <= NOW), "{value}"),
            _ => assert!(result.is_err(), "{value}"),
        }
    }
    for (value, expected) in [
        ("1780315260.0", Some(1_780_315_260_000)),
        ("1780315260.1234", Some(1_780_315_260_124)),
        ("1780315260.9999", Some(1_780_315_261_000)),
        ("1780315260.", None),
        (".5", None),
        ("1780315260.5.1", None),
        ("1e9", None),
    ] {
        let time = read(&[("Upstash-Not-Before", value)]).ok().and_then(|options| options.not_before);
        assert_eq!(time, expected.map(Timestamp), "{value}");
    }
    let both = read(&[("Upstash-Delay", "1h"), ("Upstash-Not-Before", "1780315260")]).unwrap();
    assert_eq!((both.not_before, both.delay_ms), (Some(Timestamp(1_780_315_260_000)), Some(3_600_000)));
    let wrong_delay = read(&[("Upstash-Delay", "soon"), ("Upstash-Not-Before", "1")]).unwrap_err();
    assert!(wrong_delay.message.starts_with("Upstash-Delay"), "both are checked: {wrong_delay}");
    let too_far = read(&[("Upstash-Not-Before", "1811851201")]).unwrap_err();
    let text = "quota maxDelay exceeded, current limit: 31536000 (365d); the time is in Unix seconds; Upstash-Not-Before is \
                \"1811851201\"";
    assert_eq!((too_far.status, too_far.message.as_str()), (RejectionKind::Quota, text));
}

#[test]
fn labels_may_come_in_several_lines() {
    let labels = read(&[("Upstash-Label", "a, b"), ("upstash-label", "c")]).unwrap().labels;
    assert_eq!(labels, Some(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]));
    let (many, one) = ("a,".repeat(32), "b");
    assert!(read(&[("Upstash-Label", many.as_str()), ("Upstash-Label", one)]).is_err(), "the bound is for all lines");
}

#[test]
fn the_content_has_the_headers_that_were_named_and_its_type() {
    let given = [
        ("Upstash-Header-Forward", "true"),
        ("X-Request-Id", "7"),
        ("Content-Type", "text/plain"),
        ("Upstash-Forward-X-Api-Key", "k"),
    ];
    let content = read(&given).unwrap().content_headers();
    assert_eq!(content, headers(&[("X-Api-Key", "k"), ("Content-Type", "text/plain")]).headers);
}

#[test]
fn a_setting_may_be_given_once() {
    for name in [
        "Upstash-Retries",
        "Upstash-Delay",
        "Upstash-Not-Before",
        "Upstash-Timeout",
        "Upstash-Deduplication-Id",
        "Upstash-Content-Based-Deduplication",
        "Upstash-Header-Forward",
        "Upstash-Flow-Control-Key",
        "Upstash-Schedule-Id",
        "Upstash-Queue-Name",
        "Content-Type",
        "Upstash-Forward-Content-Type",
    ] {
        let rejection = read(&[(name, "1"), (&name.to_uppercase(), "1")]).unwrap_err();
        assert_eq!(rejection, Rejection::invalid(format!("{name}: may be given only once")));
    }
}

#[test]
fn an_explicit_deduplication_id_wins_over_content() {
    let result = read(&[("Upstash-Content-Based-Deduplication", "1"), ("Upstash-Deduplication-Id", "x")]);
    assert_eq!(result.unwrap().dedup, Some(Dedup::Id("x".into())));
}

#[test]
fn retry_delays_are_checked_against_the_retries() {
    let options = read(&[("Upstash-Retry-Delay", "sqrt(2 - retried)")]).unwrap();
    assert_eq!(options.check_retry_delay(3), Ok(()));
    let rejection = options.check_retry_delay(4).unwrap_err();
    assert_eq!(rejection.status, RejectionKind::Invalid);
    assert!(rejection.message.starts_with("Upstash-Retry-Delay: "), "{rejection}");
    assert_eq!(PublishOptions::default().check_retry_delay(1_000), Ok(()));
}

#[test]
fn a_flow_control_key_comes_with_or_without_limits() {
    let key = ("Upstash-Flow-Control-Key", "k");
    let options = read(&[("Upstash-Flow-Control-Value", "rate=2, period=1m"), key]).unwrap();
    let limits = FlowControl { parallelism: None, rate: Some(2), period_ms: 60_000 };
    assert_eq!((options.flow_control_key.as_deref(), options.flow_control), (Some("k"), Some(limits)));
    let options = read(&[key]).unwrap();
    assert_eq!((options.flow_control_key.as_deref(), options.flow_control), (Some("k"), None));
    let empty = read(&[key, ("Upstash-Flow-Control-Value", " ")]).unwrap();
    assert_eq!((empty.flow_control_key.as_deref(), empty.flow_control), (Some("k"), None));
    let longest = "é".repeat(128);
    assert_eq!(read(&[(key.0, &longest)]).unwrap().flow_control_key, Some(longest));
}

#[test]
fn the_longest_names_are_accepted() {
    let longest = "a".repeat(256);
    let options = read(&[("Upstash-Queue-Name", &longest), ("Upstash-Schedule-Id", &longest)]).unwrap();
    assert_eq!((options.queue, options.schedule_id), (Some(longest.clone()), Some(longest)));
}

#[test]
fn forwarded_headers_lose_their_prefix() {
    let cases: [(&[(&str, &str)], PublishOptions); 9] = [
        (&[("upstash-forward-x-api-key", "k")], headers(&[("X-Api-Key", "k")])),
        (&[("Upstash-Forward-A", "1"), ("Upstash-Forward-a", "2")], headers(&[("A", "1"), ("A", "2")])),
        (&[("Upstash-Forward-Authorization", "Bearer r")], headers(&[("Authorization", "Bearer r")])),
        (&[("Upstash-Forward-Upstash-Workflow-Url", "u")], headers(&[("Upstash-Workflow-Url", "u")])),
        (&[("Upstash-Forward-X", " a\tcafé ")], headers(&[("X", "a\tcafé")])),
        (&[("content-type", "text/plain")], headers(&[("Content-Type", "text/plain")])),
        (
            &[("Content-Type", "text/plain"), ("Upstash-Forward-Content-Type", "text/csv")],
            headers(&[("Content-Type", "text/csv")]),
        ),
        (&[("Content-Type", " "), ("Upstash-Forward-X", "")], headers(&[("X", "")])),
        (&[("Content-Type", ""), ("Content-Type", "text/csv")], headers(&[("Content-Type", "text/csv")])),
    ];
    for (given, expected) in cases {
        assert_eq!(read(given).unwrap().headers, expected.headers, "{given:?}");
    }
}

#[test]
fn all_plain_headers_are_forwarded_on_request() {
    let given = [
        ("Upstash-Header-Forward", "true"),
        ("Upstash-Forward-X-Both", "explicit"),
        ("Upstash-Retries", "1"),
        ("Upstash-Telemetry-Sdk", "sdk"),
        ("authorization", "Bearer secret"),
        ("host", "localhost"),
        ("content-length", "3"),
        ("connection", "close"),
        ("accept-encoding", "gzip"),
        ("posthaste-hops", "2"),
        ("content-type", "text/plain"),
        ("cookie", "a=b"),
        ("x-both", "plain"),
        ("x-two", "1"),
        ("x-two", "2"),
    ];
    let expected = headers(&[
        ("X-Both", "explicit"),
        ("Content-Type", "text/plain"),
        ("Cookie", "a=b"),
        ("X-Two", "1"),
        ("X-Two", "2"),
    ]);
    let options = read(&given).unwrap();
    assert_eq!(options.headers, expected.headers);
    assert_eq!(options.hops, 2, "the server sends this one itself, counted");
}

#[test]
fn some_headers_may_not_be_forwarded() {
    for (name, reason) in [
        ("Upstash-Forward-", "must be a header name"),
        ("Upstash-Forward-a b", "must be a header name"),
        ("Upstash-Forward-é", "must be a header name"),
        ("Upstash-Forward-Host", "hop-by-hop"),
        ("Upstash-Forward-TE", "hop-by-hop"),
        ("Upstash-Forward-Upstash-Signature", "the server sets this header"),
    ] {
        let rejection = read(&[(name, "x")]).unwrap_err();
        assert_eq!(rejection.status, RejectionKind::Invalid);
        assert!(rejection.message.contains(reason), "{name}: {rejection}");
    }
    let endless = read(&[(&format!("Upstash-Forward-{}é", "x".repeat(10_000)), "x")]).unwrap_err();
    assert!(endless.message.len() < 300, "a name is quoted in part only");
    let handed_on = read(&[("Upstash-Forward-Posthaste-Hops", "3"), ("Upstash-Forward-X", "1")]);
    let expected = PublishOptions { headers_explicit: 1, ..headers(&[("X", "1")]) };
    assert_eq!(handed_on, Ok(expected), "the count of a delivery is dropped");
}

#[test]
fn values_need_not_be_utf8() {
    let read = |name: &'static str, value: &'static [u8]| parse([(name, value)].into_iter(), &LIMITS, NOW);
    let forwarded = read("Upstash-Forward-X", b" caf\xe9\x80 ").unwrap().headers;
    assert_eq!(header_bytes(&forwarded[0].1), b"caf\xe9\x80".as_slice());
    let plain = read("Content-Type", b"text/\xe9").unwrap().headers;
    assert_eq!(header_bytes(&plain[0].1), b"text/\xe9".as_slice());
    assert_eq!(read("Upstash-Label", b"caf\xe9").unwrap().labels, Some(vec!["café".to_owned()]));
    for (name, value, shown) in
        [("Upstash-Forward-X", b"\xe9\x1b[1m".as_slice(), r"\u{1b}"), ("Upstash-Label", b"\xe9\x85", r"\u{85}")]
    {
        let rejection = read(name, value).unwrap_err();
        let expected = format!("{name}: the value has the control character '{shown}'; percent-encode it");
        assert_eq!(rejection.message, expected);
    }
}

#[test]
fn forwarded_headers_are_bounded() {
    let many = |count| vec![("Upstash-Forward-X", "1"); count];
    assert_eq!(read(&many(100)).unwrap().headers.len(), 100);
    assert!(read(&many(101)).unwrap_err().message.contains("at most 100 headers"));
    let value = "a".repeat(32 * 1024 - 1);
    assert!(read(&[("Upstash-Forward-X", &value)]).is_ok());
    let rejection = read(&[("Upstash-Forward-Xy", &value)]).unwrap_err();
    assert!(rejection.message.contains("at most 32768 bytes"), "{rejection}");
}

#[test]
fn hops_come_from_the_header() {
    for (values, expected) in [
        (&[][..], 0),
        (&["0"], 0),
        (&["16"], 16),
        (&[" 7\t"], 7),
        (&["007"], 7),
        (&["1", "5", "3"], 5),
        (&["4294967295"], u32::MAX),
        (&["4294967296"], u32::MAX),
        (&["99999999999999999999999999"], u32::MAX),
        (&[""], 0),
        (&["-1"], 0),
        (&["+1"], 0),
        (&["1.5"], 0),
        (&["1,2"], 0),
        (&["0x1"], 0),
        (&["٣"], 0),
        (&["x", "2"], 2),
    ] {
        let given: Vec<(&str, &str)> = values.iter().map(|value| ("POSTHASTE-hops", *value)).collect();
        assert_eq!(read(&given), Ok(PublishOptions { hops: expected, ..options() }), "{values:?}");
    }
    let not_text = parse([("Posthaste-Hops", b"1\xff".as_slice())].into_iter(), &LIMITS, NOW).unwrap();
    assert_eq!(not_text.hops, 0);
    let callback = read(&[("Upstash-Callback", "https://a.example"), ("Posthaste-Hops", "3")]).unwrap();
    assert_eq!((callback.hops, callback.callback.unwrap().options.hops), (3, 0));
}

#[test]
fn workflow_headers_of_a_plain_message_are_rejected() {
    let (callback, run) = (("Upstash-Callback", "https://a.example"), ("Upstash-Workflow-RunId", "wfr_1"));
    assert_refused(&[
        (&[run], 400, "Upstash-Workflow-Runid: only a publish or an item of a batch"),
        (&[("Upstash-Workflow-Init", "true")], 400, "Upstash-Workflow-Init: only a publish"),
        (&[callback, ("Upstash-Callback-Workflow-RunId", "wfr_1")], 400, "Upstash-Callback-Workflow-Runid: only a"),
    ]);
}

#[test]
fn headers_win_over_the_query() {
    let config = [
        ("upstash-retries".to_owned(), "5".to_owned()),
        ("upstash-delay".to_owned(), "10s".to_owned()),
        ("upstash-forward-x".to_owned(), "query".to_owned()),
    ];
    let given = [("Upstash-Retries", b"1".as_slice()), ("Content-Type", b"text/plain")];
    let merged = parse(merge_query(given.into_iter(), &config), &LIMITS, NOW).unwrap();
    assert_eq!((merged.retries, merged.delay_ms), (Some(1), Some(10_000)));
    assert_eq!(merged.headers, headers(&[("X", "query"), ("Content-Type", "text/plain")]).headers);
}

/// `{text*n}` in a vector repeats the text.
fn expand(text: &str) -> String {
    let Some((before, rest)) = text.split_once('{') else {
        return text.to_owned();
    };
    let (pattern, after) = rest.split_once('}').unwrap();
    match pattern.rsplit_once('*') {
        Some((unit, count)) => format!("{before}{}{}", unit.repeat(count.parse().unwrap()), expand(after)),
        None => format!("{before}{{{pattern}}}{after}"),
    }
}

#[test]
fn the_api_vectors_hold() {
    // These break a rule of the egress policy, which the server applies elsewhere.
    let of_egress_policy = ["h-callback-loop", "h-callback-private", "h-failcallback-metadata"];
    let vectors: Value = serde_json::from_str(include_str!("../../../../vectors/api-inputs.json")).unwrap();
    let mut checked = 0;
    for case in vectors["cases"].as_array().unwrap().iter().filter(|case| case["group"] == "header") {
        let id = case["id"].as_str().unwrap();
        let mut given: Vec<(String, String)> = Vec::new();
        for (name, value) in case["headers"].as_object().unwrap() {
            let value = expand(value.as_str().unwrap()).replace("{own_url}", "https://posthaste.example");
            for n in 0..case["repeat_headers"].as_u64().filter(|_| name.contains("{n}")).unwrap_or(1) {
                given.push((name.replace("{n}", &n.to_string()), value.clone()));
            }
        }
        let pairs: Vec<(&str, &str)> = given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let result = read(&pairs).and_then(|options| options.check_retry_delay(options.retries.unwrap_or(3)));
        let code = result.as_ref().map_or_else(|rejection| u64::from(rejection.status.code()), |()| 200);
        let expected = case["expect_status"].as_array().unwrap().iter().any(|status| status.as_u64() == Some(code));
        assert_ne!(expected, of_egress_policy.contains(&id), "{id}: {result:?}, {}", case["why"]);
        checked += 1;
    }
    assert_eq!(checked, 88);
}

fn any_header() -> impl Strategy<Value = (String, Vec<u8>)> {
    let name = "(?i)(upstash-)?(failure-|callback-|forward-){0,2}(method|delay|not-before|timeout|retries|retry-delay\
                |label|redact-fields|header-forward|deduplication-id|content-based-deduplication|callback\
                |flow-control-key|flow-control-value|cron|schedule-id|queue-name|workflow-init|posthaste-hops\
                |content-type|host|x|[a-z -é]{0,5})";
    let value = prop_oneof![
        "(true|1|0|get|5s|2h|body|a,b|rate=1|https://a/|@daily|[0-9]{1,5}|a{0,3}){1,2}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    // The settings of a callback count only with its URL.
    let url = ("(?i)upstash-(failure-)?callback", Just(b"https://a/".to_vec()));
    prop_oneof![6 => (name, value), 1 => url]
}

/// The limits of the options of a message and of its callbacks.
fn assert_within(options: &PublishOptions, limits: &PublishLimits) -> Result<(), TestCaseError> {
    prop_assert!(options.delay_ms.is_none_or(|ms| ms <= limits.delay_ms_max));
    prop_assert!(options.not_before.is_none_or(|time| time <= NOW.plus_millis(limits.delay_ms_max)));
    prop_assert!(options.timeout_ms.is_none_or(|ms| (1_000..=limits.timeout_ms_max).contains(&ms)));
    prop_assert!(options.retries.is_none_or(|retries| retries <= 50));
    let labels = options.labels.as_deref().unwrap_or_default();
    prop_assert!(labels.len() <= 2 && labels.iter().all(|label| (1..=2).contains(&label.len())));
    prop_assert!(!matches!(&options.dedup, Some(Dedup::Id(id)) if id.is_empty() || id.len() > 4));
    for key in [&options.flow_control_key, &options.queue, &options.schedule_id].into_iter().flatten() {
        prop_assert!((1..=4).contains(&key.len()) && !key.contains(char::is_control));
    }
    prop_assert!(options.flow_control.is_none() || options.flow_control_key.is_some());
    let bytes: usize = options.headers.iter().map(|(name, value)| name.len() + header_bytes(value).len()).sum();
    prop_assert!(options.headers.len() <= 3 && bytes <= 30);
    for (name, value) in &options.headers {
        prop_assert!(header::is_valid_name(name) && *name == header::canonical(name));
        prop_assert!(!header::is_hop_by_hop_or_framing(name) && !header::is_set_by_server(name));
        prop_assert!(!value.contains(|c: char| c.is_control() && c != '\t'));
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_headers_are_read_within_the_limits_or_refused(given in proptest::collection::vec(any_header(), 0..8)) {
        let limits = PublishLimits {
            retries_max: 50,
            labels_max: 2,
            label_bytes_max: 2,
            dedup_id_bytes_max: 4,
            forward_headers_max: 3,
            forward_header_bytes_max: 30,
            key_bytes_max: 4,
            ..LIMITS
        };
        let pairs = given.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        let Ok(options) = parse(pairs, &limits, NOW) else { return Ok(()) };
        assert_within(&options, &limits)?;
        prop_assert!(options.queue.is_none() || options.check_queued().is_ok());
        for (_, callback) in options.callbacks() {
            assert_within(&callback.options, &limits)?;
            let own = callback.options.as_ref().clone();
            let expected = PublishOptions {
                not_before: None,
                dedup: None,
                callback: None,
                failure_callback: None,
                cron: None,
                schedule_id: None,
                queue: None,
                hops: 0,
                headers_explicit: own.headers.len(),
                ..own.clone()
            };
            prop_assert_eq!(own, expected);
        }
    }
}
