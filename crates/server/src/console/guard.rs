//! What stands before and behind every page: whoever asks from another site is refused, and browsers are told what a page of
//! ours may do, which is little.

use super::Desk;
use super::session::Identity;
use super::view;
use super::visitor::identity;
use crate::api::read_form;
use crate::browsers::is_loopback;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Bytes of a form of somebody who has logged in; over it the answer is 413.
const FORM_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes that somebody may send who has not; over it the answer is 413.
const LOGIN_BYTES_MAX: usize = 16 * 1024;
/// How long that may take; then the answer is 408.
const LOGIN_PATIENCE: Duration = Duration::from_secs(10);

/// Scripts, styles and pictures of our own, no others, and none in the page itself. Text becomes HTML in one named place.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types console";

/// Headers of every answer.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
];

/// See the module's text.
pub(super) async fn guard(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    let is_told = is_told(request.method(), request.headers());
    let mut response = match refusal(desk.is_open(), request.method(), request.headers()) {
        Some(text) => (StatusCode::FORBIDDEN, text).into_response(),
        None => admitted(&desk, request, next).await,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        // A file may have a policy that allows even less.
        headers.entry(name).or_insert(value);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if is_told {
        // The next page is about something else.
        let [(name, value)] = view::flash("");
        headers.append(name, value);
    }
    response
}

/// Whether this page tells what was done: pieces that the script fetches do not.
fn is_told(method: &Method, headers: &HeaderMap) -> bool {
    let is_page = headers.get("sec-fetch-dest").is_none_or(|destination| destination == "document");
    method == Method::GET && is_page && view::flash_of(headers).is_some()
}

/// The page, once the form is read and it is the visitor's turn.
async fn admitted(desk: &Desk, request: Request, next: Next) -> Response {
    let Some(Identity { tenant, .. }) = identity(desk, request.headers()) else {
        return match without_form(request).await {
            Ok(request) => next.run(request).await,
            Err(refusal) => refusal,
        };
    };
    let (parts, body) = request.into_parts();
    let (bytes, _room) = match read_form(&desk.app, tenant, &parts.headers, body, FORM_BYTES_MAX).await {
        Ok(form) => form,
        Err(refusal) => return refusal,
    };
    let _turn = desk.turn(tenant).await;
    next.run(Request::from_parts(parts, Body::from(bytes))).await
}

/// Strangers may log in, which takes few bytes and little time.
async fn without_form(request: Request) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let read = Limited::new(body, LOGIN_BYTES_MAX).collect();
    match timeout(LOGIN_PATIENCE, read).await {
        Ok(Ok(read)) => Ok(Request::from_parts(parts, Body::from(read.to_bytes()))),
        Ok(Err(_)) => Err((StatusCode::PAYLOAD_TOO_LARGE, "the request is too large; log in first").into_response()),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the form took too long to arrive").into_response()),
    }
}

/// Why a request is refused before anybody looks at it.
fn refusal(is_open: bool, method: &Method, headers: &HeaderMap) -> Option<&'static str> {
    let host = one(headers, header::HOST).and_then(|text| text.parse::<Authority>().ok());
    // A page of another site may have its own name lead to this machine.
    if is_open && !host.as_ref().is_some_and(is_loopback) {
        return Some("the console of a development server accepts only localhost and loopback addresses");
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let origin = one(headers, header::ORIGIN).and_then(|text| text.split_once("://"));
    match (origin, host) {
        (Some((scheme, origin)), Some(host))
            if origin.eq_ignore_ascii_case(host.as_str()) && is_ours(scheme, &host) =>
        {
            None
        }
        _ => Some("rejected: the Origin header does not match this console"),
    }
}

/// Whether pages of the console come this way. What is not encrypted can be written by anybody on the way, so that only
/// pages of this machine may; the cookie of a session is kept to the same.
fn is_ours(scheme: &str, host: &Authority) -> bool {
    scheme.eq_ignore_ascii_case("https") || (scheme.eq_ignore_ascii_case("http") && is_loopback(host))
}

fn one(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?.to_str().ok()?;
    lines.next().is_none().then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(is_open: bool, method: &Method, headers: &[(&str, &str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap()));
        refusal(is_open, method, &headers.collect()).is_some()
    }

    #[test]
    fn only_pages_of_the_console_may_act() {
        let host = ("host", "queue.example.com");
        let accepted = [
            vec![host, ("origin", "https://queue.example.com")],
            vec![host, ("origin", "https://QUEUE.example.com")],
            vec![("host", "localhost:8080"), ("origin", "http://localhost:8080")],
        ];
        let refused = [
            vec![host],
            vec![host, ("origin", "null")],
            vec![host, ("origin", "http://queue.example.com")],
            vec![host, ("origin", "ftp://queue.example.com")],
            vec![host, ("origin", "https://evil.example")],
            vec![host, ("origin", "https://queue.example.com.evil.example")],
            vec![host, ("origin", "https://queue.example.com:444")],
            vec![host, ("origin", "https://queue.example.com"), ("origin", "https://evil.example")],
            vec![("origin", "https://queue.example.com")],
        ];
        for headers in accepted {
            assert!(!is_refused(false, &Method::POST, &headers), "{headers:?}");
        }
        for headers in refused {
            assert!(is_refused(false, &Method::POST, &headers), "{headers:?}");
        }
        assert!(!is_refused(false, &Method::GET, &[host]));
    }

    #[test]
    fn an_open_console_answers_to_loopback_names_only() {
        for (host, is_ours) in [
            ("localhost:8080", true),
            ("LOCALHOST", true),
            ("127.0.0.1:8080", true),
            ("[::1]:8080", true),
            ("rebound.example:8080", false),
            ("localhost.evil.example", false),
            ("192.168.0.7", false),
        ] {
            assert_eq!(!is_refused(true, &Method::GET, &[("host", host)]), is_ours, "{host}");
        }
        assert!(is_refused(true, &Method::GET, &[]));
    }
}
