//! `/v2/workflows/logs` and `/v2/workflows/events`: runs with their steps, and what happened to them.

use super::workflow_runs::Runs;
use crate::support::runs::{config, done, result};
use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer};
use posthaste_engine::message::FlowSpec;
use posthaste_engine::workflow::run::RunConfig;
use posthaste_wire::redact::RedactFields;
use serde_json::{Value, json};

fn ids(runs: &[Value]) -> Vec<&str> {
    runs.iter().map(|run| run["workflowRunId"].as_str().expect("a run has an id")).collect()
}

/// All pages of a list, one by one.
async fn pages(server: &TestServer, path: &str, list: &str) -> Vec<Vec<Value>> {
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let answer = server.get(&format!("{path}{cursor}")).expect(200).await.json();
        pages.push(answer[list].as_array().expect("a list").clone());
        match answer.get("cursor") {
            Some(next) => cursor = format!("&cursor={}", next.as_str().expect("a cursor is text")),
            None => return pages,
        }
    }
}

#[tokio::test]
async fn a_run_is_followed_from_its_trigger_to_its_end() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [done()]);
        let url = receiver.url("/wf");
        server.start_run("wfr_1", &url, config()).await;
        receiver.next().await;
        server.advance(1_000).await;
        server.append_step("wfr_1", &result(1, "charge")).await;
        receiver.next().await;
        server.advance(1_000).await;
        server.finish_run("wfr_1").await;

        let run = server.run_in("wfr_1", "RUN_SUCCESS").await;
        let step = |seconds: u64, fields: Value| {
            let mut step = json!({
                "messageId": "<message>",
                "callType": "step",
                "concurrent": 1,
                "retries": 0,
                "state": "STEP_SUCCESS",
                "createdAt": START_MS + seconds * 1_000,
                "headers": {},
            });
            step.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            json!({ "type": "sequential", "steps": [step] })
        };
        let headers = json!({ "Content-Type": ["application/json"], "Upstash-Workflow-Sdk-Version": ["1"] });
        let init = json!({ "stepName": "init", "stepType": "Initial", "out": "{\"order\":7}", "headers": headers });
        let charge = json!({ "stepId": 1, "stepName": "charge", "stepType": "Run", "out": "1" });
        let expected = json!({
            "workflowRunId": "wfr_1",
            "workflowUrl": url,
            "workflowState": "RUN_SUCCESS",
            "workflowRunCreatedAt": START_MS,
            "workflowRunCompletedAt": START_MS + 2_000,
            "workflowRunResponse": "\"ok\"",
            "workflowRunCallerIp": "127.0.0.1",
            "steps": [step(0, init), step(1, charge)],
        });
        let answer = server.get("/v2/workflows/events?groupBy=workflowRunId").token(READ_ONLY).expect(200).await;
        let mut shown = answer.redacted();
        let execution = shown["runs"][0]["steps"][1]["steps"][0]["execution"].take();
        assert_eq!(execution["attempts"], 1);
        assert!(execution.get("duration").is_none_or(|duration| *duration == "<ms>"), "if it was answered in time");
        let started_at = execution["startedAt"].as_u64().expect("a time");
        assert!((START_MS - 60_000..=START_MS + 2_000).contains(&started_at), "when it was executed: {started_at}");
        shown["runs"][0]["steps"][1]["steps"][0].as_object_mut().expect("a step").remove("execution");
        assert_eq!(shown, json!({ "runs": [expected] }), "no cursor behind the last page");
        assert_eq!(answer.json()["runs"], json!([run]), "the same by both names");

        let lines = server.get("/v2/workflows/events?unknown=1").expect(200).await.json();
        let told: Vec<String> = lines["events"]
            .as_array()
            .expect("events")
            .iter()
            .map(|line| format!("{} {}", line["time"].as_u64().expect("a time") - START_MS, line["state"]))
            .collect();
        let newest_first = ["2000 \"RUN_SUCCESS\"", "1000 \"STEP_SUCCESS\"", "0 \"STEP_SUCCESS\"", "0 \"RUN_STARTED\""];
        assert_eq!(told, newest_first);
        assert_eq!(server.events("").await, Vec::<Value>::new(), "steps are no messages of the logs");
        let other = server.get("/v2/workflows/logs").token(TOKEN_B).expect(200).await.json();
        assert_eq!(other, json!({ "runs": [] }), "another tenant");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_name_may_have_several_runs() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [done()]);
        for _ in 0..3 {
            server.start_run("wfr_1", &receiver.url("/wf"), config()).await;
            server.finish_run("wfr_1").await;
            server.advance(1_000).await;
        }
        let created = |runs: &[Value]| -> Vec<u64> {
            runs.iter().map(|run| run["workflowRunCreatedAt"].as_u64().expect("a time") - START_MS).collect()
        };
        assert_eq!(created(&server.runs("workflowRunId=wfr_1").await), [2_000, 1_000, 0]);
        let query = format!("workflowRunId=wfr_1&workflowCreatedAt={}", START_MS + 1_000);
        assert_eq!(created(&server.runs(&query).await), [1_000]);
        let query = format!("workflowRuns=wfr_1@{START_MS},wfr_1@{}&workflowRunId=wfr_x", START_MS + 2_000);
        assert_eq!(created(&server.runs(&query).await), [2_000, 0], "these win over other filters");
        let query = format!("workflowRuns=wfr_1@{START_MS}&state=RUN_FAILED,STEP_RETRY");
        assert_eq!(created(&server.runs(&query).await), [0], "over states, too");
        let lines = server.get(&format!("/v2/workflows/events?{query}")).expect(200).await.json();
        assert_eq!(lines["events"].as_array().map(Vec::len), Some(3), "{lines}");
        server.finish().await;
    }
}

#[tokio::test]
async fn filters_select_runs() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/a", [done()]);
        receiver.script("/b", [Reply::status(500)]);
        let flow = FlowSpec { key: "mail".into(), parallelism: Some(5), rate: None, period_ms: 1_000 };
        let labels = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect();
        let configs = [
            ("wfr_ok", "/a", RunConfig { labels: labels(&["red", "first"]), ..config() }),
            ("wfr_failed", "/b", RunConfig { labels: labels(&["blue"]), flow: Some(flow), ..config() }),
            ("wfr_open", "/a", RunConfig { caller_ip: "10.0.0.4".into(), ..config() }),
        ];
        for (id, path, config) in configs {
            server.start_run(id, &receiver.url(path), config).await;
            receiver.next().await;
            server.advance(1_000).await;
        }
        server.finish_run("wfr_ok").await;
        server.run_in("wfr_failed", "RUN_FAILED").await;
        let message = server.runs("workflowRunId=wfr_open").await[0]["steps"][0]["steps"][0]["messageId"].clone();
        let (host, url) = (receiver.address(), receiver.url("/b"));
        let cases: Vec<(String, &[&str])> = vec![
            (String::new(), &["wfr_open", "wfr_failed", "wfr_ok"]),
            ("label=red".into(), &["wfr_ok"]),
            ("label=first,blue".into(), &["wfr_failed", "wfr_ok"]),
            ("label=red&label=blue&state=RUN_FAILED".into(), &["wfr_failed"]),
            ("label=purple".into(), &[]),
            (format!("workflowUrl={url}"), &["wfr_failed"]),
            ("workflowUrl=http".into(), &[]),
            ("path=/a".into(), &["wfr_open", "wfr_ok"]),
            (format!("host={host}&path=/b"), &["wfr_failed"]),
            ("flowControlKey=mail".into(), &["wfr_failed"]),
            ("callerIp=10.0.0.4".into(), &["wfr_open"]),
            (format!("messageId={}", message.as_str().expect("an id")), &["wfr_open"]),
            ("messageId=msg_unknown".into(), &[]),
            ("state=RUN_STARTED".into(), &["wfr_open"]),
            ("state=RUN_SUCCESS,RUN_FAILED".into(), &["wfr_failed", "wfr_ok"]),
            ("state=STEP_FAILED".into(), &["wfr_failed"]),
            ("state=STEP_SUCCESS&count=2".into(), &["wfr_open", "wfr_failed"]),
            ("state=RUN_SUCCESS,STEP_FAILED".into(), &["wfr_failed", "wfr_ok"]),
            ("state=RUN_SUCCESS&state=STEP_RETRY".into(), &["wfr_ok"]),
            ("state=RUN_SUCCESS,STEP_FAILED&label=red".into(), &["wfr_ok"]),
            ("state=STEP_RETRY".into(), &[]),
            (format!("fromDate={}", START_MS + 1_000), &["wfr_open", "wfr_failed"]),
            (format!("toDate={}", START_MS + 1_000), &["wfr_failed", "wfr_ok"]),
        ];
        for (query, expected) in cases {
            assert_eq!(ids(&server.runs(&query).await), expected, "{query}");
        }
        for wrong in ["label=", "state=FAILED", "fromDate=yesterday", "workflowRuns=wfr_a", "cursor=x", "count=0"] {
            server.get(&format!("/v2/workflows/logs?{wrong}")).expect(400).await.error();
            server.get(&format!("/v2/workflows/events?{wrong}")).expect(400).await.error();
        }
        server.get("/v2/workflows/events?groupBy=messageId").expect(400).await.error();
        let failed = server.get("/v2/workflows/events?state=STEP_FAILED,RUN_FAILED").expect(200).await.json();
        assert_eq!(ids(failed["events"].as_array().expect("events")), ["wfr_failed", "wfr_failed"]);
        server.finish_run("wfr_open").await;
        server.finish().await;
    }
}

#[tokio::test]
async fn pages_of_runs_and_of_lines_miss_nothing() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [done()]);
        let mut newest_first = Vec::new();
        for n in 0..12 {
            let id = format!("wfr_{n}");
            server.start_run(&id, &receiver.url("/wf"), config()).await;
            server.append_step(&id, &result(1, "a")).await;
            server.finish_run(&id).await;
            newest_first.insert(0, id);
            // Some are of the same millisecond.
            server.advance(n % 2).await;
        }
        for (count, sizes) in [("", vec![10, 2]), ("count=100", vec![10, 2]), ("count=5", vec![5, 5, 2])] {
            let pages = pages(&server, &format!("/v2/workflows/logs?{count}"), "runs").await;
            assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{count}");
            assert_eq!(ids(&pages.concat()), newest_first);
        }
        let whole = pages(&server, "/v2/workflows/events?", "events").await.concat();
        assert_eq!(whole.len(), 12 * 4);
        let runs: Vec<&str> = ids(&whole).chunks(4).map(|lines| lines[0]).collect();
        assert_eq!(runs, newest_first, "run by run");
        for count in [1, 3, 7] {
            let pages = pages(&server, &format!("/v2/workflows/events?count={count}"), "events").await;
            assert!(pages.iter().all(|page| page.len() <= count));
            assert_eq!(pages.concat(), whole, "{count} at a time");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn bodies_are_cut_and_hidden_as_asked() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/wf", [done()]);
    let redact = RedactFields::parse("body").expect("a field");
    server.start_run("wfr_hidden", &receiver.url("/wf"), RunConfig { redact, ..config() }).await;
    server.start_run("wfr_shown", &receiver.url("/wf"), config()).await;
    let out = async |query: &str| server.runs(query).await[0]["steps"][0]["steps"][0].get("out").cloned();
    assert_eq!(out("workflowRunId=wfr_shown").await, Some(json!("{\"order\":7}")));
    assert_eq!(out("workflowRunId=wfr_shown&trimBody=4").await, Some(json!("{\"or")));
    assert_eq!(out("workflowRunId=wfr_shown&trimBody=-1").await, None);
    let hidden = out("workflowRunId=wfr_hidden").await.expect("something is shown");
    assert!(hidden.as_str().is_some_and(|text| text.starts_with("REDACTED:") && text.len() == 73), "{hidden}");
    for id in ["wfr_hidden", "wfr_shown"] {
        server.finish_run(id).await;
    }
    server.finish().await;
}

#[tokio::test]
async fn a_plain_step_hides_its_own_result_and_no_other() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [done()]);
        let url = receiver.url("/wf");
        server.start_run("wfr_1", &url, config()).await;
        receiver.next().await;
        for (number, out, hides) in [(1, "canary", true), (2, "in the open", false)] {
            let body = json!({ "stepId": number, "stepName": "s", "stepType": "Run", "out": out, "concurrent": 1 });
            let mut headers = json!({ "upstash-workflow-init": "false", "upstash-workflow-runid": "wfr_1" });
            if hides {
                headers["upstash-redact-fields"] = "body".into();
            }
            let step = json!({ "destination": url, "body": body.to_string(), "headers": headers });
            server.batch(json!([step])).expect(200).await;
            receiver.next().await;
        }
        server.finish_run("wfr_1").await;
        for what in ["logs", "events"] {
            let text = server.get(&format!("/v2/workflows/{what}")).expect(200).await.text();
            assert!(!text.contains("canary") && text.contains("REDACTED:"), "{what}: {text}");
            assert!(text.contains("in the open"), "only the step that asks for it is hidden; {what}: {text}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_run_tells_how_much_it_has_of_what_it_may_have() {
    let mut setup = Setup::dev();
    setup.settings.workflow_max_steps = Some(50);
    setup.settings.workflow_max_duration = Some("1d".into());
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    receiver.script("/wf", [done()]);
    server.start_run("wfr_1", &receiver.url("/wf"), config()).await;
    let usage = async |query: &str| server.runs(query).await[0].get("usage").cloned();
    let before = usage("usage=true").await.expect("it was asked for");
    let bytes = before["bytes"].as_u64().expect("a number");
    assert!(bytes >= 11, "its payload has so many");
    let expected = |entries: u32, bytes: u64| json!({ "entries": entries, "maxEntries": 50, "bytes": bytes, "maxBytes": 104_857_600, "maxDuration": 86_400_000 });
    assert_eq!(before, expected(1, bytes));
    let step = result(1, "a");
    server.append_step("wfr_1", &step).await;
    let after = usage("usage=true").await.expect("it was asked for");
    let grown = after["bytes"].as_u64().expect("a number");
    assert!(grown >= bytes + step.to_string().len() as u64, "{before} {after}");
    assert_eq!(after, expected(2, grown));
    assert_eq!(usage("").await, None, "clients do not expect it");
    assert_eq!(usage("usage=false").await, None);
    server.get("/v2/workflows/logs?usage=perhaps").expect(400).await.error();
    server.finish_run("wfr_1").await;
    server.finish().await;
}
