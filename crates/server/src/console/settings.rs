//! Settings: the signing keys and their rotation, tokens, the configuration in effect, version and health.

use super::visitor::Problem;
use super::{Desk, Visitor, back_to, view};
use axum::Router;
use axum::extract::{Form, Query};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// The path of the page.
const HERE: &str = "/console/settings";

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new().route("/settings", get(show)).route("/settings/rotate", post(rotate))
}

#[derive(Deserialize)]
struct Wanted {
    /// `show`: the keys are asked for.
    #[serde(default)]
    keys: String,
}

#[derive(Deserialize)]
struct Confirmed {
    #[serde(default)]
    confirmed: String,
}

/// The API's answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    version: String,
    mode: String,
    started_at: u64,
    tenant: String,
    tokens: Vec<Token>,
    settings: Vec<Setting>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    name: String,
    scope: String,
    last_used: Option<u64>,
}

#[derive(Deserialize)]
struct Setting {
    name: String,
    value: Option<Value>,
    note: Option<String>,
    source: String,
}

/// The signing keys. Not `Debug`.
#[derive(Deserialize)]
struct Keys {
    current: String,
    next: String,
}

async fn show(visitor: Visitor, Query(Wanted { keys }): Query<Wanted>) -> Result<Markup, Problem> {
    let settings: Settings = visitor.get("/v2/settings").await?;
    let keys: Option<Result<Keys, Problem>> = match keys.as_str() {
        "show" => Some(visitor.get("/v2/keys").await),
        _ => None,
    };
    let ready = visitor.send(Method::GET, "/ready", &[], Vec::new()).await;
    let body = html! {
        div.title { h1 { "Settings" } span.quiet { "Tenant " (settings.tenant) } }
        div.columns.uneven {
            (key_card(&visitor, keys.as_ref()))
            (rotation_card(&visitor))
        }
        div.columns.uneven {
            (server_card(&visitor, &settings, &ready))
            (token_card(&visitor, &settings))
        }
        (configuration(&settings))
    };
    Ok(view::page(&visitor.frame("Settings"), &body))
}

/// The rotation, once the box is ticked: without a script nobody else asks.
async fn rotate(visitor: Visitor, Form(Confirmed { confirmed }): Form<Confirmed>) -> Result<Response, Problem> {
    if confirmed != "yes" {
        let text = "Confirm first that all your receivers know the next key. Nothing was rotated.";
        return Err(Problem::refused(text));
    }
    visitor.send(Method::POST, "/v2/keys/rotate", &[], Vec::new()).await?;
    let said = "Keys rotated. The former next key now signs deliveries. Give both keys below to your receivers.";
    Ok(back_to(&format!("{HERE}?keys=show"), said))
}

fn key_card(visitor: &Visitor, keys: Option<&Result<Keys, Problem>>) -> Markup {
    html! {
        section.card aria-labelledby="keys-title" {
            h2 #keys-title { "Signing keys" }
            p { "Every delivery is signed with the current key. Your receivers need both keys and accept signatures of either one." }
            @match keys {
                Some(Ok(keys)) => {
                    dl.facts {
                        (key("QSTASH_CURRENT_SIGNING_KEY", &keys.current))
                        (key("QSTASH_NEXT_SIGNING_KEY", &keys.next))
                    }
                    p { a.button href=(HERE) { "Hide keys" } }
                },
                Some(Err(problem)) => p.problem role="alert" { (problem.text) },
                None => form method="get" action=(HERE) {
                    input type="hidden" name="keys" value="show";
                    button type="submit" disabled[!visitor.may_act()] { "Show keys" }
                    @if !visitor.may_act() { p.hint { "Read-only tokens cannot view the keys." } }
                },
            }
        }
    }
}

fn key(name: &str, key: &str) -> Markup {
    html! {
        dt { code { (name) } }
        dd { code { (key) } " " button type="button" data-copy=(key) { "Copy" } }
    }
}

fn rotation_card(visitor: &Visitor) -> Markup {
    let question = "Rotate the signing keys now? The current key will be deleted and cannot be restored.";
    html! {
        section.card aria-labelledby="rotation-title" {
            h2 #rotation-title { "Rotate keys" }
            p { "Rotate the keys every few months, or when a key may have leaked:" }
            ol {
                li { "Make sure that every receiver knows " strong { "both" } " keys. A receiver that knows only the current key will reject every delivery after the rotation." }
                li { "Rotate the keys. The next key becomes the current key and signs all deliveries from then on, including retries of older messages. A new next key is created." }
                li { "Give both new keys to your receivers. Until then they accept deliveries, because they know the key that signs." }
            }
            p { "Do not rotate twice before your receivers have the new keys. They would know neither key." }
            form.fields method="post" action="/console/settings/rotate" data-confirm=(question) {
                label.tick {
                    input type="checkbox" name="confirmed" value="yes" required disabled[!visitor.may_act()];
                    " All my receivers know the next key"
                }
                div {
                    button.danger type="submit" disabled[!visitor.may_act()]
                        title=[view::refusal(visitor)] { "Rotate keys" }
                }
            }
        }
    }
}

fn token_card(visitor: &Visitor, settings: &Settings) -> Markup {
    let now = visitor.now();
    let scope = |token: &Token| if token.scope == "full" { "full access" } else { "read-only" };
    html! {
        section.card aria-labelledby="tokens-title" {
            h2 #tokens-title { "Tokens" }
            div.scroll {
                table {
                    thead { tr { th scope="col" { "Token" } th scope="col" { "Scope" } th scope="col" { "Last used" } } }
                    tbody {
                        @for token in &settings.tokens {
                            tr {
                                th scope="row" { code { (token.name) } }
                                td { (scope(token)) }
                                td {
                                    @match token.last_used {
                                        Some(at) => (view::time(Timestamp(at), now)),
                                        None => span.quiet { "never" },
                                    }
                                }
                            }
                        }
                    }
                }
            }
            p.hint {
                "After a crash, uses in the last minute may be missing. The server started at "
                (view::time_in_full(Timestamp(settings.started_at), now)) ". Tokens are stored as hashes and cannot be shown."
            }
        }
    }
}

fn server_card(visitor: &Visitor, settings: &Settings, ready: &Result<Value, Problem>) -> Markup {
    let now = visitor.now();
    html! {
        section.card aria-labelledby="server-title" {
            h2 #server-title { "Server" }
            dl.facts {
                dt { "Health" }
                dd {
                    @match ready {
                        Ok(_) => span.state.good { "ready" },
                        Err(problem) => { span.state.bad { "not ready" } " " (problem.text) },
                    }
                }
                dt { "Version" } dd { (settings.version) }
                dt { "Mode" } dd { (settings.mode) }
                dt { "Running since" } dd { (view::time_in_full(Timestamp(settings.started_at), now)) }
                dt { "Endpoints" }
                dd {
                    a href="/openapi.json" { "/openapi.json" } ", "
                    a href="/metrics" { "/metrics" } ", "
                    a href="/health" { "/health" } ", "
                    a href="/ready" { "/ready" }
                }
            }
            @if settings.mode == "serve" { p.hint { "/metrics requires the metrics token. If none is configured, it is off." } }
        }
    }
}

fn configuration(settings: &Settings) -> Markup {
    html! {
        section aria-labelledby="configuration-title" {
            h2 #configuration-title { "Configuration in effect" }
            p.quiet { "Flags override environment variables, which override the file. Secrets and their lengths are not shown. In production, read-only tokens and the tenants of a shared server see only the settings that apply to them." }
            div.scroll tabindex="0" role="region" aria-labelledby="configuration-title" {
                table #configuration {
                    thead { tr { th scope="col" { "Setting" } th scope="col" { "Value" } th scope="col" { "From" } } }
                    tbody { @for setting in &settings.settings { (row(setting)) } }
                }
            }
        }
    }
}

/// The API has lengths of time as `31536000s`.
fn seconds(value: &str) -> Option<u64> {
    value.strip_suffix('s')?.parse().ok()
}

fn row(setting: &Setting) -> Markup {
    let value = setting.value.as_ref().map(|value| match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(", "),
        value => value.to_string(),
    });
    let source = match setting.source.as_str() {
        "flag" => "flag",
        "environment" => "environment",
        "file" => "file",
        "given" => "startup",
        _ => "default",
    };
    html! {
        tr {
            th scope="row" { code { (setting.name) } }
            td {
                @if let Some(value) = value {
                    @if let Some(seconds) = seconds(&value) { (view::in_words(seconds)) " " }
                    code.quiet[seconds(&value).is_some()] { (value) }
                }
                @if let Some(note) = &setting.note { span.quiet { (note) } }
            }
            td.tight { @if source == "default" { span.quiet { (source) } } @else { (source) } }
        }
    }
}
