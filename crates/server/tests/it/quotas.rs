//! Quotas that an operator sets: what is refused, with which words, and for whom.

use crate::console::Browser;
use crate::support::server::TOKEN_B;
use crate::support::{Answer, Request, Setup, TestServer};
use posthaste::config::Settings;
use serde_json::{Value, json};

const DAY_MS: u64 = 86_400_000;
/// Midnight after the start of every manual clock, in Unix seconds.
const NEXT_DAY: &str = "1780358400";
const NOWHERE: &str = "http://nowhere.example/";

async fn server(change: impl FnOnce(&mut Settings)) -> TestServer {
    let mut setup = Setup::dev();
    change(&mut setup.settings);
    TestServer::with(setup).await
}

fn waiting(server: &TestServer) -> Request {
    server.publish(NOWHERE).header("Upstash-Delay", "1h")
}

#[tokio::test]
async fn a_publish_may_not_ask_for_more_than_the_operator_allows() {
    let server = server(|settings| {
        settings.max_delay = Some("7d".into());
        settings.max_retries = Some(2);
        settings.max_timeout = Some("15m".into());
    })
    .await;
    let cases = [
        ("Upstash-Delay", "604801s", "quota maxDelay exceeded, current limit: 604800"),
        ("Upstash-Retries", "3", "quota maxRetries exceeded, current limit: 2"),
        ("Upstash-Timeout", "901s", "quota timeout exceeded, current limit: 900"),
    ];
    for (name, value, text) in cases {
        let error = server.publish(NOWHERE).header(name, value).expect(412).await.error();
        assert!(error.starts_with(text), "{error}");
        let item = json!([{ "destination": NOWHERE, "headers": { name: value } }]);
        server.post("/v2/batch").json(&item).expect(412).await.error();
    }
    let at_the_limits = [("Upstash-Delay", "7d"), ("Upstash-Retries", "2"), ("Upstash-Timeout", "15m")];
    server.publish_with(NOWHERE, &at_the_limits, "").await;
    let id = server.publish_with(NOWHERE, &[("Upstash-Delay", "1h")], "").await;
    assert_eq!(server.message(&id).await["maxRetries"], 2, "the default is no more than what is allowed");
    server.finish_with_pending().await;
}

fn limits(answer: &Answer, prefix: &str) -> [Option<String>; 3] {
    ["limit", "remaining", "reset"].map(|name| answer.header(&format!("{prefix}{name}")).map(str::to_owned))
}

#[tokio::test]
async fn messages_are_counted_by_tenant_and_day() {
    let server = server(|settings| settings.messages_per_day = Some(5)).await;
    waiting(&server).expect(200).await;
    let item = json!({ "destination": NOWHERE, "headers": { "Upstash-Delay": "1h" } });
    server.post("/v2/batch").json(&vec![item.clone(); 2].into()).expect(200).await;
    // A duplicate is no message, and neither is what is refused.
    waiting(&server).header("Upstash-Deduplication-Id", "d").expect(200).await;
    waiting(&server).header("Upstash-Deduplication-Id", "d").expect(202).await;
    waiting(&server).header("Upstash-Retries", "many").expect(400).await;

    let refused = server.post("/v2/batch").json(&vec![item; 2].into()).expect(429).await;
    assert_eq!(refused.error(), "quota maxRequestsPerDay exceeded, current limit: 5");
    let expected = [Some("5"), Some("1"), Some(NEXT_DAY)].map(|value| value.map(str::to_owned));
    assert_eq!(limits(&refused, "ratelimit-"), expected);
    assert_eq!(refused.header("retry-after"), Some("43200"), "until midnight");
    assert_eq!(limits(&refused, "burst-ratelimit-"), [None, None, None]);
    assert_eq!(refused.header("retry-after"), Some("43200"), "noon to midnight");
    waiting(&server).expect(200).await;
    waiting(&server).expect(429).await.error();
    waiting(&server).token(TOKEN_B).expect(200).await;
    server.get("/v2/queues").expect(200).await;
    server.advance(DAY_MS).await;
    waiting(&server).expect(200).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn requests_are_counted_by_tenant_and_second() {
    let server = server(|settings| settings.api_requests_per_second = Some(2)).await;
    server.get("/v2/queues").expect(200).await;
    server.get("/v2/messages/msg_1").expect(404).await;
    let refused = server.get("/v2/queues").expect(429).await;
    refused.error();
    let expected = [Some("2"), Some("0"), Some("1780315201")].map(|value| value.map(str::to_owned));
    assert_eq!(limits(&refused, "burst-ratelimit-"), expected);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(limits(&refused, "ratelimit-"), [None, None, None], "the SDKs would take it for the daily one");
    // Messages are not held up, nor are other tenants, and a wrong token uses up nothing.
    waiting(&server).expect(200).await;
    server.post("/v2/batch").json(&json!([])).expect(200).await;
    server.post(&format!("/v2/enqueue/q/{NOWHERE}")).header("Upstash-Retries", "many").expect(400).await;
    server.get("/v2/queues").token(TOKEN_B).expect(200).await;
    server.get("/v2/queues").token("nobody's").expect(401).await;
    server.get("/health").expect(200).await;
    server.advance(1_000).await;
    server.get("/v2/queues").expect(200).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_page_of_the_console_is_one_request() {
    let server = server(|settings| settings.api_requests_per_second = Some(2)).await;
    let id = server.publish_with(NOWHERE, &[("Upstash-Delay", "1h")], "").await;
    let browser = Browser::open(&server);
    // It is made of several answers of the API.
    browser.see(&format!("/console/messages/{id}")).await;
    server.get("/v2/queues").expect(200).await;
    let refused = browser.look("/console/messages").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    let page = refused.text();
    assert!(
        page.contains("its limit of 2 requests per second") && page.contains("<h1>429 Too Many Requests</h1>"),
        "{page}"
    );
    browser.refused("/console/queues", &[("name", "q")], 429).await;
    server.get("/v2/queues").expect(429).await.error();
    // What is no page is not counted, nor are others.
    let style = page.split('"').find(|text| text.ends_with("/console.css")).expect("the page has a style");
    browser.see(style).await;
    Browser::of_tenant(&server, "tenant-b").see("/console").await;
    server.advance(1_000).await;
    for path in ["/console/queues", "/console/messages"] {
        browser.see(path).await;
    }
    assert_eq!(browser.look("/console").await.status, 429, "a page uses up requests too");
    server.get("/v2/queues").expect(429).await.error();
    server.finish_with_pending().await;
}

#[tokio::test]
async fn groups_and_their_endpoints_are_counted() {
    let server = server(|settings| {
        settings.max_url_groups = Some(1);
        settings.max_group_endpoints = Some(2);
    })
    .await;
    let endpoints = |count: usize| -> Value {
        let endpoint = |n| json!({ "url": format!("http://nowhere.example/{n}") });
        json!({ "endpoints": (0..count).map(endpoint).collect::<Vec<_>>() })
    };
    let add = |name: &str, count| server.post(&format!("/v2/topics/{name}/endpoints")).json(&endpoints(count));
    let error = add("one", 3).expect(412).await.error();
    assert_eq!(error, "quota maxEndpointsPerTopic exceeded, current limit: 2");
    add("one", 2).expect(200).await;
    assert_eq!(add("two", 1).expect(412).await.error(), "quota maxTopics exceeded, current limit: 1");
    // What is there may still be changed.
    add("one", 1).expect(200).await;
    server.request("PATCH", "/v2/topics/one").json(&json!({ "headers": {} })).expect(200).await;
    server.delete("/v2/topics/one").expect(200).await;
    add("two", 1).expect(200).await;
    server.finish().await;
}

#[tokio::test]
async fn queues_and_schedules_are_counted() {
    let server = server(|settings| {
        settings.max_queues = Some(1);
        settings.max_queue_parallelism = Some(3);
        settings.max_schedules = Some(1);
    })
    .await;
    let queue = |name: &str, parallelism: u32| {
        server.post("/v2/queues").json(&json!({ "queueName": name, "parallelism": parallelism }))
    };
    assert_eq!(queue("q", 4).expect(412).await.error(), "quota maxParallelism exceeded, current limit: 3");
    queue("q", 1).expect(200).await;
    assert_eq!(queue("r", 1).expect(412).await.error(), "quota maxQueues exceeded, current limit: 1");
    server.post(&format!("/v2/enqueue/r/{NOWHERE}")).expect(412).await.error();
    queue("q", 3).expect(200).await;

    let schedule = |id: &str| {
        let headers = [("Upstash-Cron", "0 0 1 1 *"), ("Upstash-Schedule-Id", id)];
        server.post(&format!("/v2/schedules/{NOWHERE}")).headers(&headers)
    };
    schedule("s").expect(201).await;
    assert_eq!(schedule("t").expect(412).await.error(), "quota maxSchedules exceeded, current limit: 1");
    schedule("s").expect(201).await;
    server.finish().await;
}
