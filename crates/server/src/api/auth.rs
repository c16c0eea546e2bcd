//! Who calls, and whether they may.

use super::error::ApiError;
use crate::app::App;
use crate::tenants::{Grant, Scope};
use axum::http::{HeaderMap, Uri, header};
use posthaste_wire::destination::split_query;
use posthaste_wire::id::TenantId;

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Look.
    Read,
    /// Change something, or see secrets.
    Write,
}

/// The tenant whose token the request carries.
pub(super) fn authorize(app: &App, headers: &HeaderMap, uri: &Uri, access: Access) -> Result<TenantId, ApiError> {
    let Grant { tenant, scope, .. } = identify(app, headers, uri)?;
    match (access, scope) {
        (Access::Write, Scope::ReadOnly) => Err(ApiError::read_only()),
        _ => Ok(tenant),
    }
}

/// Whose token the request carries, and what it allows. A header wins over `?qstash_token=`.
pub(super) fn identify(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<Grant, ApiError> {
    let now = app.clock.now();
    let known = match headers.contains_key(header::AUTHORIZATION) {
        true => bearer(headers).and_then(|token| app.tokens.find(token, now)),
        false if app.config.query_token => {
            split_query(uri.query()).token.and_then(|token| app.tokens.find(&token, now))
        }
        false => None,
    };
    let grant = known.ok_or_else(|| ApiError::unauthenticated(why_unknown(headers)))?;
    // The console has counted the page that this is asked for.
    if !grant.is_own && !is_publish(uri.path()) {
        app.allowances.requests.take(grant.tenant, 1, now).map_err(ApiError::burst_quota)?;
    }
    Ok(grant)
}

/// Why no tenant is found for a request. Never repeats the token.
fn why_unknown(headers: &HeaderMap) -> &'static str {
    match (headers.contains_key(header::AUTHORIZATION), bearer(headers)) {
        (false, _) => {
            "the request has no Authorization header; send Authorization: Bearer followed by your QSTASH_TOKEN"
        }
        (true, None) => {
            "the Authorization header must be the word Bearer, a space and your QSTASH_TOKEN, and be sent once"
        }
        (true, Some(_)) => "this server does not know the token; check QSTASH_TOKEN and QSTASH_URL",
    }
}

/// Requests that bring messages have their own quota, per day.
fn is_publish(path: &str) -> bool {
    matches!(path.split('/').nth(2), Some("publish" | "enqueue" | "batch" | "trigger"))
}

/// The token of the one `Authorization: Bearer` header; the scheme is compared without case.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let line = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let (scheme, token) = line.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
