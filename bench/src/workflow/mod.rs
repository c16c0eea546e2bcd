//! `workflow-endpoint`: an application of trivial workflows that costs as little as possible, so that a measurement
//! shows the cost of the server.
//!
//! It speaks the invocation protocol without an SDK: a delivery contains the run's entries so far, and the endpoint
//! publishes the result of the next step, or ends the run after the last one. It compares every byte and id with what
//! it published, so that a fast but wrong server is noticed. Start at [`Endpoint::advance`].

mod ledger;
pub(crate) mod protocol;

pub(crate) use ledger::Tally;

use crate::clock::now_ns;
use crate::http::{Answer, Connection, split_url};
use crate::load::excerpt;
use crate::process::raise_open_files;
use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ledger::Ledger;
use protocol::{Entry, Next, RunKey, Script};
use serde::Deserialize;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpListener;

/// Largest delivery that is read. Runs of trivial steps are far smaller.
const DELIVERY_BYTES_MAX: usize = 1 << 20;
/// Connections to the server that are kept. Further ones are closed after use.
const IDLE_CONNECTIONS_MAX: usize = 512;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 9300)]
    port: u16,
    /// The server that starts the runs, http://address:port.
    #[arg(long)]
    server: String,
    /// A header of every request to it, `Name: value`.
    #[arg(short = 'H', long = "header")]
    headers: Vec<String>,
    /// Steps of the runs at /steps/…
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    steps: u32,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    raise_open_files();
    let (host, _) = split_url(&args.server)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await?;
        let endpoint = Endpoint::new(&listener, host, &args.headers, args.steps)?;
        eprintln!("workflow endpoint on {}", listener.local_addr()?);
        accept(listener, Arc::new(endpoint)).await
    })
}

struct Endpoint {
    /// The endpoint's own address, `http://address:port`.
    base: String,
    server: Server,
    steps: u32,
    ledger: Mutex<Ledger>,
}

/// The server's API.
struct Server {
    host: String,
    headers: Vec<String>,
    idle: Mutex<Vec<Connection>>,
}

/// Why a delivery does not advance a run.
enum Trouble {
    /// No correct server makes such a delivery, so the run must not continue.
    Wrong(String),
    /// The server did not accept the publish. It may try again.
    Refused(anyhow::Error),
}

async fn accept(listener: TcpListener, endpoint: Arc<Endpoint>) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let endpoint = endpoint.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let endpoint = endpoint.clone();
                async move { Ok::<_, Infallible>(endpoint.handle(request).await) }
            });
            // A broken connection is the server's problem; a missing delivery shows as a run that does not end.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Endpoint {
    fn new(listener: &TcpListener, host: &str, headers: &[String], steps: u32) -> Result<Self> {
        let server = Server { host: host.to_owned(), headers: headers.to_vec(), idle: Mutex::default() };
        let base = format!("http://{}", listener.local_addr()?);
        Ok(Self { base, server, steps, ledger: Mutex::default() })
    }

    async fn handle(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        if parts.uri.path() == "/_tally" {
            let run = parts.uri.query().and_then(|query| query.strip_prefix("run=")?.parse().ok()).unwrap_or(0);
            let tally = serde_json::to_string(&self.ledger().tally(run));
            return answer(StatusCode::OK, &[], tally.expect("numbers and strings always become JSON"));
        }
        let Some((script, measurement)) = Script::at(parts.uri.path(), self.steps) else {
            return answer(StatusCode::NOT_FOUND, &[], String::new());
        };
        let body = match Limited::new(body, DELIVERY_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return answer(StatusCode::PAYLOAD_TOO_LARGE, &[], error.to_string()),
        };
        self.ledger().called(measurement);
        if parts.headers.contains_key("upstash-workflow-is-failure") {
            self.ledger().failed(measurement, format!("a run failed: {}", excerpt(&body)));
            return answer(StatusCode::OK, &[("upstash-workflow-failure-callback-notfound", "true")], String::new());
        }
        let url = format!("{}{}", self.base, parts.uri.path());
        match self.advance(script, measurement, &url, &parts.headers, &body).await {
            Ok(key) => {
                let said = format!(r#"{{"workflowRunId":"{}","finishCondition":"success"}}"#, key.id());
                answer(StatusCode::OK, &[], said)
            }
            Err(Trouble::Wrong(problem)) => {
                self.ledger().wrong(measurement, problem.clone());
                answer(not_again(), &[("upstash-nonretryable-error", "true")], problem)
            }
            Err(Trouble::Refused(error)) => {
                let problem = format!("{error:#}");
                self.ledger().error(measurement, problem.clone());
                answer(StatusCode::INTERNAL_SERVER_ERROR, &[], problem)
            }
        }
    }

    /// Processes the delivery of a step. It responds after the server has accepted the publish.
    async fn advance(
        &self,
        script: Script,
        measurement: u32,
        url: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<RunKey, Trouble> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let wrong = |problem: String| Trouble::Wrong(format!("{}: {problem}", header("upstash-workflow-runid")));
        let key = RunKey::parse(header("upstash-workflow-runid")).filter(|key| key.measurement == measurement);
        let key = key.ok_or_else(|| wrong("not a run of this URL".into()))?;
        if header("upstash-workflow-sdk-version") != "1" {
            return Err(wrong("the delivery does not say that it is a list of steps".into()));
        }
        let entries: Vec<Entry> =
            serde_json::from_slice(body).map_err(|error| wrong(format!("{error}: {}", excerpt(body))))?;
        let replay = protocol::replay(script, key, header("upstash-message-id"), &entries).map_err(wrong)?;
        let ids = entries.iter().map(|entry| entry.message_id.as_ref());
        self.ledger().delivered(key, ids, replay.sent_ns).map_err(wrong)?;
        match replay.next {
            Next::Step(step) => {
                let batch = protocol::append(key, url, &step);
                let id = self.server.publish(&batch).await.map_err(Trouble::Refused)?;
                self.ledger().published(key, entries.len(), &id).map_err(wrong)?;
            }
            Next::End(result) => {
                self.server.end(key, &result).await.map_err(Trouble::Refused)?;
                self.ledger().ended(key, replay.sent_ns, now_ns()).map_err(wrong)?;
            }
        }
        Ok(key)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("nothing panics while it holds the lock")
    }
}

#[derive(Deserialize)]
struct Published {
    #[serde(rename = "messageId")]
    message_id: String,
}

impl Server {
    /// Publishes a batch of one element, and returns the id of the created entry.
    async fn publish(&self, batch: &[u8]) -> Result<String> {
        let body = self.call("POST", "/v2/batch", "application/json", batch).await?;
        let unexpected = || format!("unexpected answer to a batch: {}", excerpt(&body));
        let published: [Published; 1] = serde_json::from_slice(&body).with_context(unexpected)?;
        let [Published { message_id }] = published;
        Ok(message_id)
    }

    /// Ends a run with its result.
    async fn end(&self, key: RunKey, result: &str) -> Result<()> {
        self.call("DELETE", &protocol::end_path(key), "text/plain", result.as_bytes()).await?;
        Ok(())
    }

    /// The body of the response, which must be a success.
    async fn call(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<Vec<u8>> {
        let request = protocol::request(method, path, &self.host, &self.headers, kind, body);
        let (status, answer) = self.exchange(&request).await?;
        anyhow::ensure!((200..300).contains(&status), "{method} {path} was answered {status}: {}", excerpt(&answer));
        Ok(answer)
    }

    /// Uses an idle connection, or a new one if there is none or if the server has closed it. A request may be sent
    /// twice, because the server recognizes a known step or end.
    async fn exchange(&self, request: &[u8]) -> Result<Answer> {
        let idle = self.idle().pop();
        if let Some(mut connection) = idle
            && let Ok(answer) = connection.call(request).await
        {
            self.keep(connection);
            return Ok(answer);
        }
        let mut connection = Connection::open(&self.host).await?;
        let answer = connection.call(request).await?;
        self.keep(connection);
        Ok(answer)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing panics while it holds the lock")
    }
}

/// The status that ends a run without retries.
fn not_again() -> StatusCode {
    StatusCode::from_u16(489).expect("three digits are a status")
}

/// A response with the headers by which the server recognizes an SDK.
fn answer(status: StatusCode, headers: &[(&'static str, &'static str)], body: String) -> Response<Full<Bytes>> {
    const SDK: [(&str, &str); 2] = [("upstash-workflow-sdk-version", "1"), ("upstash-workflow-sdk", "v1.3.2")];
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    for (name, value) in SDK.iter().chain(headers) {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
