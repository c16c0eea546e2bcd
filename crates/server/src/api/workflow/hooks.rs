//! `/v2/workflows/hooks/{user}/{runId}/{eventId}`: anybody who knows the URL sends an event to a run, in any way.
//!
//! There is no token: the URL is the secret, with 15 random letters that the run's client has drawn. So a call counts
//! as a request of the tenant, its body is held in the tenant's share, and all that is unknown is answered alike. Whoever
//! calls what is unknown costs a look at the run, if there is one, and may do so a few times in a second. What is right is
//! never refused for that: it only has to wait for its turn.

use super::{NOT_FOUND, checked_name, refused_event};
use crate::api::access::{Anyone, Methods, get};
use crate::api::body;
use crate::api::caller::{caller, peer_is_trusted};
use crate::api::error::ApiError;
use crate::api::params::decoded;
use crate::api::publish::refuse_when_disk_is_low;
use crate::api::storing;
use crate::app::App;
use crate::core::RunKey;
use crate::quotas::STORED_BYTES_QUOTA;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, header};
use posthaste_engine::workflow::entry::base64_len;
use posthaste_engine::workflow::run::StepText;
use posthaste_store::ReadPool;
use posthaste_wire::encoding::{base64, utf8_or_latin1};
use posthaste_wire::header::canonical;
use posthaste_wire::id::TenantId;
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The kind of the steps that make webhooks.
const CREATE_WEBHOOK: &str = "CreateWebhook";
/// Which scheme a proxy was asked with.
const X_FORWARDED_PROTO: &str = "x-forwarded-proto";

/// All methods that webhooks are known to have.
pub(in crate::api) fn methods() -> Methods {
    get(call).post(call).put(call).patch(call).delete(call).options(call)
}

/// Anonymous callers do not learn how much the tenant has stored.
fn without_figures(error: ApiError) -> ApiError {
    if error.is_quota() { ApiError::quota(format!("quota {STORED_BYTES_QUOTA} exceeded")) } else { error }
}

async fn call(_: Anyone, State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (parts, body) = request.into_parts();
    let Hook { user, run, event } = Hook::read(parts.uri.path())?;
    let run = RunKey { id: run, created_at: None };
    let caller = app.allowances.caller(caller(&app, &parts).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    let now = app.clock.now();
    let tenant = match app.allowances.hook_misses.take(caller, 1, now) {
        Ok(()) => {
            let found = tenant_of(&app, &user, &run.id, &event).await;
            if !matches!(found, Ok(None)) {
                app.allowances.hook_misses.give_back(caller, 1, now);
            }
            found?.ok_or_else(|| ApiError::not_found(NOT_FOUND))?
        }
        // It has missed too often, or many of its calls are being looked up: the others have their turn.
        Err(exhausted) => {
            let refused = || ApiError::burst_quota(exhausted);
            let _turn = app.allowances.hook_turns.wait(caller).await.ok_or_else(refused)?;
            let _lookup = app.allowances.hook_lookups.acquire().await.map_err(|_| refused())?;
            tenant_of(&app, &user, &run.id, &event).await?.ok_or_else(refused)?
        }
    };
    app.allowances.requests.take(tenant, 1, now).map_err(ApiError::burst_quota)?;
    refuse_when_disk_is_low(&app)?;
    let max = app.config.message_bytes_max;
    let over = || ApiError::too_large(format!("the body is larger than {max} bytes"));
    let body = body::read(&app, tenant, &parts.headers, body, max, over).await?;
    let payload = payload(&parts, scheme(&app, &parts), &body.bytes);
    let _promise = storing::admit(&app, tenant, base64_len(payload.len() as u64) as usize).map_err(without_figures)?;
    let notified = app.core.notify_run(tenant, run, event, payload).await?.map_err(refused_event)?;
    Ok(Json(match notified {
        Some(notified) => json!({ "messageId": notified.message_id.to_string() }),
        None => json!({}),
    }))
}

/// Whose webhook this is, if a step of the run has made it. Nobody shows a token here, so whoever does not know its URL
/// learns and changes nothing, and costs the tenant nothing.
async fn tenant_of(app: &Arc<App>, user: &str, run: &str, event: &str) -> Result<Option<TenantId>, ApiError> {
    let Some(tenant) = app.tokens.of_user(user) else { return Ok(None) };
    let (run, event) = (run.to_owned(), event.to_owned());
    let is_open = app.read(tenant, move |store| {
        let Some(run) = store.find_run(tenant, &run, None, ReadPool::Queries)? else { return Ok(false) };
        let steps = store.run_steps(tenant, run, CREATE_WEBHOOK)?;
        Ok(steps.iter().any(|(step, body)| step.is_result() && has_made(body, &event)))
    });
    Ok(is_open.await?.then_some(tenant))
}

/// Whether a step that makes a webhook has made this one.
fn has_made(step: &[u8], event: &str) -> bool {
    let step: StepText = serde_json::from_slice(step).unwrap_or_default();
    let made = step.get("out").and_then(Value::as_str);
    let made = made.and_then(|text| serde_json::from_str::<StepText>(text).ok());
    made.is_some_and(|made| made.get("eventId").and_then(Value::as_str) == Some(event))
}

/// Whom a webhook is for.
#[derive(Debug, PartialEq, Eq)]
struct Hook {
    user: String,
    run: String,
    event: String,
}

impl Hook {
    /// Reads `/v2/workflows/hooks/{user}/{run}/{event}`.
    fn read(path: &str) -> Result<Hook, ApiError> {
        let mut parts = path.splitn(7, '/').skip(4).map(decoded);
        let mut next = || parts.next().unwrap_or_else(|| Ok(String::new()));
        let (user, run, event) = (next()?, next()?, next()?);
        Ok(Hook { user, run: checked_name("the run id", &run)?, event: checked_name("the event id", &event)? })
    }
}

/// What the run gets: the request, whole.
fn payload(parts: &Parts, scheme: &str, body: &[u8]) -> Vec<u8> {
    let host = host(parts);
    let url = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let mut payload = json!({
        "method": parts.method.as_str(),
        "header": shown(&parts.headers),
        "proto": scheme,
        "host": host,
        "url": url,
    });
    if !body.is_empty() {
        payload["body"] = base64(body).into();
    }
    payload.to_string().into_bytes()
}

/// For each name its values; the host stands apart.
fn shown(headers: &HeaderMap) -> Map<String, Value> {
    let names = headers.keys().filter(|name| **name != header::HOST);
    let values = |name| headers.get_all(name).iter().map(|value| utf8_or_latin1(value.as_bytes()).into_owned());
    names.map(|name| (canonical(name.as_str()), values(name).collect::<Vec<_>>().into())).collect()
}

/// Where the request was sent.
fn host(parts: &Parts) -> String {
    let in_header = parts.headers.get(header::HOST).map(|host| utf8_or_latin1(host.as_bytes()).into_owned());
    in_header.or_else(|| parts.uri.authority().map(ToString::to_string)).unwrap_or_default()
}

/// How the request was sent: as a trusted proxy says, or as the public URL does if it was sent there. We speak no TLS.
fn scheme(app: &App, parts: &Parts) -> &'static str {
    let said = parts.headers.get(X_FORWARDED_PROTO).filter(|_| peer_is_trusted(app, parts));
    let public = app.config.public_url.as_deref().and_then(|url| url::Url::parse(url).ok());
    let own_host =
        public.as_ref().is_some_and(|url| url[url::Position::BeforeHost..url::Position::AfterPort] == host(parts));
    let first = |said: &'_ HeaderValue| said.as_bytes().split(|byte| *byte == b',').next().map(<[u8]>::to_vec);
    match said.and_then(first).as_deref().map(<[u8]>::trim_ascii) {
        Some(said) if said.eq_ignore_ascii_case(b"https") => "https",
        Some(_) => "http",
        None if own_host && public.as_ref().is_some_and(|url| url.scheme() == "https") => "https",
        None => "http",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_name_a_user_a_run_and_an_event() {
        let hook = |user: &str, run: &str, event: &str| Hook {
            user: user.to_owned(),
            run: run.to_owned(),
            event: event.to_owned(),
        };
        for (path, expected) in [
            ("/v2/workflows/hooks/defaultUser/wfr_1/evt_2", hook("defaultUser", "wfr_1", "evt_2")),
            ("/v2/workflows/hooks/a%20b/wfr_%2F/evt/2/", hook("a b", "wfr_/", "evt/2/")),
        ] {
            assert_eq!(Hook::read(path).ok(), Some(expected), "{path}");
        }
        for path in ["/v2/workflows/hooks/u/r/", "/v2/workflows/hooks/u//e", "/v2/workflows/hooks/u/r/%FF"] {
            assert!(Hook::read(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_step_has_made_the_webhook_that_its_result_names() {
        let step = |out: Value| json!({ "stepId": 1, "stepType": CREATE_WEBHOOK, "out": out }).to_string();
        let made = step(json!({ "webhookUrl": "https://x/evt_1", "eventId": "evt_1" }).to_string().into());
        assert!(has_made(made.as_bytes(), "evt_1"));
        for other in [made.replace("evt_1", "evt_2"), step(json!("evt_1")), step(json!({ "eventId": "evt_1" }))] {
            assert!(!has_made(other.as_bytes(), "evt_1"), "{other}");
        }
        assert!(!has_made(b"evt_1", "evt_1"));
    }

    #[test]
    fn a_run_gets_the_whole_request() {
        let request = axum::http::Request::builder()
            .method("PUT")
            .uri("/v2/workflows/hooks/u/wfr_x/evt_y?q=1")
            .header("host", "127.0.0.1:8080")
            .header("x-a", "1")
            .header("x-a", "2");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let url = "/v2/workflows/hooks/u/wfr_x/evt_y?q=1";
        let mut expected = json!({
            "method": "PUT", "header": { "X-A": ["1", "2"] }, "proto": "http", "host": "127.0.0.1:8080", "url": url,
        });
        let read = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
        assert_eq!(read(payload(&parts, "http", b"")), expected);
        expected["body"] = "aGk=".into();
        assert_eq!(read(payload(&parts, "http", b"hi")), expected);
    }
}
