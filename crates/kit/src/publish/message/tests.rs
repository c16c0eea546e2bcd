//! The headers of a message, read by the parser of the server.

use super::*;
use posthaste_wire::duration::Units;
use posthaste_wire::publish::{self as server, PublishLimits, PublishOptions};
use posthaste_wire::rejection::Rejection;
use posthaste_wire::time::Timestamp;
use proptest::prelude::*;
use serde_json::json;

const NOW: Timestamp = Timestamp(1_780_315_200_000);
const LIMITS: PublishLimits = PublishLimits {
    delay_units: Units::Short,
    delay_ms_max: 31_536_000_000,
    timeout_ms_min: 1_000,
    timeout_ms_max: 7_200_000,
    retries_max: 1_000,
    forward_headers_max: 100,
    forward_header_bytes_max: 32 * 1024,
    labels_max: 32,
    label_bytes_max: 256,
    dedup_id_bytes_max: 1_024,
    url_bytes_max: URL_BYTES_MAX,
    key_bytes_max: 256,
};
const URL: &str = "https://app.example.com/job";

fn message() -> Message {
    Message::bytes(URL, "billing:u_7:invoice_9:charge:v1", "body")
}

/// The options that the server reads.
fn understood(message: &Message) -> PublishOptions {
    read(&message.headers(&PublishPolicy::default()).unwrap()).unwrap()
}

fn read(headers: &HeaderMap) -> Result<PublishOptions, Rejection> {
    let lines: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    server::parse(lines.into_iter(), &LIMITS, NOW)
}

fn refusal(message: &Message) -> String {
    let error = message.headers(&PublishPolicy::default()).unwrap_err();
    assert!(error.is_untouched() && !error.is_retryable());
    error.chain().to_string()
}

#[test]
fn the_policy_is_always_applied_unless_overridden() {
    let options = understood(&message());
    assert_eq!(options.retries, Some(5));
    assert_eq!(options.retry_delay.as_deref(), Some("10000 * pow(2, retried)"));
    let id = DedupId::of_key("billing:u_7:invoice_9:charge:v1");
    assert_eq!(options.dedup, Some(server::Dedup::Id(id.as_str().to_owned())));

    let options = understood(&message().retries(0).retry_delay("1000").dedup(Dedup::Content));
    assert_eq!((options.retries, options.retry_delay.as_deref()), (Some(0), Some("1000")));
    assert_eq!(options.dedup, Some(server::Dedup::Content));
    assert_eq!(understood(&message().dedup(Dedup::Off)).dedup, None);
}

#[test]
fn the_server_understands_every_setting() {
    let flow =
        FlowControl { key: "mail".into(), parallelism: Some(2), rate: Some(10), period: Some(Duration::from_secs(60)) };
    let full = Message::json(URL, "key", &json!({ "a": 1 })).unwrap();
    let full = full
        .method(Method::PUT)
        .delay(Duration::from_millis(1_001))
        .timeout(Duration::from_secs(30))
        .callback("https://app.example.com/done")
        .failure_callback("https://app.example.com/failed")
        .label("mail")
        .label("eu")
        .flow_control(flow)
        .header("X-Tenant", "t_1")
        .request_id("old")
        .request_id("req_42")
        .event_id("evt_1")
        .trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("vendor=1".into()))
        .setting("Redact-Fields", "body");
    let options = understood(&full);
    assert_eq!((options.method, options.delay_ms, options.timeout_ms), (Some("PUT"), Some(2_000), Some(30_000)));
    assert_eq!(options.callback.unwrap().url, "https://app.example.com/done");
    assert_eq!(options.failure_callback.unwrap().url, "https://app.example.com/failed");
    assert_eq!(options.labels.unwrap(), ["mail", "eu"]);
    let flow = options.flow_control.unwrap();
    assert_eq!(
        (options.flow_control_key.as_deref(), flow.parallelism, flow.rate, flow.period_ms),
        (Some("mail"), Some(2), Some(10), 60_000)
    );
    assert!(options.redact.is_some());
    let headers: Vec<(&str, &str)> =
        options.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!(
        headers.contains(&("X-Tenant", "t_1")) && headers.contains(&("Content-Type", "application/json")),
        "{headers:?}"
    );
    assert!(headers.contains(&("X-Request-Id", "req_42")) && headers.contains(&("Tracestate", "vendor=1")));
    assert!(headers.contains(&("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")));
    assert!(headers.contains(&("X-Max-Retries", "5")) && headers.contains(&("X-Event-Id", "evt_1")), "{headers:?}");
    let id = DedupId::of_key("key");
    assert!(headers.contains(&("X-Deduplication-Id", id.as_str())));
    assert_eq!(headers.len(), 8, "{headers:?}");
}

#[test]
fn a_header_of_the_message_is_not_added_twice() {
    let options = understood(&message().header("X-Max-Retries", "9"));
    let said: Vec<_> = options.headers.iter().filter(|(name, _)| name == "X-Max-Retries").collect();
    assert_eq!(said, [&("X-Max-Retries".to_owned(), "9".to_owned())]);
}

#[test]
fn not_before_takes_precedence_over_a_delay() {
    let time = UNIX_EPOCH + Duration::from_millis(1_780_315_300_001);
    let options = understood(&message().delay(Duration::from_secs(9)).not_before(time));
    assert_eq!((options.delay_ms, options.not_before), (None, Some(Timestamp(1_780_315_301_000))));

    let mut delayed = message().delay(Duration::from_secs(10));
    delayed.fix_delay(UNIX_EPOCH + Duration::from_secs(1_780_315_300));
    assert_eq!(understood(&delayed).not_before, Some(Timestamp(1_780_315_310_000)));
    let mut fixed = message().delay(Duration::from_secs(10)).not_before(time);
    fixed.fix_delay(UNIX_EPOCH);
    assert_eq!(understood(&fixed).not_before, Some(Timestamp(1_780_315_301_000)));
}

#[test]
fn invalid_messages_are_rejected_before_they_are_sent() {
    let flow = |parallelism| FlowControl { key: "k".into(), parallelism, rate: None, period: None };
    for (wrong, words) in [
        (Message::bytes("ftp://example.com", "k", ""), "invalid scheme"),
        (Message::bytes("", "k", ""), "non-empty destination"),
        (Message::bytes("https://u:p@example.com", "k", ""), "user and password"),
        (message().in_queue("a/b"), "the queue"),
        (message().label("a,b"), "comma"),
        (message().label(" "), "empty"),
        (message().header("Transfer-Encoding", "chunked"), "cannot be forwarded"),
        (message().header("Upstash-Signature", "x"), "cannot be forwarded"),
        (message().header("a b", "x"), "not a valid header name"),
        (message().header("x", "line\r\nupstash-retries: 9"), "not a valid header value"),
        (message().retry_delay("pow(2"), "syntax error"),
        (message().retry_delay("sqrt(0 - 1)"), "not a number"),
        (message().callback("example.com"), "invalid scheme"),
        (message().flow_control(flow(None)), "accepted are"),
        (message().flow_control(flow(Some(0))), "whole numbers"),
        (message().header("x", "y".repeat(HEADER_BYTES_MAX)), "more than 32768"),
        (Message::bytes(URL, "k", vec![0; MESSAGE_BYTES_MAX + 1]), "more than 10485760"),
    ] {
        assert!(refusal(&wrong).contains(words), "{}: {words}", refusal(&wrong));
    }
    let many = (0..=LINES_MAX).fold(message(), |message, number| message.header(format!("x-{number}"), ""));
    assert!(refusal(&many).contains("more than 90"));
    let many = (0..=LABELS_MAX).fold(message(), |message, number| message.label(number.to_string()));
    assert!(refusal(&many).contains("32 labels"));
    // At the limits there is still room for the headers that are added to every message.
    let most = (0..LINES_MAX).fold(message(), |message, number| message.header(format!("x-{number}"), ""));
    assert_eq!(understood(&most).headers.len(), LINES_MAX + 2);
}

#[test]
fn secrets_are_not_shown() {
    let secret = Message::bytes("https://app.example.com/job?token=tok-123", "k", "bod-123");
    let secret = secret.header("authorization", "Bearer hdr-123");
    let shown = format!("{secret:?}");
    assert!(!shown.contains("-123"), "{shown}");
    assert!(!refusal(&secret.clone().header("x-key", "val-123\n")).contains("-123"));
    assert!(shown.contains("app.example.com"));
}

#[test]
fn a_trace_is_filled_in_where_there_is_none() {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "00-a".parse().unwrap());
    headers.insert("x-request-id", "req_1".parse().unwrap());
    headers.insert("cookie", "c".parse().unwrap());
    let mut message = message().request_id("req_own");
    message.propagate(&headers);
    assert_eq!(message.forwarded_header("Traceparent"), Some("00-a"));
    assert_eq!(message.forwarded_header("x-request-id"), Some("req_own"));
    assert_eq!(message.forwarded_header("cookie"), None);
}

proptest! {
    #[test]
    fn messages_that_the_kit_accepts_are_valid_for_the_server(
        delay in proptest::option::of(0_u64..31_536_000),
        retries in proptest::option::of(0_u32..1_000),
        labels in proptest::collection::vec("[ -~]{0,20}", 0..5),
        name in "[a-z-]{1,12}",
        value in "\\PC{0,20}",
    ) {
        let mut message = message().header(&name, value);
        message.delay_seconds = delay;
        message.retries = retries;
        message.labels = labels;
        if let Ok(headers) = message.headers(&PublishPolicy::default()) {
            let options = read(&headers);
            prop_assert!(options.is_ok(), "{options:?}");
            prop_assert_eq!(options.unwrap().retries, Some(retries.unwrap_or(5)));
        }
    }

    #[test]
    fn a_stored_message_is_read_back_unchanged(
        body: Vec<u8>,
        key in ".{0,20}",
        queue in proptest::option::of("[a-z]{1,5}"),
    ) {
        let mut message = Message::bytes(URL, key, body).header("x", "y").delay(Duration::from_secs(1));
        message.queue = queue;
        let text = serde_json::to_string(&message).unwrap();
        prop_assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }
}
