//! What starts runs, and how the generations of clients say it.

use super::{
    F3, Given, SDK, U, base, bounds, call, called, check, failure, flags, over, shown, trigger, without_nothing,
};
use crate::api::publish::Line;
use crate::api::workflow::translate::{self, Item, Wanted};
use bytes::Bytes;
use serde_json::{Value, json};

#[test]
fn triggers() {
    let all = json!({
        "upstash-forward-x-tenant": "t1", "upstash-retries": "1", "upstash-retry-delay": "1000",
        "upstash-label": "a,b", "upstash-forward-upstash-label": "a,b", "upstash-delay": "1s",
        "upstash-flow-control-key": "k", "upstash-flow-control-value": "parallelism=2, rate=3, period=1m",
        "upstash-redact-fields": "body,header[Authorization]",
        "upstash-failure-callback": "https://other.example/failed",
        "upstash-failure-callback-retries": "1", "upstash-failure-callback-retry-delay": "1000",
        "upstash-failure-callback-flow-control-key": "k", "upstash-failure-callback-flow-control-value": "rate=3",
        "upstash-failure-callback-forward-x-tenant": "t1", "upstash-failure-callback-forward-upstash-label": "a,b",
    });
    check(vec![
        (
            "G11 one",
            Given(U, over(trigger(), failure()), "{\"order\":7}"),
            json!({
                "start": "wfr_W", "url": U, "run": { "failure": { "url": U, "headers": flags() } },
                "first": { "body": "{\"order\":7}", "headers": { SDK: "1" } },
            }),
        ),
        (
            "G11 with everything",
            Given(U, over(over(trigger(), failure()), all), "text"),
            json!({
                "start": "wfr_W", "url": U,
                "run": {
                    "labels": ["a", "b"], "headers": { "X-Tenant": "t1" }, "retries": 1, "retryDelay": "1000",
                    "flow": ["k", 2, 3, 60_000], "redact": { "body": true, "headers": ["Authorization"] },
                    "failure": {
                        "url": "https://other.example/failed", "retries": 1, "retryDelay": "1000",
                        "flow": ["k", null, 3, 1_000],
                        "headers": over(flags(), json!({ "X-Tenant": "t1", "Upstash-Label": "a,b" })),
                    },
                },
                "first": { "body": "text", "headers": { SDK: "1" }, "dueIn": 1_000 },
            }),
        ),
        (
            "in a queue, and with a deduplication id",
            Given(U, over(trigger(), json!({ "upstash-queue-name": "q", "upstash-deduplication-id": "d" })), ""),
            json!({ "start": "wfr_W", "url": U, "run": { "isUnique": true }, "first": { "headers": { SDK: "1" } } }),
        ),
        (
            "G11 at a time, and without a body or a name",
            Given(U, json!({ "Upstash-Workflow-Init": "true", "Upstash-Not-Before": "1767225605" }), ""),
            json!({
                "start": "wfr_fresh", "url": U, "first": { "headers": { SDK: "1" }, "dueIn": 5_000 },
            }),
        ),
    ]);
}

#[test]
fn triggers_of_other_kinds() {
    check(vec![
        (
            "G24 trigger",
            Given(
                U,
                over(
                    trigger(),
                    json!({
                        "upstash-label": "l", "upstash-forward-upstash-workflow-invoke-count": "2",
                    }),
                ),
                "",
            ),
            json!({
                "start": "wfr_W", "url": U, "run": { "labels": ["l"], "depth": 2 },
                "first": { "headers": { SDK: "1", "Upstash-Workflow-Invoke-Count": "2" } },
            }),
        ),
        (
            "self-trigger, with all that the endpoint has received",
            Given(
                U,
                over(
                    trigger(),
                    json!({
                        "content-type": "text/plain", "upstash-forward-host": "app",
                        "upstash-forward-content-length": "5",
                        "upstash-forward-connection": "keep-alive", "upstash-forward-accept-encoding": "gzip",
                        "upstash-forward-user-agent": "curl", "upstash-forward-authorization": "Bearer u",
                        "upstash-forward-upstash-signature": "s", "upstash-forward-content-type": "text/html",
                        "upstash-forward-upstash-message-id": "msg_1", "upstash-forward-upstash-label": "kept",
                    }),
                ),
                "hello",
            ),
            json!({
                "start": "wfr_W", "url": U, "run": { "labels": ["kept"], "headers": { "Authorization": "Bearer u" } },
                "first": { "contentType": "text/plain", "body": "hello", "headers": { SDK: "1" } },
            }),
        ),
        (
            "an unknown client",
            Given(U, over(trigger(), json!({ "upstash-forward-upstash-workflow-unknown-sdk": "true" })), ""),
            json!({
                "start": "wfr_W", "url": U, "run": { "trigger": "unknownClient" },
                "first": { "headers": { SDK: "1", "Upstash-Workflow-Unknown-Sdk": "true" } },
            }),
        ),
        (
            "G25",
            Given(
                U,
                over(
                    trigger(),
                    json!({
                        "upstash-workflow-trigger-by-sdk": "true", "upstash-forward-upstash-message-id": "msg_1",
                        "upstash-forward-upstash-retried": "0", "upstash-forward-upstash-workflow-unknown-sdk": "true",
                    }),
                ),
                "decoded",
            ),
            json!({
                "start": "wfr_W", "url": U, "run": { "byClient": true },
                "first": { "body": "decoded", "headers": { SDK: "1" } },
            }),
        ),
    ]);
}

#[test]
fn invokes() {
    const CHILD: &str = "https://requestcatcher.com/child";
    let headers = over(
        trigger(),
        json!({
            "upstash-workflow-runid": "wfr_C", "upstash-workflow-url": CHILD, "upstash-workflow-invoke": "true",
            "upstash-forward-upstash-workflow-invoke-count": "1", "upstash-forward-x": "y",
        }),
    );
    let by = |body: &str, created_at: Value| {
        json!({
            "run": "wfr_P", "createdAt": created_at, "url": U, "headers": { SDK: "1" }, "body": body,
            "step": { "stepId": 2, "stepName": "analyse", "stepType": "Invoke", "concurrent": 1 },
        })
    };
    let started = |body: &str, created_at: Value, labels: Value| {
        without_nothing(json!({
            "start": "wfr_C", "url": CHILD,
            "run": { "headers": { "X": "y" }, "depth": 1, "labels": labels, "invokedBy": by(body, created_at) },
            "first": { "body": body, "headers": { SDK: "1", "Upstash-Workflow-Invoke-Count": "1" } },
        }))
    };
    let envelope = |more: Value| {
        let headers = json!({
            "Upstash-Workflow-Init": ["false"], "Upstash-Workflow-RunId": ["wfr_P"],
            "Upstash-Workflow-Runid": ["wfr_P"],
            "Upstash-Forward-Upstash-Workflow-Sdk-Version": ["1"], "Upstash-Forward-Host": ["app"],
            "content-type": ["application/json"],
        });
        let step = json!({ "stepId": 2, "stepName": "analyse", "stepType": "Invoke", "concurrent": 1 });
        let envelope = json!({ "headers": headers, "workflowRunId": "wfr_P", "workflowUrl": U, "step": step });
        over(envelope, more).to_string()
    };
    let at = json!(1_767_225_600_000_u64);
    check(vec![
        (
            "G37 object",
            Given(CHILD, headers.clone(), &envelope(json!({ "body": "{\"doc\":42}", "workflowRunCreatedAt": at }))),
            started("{\"doc\":42}", at.clone(), json!([])),
        ),
        (
            "G37 string, of a client that knows no instance",
            Given(CHILD, headers.clone(), &envelope(json!({ "body": "text", "workflowRunCreatedAt": 0 }))),
            started("text", Value::Null, json!([])),
        ),
        (
            "G37 no body, with a label",
            Given(
                CHILD,
                over(headers.clone(), json!({ "upstash-label": "l" })),
                &envelope(json!({ "workflowRunCreatedAt": at })),
            ),
            started("", at.clone(), json!(["l"])),
        ),
        (
            "of an old client, which says how the result is to be delivered",
            Given(CHILD, headers, &{
                let said = json!({
                    "Upstash-Retries": ["5"], "upstash-flow-control-key": ["k"],
                    "upstash-flow-control-value": ["rate=3,period=1m"],
                    "Upstash-Forward-Upstash-Workflow-Sdk-Version": ["1"],
                });
                envelope(json!({ "body": "text", "workflowRunCreatedAt": at, "headers": said }))
            }),
            {
                let mut expected = started("text", at, json!([]));
                expected["run"]["invokedBy"]["terms"] = json!({ "retries": 5, "flow": ["k", null, 3, 60_000] });
                expected
            },
        ),
    ]);
}

#[test]
fn runs_triggered_over_rest() {
    let shown = |headers: &[(&str, &str)]| {
        let lines: Vec<Line<'_>> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let item = Item { url: U, lines: &lines, body: Bytes::from_static(b"{}") };
        let run = translate::triggered(item, &bounds()).unwrap_or_else(|rejection| panic!("{rejection}"));
        shown(&Wanted::Start(Box::new(run)))
    };
    let first = json!({ "body": "{}", "headers": { SDK: "1" } });
    let plain = json!({
        "start": "wfr_fresh", "url": U, "first": first,
        "run": { "trigger": "rest", "failure": { "url": U, "headers": flags() } },
    });
    assert_eq!(shown(&[]), plain);
    let chosen = [
        ("Upstash-Workflow-RunId", "mine"),
        ("Upstash-Forward-X", "y"),
        ("Upstash-Retries", "0"),
        ("Upstash-Label", "l"),
        ("Upstash-Delay", "5s"),
        ("Upstash-Failure-Callback", "https://other.example/f"),
        ("Upstash-Failure-Callback-Forward-Z", "z"),
    ];
    let expected = json!({
        "start": "mine", "url": U, "first": over(first.clone(), json!({ "dueIn": 5_000 })),
        "run": {
            "trigger": "rest", "retries": 0, "labels": ["l"], "headers": { "X": "y" },
            "failure": { "url": "https://other.example/f", "headers": over(flags(), json!({ "Z": "z" })) },
        },
    });
    assert_eq!(shown(&chosen), expected);
    for name in ["Upstash-Workflow-Unknown-Sdk", "Upstash-Forward-Upstash-Workflow-Unknown-Sdk"] {
        let unknown = shown(&[(name, "true")]);
        assert_eq!(unknown["run"]["trigger"], "unknownClient");
        assert_eq!(unknown["first"]["headers"], json!({ SDK: "1", "Upstash-Workflow-Unknown-Sdk": "true" }));
    }
}

#[test]
fn generations_of_the_wire() {
    let step = r#"{"stepId":1,"stepName":"a","stepType":"Run","out":"null","concurrent":1,"targetStep":0}"#;
    let said_each_time = json!({
        "upstash-feature-set": F3, "upstash-retries": "2", "upstash-callback-retries": "2",
        "upstash-forward-x-tenant": "t1", "upstash-forward-content-length": "99", "upstash-forward-host": "app",
        "upstash-failure-callback": U, "upstash-failure-callback-retries": "2",
        "upstash-failure-callback-forward-upstash-workflow-is-failure": "true",
        "upstash-failure-callback-forward-host": "app", "upstash-flow-control-key": "k",
        "upstash-flow-control-value": "rate=1",
    });
    let failure = json!({ "url": U, "retries": 2, "headers": { "Upstash-Workflow-Is-Failure": "true" } });
    check(vec![
        (
            "JavaScript 0.2.x step",
            Given(U, over(base(), said_each_time.clone()), step),
            json!({ "append": "wfr_W", "entry": {
                "body": step, "headers": { "X-Tenant": "t1", SDK: "1" }, "retries": 2, "flow": ["k", null, 1, 1_000],
                "failure": failure,
            } }),
        ),
        (
            // What it says of the run it says of the callback, so the failure URL is a callback's callback; and what is
            // said about that, twice.
            "JavaScript 0.2.x call as the first step of a run with a failure function",
            Given(
                "https://a.example/x",
                over(
                    call(),
                    json!({
                        "upstash-feature-set": "WF_NoDelete,InitialBody", "upstash-callback-retries": "2",
                        "upstash-callback-failure-callback": U,
                        "upstash-callback-failure-callback-retries": "2", "upstash-failure-callback-retries": "2",
                        "upstash-callback-failure-callback-workflow-runid": "wfr_W",
                        "upstash-failure-callback-workflow-runid": "wfr_W",
                        "upstash-callback-failure-callback-workflow-calltype": "failureCall",
                        "upstash-callback-failure-callback-feature-set": F3,
                        "upstash-callback-failure-callback-forward-upstash-workflow-is-failure": "true",
                        "upstash-failure-callback-forward-upstash-workflow-is-failure": "true",
                        "upstash-callback-failure-callback-forward-host": "app",
                    }),
                ),
                "",
            ),
            json!({ "append": "wfr_W", "entry": {
                "callType": "toCallback", "retries": 0, "failure": failure,
                "call": over(called("https://a.example/x", "GET"), json!({ "resultRetries": 2 })),
            } }),
        ),
        (
            "JavaScript 0.2.x and Python 2.0 trigger",
            Given(U, over(trigger(), said_each_time), "{}"),
            json!({
                "start": "wfr_W", "url": U, "first": { "body": "{}", "headers": { SDK: "1" } },
                "run": {
                    "features": F3, "headers": { "X-Tenant": "t1" }, "retries": 2, "flow": ["k", null, 1, 1_000],
                    "failure": failure,
                },
            }),
        ),
        (
            "JavaScript 1.0 to 1.1 step, with the headers of the user",
            Given(U, over(base(), json!({ "upstash-forward-x-tenant": "t1" })), step),
            json!({ "append": "wfr_W", "entry": { "body": step, "headers": { "X-Tenant": "t1", SDK: "1" } } }),
        ),
    ]);
}

#[test]
fn other_languages() {
    let python_call = over(
        call(),
        json!({
            "upstash-callback-retries": "3", "upstash-callback-forward-host": "app", "upstash-callback-forward-x": "y",
            "upstash-callback-forward-upstash-workflow-sdk-version": "1",
        }),
    );
    let mut python_called = called("https://a.example/x", "GET");
    python_called["resultRetries"] = 3.into();
    python_called["resultHeaders"]["X"] = "y".into();
    check(vec![
        (
            "Python 2.0 without a failure function",
            Given(
                U,
                over(
                    trigger(),
                    json!({
                        "upstash-feature-set": F3, "upstash-failure-callback-forward-x": "y",
                        "upstash-failure-callback-forward-host": "app",
                    }),
                ),
                "",
            ),
            json!({
                "start": "wfr_W", "url": U, "run": { "features": F3 }, "first": { "headers": { SDK: "1" } },
            }),
        ),
        (
            "Python 2.0 call",
            Given("https://a.example/x", python_call, "null"),
            json!({ "append": "wfr_W", "entry": { "callType": "toCallback", "retries": 0, "call": python_called } }),
        ),
        (
            "Go",
            Given(
                U,
                json!({
                    "Upstash-Workflow-Init": ["true"], "Upstash-Workflow-Runid": ["mine"], "Upstash-Workflow-Url": [U],
                    "Upstash-Feature-Set": ["LazyFetch", "InitialBody"], "Content-Type": ["application/json"],
                    "Upstash-Forward-Upstash-Workflow-Sdk-Version": ["1"],
                }),
                "{}",
            ),
            json!({
                "start": "mine", "url": U, "run": { "features": "LazyFetch,InitialBody" },
                "first": { "body": "{}", "headers": { SDK: "1" } },
            }),
        ),
    ]);
}
