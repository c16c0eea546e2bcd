//! What moves runs on and ends them, and what is refused.

use super::{F3, F4, Given, SDK, U, base, bounds, call, called, check, over, read, terms_json, trigger};
use crate::api::params::Params;
use crate::api::publish::Line;
use crate::api::workflow::{notify, runs, wait};
use posthaste_store::{RunFilter, UrlFilter};
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[test]
fn sleeps_until_an_exact_time() {
    let delayed = |body: &str, millis: u64| json!({ "append": "wfr_W", "entry": { "body": body, "headers": { SDK: "1" }, "dueIn": millis } });
    let exact = r#"{"stepId":1,"stepName":"s4","stepType":"SleepUntil","sleepUntil":1767225660.48,"concurrent":1}"#;
    let far = r#"{"stepId":1,"stepName":"s5","stepType":"SleepUntil","sleepUntil":1767225660000,"concurrent":1}"#;
    check(vec![
        (
            "G20 exact: the step carries the time, and its header is rounded",
            Given(U, over(base(), json!({ "upstash-not-before": "1767225660" })), exact),
            delayed(exact, 60_480),
        ),
        (
            "G20 with a header that is rounded up",
            Given(U, over(base(), json!({ "upstash-not-before": "1767225661" })), exact),
            delayed(exact, 61_000),
        ),
        (
            "G20 with a fraction in the header",
            Given(U, over(base(), json!({ "upstash-not-before": "1767225660.5" })), exact),
            delayed(exact, 60_500),
        ),
        (
            "G20 further ahead than a delay may be: the header counts",
            Given(U, over(base(), json!({ "upstash-not-before": "1767225660" })), far),
            delayed(far, 60_000),
        ),
    ]);
}

#[test]
fn steps() {
    let step = |body: &str| json!({ "append": "wfr_W", "entry": { "body": body, "headers": { SDK: "1" } } });
    let delayed = |body: &str, millis: u64| {
        let mut delayed = step(body);
        delayed["entry"]["dueIn"] = millis.into();
        delayed
    };
    let run = r#"{"stepId":1,"stepName":"attemptCharge","stepType":"Run","out":"{}","concurrent":1}"#;
    let sleep = r#"{"stepId":0,"stepName":"s1","stepType":"SleepFor","sleepFor":123,"concurrent":4,"targetStep":1}"#;
    let sleep_text =
        r#"{"stepId":0,"stepName":"s2","stepType":"SleepFor","sleepFor":"10m","concurrent":4,"targetStep":2}"#;
    let until =
        r#"{"stepId":0,"stepName":"s3","stepType":"SleepUntil","sleepUntil":123123,"concurrent":4,"targetStep":3}"#;
    let wait = r#"{"stepId":0,"stepName":"w","stepType":"Wait","waitEventId":"e","timeout":"5m","targetStep":4}"#;
    let result = r#"{"stepId":1,"stepName":"s1","stepType":"SleepFor","sleepFor":123,"concurrent":4}"#;
    let from_call = r#"{"stepId":3,"stepName":"ship","stepType":"Call","out":"{\"status\":200}","concurrent":1}"#;
    let webhook =
        r#"{"stepId":1,"stepName":"hook","stepType":"CreateWebhook","out":"{\"eventId\":\"evt_1\"}","concurrent":1}"#;
    check(vec![
        (
            "G19",
            Given(U, over(base(), json!({ "upstash-forward-upstash-workflow-invoke-count": "7" })), run),
            json!({
                "append": "wfr_W",
                "entry": { "body": run, "headers": { SDK: "1", "Upstash-Workflow-Invoke-Count": "7" } },
            }),
        ),
        ("G20 seconds", Given(U, over(base(), json!({ "upstash-delay": "123s" })), sleep), delayed(sleep, 123_000)),
        (
            "G20 text",
            Given(U, over(base(), json!({ "upstash-delay": "10m" })), sleep_text),
            delayed(sleep_text, 600_000),
        ),
        (
            "G20 in weeks",
            Given(U, over(base(), json!({ "upstash-delay": "1w" })), sleep_text),
            delayed(sleep_text, 604_800_000),
        ),
        ("G20 past", Given(U, over(base(), json!({ "upstash-not-before": "123123" })), until), step(until)),
        ("G20 wait", Given(U, base(), wait), step(wait)),
        ("G28", Given(U, base(), wait), step(wait)),
        ("G21", Given(U, base(), result), step(result)),
        ("G31", Given(U, base(), from_call), step(from_call)),
        ("G35", Given(U, base(), webhook), step(webhook)),
        (
            "an instance, and a kind of entry that later clients will have",
            Given(
                U,
                over(
                    base(),
                    json!({
                        "upstash-workflow-createdat": "1767225600001", "upstash-workflow-calltype": "stepConfig",
                    }),
                ),
                "{}",
            ),
            json!({
                "append": "wfr_W", "createdAt": 1_767_225_600_001_u64,
                "entry": { "callType": "stepConfig", "body": "{}", "headers": { SDK: "1" } },
            }),
        ),
    ]);
}

#[test]
fn calls() {
    const API: &str = "https://api.openai.com/v1/chat/completions";
    let entry = |call: Value, more: Value| {
        let entry = over(json!({ "callType": "toCallback", "retries": 0, "call": call }), more);
        json!({ "append": "wfr_W", "entry": entry })
    };
    check(vec![
        (
            "G29 default",
            Given("https://a.example/x", call(), ""),
            entry(called("https://a.example/x", "GET"), json!({})),
        ),
        (
            "G29",
            Given(
                "https://a.example/x",
                over(
                    call(),
                    json!({
                        "upstash-method": "POST", "upstash-retries": "10", "upstash-timeout": "30",
                        "upstash-retry-delay": "1000", "upstash-forward-my-header": "my-value",
                        "content-type": "text/plain",
                        "upstash-flow-control-key": "free text", "upstash-flow-control-value": "parallelism=1",
                        "upstash-forward-upstash-workflow-invoke-count": "1",
                    }),
                ),
                "\"my-payload\"",
            ),
            json!({ "append": "wfr_W", "entry": {
                "callType": "toCallback", "contentType": "text/plain", "body": "\"my-payload\"", "retries": 10,
                "retryDelay": "1000", "timeout": 30_000, "flow": ["free text", 1, null, 1_000],
                "headers": { "My-Header": "my-value", "Upstash-Workflow-Invoke-Count": "1" },
                "call": called("https://a.example/x", "POST"),
            } }),
        ),
        (
            "G30",
            Given(
                API,
                over(
                    call(),
                    json!({
                        "upstash-method": "POST", "upstash-forward-authorization": "Bearer sk-1",
                    }),
                ),
                "{\"model\":\"m\"}",
            ),
            entry(
                called(API, "POST"),
                json!({ "body": "{\"model\":\"m\"}", "headers": { "Authorization": "Bearer sk-1" } }),
            ),
        ),
        (
            "G38",
            Given("https://requestcatcher.com/child", over(call(), json!({ "upstash-method": "POST" })), "{\"a\":1}"),
            entry(called("https://requestcatcher.com/child", "POST"), json!({ "body": "{\"a\":1}" })),
        ),
        (
            "a timeout that was computed",
            Given("https://a.example/x", over(call(), json!({ "upstash-timeout": "3.3333333333333335" })), ""),
            entry(called("https://a.example/x", "GET"), json!({ "timeout": 3_333 })),
        ),
        (
            "another method",
            Given("https://a.example/x", over(call(), json!({ "upstash-method": "head" })), "null"),
            entry(called("https://a.example/x", "HEAD"), json!({})),
        ),
    ]);
}

#[test]
fn waits() {
    let lines: [Line<'_>; 3] = [
        ("upstash-workflow-runid", b"wfr_W"),
        ("upstash-workflow-calltype", b"step"),
        ("upstash-feature-set", F4.as_bytes()),
    ];
    let headers = json!({
        "Upstash-Workflow-RunId": ["wfr_W"], "Upstash-Workflow-Runid": ["wfr_W"],
        "Upstash-Forward-Upstash-Workflow-Sdk-Version": ["1"],
    });
    let cases = [
        ("G27", "my-event", json!({ "timeout": "10s" }), "Wait", "10s", 10_000),
        ("G27 with a slash", "ev/1", json!({ "timeout": "20s" }), "Wait", "20s", 20_000),
        ("G36", "evt_abc", json!({}), "WaitForWebhook", "7d", 604_800_000),
    ];
    for (id, event, timeout, kind, text, millis) in cases {
        let step = json!({ "stepId": 4, "stepType": kind, "stepName": "approval", "concurrent": 1 });
        let body = over(json!({ "url": U, "timeoutUrl": U, "timeoutHeaders": headers, "step": step }), timeout);
        let (run, wait) = wait::read(event, &lines, body.to_string().as_bytes(), &bounds()).unwrap();
        assert_eq!((run.id.as_str(), run.created_at), ("wfr_W", None), "{id}");
        assert_eq!((wait.event.as_str(), wait.timeout.as_str(), wait.timeout_ms), (event, text, millis), "{id}");
        assert_eq!(Value::Object(wait.step), step, "{id}");
        let kept: BTreeMap<String, Vec<String>> = wait.headers.into_iter().collect();
        assert_eq!(json!(kept), headers, "{id}");
    }
}

#[test]
fn old_clients_say_with_a_wait_how_its_end_is_delivered() {
    let lines: [Line<'_>; 2] = [("upstash-workflow-runid", b"wfr_W"), ("upstash-feature-set", F3.as_bytes())];
    let read = |headers: Value| {
        let step = json!({ "stepId": 4, "stepType": "Wait", "stepName": "approval", "concurrent": 1 });
        let body = json!({ "timeout": "1w", "timeoutHeaders": headers, "step": step });
        wait::read("e", &lines, body.to_string().as_bytes(), &bounds())
    };
    let said = json!({
        "Upstash-Workflow-RunId": ["wfr_W"], "Upstash-Retries": ["5"], "Upstash-Retry-Delay": ["1000"],
        "Upstash-Flow-Control-Key": ["k"], "Upstash-Flow-Control-Value": ["parallelism=2"],
        "Upstash-Failure-Callback": [U], "Upstash-Callback-Retries": ["5"], "Upstash-Forward-X-Tenant": ["t1"],
    });
    let (_, wait) = read(said).unwrap();
    let expected = json!({ "retries": 5, "retryDelay": "1000", "flow": ["k", 2, null, 1_000] });
    assert_eq!((terms_json(&wait.terms), wait.timeout_ms), (expected, 7 * 86_400_000));
    for (name, value, text) in [
        ("Upstash-Retries", "1000000", "quota maxRetries exceeded, current limit: 1000"),
        ("Upstash-Retry-Delay", "later", "Upstash-Retry-Delay: "),
        ("Upstash-Flow-Control-Value", "much", "Upstash-Flow-Control-Value: "),
    ] {
        let message = read(json!({ name: [value] })).err().map(|rejection| rejection.message).unwrap_or_default();
        assert!(message.starts_with(text), "{name}: {message}");
    }
}

#[test]
fn events_and_ends() {
    assert_eq!(notify::split("event-1"), None, "G09");
    assert_eq!(notify::split("wfr_W/event-1"), Some(("wfr_W", "event-1")), "G10");
    assert!(!runs::is_cancel(Some("cancel=false")).unwrap(), "G24, G34");
    assert!(runs::is_cancel(Some("cancel=true")).unwrap(), "G26");
    assert!(runs::is_cancel(None).unwrap());
    assert_eq!(runs::result(b""), None, "G24");
    assert_eq!(runs::result(b"\"ok\"").as_deref(), Some("\"ok\""), "G34");
}

#[test]
fn cancels() {
    let of_url = |url| RunFilter { urls: vec![url], ..RunFilter::default() };
    let of_ids =
        |ids: &[&str]| RunFilter { ids: ids.iter().map(|id| (*id).to_owned()).collect(), ..RunFilter::default() };
    let (all, url) = (RunFilter::default(), "https://requestcatcher.com/api//".to_owned());
    let dates = RunFilter {
        from: Some(Timestamp(1_640_995_200_000)),
        to: Some(Timestamp(1_672_531_200_000)),
        ..RunFilter::default()
    };
    let of_label = RunFilter { labels: vec!["x".to_owned()], ..of_url(UrlFilter::Exact(url.clone())) };
    const ENCODED: &str = "workflowUrl=https%3A%2F%2Frequestcatcher.com%2Fapi%2F%2F";
    let cases = [
        ("G01", "workflowRunIds=a".to_owned(), "", of_ids(&["a"]), usize::MAX),
        ("G02", "workflowRunIds=a&workflowRunIds=b".to_owned(), "", of_ids(&["a", "b"]), usize::MAX),
        ("G02 and more", "workflowRunIds=a&label=x&count=1".to_owned(), "", of_ids(&["a"]), usize::MAX),
        (
            "G03",
            format!("{ENCODED}&workflowUrlExactMatch=true&count=100"),
            "",
            of_url(UrlFilter::Exact(url.clone())),
            100,
        ),
        ("G04", format!("{ENCODED}&count=100"), "", of_url(UrlFilter::Prefix(url.clone())), 100),
        ("G05", format!("label=x&{ENCODED}&workflowUrlExactMatch=true&count=100"), "", of_label, 100),
        ("G06", "count=100".to_owned(), "", all.clone(), 100),
        ("G07", "fromDate=1640995200000&toDate=1672531200000&count=100".to_owned(), "", dates, 100),
        ("0.2.x ids", String::new(), r#"{"workflowRunIds":["a","b"]}"#, of_ids(&["a", "b"]), usize::MAX),
        (
            "0.2.x URL",
            String::new(),
            r#"{"workflowUrl":"https://requestcatcher.com/api//"}"#,
            of_url(UrlFilter::Prefix(url)),
            100,
        ),
        ("0.2.x all", String::new(), "{}", all, 100),
    ];
    for (id, query, body, filter, count) in cases {
        let params = Params::from_query_and_body(Some(&query), body.as_bytes()).unwrap();
        assert_eq!(runs::cancel_of(&params).unwrap(), (filter, count), "{id}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let without_step = over(call(), json!({ "upstash-callback-forward-upstash-workflow-stepid": "0" }));
    let invoke = json!({ "upstash-workflow-invoke": "true" });
    let deep = over(invoke.clone(), json!({ "upstash-forward-upstash-workflow-invoke-count": "100" }));
    let cases = [
        (over(base(), json!({ "upstash-retries": "1000000" })), 412, "quota maxRetries exceeded, current limit: 1000"),
        (over(trigger(), deep), 412, "quota maxWorkflowInvokeDepth exceeded, current limit: 100"),
        (over(trigger(), invoke), 400, "the body does not name the invoking step"),
        (over(trigger(), json!({ "upstash-label": "a b" })), 400, "Upstash-Label: \"a b\" has other characters"),
        (over(trigger(), json!({ "upstash-flow-control-key": "a/b" })), 400, "Upstash-Flow-Control-Key: \"a/b\""),
        (
            over(trigger(), json!({ "upstash-cron": "* * * * *" })),
            400,
            "Upstash-Cron: a schedule cannot start a run directly",
        ),
        (
            over(trigger(), json!({ "upstash-workflow-runid": "" })),
            400,
            "Upstash-Workflow-RunId must have 1 to 1024 bytes",
        ),
        (
            over(trigger(), json!({ "upstash-workflow-init": "yes" })),
            400,
            "Upstash-Workflow-Init: \"yes\" is not a boolean; accepted are true and false",
        ),
        (json!({ "upstash-workflow-init": "false" }), 400, "Upstash-Workflow-Runid: is missing"),
        (
            over(base(), json!({ "upstash-workflow-calltype": "fromCallback" })),
            400,
            "Upstash-Workflow-Calltype: only the server",
        ),
        (without_step, 400, "Upstash-Callback-Forward-Upstash-Workflow-Stepid: must name"),
        (over(call(), json!({ "upstash-method": "CONNECT" })), 400, "Upstash-Method: \"CONNECT\" is not a method"),
        (over(base(), json!({ "upstash-workflow-calltype": "toCallback" })), 400, "Upstash-Callback: is missing"),
        (over(base(), json!({ "upstash-retry-delay": "retried +" })), 400, "Upstash-Retry-Delay"),
    ];
    for (headers, code, text) in cases {
        let rejection = read(&Given(U, headers, "{}")).unwrap_err();
        assert_eq!(rejection.status.code(), code, "{rejection}");
        assert!(rejection.message.starts_with(text), "{rejection}");
    }
}
