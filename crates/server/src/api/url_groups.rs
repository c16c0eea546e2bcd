//! `/v2/topics`: URL groups, each a name for several destinations.

use super::auth::{Reader, Writer};
use super::body::{SmallRequest, read_small};
use super::error::ApiError;
use super::params::Params;
use super::pieces::Pieces;
use super::publish::{no_group, publish_limits, refuse_when_disk_is_low, refused_destination};
use super::response::{Answer, answer};
use super::storing;
use super::viewer::Viewer;
use crate::app::App;
use crate::data_dir::DiskPromise;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use posthaste_api_types::Done;
use posthaste_api_types::url_group as types;
use posthaste_engine::limits::{NAME_BYTES_MAX, URL_BYTES_MAX};
use posthaste_engine::url_group::{Edit, Endpoint, EndpointRef, Refused, UrlGroup};
use posthaste_store::{Names, Store, StoreError, json_row_bytes};
use posthaste_wire::destination::{check_url, is_name, without_fragment};
use posthaste_wire::encoding::{JsonError, is_sealed};
use posthaste_wire::header;
use posthaste_wire::id::TenantId;
use posthaste_wire::publish as options;
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::{Arc, PoisonError};

/// A bare list, as the SDKs read it; a header says where the next page begins.
pub(super) async fn list(caller: Reader, State(app): State<Arc<App>>, params: Params) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let page = params.name_page()?;
    let make = move |store: &dyn Store| {
        let Names { entries, next } = store.url_groups(viewer.tenant, &page)?;
        let mut pieces = Pieces::default();
        pieces.values(entries.into_iter().map(|group| shape(group, &viewer)));
        Ok(Ok(Answer { json: pieces.finish(), cursor: next }))
    };
    answer(&app, viewer.tenant, make).await
}

pub(super) async fn get(
    caller: Reader,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<types::UrlGroup>, ApiError> {
    let viewer = caller.viewer(&app);
    let wanted = name.clone();
    let group = app.read(viewer.tenant, move |store| store.url_group(viewer.tenant, &wanted)).await?;
    Ok(Json(shape(group.ok_or_else(|| no_group(&name))?, &viewer)))
}

/// Adds endpoints, or changes those with the same name or URL.
pub(super) async fn add(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Done>, ApiError> {
    let body = read(&app, tenant, request).await?;
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
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Done>, ApiError> {
    let body = read(&app, tenant, request).await?;
    let items = endpoints(&body)?.ok_or_else(|| ApiError::invalid("endpoints is missing"))?;
    edit(&app, tenant, name, removal(items)?).await
}

/// Removes the group; SDK 2.1.0 sends endpoints here and means only those.
pub(super) async fn delete(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Done>, ApiError> {
    let body = read(&app, tenant, request).await?;
    let change = match endpoints(&body)? {
        Some(items) => removal(items)?,
        None => Edit::Delete,
    };
    edit(&app, tenant, name, change).await
}

/// Settings that are about one publish: for all publishes to a group they would make them duplicates of each other,
/// put them into one queue, or make schedules of them.
const NO_DEFAULTS: [&str; 6] = [
    header::CRON,
    header::SCHEDULE_ID,
    header::QUEUE_NAME,
    header::DEDUPLICATION_ID,
    header::CONTENT_BASED_DEDUPLICATION,
    header::NOT_BEFORE,
];

/// Replaces the headers that every publish to the group has unless it says otherwise.
pub(super) async fn set_headers(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Done>, ApiError> {
    let body = read(&app, tenant, request).await?;
    let mut headers = default_headers(&body)?;
    // What would be refused at every publish is refused now.
    let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    options::parse(lines, &publish_limits(&app), app.clock.now())?;
    app.core.credentials().seal(tenant, &mut headers);
    edit(&app, tenant, name, Edit::SetHeaders(headers)).await
}

/// The headers in a body, each value a line of its own.
pub(super) fn default_headers(body: &Map<String, Value>) -> Result<Vec<(String, String)>, ApiError> {
    let Some(Value::Object(given)) = body.get("headers") else {
        return Err(ApiError::invalid("headers must be an object of header names and values"));
    };
    let mut headers = Vec::new();
    for (name, values) in given {
        if NO_DEFAULTS.iter().any(|refused| name.eq_ignore_ascii_case(refused)) {
            let text = "it applies to a single publish and cannot be a default of a group; send it with the publish";
            return Err(ApiError::invalid(format!("{}: {text}", header::canonical(name))));
        }
        let values = match values {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            let text = value.as_str().ok_or_else(|| {
                ApiError::invalid(format!("headers: the value of {name} must be a string or a list of strings"))
            })?;
            if is_sealed(text) {
                let name = header::canonical(name);
                return Err(ApiError::invalid(format!("{name}: the value begins with a control character; remove it")));
            }
            headers.push((name.clone(), text.to_owned()));
        }
    }
    Ok(headers)
}

async fn edit(app: &Arc<App>, tenant: TenantId, name: String, edit: Edit) -> Result<Json<Done>, ApiError> {
    let (group, now, quotas) = (name.clone(), app.clock.now(), app.config.quotas);
    let guard = app.clone();
    let edited = app.read(tenant, move |store| {
        let _alone = guard.group_edits.lock().unwrap_or_else(PoisonError::into_inner);
        match admit(&guard, store, tenant, &group, &edit, now)? {
            Err(over) => Ok(Err(over)),
            Ok(_promise) => Ok(Ok(store.edit_url_group(tenant, &group, &edit, now)?)),
        }
    });
    match edited.await?? {
        Ok(()) => Ok(Json(Done {})),
        Err(Refused::Absent) => Err(no_group(&name)),
        Err(Refused::TooMany) => Err(quota("maxEndpointsPerTopic", quotas.group_endpoints)),
    }
}

/// Room for what an edit adds, or what speaks against it; the store itself knows only the largest group that may be. What makes
/// no group longer needs no room: it is never refused.
fn admit(
    app: &App,
    store: &dyn Store,
    tenant: TenantId,
    name: &str,
    edit: &Edit,
    now: Timestamp,
) -> Result<Result<Option<DiskPromise>, ApiError>, StoreError> {
    if matches!(edit, Edit::Remove(_) | Edit::Delete) {
        return Ok(Ok(None));
    }
    let (group, quotas) = (store.url_group(tenant, name)?, &app.config.quotas);
    if let Some(max) = quotas.url_groups
        && group.is_none()
        && matches!(edit, Edit::Add(_))
        && store.url_group_count(tenant)? >= max
    {
        return Ok(Err(quota("maxTopics", max)));
    }
    let before = group.as_ref().map_or(0, json_row_bytes);
    let after = match UrlGroup::edited(group, name, edit, quotas.group_endpoints, now) {
        Err(Refused::TooMany) => return Ok(Err(quota("maxEndpointsPerTopic", quotas.group_endpoints))),
        // The store says so too.
        Err(Refused::Absent) => return Ok(Ok(None)),
        Ok(after) => after.as_ref().map_or(0, json_row_bytes),
    };
    if after <= before {
        return Ok(Ok(None));
    }
    let adding = usize::try_from(after - before).unwrap_or(usize::MAX);
    Ok(refuse_when_disk_is_low(app).and_then(|()| storing::admit(app, tenant, adding)).map(Some))
}

fn quota(name: &str, limit: usize) -> ApiError {
    ApiError::quota(format!("quota {name} exceeded, current limit: {limit}"))
}

/// The JSON object that says what is to be changed; an empty body is an empty object.
async fn read(app: &Arc<App>, tenant: TenantId, request: Request) -> Result<Map<String, Value>, ApiError> {
    let SmallRequest { body, .. } = read_small(app, tenant, request).await?;
    object(&body.bytes)
}

pub(super) fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::invalid(format!("the body is not a JSON object: {}", JsonError::from(error))))
}

/// An endpoint as the SDKs send it.
#[derive(Deserialize)]
pub(super) struct Item {
    #[serde(default)]
    pub(super) url: Option<String>,
    #[serde(default)]
    pub(super) name: Option<String>,
}

/// The list of endpoints in a body, if it has one; an empty one is a mistake.
pub(super) fn endpoints(body: &Map<String, Value>) -> Result<Option<Vec<Item>>, ApiError> {
    let Some(value) = body.get("endpoints") else { return Ok(None) };
    let wrong = |error| {
        let error = JsonError::from(error);
        ApiError::invalid(format!("endpoints must be a list of {{url, name}}: {error}"))
    };
    // As objects first: a struct could be read from a list too.
    let objects: Vec<Map<String, Value>> = serde_json::from_value(value.clone()).map_err(wrong)?;
    let items = objects.into_iter().map(|object| serde_json::from_value(object.into()));
    let items = items.collect::<Result<Vec<Item>, _>>().map_err(wrong)?;
    if items.is_empty() {
        return Err(ApiError::invalid("endpoints is an empty list"));
    }
    Ok(Some(items))
}

fn endpoint(app: &App, item: Item) -> Result<Endpoint, ApiError> {
    let url = item.url.ok_or_else(|| ApiError::invalid("url is missing"))?;
    check_url(&url, URL_BYTES_MAX)?;
    app.config.egress.check_url(&url).map_err(|refusal| refused_destination(app, &refusal))?;
    let name = item.name.filter(|name| !name.is_empty());
    if name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control)) {
        let text = format!("name must have at most {NAME_BYTES_MAX} bytes and no control characters");
        return Err(ApiError::invalid(text));
    }
    Ok(Endpoint { url: without_fragment(&url).to_owned(), name })
}

pub(super) fn removal(items: Vec<Item>) -> Result<Edit, ApiError> {
    let named = |item: Item| {
        let (url, name) = (item.url.filter(|url| !url.is_empty()), item.name.filter(|name| !name.is_empty()));
        match (&url, &name) {
            (None, None) => Err(ApiError::invalid("an endpoint to remove needs a url or a name")),
            _ => Ok(EndpointRef { url: url.map(|url| without_fragment(&url).to_owned()), name }),
        }
    };
    Ok(Edit::Remove(items.into_iter().map(named).collect::<Result<_, _>>()?))
}

fn checked_name(name: String) -> Result<String, ApiError> {
    if name.len() <= NAME_BYTES_MAX && is_name(&name) {
        return Ok(name);
    }
    Err(ApiError::invalid("the name of a URL group can contain only letters, digits, `-`, `_` and `.`"))
}

/// A.5: a URL group.
fn shape(group: UrlGroup, viewer: &Viewer) -> types::UrlGroup {
    types::UrlGroup {
        name: group.name,
        created_at: group.created_at,
        updated_at: group.updated_at,
        headers: viewer.received_headers(&group.headers),
        endpoints: group.endpoints.into_iter().map(|Endpoint { url, name }| types::Endpoint { name, url }).collect(),
    }
}
