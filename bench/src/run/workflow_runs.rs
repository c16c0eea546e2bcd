//! Starts the runs of a measurement, waits for them, and checks their results at the server.

use super::scenario::AUTHORIZATION;
use super::workflow_apps::{App, Door};
use crate::clock::{now_ns, seconds_between};
use crate::http::{Connection, split_url};
use crate::load::excerpt;
use crate::workflow::Tally;
use crate::workflow::protocol::{RunKey, Script, payload, request, result, trigger};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;

/// Runs that one batch starts.
const BATCH_RUNS: u32 = 100;
/// Connections that send batches.
const BATCH_CONNECTIONS: u32 = 4;
/// Connections that start single runs.
const SINGLE_CONNECTIONS: u32 = 64;
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait without progress before unfinished runs count as lost.
const STALL: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);
/// Runs on a page of the server's log.
const PAGE: u32 = 10;

/// The runs of one measurement.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) measurement: u32,
    pub(super) runs: u32,
    script: Script,
    /// `address:port` of the server.
    host: String,
    door: Door,
}

impl Start {
    /// A measurement that has not started.
    pub(super) fn new(app: &App, script: Script, runs: u32) -> Result<Self> {
        let (host, _) = split_url(&app.target.child.base)?;
        let (host, door) = (host.to_owned(), app.door.clone());
        Ok(Self { measurement: (now_ns() / 1_000_000) as u32, runs, script, host, door })
    }

    /// URL of the runs, for [`Door::Batch`].
    fn url(&self) -> Option<String> {
        match &self.door {
            Door::Batch { application } => Some(format!("{application}{}", self.script.path(self.measurement))),
            Door::Ingress { .. } => None,
        }
    }

    /// Starts these runs. Returns when the server has accepted all of them.
    pub(super) async fn start(&self, numbers: Range<u32>) -> Result<()> {
        let connections = if self.url().is_some() { BATCH_CONNECTIONS } else { SINGLE_CONNECTIONS };
        let next = Arc::new(AtomicU32::new(numbers.start));
        let mut starters = JoinSet::new();
        for _ in 0..connections {
            starters.spawn(self.clone().connection(numbers.end, next.clone()));
        }
        let all = async {
            while let Some(done) = starters.join_next().await {
                done.context("a connection ended early")??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(START_TIMEOUT, all).await.context("the runs were not started in time")?
    }

    async fn connection(self, until: u32, next: Arc<AtomicU32>) -> Result<()> {
        let each = if self.url().is_some() { BATCH_RUNS } else { 1 };
        let mut connection = Connection::open(&self.host).await?;
        loop {
            let first = next.fetch_add(each, Relaxed);
            if first >= until {
                return Ok(());
            }
            let numbers = first..until.min(first + each);
            let (status, body) = connection.call(&self.request(numbers.clone())).await?;
            if !(200..300).contains(&status) {
                bail!("starting runs was answered {status}: {}", excerpt(&body));
            }
            self.check(numbers, &body)?;
        }
    }

    /// The request that starts these runs.
    fn request(&self, numbers: Range<u32>) -> Vec<u8> {
        let keys = numbers.map(|number| RunKey { measurement: self.measurement, number });
        let sent_ns = now_ns();
        let (path, body) = match (&self.door, self.url()) {
            (Door::Ingress { path }, _) => (path.as_str(), keys.map(|key| payload(key, sent_ns)).collect()),
            (Door::Batch { .. }, url) => {
                let url = url.unwrap_or_default();
                let elements: Vec<Value> = keys.map(|key| trigger(key, &url, sent_ns)).collect();
                ("/v2/batch", Value::from(elements).to_string())
            }
        };
        request("POST", path, &self.host, &[AUTHORIZATION.to_owned()], "application/json", body.as_bytes())
    }

    /// Checks that the response to a batch names an entry for each run, and that each run is new.
    fn check(&self, numbers: Range<u32>, body: &[u8]) -> Result<()> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Started {
            message_id: String,
            #[serde(default)]
            deduplicated: bool,
        }
        if self.url().is_none() {
            return Ok(());
        }
        let started: Vec<Started> =
            serde_json::from_slice(body).with_context(|| format!("unexpected answer to a batch: {}", excerpt(body)))?;
        let ids: HashSet<&str> =
            started.iter().filter(|one| !one.deduplicated).map(|one| one.message_id.as_str()).collect();
        if ids.len() != numbers.len() {
            bail!("a batch of {} runs started {}: {}", numbers.len(), ids.len(), excerpt(body));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Rewarded,
    /// There was no progress for [`STALL`].
    Lost,
}

/// Waits until the application's tally is complete, or until there is no more progress.
pub(super) async fn wait_for(app: &mut App, start: &Start, done: impl Fn(&Tally) -> bool) -> Result<Patience> {
    let (mut seen, mut since_ns) = ((0, 0, 0), now_ns());
    loop {
        let tally = app.tally(start.measurement).await?;
        if done(&tally) {
            return Ok(Patience::Rewarded);
        }
        let now = (tally.deliveries, tally.steps, tally.ended);
        if now != seen {
            (seen, since_ns) = (now, now_ns());
        }
        if seconds_between(since_ns, now_ns()) > STALL.as_secs_f64() {
            return Ok(Patience::Lost);
        }
        app.check_alive()?;
        tokio::time::sleep(POLL).await;
    }
}

/// A page of the server's log of runs.
#[derive(Deserialize)]
struct Page {
    runs: Vec<Listed>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    workflow_run_id: String,
    workflow_state: String,
    #[serde(default)]
    workflow_run_response: Option<String>,
}

/// How many of the runs the server lists as succeeded. With `with_result`, the result must also be the one that the
/// native endpoint returned.
pub(super) async fn count_succeeded(start: &Start, with_result: bool) -> Result<u64> {
    let url = start.url().context("only the server lists its runs")?;
    let mut connection = Connection::open(&start.host).await?;
    let mut succeeded = HashSet::new();
    let mut cursor = String::new();
    // One more page, because the last one may be empty.
    for _ in 0..=start.runs.div_ceil(PAGE) {
        let path = format!("/v2/workflows/logs?workflowUrl={}&count={PAGE}{cursor}", escaped(&url));
        let page: Option<Page> = get(&mut connection, start, &path).await?;
        let page = page.context("the server lists no runs")?;
        for run in page.runs {
            let key = RunKey::parse(&run.workflow_run_id).filter(|key| key.measurement == start.measurement);
            let key = key.with_context(|| format!("{} is listed at {url}", run.workflow_run_id))?;
            let is_right = !with_result || run.workflow_run_response.as_deref() == Some(&result(key));
            if run.workflow_state == "RUN_SUCCESS" && is_right && key.number < start.runs {
                succeeded.insert(key.number);
            }
        }
        match page.cursor.filter(|cursor| !cursor.is_empty()) {
            Some(next) => cursor = format!("&cursor={}", escaped(&next)),
            None => break,
        }
    }
    Ok(succeeded.len() as u64)
}

/// How many of `samples` runs, spread over the measurement, the server has with their start and the sleeping step.
pub(super) async fn count_asleep(start: &Start, samples: u32) -> Result<u32> {
    let mut connection = Connection::open(&start.host).await?;
    let mut asleep = 0;
    for sample in 0..samples {
        let number = (u64::from(sample) * u64::from(start.runs) / u64::from(samples)) as u32;
        let key = RunKey { measurement: start.measurement, number };
        let path = format!("/v2/workflows/runs/{}", key.id());
        let entries: Option<Vec<Value>> = get(&mut connection, start, &path).await?;
        asleep += u32::from(entries.is_some_and(|entries| entries.len() == 2));
    }
    Ok(asleep)
}

/// The server's response at a path; `None` if there is nothing.
async fn get<T: DeserializeOwned>(connection: &mut Connection, start: &Start, path: &str) -> Result<Option<T>> {
    let request = request("GET", path, &start.host, &[AUTHORIZATION.to_owned()], "application/json", b"");
    let (status, body) = connection.call(&request).await?;
    match status {
        200 => {}
        404 => return Ok(None),
        _ => bail!("GET {path} was answered {status}: {}", excerpt(&body)),
    }
    let found = serde_json::from_slice(&body);
    Ok(Some(found.with_context(|| format!("unexpected answer to GET {path}: {}", excerpt(&body)))?))
}

/// Escapes the value of a query.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(door: Door) -> Start {
        Start { measurement: 9, runs: 1_000, script: Script::Steps(5), host: "127.0.0.1:1".into(), door }
    }

    fn body(request: Vec<u8>) -> Value {
        let text = String::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        serde_json::from_str(body).unwrap()
    }

    #[test]
    fn a_batch_starts_its_runs_at_the_application() {
        let start = start(Door::Batch { application: "http://127.0.0.1:2".into() });
        let batch = body(start.request(7..10));
        let ids: Vec<&str> =
            (0..3).map(|nth| batch[nth]["headers"]["upstash-workflow-runid"].as_str().unwrap()).collect();
        assert_eq!(ids, ["wfr_bench-00000009-00000007", "wfr_bench-00000009-00000008", "wfr_bench-00000009-00000009"]);
        assert_eq!(
            (batch[0]["destination"].as_str(), &batch[3]),
            (Some("http://127.0.0.1:2/steps/00000009"), &Value::Null)
        );
    }

    #[test]
    fn an_ingress_gets_only_the_payload() {
        let one = body(start(Door::Ingress { path: "/steps/run/send".into() }).request(7..8));
        assert!(one["m"].as_str().unwrap().starts_with("HQB0000000900000007"), "{one}");
    }

    #[test]
    fn every_run_of_a_batch_must_be_new() {
        let start = start(Door::Batch { application: "http://127.0.0.1:2".into() });
        let right = r#"[{"messageId":"a"},{"messageId":"b"}]"#;
        start.check(0..2, right.as_bytes()).unwrap();
        for wrong in [
            r#"[{"messageId":"a"}]"#,
            r#"[{"messageId":"a"},{"messageId":"a"}]"#,
            r#"[{"messageId":"a"},{"messageId":"b","deduplicated":true}]"#,
            r#"[{"messageId":"a"},{"error":"no"}]"#,
        ] {
            assert!(start.check(0..2, wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escaped("http://a:1/x_y?é"), "http%3A%2F%2Fa%3A1%2Fx_y%3F%C3%A9");
    }
}
