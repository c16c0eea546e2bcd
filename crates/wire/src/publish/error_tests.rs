//! Every mistake in a header of a publish, with the complete error text.

use super::tests::read;

/// Mistakes get status 400, and the text starts with the name of the header.
#[test]
fn mistakes_name_the_header_the_value_and_the_accepted_form() {
    let duration = "accepted are d, h, m and s, such as 1d10h30m, 5m or 0.5s, and a number of seconds";
    let name = "must have 1 to 256 letters, digits, '.', '_' and '-', and be neither '.' nor '..'";
    let key = "is not a key; accepted are 1 to 256 bytes without control characters";
    let flow = "accepted are parallelism=N, rate=N and period=DURATION, separated by commas";
    let scheme = "invalid destination url: endpoint has invalid scheme, add http:// or https://";
    let long = "a".repeat(257);
    let cut = format!("\"{}…\"", "a".repeat(64));
    for (header, value, expected) in [
        ("Upstash-Method", "TRACE", r#""TRACE" is not a method; accepted are GET, POST, PUT, PATCH and DELETE"#.to_owned()),
        ("Upstash-Delay", "500ms", format!(r#""500ms" is not a duration: ms is not supported here; {duration}"#)),
        ("Upstash-Delay", "-5s", format!(r#""-5s" is not a duration; {duration}"#)),
        ("Upstash-Delay", "9223372036854775807d", r#""9223372036854775807d" is not a duration: the number is too big"#.into()),
        ("Upstash-Delay", &long, format!("{cut} is not a duration: at most 32 characters are accepted")),
        ("Upstash-Timeout", "0s", r#""0s" is too short, the minimum is 1s"#.into()),
        ("Upstash-Retries", "1.5", r#""1.5" is not a number of retries; accepted are whole numbers from 0 to 1000"#.into()),
        ("Upstash-Retries", "", r#""" is not a number of retries; accepted are whole numbers from 0 to 1000"#.into()),
        (
            "Upstash-Not-Before",
            "tomorrow",
            r#""tomorrow" is not a time; accepted are Unix seconds, such as 1767225600 or 1767225600.5"#.into(),
        ),
        ("Upstash-Deduplication-Id", "", "must have 1 to 1024 bytes, and has 0".into()),
        ("Upstash-Deduplication-Id", &"a".repeat(1_025), "must have 1 to 1024 bytes, and has 1025".into()),
        ("Upstash-Content-Based-Deduplication", "yes", r#""yes" is not a boolean; accepted are true and false"#.into()),
        ("Upstash-Header-Forward", "", r#""" is not a boolean; accepted are true and false"#.into()),
        ("Upstash-Label", &long, format!("the label {cut} has 257 bytes; at most 256 are accepted")),
        ("Upstash-Label", &"a,".repeat(33), "at most 32 labels are accepted".into()),
        ("Upstash-Label", "a\n", r"the value has the control character '\n'; percent-encode it".into()),
        (
            "Upstash-Redact-Fields",
            "body, passwords",
            "item 2 of the list is not a field to redact; accepted are body, header and up to 100 header[Name], separated by \
             commas"
                .into(),
        ),
        ("Upstash-Flow-Control-Key", "", format!(r#""" {key}"#)),
        ("Upstash-Flow-Control-Key", &long, format!("{cut} {key}")),
        ("Upstash-Flow-Control-Key", "a\tb", format!(r#""a\tb" {key}"#)),
        ("Upstash-Flow-Control-Value", "rate=1", "Upstash-Flow-Control-Key is missing".into()),
        ("Upstash-Flow-Control-Value", "", "Upstash-Flow-Control-Key is missing".into()),
        ("Upstash-Flow-Control-Value", "speed=1", format!(r#""speed=1": {flow}"#)),
        ("Upstash-Queue-Name", "", format!(r#""" {name}"#)),
        ("Upstash-Queue-Name", "a/b", format!(r#""a/b" {name}"#)),
        ("Upstash-Queue-Name", "a b", format!(r#""a b" {name}"#)),
        ("Upstash-Queue-Name", "grün", format!(r#""grün" {name}"#)),
        ("Upstash-Queue-Name", ".", format!(r#""." {name}"#)),
        ("Upstash-Schedule-Id", &long, format!("{cut} {name}")),
        ("Upstash-Callback", "my-group", format!(r#"{scheme}; received "my-group""#)),
        ("Upstash-Failure-Callback", "ftp://u:secret@b/?k=1", format!(r#"{scheme}; ftp is not supported; received "ftp://…@b/?…""#)),
    ] {
        let rejection = read(&[(header, value)]).unwrap_err();
        assert_eq!((rejection.status.code(), rejection.message), (400, format!("{header}: {expected}")), "{value:.40}");
    }
}

/// As [`mistakes_name_the_header_the_value_and_the_accepted_form`], for expressions.
#[test]
fn mistakes_in_expressions_name_the_place() {
    let accepted = "accepted are retried, pow, sqrt, abs, exp, floor, ceil, round, min and max";
    let delay = "invalid retry delay expression:";
    for (header, value, expected) in [
        ("Upstash-Retry-Delay", "log(1)", format!(r#"{delay} unknown name "log", {accepted}"#)),
        (
            "Upstash-Retry-Delay",
            "2^retried",
            format!(r#"{delay} syntax error at position 1 of "2^retried"; use pow(2, retried)"#),
        ),
        (
            "Upstash-Retry-Delay",
            "5s",
            format!(r#"{delay} syntax error at position 1 of "5s"; the result is in milliseconds: 5000"#),
        ),
        ("Upstash-Retry-Delay", "pow(2)", format!("{delay} wrong number of arguments for pow")),
        ("Upstash-Retry-Delay", &"1".repeat(257), format!("{delay} at most 256 bytes are accepted")),
        (
            "Upstash-Cron",
            "* * * *",
            "invalid cron expression: 4 fields, accepted are five: minute, hour, day of month, month, day of week"
                .into(),
        ),
        (
            "Upstash-Cron",
            "",
            "invalid cron expression: 0 fields, accepted are five: minute, hour, day of month, month, day of week"
                .into(),
        ),
    ] {
        let rejection = read(&[(header, value)]).unwrap_err();
        assert_eq!((rejection.status.code(), rejection.message), (400, format!("{header}: {expected}")), "{value:.40}");
    }
}

/// Exceeded quotas get status 412, and the text starts with the words of the hosted service.
#[test]
fn quotas_name_the_limit_the_header_and_the_value() {
    for (header, value, expected) in [
        (
            "Upstash-Delay",
            "400d",
            r#"quota maxDelay exceeded, current limit: 31536000 (365d); Upstash-Delay is "400d""#,
        ),
        ("Upstash-Timeout", "3h", r#"quota timeout exceeded, current limit: 7200 (2h); Upstash-Timeout is "3h""#),
        ("upstash-retries", "1001", r#"quota maxRetries exceeded, current limit: 1000; Upstash-Retries is "1001""#),
        (
            "Upstash-Retries",
            "99999999999999999999",
            r#"quota maxRetries exceeded, current limit: 1000; Upstash-Retries is "99999999999999999999""#,
        ),
    ] {
        let rejection = read(&[(header, value)]).unwrap_err();
        assert_eq!((rejection.status.code(), rejection.message.as_str()), (412, expected), "{value}");
    }
}
