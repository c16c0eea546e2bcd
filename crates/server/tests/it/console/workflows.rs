//! Pages about runs of workflows, on runs that a scripted endpoint executes.

use super::{Browser, expect_marked, expect_texts};
use crate::support::runs::{config, done, result, with_failure_function};
use crate::support::server::{READ_ONLY, TOKEN};
use crate::support::{Receiver, Reply, Setup, TestServer, eventually};
use posthaste_engine::workflow::run::RunConfig;
use serde_json::{Value, json};

const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&";
const ESCAPED: &str = "&lt;script&gt;alert(1)&lt;/script&gt;&quot;'&gt;&lt;img src=x onerror=alert(2)&gt;&amp;";

/// An endpoint that takes everything.
async fn endpoint() -> Receiver {
    let receiver = Receiver::start().await;
    receiver.script("/wf", [done()]);
    receiver
}

fn labelled(label: &str) -> RunConfig {
    RunConfig { labels: vec![label.to_owned()], ..config() }
}

fn waiting(event: &str) -> Value {
    json!({ "stepId": 2, "stepName": "approval", "stepType": "Wait", "waitEventId": event, "concurrent": 1 })
}

fn state_of(run: &Value) -> &str {
    run["workflowState"].as_str().expect("a state is a text")
}

async fn states(server: &TestServer) -> Vec<String> {
    let runs = server.runs("").await;
    runs.iter().map(|run| format!("{} {}", run["workflowRunId"].as_str().expect("an id"), state_of(run))).collect()
}

#[tokio::test]
async fn the_list_shows_the_state_of_runs_and_its_filters_are_in_the_url() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see("/console/workflows").await, &["No runs yet", "/v2/trigger/"]);
    server.start_run("wfr_waits", &receiver.url("/wf"), labelled("orders")).await;
    server.append_step("wfr_waits", &result(1, "charge")).await;
    server.wait_in("wfr_waits", "approved", waiting("approved")).await;
    server.start_run("wfr_done", &receiver.url("/wf"), labelled("mail")).await;
    server.finish_run("wfr_done").await;
    server.failed_run(&receiver, "wfr_failed", "/bad", config()).await;
    let all = browser.see("/console/workflows").await;
    let told = [
        "/console/workflows/runs/wfr_waits?createdAt=",
        "event approved, which times out in 1 h",
        "<td class=\"number tight\" title=\"1 of 2 known steps completed\">1 / 2</td>",
        "<span class=\"state good\">succeeded</span>",
        "<span class=\"state bad\">failed</span>",
        "500 Internal Server Error",
    ];
    expect_texts(&all, &told);
    for (query, expected) in [
        ("state=RUN_STARTED", [true, false, false]),
        ("state=STEP_FAILED", [false, false, true]),
        ("label=orders,mail", [true, true, false]),
        ("workflowRunId=wfr_done&label=", [false, true, false]),
        ("fromDate=2031-01-01T00:00:00", [false, false, false]),
    ] {
        let page = browser.see(&format!("/console/workflows?{query}")).await;
        let found = ["wfr_waits", "wfr_done", "wfr_failed"].map(|id| page.contains(&format!("/runs/{id}?")));
        assert_eq!(found, expected, "{query}");
        assert_eq!(page.contains("No runs match"), expected == [false; 3], "{query}");
    }
    let wrong = browser.see("/console/workflows?toDate=soon&label=orders").await;
    expect_texts(&wrong, &["is not a time; write it as", "name=\"label\" value=\"orders\""]);
    expect_texts(&Browser::of_tenant(&server, "tenant-b").see("/console/workflows").await, &["No runs yet"]);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_long_list_has_pages() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    for n in 0..32 {
        server.start_run(&format!("wfr_{n}"), &receiver.url("/wf"), config()).await;
    }
    let browser = Browser::open(&server);
    let first = browser.see("/console/workflows").await;
    assert_eq!(first.matches("aria-label=\"Select wfr_").count(), 30);
    let next = first.split("href=\"").find(|link| link.contains("cursor=")).and_then(|link| link.split('"').next());
    let second = browser.see(&next.expect("a link to the next page").replace("&amp;", "&")).await;
    assert_eq!(second.matches("aria-label=\"Select wfr_").count(), 2);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_run_shows_its_steps_and_takes_an_event() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    server.start_run("wfr_1", &receiver.url("/wf"), labelled("orders")).await;
    server.append_step("wfr_1", &result(1, "charge")).await;
    server.wait_in("wfr_1", "order/7", waiting("order/7")).await;
    let browser = Browser::open(&server);
    let page = browser.see("/console/workflows/runs/wfr_1").await;
    let told = [
        "Waiting for event order/7, which times out in 1 h.",
        "Entries 2 of 10\u{202f}000",
        "{&quot;order&quot;:7}",
        "charge",
        "wait for an event",
        "<svg class=\"bar\" viewBox=\"0 0 1000 12\"",
        "name=\"event\" required list=\"events\" value=\"order/7\"",
        "data-refresh=\"2000\"",
    ];
    expect_texts(&page, &told);
    assert!(!page.contains("style="), "the policy forbids it");
    let fields = [
        ("run", "wfr_1"),
        ("event", "order/7"),
        ("data", "{\"by\":\"Ann\"}"),
        ("next", "/console/workflows/runs/wfr_1"),
    ];
    assert_eq!(browser.press("/console/workflows/notify", &fields).await, "Sent order/7 to 1 run.");
    let again = browser.press("/console/workflows/notify", &fields).await;
    assert_eq!(again, "wfr_1 does not wait for order/7 yet. The event is stored until it does.");
    server.finish_run("wfr_1").await;
    let page = browser.see("/console/workflows/runs/wfr_1").await;
    expect_texts(&page, &["<span class=\"state good\">succeeded</span>", "<summary>Output", "&quot;ok&quot;"]);
    for gone in ["Waiting for", "id=\"notify\"", "data-refresh", ">Cancel<"] {
        assert!(!page.contains(gone), "{gone}");
    }
    let absent = browser.look("/console/workflows/runs/wfr_2").await;
    assert_eq!(absent.status, 404);
    expect_texts(&absent.text(), &["Run wfr_2 not found"]);
    server.finish().await;
}

#[tokio::test]
async fn a_scheduled_retry_of_a_step_can_start_now() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/wf", [Reply::status(500).with_body("{\"message\":\"no mail today\"}"), done()]);
    let config = RunConfig { retries: 1, retry_delay: Some("3600000".into()), ..config() };
    server.start_run("wfr_1", &receiver.url("/wf"), config).await;
    receiver.next().await;
    let run = eventually("it is retried", || async { server.runs("state=STEP_RETRY").await.into_iter().next() });
    let id = run.await["steps"][1]["steps"][0]["messageId"].as_str().expect("an id").to_owned();
    let browser = Browser::open(&server);
    let page = browser.see("/console/workflows/runs/wfr_1").await;
    let told = [
        "Waiting for attempt 2 of the next step in 1 h (last: 500 Internal Server Error: no mail today).",
        "Retry now",
        &format!("name=\"messageId\" value=\"{id}\""),
        "Failed attempts",
        "<rect class=\"failure\"",
    ];
    expect_texts(&page, &told);
    expect_texts(&page, &[&format!("href=\"/console/messages/{id}\"")]);
    // The message of a step leads to its run, and offers nothing that only its run can do.
    let message = browser.see(&format!("/console/messages/{id}")).await;
    let its_run = "This message is a step of a workflow. See <a href=\"/console/workflows/runs/wfr_1?createdAt=";
    expect_texts(&message, &["attempt 2 of 2 is due in 60 min", its_run, "Send now"]);
    for gone in [">Cancel<", "Copy as curl", "Publish again with curl"] {
        assert!(!message.contains(gone), "{gone}");
    }
    let fields = [("messageId", id.as_str()), ("next", "/console/workflows/runs/wfr_1")];
    assert_eq!(browser.press("/console/workflows/retry", &fields).await, "Starting now.");
    assert_eq!(receiver.next().await.header("Upstash-Retried"), Some("1"));
    server.finish_run("wfr_1").await;
    server.finish().await;
}

#[tokio::test]
async fn runs_are_cancelled_singly_by_selection_and_by_filter() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    for (id, label) in [("wfr_a", "x"), ("wfr_b", "x"), ("wfr_c", "y"), ("wfr_d", "y"), ("wfr_e", "z")] {
        server.start_run(id, &receiver.url("/wf"), labelled(label)).await;
    }
    let browser = Browser::open(&server);
    let next = ("next", "/console/workflows");
    assert_eq!(browser.press("/console/workflows/runs/wfr_e/cancel", &[next]).await, "Cancelled wfr_e.");
    for nothing in [&[next][..], &[("id", ""), next], &[("id", " "), next]] {
        let said = browser.press("/console/workflows/cancel", nothing).await;
        assert_eq!(said, "No runs are selected. Nothing was changed.", "and not everything");
    }
    let answer = browser.look("/console/workflows/question/ticked").await;
    assert_eq!((answer.status, answer.text().as_str()), (404, "No runs are selected. Nothing was changed."));
    let asked = browser.see("/console/workflows/question/ticked?id=wfr_a&id=wfr_b").await;
    assert!(asked.starts_with("Cancel 2 selected runs?"), "{asked}");
    let ticked = [("id", "wfr_c"), ("id", "wfr_e"), next];
    let said = browser.press("/console/workflows/cancel", &ticked).await;
    assert_eq!(said, "Cancelled 1 run. The others had already ended.");
    let asked = browser.see("/console/workflows/cancel?label=x").await;
    expect_texts(
        &asked,
        &["Label: x", "This cancels 2 running workflows.", "wfr_a", "wfr_b", "name=\"label\" value=\"x\""],
    );
    assert!(!asked.contains("wfr_d"), "it is another label's");
    let said = browser.press("/console/workflows/cancel-matching", &[("label", "x"), next]).await;
    assert_eq!(said, "Cancelled 2 runs.");
    let expected =
        ["wfr_e RUN_CANCELED", "wfr_d RUN_STARTED", "wfr_c RUN_CANCELED", "wfr_b RUN_CANCELED", "wfr_a RUN_CANCELED"];
    assert_eq!(states(&server).await, expected);
    for refused in ["messageId=msg_1", "state=STEP_RETRY"] {
        let page = browser.see(&format!("/console/workflows/cancel?{refused}")).await;
        assert!(page.contains("role=\"alert\"") && !page.contains("Cancel runs</button>"), "{refused}: {page}");
    }
    let fields = [("messageId", "msg_1"), next];
    browser.refused("/console/workflows/cancel-matching", &fields, 400).await;
    let all = browser.see("/console/workflows/cancel").await;
    expect_texts(&all, &["This cancels 1 running workflow."]);
    assert_eq!(browser.press("/console/workflows/cancel-matching", &[next]).await, "Cancelled 1 run.");
    server.finish().await;
}

#[tokio::test]
async fn failed_runs_are_resumed_restarted_and_deleted() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    let mut ids = Vec::new();
    for (n, label) in ["x", "x", "y", "y", "z"].into_iter().enumerate() {
        let failed = server.failed_run(&receiver, &format!("wfr_{n}"), &format!("/bad{n}"), labelled(label)).await;
        ids.push(failed["dlqId"].as_str().expect("an id").to_owned());
        receiver.script(&format!("/bad{n}"), [done()]);
    }
    let browser = Browser::open(&server);
    let page = browser.see("/console/workflows/failed").await;
    expect_texts(&page, &["wfr_4", "500: boom", "Resume", "Restart", "Delete", "<span class=\"quiet\">none</span>"]);
    let run = browser.see("/console/workflows/runs/wfr_4").await;
    let again = format!("name=\"dlqId\" value=\"{}\"", ids[4]);
    expect_texts(&run, &["Failed: 500 Internal Server Error", "Resume", "Restart", "Retry this step", &again]);
    let answer = browser.send("/console/workflows/failed/resume", &[("dlqId", &ids[4])]).await;
    let new = answer.header("location").expect("it leads to the new run").to_owned();
    assert!(new.starts_with("/console/workflows/runs/wfr_") && !new.contains("wfr_4?"), "{new}");
    expect_texts(&browser.see(&new).await, &["<span class=\"state busy\">running</span>"]);
    let next = ("next", "/console/workflows/failed");
    for nothing in [&[next][..], &[("dlqId", ""), next]] {
        let said = browser.press("/console/workflows/failed/delete", nothing).await;
        assert_eq!(said, "No failed runs are selected. Nothing was changed.", "and not everything");
    }
    let question = "/console/workflows/failed/question";
    let answer = browser.look(&format!("{question}/delete")).await;
    assert_eq!((answer.status, answer.text().as_str()), (404, "No failed runs are selected. Nothing was changed."));
    let asked = browser.see(&format!("{question}/delete?dlqId={}", ids[2])).await;
    assert!(asked.starts_with("Delete 1 selected failed run?"), "{asked}");
    let asked = browser.see(&format!("{question}/restart?matching=true")).await;
    assert!(asked.starts_with(&format!("Restart {} failed runs?", ids.len() - 1)), "{asked}");
    let ticked = [("dlqId", ids[2].as_str()), ("dlqId", ids[3].as_str()), next];
    assert_eq!(browser.press("/console/workflows/failed/restart", &ticked).await, "Restarted 2 failed runs.");
    let asked = browser.see("/console/workflows/failed/all?label=x").await;
    expect_texts(&asked, &["Label: x", "2 failed runs match.", "wfr_0", "wfr_1", "name=\"matching\" value=\"true\""]);
    let matching = [("label", "x"), ("matching", "true"), next];
    assert_eq!(browser.press("/console/workflows/failed/delete", &matching).await, "Deleted 2 failed runs.");
    assert_eq!(server.failed_runs("").await, Vec::<Value>::new());
    assert_eq!(server.runs("state=RUN_STARTED").await.len(), 3, "the new runs");
    expect_texts(&browser.see("/console/workflows/failed").await, &["<strong>No failed runs</strong>"]);
    let gone = browser.refused("/console/workflows/failed/resume", &[("dlqId", ids[0].as_str())], 404).await;
    expect_texts(&gone, &["not found"]);
    assert_eq!(browser.send("/console/workflows/failed/burn", &[next]).await.status, 404);
    server.finish_with_pending().await;
}

/// What the console can choose anew for a run that begins again, `retryDelay` aside.
const OTHERWISE: [(&str, &str); 7] = [
    ("withRetries", "2"),
    ("withRetryDelay", "3600000"),
    ("withLabel", "second,try"),
    ("withFlowKey", "gently"),
    ("withFlowRate", "7"),
    ("withFlowPeriod", "1m"),
    ("withFlowParallelism", "3"),
];

#[tokio::test]
async fn a_failed_run_is_resumed_with_other_settings() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/told", [Reply::status(200)]);
    let failed = server.failed_run(&receiver, "wfr_1", "/bad", labelled("first")).await;
    let dlq_id = failed["dlqId"].as_str().expect("an id").to_owned();
    let browser = Browser::open(&server);
    let page = browser.see("/console/workflows/runs/wfr_1").await;
    expect_texts(
        &page,
        &["Resume or restart with other settings", "Resume with these settings", "name=\"withRetries\""],
    );
    // What the API refuses, it says, and what was typed stays.
    let wrong = [("dlqId", dlq_id.as_str()), ("withRetries", "many"), ("withLabel", HOSTILE), ("next", "/console")];
    let page = browser.refused("/console/workflows/failed/resume", &wrong, 400).await;
    let refusal = server.post(&format!("/v2/workflows/dlq/resume/{dlq_id}")).header("Upstash-Retries", "many");
    let refusal = refusal.expect(400).await.json()["error"].as_str().expect("a text").replace('"', "&quot;");
    let value = format!("name=\"withLabel\" value=\"{ESCAPED}\"");
    let meant = format!("name=\"dlqId\" value=\"{dlq_id}\"");
    expect_texts(&page, &[&refusal, "<details open>", "value=\"many\"", &value, &meant]);
    assert_eq!(page.matches("name=\"withRetries\"").count(), 1, "once, or the old value would win");
    expect_marked(&page, "withRetries", "Upstash-Retries: ");
    assert_eq!(server.failed_runs("").await.len(), 1, "nothing has begun");

    let told = receiver.url("/told");
    let fields = [&OTHERWISE[..], &[("dlqId", &dlq_id), ("withFailureCallback", &told), ("withDelay", "10s")]].concat();
    let answer = browser.send("/console/workflows/failed/resume", &fields).await;
    let new = super::location(&answer).to_owned();
    let run = server.runs("state=RUN_STARTED").await.remove(0);
    assert_eq!((&run["labels"], &run["flowControlKey"]), (&json!(["second", "try"]), &json!("gently")));
    let step = &run["steps"][1]["steps"][0];
    assert_eq!((&step["retries"], &step["retryDelay"]), (&json!(2), &json!("3600000")));
    expect_texts(&browser.see(&new).await, &["Waiting for its start in 10 s.", "second", "gently"]);
    let key = server.get("/v2/flowControl/gently").expect(200).await.json();
    assert_eq!((&key["rateMax"], &key["ratePeriod"], &key["parallelismMax"]), (&json!(7), &json!(60), &json!(3)));
    let id = run["workflowRunId"].as_str().expect("an id");
    for attempt in 1..=3 {
        server.advance(if attempt == 1 { 10_000 } else { 2 * 3_600_000 }).await;
        let failed = || async {
            let run = server.runs(&format!("workflowRunId={id}")).await.remove(0);
            let errors = run["steps"][1]["steps"][0]["errors"].as_array().map_or(0, Vec::len);
            (errors == attempt).then_some(())
        };
        eventually("an attempt has failed", failed).await;
    }
    server.run_in(id, "RUN_FAILED").await;
    eventually("the failure callback is called", || async { (receiver.count() == 5).then_some(()) }).await;
    receiver.rewind();
    assert_eq!(receiver.take(5).await[4].target, "/told");
    server.finish().await;
}

#[tokio::test]
async fn many_failed_runs_are_restarted_with_other_settings() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    let mut ids = Vec::new();
    for (n, label) in ["x", "x", "y", "y"].into_iter().enumerate() {
        let failed = server.failed_run(&receiver, &format!("wfr_{n}"), &format!("/bad{n}"), labelled(label)).await;
        ids.push(failed["dlqId"].as_str().expect("an id").to_owned());
        receiver.script(&format!("/bad{n}"), [done()]);
    }
    let browser = Browser::open(&server);
    for page in ["/console/workflows/failed", "/console/workflows/failed/all?label=x"] {
        expect_texts(&browser.see(page).await, &["Resume or restart with other settings"]);
    }
    // Filters and settings of the same meaning are apart.
    let matching = [&OTHERWISE[..], &[("label", "x"), ("matching", "true")]].concat();
    assert_eq!(browser.press("/console/workflows/failed/restart", &matching).await, "Restarted 2 failed runs.");
    let ticked = [&OTHERWISE[..], &[("dlqId", ids[2].as_str()), ("dlqId", &ids[3])]].concat();
    assert_eq!(browser.press("/console/workflows/failed/resume", &ticked).await, "Resumed 2 failed runs.");
    let runs = server.runs("state=RUN_STARTED").await;
    assert_eq!(runs.len(), 4);
    for run in runs {
        assert_eq!((&run["labels"], &run["flowControlKey"]), (&json!(["second", "try"]), &json!("gently")), "{run}");
    }
    server.finish_with_pending().await;
}

#[tokio::test]
async fn all_matching_runs_are_resumed_once() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for n in 0..60 {
        server.failed_run(&receiver, &format!("wfr_{n}"), "/bad", labelled("x")).await;
    }
    let browser = Browser::open(&server);
    expect_texts(&browser.see("/console/workflows/failed/all?label=x").await, &["60 failed runs match."]);
    let matching = [("label", "x"), ("matching", "true")];
    assert_eq!(browser.press("/console/workflows/failed/resume", &matching).await, "Resumed 60 failed runs.");
    eventually("all have failed again", || async { (server.failed_runs("label=x").await.len() == 60).then_some(()) })
        .await;
    assert_eq!(receiver.count(), 120, "each was resumed once");
    server.finish().await;
}

#[tokio::test]
async fn a_failed_failure_callback_is_retried() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/told", [Reply::status(503).with_body("not now"), Reply::status(200).with_body("thanks")]);
    let config = with_failure_function(receiver.url("/told"));
    let failed = server.failed_run(&receiver, "wfr_1", "/bad", config).await;
    let told = |state: &'static str| {
        let query = format!("failureFunctionState={state}");
        let server = &server;
        async move {
            eventually(state, || async { server.failed_runs(&query).await.into_iter().next() }).await;
        }
    };
    told("CALLBACK_FAIL").await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see("/console/workflows/failed").await, &["Retry callback", ">failed</span>"]);
    expect_texts(&browser.see("/console/workflows/runs/wfr_1").await, &["Failure callback", "503", "not now"]);
    // Those without a failure callback, and those that a filter leaves out, are not meant.
    server.failed_run(&receiver, "wfr_2", "/bad", labelled("x")).await;
    let ask = "/console/workflows/failed/question/callback?matching=true";
    let asked = browser.see(ask).await;
    assert!(asked.starts_with("Retry the failure callback of 1 failed run?"), "{asked}");
    let succeeded = ("failureFunctionState", "CALLBACK_SUCCESS");
    assert_eq!(browser.look(&format!("{ask}&{}={}", succeeded.0, succeeded.1)).await.status, 404);
    let said = browser.press("/console/workflows/failed/callback", &[("matching", "true"), succeeded]).await;
    assert_eq!(said, "Retried the failure callback of 0 failed runs.");
    let fields = [("dlqId", failed["dlqId"].as_str().expect("an id")), ("next", "/console/workflows/failed")];
    let said = browser.press("/console/workflows/failed/callback", &fields).await;
    assert_eq!(said, "Retried the failure callback of 1 failed run.");
    told("CALLBACK_SUCCESS").await;
    expect_texts(&browser.see("/console/workflows/runs/wfr_1").await, &["Response body", "thanks"]);
    browser.refused("/console/workflows/failed/callback", &fields, 400).await;
    server.finish().await;
}

#[tokio::test]
async fn events_list_the_waiting_runs_and_reach_them() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see("/console/workflows/events").await, &["No event selected"]);
    for id in ["wfr_a", "wfr_b"] {
        server.start_run(id, &receiver.url("/wf"), config()).await;
        server.wait_in(id, "stock/full", waiting("stock/full")).await;
    }
    let page = browser.see("/console/workflows/events?event=stock/full").await;
    expect_texts(&page, &["/console/workflows/runs/wfr_a", "wfr_b", "in 1 h", "2 runs wait for it"]);
    let other = browser.see("/console/workflows/events?event=other").await;
    expect_texts(&other, &["No runs wait for other"]);
    let fields = [("event", "other"), ("run", ""), ("data", "")];
    let said = browser.press("/console/workflows/notify", &fields).await;
    assert_eq!(said, "No runs wait for other. Nothing was sent.");
    let fields = [("event", "stock/full"), ("run", ""), ("data", "")];
    assert_eq!(browser.press("/console/workflows/notify", &fields).await, "Sent stock/full to 2 runs.");
    browser.refused("/console/workflows/notify", &[("event", " ")], 400).await;
    browser.refused("/console/workflows/notify", &[("event", "e"), ("run", "wfr_unknown")], 404).await;
    server.finish_with_pending().await;
}

#[tokio::test]
async fn read_only_tokens_change_nothing_and_other_tenants_see_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    let receiver = endpoint().await;
    server.start_run("wfr_1", &receiver.url("/wf"), config()).await;
    server.wait_in("wfr_1", "e", waiting("e")).await;
    let failed = server.failed_run(&receiver, "wfr_2", "/bad", config()).await;
    let dlq_id = failed["dlqId"].as_str().expect("an id");
    let visitor = Browser::log_in(&server, READ_ONLY).await;
    let pages = ["", "/runs/wfr_1", "/runs/wfr_2", "/failed", "/failed/all", "/cancel", "/events?event=e"];
    for page in pages {
        let path = format!("/console/workflows{page}");
        let seen = visitor.see(&path).await;
        let (buttons, disabled) = (seen.matches("type=\"submit\"").count(), seen.matches("disabled title=").count());
        // Those that only look: filters, and who waits for an event.
        let looking = usize::from(seen.contains("method=\"get\""));
        assert_eq!(disabled + looking, buttons, "{page}: {seen}");
        assert_eq!(Browser::log_in(&server, TOKEN).await.see(&path).await.matches("disabled title=").count(), 0);
    }
    let acts: [(&str, &[(&str, &str)]); 7] = [
        ("/runs/wfr_1/cancel", &[]),
        ("/cancel", &[("id", "wfr_1")]),
        ("/cancel-matching", &[]),
        ("/failed/resume", &[("dlqId", dlq_id)]),
        ("/failed/delete", &[("matching", "true")]),
        ("/retry", &[("messageId", "msg_1")]),
        ("/notify", &[("event", "e")]),
    ];
    for (act, fields) in acts {
        visitor.refused(&format!("/console/workflows{act}"), fields, 403).await;
    }
    let other = Browser::log_in(&server, crate::support::server::TOKEN_B).await;
    for page in ["/runs/wfr_1", "/runs/wfr_2"] {
        assert_eq!(other.look(&format!("/console/workflows{page}")).await.status, 404, "{page}");
    }
    other.refused("/console/workflows/runs/wfr_1/cancel", &[], 404).await;
    other.refused("/console/workflows/failed/resume", &[("dlqId", dlq_id)], 404).await;
    assert_eq!(
        other.press("/console/workflows/cancel", &[("id", "wfr_1")]).await,
        "Cancelled 0 runs. The others had already ended."
    );
    assert_eq!(other.press("/console/workflows/cancel-matching", &[]).await, "Cancelled 0 runs.");
    assert_eq!(states(&server).await, ["wfr_2 RUN_FAILED", "wfr_1 RUN_STARTED"]);
    assert_eq!(server.failed_runs("").await.len(), 1);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn untrusted_content_is_text() {
    let server = TestServer::start().await;
    let receiver = endpoint().await;
    let id = format!("wfr_{HOSTILE}/..");
    let url = receiver.url("/wf") + "?q=<script>alert(1)</script>";
    server.start_run(&id, &url, config()).await;
    server
        .append_step(
            &id,
            &json!({ "stepId": 1, "stepName": HOSTILE, "stepType": HOSTILE, "out": HOSTILE, "concurrent": 1,
        "sleepFor": HOSTILE, "callUrl": { "x": HOSTILE }, "callMethod": [HOSTILE] }),
        )
        .await;
    server.wait_in(&id, HOSTILE, waiting(HOSTILE)).await;
    receiver.script("/bad", [Reply::status(500).with_body(HOSTILE).with_header("X-Bad", "<script>alert(1)</script>")]);
    server.start_run("wfr_bad", &receiver.url("/bad"), config()).await;
    server.run_in("wfr_bad", "RUN_FAILED").await;
    let browser = Browser::open(&server);
    let encoded = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let list = browser.see("/console/workflows").await;
    let link = list.split("href=\"").find(|link| link.contains("runs/wfr_%3Cscript")).expect("a link to the run");
    let run = browser.see(link.split('"').next().expect("it ends")).await;
    for page in [
        list,
        run,
        browser.see(&format!("/console/workflows/events?event={}", encoded(HOSTILE))).await,
        browser.see(&format!("/console/workflows?label={}&toDate={}", encoded(HOSTILE), encoded(HOSTILE))).await,
        browser.see(&format!("/console/workflows/cancel?label={}", encoded(HOSTILE))).await,
        browser.see(&format!("/console/workflows/failed/all?label={}", encoded(HOSTILE))).await,
        browser.see("/console/workflows/runs/wfr_bad").await,
        browser.see("/console/workflows/failed").await,
    ] {
        assert!(!page.contains("<script>") && !page.contains("<img src=x"), "{page}");
        assert!(page.contains(ESCAPED), "it is shown: {page}");
        assert!(!page.contains(" href=\"http"), "a stranger's URL is no link: {page}");
    }
    let fields = [("run", id.as_str()), ("event", HOSTILE)];
    let said = browser.press("/console/workflows/notify", &fields).await;
    assert!(said.starts_with("Sent ") && said.ends_with(" to 1 run."), "{said}");
    server.finish_with_pending().await;
}
