//! `GET /v2/keys` and `POST /v2/keys/rotate`: the tenant's signing keys. Read-only tokens see none.

use super::auth::Writer;
use super::body::Unread;
use super::error::ApiError;
use crate::app::App;
use axum::Json;
use axum::extract::State;
use posthaste_api_types::keys::Keys;
use posthaste_wire::signature::SigningKeys;
use std::sync::Arc;

pub(super) async fn get(Writer { tenant }: Writer, State(app): State<Arc<App>>) -> Result<Json<Keys>, ApiError> {
    let keys = app.keys.of(tenant)?;
    Ok(Json(shape(&keys)))
}

pub(super) async fn rotate(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    _: Unread,
) -> Result<Json<Keys>, ApiError> {
    let (keys, seen) = (app.keys.clone(), app.keys.of(tenant)?);
    // Rotations wait for one another, each on a thread that reads need, too: a tenant's stand in its line.
    let _turn = app.core.turn(tenant).await?;
    let rotated = app.look_up(move |_| keys.rotate(tenant, &seen)).await?;
    Ok(Json(shape(&rotated)))
}

fn shape(keys: &SigningKeys) -> Keys {
    Keys { current: keys.current.expose().to_owned(), next: keys.next.expose().to_owned() }
}
