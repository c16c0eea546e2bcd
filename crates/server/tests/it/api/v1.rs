//! What older clients still call.

use crate::support::{Receiver, TestServer};
use serde_json::json;

#[tokio::test]
async fn the_first_version_tells_one_message_of_a_group() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let endpoints = json!({ "endpoints": [{ "url": receiver.url("/a") }, { "url": receiver.url("/b") }] });
    // The SDK 2.1.0 names the group alone.
    server.post("/v2/topics/both").json(&endpoints).expect(200).await;
    let answer = server.post("/v1/publish/both").expect(200).await;
    assert_eq!(answer.redacted(), json!({ "messageId": "<message>" }));
    let mut targets: Vec<String> = receiver.take(2).await.into_iter().map(|delivery| delivery.target).collect();
    targets.sort();
    assert_eq!(targets, ["/a", "/b"]);
    let one = server.post(&format!("/v1/publish/{}", receiver.url("/c"))).expect(200).await;
    assert_eq!(one.redacted(), json!({ "messageId": "<message>" }));
    server.finish().await;
}

#[tokio::test]
async fn groups_can_be_read_and_removed_by_the_first_version() {
    let server = TestServer::start().await;
    let endpoints = json!({ "endpoints": [{ "url": "http://nowhere.example/" }] });
    server.post("/v2/topics/one").json(&endpoints).expect(200).await;
    for (old, new) in [("/v1/topics", "/v2/topics"), ("/v1/topics/one", "/v2/topics/one")] {
        assert_eq!(server.get(old).expect(200).await.json(), server.get(new).expect(200).await.json());
    }
    server.delete("/v1/topics/one").expect(200).await;
    server.get("/v2/topics/one").expect(404).await;
    server.finish().await;
}
