//! Tables for the callback settings of a publish.

use super::tests::{assert_refused, callback, callback_only, headers, options, read};
use super::*;

/// The settings that a publish and a callback share.
const CALLBACK_SETTINGS: [(&str, &str); 14] = [
    ("Method", "put"),
    ("Timeout", "30s"),
    ("Retries", "7"),
    ("Retry-Delay", "1000 * retried"),
    ("Delay", "1m"),
    ("Label", "a"),
    ("LABEL", "b"),
    ("Redact-Fields", "body"),
    ("Flow-Control-Key", "k"),
    ("Flow-Control-Value", "parallelism=1"),
    ("Forward-X", "1"),
    ("forward-x", "2"),
    ("Forward-Content-Type", "text/csv"),
    ("Forward-Callback", "3"),
];

#[test]
fn a_callback_is_configured_as_a_publish_is() {
    let of = |prefix: &str| CALLBACK_SETTINGS.map(|(name, value)| (format!("{prefix}{name}"), value));
    let message = of("Upstash-");
    let published = read(&message.each_ref().map(|(name, value)| (name.as_str(), *value))).unwrap();
    assert_eq!((published.retries, published.headers.len(), published.headers_explicit), (Some(7), 4, 4));
    for prefix in ["Upstash-Callback-", "upstash-FAILURE-callback-"] {
        let settings = of(prefix);
        let mut given = settings.each_ref().map(|(name, value)| (name.as_str(), *value)).to_vec();
        given.push((&prefix[..prefix.len() - 1], "https://a.example/"));
        given.push(("Content-Type", "text/plain"));
        given.push(("Upstash-Header-Forward", "true"));
        given.push(("X-Plain", "of the message"));
        let options = read(&given).unwrap();
        let expected = callback("https://a.example/", published.clone());
        let (callback, none) = match prefix {
            "Upstash-Callback-" => (&options.callback, &options.failure_callback),
            _ => (&options.failure_callback, &options.callback),
        };
        assert_eq!((callback, none), (&expected, &None), "{prefix}");
        let own = headers(&[("Content-Type", "text/plain"), ("X-Plain", "of the message")]);
        let only_own = PublishOptions { callback: None, failure_callback: None, ..options };
        assert_eq!(only_own, own, "{prefix}: the message keeps what is its own");
    }
}

#[test]
fn callbacks_and_failure_callbacks_are_parsed_separately() {
    let read = read(&[
        ("Upstash-Failure-Callback-Retries", "2"),
        ("Upstash-Callback-Retries", "1"),
        ("Upstash-Retries", "0"),
        ("Upstash-Failure-Callback", "https://f.example"),
        ("Upstash-Callback", "https://c.example"),
    ]);
    let expected = PublishOptions {
        retries: Some(0),
        callback: callback("https://c.example", PublishOptions { retries: Some(1), ..options() }),
        failure_callback: callback("https://f.example", PublishOptions { retries: Some(2), ..options() }),
        ..options()
    };
    assert_eq!(read, Ok(expected));
}

#[test]
fn settings_without_meaning_for_a_callback_are_ignored() {
    for (name, value) in [
        ("Upstash-Callback-Cron", "never"),
        ("Upstash-Callback-Schedule-Id", ".."),
        ("Upstash-Callback-Queue-Name", "a b"),
        ("Upstash-Callback-Deduplication-Id", ""),
        ("Upstash-Callback-Content-Based-Deduplication", "perhaps"),
        ("Upstash-Callback-Header-Forward", "perhaps"),
        ("Upstash-Callback-My-Header", "\u{1}"),
        ("Upstash-Callback-Callback-Retries", "-1"),
        ("Upstash-Callback-", "x"),
    ] {
        let result = read(&[("Upstash-Callback", "https://a.example"), (name, value)]);
        assert_eq!(result, Ok(callback_only("https://a.example")), "{name}: {value}");
    }
}

#[test]
fn mistakes_about_callbacks_name_their_header() {
    let (callback, failure) = (("Upstash-Callback", "https://a.example"), ("Upstash-Failure-Callback", "http://b"));
    assert_refused(&[
        (&[callback, ("Upstash-Retries", "x")], 400, "Upstash-Retries"),
        (&[callback, ("Upstash-Callback-Retries", "-1")], 400, "Upstash-Callback-Retries: \"-1\" is not a number"),
        (&[failure, ("Upstash-Failure-Callback-Retries", "1001")], 412, "quota maxRetries exceeded"),
        (&[failure, ("Upstash-Failure-Callback-Delay", "400d")], 412, "quota maxDelay exceeded"),
        (&[callback, ("Upstash-Callback-Timeout", "0s")], 400, "Upstash-Callback-Timeout: \"0s\" is too short"),
        (&[callback, ("Upstash-Callback-Retry-Delay", "x")], 400, "Upstash-Callback-Retry-Delay: invalid retry delay"),
        (&[callback, ("Upstash-Callback-Forward-Host", "x")], 400, "Upstash-Callback-Forward-Host: hop-by-hop"),
        (
            &[failure, ("Upstash-Failure-Callback-Flow-Control-Value", "rate=1"), ("Upstash-Flow-Control-Key", "k")],
            400,
            "Upstash-Failure-Callback-Flow-Control-Value: Upstash-Failure-Callback-Flow-Control-Key is missing",
        ),
        (
            &[callback, ("Upstash-Callback-Not-Before", "1")],
            400,
            "Upstash-Callback-Not-Before: a callback does not support Not-Before; use Upstash-Callback-Delay",
        ),
        (
            &[callback, ("Upstash-Callback-Delay", "1s"), ("upstash-callback-delay", "1s")],
            400,
            "Upstash-Callback-Delay: may be given only once",
        ),
        (&[callback, callback], 400, "Upstash-Callback: may be given only once"),
        (&[("Upstash-Callback-Callback", "https://a")], 400, "Upstash-Callback-Callback: a callback cannot"),
        (&[callback, ("Upstash-Callback-Failure-Callback", "")], 400, "Upstash-Callback-Failure-Callback: a callback"),
        (&[failure, ("Upstash-Failure-Callback-Callback", "")], 400, "Upstash-Failure-Callback-Callback: a callback"),
        (
            &[("Upstash-Failure-Callback-Failure-Callback", "https://a")],
            400,
            "Upstash-Failure-Callback-Failure-Callback: a callback cannot",
        ),
    ]);
}

#[test]
fn callbacks_of_a_message_in_a_queue_cannot_be_delayed() {
    for (url, delay) in
        [("Upstash-Callback", "Upstash-Callback-Delay"), ("Upstash-Failure-Callback", "Upstash-Failure-Callback-Delay")]
    {
        let expected = Rejection::invalid(format!(
            "{delay}: callbacks of a message in a queue cannot be delayed, because the queue waits for them; leave out \
             the delay or the queue"
        ));
        let (queue, url) = (("Upstash-Queue-Name", "q"), (url, "https://a.example"));
        assert_eq!(read(&[url, (delay, "1s"), queue]), Err(expected.clone()));
        let elsewhere = read(&[url, (delay, "1s")]).unwrap();
        assert_eq!(elsewhere.check_queued(), Err(expected), "the queue may be named elsewhere");
        for accepted in [&[url, (delay, "0"), queue][..], &[url, queue, ("Upstash-Delay", "1s")], &[queue]] {
            assert_eq!(read(accepted).unwrap().check_queued(), Ok(()), "{accepted:?}");
        }
    }
}

#[test]
fn retry_delays_of_callbacks_are_checked_against_their_retries() {
    for (url, delay, retries) in [
        ("Upstash-Callback", "Upstash-Callback-Retry-Delay", "Upstash-Callback-Retries"),
        ("Upstash-Failure-Callback", "Upstash-Failure-Callback-Retry-Delay", "Upstash-Failure-Callback-Retries"),
    ] {
        let given = [(url, "https://a.example"), (delay, "sqrt(2 - retried)")];
        let options = read(&given).unwrap();
        assert_eq!(options.check_retry_delay(3), Ok(()));
        let rejection = options.check_retry_delay(4).unwrap_err();
        let expected = format!("{delay}: invalid retry delay expression: ");
        assert!(rejection.status == RejectionKind::Invalid && rejection.message.starts_with(&expected), "{rejection}");
        let few = read(&[given[0], given[1], (retries, "3")]).unwrap();
        assert_eq!(few.check_retry_delay(1_000), Ok(()), "its own retries count");
        let many = read(&[given[0], given[1], (retries, "4")]).unwrap();
        assert_eq!(many.check_retry_delay(0), Err(rejection), "its own retries count");
    }
}
