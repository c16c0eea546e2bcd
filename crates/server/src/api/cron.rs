//! `GET /v2/cron`: when an expression fires, before a schedule is made of it.

use super::auth::Reader;
use super::error::ApiError;
use super::params::Params;
use super::publish::{CRON, publish_limits};
use crate::app::App;
use axum::Json;
use axum::extract::State;
use posthaste_api_types::schedule as types;
use posthaste_wire::cron::{ClockChange, Cron, Firing};
use posthaste_wire::publish as options;
use std::sync::Arc;

/// Fire times in an answer unless the request says how many.
const FORECAST_DEFAULT: usize = 10;
/// Most fire times in an answer; more are refused with 400.
const FORECAST_MAX: usize = 100;

/// The next fire times after now, or after another time.
pub(super) async fn forecast(
    _: Reader,
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<Json<types::Forecast>, ApiError> {
    params.only(&["expression", "count", "after"])?;
    let expression = params.one("expression")?.ok_or_else(|| ApiError::invalid("expression is missing"))?;
    let count = match params.number("count", 1)?.map(usize::try_from) {
        None => FORECAST_DEFAULT,
        Some(Ok(count)) if count <= FORECAST_MAX => count,
        Some(_) => return Err(ApiError::invalid(format!("count must be 1 to {FORECAST_MAX}"))),
    };
    let after = params.date("after")?.unwrap_or_else(|| app.clock.now());
    let cron = read(&app, expression.as_bytes())?;
    Ok(Json(types::Forecast {
        expression: cron.text().to_owned(),
        zone: cron.zone().to_owned(),
        fires: cron.forecast(after, count).into_iter().map(shape).collect(),
    }))
}

/// An expression, read as the header of a publish is, with the same words for what is wrong.
pub(super) fn read(app: &App, expression: &[u8]) -> Result<Cron, ApiError> {
    let options = options::parse([(CRON, expression)].into_iter(), &publish_limits(app), app.clock.now())?;
    options.cron.ok_or_else(|| ApiError::invalid("expression is missing"))
}

fn shape(firing: Firing) -> types::Firing {
    let (clock_change, remark) = firing.remark.map(|remark| (clock_change(remark.change), remark.text)).unzip();
    types::Firing { time: firing.at, local: firing.local, clock_change, remark }
}

fn clock_change(change: ClockChange) -> types::ClockChange {
    match change {
        ClockChange::Skipped => types::ClockChange::Skipped,
        ClockChange::Repeated => types::ClockChange::Repeated,
    }
}
