//! `GET /v2/settings`: the configuration in effect and the tenant's own tokens, without any secret. What concerns nobody but
//! the operator is told only to callers who can be taken for the operator.

use super::auth::Reader;
use super::error::ApiError;
use crate::app::App;
use crate::config::{Config, Mode, Shown, Source};
use crate::tenants::{Scope, TokenUse};
use axum::Json;
use axum::extract::State;
use posthaste_wire::id::TenantId;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn get(
    Reader { tenant, scope }: Reader,
    State(app): State<Arc<App>>,
) -> Result<Json<Value>, ApiError> {
    let mode = match app.config.mode {
        Mode::Dev => "dev",
        Mode::Serve => "serve",
    };
    let shown = if is_operator(&app.config, scope) { app.config.shown() } else { app.config.shown_to_tenants() };
    let started_at = app.clock.now().minus_millis(app.clock.uptime().as_millis() as u64);
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mode": mode,
        "startedAt": started_at.as_millis(),
        "tenant": name_of(&app, tenant),
        "tokens": app.tokens.of(tenant).into_iter().map(token).collect::<Vec<_>>(),
        "settings": shown.iter().map(|shown| setting(&app, shown)).collect::<Vec<_>>(),
    })))
}

/// In production that is the only tenant, with the token that may do everything.
fn is_operator(config: &Config, scope: Scope) -> bool {
    config.mode == Mode::Dev || (config.tenants.len() == 1 && scope == Scope::Full)
}

fn name_of(app: &App, tenant: TenantId) -> &str {
    let is_theirs = |name: &str| app.tokens.of_user(name) == Some(tenant);
    app.config.tenants.iter().find(|tenant| is_theirs(&tenant.name)).map_or("", |tenant| &tenant.name)
}

fn token(used: TokenUse<'_>) -> Value {
    let scope = match used.scope {
        Scope::Full => "full",
        Scope::ReadOnly => "readOnly",
    };
    let mut object = json!({ "name": used.name, "scope": scope });
    if let Some(at) = used.last_used {
        object["lastUsed"] = at.as_millis().into();
    }
    object
}

fn setting(app: &App, shown: &Shown) -> Value {
    let source = match app.config.sources.get(shown.name) {
        None => "default",
        Some(Source::Flag) => "flag",
        Some(Source::Environment) => "environment",
        Some(Source::File) => "file",
        Some(Source::Given) => "given",
    };
    let mut object = json!({ "name": shown.name, "source": source });
    match &shown.value {
        Ok(value) => object["value"] = json!(value),
        Err(note) => object["note"] = note.as_str().into(),
    }
    object
}
