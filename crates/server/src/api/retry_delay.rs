//! `GET /v2/retryDelay`: when a message with these settings would be tried again.

use super::auth::Reader;
use super::error::ApiError;
use super::params::Params;
use crate::app::App;
use axum::Json;
use axum::extract::State;
use posthaste_api_types::retry_plan::{PlannedAttempt, RetryPlan};
use posthaste_engine::retry::{JITTER_SHARE, planned_delays_ms};
use posthaste_wire::retry_delay::RetryDelay;
use std::sync::Arc;

pub(super) async fn plan(_: Reader, State(app): State<Arc<App>>, params: Params) -> Result<Json<RetryPlan>, ApiError> {
    params.only(&["expression", "retries"])?;
    let retries = match params.one("retries")? {
        None => app.config.quotas.retries_default(),
        Some(text) => {
            text.parse().map_err(|_| ApiError::invalid(format!("retries: {text:?} is not a whole number")))?
        }
    };
    let max = app.config.quotas.retries;
    if retries > max {
        return Err(ApiError::quota(format!("quota maxRetries exceeded, current limit: {max}")));
    }
    let text = params.one("expression")?;
    let refused = |error: posthaste_wire::retry_delay::InvalidExpression| ApiError::invalid(error.to_string());
    let expression = text.map(RetryDelay::parse).transpose().map_err(refused)?;
    if let Some(expression) = &expression {
        expression.check(retries).map_err(refused)?;
    }
    Ok(Json(shape(text, expression.as_ref(), retries)))
}

fn shape(text: Option<&str>, expression: Option<&RetryDelay>, retries: u32) -> RetryPlan {
    let mut at_ms: u64 = 0;
    let mut attempts = vec![PlannedAttempt { delay_ms: 0, at_ms: 0 }];
    for delay_ms in planned_delays_ms(expression, retries) {
        at_ms += delay_ms;
        attempts.push(PlannedAttempt { delay_ms, at_ms });
    }
    let jitter = if expression.is_some() { 0.0 } else { JITTER_SHARE };
    RetryPlan { retries, expression: text.map(str::to_owned), attempts, gives_up_at_ms: at_ms, jitter }
}
