//! Who looks at a page, and what they ask the API for.

use super::session::Identity;
use super::view::{self, Frame};
use super::{Desk, ROOT};
use crate::api::{CURSOR, Countable, Counted, Exhausted, Peer, count};
use crate::tenants::Scope;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use http_body_util::{BodyExt, Limited};
use maud::html;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

/// The cookie of a session. Its prefix makes browsers keep it to this host, and to encrypted connections.
const SESSION_COOKIE: &str = "__Host-posthaste";
/// The tenant that a visitor of a development server has chosen.
pub(super) const TENANT_COOKIE: &str = "posthaste-tenant";
/// Most bytes of an answer of the API that a page is made of; of more, the page says so.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Pages of a bare list that a page is made of; of more, it says so.
const LIST_PAGES_MAX: usize = 10;

/// Somebody who may look, and perhaps act.
pub(crate) struct Visitor {
    pub(super) desk: Arc<Desk>,
    pub(super) tenant: TenantId,
    pub(super) scope: Scope,
    /// The path and query of the page.
    pub(super) here: String,
    host: HeaderValue,
    peer: Option<Peer>,
    flash: Option<String>,
}

impl FromRequestParts<Arc<Desk>> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, desk: &Arc<Desk>) -> Result<Visitor, Response> {
        // The router has taken the front of the path away.
        let original = parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |uri| &uri.0);
        let here = original.path_and_query().map_or(ROOT, |path| path.as_str()).to_owned();
        let Some(Identity { tenant, scope }) = identity(desk, &parts.headers) else {
            let next = if parts.method == Method::GET { here.as_str() } else { ROOT };
            return Err(Redirect::to(&format!("{ROOT}/login?{}", query(&[("next", next)]))).into_response());
        };
        // A page is one request, however many answers of the API it is made of.
        let now = desk.app.clock.now();
        desk.app.allowances.requests.take(tenant, 1, now).map_err(used_up)?;
        let host = parts.headers.get(header::HOST).cloned().unwrap_or(HeaderValue::from_static("localhost"));
        let flash = view::flash_of(&parts.headers);
        let peer = parts.extensions.get::<Peer>().cloned();
        Ok(Visitor { desk: desk.clone(), tenant, scope, here, host, peer, flash })
    }
}

/// The page that says so to a tenant who has asked for too much in this second.
fn used_up(exhausted: Exhausted) -> Response {
    let wait = HeaderValue::from(exhausted.wait_seconds());
    let text = format!(
        "This tenant has exceeded its limit of {} requests per second. A page counts as one request. Wait a second, then reload.",
        view::number(exhausted.limit)
    );
    ([(header::RETRY_AFTER, wait)], Problem { status: StatusCode::TOO_MANY_REQUESTS, text }).into_response()
}

pub(super) fn identity(desk: &Desk, headers: &HeaderMap) -> Option<Identity> {
    if !desk.is_open() {
        return desk.sessions.find(&session_of(headers)?, desk.app.clock.now());
    }
    let tenants = &desk.app.config.tenants;
    let chosen = view::cookie_of(headers, TENANT_COOKIE);
    let chosen = tenants.iter().find(|tenant| Some(&tenant.name) == chosen.as_ref()).or(tenants.first())?;
    Some(Identity { tenant: desk.app.tokens.of_user(&chosen.name)?, scope: Scope::Full })
}

/// The session that the cookie names.
pub(super) fn session_of(headers: &HeaderMap) -> Option<String> {
    view::cookie_of(headers, SESSION_COOKIE).filter(|secret| !secret.is_empty())
}

/// The cookie of a session; of an empty one, the end of it.
pub(super) fn session_cookie(secret: &str) -> HeaderValue {
    view::cookie(SESSION_COOKIE, secret, secret.is_empty().then_some(0))
}

impl Visitor {
    /// Whether buttons do anything.
    pub(super) fn may_act(&self) -> bool {
        self.scope == Scope::Full
    }

    pub(super) fn now(&self) -> Timestamp {
        self.desk.app.clock.now()
    }

    /// The name of the tenant.
    pub(super) fn tenant_name(&self) -> &str {
        let of_user = |name: &str| self.desk.app.tokens.of_user(name);
        let tenants = &self.desk.app.config.tenants;
        tenants.iter().find(|tenant| of_user(&tenant.name) == Some(self.tenant)).map_or("", |tenant| &tenant.name)
    }

    /// Where the visitor reaches this server: only a development server is reached without TLS.
    pub(super) fn address(&self) -> String {
        let scheme = if self.desk.is_open() { "http" } else { "https" };
        format!("{scheme}://{}", self.host.to_str().unwrap_or("localhost"))
    }

    /// What is around a page.
    pub(super) fn frame<'a>(&'a self, title: &'a str) -> Frame<'a> {
        Frame::of(self, title, self.flash.as_deref())
    }

    /// What the API answers to a GET.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        let answer = self.send(Method::GET, path, &[], Vec::new()).await?;
        serde_json::from_value(answer).map_err(|error| misunderstood(path, &error))
    }

    /// All entries of a bare list, page by page, and whether there are more than [`LIST_PAGES_MAX`] pages have.
    pub(super) async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<(Vec<T>, bool), Problem> {
        let (mut entries, mut cursor) = (Vec::new(), String::new());
        for _ in 0..LIST_PAGES_MAX {
            let separator = if path.contains('?') { '&' } else { '?' };
            let page = format!("{path}{separator}cursor={cursor}");
            let (answer, next) = self.exchange(Method::GET, &page, &[], Vec::new()).await?;
            entries.extend(serde_json::from_value::<Vec<T>>(answer).map_err(|error| misunderstood(path, &error))?);
            match next {
                // It is percent-encoded already.
                Some(next) => cursor = next,
                None => return Ok((entries, false)),
            }
        }
        Ok((entries, true))
    }

    /// Asks the API, as the visitor's tenant; an answer without a body is null.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Value, Problem> {
        Ok(self.exchange(method, path, headers, body).await?.0)
    }

    /// The same, and where the next page of a bare list begins.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<(Value, Option<String>), Problem> {
        let response = self.desk.api.serve(self.request(method, path, headers, body)?).await;
        let status = response.status();
        let next = response.headers().get(CURSOR).and_then(|next| next.to_str().ok()).map(str::to_owned);
        let bytes = match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Err(Problem { status: StatusCode::BAD_GATEWAY, text: error.to_string() }),
        };
        let answer: Value = match bytes.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned())),
        };
        if status.is_success() {
            return Ok((answer, next));
        }
        let text = answer["error"].as_str().map_or_else(|| answer.to_string(), str::to_owned);
        Err(Problem { status, text })
    }

    /// How many messages, dead letters or runs a query of the API means.
    pub(super) async fn count(&self, what: Countable, query: &str) -> Result<Counted, Problem> {
        count(&self.desk.app, self.tenant, what, query).await.map_err(Problem::refused)
    }

    /// A request to the API with the rights of the visitor.
    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Request<Body>, Problem> {
        let mut request = Request::builder().method(method).uri(path);
        let token = self.desk.app.tokens.own(self.tenant, self.scope);
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}")).header(header::HOST, &self.host);
        for (name, value) in headers {
            let name: HeaderName =
                name.parse().map_err(|_| Problem::refused(format!("{name:?} is not a valid header name")))?;
            let value = HeaderValue::from_bytes(value.as_bytes());
            request = request.header(
                &name,
                value.map_err(|_| Problem::refused(format!("{name}: the value is not valid in a header")))?,
            );
        }
        if let Some(peer) = &self.peer {
            request = request.extension(peer.clone());
        }
        request.body(Body::from(body)).map_err(|error| Problem::refused(format!("{path}: {error}")))
    }
}

fn misunderstood(path: &str, error: &serde_json::Error) -> Problem {
    let text = format!("cannot read the API's response to {path}: {error}");
    Problem { status: StatusCode::INTERNAL_SERVER_ERROR, text }
}

/// Names and values as a query; empty values are left out.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let said = pairs.iter().filter(|(_, value)| !value.is_empty());
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(said).finish()
}

/// One segment of a path, whatever it holds.
pub(super) fn segment(text: &str) -> String {
    const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_');
    utf8_percent_encode(text, &ENCODED).to_string()
}

/// Why there is no page, or why nothing was done.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

impl Problem {
    /// What was asked for makes no sense.
    pub(super) fn refused(text: impl Into<String>) -> Problem {
        Problem { status: StatusCode::BAD_REQUEST, text: text.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = html! {
            div.card {
                h1 { (self.status.as_u16()) " " (self.status.canonical_reason().unwrap_or_default()) }
                p.problem role="alert" { (self.text) }
                p { a href=(ROOT) { "Back to overview" } }
            }
        };
        (self.status, view::page(&Frame::lost("Error"), &body)).into_response()
    }
}
