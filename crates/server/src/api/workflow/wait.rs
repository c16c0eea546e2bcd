//! `POST /v2/wait/{eventId}`: a step of a run waits for an event.

use super::protocol::{created_at, value};
use super::publish::{Asked, bounds};
use super::translate::{Bounds, HeaderLists, lists};
use super::{checked_name, checked_step, headers, refused_append};
use crate::api::auth::Writer;
use crate::api::body::{SmallRequest, read_small};
use crate::api::error::ApiError;
use crate::api::params::decoded;
use crate::api::publish::{Line, expression_checks, refuse_when_disk_is_low, rest_of};
use crate::api::storing;
use crate::app::App;
use crate::core::{Room, RunKey, wait_bytes};
use axum::Json;
use axum::extract::{Request, State};
use posthaste_api_types::Done;
use posthaste_engine::limits::WORKFLOW_WAIT_MS_DEFAULT;
use posthaste_engine::workflow::WaitFor;
use posthaste_engine::workflow::run::StepText;
use posthaste_wire::duration::{Units, parse_duration_in};
use posthaste_wire::echo::echo;
use posthaste_wire::encoding::JsonError;
use posthaste_wire::header;
use posthaste_wire::rejection::Rejection;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// How long a wait lasts when the client says nothing; [`WORKFLOW_WAIT_MS_DEFAULT`], as clients write it.
const TIMEOUT_DEFAULT: &str = "7d";

/// A wait, as clients send it. Where the result goes is known: to the run.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    #[serde(default)]
    timeout: Value,
    #[serde(default)]
    timeout_headers: HeaderLists,
    step: StepText,
}

pub(in crate::api) async fn wait(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Done>, ApiError> {
    let SmallRequest { parts, body } = read_small(&app, tenant, request).await?;
    refuse_when_disk_is_low(&app)?;
    let event = decoded(rest_of(parts.uri.path()))?;
    let lines: Vec<Line<'_>> = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let read = read(&event, &lines, &body.bytes, &bounds(&app, Asked { caller_ip: "", checks: &expression_checks() }));
    let (run, mut wait) = read.map_err(|rejection| ApiError::from(rejection).told_to_a_run())?;
    app.core.credentials().seal(tenant, &mut wait);
    let disk = Some(storing::admit(&app, tenant, wait_bytes(&wait))?);
    app.core.wait_for_event(tenant, run, wait, Room { disk, ..Room::default() }).await?.map_err(refused_append)?;
    Ok(Json(Done {}))
}

/// Which run waits, and for what. Clients name the run in the headers of the request and in those of the result.
pub(super) fn read(
    event: &str,
    lines: &[Line<'_>],
    body: &[u8],
    bounds: &Bounds<'_>,
) -> Result<(RunKey, WaitFor), Rejection> {
    let event = checked_name("the event id", event)?;
    let body: Body = serde_json::from_slice(body).map_err(|error| {
        Rejection::invalid(format!("the body does not name the waiting step: {}", JsonError::from(error)))
    })?;
    let (timeout, timeout_ms) = duration(&body.timeout, bounds.limits.delay_ms_max)?;
    let mut headers = headers::deliverable(lists(body.timeout_headers))?;
    let in_body = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(header::WORKFLOW_RUN_ID));
    let in_body = in_body.and_then(|(_, values)| values.first().cloned());
    let is_shown = in_body.is_some();
    let id = value(lines, header::WORKFLOW_RUN_ID).map(Into::into).or(in_body).unwrap_or_default();
    let run = RunKey { id: checked_name("Upstash-Workflow-RunId", &id)?, created_at: created_at(lines) };
    if !is_shown {
        // Whoever looks at the waiters of an event finds the run by this.
        headers.push((header::canonical(header::WORKFLOW_RUN_ID), vec![run.id.clone()]));
    }
    let terms = headers::own_terms(&headers, bounds)?;
    let step = checked_step(body.step)?;
    Ok((run, WaitFor { event, step, timeout, timeout_ms, headers, terms }))
}

/// How long, as it was sent and in milliseconds. Numbers are seconds.
fn duration(timeout: &Value, max_ms: u64) -> Result<(String, u64), Rejection> {
    let text = match timeout {
        Value::Null => return Ok((TIMEOUT_DEFAULT.to_owned(), WORKFLOW_WAIT_MS_DEFAULT.min(max_ms))),
        Value::String(text) => text.clone(),
        Value::Number(seconds) => format!("{seconds}s"),
        _ => return Err(Rejection::invalid("timeout must be a duration such as 30s, 5m or 7d")),
    };
    let millis = parse_duration_in(Units::Long, text.trim())
        .map_err(|error| Rejection::invalid(format!("timeout: {} is {error}", echo(&text))))?;
    match millis <= max_ms {
        true => Ok((text, millis)),
        false => Err(Rejection::quota("maxDelay", max_ms / 1_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workflow::golden::bounds;
    use serde_json::json;

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn timeouts_are_durations_or_seconds() {
        for (given, text, millis) in [
            (json!("10s"), "10s", 10_000),
            (json!(30), "30s", 30_000),
            (json!(1.5), "1.5s", 1_500),
            (json!(1.0 / 3.0), "0.3333333333333333s", 333),
            (json!("0.3333333333333333s"), "0.3333333333333333s", 333),
            (json!("45"), "45", 45_000),
            (Value::Null, "7d", 7 * DAY_MS),
            (json!("30d"), "30d", 30 * DAY_MS),
            (json!("2w"), "2w", 14 * DAY_MS),
            (json!("1mo"), "1mo", 30 * DAY_MS),
        ] {
            assert_eq!(duration(&given, 30 * DAY_MS), Ok((text.to_owned(), millis)), "{given}");
        }
        let accepted = "accepted are d, h, m and s, such as 1d10h30m, 5m or 0.5s, and a number of seconds";
        for (given, message) in [
            (json!("soon"), format!("timeout: \"soon\" is not a duration; {accepted}")),
            (json!("500ms"), format!("timeout: \"500ms\" is not a duration: ms is not supported here; {accepted}")),
            (json!(true), "timeout must be a duration such as 30s, 5m or 7d".to_owned()),
            (json!("31d"), "quota maxDelay exceeded, current limit: 2592000 (30d)".to_owned()),
        ] {
            assert_eq!(duration(&given, 30 * DAY_MS).unwrap_err().message, message);
        }
    }

    #[test]
    fn the_run_is_named_in_one_place_or_the_other() {
        let body = br#"{"timeoutHeaders":{"Upstash-Workflow-Runid":["wfr_b"]},"step":{"stepId":1}}"#;
        let in_body = read("e", &[], body, &bounds()).unwrap().0;
        assert_eq!(in_body, RunKey { id: "wfr_b".to_owned(), created_at: None });
        let lines: [Line<'_>; 2] = [("upstash-workflow-runid", b"wfr_a"), ("upstash-workflow-createdat", b"5")];
        let in_header = read("e", &lines, body, &bounds()).unwrap().0;
        assert_eq!((in_header.id.as_str(), in_header.created_at.map(|at| at.as_millis())), ("wfr_a", Some(5)));
        let long = "e".repeat(1_025);
        for (event, body) in [("e", &b"{}"[..]), ("e", b"[]"), ("e", br#"{"step":{}}"#), (&long, body), ("", body)] {
            assert!(read(event, &[], body, &bounds()).is_err(), "{event:.10} {}", String::from_utf8_lossy(body));
        }
    }
}
