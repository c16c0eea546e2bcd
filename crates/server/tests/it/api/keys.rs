//! `/v2/keys`: the signing keys, their rotation, and what is signed with them afterwards.

use crate::support::jwt;
use crate::support::server::{CURRENT_KEY, NEXT_KEY, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer};
use posthaste::tenants::DEV_USERS;
use serde_json::json;

#[tokio::test]
async fn keys_are_shown_to_their_owner() {
    let server = TestServer::start().await;
    let keys = json!({ "current": CURRENT_KEY, "next": NEXT_KEY });
    for path in ["/v2/keys", "/v2/keys/", "/v1/keys"] {
        assert_eq!(server.get(path).expect(200).await.json(), keys, "{path}");
    }
    // The JavaScript SDK looks for exactly these when it looks for a development server.
    for user in &DEV_USERS {
        let keys = json!({ "current": user.current, "next": user.next });
        assert_eq!(server.get("/v2/keys").token(user.token).expect(200).await.json(), keys, "{}", user.name);
    }
    server.finish().await;
}

#[tokio::test]
async fn a_rotation_makes_the_next_key_current_and_signs_with_it() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500), Reply::status(200)]);
        let signed_with = |key: &str, delivery: &crate::support::Delivery| {
            jwt::verify(delivery.header("upstash-signature").expect("it is signed"), key).is_some()
        };
        let id = server.publish_with(&receiver.url("/"), &[("Upstash-Retry-Delay", "1000")], "").await;
        assert!(signed_with(CURRENT_KEY, &receiver.next().await));
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;

        let rotated = server.post("/v2/keys/rotate").expect(200).await.json();
        assert_eq!(rotated["current"], NEXT_KEY);
        let next = rotated["next"].as_str().expect("a key is text");
        assert!(next.starts_with("sig_") && next.len() > 24 && ![CURRENT_KEY, NEXT_KEY].contains(&next));
        assert_eq!(server.get("/v2/keys").expect(200).await.json(), rotated);
        // Retries of older messages are signed with the key of the day.
        server.advance(1_000).await;
        let retry = receiver.next().await;
        assert!(signed_with(NEXT_KEY, &retry) && !signed_with(CURRENT_KEY, &retry));

        // Only rotations that overlap are one, which `keys.rs` tests; this one follows the first.
        let again = server.post("/v2/rotate").expect(200).await.json();
        assert_eq!(again["current"], rotated["next"]);
        server.publish_with(&receiver.url("/new"), &[], "").await;
        assert!(signed_with(next, &receiver.next().await));
        server.finish().await;
    }
}

#[tokio::test]
async fn a_rotation_concerns_one_tenant() {
    let server = TestServer::start().await;
    let before = server.get("/v2/keys").token(TOKEN_B).expect(200).await.json();
    server.post("/v2/keys/rotate").expect(200).await;
    assert_eq!(server.get("/v2/keys").token(TOKEN_B).expect(200).await.json(), before);
    server.finish().await;
}
