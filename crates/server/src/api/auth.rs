//! Who calls, and whether they may. Handlers name the caller they need as their first argument; `access` sees to it that they do.

use super::error::ApiError;
use super::viewer::Viewer;
use crate::app::App;
use crate::config::MetricsAccess;
use crate::tenants::{Grant, Scope, hash};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use posthaste_wire::destination::split_query;
use posthaste_wire::id::TenantId;
use std::sync::Arc;

/// A caller with any token of a tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub(super) tenant: TenantId,
    pub(super) scope: Scope,
}

impl Reader {
    /// How this caller sees what the tenant has.
    pub(super) fn viewer(self, app: &App) -> Viewer {
        Viewer::of_scope(app, self.tenant, self.scope)
    }
}

impl FromRequestParts<Arc<App>> for Reader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Reader, ApiError> {
        let Grant { tenant, scope, .. } = identify(app, &parts.headers, &parts.uri)?;
        Ok(Reader { tenant, scope })
    }
}

/// A caller with a token that may change things, and see secrets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    pub(super) tenant: TenantId,
}

impl Writer {
    /// Lets in who may write. Routes have this done for them.
    pub(super) fn let_in(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<Writer, ApiError> {
        match identify(app, headers, uri)? {
            Grant { scope: Scope::ReadOnly, .. } => Err(ApiError::read_only()),
            Grant { tenant, scope: Scope::Full, .. } => Ok(Writer { tenant }),
        }
    }
}

impl FromRequestParts<Arc<App>> for Writer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Writer, ApiError> {
        Writer::let_in(app, &parts.headers, &parts.uri)
    }
}

/// A caller who may read the metrics of the whole server.
pub(super) struct Scraper;

impl FromRequestParts<Arc<App>> for Scraper {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Scraper, ApiError> {
        match &app.config.metrics_access {
            MetricsAccess::Open => Ok(Scraper),
            MetricsAccess::Off => Err(ApiError::not_found("metrics are off; set metrics_token to turn them on")),
            MetricsAccess::Token(expected) if bearer(&parts.headers).map(hash).as_ref() == Some(expected) => {
                Ok(Scraper)
            }
            MetricsAccess::Token(_) => {
                Err(ApiError::unauthenticated("send the metrics_token of the configuration as a Bearer token"))
            }
        }
    }
}

/// Whose token the request carries, and what it allows. A header wins over `?qstash_token=`.
fn identify(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<Grant, ApiError> {
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
