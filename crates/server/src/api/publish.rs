//! `POST /v2/publish/{destination}` and `POST /v2/enqueue/{queue}/{destination}`: one message to a URL, or to
//! each endpoint of a URL group. A publish that is about a run of a workflow goes on in `workflow`.

use super::auth::Writer;
use super::body::{self, HeldBody};
use super::caller::caller_ip;
use super::error::ApiError;
use super::llm;
use super::params::decoded;
use super::response::{room_before_storing, stored};
use super::{queues, schedules, storing, workflow};
use crate::app::App;
use crate::core::{API_LLM, CoreError, FirstDue, NewMessage, Room, stored_bytes};
use crate::credentials::Credentials;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use posthaste_api_types::message::Published;
use posthaste_delivery::address::AddressKind;
use posthaste_delivery::egress;
use posthaste_engine::dedup;
use posthaste_engine::limits;
use posthaste_engine::message::{CallbackSpec, DedupBy, DedupKey, FlowSpec, MessageSpec, Origin};
use posthaste_engine::schedule::ScheduleTarget;
use posthaste_engine::shard::Accepted;
use posthaste_engine::url_group::Endpoint;
use posthaste_store::Store;
use posthaste_wire::destination::{self, Destination};
use posthaste_wire::duration::Units;
use posthaste_wire::header;
use posthaste_wire::id::TenantId;
use posthaste_wire::publish::{self as options, CallbackOptions, Dedup, PublishLimits, PublishOptions};
use posthaste_wire::retry_delay::RetryDelayChecks;
use serde::Serialize;
use std::sync::Arc;

/// The response about one message.
pub(super) fn published(accepted: Accepted) -> Published {
    let deduplicated = accepted.deduplicated;
    Published { message_id: accepted.id.to_string(), deduplicated, ..Published::default() }
}

/// The answer to one publish: one message, or one for each endpoint of a group.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    One(Published),
    Group(Vec<Published>),
}

impl Answer {
    /// The first message alone: all that the first version of the protocol tells of a group.
    fn first(self) -> Option<Answer> {
        match self {
            Answer::One(_) => Some(self),
            Answer::Group(group) => group.into_iter().next().map(|first| Answer::One(Published { url: None, ..first })),
        }
    }

    /// `None` if there are fewer messages than places, which cannot be.
    pub(super) fn new(places: AnsweredPlaces, accepted: &mut impl Iterator<Item = Accepted>) -> Option<Answer> {
        match places {
            AnsweredPlaces::One => accepted.next().map(|accepted| Answer::One(published(accepted))),
            AnsweredPlaces::Group(urls) => {
                let each = urls.into_iter().zip(accepted);
                let group = each.map(|(url, accepted)| Published { url: Some(url), ..published(accepted) });
                Some(Answer::Group(group.collect()))
            }
        }
    }
}

pub(super) async fn publish(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let destination = rest_of(parts.uri.path()).to_owned();
    if workflow::concerns_a_run(parts.headers.keys().map(HeaderName::as_str)) {
        return Box::pin(workflow::publish::publish(&app, tenant, parts, body, &destination)).await;
    }
    accept(&app, tenant, parts, body, &destination, None).await
}

pub(super) async fn enqueue(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let rest = rest_of(parts.uri.path()).to_owned();
    let (queue, destination) = rest.split_once('/').unwrap_or((&rest, ""));
    let queue = queues::checked_name(decoded(queue)?)?;
    accept(&app, tenant, parts, body, destination, Some(queue)).await
}

/// Publishes to a raw destination, into a queue if one is named; makes a schedule of it if a cron expression is.
async fn accept(
    app: &Arc<App>,
    tenant: TenantId,
    parts: Parts,
    body: Body,
    destination: &str,
    queue: Option<String>,
) -> Result<Response, ApiError> {
    let is_v1 = parts.uri.path().starts_with("/v1/");
    let mut sent = Sent::read(app, tenant, parts, body, destination).await?;
    sent.options.queue = queue.or(sent.options.queue);
    if sent.options.cron.is_some() {
        return Box::pin(schedules::make(app, sent)).await;
    }
    let Sent { publisher, places, options, mut body } = sent;
    let messages = prepare(app, &publisher, &places, &options, (&expression_checks(), &body.bytes));
    let messages = messages.map_err(Refusal::into_error)?;
    let places = places.answered();
    let answer_room = room_before_storing(app, tenant, places.answer_bytes(), &mut body.room.waited).await?;
    let accepted = store(app, tenant, messages, body.room).await?;
    let status = status_of(&accepted);
    let answer = Answer::new(places, &mut accepted.into_iter());
    let answer = if is_v1 { answer.and_then(Answer::first) } else { answer };
    Ok(stored(status, answer, answer_room).await)
}

/// The header that makes a publish a schedule.
pub(super) const CRON: &str = "upstash-cron";

/// A publish as it was sent, read and taken apart.
pub(super) struct Sent {
    pub(super) publisher: Publisher,
    pub(super) places: Places,
    pub(super) options: PublishOptions,
    pub(super) body: HeldBody,
}

impl Sent {
    /// Reads a publish to a raw destination.
    pub(super) async fn read(
        app: &Arc<App>,
        tenant: TenantId,
        parts: Parts,
        body: Body,
        destination: &str,
    ) -> Result<Sent, ApiError> {
        refuse_when_disk_is_low(app)?;
        let query = destination::split_query(parts.uri.query());
        let is_known = |url: &str| app.config.egress.targets.contains(url);
        let (own_query, max) = (query.destination.as_deref(), limits::URL_BYTES_MAX);
        let destination = Destination::parse_unless_known(destination, own_query, max, is_known)?;
        let max = app.config.message_bytes_max;
        let over = || ApiError::message_too_large(max);
        let body = body::read(app, tenant, &parts.headers, body, max, over).await?;
        let places = match destination {
            Destination::Group(name) => {
                let credentials = app.core.credentials();
                Box::pin(app.look_up(move |store| Ok(Places::of_group(store, credentials, tenant, name)))).await??
            }
            other => Places::of_url(app, other)?,
        };
        let mut lines: Vec<Line<'_>> =
            parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        if parts.headers.contains_key(CRON) {
            // The Terraform provider sends an empty header for whatever a schedule does not set.
            lines.retain(|(name, value)| !name.starts_with(header::PREFIX) || !value.is_empty());
        }
        let options = parse_options(app, &lines, &query.config, &places)?;
        let publisher = Publisher { tenant, caller_ip: caller_ip(app, &parts) };
        Ok(Sent { publisher, places, options, body })
    }
}

/// Stores messages within the tenant's quota of the day; duplicates and what is refused do not count.
pub(super) async fn store(
    app: &App,
    tenant: TenantId,
    messages: Vec<NewMessage>,
    mut room: Room,
) -> Result<Vec<Accepted>, ApiError> {
    let bytes = stored_bytes(&messages);
    room.disk = Some(storing::admit(app, tenant, bytes)?);
    if messages.len() > 1 {
        // What was sent has its room; headers that are repeated for each message need more.
        let more = bytes.saturating_sub(body::held_bytes(&room));
        app.body_budget.take(tenant, more, &mut room).await.ok_or_else(body::no_room)?;
    }
    let (count, now) = (messages.len() as u64, app.clock.now());
    app.allowances.messages.take(tenant, count, now).map_err(ApiError::daily_quota)?;
    let accepted = app.core.publish(messages, room).await;
    let stored = match &accepted {
        Ok(accepted) => accepted.iter().filter(|accepted| !accepted.deduplicated).count() as u64,
        // It may have been stored just before.
        Err(CoreError::Stopped) => count,
        Err(CoreError::Overloaded | CoreError::Late | CoreError::Quota(_) | CoreError::DiskLow) => 0,
    };
    app.allowances.messages.give_back(tenant, count - stored, now);
    let accepted = accepted?;
    app.duplicates.add(&accepted, now);
    Ok(accepted)
}

/// Outcomes of what was accepted must still fit on the disk.
pub(super) fn refuse_when_disk_is_low(app: &App) -> Result<(), ApiError> {
    match app.disk_is_low() {
        true => Err(ApiError::disk_low()),
        false => Ok(()),
    }
}

/// The raw rest of the path behind `/v2/publish/` or its like: not decoded, not normalised.
pub(super) fn rest_of(path: &str) -> &str {
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
    Ok(options::parse(lines, &publish_limits(app), app.clock.now())?)
}

/// Where the messages of one publish go.
pub(super) struct Places {
    /// The group, if it is one.
    topic: Option<String>,
    /// The built-in API, if it is one.
    api: Option<&'static str>,
    default_headers: Vec<(String, String)>,
    endpoints: Vec<Endpoint>,
}

/// What the answer must tell of the places.
pub(super) enum AnsweredPlaces {
    One,
    Group(Vec<String>),
}

/// Bytes of an answer for one message, besides its URL.
pub(super) const ANSWER_BYTES: usize = 96;

impl AnsweredPlaces {
    /// How long the answer will be, more or less.
    pub(super) fn answer_bytes(&self) -> usize {
        match self {
            AnsweredPlaces::One => ANSWER_BYTES,
            AnsweredPlaces::Group(urls) => urls.iter().map(|url| url.len() + ANSWER_BYTES).sum(),
        }
    }
}

impl Places {
    /// A single URL, or a built-in API.
    pub(super) fn of_url(app: &App, destination: Destination) -> Result<Places, ApiError> {
        let (url, api) = match destination {
            Destination::Url(url) => (url, None),
            Destination::Group(name) => return Err(no_group(&name)),
            Destination::Api(name) => {
                llm::check_destination(app, &name)?;
                (name, Some(API_LLM))
            }
        };
        let endpoints = vec![Endpoint { url, name: None }];
        Ok(Places { topic: None, api, default_headers: Vec::new(), endpoints })
    }

    /// The endpoints of a group, and its default headers as they were set: they become a part of the publish.
    pub(super) fn of_group(
        store: &dyn Store,
        credentials: Credentials,
        tenant: TenantId,
        name: String,
    ) -> Result<Places, ApiError> {
        let mut group = store.url_group(tenant, &name)?.ok_or_else(|| no_group(&name))?;
        credentials.open_all(tenant, &mut group)?;
        Ok(Places { topic: Some(name), api: None, default_headers: group.headers, endpoints: group.endpoints })
    }

    /// The same as a schedule remembers it: the endpoints of a group are those it has when the schedule fires.
    pub(super) fn target(&self) -> ScheduleTarget {
        match (&self.topic, self.endpoints.first()) {
            (None, Some(endpoint)) => ScheduleTarget::Url(endpoint.url.clone()),
            (topic, _) => ScheduleTarget::Group(topic.clone().unwrap_or_default()),
        }
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

/// Checks the retry-delay expressions of one request.
pub(super) fn expression_checks() -> RetryDelayChecks {
    RetryDelayChecks::new(limits::RETRY_EXPRESSION_STEPS_MAX)
}

/// What a publish may ask for here.
pub(super) fn publish_limits(app: &App) -> PublishLimits {
    let quotas = &app.config.quotas;
    PublishLimits {
        delay_ms_max: quotas.delay_ms,
        timeout_ms_max: quotas.timeout_ms,
        retries_max: quotas.retries,
        ..PUBLISH_LIMITS
    }
}

/// The bounds of the engine, for the parser.
pub(super) const PUBLISH_LIMITS: PublishLimits = PublishLimits {
    delay_ms_max: limits::DELAY_MS_MAX,
    delay_units: Units::Short,
    timeout_ms_min: limits::TIMEOUT_MS_MIN,
    timeout_ms_max: limits::TIMEOUT_MS_MAX,
    retries_max: limits::RETRIES_MAX,
    forward_headers_max: limits::FORWARD_HEADERS_MAX,
    forward_header_bytes_max: limits::FORWARD_HEADER_BYTES_MAX,
    labels_max: limits::LABELS_MAX,
    label_bytes_max: limits::LABEL_BYTES_MAX,
    dedup_id_bytes_max: limits::DEDUP_ID_BYTES_MAX,
    url_bytes_max: limits::URL_BYTES_MAX,
    key_bytes_max: limits::KEY_BYTES_MAX,
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
    (checks, body): (&RetryDelayChecks, &Bytes),
) -> Result<Vec<NewMessage>, Refusal> {
    let common = checked_spec(app, publisher, places, options, checks)?;
    let tenant = publisher.tenant;
    let message = |(endpoint, common): (&Endpoint, MessageSpec)| NewMessage {
        tenant,
        origin: origin_of(app, tenant, &endpoint.url),
        dedup: dedup_key(options, places.topic.as_deref(), &endpoint.url, body),
        first_due: first_due(options),
        body: body.clone(),
        spec: MessageSpec {
            url: endpoint.url.clone(),
            topic: places.topic.clone(),
            endpoint: endpoint.name.clone(),
            dedup: dedup_by(options),
            ..common
        },
    };
    let commons = std::iter::repeat_n(common, places.endpoints.len());
    Ok(places.endpoints.iter().zip(commons).map(message).collect())
}

/// What all messages of one publish, or of one schedule, have in common, checked with where they may go.
pub(super) fn checked_spec(
    app: &App,
    publisher: &Publisher,
    places: &Places,
    options: &PublishOptions,
    checks: &RetryDelayChecks,
) -> Result<MessageSpec, Refusal> {
    let retries = options.retries.unwrap_or(app.config.quotas.retries_default());
    options.check_retry_delay_by(checks, retries).map_err(|rejection| Refusal::Malformed(rejection.into()))?;
    if places.api.is_some() && options.callback.is_none() {
        return Err(Refusal::Malformed(llm::no_callback()));
    }
    if places.topic.is_none() && places.api.is_none() {
        for endpoint in &places.endpoints {
            let checked = app.config.egress.check_url(&endpoint.url);
            checked.map_err(|refusal| Refusal::Destination(refused_destination(app, &refusal)))?;
        }
    }
    let mut common = common_spec(options, retries, &publisher.caller_ip);
    check_callbacks(app, &common).map_err(Refusal::Malformed)?;
    // The core would do it for each message of a group, and what is counted before it is what is stored.
    app.core.credentials().seal(publisher.tenant, &mut common);
    Ok(MessageSpec { api: places.api.map(str::to_owned), ..common })
}

/// What all messages of one publish, or of one schedule, have in common: all but the place.
pub(super) fn common_spec(options: &PublishOptions, retries: u32, caller_ip: &str) -> MessageSpec {
    MessageSpec {
        method: options.method.unwrap_or("POST").to_owned(),
        headers: options.headers.clone(),
        retries,
        retry_delay: options.retry_delay.clone(),
        timeout_ms: options.timeout_ms,
        labels: options.labels.clone().unwrap_or_default(),
        redact: options.redact.clone().unwrap_or_default(),
        caller_ip: caller_ip.to_owned(),
        queue: options.queue.clone(),
        flow: flow_spec(options),
        callback: options.callback.as_ref().map(|callback| Box::new(callback_spec(callback))),
        failure_callback: options.failure_callback.as_ref().map(|callback| Box::new(callback_spec(callback))),
        hops: options.hops,
        ..MessageSpec::default()
    }
}

/// The flow-control key and its limits.
pub(super) fn flow_spec(options: &PublishOptions) -> Option<FlowSpec> {
    let limits = options.flow_control;
    options.flow_control_key.as_ref().map(|key| FlowSpec {
        key: key.clone(),
        parallelism: limits.and_then(|limits| limits.parallelism),
        rate: limits.and_then(|limits| limits.rate),
        period_ms: limits.map_or(limits::FLOW_PERIOD_MS_DEFAULT, |limits| limits.period_ms),
    })
}

/// What a callback message will be like.
pub(super) fn callback_spec(callback: &CallbackOptions) -> CallbackSpec {
    let options = &callback.options;
    CallbackSpec {
        url: callback.url.clone(),
        method: options.method.unwrap_or("POST").to_owned(),
        headers: options.headers.clone(),
        retries: options.retries,
        retry_delay: options.retry_delay.clone(),
        timeout_ms: options.timeout_ms,
        delay_ms: options.delay_ms.unwrap_or(0),
        labels: options.labels.clone().unwrap_or_default(),
        redact: options.redact.clone().unwrap_or_default(),
        flow: flow_spec(options),
    }
}

/// Refuses callbacks that may not go where they are to go, as destinations are, and those that a queue would
/// have to wait for longer than it takes to send them.
pub(super) fn check_callbacks(app: &App, spec: &MessageSpec) -> Result<(), ApiError> {
    for (header, callback) in
        [("Upstash-Callback", &spec.callback), ("Upstash-Failure-Callback", &spec.failure_callback)]
    {
        let Some(callback) = callback else { continue };
        if let Err(refusal) = app.config.egress.check_url(&callback.url) {
            let text = refused_destination(app, &refusal).into_message();
            return Err(ApiError::invalid(format!("{header}: {text}")));
        }
        if spec.queue.is_some() && callback.delay_ms > 0 {
            let text = "callbacks of a message in a queue cannot be delayed, because the queue waits for them";
            return Err(ApiError::invalid(format!("{header}-Delay: {text}; leave out the delay or the queue")));
        }
    }
    Ok(())
}

/// What a message says of how its duplicates are found.
pub(super) fn dedup_by(options: &PublishOptions) -> Option<DedupBy> {
    options.dedup.as_ref().map(|dedup| match dedup {
        Dedup::Id(_) => DedupBy::Id,
        Dedup::Content => DedupBy::Content,
    })
}

/// What makes a message a duplicate. In a group each endpoint has its own.
fn dedup_key(options: &PublishOptions, topic: Option<&str>, url: &str, body: &[u8]) -> Option<DedupKey> {
    let dedup = options.dedup.as_ref()?;
    let destination = topic.map_or_else(|| url.to_owned(), |topic| format!("{topic}\0{url}"));
    Some(match (dedup, topic) {
        (Dedup::Id(id), None) => dedup::key_of_id(id),
        (Dedup::Id(id), Some(_)) => dedup::key_of_id(&format!("{id}\0{destination}")),
        (Dedup::Content, _) => dedup::key_of_content(&destination, &options.content_headers(), body),
    })
}

/// 400 for a destination that the egress policy refuses, and what an operator can do about it.
pub(super) fn refused_destination(app: &App, refusal: &egress::Refusal) -> ApiError {
    let explain = app.config.egress.explain;
    if !explain {
        tracing::info!(%refusal, "publish rejected because of its destination");
    }
    let hint = match refusal {
        _ if !explain => "",
        egress::Refusal::LocalName(_) => "; the operator can allow it with egress_allow_hosts",
        egress::Refusal::Address { kind: AddressKind::Loopback | AddressKind::Private, .. } => {
            "; the operator can allow it with egress_allow_cidrs"
        }
        _ => "",
    };
    ApiError::invalid(format!("invalid destination url: {}{hint}", refusal.shown(explain)))
}

/// The lane that messages to this URL wait in. Those to a built-in API, which has no origin, share one.
pub(super) fn origin_of(app: &App, tenant: TenantId, url: &str) -> Origin {
    match app.config.egress.targets.parse(url) {
        Ok(target) => Origin::of(tenant, &target.origin),
        Err(_) => Origin::of_url(tenant, url),
    }
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
