//! `POST /v2/publish/{destination}`: one message to one URL.

use super::auth::{Access, authorize};
use super::body;
use super::error::ApiError;
use crate::app::App;
use crate::core::{FirstDue, NewMessage};
use crate::delivery::address::AddressKind;
use crate::delivery::egress;
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use posthaste_engine::dedup;
use posthaste_engine::limits;
use posthaste_engine::message::{MessageSpec, Origin};
use posthaste_engine::shard::Accepted;
use posthaste_wire::destination::{self, Destination, QueryParts};
use posthaste_wire::id::TenantId;
use posthaste_wire::publish::{self as options, Dedup, PublishLimits, PublishOptions};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What a publish answers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    message_id: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deduplicated: bool,
}

impl From<Accepted> for Published {
    fn from(accepted: Accepted) -> Self {
        Published { message_id: accepted.id.to_string(), deduplicated: accepted.deduplicated }
    }
}

pub(super) async fn publish(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let query = destination::split_query(parts.uri.query());
    let tenant = authorize(&app, &parts.headers, query.token.as_deref(), Access::Write)?;
    refuse_when_disk_is_low(&app)?;
    let destination =
        Destination::parse(destination_of(parts.uri.path()), query.destination.as_deref(), limits::URL_BYTES_MAX)?;
    let max = app.config.message_bytes_max;
    let over = || ApiError::quota(format!("quota maxMessageSize exceeded, current limit: {max}"));
    let body = body::read(&app, tenant, &parts.headers, body, max, over).await?;
    let options = parse_options(&app, &parts.headers, &query)?;
    let publisher = Publisher { tenant, caller_ip: caller_ip(&parts.extensions) };
    let message = prepare(&app, &publisher, destination, options, body.bytes).map_err(Refusal::into_error)?;
    let accepted = app.core.publish(vec![message], body.room).await?;
    let status = status_of(&accepted);
    let first = accepted.into_iter().next().map(Published::from);
    Ok((status, Json(first)).into_response())
}

/// Outcomes of what was accepted must still fit on the disk.
pub(super) fn refuse_when_disk_is_low(app: &App) -> Result<(), ApiError> {
    match app.disk_is_low() {
        true => Err(ApiError::overloaded("the server's disk is nearly full: nothing was stored, try again later")),
        false => Ok(()),
    }
}

/// The raw rest of the path behind `/v2/publish/`: not decoded, not normalised.
fn destination_of(path: &str) -> &str {
    path.splitn(4, '/').nth(3).unwrap_or_default()
}

/// 202 says that nothing new was stored.
pub(super) fn status_of(accepted: &[Accepted]) -> StatusCode {
    let all_duplicates = !accepted.is_empty() && accepted.iter().all(|accepted| accepted.deduplicated);
    if all_duplicates { StatusCode::ACCEPTED } else { StatusCode::OK }
}

/// Who publishes, and from where.
pub(super) struct Publisher {
    pub(super) tenant: TenantId,
    pub(super) caller_ip: String,
}

/// The address at the other end of the connection.
pub(super) fn caller_ip(extensions: &axum::http::Extensions) -> String {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    match peer {
        Some(IpAddr::V6(address)) => address.to_ipv4_mapped().map_or_else(|| address.to_string(), |v4| v4.to_string()),
        Some(IpAddr::V4(address)) => address.to_string(),
        None => String::new(),
    }
}

/// The options of the headers; for what they leave open, those of the query.
pub(super) fn parse_options(app: &App, headers: &HeaderMap, query: &QueryParts) -> Result<PublishOptions, ApiError> {
    let lines: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let lines = options::merge_query(lines.iter().copied(), &query.config);
    Ok(options::parse(lines, &PUBLISH_LIMITS, app.clock.now())?)
}

/// The bounds of the engine, for the parser.
pub(super) const PUBLISH_LIMITS: PublishLimits = PublishLimits {
    delay_ms_max: limits::DELAY_MS_MAX,
    timeout_ms_min: limits::TIMEOUT_MS_MIN,
    timeout_ms_max: limits::TIMEOUT_MS_MAX,
    retries_max: limits::RETRIES_MAX,
    forward_headers_max: limits::FORWARD_HEADERS_MAX,
    forward_header_bytes_max: limits::FORWARD_HEADER_BYTES_MAX,
    labels_max: limits::LABELS_MAX,
    label_bytes_max: limits::LABEL_BYTES_MAX,
    dedup_id_bytes_max: limits::DEDUP_ID_BYTES_MAX,
    url_bytes_max: limits::URL_BYTES_MAX,
};

/// Why a message was not accepted.
pub(super) enum Refusal {
    /// What was said makes no sense: a batch is refused as a whole.
    Malformed(ApiError),
    /// It may not go there: in a batch the other items go on.
    Destination(ApiError),
}

impl Refusal {
    pub(super) fn into_error(self) -> ApiError {
        match self {
            Refusal::Malformed(error) | Refusal::Destination(error) => error,
        }
    }
}

/// Puts a message together and checks where it may go.
pub(super) fn prepare(
    app: &App,
    publisher: &Publisher,
    destination: Destination,
    options: PublishOptions,
    body: Bytes,
) -> Result<NewMessage, Refusal> {
    let url = match destination {
        Destination::Url(url) => url,
        Destination::Group(name) => {
            return Err(Refusal::Malformed(ApiError::not_found(format!("topic {name} not found"))));
        }
        Destination::Api(name) => {
            let text = format!("invalid destination: {name} is not supported by this server, publish to a URL");
            return Err(Refusal::Malformed(ApiError::invalid(text)));
        }
    };
    let retries = options.retries.unwrap_or(limits::RETRIES_DEFAULT);
    options.check_retry_delay(retries).map_err(|rejection| Refusal::Malformed(rejection.into()))?;
    app.config.egress.check_url(&url).map_err(|refusal| Refusal::Destination(refused_destination(&refusal)))?;
    let dedup = options.dedup.as_ref().map(|dedup| match dedup {
        Dedup::Id(id) => dedup::key_of_id(id),
        Dedup::Content => dedup::key_of_content(&url, &options.content_headers(), &body),
    });
    let tenant = publisher.tenant;
    Ok(NewMessage {
        tenant,
        origin: origin_of(tenant, &url),
        dedup,
        first_due: first_due(&options),
        body,
        spec: MessageSpec {
            url,
            method: options.method.unwrap_or("POST").to_owned(),
            headers: options.headers,
            retries,
            retry_delay: options.retry_delay,
            timeout_ms: options.timeout_ms,
            labels: options.labels.unwrap_or_default(),
            redact: options.redact.unwrap_or_default(),
            caller_ip: publisher.caller_ip.clone(),
        },
    })
}

/// 400 for a destination that the egress policy refuses, and what an operator can do about it.
pub(super) fn refused_destination(refusal: &egress::Refusal) -> ApiError {
    let hint = match refusal {
        egress::Refusal::LocalName(_) => "; the operator can allow it with egress_allow_hosts",
        egress::Refusal::Address { kind: AddressKind::Loopback | AddressKind::Private, .. } => {
            "; the operator can allow it with egress_allow_cidrs"
        }
        _ => "",
    };
    ApiError::invalid(format!("invalid destination url: {refusal}{hint}"))
}

/// The lane that messages to this URL wait in.
pub(super) fn origin_of(tenant: TenantId, url: &str) -> Origin {
    Origin::of(tenant, &destination::origin(url).unwrap_or_default())
}

/// Not-Before wins over Delay.
pub(super) fn first_due(options: &PublishOptions) -> FirstDue {
    match (options.not_before, options.delay_ms) {
        (Some(time), _) => FirstDue::At(time),
        (None, Some(millis)) => FirstDue::AfterMs(millis),
        (None, None) => FirstDue::Now,
    }
}
