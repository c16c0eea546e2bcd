//! `/v2/receiver`: the test receiver answers as it is told, shows what it got, and is open to nobody else.

use crate::support::server::{READ_ONLY, TOKEN, TOKEN_B};
use crate::support::{Request, Setup, TestServer, eventually};
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// As in production, where nothing on loopback may be reached but the receiver.
async fn serve() -> TestServer {
    let mut setup = Setup::serve();
    setup.settings.egress_allow_cidrs = None;
    setup.settings.console_receiver = Some(true);
    TestServer::with(setup).await
}

async fn url(server: &TestServer, token: &str) -> String {
    let answer = server.get("/v2/receiver").token(token).expect(200).await.json();
    answer["url"].as_str().expect("a URL is text").to_owned()
}

/// What was received, newest first, as soon as it is so much.
async fn received(server: &TestServer, count: usize) -> Vec<Value> {
    eventually("deliveries at the test receiver", || async {
        let answer = server.get("/v2/receiver").token(READ_ONLY).expect(200).await.json();
        let deliveries = answer["deliveries"].as_array().expect("deliveries are a list").clone();
        (deliveries.len() >= count).then_some(deliveries)
    })
    .await
}

fn address(url: &str) -> SocketAddr {
    let rest = url.strip_prefix("http://").expect("it is plain HTTP");
    rest.split('/').next().expect("a host").parse().expect("an address and a port")
}

#[tokio::test]
async fn it_answers_by_its_script_and_shows_each_attempt() {
    let server = serve().await;
    let url = url(&server, TOKEN).await;
    let headers = [("Upstash-Retry-Delay", "1000"), ("Upstash-Forward-X-Mine", "yes"), ("Content-Type", "text/plain")];
    let id = server.publish_with(&format!("{url}/500,500,200"), &headers, "hello").await;
    for attempt in 1..3 {
        received(&server, attempt).await;
        eventually("the attempt has ended", || async {
            (server.states_of(&id).await.len() == 1 + attempt * 3).then_some(())
        })
        .await;
        server.advance(1_000).await;
    }
    server
        .reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"])
        .await;
    let deliveries = received(&server, 3).await;
    for (delivery, (attempt, answer)) in deliveries.iter().zip([(3, "200"), (2, "500"), (1, "500")]) {
        assert_eq!((&delivery["attempt"], &delivery["answer"]), (&attempt.into(), &answer.into()));
        assert_eq!((&delivery["messageId"], &delivery["method"]), (&id.as_str().into(), &"POST".into()));
        assert_eq!((&delivery["body"], &delivery["script"]), (&"hello".into(), &"500,500,200".into()));
        assert_eq!((&delivery["bodyBytes"], &delivery["isCut"]), (&5.into(), &false.into()));
        assert_eq!(delivery["signature"], serde_json::json!({ "isValid": true, "key": "current" }));
        assert_eq!(delivery["header"]["X-Mine"], serde_json::json!(["yes"]));
        assert_eq!(delivery["header"].get("Upstash-Signature"), None, "it opens doors until it expires");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_status_of_489_ends_a_message_and_a_wrong_script_is_told() {
    let server = serve().await;
    let url = url(&server, TOKEN).await;
    let id = server.publish_with(&format!("{url}/489"), &[], "").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
    let id = server.publish_with(&format!("{url}/999"), &[("Upstash-Retries", "0")], "").await;
    let letter = server.dead_letter_of(&id).await;
    assert_eq!(letter["responseStatus"], 400);
    assert!(letter["responseBody"].as_str().expect("text").contains("statuses from 200 to 599"), "{letter}");
    server.finish().await;
}

#[tokio::test]
async fn of_loopback_it_alone_may_be_reached() {
    let server = serve().await;
    let address = address(&url(&server, TOKEN).await);
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let other = other.local_addr().expect("an address");
    for url in [
        format!("http://{other}/"),
        format!("http://{}/", server.address),
        format!("http://localhost:{}/", address.port()),
        format!("http://127.0.0.2:{}/", address.port()),
    ] {
        server.publish(&url).expect(400).await.error();
    }
    // Whoever does not know the secret part gets nothing, and leaves nothing.
    let stranger = Request::new(address, "POST", "/guessed/200").body("x").send().await;
    assert_eq!(stranger.status, 404);
    let unsigned = Request::new(address, "POST", &url(&server, TOKEN).await[format!("http://{address}").len()..]);
    unsigned.header("Upstash-Signature", "forged").body("by hand").expect(200).await;
    let deliveries = received(&server, 1).await;
    assert_eq!(deliveries.len(), 1);
    assert_eq!(deliveries[0]["signature"]["isValid"], false);
    assert!(deliveries[0]["signature"]["problem"].as_str().expect("text").contains("neither"), "{}", deliveries[0]);
    assert_eq!(deliveries[0]["body"], "by hand");
    server.finish().await;
}

#[tokio::test]
async fn tenants_have_their_own_and_read_only_tokens_forget_nothing() {
    let server = serve().await;
    let (first, second) = (url(&server, TOKEN).await, url(&server, TOKEN_B).await);
    assert_ne!(first, second);
    server.publish(&first).token(TOKEN_B).body("from another").expect(200).await;
    // It knows the URL of the other, but not its keys.
    let delivery = received(&server, 1).await.remove(0);
    assert_eq!(delivery["signature"]["isValid"], false);
    let answer = server.get("/v2/receiver").token(TOKEN_B).expect(200).await.json();
    assert_eq!(answer["deliveries"], serde_json::json!([]));
    server.delete("/v2/receiver").token(READ_ONLY).expect(403).await;
    assert_eq!(server.delete("/v2/receiver").token(TOKEN_B).expect(200).await.json()["deleted"], 0);
    assert_eq!(server.delete("/v2/receiver").expect(200).await.json()["deleted"], 1);
    assert_eq!(server.get("/v2/receiver").expect(200).await.json()["deliveries"], serde_json::json!([]));
    server.get("/v2/receiver").without("Authorization").expect(401).await;
    server.finish().await;
}

#[tokio::test]
async fn what_a_message_hides_is_hidden_here_too_and_long_bodies_are_cut() {
    let server = serve().await;
    let url = url(&server, TOKEN).await;
    let hidden = [("Upstash-Redact-Fields", "body, header[X-Secret]"), ("Upstash-Forward-X-Secret", "in the header")];
    server.publish_with(&url, &hidden, "in the body").await;
    let delivery = received(&server, 1).await.remove(0);
    assert_eq!(delivery["body"], server.mark("in the body"));
    assert_eq!(delivery["header"]["X-Secret"][0], server.mark("in the header"));
    assert_eq!(delivery["signature"]["isValid"], true);
    server.publish_with(&url, &[], &format!("x{}", "ä".repeat(5_000))).await;
    let delivery = received(&server, 2).await.remove(0);
    assert_eq!((&delivery["isCut"], &delivery["bodyBytes"]), (&true.into(), &10_001.into()));
    assert_eq!(delivery["body"].as_str().expect("a cut text is text").len(), 4_095);
    assert_eq!(delivery["signature"]["isValid"], true, "the whole body was checked");
    server.publish(&url).body(vec![0xff, 0xfe]).expect(200).await;
    assert_eq!(received(&server, 3).await[0]["bodyBase64"], "//4=");
    server.finish().await;
}

/// As many as a tenant may have open at once.
const OPEN_MAX: usize = 256;

#[tokio::test]
async fn open_requests_are_bounded_and_end_with_their_clients() {
    let server = serve().await;
    let (first, second) = (url(&server, TOKEN).await, url(&server, TOKEN_B).await);
    let address = address(&first);
    let request = |url: &str, script: &str| {
        let path = &url[format!("http://{address}").len()..];
        Request::new(address, "POST", &format!("{path}/{script}")).body("x")
    };
    let mut open = Vec::new();
    for number in 0..OPEN_MAX {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let script = if number % 2 == 0 { "hang" } else { "200+10m" };
        stream.write_all(&request(&first, script).bytes()).await.expect("it reads");
        open.push(stream);
    }
    let refused = eventually("all places are taken", || async {
        let answer = request(&first, "").send().await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert!(refused.text().contains("256 open requests"), "{}", refused.text());
    request(&second, "").expect(200).await;
    // Clients who leave give their places back, although nobody has answered them.
    drop(open);
    eventually("places are free", || async { (request(&first, "").send().await.status == 200).then_some(()) }).await;
    server.finish().await;
}

#[tokio::test]
async fn it_is_off_in_production_unless_asked_for_and_ends_with_the_server() {
    let off = TestServer::with(Setup::serve()).await;
    let error = off.get("/v2/receiver").expect(404).await.error();
    assert!(error.contains("console_receiver"), "{error}");
    off.finish().await;

    let on = TestServer::start().await;
    let url = url(&on, TOKEN).await;
    let id = on.publish_with(&format!("{url}/hang"), &[], "").await;
    received(&on, 1).await;
    assert_eq!(on.states_of(&id).await, ["CREATED", "ACTIVE"], "nobody has answered");
    on.finish_with_pending().await;
    TcpStream::connect(address(&url)).await.expect_err("nobody listens any more");
}
