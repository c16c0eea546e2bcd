//! `GET /v2/messages/{id}/why`: what messages wait for, and what became of them.

use crate::support::runs::{config, done};
use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};

async fn why(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/v2/messages/{id}/why")).token(READ_ONLY).expect(200).await.json()
}

/// The sentence, what is waited for, and the state.
async fn told(server: &TestServer, id: &str) -> (String, String, String) {
    let why = why(server, id).await;
    assert_eq!(why["messageId"], id);
    let text = |name: &str| why[name].as_str().unwrap_or_else(|| panic!("no {name} in {why}")).to_owned();
    (text("sentence"), text("waitsFor"), text("state"))
}

fn texts(sentence: impl Into<String>, waits_for: &str, state: &str) -> (String, String, String) {
    (sentence.into(), waits_for.to_owned(), state.to_owned())
}

#[tokio::test]
async fn time_retries_and_ends() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(503), Reply::status(200)]);
        let origin = format!("http://{}", receiver.address());
        let headers = [("Upstash-Delay", "2h"), ("Upstash-Retry-Delay", "60000")];
        let id = server.publish_with(&receiver.url("/?secret=1"), &headers, "").await;
        assert_eq!(told(&server, &id).await, texts("delayed: due in 2 h", "time", "CREATED"));
        assert_eq!(why(&server, &id).await["dueAt"], START_MS + 7_200_000);
        server.advance(7_200_000).await;
        receiver.next().await;
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        let sentence = format!("attempt 2 of 4 is due in 60 s, after 503 from {origin}");
        assert_eq!(told(&server, &id).await, texts(sentence, "time", "RETRY"));
        let facts = why(&server, &id).await;
        assert_eq!(
            (&facts["attempts"], &facts["maxAttempts"], &facts["lastStatus"]),
            (&json!(1), &json!(4), &json!(503))
        );
        assert_eq!(facts["estimateMs"], 60_000);
        server.advance(60_000).await;
        receiver.next().await;
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"]).await;
        // Also when the message itself is no longer shown.
        server.advance(60_000).await;
        server.get(&format!("/v2/messages/{id}")).expect(404).await;
        let ended = texts("delivered on the 2nd attempt after 2 h", "nothing", "DELIVERED");
        assert_eq!(told(&server, &id).await, ended, "{backend:?}");
        assert_eq!(why(&server, &id).await["endedAt"], START_MS + 7_260_000);
        server.finish().await;
    }
}

#[tokio::test]
async fn failures_are_in_the_dlq_until_they_are_sent_again() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let origin = format!("http://{}", receiver.address());
    let id =
        server.publish_with(&receiver.url("/"), &[("Upstash-Retries", "1"), ("Upstash-Retry-Delay", "0")], "").await;
    let letter = server.dead_letter_of(&id).await;
    let sentence = format!("in the DLQ: 500 from {origin}, after 1 retry");
    assert_eq!(told(&server, &id).await, texts(sentence, "nothing", "FAILED"));
    let dlq_id = letter["dlqId"].as_str().expect("an id");
    assert_eq!(why(&server, &id).await["dlqId"], dlq_id);
    receiver.script("/", [Reply::status(200)]);
    let again = server.post(&format!("/v2/dlq/retry/{dlq_id}")).expect(201).await.json();
    let again = again["messageId"].as_str().expect("an id");
    server.reaches(again, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let (sentence, ..) = told(&server, &id).await;
    assert!(sentence.starts_with("failed, no longer in the DLQ: 500 from "), "{sentence}");
    assert_eq!(why(&server, &id).await.get("dlqId"), None);
    let line = &server.events_of(again).await[0];
    assert_eq!((&line["sourceMessageId"], &line["sourceKind"]), (&json!(id), &json!("dlqRetry")));
    server.finish().await;
}

#[tokio::test]
async fn attempts_and_cancels() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(500).held();
    receiver.script("/", [held]);
    let id = server.publish_with(&receiver.url("/"), &[], "").await;
    receiver.next().await;
    server.advance(2_500).await;
    assert_eq!(told(&server, &id).await, texts("the 1st attempt has been in flight for 2.5 s", "attempt", "ACTIVE"));
    server.delete(&format!("/v2/messages/{id}")).expect(202).await;
    let sentence = "the 1st attempt has been in flight for 2.5 s; the message is cancelled and will not be retried";
    assert_eq!(told(&server, &id).await, texts(sentence, "attempt", "CANCEL_REQUESTED"));
    gate.open();
    server.reaches(&id, &["CREATED", "ACTIVE", "CANCEL_REQUESTED", "ERROR", "CANCELED"]).await;
    server.advance(180_000).await;
    let sentence = "cancelled 3 min ago, after 1 failed attempt";
    assert_eq!(told(&server, &id).await, texts(sentence, "nothing", "CANCELED"));
    let waiting = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
    server.delete(&format!("/v2/messages/{waiting}")).expect(202).await;
    let sentence = "cancelled just now, before the 1st attempt";
    assert_eq!(told(&server, &waiting).await, texts(sentence, "nothing", "CANCELED"));
    server.finish().await;
}

#[tokio::test]
async fn queues() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/", [held, Reply::status(200)]);
    let mut ids = Vec::new();
    for _ in 0..70 {
        ids.push(server.enqueue_with("orders", &receiver.url("/"), &[]).await);
    }
    receiver.next().await;
    let sentence = "3rd in line for queue orders, 1 of 1 in flight";
    assert_eq!(told(&server, &ids[3]).await, texts(sentence, "queue", "CREATED"));
    assert_eq!(why(&server, &ids[3]).await["position"], 3);
    let last = why(&server, &ids[69]).await;
    assert_eq!((&last["position"], &last["positionMoreThan"]), (&Value::Null, &json!(64)));
    server.post("/v2/queues/orders/pause").expect(200).await;
    server.advance(120_000).await;
    let (sentence, ..) = told(&server, &ids[1]).await;
    assert_eq!(sentence, "queue orders is paused (changed 2 min ago): 1st in line");
    assert_eq!(why(&server, &ids[1]).await["queue"]["paused"], true);
    let late = [("Upstash-Delay", "1h")];
    let delayed = server.enqueue_with("orders", &receiver.url("/"), &late).await;
    assert_eq!(told(&server, &delayed).await, texts("delayed: due in 60 min", "time", "CREATED"));
    server.delete("/v2/queues/orders").expect(200).await;
    gate.open();
    server.finish().await;
}

#[tokio::test]
async fn flow_control_keys() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let keyed = |value| [("Upstash-Flow-Control-Key", "stripe-eu"), ("Upstash-Flow-Control-Value", value)];
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(server.publish_with(&receiver.url("/"), &keyed("rate=5"), "").await);
    }
    receiver.take(5).await;
    server.advance(400).await;
    let waiting = why(&server, &ids[7]).await;
    assert_eq!(waiting["sentence"], "3rd in line for key stripe-eu, 5/s, about 0.6 s");
    assert_eq!((&waiting["waitsFor"], &waiting["position"]), (&json!("flowControl"), &json!(3)));
    assert_eq!(waiting["flowControl"]["rate"], 5);
    assert_eq!(waiting["estimateMs"], 601);
    server.post("/v2/flowControl/stripe-eu/pause").expect(200).await;
    let (sentence, ..) = told(&server, &ids[7]).await;
    assert_eq!(sentence, "flow-control key stripe-eu is paused: 3rd in line");
    server.post("/v2/flowControl/stripe-eu/resume").expect(200).await;
    server.advance(601).await;
    receiver.take(3).await;
    server.finish().await;
}

#[tokio::test]
async fn busy_destinations_and_full_rooms() {
    let mut setup = Setup::dev();
    setup.settings.destination_parallelism = Some(1);
    setup.settings.tenant_parallelism = Some(2);
    let server = TestServer::with(setup).await;
    let (one, other) = (Receiver::start().await, Receiver::start().await);
    let third = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    one.script("/", [held.clone(), Reply::status(200)]);
    other.script("/", [held]);
    server.publish_with(&one.url("/"), &[], "").await;
    let second = server.publish_with(&one.url("/"), &[], "").await;
    one.next().await;
    let sentence = format!("1st in line for http://{}, 1 of 1 deliveries in flight", one.address());
    assert_eq!(told(&server, &second).await, texts(sentence, "destination", "CREATED"));
    server.publish_with(&other.url("/"), &[], "").await;
    other.next().await;
    let roomless = server.publish_with(&third.url("/"), &[], "").await;
    let sentence = "waiting for a free slot: the tenant has 2 deliveries in flight, its maximum";
    assert_eq!(told(&server, &roomless).await, texts(sentence, "room", "CREATED"));
    gate.open();
    server.finish().await;
}

#[tokio::test]
async fn steps_of_runs_and_what_is_unknown() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/wf", [done()]);
    server.start_run("wfr_1", &receiver.url("/wf"), config()).await;
    receiver.next().await;
    let step = json!({ "stepId": 1, "stepName": "approval", "stepType": "Wait", "concurrent": 1 });
    server.wait_in("wfr_1", "approved", step).await;
    let id = eventually("the step waits", || async {
        let runs = server.runs("workflowRunId=wfr_1").await;
        let group = runs[0]["steps"].as_array().and_then(|groups| groups.last().cloned())?;
        group["steps"][0]["messageId"]
            .as_str()
            .filter(|_| group["steps"][0]["stepName"] == "approval")
            .map(str::to_owned)
    })
    .await;
    let (sentence, waits_for, _) = told(&server, &id).await;
    assert!(sentence.starts_with("its run is waiting for an event; the wait times out in "), "{sentence}");
    assert_eq!(waits_for, "time");
    server.post("/v2/notify/approved").expect(200).await;
    receiver.next().await;
    server.finish_run("wfr_1").await;

    let known = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
    for id in ["msg_unknown", "x", &known] {
        let error = server.get(&format!("/v2/messages/{id}/why")).token(TOKEN_B).expect(404).await.error();
        assert!(error.contains("not found"), "{error}");
    }
    server.get(&format!("/v2/messages/{known}/why")).without("Authorization").expect(401).await;
    server.delete(&format!("/v2/messages/{known}")).expect(202).await;
    server.finish().await;
}
