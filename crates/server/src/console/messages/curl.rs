//! A command that publishes a message with those of its settings that the API shows.

use super::data::{About, Headers};
use super::one::Story;
use super::request::Body;
use crate::console::form::is_hidden;
use posthaste_wire::encoding::base64;
use std::fmt::Write as _;

/// The command, for the server at this address. What is hidden is left out.
pub(super) fn command(story: &Story, address: &str) -> String {
    of(&story.about, &story.body, address)
}

fn of(about: &About, body: &Body, address: &str) -> String {
    let place = match &about.queue_name {
        Some(queue) => format!("enqueue/{queue}"),
        None => "publish".to_owned(),
    };
    let destination = about.api.as_ref().map_or_else(|| about.url.clone(), |api| format!("api/{api}"));
    let target = quoted(&format!("{address}/v2/{place}/{destination}"));
    let (before, data) = data(body);
    let as_it_is = if is_changed_by_curl(&destination) { " --globoff --path-as-is" } else { "" };
    let mut command =
        format!("{before}curl{as_it_is} -X POST {target} \\\n  -H \"Authorization: Bearer $QSTASH_TOKEN\"");
    for (name, value) in settings(about) {
        let _ = write!(command, " \\\n  -H {}", quoted(&format!("{name}: {value}")));
    }
    // Otherwise curl names one for a body.
    if !data.is_empty() && !about.header.keys().any(|name| name.eq_ignore_ascii_case("content-type")) {
        command.push_str(" \\\n  -H 'Content-Type:'");
    }
    let _ = write!(command, "{data}");
    command
}

/// Whether curl would take a part of it for a pattern, or shorten its path.
fn is_changed_by_curl(url: &str) -> bool {
    url.contains(['[', ']', '{', '}']) || url.contains("/.")
}

/// What is before the command and behind it, so that the body is sent.
fn data(body: &Body) -> (String, String) {
    match (body.whole(), body.text()) {
        (Some([]), _) => (String::new(), String::new()),
        (_, Some(text)) if is_hidden(text) => (String::new(), String::new()),
        // A file is meant by an at sign in the beginning.
        (_, Some(text)) if !text.contains('\0') => (String::new(), format!(" \\\n  --data-raw {}", quoted(text))),
        (Some(bytes), _) => (format!("echo {} | base64 -d | ", base64(bytes)), " \\\n  --data-binary @-".to_owned()),
        (None, _) => (String::new(), " \\\n  --data-binary @body.bin".to_owned()),
    }
}

fn settings(about: &About) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut put = |name: &str, value: String| found.push((name.to_owned(), value));
    if !about.method.is_empty() && about.method != "POST" {
        put("Upstash-Method", about.method.clone());
    }
    put("Upstash-Retries", about.max_retries.to_string());
    if let Some(expression) = &about.retry_delay_expression {
        put("Upstash-Retry-Delay", expression.clone());
    }
    if let Some(millis) = about.timeout {
        put("Upstash-Timeout", format!("{}s", millis.div_ceil(1_000)));
    }
    if !about.labels.is_empty() {
        put("Upstash-Label", about.labels.join(", "));
    }
    if let Some(key) = &about.flow_control_key {
        put("Upstash-Flow-Control-Key", key.clone());
        let limits = [
            about.parallelism.map(|max| format!("parallelism={max}")),
            about.rate.map(|rate| format!("rate={rate}")),
            about.rate.and(about.period).map(|seconds| format!("period={seconds}s")),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        if !limits.is_empty() {
            put("Upstash-Flow-Control-Value", limits.join(", "));
        }
    }
    let callbacks = [
        ("Upstash-Callback", &about.callback, &about.callback_headers),
        ("Upstash-Failure-Callback", &about.failure_callback, &about.failure_callback_headers),
    ];
    found.extend(shown(&about.header).map(|(name, value)| match name.eq_ignore_ascii_case("content-type") {
        true => (name.to_owned(), value.to_owned()),
        false => (format!("Upstash-Forward-{name}"), value.to_owned()),
    }));
    for (name, url, headers) in callbacks {
        let Some(url) = url else { continue };
        found.push((name.to_owned(), url.clone()));
        found.extend(shown(headers).map(|(header, value)| (format!("{name}-Forward-{header}"), value.to_owned())));
    }
    found
}

/// Header lines that are not hidden.
fn shown(headers: &Headers) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.iter().flat_map(|(name, values)| values.iter().map(|value| (name.as_str(), value.as_str())));
    lines.filter(|(_, value)| !is_hidden(value))
}

/// One word for a shell, whatever it holds.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::messages::SHOWN_BYTES_MAX;

    fn about() -> About {
        let text = serde_json::json!({
            "url": "https://example.com/a?b='c'", "method": "PUT", "maxRetries": 2, "labels": ["x", "y"],
            "header": {"Content-Type": ["application/json"], "X-A": ["1", "$(rm -rf /)"], "Authorization": ["REDACTED:ab"]},
            "flowControlKey": "k", "rate": 5, "period": 60, "timeout": 1500, "callback": "https://example.com/done",
            "callbackHeaders": {"X-B": ["2"]}, "retryDelayExpression": "1000 * retried",
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_command_says_everything_and_is_safe_to_paste() {
        let command = of(&about(), &Body::new(b"{\"it's\": 1}".to_vec()), "http://localhost:8080");
        let expected = r#"curl -X POST 'http://localhost:8080/v2/publish/https://example.com/a?b='\''c'\''' \
  -H "Authorization: Bearer $QSTASH_TOKEN" \
  -H 'Upstash-Method: PUT' \
  -H 'Upstash-Retries: 2' \
  -H 'Upstash-Retry-Delay: 1000 * retried' \
  -H 'Upstash-Timeout: 2s' \
  -H 'Upstash-Label: x, y' \
  -H 'Upstash-Flow-Control-Key: k' \
  -H 'Upstash-Flow-Control-Value: rate=5, period=60s' \
  -H 'Content-Type: application/json' \
  -H 'Upstash-Forward-X-A: 1' \
  -H 'Upstash-Forward-X-A: $(rm -rf /)' \
  -H 'Upstash-Callback: https://example.com/done' \
  -H 'Upstash-Callback-Forward-X-B: 2' \
  --data-raw '{"it'\''s": 1}'"#;
        assert_eq!(command, expected);
    }

    #[test]
    fn bodies_of_all_kinds_are_sent() {
        let about = About { queue_name: Some("q".into()), url: "https://a.example/".into(), ..About::default() };
        let with = |body: Vec<u8>| of(&about, &Body::new(body), "http://h");
        assert!(with(vec![]).ends_with("-H 'Upstash-Retries: 0'"));
        assert!(with(vec![]).starts_with("curl -X POST 'http://h/v2/enqueue/q/https://a.example/'"));
        assert!(with(b"x".to_vec()).contains("-H 'Content-Type:' \\\n  --data-raw 'x'"));
        let binary = with(vec![255, 0, 1]);
        assert!(binary.starts_with("echo /wAB | base64 -d | curl") && binary.ends_with("--data-binary @-"));
        assert!(with(vec![b'a'; SHOWN_BYTES_MAX + 1]).ends_with("--data-binary @body.bin"));
        assert!(!with(b"REDACTED:abc".to_vec()).contains("REDACTED"));
    }

    #[test]
    fn curl_leaves_urls_as_they_are() {
        for (url, is_changed) in [
            ("https://a.example/b?c=d", false),
            ("https://a.example/?ids[]=1", true),
            ("https://a.example/{b,c}", true),
            ("https://a.example/b/../c", true),
        ] {
            let about = About { url: url.to_owned(), ..About::default() };
            let command = of(&about, &Body::new(vec![]), "http://h");
            assert_eq!(command.starts_with("curl --globoff --path-as-is -X POST"), is_changed, "{command}");
        }
    }
}
