//! The endpoint of workflow runs in this process: speaks the invocation protocol without an SDK, and records what it
//! executes and what the server accepted of that.
//!
//! `/SCRIPT/KEY` executes the run `wfr_KEY`; [`Script`] says what that does. Every entry of a delivery is compared with
//! what was published. Start at [`Endpoint::visit`].

use crate::client::Client;
use crate::history::{Execution, History, Micros};
use crate::witness::Witness;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What an official client says it can do.
const FEATURES: &str = "LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig";
/// How long an endpoint that got no answer waits for another server before it fails.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a wait lasts when its event does not come.
const WAIT: &str = "1s";

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// Three steps, one after the other.
    Steps,
    /// Two steps beside one another, and one behind them.
    Branches,
    /// A step that sleeps between two others.
    Nap,
    /// A wait for the event of the run's name, and a step.
    Wait,
    /// A step, and one that always throws.
    Broken,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Run,
    Sleep,
    Wait,
    Throw,
}

impl Script {
    pub(crate) const ALL: [Script; 5] = [Script::Steps, Script::Branches, Script::Nap, Script::Wait, Script::Broken];

    fn name(self) -> &'static str {
        match self {
            Script::Steps => "steps",
            Script::Branches => "branches",
            Script::Nap => "nap",
            Script::Wait => "wait",
            Script::Broken => "broken",
        }
    }

    /// Its groups of steps, one after the other; those of one group run beside one another.
    pub(crate) fn groups(self) -> &'static [&'static [Kind]] {
        match self {
            Script::Steps => &[&[Kind::Run], &[Kind::Run], &[Kind::Run]],
            Script::Branches => &[&[Kind::Run, Kind::Run], &[Kind::Run]],
            Script::Nap => &[&[Kind::Run], &[Kind::Sleep], &[Kind::Run]],
            Script::Wait => &[&[Kind::Wait], &[Kind::Run]],
            Script::Broken => &[&[Kind::Run], &[Kind::Throw]],
        }
    }

    /// How many attempts may follow the first of each delivery. What always throws is soon given up.
    pub(crate) fn retries(self) -> u32 {
        if self == Script::Broken { 1 } else { 20 }
    }

    /// The steps that it executes, by number.
    pub(crate) fn steps(self) -> impl Iterator<Item = (u32, Kind)> {
        (1..).zip(self.groups().iter().copied().flatten().copied())
    }
}

/// The name of a run.
pub(crate) fn run_id(key: &str) -> String {
    format!("wfr_{key}")
}

/// Whether the run's own application sends the event that it waits for; of the others some get it from elsewhere, early.
fn is_notified(key: &str) -> bool {
    key.bytes().last().is_some_and(|digit| digit % 2 == 0)
}

/// What the run with this key is started with.
fn payload(key: &str) -> String {
    format!(r#"{{ "key" :"{key}" }}"#)
}

/// The text of a step: odd spaces, so that who reads it and writes it anew changes it.
fn step(key: &str, number: u32, kind: Kind, concurrent: usize) -> String {
    let (name, more) = match kind {
        Kind::Run | Kind::Throw => ("Run", format!(r#","out" :"{key} œ {number}""#)),
        Kind::Sleep => ("SleepFor", r#","sleepFor":1"#.to_owned()),
        Kind::Wait => ("Wait", String::new()),
    };
    format!(r#"{{"stepId":{number}, "stepName":"s{number}","stepType":"{name}","concurrent":{concurrent}{more}}}"#)
}

fn plan(number: u32, concurrent: usize) -> String {
    format!(r#"{{"stepId":0,"stepName":"p","stepType":"Run","concurrent":{concurrent},"targetStep":{number}}}"#)
}

/// One element of a delivery.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    message_id: String,
    body: String,
    call_type: String,
}

/// What an entry is, if it is what was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Plan(u32),
    Result(u32),
}

/// What a delivery asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// To announce the steps of this group, the first of which has this number.
    Plan(u32, usize),
    /// To execute a step of a group of this size.
    Step(u32, Kind, usize),
    Finish,
    Nothing,
}

pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    witness: Arc<Witness>,
    client: Client,
    /// The newest server.
    pub(crate) server: watch::Sender<Option<SocketAddr>>,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    executions: Vec<Execution>,
    /// Runs whose function has returned, and when the server took that.
    finished: HashMap<String, Option<Micros>>,
    /// Runs that somebody was told have failed.
    told_of_failure: HashSet<String>,
    /// Runs of which something came that was never published.
    corrupt: HashSet<String>,
}

impl Endpoint {
    pub(crate) fn start(witness: Arc<Witness>) -> Arc<Endpoint> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a listener for the runtime");
        let address = listener.local_addr().expect("an address");
        let listener = TcpListener::from_std(listener).expect("a runtime");
        let (server, record) = (watch::Sender::new(None), Mutex::default());
        let endpoint = Arc::new(Endpoint { address, witness, client: Client::new(), server, record });
        tokio::spawn(accept(endpoint.clone(), listener));
        endpoint
    }

    /// Adds what was executed.
    pub(crate) fn tell(&self, history: &mut History) {
        let Record { executions, finished, told_of_failure, corrupt } = &*self.record();
        history.executions = executions.clone();
        history.finished = finished.clone();
        history.told_of_failure = told_of_failure.clone();
        history.corrupt_runs = corrupt.clone();
    }

    pub(crate) fn url(&self, script: Script, key: &str) -> String {
        format!("http://{}/{}/{key}", self.address, script.name())
    }

    /// The batch that starts a run.
    pub(crate) fn trigger(&self, script: Script, key: &str) -> String {
        let (id, url) = (run_id(key), self.url(script, key));
        json!([{"destination": url, "body": payload(key), "headers": {
            "content-type": "application/json",
            "upstash-method": "POST",
            "upstash-workflow-init": "true",
            "upstash-workflow-runid": id,
            "upstash-workflow-url": url,
            "upstash-workflow-sdk-version": "1",
            "upstash-forward-upstash-workflow-sdk-version": "1",
            "upstash-feature-set": FEATURES,
            "upstash-retries": script.retries().to_string(),
            "upstash-retry-delay": "50",
            "upstash-failure-callback": url,
            "upstash-failure-callback-retries": "20",
            "upstash-failure-callback-workflow-runid": id,
            "upstash-failure-callback-workflow-init": "false",
            "upstash-failure-callback-workflow-url": url,
            "upstash-failure-callback-workflow-calltype": "failureCall",
            "upstash-failure-callback-feature-set": FEATURES,
            "upstash-failure-callback-forward-upstash-workflow-is-failure": "true",
            "upstash-failure-callback-forward-upstash-workflow-failure-callback": "true",
        }}])
        .to_string()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no handler panics")
    }

    /// A delivery: what comes next is executed and published, and only then is it answered.
    async fn visit(&self, began_us: Micros, script: Script, key: &str, headers: &HeaderMap, body: &[u8]) -> u16 {
        if headers.contains_key("upstash-workflow-is-failure") {
            self.record().told_of_failure.insert(key.to_owned());
            return 200;
        }
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_its = header("upstash-workflow-runid") == run_id(key);
        let lines = read(script, key, header("upstash-message-id"), body).filter(|_| is_its);
        let Some(lines) = lines else {
            self.record().corrupt.insert(key.to_owned());
            return 500;
        };
        match next(script, &lines) {
            Next::Nothing => 200,
            Next::Plan(first, size) => {
                let plans = (first..).take(size).map(|number| (plan(number, size), 0)).collect();
                self.append(script, key, plans).await.unwrap_or(500)
            }
            Next::Step(number, kind, size) => self.execute(began_us, script, key, (number, kind, size)).await,
            Next::Finish => self.finish(key).await,
        }
    }

    async fn execute(
        &self,
        began_us: Micros,
        script: Script,
        key: &str,
        (number, kind, size): (u32, Kind, usize),
    ) -> u16 {
        let index = {
            let executions = &mut self.record().executions;
            executions.push(Execution { key: key.to_owned(), step: number, began_us, accepted_us: None });
            executions.len() - 1
        };
        let text = step(key, number, kind, size);
        let answer = match kind {
            Kind::Throw => return 500,
            Kind::Wait => self.wait(script, key, &text).await,
            Kind::Sleep => self.append(script, key, vec![(text, 1)]).await,
            Kind::Run => self.append(script, key, vec![(text, 0)]).await,
        };
        if answer == Some(200) {
            self.record().executions[index].accepted_us = Some(self.witness.now_us());
            if kind == Kind::Wait && is_notified(key) {
                // Should it get lost, the wait ends by itself.
                let _heard = self.ask(Method::POST, &format!("/v2/notify/{key}"), &[], key.to_owned()).await;
            }
        }
        // A run that has ended needs nothing more.
        answer.map_or(500, |_| 200)
    }

    /// Appends steps, each delivered after so many seconds; says what the server says, if that is an answer.
    async fn append(&self, script: Script, key: &str, steps: Vec<(String, u32)>) -> Option<u16> {
        let url = self.url(script, key);
        let element = |(text, seconds): (String, u32)| {
            let mut headers = json!({
                "content-type": "application/json",
                "upstash-method": "POST",
                "upstash-workflow-init": "false",
                "upstash-workflow-runid": run_id(key),
                "upstash-workflow-url": url,
                "upstash-workflow-sdk-version": "1",
                "upstash-forward-upstash-workflow-sdk-version": "1",
                "upstash-feature-set": FEATURES,
            });
            if seconds > 0 {
                headers["upstash-delay"] = format!("{seconds}s").into();
            }
            json!({ "destination": url, "body": text, "headers": headers })
        };
        let batch = Value::from(steps.into_iter().map(element).collect::<Vec<_>>());
        self.ask(Method::POST, "/v2/batch", &[], batch.to_string()).await
    }

    async fn wait(&self, script: Script, key: &str, text: &str) -> Option<u16> {
        let (id, url) = (run_id(key), self.url(script, key));
        let headers = json!({
            "Upstash-Workflow-Init": ["false"],
            "Upstash-Workflow-RunId": [id],
            "Upstash-Workflow-Url": [url],
            "Upstash-Forward-Upstash-Workflow-Sdk-Version": ["1"],
            "Upstash-Workflow-CallType": ["step"],
        });
        let step: Value = serde_json::from_str(text).expect("a step is JSON");
        let body = json!({"url": url, "timeout": WAIT, "timeoutUrl": url, "timeoutHeaders": headers, "step": step});
        let named = [("upstash-workflow-runid", id), ("upstash-workflow-calltype", "step".to_owned())];
        self.ask(Method::POST, &format!("/v2/wait/{key}"), &named, body.to_string()).await
    }

    async fn finish(&self, key: &str) -> u16 {
        self.record().finished.entry(key.to_owned()).or_default();
        let target = format!("/v2/workflows/runs/{}?cancel=false", run_id(key));
        let answer = self.ask(Method::DELETE, &target, &[], format!("\"{key}\"")).await;
        if answer == Some(200) {
            let now_us = self.witness.now_us();
            self.record().finished.entry(key.to_owned()).or_default().get_or_insert(now_us);
        }
        answer.unwrap_or(500)
    }

    /// 200 if the server took it, 400 if the run has ended, nothing if it must be tried again.
    async fn ask(&self, method: Method, target: &str, headers: &[(&str, String)], body: String) -> Option<u16> {
        let mut servers = self.server.subscribe();
        let server = *servers.borrow_and_update();
        let answer = match server {
            Some(server) => self.client.send(method, server, target, headers, body.into()).await,
            None => None,
        };
        match answer.map(|answer| answer.status) {
            Some(200..300) => Some(200),
            Some(400) => Some(400),
            Some(_) => None,
            None => {
                // The server is gone, or this is not the one that asks. Either way the next one has to try again.
                drop(tokio::time::timeout(PATIENCE, servers.changed()).await);
                None
            }
        }
    }
}

/// The entries behind the first, if all are what was published and the last is the one that is delivered.
fn read(script: Script, key: &str, message_id: &str, body: &[u8]) -> Option<Vec<Line>> {
    let entries: Vec<Entry> = serde_json::from_slice(body).ok()?;
    let (first, rest) = entries.split_first()?;
    let is_step = entries.iter().all(|entry| entry.call_type == "step");
    let is_last = entries.last().is_some_and(|last| last.message_id == message_id);
    if !is_step || !is_last || STANDARD.decode(&first.body).ok()? != payload(key).as_bytes() {
        return None;
    }
    rest.iter().map(|entry| line(script, key, &STANDARD.decode(&entry.body).ok()?)).collect()
}

fn line(script: Script, key: &str, text: &[u8]) -> Option<Line> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let number = |name: &str| value[name].as_u64().map(|number| number as u32);
    if let Some(target) = number("targetStep") {
        let size = script.groups().iter().map(|group| group.len()).max()?;
        return (text == plan(target, size).as_bytes()).then_some(Line::Plan(target));
    }
    let id = number("stepId")?;
    let (kind, size) = kind_of(script, id)?;
    let is_right = match kind {
        // The server writes it: what the event brought, or that none came.
        Kind::Wait => {
            value["waitEventId"] == key && (value["out"] == STANDARD.encode(key) || value["waitTimeout"] == true)
        }
        Kind::Run | Kind::Sleep | Kind::Throw => text == step(key, id, kind, size).as_bytes(),
    };
    is_right.then_some(Line::Result(id))
}

/// What a step does, and how many its group has.
fn kind_of(script: Script, number: u32) -> Option<(Kind, usize)> {
    let mut steps = script.groups().iter().flat_map(|group| group.iter().map(|kind| (*kind, group.len())));
    steps.nth(number.checked_sub(1)? as usize)
}

/// What the function does next when it is replayed with these.
fn next(script: Script, lines: &[Line]) -> Next {
    let mut first = 1;
    for group in script.groups() {
        let numbers = first..first + group.len() as u32;
        let is_own =
            |line: &&Line| matches!(line, Line::Plan(number) | Line::Result(number) if numbers.contains(number));
        let shown = lines.iter().filter(is_own).count();
        match (group.len(), shown) {
            (1, 0) => return Next::Step(first, group[0], 1),
            (1, _) => {}
            (size, 0) => return Next::Plan(first, size),
            (size, shown) if shown < 2 * size => {
                return match lines.last() {
                    Some(Line::Plan(number)) => Next::Step(*number, group[(number - first) as usize], size),
                    _ => Next::Nothing,
                };
            }
            _ => {}
        }
        first = numbers.end;
    }
    Next::Finish
}

async fn accept(endpoint: Arc<Endpoint>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let endpoint = endpoint.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(endpoint.clone(), request));
            // A sender that is killed breaks its connection: nothing to report.
            drop(auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn answer(endpoint: Arc<Endpoint>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let began_us = endpoint.witness.now_us();
    let (head, body) = request.into_parts();
    let mut response = Response::new(Full::default());
    let named = head.uri.path().trim_start_matches('/').split_once('/');
    let found =
        named.and_then(|(name, key)| Some((Script::ALL.into_iter().find(|script| script.name() == name)?, key)));
    let status = match (found, body.collect().await) {
        // A sender that dies does not end what it has begun: it goes on, as in an application.
        (Some((script, key)), Ok(body)) => {
            let (endpoint, key, headers) = (endpoint.clone(), key.to_owned(), head.headers.clone());
            let visit = async move { endpoint.visit(began_us, script, &key, &headers, &body.to_bytes()).await };
            tokio::spawn(visit).await.unwrap_or(500)
        }
        _ => 404,
    };
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert("upstash-workflow-sdk-version", HeaderValue::from_static("1"));
    Ok(response)
}

#[test]
fn a_replay_says_what_comes_next() {
    let cases = [
        (Script::Steps, vec![], Next::Step(1, Kind::Run, 1)),
        (Script::Steps, vec![Line::Result(1), Line::Result(2), Line::Result(3)], Next::Finish),
        (Script::Branches, vec![], Next::Plan(1, 2)),
        (Script::Branches, vec![Line::Plan(1), Line::Plan(2)], Next::Step(2, Kind::Run, 2)),
        (Script::Branches, vec![Line::Plan(1), Line::Plan(2), Line::Result(2)], Next::Nothing),
        (
            Script::Branches,
            vec![Line::Plan(1), Line::Plan(2), Line::Result(2), Line::Result(1)],
            Next::Step(3, Kind::Run, 1),
        ),
        (Script::Broken, vec![Line::Result(1)], Next::Step(2, Kind::Throw, 1)),
    ];
    for (script, lines, expected) in cases {
        assert_eq!(next(script, &lines), expected, "{script:?} {lines:?}");
    }
}

#[test]
fn only_what_was_published_is_read() {
    let entry = |id: &str, text: &str| json!({"messageId": id, "body": STANDARD.encode(text), "callType": "step"});
    let body = |text: &str| Value::from(vec![entry("m0", &payload("k")), entry("m1", text)]).to_string();
    let right = step("k", 1, Kind::Run, 1);
    let read = |script, id, text: &str| read(script, "k", id, body(text).as_bytes());
    assert_eq!(read(Script::Steps, "m1", &right), Some(vec![Line::Result(1)]));
    assert_eq!(read(Script::Steps, "m0", &right), None, "another entry is delivered");
    assert_eq!(read(Script::Steps, "m1", &right.replace(' ', "")), None, "it was written anew");
    assert_eq!(read(Script::Steps, "m1", &step("other", 1, Kind::Run, 1)), None, "another run's");
    assert_eq!(read(Script::Branches, "m1", &plan(2, 2)), Some(vec![Line::Plan(2)]));
    let waited = r#"{"stepId":1,"waitEventId":"k","waitTimeout":true}"#;
    assert_eq!(read(Script::Wait, "m1", waited), Some(vec![Line::Result(1)]));
    assert_eq!(read(Script::Wait, "m1", &waited.replace("true", "false")), None);
}
