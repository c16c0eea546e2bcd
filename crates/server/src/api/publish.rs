//! `POST /v2/publish/{destination}`: one message to a URL, or to each endpoint of a URL group.

use super::auth::{Access, authorize};
use super::body;
use super::error::ApiError;
use crate::app::App;
use crate::core::{FirstDue, NewMessage};
use crate::delivery::address::AddressKind;
use crate::delivery::egress;
use crate::store::Store;
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use posthaste_engine::dedup;
use posthaste_engine::limits;
use posthaste_engine::message::{DedupKey, MessageSpec, Origin};
use posthaste_engine::shard::Accepted;
use posthaste_engine::url_group::Endpoint;
use posthaste_wire::destination::{self, Destination};
use posthaste_wire::id::TenantId;
use posthaste_wire::publish::{self as options, Dedup, PublishLimits, PublishOptions};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What a publish answers for one message.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    message_id: String,
    /// Where it goes; told for the messages of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deduplicated: bool,
}

impl From<Accepted> for Published {
    fn from(accepted: Accepted) -> Self {
        Published { message_id: accepted.id.to_string(), url: None, deduplicated: accepted.deduplicated }
    }
}

/// The answer to one publish: one message, or one for each endpoint of a group.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    One(Published),
    Group(Vec<Published>),
}

impl Answer {
    /// `None` if there are fewer messages than places, which cannot be.
    pub(super) fn new(places: AnsweredPlaces, accepted: &mut impl Iterator<Item = Accepted>) -> Option<Answer> {
        match places {
            AnsweredPlaces::One => accepted.next().map(|accepted| Answer::One(accepted.into())),
            AnsweredPlaces::Group(urls) => {
                let published = urls.into_iter().zip(accepted);
                let group = published.map(|(url, accepted)| Published { url: Some(url), ..accepted.into() });
                Some(Answer::Group(group.collect()))
            }
        }
    }
}

pub(super) async fn publish(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let query = destination::split_query(parts.uri.query());
    let tenant = authorize(&app, &parts.headers, &parts.uri, Access::Write)?;
    refuse_when_disk_is_low(&app)?;
    let remainder = destination_of(parts.uri.path());
    let destination = Destination::parse(remainder, query.destination.as_deref(), limits::URL_BYTES_MAX)?;
    let max = app.config.message_bytes_max;
    let over = || ApiError::quota(format!("quota maxMessageSize exceeded, current limit: {max}"));
    let body = body::read(&app, tenant, &parts.headers, body, max, over).await?;
    let places = match destination {
        Destination::Group(name) => app.read(move |store| Ok(Places::of_group(store, tenant, name))).await??,
        other => Places::of_url(other)?,
    };
    let lines: Vec<Line<'_>> = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let options = parse_options(&app, &lines, &query.config, &places)?;
    let publisher = Publisher { tenant, caller_ip: caller_ip(&parts.extensions) };
    let messages = prepare(&app, &publisher, &places, &options, &body.bytes).map_err(Refusal::into_error)?;
    let accepted = app.core.publish(messages, body.room).await?;
    let status = status_of(&accepted);
    let answer = Answer::new(places.answered(), &mut accepted.into_iter());
    Ok((status, Json(answer)).into_response())
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

/// A header: name and value.
pub(super) type Line<'a> = (&'a str, &'a [u8]);

/// The options of the headers; for what they leave open those of the query, and then those of the group.
pub(super) fn parse_options(
    app: &App,
    lines: &[Line<'_>],
    query: &[(String, String)],
    places: &Places,
) -> Result<PublishOptions, ApiError> {
    let lines = options::merge_query(lines.iter().copied(), query);
    let lines = options::merge_query(lines, &places.default_headers);
    Ok(options::parse(lines, &PUBLISH_LIMITS, app.clock.now())?)
}

/// Where the messages of one publish go.
pub(super) struct Places {
    /// The group, if it is one.
    topic: Option<String>,
    default_headers: Vec<(String, String)>,
    endpoints: Vec<Endpoint>,
}

/// What the answer must tell of the places.
pub(super) enum AnsweredPlaces {
    One,
    Group(Vec<String>),
}

impl Places {
    /// A single URL.
    pub(super) fn of_url(destination: Destination) -> Result<Places, ApiError> {
        match destination {
            Destination::Url(url) => {
                let endpoints = vec![Endpoint { url, name: None }];
                Ok(Places { topic: None, default_headers: Vec::new(), endpoints })
            }
            Destination::Group(name) => Err(no_group(&name)),
            Destination::Api(name) => Err(ApiError::invalid(format!(
                "invalid destination: {name} is not supported by this server, publish to a URL"
            ))),
        }
    }

    /// The endpoints of a group.
    pub(super) fn of_group(store: &dyn Store, tenant: TenantId, name: String) -> Result<Places, ApiError> {
        let group = store.url_group(tenant, &name)?.ok_or_else(|| no_group(&name))?;
        Ok(Places { topic: Some(name), default_headers: group.headers, endpoints: group.endpoints })
    }

    pub(super) fn answered(self) -> AnsweredPlaces {
        match self.topic {
            None => AnsweredPlaces::One,
            Some(_) => AnsweredPlaces::Group(self.endpoints.into_iter().map(|endpoint| endpoint.url).collect()),
        }
    }
}

/// 404, with the words of the hosted service.
pub(super) fn no_group(name: &str) -> ApiError {
    ApiError::not_found(format!("topic {name} not found"))
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

/// Puts the messages together, one for each place, and checks where they may go. The endpoints of a group
/// were checked when they were added, and every address is checked again before it is dialled.
pub(super) fn prepare(
    app: &App,
    publisher: &Publisher,
    places: &Places,
    options: &PublishOptions,
    body: &Bytes,
) -> Result<Vec<NewMessage>, Refusal> {
    let retries = options.retries.unwrap_or(limits::RETRIES_DEFAULT);
    options.check_retry_delay(retries).map_err(|rejection| Refusal::Malformed(rejection.into()))?;
    if places.topic.is_none() {
        for endpoint in &places.endpoints {
            let checked = app.config.egress.check_url(&endpoint.url);
            checked.map_err(|refusal| Refusal::Destination(refused_destination(&refusal)))?;
        }
    }
    let tenant = publisher.tenant;
    let message = |endpoint: &Endpoint| NewMessage {
        tenant,
        origin: origin_of(tenant, &endpoint.url),
        dedup: dedup_key(options, places.topic.as_deref(), &endpoint.url, body),
        first_due: first_due(options),
        body: body.clone(),
        spec: MessageSpec {
            url: endpoint.url.clone(),
            method: options.method.unwrap_or("POST").to_owned(),
            headers: options.headers.clone(),
            retries,
            retry_delay: options.retry_delay.clone(),
            timeout_ms: options.timeout_ms,
            labels: options.labels.clone().unwrap_or_default(),
            redact: options.redact.clone().unwrap_or_default(),
            caller_ip: publisher.caller_ip.clone(),
            topic: places.topic.clone(),
            endpoint: endpoint.name.clone(),
        },
    };
    Ok(places.endpoints.iter().map(message).collect())
}

/// What makes a message a duplicate. In a group each endpoint has its own.
fn dedup_key(options: &PublishOptions, topic: Option<&str>, url: &str, body: &[u8]) -> Option<DedupKey> {
    let destination = topic.map_or_else(|| url.to_owned(), |topic| format!("{topic}\0{url}"));
    options.dedup.as_ref().map(|dedup| match (dedup, topic) {
        (Dedup::Id(id), None) => dedup::key_of_id(id),
        (Dedup::Id(id), Some(_)) => dedup::key_of_id(&format!("{id}\0{destination}")),
        (Dedup::Content, _) => dedup::key_of_content(&destination, &options.content_headers(), body),
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

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::time::Timestamp;

    #[test]
    fn not_before_wins_over_delay() {
        let time = Timestamp(1_780_315_260_000);
        let cases = [
            (None, None, FirstDue::Now),
            (None, Some(5), FirstDue::AfterMs(5)),
            (Some(time), None, FirstDue::At(time)),
            (Some(time), Some(5), FirstDue::At(time)),
        ];
        for (not_before, delay_ms, expected) in cases {
            let options = PublishOptions { not_before, delay_ms, ..PublishOptions::default() };
            assert_eq!(first_due(&options), expected);
        }
    }
}
