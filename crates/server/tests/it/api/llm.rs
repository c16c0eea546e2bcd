//! The operator's language model: `api/llm` as a destination, and requests that are passed on to it.

use crate::support::jwt;
use crate::support::server::{CURRENT_KEY, READ_ONLY, TOKEN_B};
use crate::support::{Receiver, Reply, Request, Setup, TestServer, eventually, within};
use posthaste::config::Mode;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TOKEN_OF_MODEL: &str = "sk-token-of-the-model-4Hq9";
const BODY: &str = r#"{"model":"small","messages":[]}"#;
const PATH: &str = "/v1/chat/completions";

/// As in production, where a tenant cannot reach loopback: only the operator's model is there.
fn with_model(address: SocketAddr) -> Setup {
    let mut setup = Setup::serve();
    setup.settings.egress_allow_cidrs = None;
    setup.settings.llm_url = Some(format!("http://{address}/v1/"));
    setup.settings.llm_token = Some(TOKEN_OF_MODEL.to_owned());
    setup
}

const CALLBACK: (&str, &str) = ("Upstash-Callback", "https://callback.example/");

#[tokio::test]
async fn a_message_to_the_model_brings_the_operators_token_and_keeps_it_from_everybody_else() {
    let model = Receiver::start().await;
    model.script(PATH, [Reply::status(500), Reply::status(200).with_body("{}")]);
    let server = TestServer::with(with_model(model.address())).await;
    server.publish(&model.url(PATH)).body(BODY).expect(400).await.error();
    let headers =
        [CALLBACK, ("Upstash-Forward-Authorization", "Bearer of-the-publisher"), ("Upstash-Retry-Delay", "1000")];
    let id = server.publish_with("api/llm", &headers, BODY).await;
    let story = ["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"];
    for so_far in [&story[..4], &story] {
        let delivery = model.next().await;
        assert_eq!(
            (delivery.method.as_str(), delivery.target.as_str(), delivery.text().as_str()),
            ("POST", PATH, BODY)
        );
        assert_eq!(delivery.all("authorization"), [format!("Bearer {TOKEN_OF_MODEL}")]);
        server.reaches(&id, so_far).await;
        server.advance(1_000).await;
    }
    let message = server.message(&id).await;
    assert_eq!(message["api"], "llm");
    let logs = server.get("/v2/logs").expect(200).await.text();
    assert!(logs.contains(&id) && !logs.contains(TOKEN_OF_MODEL) && !message.to_string().contains(TOKEN_OF_MODEL));
    server.finish_with_pending().await;
}

#[tokio::test]
async fn the_address_of_the_model_is_told_to_nobody() {
    let model = Receiver::start().await;
    let server = TestServer::with(Setup { mode: Mode::Dev, ..with_model(model.address()) }).await;
    let id = server.publish_with("api/llm", &[("Upstash-Callback", &model.url("/callback"))], BODY).await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let lines = server.events_of(&id).await;
    let connection = lines.iter().find_map(|line| line.get("connection")).expect("the attempt has connected");
    assert!(connection.get("connectMicros").is_some() && connection.get("address").is_none(), "{connection}");
    server.finish().await;
}

#[tokio::test]
async fn everybody_sees_what_the_publisher_wrote() {
    let (model, receiver) = (Receiver::start().await, Receiver::start().await);
    model.script(PATH, [Reply::status(500), Reply::status(200)]);
    let server = TestServer::with(Setup { mode: Mode::Dev, ..with_model(model.address()) }).await;
    let callback = receiver.url("/callback");
    let headers = [("Upstash-Callback", callback.as_str()), ("Upstash-Retries", "0")];
    let id = server.publish_with("api/llm", &headers, BODY).await;
    let claims = jwt::verify(model.next().await.header("upstash-signature").expect("it is signed"), CURRENT_KEY);
    assert_eq!(claims.expect("a signature")["sub"], model.url(PATH), "the model itself is told its own place");
    let letter = server.dead_letter_of(&id).await;
    let told: Value = serde_json::from_str(&receiver.next().await.text()).expect("a callback is JSON");
    let schedule = [("Upstash-Callback", callback.as_str()), ("Upstash-Cron", "0 0 1 1 *")];
    let schedule = server.schedule_with("api/llm", &schedule, BODY).await;
    let run = server.post(&format!("/v2/schedules/{schedule}/run")).expect(201).await.json()["messages"][0].clone();
    receiver.next().await;
    let lines = server.events("url=api/llm").await;
    assert!(lines.iter().any(|line| line["messageId"] == id) && lines.len() > 3, "{lines:?}");
    for shown in lines.iter().chain([&server.message(&id).await, &letter, &told, &run]) {
        assert_eq!(shown["url"], "api/llm", "{shown}");
    }
    for path in ["/v2/logs", "/v2/dlq", "/v2/dlq/causes", "/v2/schedules", &format!("/v2/messages/{id}/why")] {
        let text = server.get(path).expect(200).await.text();
        assert!(text.contains("api/llm") && !text.contains(&model.address().to_string()), "{path}: {text}");
    }
    server.finish().await;
}

#[tokio::test]
async fn the_model_is_a_place_like_others_for_batches_queues_and_schedules() {
    let model = Receiver::start().await;
    let server = TestServer::with(with_model(model.address())).await;
    let headers = json!({ CALLBACK.0: CALLBACK.1 });
    let batch = json!([{ "destination": "api/llm", "headers": headers, "body": BODY }]);
    server.post("/v2/batch").json(&batch).expect(200).await;
    assert_eq!(model.next().await.all("authorization"), [format!("Bearer {TOKEN_OF_MODEL}")]);
    server.post("/v2/enqueue/q/api/llm").headers(&[CALLBACK]).body(BODY).expect(200).await;
    assert_eq!(model.next().await.all("authorization"), [format!("Bearer {TOKEN_OF_MODEL}")]);
    let schedule = [CALLBACK, ("Upstash-Cron", "* * * * *"), ("Upstash-Schedule-Id", "s")];
    server.post("/v2/schedules/api/llm").headers(&schedule).body(BODY).expect(201).await;
    server.advance(60_000).await;
    assert_eq!(model.next().await.all("authorization"), [format!("Bearer {TOKEN_OF_MODEL}")]);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn what_cannot_be_answered_is_refused() {
    let model = Receiver::start().await;
    let server = TestServer::with(with_model(model.address())).await;
    let error = server.publish("api/llm").body(BODY).expect(400).await.error();
    assert!(error.contains("Upstash-Callback"), "{error}");
    let error = server.publish("api/email").headers(&[CALLBACK]).expect(400).await.error();
    assert!(error.contains("api/email"), "{error}");
    assert_eq!(model.count(), 0);
    server.finish().await;

    let server = TestServer::with(Setup::serve()).await;
    let error = server.publish("api/llm").headers(&[CALLBACK]).expect(400).await.error();
    assert!(error.contains("llm_url"), "{error}");
    let batch = json!([{ "destination": "api/llm" }]);
    server.post("/v2/batch").json(&batch).expect(400).await.error();
    let error = server.post(&format!("/llm{PATH}")).body(BODY).expect(404).await.error();
    assert!(error.contains("llm_url"), "{error}");
    server.finish().await;
}

#[tokio::test]
async fn a_message_whose_model_is_gone_goes_nowhere() {
    let model = Receiver::start().await;
    let server = TestServer::with(with_model(model.address())).await;
    let headers = [CALLBACK, ("Upstash-Delay", "1m"), ("Upstash-Retries", "0")];
    let id = server.publish_with("api/llm", &headers, BODY).await;
    let server = server
        .restart_with(|settings| {
            settings.llm_url = None;
            settings.llm_token = None;
        })
        .await;
    server.advance(60_000).await;
    let letter = server.dead_letter_of(&id).await;
    assert!(letter["error"].as_str().is_some_and(|error| error.contains("api/llm")), "{letter}");
    assert_eq!(model.count(), 0);
    server.finish_with_pending().await;
}

fn complete(server: &TestServer) -> Request {
    server.post(&format!("/llm{PATH}")).header("Content-Type", "application/json").body(BODY)
}

#[tokio::test]
async fn requests_are_passed_on_with_the_operators_token() {
    let model = Receiver::start().await;
    let limited = Reply::status(429)
        .with_body(r#"{"error":{"message":"slow down"}}"#)
        .with_header("Content-Type", "application/json; charset=utf-8")
        .with_header("X-RateLimit-Limit-Requests", "10")
        .with_header("Set-Cookie", "a=b");
    model.script(PATH, [Reply::status(200).with_body(r#"{"id":"x"}"#), limited]);
    let server = TestServer::with(with_model(model.address())).await;
    let answer = complete(&server).expect(200).await;
    assert_eq!(answer.text(), r#"{"id":"x"}"#);
    let passed = model.next().await;
    assert_eq!(passed.all("authorization"), [format!("Bearer {TOKEN_OF_MODEL}")]);
    assert_eq!((passed.text().as_str(), passed.header("content-type")), (BODY, Some("application/json")));

    let answer = complete(&server).expect(429).await;
    assert_eq!(answer.text(), r#"{"error":{"message":"slow down"}}"#);
    assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("10"));
    assert_eq!(answer.header("set-cookie"), None);

    complete(&server).without("Authorization").expect(401).await.error();
    complete(&server).token(READ_ONLY).expect(403).await.error();
    assert_eq!(model.count(), 2);
    server.finish().await;
}

#[tokio::test]
async fn a_model_that_does_not_answer_is_a_bad_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it has an address");
    drop(listener);
    let server = TestServer::with(with_model(address)).await;
    let error = complete(&server).expect(502).await.error();
    assert!(error.starts_with("the language model: ") && !error.contains(TOKEN_OF_MODEL), "{error}");
    server.finish().await;
}

#[tokio::test]
async fn an_answer_in_pieces_is_passed_back_as_it_comes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let server = TestServer::with(with_model(listener.local_addr().expect("it has an address"))).await;
    let mut client = TcpStream::connect(server.address).await.expect("the server listens");
    client.write_all(&complete(&server).bytes()).await.expect("the request is sent");
    let (mut model, _) = within("the request is passed on", listener.accept()).await.expect("a connection");
    read_until(&mut model, BODY).await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    model.write_all(head.as_bytes()).await.expect("the head is sent");
    for piece in ["data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n", "data: [DONE]\n\n"] {
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        model.write_all(chunk.as_bytes()).await.expect("a piece is sent");
        // It arrives although the answer is not complete.
        let seen = read_until(&mut client, piece).await;
        assert!(piece.contains("[DONE]") || !seen.contains("[DONE]"));
    }
    model.write_all(b"0\r\n\r\n").await.expect("the end is sent");
    read_until(&mut client, "0\r\n\r\n").await;
    server.finish().await;
}

#[tokio::test]
async fn a_tenant_that_keeps_the_model_busy_leaves_places_to_another() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let server = TestServer::with(with_model(listener.local_addr().expect("it has an address"))).await;
    // A model that never answers.
    let pass = async |request: Request| {
        let mut client = TcpStream::connect(server.address).await.expect("the server listens");
        client.write_all(&request.bytes()).await.expect("the request is sent");
        let (model, _) = within("the request is passed on", listener.accept()).await.expect("a connection");
        (client, model)
    };
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(pass(complete(&server)).await);
    }
    let error = complete(&server).expect(429).await.error();
    assert!(error.contains("100 of your requests"), "{error}");
    held.push(pass(complete(&server).token(TOKEN_B)).await);
    drop((held, listener));
    // Whoever has a place finds that there is no model any more.
    let again = || async { (complete(&server).try_send().await.ok()?.status == 502).then_some(()) };
    eventually("places are free again", again).await;
    server.finish().await;
}

/// Reads until a text has arrived.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains(text) {
            let read = stream.read_buf(&mut seen).await.expect("the connection is open");
            assert!(read > 0, "the connection ended before {text:?}: {}", String::from_utf8_lossy(&seen));
        }
    };
    within(text, reading).await;
    String::from_utf8_lossy(&seen).into_owned()
}
