//! Tests the endpoint against a small server that keeps runs in memory and can misbehave.

use super::protocol::{RunKey, Script, trigger};
use super::*;
use crate::http::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

const STEPS: u32 = 3;
const MEASUREMENT: u32 = 7;

/// The fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// It parses JSON and writes it again.
    Normalises,
    /// Every delivery is made twice.
    Repeats,
    /// Its deliveries use another id than its responses.
    RenamesEntries,
    /// The newest entry comes first.
    Reverses,
    /// The first publish of a run gets a 500.
    RefusesOnce,
}

struct Fake {
    fault: Fault,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Entries by run: id and bytes.
    runs: HashMap<String, Vec<(String, Vec<u8>)>>,
    refused: bool,
    /// Headers of the elements that were not triggers.
    appended: Vec<Value>,
    ended: Vec<(String, String)>,
    /// The responses of the endpoint.
    answers: Vec<u16>,
}

/// The outcome of an element.
enum Taken {
    Refused,
    /// It existed already, with this id.
    Known(String),
    New(Delivery),
}

/// A pending delivery.
struct Delivery {
    url: String,
    run: String,
    id: String,
    array: Vec<u8>,
}

impl Fake {
    async fn start(fault: Fault) -> (Arc<Self>, String) {
        let fake = Arc::new(Self { fault, state: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shared = fake.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let fake = shared.clone();
                let service = service_fn(move |request| {
                    let fake = fake.clone();
                    async move { Ok::<_, Infallible>(fake.handle(request).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        (fake, base)
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if parts.method == Method::DELETE {
            assert_eq!(parts.uri.query(), Some("cancel=false"));
            let run = parts.uri.path().strip_prefix("/v2/workflows/runs/").unwrap().to_owned();
            let result = String::from_utf8(body.to_vec()).unwrap();
            self.state.lock().unwrap().ended.push((run, result));
            return Response::new("{}".into());
        }
        assert_eq!((parts.method, parts.uri.path()), (Method::POST, "/v2/batch"));
        assert_eq!(parts.headers["authorization"], "Bearer T");
        let batch: Vec<Value> = serde_json::from_slice(&body).unwrap();
        let mut ids = Vec::new();
        for element in &batch {
            match self.append(element) {
                Taken::New(delivery) => {
                    ids.push(json!({"messageId": delivery.id}));
                    tokio::spawn(self.clone().deliver(delivery));
                }
                Taken::Known(id) => ids.push(json!({"messageId": id, "deduplicated": true})),
                Taken::Refused => {
                    let mut refusal = Response::new(Full::default());
                    *refusal.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                    return refusal;
                }
            }
        }
        Response::new(Value::from(ids).to_string().into())
    }

    fn append(&self, element: &Value) -> Taken {
        let state = &mut *self.state.lock().unwrap();
        let headers = &element["headers"];
        let run = headers["upstash-workflow-runid"].as_str().unwrap().to_owned();
        if headers["upstash-workflow-init"] == "false" {
            if self.fault == Fault::RefusesOnce && !std::mem::replace(&mut state.refused, true) {
                return Taken::Refused;
            }
            state.appended.push(headers.clone());
        }
        let mut bytes = element["body"].as_str().unwrap().as_bytes().to_vec();
        if self.fault == Fault::Normalises {
            let mut step: Value = serde_json::from_slice(&bytes).unwrap();
            if let Some(out) = step["out"].as_str() {
                step["out"] = serde_json::from_str::<Value>(out).unwrap().to_string().into();
            }
            bytes = step.to_string().into_bytes();
        }
        let entries = state.runs.entry(run.clone()).or_default();
        if let Some((id, _)) = entries.iter().find(|(_, known)| *known == bytes) {
            return Taken::Known(id.clone());
        }
        let id = format!("msg_{run}_{}", entries.len());
        entries.push((id.clone(), bytes));
        let url = element["destination"].as_str().unwrap().to_owned();
        let entry = |(id, bytes): &(String, Vec<u8>)| {
            let id = if self.fault == Fault::RenamesEntries { format!("{id}_{}", entries.len()) } else { id.clone() };
            json!({"messageId": id, "body": STANDARD.encode(bytes), "callType": "step", "createdAt": 1})
        };
        let mut array: Vec<Value> = entries.iter().map(entry).collect();
        if self.fault == Fault::Reverses {
            array.reverse();
        }
        Taken::New(Delivery { url, run, id, array: Value::from(array).to_string().into_bytes() })
    }

    async fn deliver(self: Arc<Self>, Delivery { url, run, id, array }: Delivery) {
        let id = if self.fault == Fault::RenamesEntries {
            let last: Vec<Value> = serde_json::from_slice(&array).unwrap();
            last.last().unwrap()["messageId"].as_str().unwrap().to_owned()
        } else {
            id
        };
        let headers = [
            format!("Upstash-Workflow-RunId: {run}"),
            format!("Upstash-Message-Id: {id}"),
            "Upstash-Workflow-Sdk-Version: 1".to_owned(),
        ];
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let attempts = if self.fault == Fault::Repeats { 2 } else { 1 };
        let mut made = 0;
        while made < attempts {
            let (status, _) = post(&url, "", &headers, &array).await.unwrap();
            self.state.lock().unwrap().answers.push(status);
            // As the server does: retries after a 500.
            made += u32::from(status != 500);
        }
    }
}

/// Runs a measurement of this many runs on a server with this fault, until the tally satisfies `done`.
async fn measure(fault: Fault, script: Script, runs: u32, done: fn(&Tally) -> bool) -> (Arc<Fake>, Tally) {
    let (fake, server) = Fake::start(fault).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (host, _) = split_url(&server).unwrap();
    let endpoint = Endpoint::new(&listener, host, &["Authorization: Bearer T".into()], STEPS).unwrap();
    let endpoint = Arc::new(endpoint);
    let url = format!("{}{}", endpoint.base, script.path(MEASUREMENT));
    tokio::spawn(accept(listener, endpoint.clone()));
    let key = |number| RunKey { measurement: MEASUREMENT, number };
    let batch: Vec<Value> = (0..runs).map(|number| trigger(key(number), &url, now_ns())).collect();
    let batch = Value::from(batch).to_string();
    let (status, _) = post(&server, "/v2/batch", &["Authorization: Bearer T"], batch.as_bytes()).await.unwrap();
    assert_eq!(status, 200);
    let waited = async {
        loop {
            let tally = endpoint.ledger().tally(MEASUREMENT);
            if done(&tally) {
                return tally;
            }
            tokio::task::yield_now().await;
        }
    };
    let tally = tokio::time::timeout(Duration::from_secs(20), waited).await;
    (fake, tally.unwrap_or_else(|_| panic!("{fault:?}: {:?}", endpoint.ledger().tally(MEASUREMENT))))
}

#[tokio::test]
async fn every_run_takes_its_steps_in_order_and_ends_with_its_result() {
    const RUNS: u32 = 20;
    let (fake, tally) = measure(Fault::None, Script::Steps(STEPS), RUNS, |tally| tally.ended == 20).await;
    assert_eq!((tally.deliveries, tally.steps), (80, 60));
    assert_eq!((tally.repeated, tally.wrong, tally.errors, tally.failed), (0, 0, 0, 0), "{tally:?}");
    assert!(tally.seconds > 0.0 && tally.took.is_some());
    let mut state = fake.state.lock().unwrap();
    state.ended.sort();
    let expected: Vec<(String, String)> = (0..RUNS)
        .map(|number| RunKey { measurement: MEASUREMENT, number })
        .map(|key| (key.id(), protocol::result(key)))
        .collect();
    assert_eq!(state.ended, expected);
    let ids = |run: &Vec<(String, Vec<u8>)>| -> Vec<Value> {
        run[1..].iter().map(|(_, bytes)| serde_json::from_slice::<Value>(bytes).unwrap()["stepId"].clone()).collect()
    };
    for (run, entries) in &state.runs {
        assert_eq!(ids(entries), [1, 2, 3], "{run}");
    }
    let base = &state.appended[0];
    for (name, value) in [
        ("upstash-workflow-init", "false"),
        ("upstash-workflow-sdk-version", "1"),
        ("upstash-forward-upstash-workflow-sdk-version", "1"),
        ("upstash-feature-set", "LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig"),
        ("upstash-method", "POST"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(base[name], value, "{name}");
    }
    assert_eq!(base["upstash-workflow-url"].as_str().unwrap().split_once("/steps/").unwrap().1, "00000007");
}

#[tokio::test]
async fn a_sleeper_publishes_its_delay_and_waits() {
    let (fake, tally) = measure(Fault::None, Script::Sleep, 1, |tally| tally.steps == 1 && tally.wrong == 1).await;
    assert_eq!(fake.state.lock().unwrap().appended[0]["upstash-delay"], "604800s");
    assert!(tally.first_problem.unwrap().contains("woken up"), "this server delivers at once");
}

#[tokio::test]
async fn a_wrong_server_is_noticed_and_the_run_is_not_continued() {
    let cases = [
        (Fault::Normalises, "entry 1 is"),
        (Fault::RenamesEntries, "entry 0 was"),
        (Fault::Reverses, "the last entry of the delivery"),
    ];
    for (fault, expected) in cases {
        let (fake, tally) = measure(fault, Script::Steps(STEPS), 1, |tally| tally.wrong > 0).await;
        assert_eq!((tally.wrong, tally.ended), (1, 0), "{fault:?}");
        let problem = tally.first_problem.unwrap();
        assert!(problem.contains(expected), "{fault:?}: {problem}");
        let answered = async {
            while !fake.state.lock().unwrap().answers.contains(&489) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), answered).await.expect("it is told to stop");
    }
}

#[tokio::test]
async fn repeated_deliveries_are_counted_and_end_a_run_once() {
    let (_, tally) = measure(Fault::Repeats, Script::Steps(STEPS), 1, |tally| tally.repeated == 4).await;
    assert_eq!((tally.deliveries, tally.steps, tally.ended, tally.wrong), (8, 3, 1, 0), "{tally:?}");
}

#[tokio::test]
async fn a_rejected_publish_is_an_error_and_is_repeated() {
    let (fake, tally) = measure(Fault::RefusesOnce, Script::Steps(STEPS), 1, |tally| tally.ended == 1).await;
    assert_eq!((tally.errors, tally.repeated, tally.deliveries), (1, 1, 5), "{tally:?}");
    assert!(fake.state.lock().unwrap().answers.contains(&500));
}

#[tokio::test]
async fn a_failed_run_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Arc::new(Endpoint::new(&listener, "127.0.0.1:1", &[], STEPS).unwrap());
    tokio::spawn(accept(listener, endpoint.clone()));
    let url = format!("{}{}", endpoint.base, Script::Steps(STEPS).path(MEASUREMENT));
    let (status, _) = post(&url, "", &["Upstash-Workflow-Is-Failure: true"], b"{}").await.unwrap();
    assert_eq!(status, 200);
    let shown = crate::http::get_ok(&endpoint.base, "/_tally?run=7").await.unwrap();
    let tally: Tally = serde_json::from_slice(&shown).unwrap();
    assert_eq!((tally.failed, tally.deliveries), (1, 1));
}
