//! `POST /v2/batch`: many messages in one request, stored in one transaction.

use super::auth::{Access, authorize};
use super::body;
use super::error::ApiError;
use super::publish::{Published, Publisher, Refusal, caller_ip, prepare, PUBLISH_LIMITS, status_of};
use crate::app::App;
use crate::core::NewMessage;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use posthaste_engine::limits::{BATCH_BYTES_MAX, BATCH_ITEMS_MAX, URL_BYTES_MAX};
use posthaste_wire::destination::{self, Destination};
use posthaste_wire::publish as options;
use posthaste_wire::rejection::Rejection;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One item, as the SDKs send it: Python sends nulls, Go sends lists of header values.
#[derive(Deserialize)]
struct Item {
    destination: Option<String>,
    #[serde(default)]
    headers: Option<BTreeMap<String, HeaderValues>>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    queue: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderValues {
    One(String),
    Many(Vec<String>),
}

impl HeaderValues {
    fn as_slice(&self) -> &[String] {
        match self {
            HeaderValues::One(value) => std::slice::from_ref(value),
            HeaderValues::Many(values) => values,
        }
    }
}

/// The answer to one item.
#[derive(Serialize)]
#[serde(untagged)]
enum ItemAnswer {
    Published(Published),
    Refused { error: String },
}

pub(super) async fn batch(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let token = destination::split_query(parts.uri.query()).token;
    let tenant = authorize(&app, &parts.headers, token.as_deref(), Access::Write)?;
    let over = || ApiError::too_large(format!("the batch is larger than {BATCH_BYTES_MAX} bytes; send it in parts"));
    let body = body::read(&app, &parts.headers, body, BATCH_BYTES_MAX, over).await?;
    let items: Vec<Item> = serde_json::from_slice(&body.bytes)
        .map_err(|error| ApiError::invalid(format!("the batch is not a JSON array of {{destination, headers, body}}: {error}")))?;
    if items.len() > BATCH_ITEMS_MAX {
        return Err(ApiError::invalid(format!("the batch has {} items, at most {BATCH_ITEMS_MAX} are accepted", items.len())));
    }
    let publisher = Publisher { tenant, caller_ip: caller_ip(&parts.extensions) };
    let mut messages = Vec::with_capacity(items.len());
    let mut refused: Vec<Option<String>> = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match prepare_item(&app, &publisher, item) {
            Ok(message) => {
                messages.push(message);
                refused.push(None);
            }
            Err(Refusal::Destination(error)) => refused.push(Some(error.into_message())),
            Err(Refusal::Malformed(error)) => return Err(error.at(index)),
        }
    }
    let accepted = if messages.is_empty() { Vec::new() } else { app.core.publish(messages).await? };
    let status = status_of(&accepted);
    let mut accepted = accepted.into_iter();
    let answers: Vec<ItemAnswer> = refused
        .into_iter()
        .filter_map(|refused| match refused {
            Some(error) => Some(ItemAnswer::Refused { error }),
            None => accepted.next().map(|accepted| ItemAnswer::Published(accepted.into())),
        })
        .collect();
    Ok((status, Json(answers)).into_response())
}

fn prepare_item(app: &App, publisher: &Publisher, item: Item) -> Result<NewMessage, Refusal> {
    let malformed = |error: ApiError| Refusal::Malformed(error);
    let text = item.destination.ok_or_else(|| malformed(ApiError::invalid("destination is missing")))?;
    if item.queue.is_some_and(|queue| !queue.is_empty()) {
        let rejection = Rejection::unsupported("queue", "queues");
        return Err(malformed(rejection.into()));
    }
    let destination = Destination::parse_whole(&text, URL_BYTES_MAX).map_err(|error| malformed(error.into()))?;
    let headers = item.headers.unwrap_or_default();
    let lines = headers
        .iter()
        .flat_map(|(name, values)| values.as_slice().iter().map(move |value| (name.as_str(), value.as_bytes())));
    let options = options::parse(lines, &PUBLISH_LIMITS, app.clock.now()).map_err(|rejection| malformed(rejection.into()))?;
    let body = Bytes::from(item.body.unwrap_or_default());
    let max = app.config.message_bytes_max;
    if body.len() > max {
        return Err(malformed(ApiError::quota(format!("quota maxMessageSize exceeded, current limit: {max}"))));
    }
    prepare(app, publisher, destination, options, body)
}
