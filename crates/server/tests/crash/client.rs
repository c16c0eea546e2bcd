//! A small HTTP client with keep-alive, which tells "refused" from "nobody knows".

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

/// The first of the published development users.
const TOKEN: &str = "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=";
/// No answer within this time is no answer.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub(crate) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// A complete answer.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the server answers in JSON")
    }
}

impl Client {
    pub(crate) fn new() -> Client {
        // A request that may have reached the server is not sent again: its outcome is unknown.
        Client { pool: Pool::builder(TokioExecutor::new()).retry_canceled_requests(false).build_http() }
    }

    /// Sends a request; `None` when no complete answer came.
    pub(crate) async fn send(
        &self,
        method: Method,
        server: SocketAddr,
        target: &str,
        headers: &[(&str, String)],
        body: Bytes,
    ) -> Option<Response> {
        let mut request = Request::builder().method(method).uri(format!("http://{server}{target}"));
        request = request.header("authorization", format!("Bearer {TOKEN}"));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).expect("a valid request");
        let exchange = async {
            let response = self.pool.request(request).await.ok()?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.ok()?.to_bytes();
            Some(Response { status, body })
        };
        tokio::time::timeout(PATIENCE, exchange).await.ok()?
    }

    pub(crate) async fn get(&self, server: SocketAddr, target: &str) -> Response {
        self.send(Method::GET, server, target, &[], Bytes::new())
            .await
            .unwrap_or_else(|| panic!("no answer to {target}"))
    }

    /// All entries of a list that comes in pages.
    pub(crate) async fn pages(&self, server: SocketAddr, target: &str, field: &str) -> Vec<Value> {
        let mut entries = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(server, &format!("{target}{cursor}")).await;
            assert_eq!(page.status, 200, "{target}: {:?}", page.body);
            let mut page = page.json();
            match page[field].take() {
                Value::Array(list) => entries.extend(list),
                other => panic!("{target} has {other} as {field}"),
            }
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return entries,
            }
        }
    }

    /// How many messages have not ended, by the server's own count.
    pub(crate) async fn pending(&self, server: SocketAddr) -> u64 {
        self.try_pending(server).await.unwrap_or_else(|| panic!("no answer to /metrics"))
    }

    /// The same; `None` when no answer came.
    pub(crate) async fn try_pending(&self, server: SocketAddr) -> Option<u64> {
        let metrics = self.send(Method::GET, server, "/metrics", &[], Bytes::new()).await?;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("posthaste_pending "));
        Some(line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no posthaste_pending in {text}")))
    }
}
