//! `/v2/schedules`: what is accepted, and how it is shown. When they fire is told in `crate::schedules`.

use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Lines, Setup, TestServer};
use serde_json::{Value, json};

const URL: &str = "https://example.com";
const DAILY: (&str, &str) = ("Upstash-Cron", "0 0 * * *");
/// The midnight after [`START_MS`].
const MIDNIGHT_MS: u64 = START_MS + 12 * 3_600_000;

async fn ids(server: &TestServer) -> Vec<Value> {
    let listed = server.get("/v2/schedules").expect(200).await.json();
    listed.as_array().expect("a bare list").iter().map(|schedule| schedule["scheduleId"].clone()).collect()
}

#[tokio::test]
async fn a_schedule_is_shown_as_it_was_made() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let headers = [
            ("Upstash-Cron", " CRON_TZ=UTC 0 0 * * * "),
            ("Upstash-Schedule-Id", "my-schedule_1.0"),
            ("Upstash-Method", "put"),
            ("Upstash-Delay", "90s"),
            ("Upstash-Timeout", "30s"),
            ("Upstash-Retries", "7"),
            ("Upstash-Retry-Delay", "1000 * retried"),
            ("Upstash-Forward-Test-Header", "a"),
            ("Upstash-Forward-test-header", "b, c"),
            ("Content-Type", "application/json"),
            ("Upstash-Queue-Name", "jobs"),
            ("Upstash-Label", "red, blue"),
            ("Upstash-Flow-Control-Key", "key"),
            ("Upstash-Flow-Control-Value", "parallelism=2, rate=3, period=4s"),
            ("Upstash-Callback", "https://example.com/callback"),
            ("Upstash-Callback-Forward-Kind", "done"),
            ("Upstash-Failure-Callback", "https://example.com/failed"),
            // Of no use to a schedule, and ignored.
            ("Upstash-Not-Before", "1780315300"),
            ("Upstash-Deduplication-Id", "once"),
        ];
        let answer = server.post("/v2/schedules/https://example.com/a?b=c").headers(&headers).body("{}").expect(201);
        assert_eq!(answer.await.json(), json!({ "scheduleId": "my-schedule_1.0" }));
        let expected = json!({
            "scheduleId": "my-schedule_1.0",
            "cron": "CRON_TZ=UTC 0 0 * * *",
            "destination": "https://example.com/a?b=c",
            "method": "PUT",
            "createdAt": START_MS,
            "retries": 7,
            "isPaused": false,
            "callerIP": "127.0.0.1",
            "header": { "Content-Type": ["application/json"], "Test-Header": ["a", "b, c"] },
            "body": "{}",
            "delay": 90,
            "timeout": 30,
            "retryDelayExpression": "1000 * retried",
            "queueName": "jobs",
            "label": "red",
            "labels": ["red", "blue"],
            "flowControlKey": "key",
            "parallelism": 2,
            "rate": 3,
            "period": 4,
            "callback": "https://example.com/callback",
            "callbackHeader": { "Kind": ["done"] },
            "failureCallback": "https://example.com/failed",
            "nextScheduleTime": MIDNIGHT_MS,
        });
        let server = server.restart().await;
        assert_eq!(server.schedule("my-schedule_1.0").await, expected);
        assert_eq!(server.get("/v2/schedules").expect(200).await.json(), json!([expected]));
        for path in ["/v2/Schedules/my-schedule_1.0", "/v2/schedules/my-schedule_1.0/", "/v1/schedules/my-schedule_1.0"]
        {
            assert_eq!(server.get(path).expect(200).await.json(), expected, "{path}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn little_is_needed_and_replacing_keeps_nothing() {
    let server = TestServer::start().await;
    let minimal = |id: &str| {
        json!({
            "scheduleId": id,
            "cron": "0 0 * * *",
            "destination": URL,
            "method": "POST",
            "createdAt": START_MS,
            "retries": 3,
            "isPaused": false,
            "callerIP": "127.0.0.1",
            "nextScheduleTime": MIDNIGHT_MS,
        })
    };
    let id = server.schedule_with(URL, &[DAILY], "").await;
    let random = id.strip_prefix("scd_").expect("an id of a schedule");
    assert!(random.len() > 20 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    assert_eq!(server.schedule(&id).await, minimal(&id));

    let named = ("Upstash-Schedule-Id", "named");
    let headers = [named, ("Upstash-Cron", "@hourly"), ("Upstash-Retries", "9"), ("Upstash-Label", "x")];
    server.schedule_with(URL, &headers, "body").await;
    assert_eq!(server.schedule("named").await["body"], "body");
    server.request("PATCH", "/v2/schedules/named/pause").expect(200).await;
    server.schedule_with(URL, &[named, DAILY], "").await;
    assert_eq!(server.schedule("named").await, minimal("named"));
    let mut expected = vec![json!("named"), json!(id)];
    expected.sort_by_key(ToString::to_string);
    assert_eq!(ids(&server).await, expected);
    server.finish().await;
}

#[tokio::test]
async fn empty_headers_say_nothing() {
    let server = TestServer::start().await;
    // What the Terraform provider sends for a schedule of which only the cron expression is set.
    let unset = ["Upstash-Method", "Upstash-Callback", "Upstash-Queue-Name", "Upstash-Timeout", "Content-Type"];
    let headers = [&[DAILY, ("Upstash-Delay", "0s")][..], &unset.map(|name| (name, ""))].concat();
    let shown = server.schedule(&server.schedule_with(URL, &headers, "").await).await;
    for name in ["delay", "callback", "queueName", "timeout", "header"] {
        assert_eq!(shown.get(name), None, "{name}");
    }
    assert_eq!(shown["method"], "POST");
    server.finish().await;
}

#[tokio::test]
async fn the_headers_of_the_request_that_makes_a_schedule_are_not_kept() {
    let server = TestServer::start().await;
    let one = json!({ "endpoints": [{ "url": URL }] });
    server.post("/v2/topics/group/endpoints").json(&one).expect(200).await;
    let defaults = json!({ "headers": { "Upstash-Header-Forward": "true", "Upstash-Forward-From": "group" } });
    server.request("PATCH", "/v2/topics/group").json(&defaults).expect(200).await;
    let plain = [DAILY, ("Cookie", "session=secret"), ("User-Agent", "mine/1"), ("Content-Type", "text/plain")];
    let own = [&plain[..], &[("Upstash-Header-Forward", "true"), ("Upstash-Forward-From", "own")]].concat();
    for (destination, headers, from) in [("group", &plain[..], "group"), (URL, &own, "own")] {
        let shown = server.schedule(&server.schedule_with(destination, headers, "").await).await;
        assert_eq!(shown["header"], json!({ "Content-Type": ["text/plain"], "From": [from] }), "{destination}");
    }
    server.finish().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_leaves_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    let long = "x".repeat(257);
    let cases: [(&str, Lines<'_>, u16, &str); 12] = [
        (URL, &[], 400, "Upstash-Cron is missing"),
        (URL, &[("Upstash-Cron", "* * * *")], 400, "Upstash-Cron: invalid cron expression: 4 fields"),
        (URL, &[("Upstash-Cron", "0 0 30 2 *")], 400, "it never fires"),
        (URL, &[("Upstash-Cron", "CRON_TZ=Mars/Olympus 0 0 * * *")], 400, "unknown time zone"),
        (URL, &[DAILY, ("Upstash-Schedule-Id", "a/b")], 400, "Upstash-Schedule-Id"),
        (URL, &[DAILY, ("Upstash-Schedule-Id", &long)], 400, "Upstash-Schedule-Id"),
        (URL, &[DAILY, ("Upstash-Delay", "soon")], 400, "Upstash-Delay"),
        (URL, &[DAILY, ("Upstash-Retries", "1001")], 412, "quota maxRetries exceeded, current limit: 1000"),
        ("", &[DAILY], 400, "a non-empty destination must be provided"),
        ("ftp://example.com", &[DAILY], 400, "endpoint has invalid scheme"),
        ("http://10.0.0.1/", &[DAILY], 400, "invalid destination url"),
        ("nobody", &[DAILY], 404, "topic nobody not found"),
    ];
    for (destination, headers, status, text) in cases {
        let request = server.post(&format!("/v2/schedules/{destination}")).headers(headers);
        let error = request.expect(status).await.error();
        assert!(error.contains(text), "{destination} {headers:?}: {error}");
    }
    server.post("/v2/schedules").headers(&[DAILY]).expect(400).await;
    let callback = [DAILY, ("Upstash-Callback", "http://10.0.0.1/")];
    server.post(&format!("/v2/schedules/{URL}")).headers(&callback).expect(400).await;
    assert_eq!(ids(&server).await, [] as [Value; 0]);
    server.finish().await;
}

#[tokio::test]
async fn schedules_are_paused_resumed_and_deleted_by_id() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let id = server.schedule_with(URL, &[DAILY], "").await;
        let expect_paused = async |action: &str, method: &str, paused: bool| {
            let answer = server.request(method, &format!("/v2/schedules/{id}/{action}")).expect(200).await;
            assert_eq!(answer.json(), json!({}));
            assert_eq!(server.schedule(&id).await["isPaused"], json!(paused));
        };
        for (action, method, paused) in [
            ("pause", "PATCH", true),
            ("pause", "POST", true),
            ("resume", "POST", false),
            ("resume/", "PATCH", false),
            ("pause/", "POST", true),
        ] {
            expect_paused(action, method, paused).await;
        }
        server.delete(&format!("/v2/schedules/{id}/")).expect(200).await;
        for (method, target, status) in [
            ("GET", format!("/v2/schedules/{id}"), 404),
            ("DELETE", format!("/v2/schedules/{id}"), 404),
            ("PATCH", format!("/v2/schedules/{id}/pause"), 404),
            ("POST", format!("/v2/schedules/{id}/resume"), 404),
            ("PATCH", format!("/v2/schedules/{id}/run"), 404),
            ("POST", format!("/v2/schedules/{id}/run"), 404),
            ("DELETE", "/v2/schedules/".to_owned(), 400),
            ("PUT", format!("/v2/schedules/{id}"), 405),
        ] {
            server.request(method, &target).expect(status).await.error();
        }
        assert_eq!(server.get("/v2/schedules/").expect(200).await.json(), json!([]));
        server.finish().await;
    }
}

#[tokio::test]
async fn a_publish_or_an_enqueue_with_a_cron_expression_makes_a_schedule() {
    let server = TestServer::start().await;
    let cases = [
        (format!("/v2/publish/{URL}"), None),
        (format!("/v1/publish/{URL}"), None),
        (format!("/v2/publish/{URL}?upstash-cron=0+0+*+*+*"), None),
        (format!("/v2/enqueue/jobs/{URL}"), Some("jobs")),
        (format!("/v2/Schedules/{URL}"), None),
    ];
    for (target, queue) in &cases {
        let headers: Lines<'_> = if target.contains("upstash-cron") { &[] } else { &[DAILY] };
        let answer = server.post(target).headers(headers).body("x").expect(201).await.json();
        let shown = server.schedule(answer["scheduleId"].as_str().expect("an id")).await;
        assert_eq!((&shown["cron"], &shown["destination"]), (&json!("0 0 * * *"), &json!(URL)), "{target}");
        assert_eq!(shown.get("queueName").and_then(Value::as_str), *queue);
    }
    let batch = json!([{ "destination": URL, "headers": { "Upstash-Cron": "0 0 * * *" } }]);
    let error = server.post("/v2/batch").json(&batch).expect(400).await.error();
    assert!(error.contains("Upstash-Cron"), "{error}");
    assert_eq!((ids(&server).await.len(), server.counts().live), (cases.len(), 0));
    server.finish().await;
}

#[tokio::test]
async fn what_is_to_be_hidden_is_hidden_and_bytes_are_base64() {
    let server = TestServer::start().await;
    let headers = [DAILY, ("Upstash-Forward-Secret", "s3cret"), ("Upstash-Redact-Fields", "body, header[Secret]")];
    let hidden = server.schedule_with(URL, &headers, "s3cret").await;
    let shown = server.schedule(&hidden).await;
    let mark = server.mark("s3cret");
    assert_eq!((&shown["body"], &shown["header"]["Secret"]), (&json!(mark), &json!([mark])));
    let binary = server.post(&format!("/v2/schedules/{URL}")).headers(&[DAILY]).body(vec![0xff, 0x00]);
    let binary = binary.expect(201).await.json()["scheduleId"].as_str().expect("an id").to_owned();
    let shown = server.schedule(&binary).await;
    assert_eq!((shown.get("body"), &shown["bodyBase64"]), (None, &json!("/wA=")));
    server.finish().await;
}

#[tokio::test]
async fn over_the_quota_schedules_can_be_replaced_but_not_added() {
    let mut setup = Setup::dev();
    setup.settings.max_schedules = Some(2);
    let server = TestServer::with(setup).await;
    let named = |id: &'static str| [DAILY, ("Upstash-Schedule-Id", id)];
    for id in ["a", "b", "a"] {
        server.schedule_with(URL, &named(id), "").await;
    }
    let server = server.restart().await;
    let refused = server.post(&format!("/v2/schedules/{URL}")).headers(&named("c")).expect(412).await;
    assert_eq!(refused.error(), "quota maxSchedules exceeded, current limit: 2");
    server.schedule_with(URL, &named("b"), "").await;
    server.post(&format!("/v2/schedules/{URL}")).headers(&named("c")).token(TOKEN_B).expect(201).await;
    server.delete("/v2/schedules/a").expect(200).await;
    server.schedule_with(URL, &named("c"), "").await;
    assert_eq!(ids(&server).await, ["b", "c"]);
    server.finish().await;
}

#[tokio::test]
async fn schedules_belong_to_a_tenant_and_a_read_only_token_only_looks() {
    let server = TestServer::start().await;
    let headers = [DAILY, ("Upstash-Schedule-Id", "mine")];
    server.schedule_with(URL, &headers, "a").await;
    assert_eq!(server.get("/v2/schedules").token(TOKEN_B).expect(200).await.json(), json!([]));
    for (method, target) in
        [("GET", "/v2/schedules/mine"), ("DELETE", "/v2/schedules/mine"), ("PATCH", "/v2/schedules/mine/pause")]
    {
        server.request(method, target).token(TOKEN_B).expect(404).await;
    }
    server.post(&format!("/v2/schedules/{URL}")).headers(&headers).body("b").token(TOKEN_B).expect(201).await;
    assert_eq!(server.schedule("mine").await["body"], "a");

    server.get("/v2/schedules/mine").token(READ_ONLY).expect(200).await;
    for (method, target) in [
        ("DELETE", "/v2/schedules/mine".to_owned()),
        ("PATCH", "/v2/schedules/mine/pause".to_owned()),
        ("POST", "/v2/schedules/mine/pause".to_owned()),
        ("POST", format!("/v2/schedules/{URL}")),
    ] {
        server.request(method, &target).headers(&headers).token(READ_ONLY).expect(403).await;
    }
    assert_eq!(server.schedule("mine").await["isPaused"], false);
    server.finish().await;
}

#[tokio::test]
async fn an_expression_is_changed_and_all_else_is_kept() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let headers = [DAILY, ("Upstash-Retries", "9"), ("Upstash-Callback", URL), ("Upstash-Callback-Retries", "2")];
        let id = server.schedule_with(URL, &headers, "body").await;
        server.post(&format!("/v2/schedules/{id}/pause")).expect(200).await;
        let mut expected = server.schedule(&id).await;
        let change = |cron: &str| server.request("PATCH", &format!("/v2/schedules/{id}")).header("Upstash-Cron", cron);
        server.advance(60_000).await;
        let answer = change(" CRON_TZ=Europe/Berlin 0 8 * * * ").expect(200).await.json();
        assert_eq!(answer, json!({ "scheduleId": id }));
        expected["cron"] = json!("CRON_TZ=Europe/Berlin 0 8 * * *");
        expected["nextScheduleTime"] = json!(START_MS + 18 * 3_600_000);
        let server = server.restart().await;
        assert_eq!(server.schedule(&id).await, expected);
        let change = |cron: &str| server.request("PATCH", &format!("/v2/schedules/{id}")).header("Upstash-Cron", cron);

        for (request, status, text) in [
            (change("* * * *"), 400, "Upstash-Cron: invalid cron expression: 4 fields"),
            (change("@daily").header("Upstash-Cron", "@hourly"), 400, "Upstash-Cron is missing"),
            (change("@daily").header("Upstash-Retries", "1"), 400, "only Upstash-Cron can be changed"),
            (change("@daily").body("new"), 400, "only Upstash-Cron can be changed"),
            (change("@daily").without("Upstash-Cron"), 400, "Upstash-Cron is missing"),
            (change("@daily").token(READ_ONLY), 403, ""),
            (change("@daily").token(TOKEN_B), 404, "not found"),
            (server.request("PATCH", "/v2/schedules/nobody").header("Upstash-Cron", "@daily"), 404, "not found"),
        ] {
            let error = request.expect(status).await.error();
            assert!(error.contains(text), "{text}: {error}");
        }
        assert_eq!(server.schedule(&id).await, expected);
        // One that takes its place has its own expression.
        server.schedule_with(URL, &[DAILY, ("Upstash-Schedule-Id", id.as_str())], "body").await;
        assert_eq!(server.schedule(&id).await["cron"], DAILY.1);
        server.finish().await;
    }
}

#[tokio::test]
async fn bodies_are_left_out_of_lists_on_request() {
    let server = TestServer::start().await;
    let id = server.schedule_with(URL, &[DAILY], "a long body").await;
    for (query, body) in [("", json!("a long body")), ("?trimBody=6", json!("a long")), ("?trimBody=0", Value::Null)] {
        let listed = server.get(&format!("/v2/schedules{query}")).expect(200).await.json();
        let one = server.get(&format!("/v2/schedules/{id}{query}")).expect(200).await.json();
        assert_eq!((&listed[0]["body"], &one["body"]), (&body, &body), "{query}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_change_is_one_request() {
    let mut setup = Setup::dev();
    setup.settings.api_requests_per_second = Some(2);
    let server = TestServer::with(setup).await;
    let id = server.schedule_with(URL, &[DAILY], "").await;
    let change = || server.request("PATCH", &format!("/v2/schedules/{id}")).header("Upstash-Cron", "@hourly");
    change().expect(200).await;
    change().expect(429).await.error();
    server.finish().await;
}
