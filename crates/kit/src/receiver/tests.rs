//! The vectors, the transport rules that need no connection, and further forgeries.

use super::*;
use crate::body::{BodyError, BodyLimits};
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use posthaste_wire::signature::{Claims as Signed, SigningKey, body_hash, sign};
use posthaste_wire::time::Timestamp;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;

const NOW: u64 = 1_780_315_200;
const URL: &str = "https://app.example.com/api/jobs/run";
const CURRENT: &str = "sig_test_current_3xWm9QkR2b";
const NEXT: &str = "sig_test_next_8LzN5vTc1dYp";

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../../vectors/signature.json")).unwrap()
}

fn at(seconds: u64) -> Clock {
    Clock::from_fn(move || UNIX_EPOCH + Duration::from_secs(seconds))
}

fn receiver_for(vectors: &Value, case: &Value) -> Receiver {
    let key = |name: &str| vectors["keys"][name].as_str().unwrap();
    let receiver = Receiver::new(key("current"), key("next")).unwrap().clock(at(vectors["now"].as_u64().unwrap()));
    let receiver = receiver.leeway(Duration::from_secs(case["leeway_s"].as_u64().unwrap_or(0)));
    match case.get("url") {
        Some(Value::Null) => receiver.at_any_url(),
        _ => receiver.at_url(vectors["url"].as_str().unwrap()),
    }
}

fn receiver() -> Receiver {
    Receiver::new(CURRENT, NEXT).unwrap().at_url(URL).clock(at(NOW))
}

/// A token as the server creates it.
fn token(key: &str, url: &str, body: &[u8]) -> String {
    token_of(key, url, body, None)
}

/// Like [`token`], for a message whose id is signed.
fn token_of(key: &str, url: &str, body: &[u8], message_id: Option<&str>) -> String {
    let (issued_at, hash) = (Timestamp(NOW * 1_000), body_hash(body));
    let expires_at = issued_at.plus_millis(300_000);
    let claims = Signed { url, issued_at, expires_at, jwt_id: "jwt_1", body_hash: &hash, message_id, hops: 0 };
    sign(&SigningKey::new(key), &claims)
}

fn headers(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(SIGNATURE_HEADER.parse().unwrap(), token.parse().unwrap())])
}

fn reason(receiver: &Receiver, token: &str, body: &[u8]) -> Option<Reason> {
    receiver.verify(&headers(token), &Uri::default(), body).err().map(Rejected::reason)
}

#[test]
fn every_vector_has_the_expected_verdict() {
    let vectors = vectors();
    let cases = vectors["jwt"].as_array().unwrap();
    assert_eq!(cases.len(), 117);
    let (mut judged, mut surprising) = (0, Vec::new());
    for case in cases {
        let id = case["id"].as_str().unwrap();
        let body = STANDARD.decode(case["body_b64"].as_str().unwrap_or_default()).unwrap();
        // The reader of the body enforces its limit: see below.
        if case.get("body_limit").is_some() {
            continue;
        }
        let Ok(value) = case["token"].as_str().unwrap().parse() else {
            assert_eq!((id, &case["expect"]), ("st-newline", &Value::from("reject")), "no header can have this value");
            continue;
        };
        let mut headers = HeaderMap::from_iter([(SIGNATURE_HEADER.parse().unwrap(), value)]);
        if let Some(id) = case["message_id"].as_str() {
            headers.insert(wire::MESSAGE_ID, id.parse().unwrap());
        }
        let verified = receiver_for(&vectors, case).verify(&headers, &Uri::default(), &body);
        assert_eq!(verified.is_ok(), case["expect"] == "accept", "{id}: {verified:?}: {}", case["why"]);
        if let Some(rejected) = verified.err().filter(|rejected| rejected.reason() != reason_of(id)) {
            surprising.push(format!("{id}: {rejected}"));
        }
        judged += 1;
    }
    assert_eq!((judged, surprising), (115, Vec::new()));
}

/// Why a vector is rejected. The order of the checks is part of the contract.
fn reason_of(id: &str) -> Reason {
    use Reason::*;
    match id {
        "st-empty" => Missing,
        "st-huge" | "st-huge-header" => TooLong,
        // The MAC is checked before the claims.
        "st-bad-b64" => Signature,
        "exp-now" | "exp-negative" => Expired,
        "exp-too-far" => LifetimeTooLong,
        "nbf-future" | "nbf-after-exp" => NotYetValid,
        "mid-header-other" => MessageId,
        "sub-missing" | "sub-null" | "iss-null" | "iss-array" => Malformed,
        "body-claim-null" | "body-claim-array" => Malformed,
        "sig-padded" | "sig-noncanonical" | "alg-none-no-dot" => Malformed,
        "alg-05" | "alg-06" | "alg-07" | "alg-dup-first-hs" | "alg-dup-first-none" => Malformed,
        _ => match id.split('-').next().unwrap_or_default() {
            "alg" | "hdr" => Algorithm,
            "key" | "sig" => Signature,
            "iss" => Issuer,
            "sub" => Url,
            "body" => Body,
            "st" | "exp" | "nbf" | "mid" => Malformed,
            other => panic!("{other} is a new kind of vector"),
        },
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_read() {
    let vectors = vectors();
    let cases = vectors["jwt"].as_array().unwrap().iter();
    let cases: Vec<&Value> = cases.filter(|case| case.get("body_limit").is_some()).collect();
    assert_eq!(cases.len(), 1);
    for case in cases {
        let limit = usize::try_from(case["body_limit"].as_u64().unwrap()).unwrap();
        let limits = BodyLimits { bytes: limit, ..BodyLimits::default() };
        let body = STANDARD.decode(case["body_b64"].as_str().unwrap_or_default()).unwrap();
        let body = if body.len() > limit { body } else { vec![b'x'; limit + 1] };
        assert!(matches!(limits.read(Full::from(body)).await, Err(BodyError::TooLong { .. })));
    }
}

#[test]
fn both_keys_are_accepted_and_the_claims_are_returned() {
    for key in [CURRENT, NEXT] {
        let verified = receiver().verify(&headers(&token(key, URL, b"{}")), &Uri::default(), b"{}").unwrap();
        assert_eq!((verified.url.as_str(), verified.jwt_id.as_deref()), (URL, Some("jwt_1")));
        let times = (verified.issued_at, verified.expires_at);
        assert_eq!(times, (Some(NOW as i64), NOW as i64 + 300));
    }
    assert_eq!(reason(&receiver(), &token("sig_test_retired", URL, b"{}"), b"{}"), Some(Reason::Signature));
    let one = Receiver::with_one_key(CURRENT).unwrap().at_url(URL).clock(at(NOW));
    assert_eq!(reason(&one, &token(CURRENT, URL, b"{}"), b"{}"), None);
    assert_eq!(reason(&one, &token(NEXT, URL, b"{}"), b"{}"), Some(Reason::Signature));
}

#[test]
fn a_token_with_any_character_changed_is_rejected() {
    let (receiver, good) = (receiver(), token(CURRENT, URL, b"{}"));
    assert_eq!(reason(&receiver, &good, b"{}"), None);
    for at in 0..good.len() {
        for other in ["A", "b", "_", "=", ".", " ", ""] {
            let forged = format!("{}{other}{}", &good[..at], &good[at + 1..]);
            if forged != good {
                assert!(reason(&receiver, &forged, b"{}").is_some(), "{other:?} at {at} of {}", good.len());
            }
        }
        assert!(reason(&receiver, &good[..at], b"{}").is_some());
    }
}

/// `tr-empty`, `tr-two-headers`, `tr-two-same`, `tr-case`, `tr-obs-text`.
#[test]
fn exactly_one_token_in_one_header_is_accepted() {
    let good = token(CURRENT, URL, b"");
    let verify = |values: &[&[u8]]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("UPSTASH-Signature", http::HeaderValue::from_bytes(value).unwrap());
        }
        receiver().verify(&headers, &Uri::default(), b"").map(drop).map_err(Rejected::reason)
    };
    assert_eq!(verify(&[good.as_bytes()]), Ok(()));
    assert_eq!(verify(&[]), Err(Reason::Missing));
    assert_eq!(verify(&[b""]), Err(Reason::Missing));
    assert_eq!(verify(&[good.as_bytes(), b"x"]), Err(Reason::Ambiguous));
    assert_eq!(verify(&[good.as_bytes(), good.as_bytes()]), Err(Reason::Ambiguous));
    assert_eq!(verify(&[&[good.as_bytes(), b"\xfc"].concat()]), Err(Reason::Malformed));
    assert_eq!(verify(&[&[b'a'; TOKEN_BYTES_MAX]]), Err(Reason::Malformed));
    assert_eq!(verify(&[&[b'a'; TOKEN_BYTES_MAX + 1]]), Err(Reason::TooLong));
}

/// `tr-get`, `tr-get-with-body`, `order-of-work`: bodies are bytes.
#[test]
fn the_body_is_verified_byte_for_byte() {
    let empty = token(CURRENT, URL, b"");
    assert_eq!(reason(&receiver(), &empty, b""), None);
    assert_eq!(reason(&receiver(), &empty, b"x"), Some(Reason::Body));
    let hostile = b"\xff\xfe{\"a\":\x00";
    assert_eq!(reason(&receiver(), &token(CURRENT, URL, hostile), hostile), None);
    assert_eq!(reason(&receiver(), &token("sig_other", URL, hostile), b"other"), Some(Reason::Signature));
}

/// `tr-forwarded-host`, `replay-other-endpoint`: the host of the request is ignored.
#[test]
fn the_url_is_the_configured_one() {
    let cases = [
        ("https://app.example.com", "/api/jobs/run", URL, true),
        ("https://app.example.com/", "/api/jobs/run", URL, true),
        ("https://app.example.com/api", "/jobs/run", URL, true),
        ("https://app.example.com", "/api/jobs/other", URL, false),
        ("https://app.example.com", "/api/jobs/run?a=1", URL, false),
        ("https://app.example.com", "/x?a=1&b=%2F", "https://app.example.com/x?a=1&b=%2F", true),
        ("https://app.example.com", "/x?b=%2F&a=1", "https://app.example.com/x?a=1&b=%2F", false),
        ("https://app.example.com", "/", "https://app.example.com", true),
        ("https://app.example.com", "/", "https://app.example.com/", true),
        ("https://app.example.com", "/a", "https://app.example.com", false),
        ("https://app.example.co", "/m/a", "https://app.example.com/a", false),
        ("https://app.example.com", "/a", "https://app.example.com.evil.example/a", false),
    ];
    for (base, path, url, is_ours) in cases {
        let receiver = receiver().at_base(base);
        let mut headers = headers(&token(CURRENT, url, b""));
        headers.insert("host", "evil.example".parse().unwrap());
        headers.insert("x-forwarded-host", "app.example.com".parse().unwrap());
        let verified = receiver.verify(&headers, &path.parse().unwrap(), b"");
        let expected = if is_ours { Ok(()) } else { Err(Reason::Url) };
        assert_eq!(verified.map(drop).map_err(Rejected::reason), expected, "{base} {path} {url}");
        // Requests of a proxy and of HTTP/2 also contain the host.
        let absolute = format!("http://evil.example{path}").parse().unwrap();
        assert_eq!(receiver.verify(&headers, &absolute, b"").is_ok(), is_ours, "{base} {path} {url}");
    }
    let anywhere = receiver().at_any_url();
    assert_eq!(reason(&anywhere, &token(CURRENT, "https://other.example/", b""), b""), None);
    let nowhere = Receiver::new(CURRENT, NEXT).unwrap().clock(at(NOW));
    assert!(!nowhere.knows_its_url() && anywhere.knows_its_url());
    assert_eq!(reason(&nowhere, &token(CURRENT, URL, b""), b""), Some(Reason::UrlNotConfigured));
}

#[test]
fn tokens_expire_and_clocks_may_differ_by_the_leeway() {
    let good = token(CURRENT, URL, b"");
    let at_time = |seconds: u64, leeway: u64| {
        let receiver = receiver().clock(at(seconds)).leeway(Duration::from_secs(leeway));
        reason(&receiver, &good, b"")
    };
    assert_eq!(at_time(NOW + 299, 0), None);
    assert_eq!(at_time(NOW + 300, 0), Some(Reason::Expired));
    assert_eq!(at_time(NOW + 304, 5), None);
    assert_eq!(at_time(NOW + 305, 5), Some(Reason::Expired));
    assert_eq!(at_time(0, 0), Some(Reason::LifetimeTooLong));
    // An excessive leeway is reduced, so that a signature does not stay valid forever.
    let most = LEEWAY_MAX.as_secs();
    for leeway in [most, most + 1, u64::MAX] {
        assert_eq!(at_time(NOW + 299 + most, leeway), None);
        assert_eq!(at_time(NOW + 300 + most, leeway), Some(Reason::Expired), "{leeway}");
    }
    assert_eq!(reason(&receiver().lifetime_max(Duration::from_secs(299)), &good, b""), Some(Reason::LifetimeTooLong));
    assert_eq!(reason(&receiver().lifetime_max(Duration::from_secs(300)), &good, b""), None);
    let later = UNIX_EPOCH + Duration::from_secs(NOW + 300);
    let rejected = receiver().verify_at(&headers(&good), &Uri::default(), b"", later).unwrap_err();
    assert!(rejected.is_expired());
}

/// `config-empty-key`, `config-one-key`, `config-same-keys`.
#[test]
fn missing_keys_are_rejected_and_a_rotation_that_cannot_work_is_logged() {
    assert!(
        ["", " \n\t"].iter().all(|none| Receiver::new(CURRENT, none).is_err() && Receiver::new(none, NEXT).is_err())
    );
    assert_eq!(Receiver::with_one_key(" ").unwrap_err(), InvalidSigningKey::Empty);
    assert!(Receiver::for_development("", NEXT).is_err() && Receiver::for_development(CURRENT, " ").is_err());
    assert_eq!(warnings(|| drop(Receiver::new(CURRENT, NEXT).unwrap())), 0);
    assert_eq!(warnings(|| drop(Receiver::with_one_key(CURRENT).unwrap())), 1);
    assert_eq!(warnings(|| drop(Receiver::new(CURRENT, CURRENT).unwrap())), 1);
    let same = Receiver::new(CURRENT, format!("{CURRENT}\n")).unwrap().at_url(URL).clock(at(NOW));
    assert_eq!(reason(&same, &token(CURRENT, URL, b""), b""), None);
}

#[test]
fn keys_that_protect_nothing_are_rejected_except_for_development() {
    let shortest = "k".repeat(SIGNING_KEY_BYTES_MIN);
    assert!(Receiver::new(&shortest, NEXT).is_ok());
    let short = &shortest[1..];
    let mut weak = vec![(short, InvalidSigningKey::TooShort { bytes: SIGNING_KEY_BYTES_MIN - 1 })];
    weak.extend(PUBLISHED_KEYS.map(|key| (key, InvalidSigningKey::Published)));
    for (key, why) in weak {
        assert_eq!(Receiver::new(key, NEXT).unwrap_err(), why);
        assert_eq!(Receiver::new(CURRENT, key).unwrap_err(), why);
        assert_eq!(Receiver::new(CURRENT, format!(" {key}\n")).unwrap_err(), why);
        assert_eq!(Receiver::with_one_key(key).unwrap_err(), why);
        assert!(!why.to_string().contains(key), "{why}");
        for keys in [(key, NEXT), (CURRENT, key)] {
            assert_eq!(warnings(|| drop(Receiver::for_development(keys.0, keys.1).unwrap())), 1);
        }
        let receiver = Receiver::for_development(CURRENT, key).unwrap().at_url(URL).clock(at(NOW));
        assert_eq!(reason(&receiver, &token(key, URL, b""), b""), None);
    }
    assert_eq!(warnings(|| drop(Receiver::for_development(CURRENT, NEXT).unwrap())), 0);
}

#[test]
fn a_signed_message_id_must_match_its_header() {
    let signed = token_of(CURRENT, URL, b"{}", Some("msg_1"));
    let verify = |token: &str, ids: &[&str]| {
        let mut headers = headers(token);
        for id in ids {
            headers.append("Upstash-Message-Id", id.parse().unwrap());
        }
        receiver()
            .verify(&headers, &Uri::default(), b"{}")
            .map(|verified| verified.message_id)
            .map_err(Rejected::reason)
    };
    for ids in [&[][..], &["msg_1"]] {
        assert_eq!(verify(&signed, ids), Ok(Some("msg_1".to_owned())), "{ids:?}");
    }
    for ids in [&["msg_2"][..], &[""], &["MSG_1"], &["msg_1", "msg_1"], &["msg_1", "msg_2"]] {
        assert_eq!(verify(&signed, ids), Err(Reason::MessageId), "{ids:?}");
    }
    // Hosted QStash signs no id, so the header may have any value.
    for ids in [&[][..], &["msg_1"], &["msg_1", "msg_2"]] {
        assert_eq!(verify(&token(CURRENT, URL, b"{}"), ids), Ok(None), "{ids:?}");
    }
    let mut headers = headers(&signed);
    headers.insert(wire::MESSAGE_ID, "msg_2".parse().unwrap());
    // Without the headers there is nothing to compare; the signed id still counts.
    let verified = receiver().verify_token(receiver().token(&headers).unwrap(), &Uri::default(), b"{}");
    assert_eq!(verified.unwrap().message_id.as_deref(), Some("msg_1"));
}

#[test]
fn a_signature_is_remembered_for_as_long_as_any_clock_accepts_it() {
    let at_time = |seconds: u64, leeway: u64| {
        let now = UNIX_EPOCH + Duration::from_secs(seconds);
        let receiver = receiver().leeway(Duration::from_secs(leeway));
        let verified = receiver.verify_at(&headers(&token(CURRENT, URL, b"")), &Uri::default(), b"", now).unwrap();
        receiver.single_use(&verified, now)
    };
    let expected = |seconds: u64| SingleUse::new("jwt_1", Duration::from_secs(seconds) + LEEWAY_MAX, false);
    assert_eq!(at_time(NOW, 0), expected(300));
    assert_eq!(at_time(NOW + 299, 0), expected(1));
    assert_eq!(at_time(NOW + 304, 5), expected(1));
}

#[test]
fn neither_keys_nor_tokens_are_shown() {
    let good = token(CURRENT, URL, b"");
    let map = headers(&good);
    let shown = receiver().token(&map).unwrap();
    assert_eq!(shown.fingerprint().len(), 8);
    assert_eq!(format!("{shown:?}"), format!("Token({})", shown.fingerprint()));
    assert_ne!(shown.fingerprint(), receiver().token(&headers("other")).unwrap().fingerprint());
    let debug = format!("{:?}", receiver());
    assert!(!debug.contains(CURRENT) && !debug.contains(NEXT), "{debug}");
    let rejected = receiver().verify(&map, &Uri::default(), b"x").unwrap_err();
    assert_eq!(rejected.to_string(), "invalid signature: body");
}

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn warnings(run: impl FnOnce()) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    // With a single subscriber, a warning that is first reached on a thread without one would be disabled for all
    // threads.
    let _second = tracing::Dispatch::new(Warnings(Arc::default()));
    tracing::subscriber::with_default(Warnings(Arc::clone(&count)), run);
    count.load(Ordering::Relaxed)
}
