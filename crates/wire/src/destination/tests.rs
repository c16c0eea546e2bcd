//! Tables over the rules for paths and queries, and the API vectors.

use super::*;
use proptest::prelude::*;
use serde_json::Value;

const MAX: usize = 8_192;

fn url(text: &str) -> Result<Destination, String> {
    Ok(Destination::Url(text.to_owned()))
}

fn parse(remainder: &str, query: Option<&str>) -> Result<Destination, String> {
    Destination::parse(remainder, query, MAX).map_err(|error| error.to_string())
}

#[test]
fn settings_and_token_leave_the_query() {
    type Case<'a> = (&'a str, Option<&'a str>, &'a [(&'a str, &'a str)], Option<&'a str>);
    let cases: [Case<'_>; 9] = [
        ("asdasd=ooo", Some("asdasd=ooo"), &[], None),
        ("b=2&a=%41+x&b=1", Some("b=2&a=%41+x&b=1"), &[], None),
        ("upstash-retries=3&upstash-delay=100s", None, &[("upstash-retries", "3"), ("upstash-delay", "100s")], None),
        ("a=1&Upstash-Label=x%20y+z&b", Some("a=1&b"), &[("upstash-label", "x y z")], None),
        ("qstash_token=a%2Bb&x=1", Some("x=1"), &[], Some("a+b")),
        ("qstash%5Ftoken=hidden", None, &[], Some("hidden")),
        ("upstash-header-forward", None, &[("upstash-header-forward", "")], None),
        ("", Some(""), &[], None),
        ("a&&b=", Some("a&&b="), &[], None),
    ];
    for (raw, destination, config, token) in cases {
        let parts = split_query(Some(raw));
        assert_eq!(parts.destination.as_deref(), destination, "{raw}");
        let expected: Vec<(String, String)> = config.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        assert_eq!(parts.config, expected, "{raw}");
        assert_eq!(parts.token.as_deref(), token, "{raw}");
    }
    assert_eq!(split_query(None), QueryParts::default());
}

#[test]
fn urls_are_kept_verbatim() {
    let cases = [
        ("https://example.com/a%20b", None, "https://example.com/a%20b"),
        ("https://example.com/123/", Some("asdasd=ooo"), "https://example.com/123/?asdasd=ooo"),
        ("https://example.com", Some(""), "https://example.com?"),
        ("HTTPS://Example.COM:443/../a//b", None, "HTTPS://Example.COM:443/../a//b"),
        ("https:/example.com/x", None, "https://example.com/x"),
        ("https%3A%2F%2Fexample.com%2Fhook", None, "https://example.com/hook"),
        ("HTTP%3a//example.com/%2541", None, "HTTP://example.com/%41"),
        ("https%3A%2F%2Fexample.com%3Fa%3D1", Some("b=2"), "https://example.com?a=1&b=2"),
        ("http://[::1]:8080/", None, "http://[::1]:8080/"),
        ("https://example.com/a@b", Some("c=@\\"), "https://example.com/a@b?c=@\\"),
        ("https://example.com/%", None, "https://example.com/%"),
    ];
    for (remainder, query, expected) in cases {
        assert_eq!(parse(remainder, query), url(expected), "{remainder}");
    }
}

#[test]
fn batch_items_carry_their_own_query() {
    let whole = |text: &str| Destination::parse_whole(text, MAX).map_err(|error| error.to_string());
    assert_eq!(whole("https://example.com/?a=1?b"), url("https://example.com/?a=1?b"));
    assert_eq!(whole("https://example.com/#frag"), url("https://example.com/"));
    assert_eq!(whole("https://example.com/?a#frag"), url("https://example.com/?a"));
    assert_eq!(whole("my-group"), Ok(Destination::Group("my-group".into())));
    assert!(whole("").unwrap_err().contains("a non-empty destination must be provided"));
}

#[test]
fn the_rest_is_a_group_or_an_api() {
    for name in ["my-group", "example.com", "A_b.9", "api", "http"] {
        assert_eq!(parse(name, Some("x=1")), Ok(Destination::Group(name.into())));
    }
    assert_eq!(parse("api/llm", None), Ok(Destination::Api("api/llm".into())));
    for name in [".", "..", "a b", "é", "a%20b", "%2e%2e%2fadmin", "https%253A%252F%252Fexample.com"] {
        assert!(parse(name, None).unwrap_err().starts_with("invalid destination"), "{name}");
    }
}

#[test]
fn wrong_urls_say_what_is_wrong() {
    let long = format!("https://example.com/{}", "a".repeat(9_000));
    let cases = [
        ("", "a non-empty destination must be provided"),
        ("ftp://example.com", "endpoint has invalid scheme, add http:// or https://"),
        ("localhost:3000", "endpoint has invalid scheme, add http:// or https://"),
        ("../../admin", "endpoint has invalid scheme, add http:// or https://"),
        ("javascript:alert(1)", "endpoint has invalid scheme, add http:// or https://"),
        ("/https://example.com", "endpoint has invalid scheme, add http:// or https://"),
        ("https:example.com", "followed by //"),
        ("https://", "no host"),
        ("https:///example.com", "no host"),
        ("https:/", "no host"),
        ("https://?a", "no host"),
        ("https://u:p@example.com", "user and password"),
        ("https://@example.com", "user and password"),
        ("https://example.com\\@evil.com", "backslash"),
        ("https:/\\example.com", "backslash"),
        ("https://exa mple.com", "spaces"),
        ("https://example.com/\u{85}", "control"),
        ("https%3A%2F%2Fexample.com%2F%0d%0aX-Evil:1", "control"),
        ("https%3A%2F%2Fexample.com%2F%ff", "UTF-8"),
        ("https://exa%20mple.com", "invalid"),
        ("https://example.com:99999/", "port"),
        ("https://example.com:0/", "port 0"),
        ("http://[::1/", "IPv6"),
        (&long, "at most 8192 bytes"),
    ];
    for (remainder, expected) in cases {
        let message = parse(remainder, None).unwrap_err();
        assert!(message.contains(expected), "{remainder}: {message}");
        assert!(remainder.is_empty() || message.starts_with("invalid destination url: "), "{remainder}: {message}");
    }
    let over_by_query = parse("https://example.com/", Some(&"a".repeat(MAX))).unwrap_err();
    assert!(over_by_query.contains("at most"), "{over_by_query}");
}

/// The server decides elsewhere which addresses are allowed and which groups exist.
#[test]
fn the_api_vectors_hold() {
    let elsewhere = ["dst-missing-scheme", "dst-loopback", "dst-metadata", "dst-port-25"];
    let vectors: Value = serde_json::from_str(include_str!("../../../../vectors/api-inputs.json")).unwrap();
    let mut checked = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        let path = case["path"].as_str().unwrap();
        if case["group"] != "destination" || elsewhere.contains(&id) || path.contains("/{") && id != "dst-long" {
            continue;
        }
        let target = path.strip_prefix("/v2/publish/").unwrap().replace("{a*9000}", &"a".repeat(9_000));
        let accepted = Destination::parse_whole(&target, MAX).is_ok();
        let statuses = case["expect_status"].as_array().unwrap();
        let fits = statuses.iter().any(|status| (status.as_u64().unwrap() < 300) == accepted);
        assert!(fits, "{id}: {}", case["why"]);
        checked += 1;
    }
    assert_eq!(checked, 16);
}

#[test]
fn urls_of_one_server_have_one_origin() {
    for text in ["https://example.com", "HTTPS://EXAMPLE.com:443/a?b", "https://example.com./"] {
        assert_eq!(origin(text).as_deref(), Some("https://example.com:443"), "{text}");
    }
    assert_eq!(origin("http://[::1]/").as_deref(), Some("http://[::1]:80"));
    assert_eq!(origin("http://bücher.example:8080/").as_deref(), Some("http://xn--bcher-kva.example:8080"));
    assert_eq!(origin("nonsense"), None);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(
            text in "(https?(:|%3A)(/|%2F){0,3})?[a-z@:\\\\%#?/.\\[\\] \u{0}-\u{9f}]{0,40}",
            query in "([a-z&=%+]|upstash-|qstash_token){0,10}",
        ) {
        let parts = split_query(Some(&query));
        if let Ok(Destination::Url(url)) = Destination::parse(&text, parts.destination.as_deref(), MAX) {
            prop_assert!(origin(&url).is_some());
            prop_assert!(!url.contains(|c: char| c.is_control() || c == '#'));
            prop_assert_eq!(Destination::parse_whole(&url, MAX), Ok(Destination::Url(url)));
        }
    }
}
