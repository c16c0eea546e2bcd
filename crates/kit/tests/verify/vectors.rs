//! Every scheme against the vectors, and against further valid and invalid signatures.

use crate::support::{CURRENT, NEXT, NOW, URL, at, hmac_hex, token, token_of};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use posthaste_kit::Receiver;
use posthaste_kit::receiver::{Reason, Rejected};
use posthaste_kit::webhook::{
    Authentic, Encoding, EventId, GitHub, Hmac, Incoming, InvalidScheme, Scheme, SharedSecret, Slack, Standard, Stripe,
    Supabase,
};
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn verify(scheme: &dyn Scheme, lines: &[(&str, &str)], body: &[u8]) -> Result<Authentic, Reason> {
    let (headers, uri) = (headers(lines), Uri::from_static("/hooks/queue"));
    scheme.verify(&Incoming { headers: &headers, uri: &uri, body }, now()).map_err(Rejected::reason)
}

/// The scheme of a vector, as an application would create it.
fn scheme(vectors: &Value, case: &Value) -> Result<Box<dyn Scheme>, InvalidScheme> {
    fn boxed(scheme: impl Scheme) -> Box<dyn Scheme> {
        Box::new(scheme)
    }
    let known = |name: &str| vectors["schemes"][name]["secret"].as_str().unwrap();
    let own = || case["secret"].as_str().unwrap();
    match case["scheme"].as_str().unwrap() {
        "stripe" => Stripe::new(known("stripe")).map(boxed),
        "github" => GitHub::new(known("github")).map(boxed),
        "standard" => Standard::new(known("standard")).map(boxed),
        "supabase-auth" => Supabase::auth_hook(own()).map(boxed),
        "hmac-generic" => Hmac::in_header("X-Signature", own()).map(boxed),
        "static-header" => Supabase::shared_secret(own()).map(boxed),
        other => panic!("{other} is a new scheme"),
    }
}

#[test]
fn every_vector_has_the_expected_verdict() {
    let vectors: Value = serde_json::from_str(include_str!("../../../../vectors/signature.json")).unwrap();
    assert_eq!(vectors["now"], NOW);
    let cases = vectors["webhooks"].as_array().unwrap();
    assert_eq!(cases.len(), 43);
    for case in cases {
        let name = format!("{} {}: {}", case["scheme"], case["id"], case["why"]);
        let body = STANDARD.decode(case["body_b64"].as_str().unwrap()).unwrap();
        let many = format!("v1,{}", STANDARD.encode([0; 32]));
        let many = vec![many.as_str(); 1_000].join(" ");
        let mut lines: Vec<(&str, &str)> = Vec::new();
        for (header, value) in case["headers"].as_object().unwrap() {
            let is_generated = case["headers_gen"].get(header).is_some();
            lines.push((header, if is_generated { &many } else { value.as_str().unwrap() }));
        }
        let verified = match scheme(&vectors, case) {
            Ok(scheme) => verify(scheme.as_ref(), &lines, &body).is_ok(),
            Err(refused) => {
                assert!(refused.is_empty_secret() && case["secret"] == "", "{name}: {refused}");
                false
            }
        };
        assert_eq!(verified, case["expect"] == "accept", "{name}");
    }
}

#[test]
fn an_event_is_identified_by_the_id_of_its_sender() {
    let body = br#"{"id":"evt_1","type":"invoice.paid","event_id":"Ev1","table":"orders"}"#;
    let of = |kind: &str, table: Option<&str>, id: &str| {
        let mut expected = Authentic::new(EventId::new(id));
        expected.kind = Some(kind.to_owned());
        expected.table = table.map(str::to_owned);
        Ok(expected)
    };
    let by_body = EventId::from_body(body);
    let hex = |key: &str, before: &str| hmac_hex(key.as_bytes(), &[before.as_bytes(), body].concat());

    let stripe = format!("t={NOW},v1={}", hex("s", &format!("{NOW}.")));
    let scheme = Stripe::new("s").unwrap();
    let expected = of("invoice.paid", Some("orders"), "evt_1");
    assert_eq!(verify(&scheme, &[("stripe-signature", &stripe)], body), expected);

    let github = format!("sha256={}", hex("s", ""));
    let lines = [("x-hub-signature-256", github.as_str()), ("x-github-delivery", "d-1"), ("x-github-event", "push")];
    assert_eq!(verify(&GitHub::new("s").unwrap(), &lines, body), of("push", None, "d-1"));
    let twice = [lines[0], lines[1], ("x-github-delivery", "d-2")];
    assert_eq!(verify(&GitHub::new("s").unwrap(), &twice, body), Err(Reason::Ambiguous));
    assert_eq!(verify(&GitHub::new("s").unwrap(), &lines[..1], body), Err(Reason::EventId));

    let slack = format!("v0={}", hex("s", &format!("v0:{NOW}:")));
    let now = NOW.to_string();
    let lines = [("x-slack-signature", slack.as_str()), ("x-slack-request-timestamp", &now)];
    assert_eq!(verify(&Slack::new("s").unwrap(), &lines, body), of("invoice.paid", Some("orders"), "Ev1"));

    let signature = hex("s", "");
    let lines = [("x-supabase-signature", signature.as_str())];
    assert_eq!(
        verify(&Supabase::hmac("s").unwrap(), &lines, body),
        of("invoice.paid", Some("orders"), by_body.as_str())
    );

    let token = token(CURRENT, URL, body);
    let receiver = Receiver::new(CURRENT, NEXT).unwrap().at_base("https://app.example.com").clock(at(0));
    let lines = [("upstash-signature", token.as_str()), ("upstash-message-id", "msg_1")];
    // The time is the argument.
    let named = |authentic: Authentic| (authentic.id, authentic.kind, authentic.table);
    let expected = of("invoice.paid", Some("orders"), "msg_1").map(named);
    assert_eq!(verify(&receiver, &lines, body).map(named), expected);
    assert_eq!(verify(&receiver, &lines[..1], body), Err(Reason::EventId));
    // A signed id counts, and the header must not contain another one.
    let signed = token_of(CURRENT, URL, body, Some("msg_1"));
    let lines = [("upstash-signature", signed.as_str()), ("upstash-message-id", "msg_1")];
    assert_eq!(verify(&receiver, &lines, body).map(named), expected);
    assert_eq!(verify(&receiver, &lines[..1], body).map(named), expected);
    assert_eq!(verify(&receiver, &[lines[0], ("upstash-message-id", "msg_2")], body), Err(Reason::MessageId));
    assert!(receiver.is_queue() && !scheme.is_queue());
}

/// Every request that is rejected unread would also be rejected after reading.
#[test]
fn a_request_without_a_signature_is_refused_by_its_headers_alone() {
    let key = STANDARD.encode([7; 24]);
    let schemes: [Box<dyn Scheme>; 9] = [
        Box::new(Stripe::new("s").unwrap()),
        Box::new(GitHub::new("s").unwrap()),
        Box::new(Standard::new(&key).unwrap()),
        Box::new(Slack::new("s").unwrap()),
        Box::new(Supabase::auth_hook(&key).unwrap()),
        Box::new(Supabase::hmac("s").unwrap()),
        Box::new(Supabase::shared_secret("s").unwrap()),
        Box::new(Hmac::in_header("x-mac", "s").unwrap()),
        Box::new(Receiver::new(CURRENT, NEXT).unwrap().at_any_url()),
    ];
    let junk = ["stripe-signature", "x-hub-signature-256", "webhook-id", "x-slack-signature", "x-supabase-signature"];
    let junk = junk.into_iter().chain(["x-webhook-secret", "x-mac"]).map(|name| (name, "junk")).collect::<Vec<_>>();
    for scheme in schemes {
        for lines in [&[][..], &junk] {
            let prechecked = scheme.precheck(&headers(lines)).map_err(Rejected::reason);
            assert!(prechecked.is_err(), "{}", scheme.name());
            assert!(verify(scheme.as_ref(), lines, b"{}").is_err(), "{}", scheme.name());
        }
    }
}

#[test]
fn events_are_remembered_for_as_long_as_their_sender_repeats_them() {
    const HOUR: u64 = 3_600;
    let key = STANDARD.encode([7; 24]);
    let cases: [(Box<dyn Scheme>, u64); 10] = [
        (Box::new(Stripe::new("s").unwrap()), 72 * HOUR),
        (Box::new(GitHub::new("s").unwrap()), 7 * 24 * HOUR),
        (Box::new(Standard::new(&key).unwrap()), 76 * HOUR),
        (Box::new(Slack::new("s").unwrap()), 24 * HOUR),
        (Box::new(Supabase::auth_hook(&key).unwrap()), 60),
        (Box::new(Supabase::hmac("s").unwrap()), 60),
        (Box::new(Supabase::shared_secret("s").unwrap()), 60),
        (Box::new(Hmac::in_header("x-mac", "s").unwrap()), 7 * 24 * HOUR),
        (Box::new(SharedSecret::bearer("s").unwrap()), 7 * 24 * HOUR),
        (Box::new(Receiver::new(CURRENT, NEXT).unwrap()), 48 * HOUR),
    ];
    for (scheme, at_least) in cases {
        assert!(scheme.retry_window() > Duration::from_secs(at_least), "{}", scheme.name());
    }
}

#[test]
fn a_second_secret_is_as_good_as_the_first() {
    let key = |byte: u8| STANDARD.encode([byte; 24]);
    let body = b"{}";
    let at = NOW.to_string();
    for (secret, is_good) in [("one", true), ("two", true), ("three", false)] {
        let stripe = format!("t={NOW},v1={}", hmac_hex(secret.as_bytes(), format!("{NOW}.{{}}").as_bytes()));
        let scheme = Stripe::new("one").and_then(|scheme| scheme.or("two")).unwrap();
        assert_eq!(verify(&scheme, &[("stripe-signature", &stripe)], body).is_ok(), is_good);

        let github = format!("sha256={}", hmac_hex(secret.as_bytes(), body));
        let scheme = GitHub::new("one").and_then(|scheme| scheme.or("two")).unwrap();
        let lines = [("x-hub-signature-256", github.as_str()), ("x-github-delivery", "d")];
        assert_eq!(verify(&scheme, &lines, body).is_ok(), is_good);

        let slack = format!("v0={}", hmac_hex(secret.as_bytes(), format!("v0:{NOW}:{{}}").as_bytes()));
        let scheme = Slack::new("one").and_then(|scheme| scheme.or("two")).unwrap();
        let lines = [("x-slack-signature", slack.as_str()), ("x-slack-request-timestamp", &at)];
        assert_eq!(verify(&scheme, &lines, body).is_ok(), is_good);

        let scheme = Hmac::in_header("x-mac", "one").and_then(|scheme| scheme.or("two")).unwrap();
        assert_eq!(verify(&scheme, &[("x-mac", &hmac_hex(secret.as_bytes(), body))], body).is_ok(), is_good);
    }
    let signed = |byte: u8| {
        let mac = hmac_hex(&[byte; 24], format!("msg_1.{NOW}.{{}}").as_bytes());
        let mac: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&mac[2 * at..2 * at + 2], 16).unwrap()).collect();
        format!("v1,{}", STANDARD.encode(mac))
    };
    let scheme = Standard::new(key(1)).and_then(|scheme| scheme.or(key(2))).unwrap();
    for (byte, is_good) in [(1, true), (2, true), (3, false)] {
        for names in
            [["webhook-id", "webhook-timestamp", "webhook-signature"], ["svix-id", "svix-timestamp", "svix-signature"]]
        {
            let lines = [(names[0], "msg_1"), (names[1], at.as_str()), (names[2], &signed(byte))];
            assert_eq!(verify(&scheme, &lines, body).is_ok(), is_good);
            // Each of the three headers is signed or required.
            assert_eq!(verify(&scheme, &[lines[0], lines[1]], body), Err(Reason::Missing));
            assert_eq!(verify(&scheme, &[lines[1], lines[2]], body), Err(Reason::Missing));
            assert!(verify(&scheme, &[(names[0], "msg_2"), lines[1], lines[2]], body).is_err());
        }
    }
}

#[test]
fn slack_signatures_match_its_documentation() {
    let body = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&\
trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let mac = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let scheme = Slack::new("8f742231b10e8888abcd99yyyzzz85a5").unwrap();
    let headers = headers(&[("X-Slack-Request-Timestamp", "1531420618"), ("X-Slack-Signature", mac)]);
    let incoming = Incoming { headers: &headers, uri: &Uri::default(), body };
    let at = |seconds: u64| {
        let authentic = scheme.verify(&incoming, UNIX_EPOCH + Duration::from_secs(seconds));
        authentic.map(|authentic| authentic.id).map_err(Rejected::reason)
    };
    assert_eq!(at(1_531_420_618 + 300), Ok(EventId::from_body(body)));
    assert_eq!(at(1_531_420_618 + 301), Err(Reason::Expired));
    assert_eq!(at(1_531_420_618 - 301), Err(Reason::NotYetValid));
}

#[test]
fn slack_is_read_strictly() {
    let body = b"{}";
    let mac = |at: &str| hmac_hex(b"s", format!("v0:{at}:{{}}").as_bytes());
    let check = |at: &str, prefix: &str| {
        let lines = [("x-slack-request-timestamp", at), ("x-slack-signature", &format!("{prefix}{}", mac(at)))];
        verify(&Slack::new("s").unwrap(), &lines, body).map(drop)
    };
    let now = NOW.to_string();
    assert_eq!(check(&now, "v0="), Ok(()));
    assert_eq!(check(&now, "v1="), Err(Reason::Malformed));
    assert_eq!(check(&now, ""), Err(Reason::Malformed));
    for wrong in [&format!("+{now}"), &format!("{now}.0"), "-9223372036854775808", "9223372036854775807999", ""] {
        assert!(check(wrong, "v0=").is_err(), "{wrong}");
    }
    assert_eq!(check("999999999999999999", "v0="), Err(Reason::NotYetValid));
}

#[test]
fn a_generic_mac_is_read_as_configured() {
    let body = b"{\"a\":1}";
    let hex = hmac_hex(b"generic", body);
    let raw: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    let base64 = STANDARD.encode(&raw);
    let plain = Hmac::in_header("X-Signature", "generic").unwrap();
    assert!(verify(&plain, &[("x-signature", &hex)], body).is_ok());
    assert_eq!(verify(&plain, &[("x-signature", &hex)], b"{\"a\":2}"), Err(Reason::Signature));
    assert_eq!(verify(&plain, &[("x-signature", &hex), ("x-signature", &hex)], body), Err(Reason::Ambiguous));
    for wrong in [&hex.to_uppercase(), &base64, &hex[..32], &format!("sha256={hex}"), " "] {
        assert_eq!(verify(&plain, &[("x-signature", wrong)], body), Err(Reason::Malformed), "{wrong}");
    }
    let prefixed = plain.clone().prefix("sha256=").encoding(Encoding::Base64).id_in("X-Id").unwrap();
    let value = format!("sha256={base64}");
    let named = verify(&prefixed, &[("x-signature", &value), ("x-id", "e1")], body);
    assert_eq!(named.unwrap().id.as_str(), "e1");
    assert_eq!(verify(&prefixed, &[("x-signature", &value)], body), Err(Reason::EventId));
    assert_eq!(verify(&prefixed, &[("x-signature", value.trim_end_matches('='))], body), Err(Reason::Malformed));

    let timed = plain.timestamp_in("X-Time", ":").unwrap().tolerance(Duration::from_secs(10));
    let check = |at: &str, signed_at: &str| {
        let mac = hmac_hex(b"generic", &[signed_at.as_bytes(), b":", body].concat());
        verify(&timed, &[("x-signature", &mac), ("x-time", at)], body).map(drop)
    };
    let text = |offset: i64| (NOW as i64 + offset).to_string();
    assert_eq!(check(&text(0), &text(0)), Ok(()));
    assert_eq!(check(&text(-10), &text(-10)), Ok(()));
    assert_eq!(check(&text(-11), &text(-11)), Err(Reason::Expired));
    assert_eq!(check(&text(11), &text(11)), Err(Reason::NotYetValid));
    assert_eq!(check(&text(0), &text(1)), Err(Reason::Signature));
    assert_eq!(check("1e9", "1e9"), Err(Reason::Malformed));
    assert!(Hmac::in_header("no header", "s").is_err() && Hmac::in_header("x", " ").is_err());
}

#[test]
fn a_shared_secret_must_match_completely() {
    let bearer = SharedSecret::bearer("s3cret\n").unwrap();
    let header = SharedSecret::in_header("X-Own", "s3cret").unwrap();
    let check = |scheme: &SharedSecret, name: &str, value: &str| verify(scheme, &[(name, value)], b"{}").map(drop);
    assert_eq!(check(&bearer, "authorization", "Bearer s3cret"), Ok(()));
    assert_eq!(check(&bearer, "authorization", "s3cret"), Err(Reason::Malformed));
    assert_eq!(check(&bearer, "authorization", "Bearer s3cre"), Err(Reason::Signature));
    assert_eq!(check(&bearer, "authorization", "Bearer "), Err(Reason::Signature));
    assert_eq!(check(&header, "x-own", "s3cret"), Ok(()));
    assert_eq!(check(&header, "x-own", "S3cret"), Err(Reason::Signature));
    assert_eq!(check(&header, "x-other", "s3cret"), Err(Reason::Missing));
    let twice = [("x-own", "s3cret"), ("x-own", "s3cret")];
    assert_eq!(verify(&header, &twice, b""), Err(Reason::Ambiguous));
    assert!(SharedSecret::in_header("no header", "s").is_err());
}

#[test]
fn no_scheme_shows_its_secret() {
    let canary = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5";
    let shown = [
        format!("{:?}", Stripe::new(canary)),
        format!("{:?}", GitHub::new(canary)),
        format!("{:?}", Standard::new(canary)),
        format!("{:?}", Slack::new(canary)),
        format!("{:?}", Hmac::in_header("x", canary)),
        format!("{:?}", SharedSecret::bearer(canary)),
        format!("{:?}", Supabase::auth_hook(format!("v1,{canary}"))),
        format!("{:?}", Supabase::shared_secret(canary)),
    ];
    for shown in shown {
        assert!(shown.starts_with("Ok(") && !shown.contains("Y2Fu") && !shown.contains("canary"), "{shown}");
    }
}

/// Signatures of the kit's test helpers are accepted by the kit.
#[cfg(feature = "testing")]
#[test]
fn the_helpers_for_tests_sign_as_senders_do() {
    use posthaste_kit::testing::webhook;
    let (body, key) = (br#"{"id":"evt_1"}"#, format!("whsec_{}", STANDARD.encode([7; 32])));
    let check = |scheme: &dyn Scheme, headers: &HeaderMap| {
        let uri = Uri::default();
        assert!(scheme.verify(&Incoming { headers, uri: &uri, body }, now()).is_ok(), "{}", scheme.name());
        assert!(scheme.verify(&Incoming { headers, uri: &uri, body: b"{}" }, now()).is_err(), "{}", scheme.name());
    };
    check(&Stripe::new("s").unwrap(), &webhook::stripe("s", body, now()));
    check(&GitHub::new("s").unwrap(), &webhook::github("s", body, "d-1", "push"));
    check(&Standard::new(&key).unwrap(), &webhook::standard(&key, body, "msg_1", now()));
    check(&Slack::new("s").unwrap(), &webhook::slack("s", body, now()));
    check(&Supabase::hmac("s").unwrap(), &webhook::hmac("x-supabase-signature", "", "s", body));
    let headers = webhook::shared_secret("x-webhook-secret", "s");
    let incoming = Incoming { headers: &headers, uri: &Uri::default(), body };
    assert!(Supabase::shared_secret("s").unwrap().verify(&incoming, now()).is_ok());
}
