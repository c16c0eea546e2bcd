//! `/v2/topics`: URL groups, each a name for several destinations.

use super::auth::{Access, authorize};
use super::body::{SmallRequest, read_small};
use super::error::ApiError;
use super::publish::{PUBLISH_LIMITS, no_group, refused_destination};
use crate::app::App;
use axum::Json;
use axum::extract::{Path, Request, State};
use posthaste_engine::limits::{GROUP_ENDPOINTS_MAX, NAME_BYTES_MAX, URL_BYTES_MAX};
use posthaste_engine::url_group::{Edit, Endpoint, EndpointRef, Refused, UrlGroup};
use posthaste_wire::destination::{check_url, is_group_name};
use posthaste_wire::id::TenantId;
use posthaste_wire::publish as options;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) async fn list(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tenant = reader(&app, &request)?;
    let groups = app.read(move |store| store.url_groups(tenant)).await?;
    Ok(Json(groups.iter().map(shape).collect()))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let tenant = reader(&app, &request)?;
    let wanted = name.clone();
    let group = app.read(move |store| store.url_group(tenant, &wanted)).await?;
    Ok(Json(shape(&group.ok_or_else(|| no_group(&name))?)))
}

/// Adds endpoints, or changes those with the same name or URL.
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (tenant, body) = read(&app, request).await?;
    let name = checked_name(name)?;
    let items = endpoints(&body)?.ok_or_else(|| ApiError::invalid("endpoints is missing"))?;
    let mut added = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        added.push(endpoint(&app, item).map_err(|error| error.at(index))?);
    }
    edit(&app, tenant, name, Edit::Add(added)).await
}

/// Removes endpoints; the group goes with the last one.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (tenant, body) = read(&app, request).await?;
    let items = endpoints(&body)?.ok_or_else(|| ApiError::invalid("endpoints is missing"))?;
    edit(&app, tenant, name, removal(items)?).await
}

/// Removes the group; SDK 2.1.0 sends endpoints here and means only those.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (tenant, body) = read(&app, request).await?;
    let change = match endpoints(&body)? {
        Some(items) => removal(items)?,
        None => Edit::Delete,
    };
    edit(&app, tenant, name, change).await
}

/// Replaces the headers that every publish to the group has unless it says otherwise.
pub(super) async fn set_headers(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (tenant, body) = read(&app, request).await?;
    let Some(Value::Object(given)) = body.get("headers") else {
        return Err(ApiError::invalid("headers must be an object of header names and values"));
    };
    let mut headers = Vec::new();
    for (name, values) in given {
        let values = match values {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            let text = value.as_str().ok_or_else(|| {
                ApiError::invalid(format!("headers: the value of {name} must be a string or a list of strings"))
            })?;
            headers.push((name.clone(), text.to_owned()));
        }
    }
    // What would be refused at every publish is refused now.
    let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    options::parse(lines, &PUBLISH_LIMITS, app.clock.now())?;
    edit(&app, tenant, name, Edit::SetHeaders(headers)).await
}

async fn edit(app: &Arc<App>, tenant: TenantId, name: String, edit: Edit) -> Result<Json<Value>, ApiError> {
    let (group, now) = (name.clone(), app.clock.now());
    match app.read(move |store| store.edit_url_group(tenant, &group, &edit, now)).await? {
        Ok(()) => Ok(Json(json!({}))),
        Err(Refused::Absent) => Err(no_group(&name)),
        Err(Refused::TooMany) => {
            let text = format!("quota maxEndpointsPerTopic exceeded, current limit: {GROUP_ENDPOINTS_MAX}");
            Err(ApiError::quota(text))
        }
    }
}

fn reader(app: &App, request: &Request) -> Result<TenantId, ApiError> {
    authorize(app, request.headers(), request.uri(), Access::Read)
}

/// Who wants to change something, and the JSON object that says what; an empty body is an empty object.
async fn read(app: &Arc<App>, request: Request) -> Result<(TenantId, Map<String, Value>), ApiError> {
    let SmallRequest { tenant, body, .. } = read_small(app, request).await?;
    if body.bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok((tenant, Map::new()));
    }
    let object = serde_json::from_slice(&body.bytes)
        .map_err(|error| ApiError::invalid(format!("the body is not a JSON object: {error}")))?;
    Ok((tenant, object))
}

/// An endpoint as the SDKs send it.
#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

/// The list of endpoints in a body, if it has one; an empty one is a mistake.
fn endpoints(body: &Map<String, Value>) -> Result<Option<Vec<Item>>, ApiError> {
    let Some(value) = body.get("endpoints") else { return Ok(None) };
    let items: Vec<Item> = serde_json::from_value(value.clone())
        .map_err(|error| ApiError::invalid(format!("endpoints must be a list of {{url, name}}: {error}")))?;
    if items.is_empty() {
        return Err(ApiError::invalid("endpoints is an empty list"));
    }
    Ok(Some(items))
}

fn endpoint(app: &App, item: Item) -> Result<Endpoint, ApiError> {
    let url = item.url.ok_or_else(|| ApiError::invalid("url is missing"))?;
    check_url(&url, URL_BYTES_MAX)?;
    app.config.egress.check_url(&url).map_err(|refusal| refused_destination(&refusal))?;
    let name = item.name.filter(|name| !name.is_empty());
    if name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control)) {
        let text = format!("name must have at most {NAME_BYTES_MAX} bytes and no control characters");
        return Err(ApiError::invalid(text));
    }
    Ok(Endpoint { url, name })
}

fn removal(items: Vec<Item>) -> Result<Edit, ApiError> {
    let named = |item: Item| {
        let (url, name) = (item.url.filter(|url| !url.is_empty()), item.name.filter(|name| !name.is_empty()));
        match (&url, &name) {
            (None, None) => Err(ApiError::invalid("an endpoint to remove needs a url or a name")),
            _ => Ok(EndpointRef { url, name }),
        }
    };
    Ok(Edit::Remove(items.into_iter().map(named).collect::<Result<_, _>>()?))
}

fn checked_name(name: String) -> Result<String, ApiError> {
    if name.len() <= NAME_BYTES_MAX && is_group_name(&name) {
        return Ok(name);
    }
    Err(ApiError::invalid("the name of a URL group may have letters, digits, `-`, `_` and `.` only"))
}

/// A.5: a URL group.
fn shape(group: &UrlGroup) -> Value {
    let mut object = json!({
        "name": group.name,
        "createdAt": group.created_at.as_millis(),
        "updatedAt": group.updated_at.as_millis(),
        "endpoints": group.endpoints,
    });
    if !group.headers.is_empty() {
        let mut headers = Map::new();
        for (name, value) in &group.headers {
            match headers.get_mut(name) {
                Some(Value::Array(values)) => values.push(value.as_str().into()),
                _ => drop(headers.insert(name.clone(), json!([value]))),
            }
        }
        object["headers"] = headers.into();
    }
    object
}
