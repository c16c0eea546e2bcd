//! `DELETE /v2/messages?async=true` and `/v2/bulkActions`: cancels that go on in the background.

use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Setup, TestServer, eventually};
use serde_json::{Value, json};

const NOWHERE: &str = "http://nowhere.example/";
const WAITING: [(&str, &str); 1] = [("Upstash-Delay", "1h")];

/// Publishes messages that wait, with this label.
async fn publish(server: &TestServer, label: &str, count: usize) {
    let headers = json!({ "Upstash-Delay": "1h", "Upstash-Label": label });
    let item = json!({ "destination": NOWHERE, "headers": headers });
    server.post("/v2/batch").json(&vec![item; count].into()).expect(200).await;
}

async fn begin(server: &TestServer, query: &str) -> (String, u64) {
    let answer = server.delete(&format!("/v2/messages?async=true{query}")).expect(202).await.json();
    let id = answer["actionId"].as_str().unwrap_or_else(|| panic!("no id in {answer}")).to_owned();
    (id, answer["cancelled"].as_u64().expect("a count"))
}

async fn finished(server: &TestServer, id: &str) -> Value {
    eventually("the bulk action is finished", || async {
        let action = server.get(&format!("/v2/bulkActions/{id}")).expect(200).await.json();
        (action["state"] == "FINISHED").then_some(action)
    })
    .await
}

#[tokio::test]
async fn a_cancel_in_the_background_cancels_what_matched_when_it_was_begun() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        publish(&server, "red", 3).await;
        publish(&server, "blue", 2).await;
        let (id, cancelled) = begin(&server, "&label=red&label=green&fromDate=1").await;
        assert!(id.starts_with("bulk_") && cancelled == 3, "{id} {cancelled}");
        let expected = json!({
            "actionId": id,
            "kind": "cancel",
            "state": "FINISHED",
            "total": 3,
            "processed": 3,
            "createdAt": START_MS,
            "completedAt": START_MS,
            "filter": { "label": ["red", "green"], "fromDate": ["1"] },
        });
        assert_eq!(finished(&server, &id).await, expected, "{backend:?}");
        assert_eq!(server.counts().live, 2, "{backend:?}");
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn steps_of_workflows_are_no_messages_to_cancel() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        publish(&server, "red", 2).await;
        let headers = json!({ "upstash-workflow-init": "true", "upstash-delay": "1h", "upstash-label": "red" });
        let item = json!({ "destination": NOWHERE, "headers": headers });
        server.post("/v2/batch").json(&json!([item, item])).expect(200).await;
        let (id, cancelled) = begin(&server, "&label=red").await;
        let action = finished(&server, &id).await;
        assert_eq!((cancelled, &action["total"], &action["processed"]), (2, &json!(2), &json!(2)), "{backend:?}");
        assert_eq!(server.runs("state=RUN_STARTED").await.len(), 2, "runs are cancelled as runs");
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn count_bounds_a_cancel_in_the_background() {
    let server = TestServer::start().await;
    publish(&server, "red", 5).await;
    let (id, cancelled) = begin(&server, "&count=2").await;
    let action = finished(&server, &id).await;
    assert_eq!((cancelled, &action["total"], &action["processed"]), (2, &json!(2), &json!(2)));
    assert_eq!(server.counts().live, 3);
    // What is cancelled already does not count.
    let (id, cancelled) = begin(&server, "").await;
    assert_eq!((cancelled, &finished(&server, &id).await["processed"]), (3, &json!(3)));
    let (id, cancelled) = begin(&server, "").await;
    assert_eq!((cancelled, &finished(&server, &id).await["processed"]), (0, &json!(0)));
    server.finish().await;
}

#[tokio::test]
async fn a_restart_goes_on_with_what_was_begun() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        publish(&server, "red", 3_500).await;
        let (id, cancelled) = begin(&server, "&label=red").await;
        assert_eq!(cancelled, 3_500);
        let server = server.restart().await;
        let action = finished(&server, &id).await;
        assert_eq!((&action["total"], &action["processed"]), (&json!(3_500), &json!(3_500)), "{backend:?}");
        server.finish().await;
    }
}

#[tokio::test]
async fn what_is_published_later_is_not_cancelled() {
    let server = TestServer::start().await;
    publish(&server, "red", 1_500).await;
    let (id, _) = begin(&server, "").await;
    let later = server.publish_with(NOWHERE, &WAITING, "").await;
    finished(&server, &id).await;
    assert_eq!(server.states_of(&later).await, ["CREATED"]);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn lists_have_pages_and_a_state_selects_from_a_page() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            let (id, _) = begin(&server, "").await;
            finished(&server, &id).await;
            ids.insert(0, id);
        }
        let page = |query: String| {
            let server = &server;
            async move {
                let answer = server.get(&format!("/v2/bulkActions?{query}")).expect(200).await.json();
                let actions = answer["bulkActions"].as_array().expect("a list").clone();
                let listed: Vec<String> =
                    actions.iter().map(|action| action["actionId"].as_str().expect("an id").to_owned()).collect();
                (listed, answer["cursor"].as_str().map(str::to_owned))
            }
        };
        assert_eq!(page(String::new()).await, (ids.clone(), None));
        let (first, cursor) = page("count=2".into()).await;
        assert_eq!(first, ids[..2]);
        let cursor = cursor.expect("there is more");
        assert_eq!(page(format!("count=2&cursor={cursor}")).await, (ids[2..].to_vec(), None));
        assert_eq!(page("count=3".into()).await, (ids.clone(), None), "a full last page has no cursor");
        assert_eq!(page("state=FINISHED".into()).await, (ids.clone(), None));
        assert_eq!(page("state=IN_PROGRESS&count=2".into()).await, (Vec::new(), Some(cursor)));
        for query in ["state=DONE", "count=0", "count=x", "cursor=x", "label=red", "count=1&count=2"] {
            server.get(&format!("/v2/bulkActions?{query}")).expect(400).await.error();
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn bulk_actions_belong_to_their_tenant() {
    let server = TestServer::start().await;
    let (id, _) = begin(&server, "").await;
    finished(&server, &id).await;
    let path = format!("/v2/bulkActions/{id}");
    server.get(&path).token(READ_ONLY).expect(200).await;
    server.get("/v2/bulkActions").token(READ_ONLY).expect(200).await;
    server.delete("/v2/messages?async=true").token(READ_ONLY).expect(403).await.error();
    server.get(&path).token(TOKEN_B).expect(404).await.error();
    let others = server.get("/v2/bulkActions").token(TOKEN_B).expect(200).await.json();
    assert_eq!(others, json!({ "bulkActions": [] }));
    for id in ["bulk_1", "msg_1", "x", "bulk_11111111"] {
        server.get(&format!("/v2/bulkActions/{id}")).expect(404).await.error();
    }
    server.finish().await;
}
