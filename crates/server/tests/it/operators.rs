//! What operators and load balancers see: health, readiness, metrics, and errors in one form.

use crate::support::http::{exchange, read_answer};
use crate::support::runs::{config, done, result};
use crate::support::server::TOKEN;
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually, within};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn health_and_readiness_are_open_and_say_nothing_more() {
    for setup in [Setup::dev(), Setup::serve()] {
        let server = TestServer::with(setup).await;
        let ask = |path: &'static str| server.get(path).without("Authorization").expect(200);
        assert_eq!(ask("/health").await.json(), json!({ "status": "ok" }));
        assert_eq!(ask("/ready").await.json(), json!({ "status": "ready" }));
        server.finish().await;
    }
}

#[tokio::test]
async fn metrics_are_open_in_dev_and_guarded_in_production() {
    let dev = TestServer::start().await;
    let answer = dev.get("/metrics").without("Authorization").expect(200).await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(answer.text().contains("\nposthaste_pending 0\n") && answer.text().ends_with("# EOF\n"));
    let open = dev.get("/metrics").header("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.expect(200).await.header("content-type"), Some(kind));
    dev.finish().await;

    let off = TestServer::with(Setup::serve()).await;
    off.get("/metrics").expect(404).await.error();
    off.finish().await;

    let mut setup = Setup::serve();
    setup.settings.metrics_token = Some("a-token-for-the-scraper".to_owned());
    let guarded = TestServer::with(setup).await;
    guarded.get("/metrics").without("Authorization").expect(401).await.error();
    guarded.get("/metrics").token(TOKEN).expect(401).await.error();
    guarded.get("/metrics").token("a-token-for-the-scraper").expect(200).await;
    guarded.get("/v2/keys").token("a-token-for-the-scraper").expect(401).await;
    guarded.finish().await;
}

#[tokio::test]
async fn metrics_count_what_happens() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    receiver.script("/refuses", [Reply::status(489).with_header("Upstash-NonRetryable-Error", "true")]);
    receiver.script("/closes", [Reply::Close]);
    let (held, gate) = Reply::status(200).held();
    receiver.script("/slow", [held]);

    let dedup = [("Upstash-Deduplication-Id", "x")];
    server.publish_with(&receiver.url("/"), &dedup, "").await;
    server.publish(&receiver.url("/")).headers(&dedup).expect(202).await;
    for path in ["/fails", "/refuses", "/closes"] {
        let id = server.publish_with(&receiver.url(path), &[("Upstash-Retries", "0")], "").await;
        server.dead_letter_of(&id).await;
    }
    let failed_dns = server.publish_with("http://nowhere.example/", &[("Upstash-Retries", "0")], "").await;
    server.dead_letter_of(&failed_dns).await;
    let delayed = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
    server.delete(&format!("/v2/messages/{delayed}")).expect(202).await;
    server.publish_with(&receiver.url("/slow"), &[], "").await;
    server.publish("nowhere").expect(404).await;
    receiver.take(5).await;
    server.settle().await;

    let expected = [
        ("posthaste_published_total{result=\"accepted\"}", 7.0),
        ("posthaste_published_total{result=\"deduplicated\"}", 1.0),
        ("posthaste_attempts_total{outcome=\"delivered\"}", 1.0),
        ("posthaste_attempts_total{outcome=\"failed_status\"}", 1.0),
        ("posthaste_attempts_total{outcome=\"refused\"}", 1.0),
        ("posthaste_attempts_total{outcome=\"failed_closed\"}", 1.0),
        ("posthaste_attempts_total{outcome=\"failed_dns\"}", 1.0),
        ("posthaste_attempt_seconds_count", 5.0),
        ("posthaste_cancelled_total", 1.0),
        ("posthaste_dead_lettered_total", 4.0),
        ("posthaste_pending", 1.0),
        ("posthaste_dead_letters", 4.0),
        ("posthaste_in_flight", 1.0),
        ("posthaste_held", 1.0),
        ("posthaste_request_seconds_count{route=\"publish\",status=\"2xx\"}", 8.0),
        ("posthaste_request_seconds_count{route=\"publish\",status=\"4xx\"}", 1.0),
    ];
    for (line, value) in expected {
        assert_eq!(server.metric(line), value, "{line}\n{}", server.metrics());
    }
    assert!(server.metric("posthaste_commit_seconds_count{durability=\"synced\"}") > 0.0);
    gate.open();
    server.finish().await;
}

#[tokio::test]
async fn runs_of_workflows_are_counted() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        receiver.script("/wf", [done()]);
        for id in ["wfr_a", "wfr_b", "wfr_c"] {
            server.start_run(id, &receiver.url("/wf"), config()).await;
            server.start_run(id, &receiver.url("/wf"), config()).await;
        }
        server.start_run("wfr_d", &receiver.url("/fails"), config()).await;
        let failed = server.run_in("wfr_d", "RUN_FAILED").await;
        for _ in 0..2 {
            server.append_step("wfr_a", &result(1, "once")).await;
        }
        server.finish_run("wfr_a").await;
        server.finish_run("wfr_a").await;
        server.delete("/v2/workflows/runs/wfr_b").expect(200).await;
        let dlq_id = failed["dlqId"].as_str().expect("an id");
        server.post(&format!("/v2/workflows/dlq/restart/{dlq_id}")).expect(200).await;
        eventually("it has failed again", || async {
            // The last figure of those below that changes.
            (server.metric("posthaste_dead_lettered_total") == 2.0).then_some(())
        })
        .await;
        let expected = [
            ("posthaste_runs_started_total", 5.0),
            ("posthaste_runs_ended_total{state=\"success\"}", 1.0),
            ("posthaste_runs_ended_total{state=\"failed\"}", 2.0),
            ("posthaste_runs_ended_total{state=\"canceled\"}", 1.0),
            ("posthaste_runs_live", 1.0),
            ("posthaste_steps_accepted_total", 1.0),
            ("posthaste_dead_lettered_total", 2.0),
            ("posthaste_dead_letters", 1.0),
        ];
        for (line, value) in expected {
            assert_eq!(server.metric(line), value, "{backend:?}: {line}\n{}", server.metrics());
        }
        let server = server.restart().await;
        assert_eq!(server.metric("posthaste_dead_letters"), 1.0, "{backend:?}: the failed run is still in the DLQ");
        assert_eq!(server.metric("posthaste_runs_live"), 1.0, "{backend:?}: what was left goes on");
        server.finish_run("wfr_c").await;
        assert_eq!(server.metric("posthaste_runs_live"), 0.0);
        server.delete("/v2/workflows/dlq").expect(200).await;
        assert_eq!(server.metric("posthaste_dead_letters"), 0.0, "{backend:?}: it was deleted");
        server.finish().await;
    }
}

#[tokio::test]
async fn what_does_not_exist_is_a_404_in_the_envelope() {
    let server = TestServer::start().await;
    let paths = [
        ("GET", "/"),
        ("GET", "/v2"),
        ("GET", "/v2/nope"),
        ("GET", "/v3/keys"),
        ("GET", "//v2//keys"),
        ("GET", "/v2/./keys"),
        ("GET", "/favicon.ico"),
        ("GET", "/v2/messages/a/b"),
        ("POST", "/v2/wait"),
        ("POST", "/v2/notify/"),
    ];
    for (method, path) in paths {
        server.request(method, path).expect(404).await.error();
    }
    server.finish().await;
}

#[tokio::test]
async fn a_resource_may_be_written_in_any_case() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for path in ["/v2/Keys", "/v2/EVENTS/?count=1", "/v2/dLq", "/v1/LOGS", "/v2/FLOWCONTROL", "/v2/globalparallelism"] {
        server.get(path).expect(200).await;
    }
    server.post("/v2/FlowControl/Key/RESETRATE").expect(404).await;
    // What follows is taken as it is.
    let target = format!("/v2/PUBLISH/{}", receiver.url("/A//b%20c?Query=Q"));
    server.post(&target).header("Upstash-Label", "x").body("hello").expect(200).await;
    let delivery = receiver.next().await;
    assert_eq!((delivery.target.as_str(), delivery.text().as_str()), ("/A//b%20c?Query=Q", "hello"));
    assert_eq!(delivery.header("upstash-caller-ip"), Some("127.0.0.1"));
    assert_eq!(server.metric("posthaste_request_seconds_count{route=\"publish\",status=\"2xx\"}"), 1.0);
    server.request("PATCH", "/v2/Keys").expect(405).await.error();
    server.get("/v2/Nope").expect(404).await.error();
    server.finish().await;
}

#[tokio::test]
async fn probes_may_speak_http_1_0_and_name_no_host() {
    let server = TestServer::with(Setup::serve()).await;
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let requests = [
        "GET /health HTTP/1.0\r\n\r\n".to_owned(),
        "GET /ready HTTP/1.0\r\nHost: x\r\n\r\n".to_owned(),
        format!("GET /v2/keys HTTP/1.0\r\n{token}\r\n"),
        // A server must take the form that proxies use (RFC 9112 3.2.2).
        format!("GET http://posthaste.example/v2/keys HTTP/1.1\r\nHost: posthaste.example\r\n{token}\r\n"),
        format!("GET /v2/keys HTTP/1.1\r\nHost: [::1]:8080\r\n{token}\r\n"),
    ];
    for request in requests {
        let answer = within("an answer", exchange(server.address, request.as_bytes())).await.expect("an answer");
        assert_eq!(answer.status, 200, "{request:?}: {}", answer.text());
    }
    server.finish().await;
}

#[tokio::test]
async fn a_connection_is_used_again_after_errors() {
    let server = TestServer::start().await;
    let mut stream = tokio::net::TcpStream::connect(server.address).await.expect("it listens");
    let mut buffer = Vec::new();
    let requests = [
        (server.get("/v2/nope"), 404),
        (server.post("/v2/batch").body("not json"), 400),
        (server.get("/v2/keys").token("wrong"), 401),
        (server.post("/v2/keys").body("unread"), 405),
        (server.get("/v2/keys"), 200),
    ];
    for (request, status) in requests {
        stream.write_all(&request.bytes()).await.expect("it reads");
        let answer = within("an answer", read_answer(&mut stream, &mut buffer)).await.expect("an answer");
        assert_eq!(answer.status, status, "{}", answer.text());
    }
    server.finish().await;
}

#[tokio::test]
async fn connections_that_do_not_finish_a_head_are_closed() {
    let server = TestServer::start().await;
    let address = server.address;
    let silent = ["", "PRI * HT", "GET /health HTTP/1.1\r\nHost: x\r\n"].map(|start| async move {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
        stream.write_all(start.as_bytes()).await.expect("it reads");
        let mut answer = Vec::new();
        // The bound is ten seconds.
        let closed = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "{start:?} holds its place");
    });
    let [nothing, preface, half] = silent;
    tokio::join!(nothing, preface, half);
    server.finish().await;
}

#[tokio::test]
async fn a_wrong_method_is_a_405_that_names_the_right_ones() {
    let server = TestServer::start().await;
    let cases = [
        ("GET", "/v2/publish/http://127.0.0.1:9/", "POST"),
        ("PUT", "/v2/publish", "POST"),
        ("GET", "/v2/batch", "POST"),
        ("GET", "/v2/messages", "DELETE"),
        ("POST", "/v2/messages/msg_x", "GET,HEAD,DELETE"),
        ("PATCH", "/v2/dlq", "GET,HEAD,DELETE"),
        ("GET", "/v2/dlq/retry/1-1", "POST"),
        ("POST", "/v2/events", "GET,HEAD"),
        ("DELETE", "/v2/logs", "GET,HEAD"),
        ("PUT", "/v2/keys", "GET,HEAD"),
        ("GET", "/v2/keys/rotate", "POST"),
        ("POST", "/health", "GET,HEAD"),
        ("BREW", "/v2/keys", "GET,HEAD"),
    ];
    for (method, path, allowed) in cases {
        let answer = server.request(method, path).expect(405).await;
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
        answer.error();
    }
    server.finish().await;
}
