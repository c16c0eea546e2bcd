//! Signatures of webhooks, as their senders create them: headers for a request with the same body.

use super::clock::millis_of;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;
use std::time::SystemTime;

/// Signs like Stripe: `Stripe-Signature: t=…,v1=…`.
pub fn stripe(secret: &str, body: &[u8], at: SystemTime) -> HeaderMap {
    let time = seconds(at);
    let mac = hex(secret.as_bytes(), &[time.as_bytes(), b".", body]);
    headers([("stripe-signature", format!("t={time},v1={mac}"))])
}

/// Signs like GitHub: `X-Hub-Signature-256`, and the ids of delivery and event.
pub fn github(secret: &str, body: &[u8], delivery_id: &str, event: &str) -> HeaderMap {
    let mac = hex(secret.as_bytes(), &[body]);
    headers([
        ("x-hub-signature-256", format!("sha256={mac}")),
        ("x-github-delivery", delivery_id.to_owned()),
        ("x-github-event", event.to_owned()),
    ])
}

/// Signs like Standard Webhooks (and Supabase's auth hooks): `webhook-id`, `webhook-timestamp`, `webhook-signature`.
/// The secret is base64, with or without the prefixes `whsec_` and `v1,`.
///
/// # Panics
///
/// If the secret is not base64.
pub fn standard(secret: &str, body: &[u8], id: &str, at: SystemTime) -> HeaderMap {
    let secret = secret.strip_prefix("v1,").unwrap_or(secret);
    let secret = secret.strip_prefix("whsec_").unwrap_or(secret);
    let key = STANDARD.decode(secret).expect("the secret of a standard webhook is base64");
    let time = seconds(at);
    let mac = STANDARD.encode(mac(&key, &[id.as_bytes(), b".", time.as_bytes(), b".", body]));
    headers([("webhook-id", id.to_owned()), ("webhook-timestamp", time), ("webhook-signature", format!("v1,{mac}"))])
}

/// Signs like Slack: `X-Slack-Signature` and `X-Slack-Request-Timestamp`.
pub fn slack(secret: &str, body: &[u8], at: SystemTime) -> HeaderMap {
    let time = seconds(at);
    let mac = hex(secret.as_bytes(), &[b"v0:", time.as_bytes(), b":", body]);
    headers([("x-slack-signature", format!("v0={mac}")), ("x-slack-request-timestamp", time)])
}

/// Signs like many others: the HMAC of the body in hexadecimal digits, in a header.
pub fn hmac(header: &'static str, prefix: &str, secret: &str, body: &[u8]) -> HeaderMap {
    headers([(header, format!("{prefix}{}", hex(secret.as_bytes(), &[body])))])
}

/// Sends the secret itself in a header, like Supabase's database webhooks.
pub fn shared_secret(header: &'static str, secret: &str) -> HeaderMap {
    headers([(header, secret.to_owned())])
}

fn headers<const N: usize>(pairs: [(&'static str, String); N]) -> HeaderMap {
    let value = |text: String| HeaderValue::try_from(text).expect("what is signed here can be in a header");
    pairs.into_iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

fn seconds(at: SystemTime) -> String {
    (millis_of(at) / 1_000).to_string()
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn hex(key: &[u8], parts: &[&[u8]]) -> String {
    mac(key, parts).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::time::{Duration, UNIX_EPOCH};

    /// The headers and the body of the valid case of a scheme in the vectors.
    fn good(vectors: &Value, scheme: &str) -> (HeaderMap, Vec<u8>) {
        let cases = vectors["webhooks"].as_array().unwrap();
        let case = cases.iter().find(|case| case["scheme"] == scheme && case["id"] == "ok").unwrap();
        let pairs = case["headers"].as_object().unwrap().iter();
        let pair = |(name, value): (&String, &Value)| (name.parse().unwrap(), value.as_str().unwrap().parse().unwrap());
        (pairs.map(pair).collect(), STANDARD.decode(case["body_b64"].as_str().unwrap()).unwrap())
    }

    #[test]
    fn signatures_match_the_vectors() {
        let vectors: Value = serde_json::from_str(include_str!("../../../../vectors/signature.json")).unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(vectors["now"].as_u64().unwrap());
        let secret = |scheme: &str| vectors["schemes"][scheme]["secret"].as_str().unwrap();

        let (expected, body) = good(&vectors, "stripe");
        assert_eq!(stripe(secret("stripe"), &body, now), expected);

        let (mut expected, body) = good(&vectors, "github");
        expected.insert("x-github-event", HeaderValue::from_static("push"));
        let id = expected["x-github-delivery"].to_str().unwrap().to_owned();
        assert_eq!(github(secret("github"), &body, &id, "push"), expected);
        let generic = hmac("x-hub-signature-256", "sha256=", secret("github"), &body);
        assert_eq!(generic["x-hub-signature-256"], expected["x-hub-signature-256"]);

        let (expected, body) = good(&vectors, "standard");
        assert_eq!(standard(secret("standard"), &body, "msg_test_1", now), expected);
        let supabase = format!("v1,{}", secret("standard"));
        assert_eq!(standard(&supabase, &body, "msg_test_1", now), good(&vectors, "supabase-auth").0);

        let (expected, _) = good(&vectors, "static-header");
        assert_eq!(shared_secret("x-webhook-secret", "static-secret-123"), expected);
    }

    /// The example in Slack's documentation.
    #[test]
    fn slack_signatures_match_the_documented_example() {
        let body = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&\
response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&\
trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let at = UNIX_EPOCH + Duration::from_secs(1_531_420_618);
        let signed = slack("8f742231b10e8888abcd99yyyzzz85a5", body, at);
        let expected = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
        assert_eq!(signed["x-slack-signature"], expected);
        assert_eq!(signed["x-slack-request-timestamp"], "1531420618");
    }
}
