//! `GET /v2/settings`: the configuration in effect and the tenant's own tokens, without any secret. What concerns nobody but
//! the operator is told only to callers who can be taken for the operator.

use super::auth::Reader;
use super::error::ApiError;
use crate::app::App;
use crate::config::{Config, Mode, Shown, Source};
use crate::tenants::{Scope, TokenUse};
use axum::Json;
use axum::extract::State;
use posthaste_api_types::settings::{ServerMode, Setting, SettingSource, Settings, Token, TokenScope};
use posthaste_wire::id::TenantId;
use serde_json::json;
use std::sync::Arc;

pub(super) async fn get(
    Reader { tenant, scope }: Reader,
    State(app): State<Arc<App>>,
) -> Result<Json<Settings>, ApiError> {
    let mode = match app.config.mode {
        Mode::Dev => ServerMode::Dev,
        Mode::Serve => ServerMode::Serve,
    };
    let shown = if is_operator(&app.config, scope) { app.config.shown() } else { app.config.shown_to_tenants() };
    let started_at = app.clock.now().minus_millis(app.clock.uptime().as_millis() as u64);
    Ok(Json(Settings {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode,
        started_at,
        tenant: name_of(&app, tenant).to_owned(),
        tokens: app.tokens.of(tenant).into_iter().map(token).collect(),
        settings: shown.into_iter().map(|shown| setting(&app, shown)).collect(),
    }))
}

/// In production that is the only tenant, with the token that may do everything.
fn is_operator(config: &Config, scope: Scope) -> bool {
    config.mode == Mode::Dev || (config.tenants.len() == 1 && scope == Scope::Full)
}

fn name_of(app: &App, tenant: TenantId) -> &str {
    let is_theirs = |name: &str| app.tokens.of_user(name) == Some(tenant);
    app.config.tenants.iter().find(|tenant| is_theirs(&tenant.name)).map_or("", |tenant| &tenant.name)
}

fn token(used: TokenUse<'_>) -> Token {
    let scope = match used.scope {
        Scope::Full => TokenScope::Full,
        Scope::ReadOnly => TokenScope::ReadOnly,
    };
    Token { name: used.name.to_owned(), scope, last_used: used.last_used }
}

fn setting(app: &App, shown: Shown) -> Setting {
    let source = match app.config.sources.get(shown.name) {
        None => SettingSource::Default,
        Some(Source::Flag) => SettingSource::Flag,
        Some(Source::Environment) => SettingSource::Environment,
        Some(Source::File) => SettingSource::File,
        Some(Source::Given) => SettingSource::Given,
    };
    let (value, note) = match shown.value {
        Ok(value) => (Some(json!(value)), None),
        Err(note) => (None, Some(note)),
    };
    Setting { name: shown.name.to_owned(), value, note, source }
}
