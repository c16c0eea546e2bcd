//! Refuses what a web page sends that may not call this server, before anything is read or done.
//!
//! A browser sends some requests of any page without asking first: a form, or a POST of plain text. It keeps the answer from
//! the page, but the server has acted by then. In `dev`, where the token is published, all requests of foreign pages are
//! refused, and so are those to a name that is not this server's (DNS rebinding). In `serve` a page needs a secret token. One
//! in a header needs the browser's consent first (CORS); one in the query does not, and is refused.

use super::error::ApiError;
use crate::config::{Config, Mode};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, header};
use posthaste_wire::destination::split_query;

/// How much of a header an error repeats.
const SHOWN_CHARS_MAX: usize = 200;

/// Why a request is refused because of the page that sends it, or of the name that it was sent to.
pub(super) fn refusal(config: &Config, request: &Request, is_foreign: bool) -> Option<ApiError> {
    let headers = request.headers();
    if is_public(request.uri().path()) && !super::cors::is_preflight(request.method(), headers) {
        return None;
    }
    if !config.browsers.answers_to(headers) {
        let host = shown(headers, header::HOST);
        return Some(refused(format!(
            "this development server answers to localhost, loopback addresses and its public_url, not to {host}; set \
             public_url if clients reach it under that name"
        )));
    }
    if !is_foreign {
        return None;
    }
    let origin = shown(headers, header::ORIGIN);
    let list = "the operator can add the origin to allowed_origins";
    match config.mode {
        Mode::Dev => Some(refused(format!("web pages of {origin} may not call this development server; {list}"))),
        Mode::Serve if has_query_token(request) => Some(refused(format!(
            "web pages of {origin} may not send the token in the query; {list}, and the page can send an Authorization \
             header"
        ))),
        Mode::Serve => None,
    }
}

/// Callers of a webhook know its secret URL, wherever they are; and the state of the server is no secret.
fn is_public(path: &str) -> bool {
    let mut segments = path.split('/').skip(1);
    match (segments.next(), segments.next(), segments.next()) {
        (Some("health" | "ready"), None | Some(""), None) => true,
        (Some(_), Some(resource), Some("hooks")) => resource.eq_ignore_ascii_case("workflows"),
        _ => false,
    }
}

fn has_query_token(request: &Request) -> bool {
    !request.headers().contains_key(header::AUTHORIZATION) && split_query(request.uri().query()).token.is_some()
}

/// The page cannot read the answer, so that its developer finds the reason in the log.
fn refused(text: String) -> ApiError {
    tracing::info!("request rejected: {text}");
    ApiError::forbidden(text)
}

fn shown(headers: &HeaderMap, name: HeaderName) -> String {
    let text =
        headers.get(name).map_or_else(|| "another site".into(), |value| String::from_utf8_lossy(value.as_bytes()));
    text.chars().take(SHOWN_CHARS_MAX).collect::<String>().escape_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_and_probes_are_for_everybody() {
        for (path, expected) in [
            ("/v2/workflows/hooks/u/r/e", true),
            ("/v2/WorkFlows/hooks/u/r/e", true),
            ("/v2/workflows/hooks", true),
            ("/health", true),
            ("/ready/", true),
            ("/health/x", false),
            ("/v2/workflows/runs/hooks", false),
            ("/v2/publish/hooks", false),
            ("/v2/publish/https://a/workflows/hooks/", false),
            ("/metrics", false),
            ("/", false),
        ] {
            assert_eq!(is_public(path), expected, "{path}");
        }
    }
}
