//! The queue over HTTP: Posthaste or QStash.

use super::message::Message;
use super::policy::PublishPolicy;
use super::resources::{DeadLetters, Queues, Schedules, StoredMessage, UrlGroups};
use super::{PublishFuture, Published, QueueService, Receipt, Route};
use crate::call::CallError;
use crate::exchange::{Answer, Exchange, SetupError, authorize, base_url, bearer};
use crate::propagation::Propagator;
use crate::retry::{CancellationToken, RetryPolicy, with_retry_if};
use crate::secret::Secret;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method};
use posthaste_wire::destination::{is_name, split_query};
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use tracing::Instrument as _;

/// Default URL of hosted QStash.
pub const HOSTED_URL: &str = "https://qstash.upstash.io";
/// Maximum number of messages in one batch; a larger batch is rejected before anything is sent.
pub const BATCH_MESSAGES_MAX: usize = 1_000;
/// Maximum size of a batch, in bytes; a larger batch is rejected before anything is sent.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum size of a response, in bytes. A longer one, such as a page of many large dead letters, is an error; request
/// fewer.
pub const LIST_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A client that publishes to Posthaste or QStash and manages its resources.
///
/// ```no_run
/// use posthaste_kit::publish::{Message, QueueClient, QueueService};
/// use serde_json::json;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let queue = QueueClient::from_env()?; // QSTASH_URL and QSTASH_TOKEN
/// let job = json!({ "invoice": 9 });
/// let message = Message::json("https://app.example.com/jobs/charge", "billing:u_7:invoice_9:charge:v1", &job)?;
/// let published = queue.publish(&message).await?;
/// println!("{:?}", published.message_id());
/// # Ok(()) }
/// ```
///
/// Every publish carries the policy (six attempts with delays of 10 s, 20 s, 40 s …) and a deduplication id, so a
/// publish that is repeated after an unknown outcome creates one message.
#[derive(Clone)]
pub struct QueueClient {
    exchange: Exchange,
    /// Without a trailing slash.
    base: String,
    token: HeaderValue,
    policy: PublishPolicy,
    retry: RetryPolicy,
    propagator: Option<Propagator>,
}

impl QueueClient {
    /// A client for a queue at this URL, with this token.
    pub fn new(base: impl AsRef<str>, token: impl AsRef<str>) -> Result<QueueClient, SetupError> {
        let base = base_url(base.as_ref())?;
        let base = base.as_str().trim_end_matches('/');
        let token = Secret::new(token).map_err(|error| SetupError::because("the token is empty", error))?;
        Ok(QueueClient {
            exchange: Exchange::new()?,
            base: base.strip_suffix("/v2/publish").unwrap_or(base).to_owned(),
            token: bearer(&token)?,
            policy: PublishPolicy::default(),
            retry: RetryPolicy::default(),
            propagator: None,
        })
    }

    /// A client for the queue in `QSTASH_URL` (default: [`HOSTED_URL`]) and `QSTASH_TOKEN`, as in the official SDKs.
    pub fn from_env() -> Result<QueueClient, SetupError> {
        let url = std::env::var("QSTASH_URL").unwrap_or_else(|_| HOSTED_URL.to_owned());
        let token = std::env::var("QSTASH_TOKEN");
        // The error of the lookup could contain the token.
        QueueClient::new(url, token.map_err(|_| SetupError::new("QSTASH_TOKEN is not set, or is not text"))?)
    }

    /// Sets the delivery policy for messages that do not set their own.
    pub fn policy(mut self, policy: PublishPolicy) -> QueueClient {
        self.policy = policy;
        self
    }

    /// Sets the retry policy for requests to the queue itself.
    pub fn retry(mut self, retry: RetryPolicy) -> QueueClient {
        self.retry = retry;
        self
    }

    /// Adds the trace context and the request id to messages that have none.
    pub fn propagator(mut self, propagator: Propagator) -> QueueClient {
        self.propagator = Some(propagator);
        self
    }

    /// Operations on URL groups, which are names for several destinations.
    pub fn url_groups(&self) -> UrlGroups<'_> {
        UrlGroups::new(self)
    }

    /// Operations on queues, which deliver messages in order.
    pub fn queues(&self) -> Queues<'_> {
        Queues::new(self)
    }

    /// Operations on schedules, which publish messages repeatedly.
    pub fn schedules(&self) -> Schedules<'_> {
        Schedules::new(self)
    }

    /// Operations on dead letters, which are messages that failed permanently.
    pub fn dead_letters(&self) -> DeadLetters<'_> {
        DeadLetters::new(self)
    }

    /// Returns a message that has not been delivered yet; `None` if the queue does not know it, or no longer knows it.
    pub async fn message(&self, id: &str) -> Result<Option<StoredMessage>, CallError> {
        let request = Request::new(Method::GET, &["messages", id])?;
        found(self.call("look up a message", request).await)
    }

    /// Cancels a message; false if it had already ended or does not exist.
    pub async fn cancel(&self, id: &str) -> Result<bool, CallError> {
        let request = Request::new(Method::DELETE, &["messages", id])?;
        Ok(found(self.call::<Ignored>("cancel a message", request).await)?.is_some())
    }

    async fn publish_one(&self, message: &Message) -> Result<Published, CallError> {
        let message = self.propagated(message);
        let path = match message.queue() {
            Some(queue) => format!("/v2/enqueue/{queue}/{}", message.destination()),
            None => format!("/v2/publish/{}", message.destination()),
        };
        let headers = message.headers(&self.policy)?;
        check_verbatim(message.destination())?;
        let request = Request {
            method: Method::POST,
            path,
            headers,
            body: message.body().clone(),
            is_repeatable: message.is_deduplicated(),
        };
        let receipts: OneOrMany = self.call("publish", request).await?;
        receipts.published("publish")
    }

    async fn publish_batch(&self, messages: &[Message]) -> Result<Vec<Result<Published, CallError>>, CallError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        if messages.len() > BATCH_MESSAGES_MAX {
            return Err(CallError::invalid(format!("{} messages, more than {BATCH_MESSAGES_MAX}", messages.len())));
        }
        let messages: Vec<Cow<'_, Message>> = messages.iter().map(|message| self.propagated(message)).collect();
        let items = messages.iter().map(|message| Item::of(message, &self.policy)).collect::<Result<Vec<_>, _>>()?;
        let body = serde_json::to_vec(&items).map_err(CallError::invalid)?;
        if body.len() > BATCH_BYTES_MAX {
            return Err(CallError::invalid(format!("the batch has {} bytes, more than {BATCH_BYTES_MAX}", body.len())));
        }
        let is_repeatable = messages.iter().all(|message| message.is_deduplicated());
        let request = Request { is_repeatable, ..Request::new(Method::POST, &["batch"])?.with_body(body) };
        let answers: Vec<ItemAnswer> = self.call("publish a batch", request).await?;
        if answers.len() != messages.len() {
            let text = format!("the response has {} messages instead of {}", answers.len(), messages.len());
            return Err(CallError::unreadable(text));
        }
        Ok(answers.into_iter().map(ItemAnswer::published).collect())
    }

    fn propagated<'a>(&self, message: &'a Message) -> Cow<'a, Message> {
        match &self.propagator {
            None => Cow::Borrowed(message),
            Some(propagator) => {
                let mut message = message.clone();
                message.propagate(&propagator.headers());
                Cow::Owned(message)
            }
        }
    }

    /// The headers of a schedule's messages, the same as for a single message.
    pub(super) fn headers_of(&self, message: &Message) -> Result<HeaderMap, CallError> {
        check_verbatim(message.destination())?;
        message.headers(&self.policy)
    }

    /// Sends a request, with retries if allowed, and parses the response. An empty body reads as `null`.
    pub(super) async fn call<T: DeserializeOwned>(&self, operation: &str, request: Request) -> Result<T, CallError> {
        let Request { method, path, mut headers, body, is_repeatable } = request;
        let url = Url::parse(&format!("{}{path}", self.base)).map_err(CallError::invalid)?;
        authorize(&mut headers, Some(&self.token));
        let answer = with_retry_if(is_repeatable, &CancellationToken::new(), operation, &self.retry, |_| {
            let (method, url, headers, body) = (method.clone(), url.clone(), headers.clone(), body.clone());
            async move { self.exchange.send(method, url, headers, body, LIST_BYTES_MAX).await.and_then(success) }
        })
        .await?;
        let body = answer.body;
        let text: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(text).map_err(|error| {
            let place = format!("line {} column {}", error.line(), error.column());
            CallError::unreadable(format!("the queue's response has an unexpected form at {place}"))
                .with_body(String::from_utf8_lossy(text))
                .after(operation, 1)
        })
    }
}

impl QueueService for QueueClient {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        let dedup_id = message.dedup_id();
        let span = tracing::info_span!(
            "qstash.publish",
            "qstash.dedup_id" = dedup_id,
            "qstash.message_id" = tracing::field::Empty
        );
        let recorded = span.clone();
        let publish = async move {
            let published = self.publish_one(message).await?;
            recorded.record("qstash.message_id", published.message_id());
            Ok(published)
        };
        Box::pin(publish.instrument(span))
    }

    fn publish_all<'a>(&'a self, messages: &'a [Message]) -> PublishFuture<'a, Vec<Result<Published, CallError>>> {
        let span = tracing::info_span!("qstash.publish_batch", messages = messages.len());
        Box::pin(self.publish_batch(messages).instrument(span))
    }
}

impl fmt::Debug for QueueClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueClient").field("base", &self.base).field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// One request to the API.
pub(super) struct Request {
    pub(super) method: Method,
    /// Path after the base, with the query.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whether the request can safely be repeated.
    pub(super) is_repeatable: bool,
}

impl Request {
    /// A request to a path below `/v2/`. The parts are names and ids.
    pub(super) fn new(method: Method, parts: &[&str]) -> Result<Request, CallError> {
        if let Some(part) = parts.iter().find(|part| !is_name(part)) {
            return Err(CallError::invalid(format!(
                "{part:?} is not a valid name or id; use letters, digits, '.', '_' and '-'"
            )));
        }
        let path = format!("/v2/{}", parts.join("/"));
        Ok(Request { method, path, headers: HeaderMap::new(), body: Bytes::new(), is_repeatable: true })
    }

    /// Sets the JSON body.
    pub(super) fn with_body(mut self, json: Vec<u8>) -> Request {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.body = Bytes::from(json);
        self
    }

    /// Sets the body to this value as JSON.
    pub(super) fn with_json(self, body: &impl Serialize) -> Result<Request, CallError> {
        Ok(self.with_body(serde_json::to_vec(body).map_err(CallError::invalid)?))
    }

    /// Marks the request as not repeatable.
    pub(super) fn once(mut self) -> Request {
        self.is_repeatable = false;
        self
    }
}

/// A response whose body is ignored.
#[derive(Debug)]
pub(super) struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

/// Turns a 404 of the queue into `None`.
pub(super) fn found<T>(result: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() && !error.is_outage() => Ok(None),
        Err(error) => Err(error),
    }
}

fn success(answer: Answer) -> Result<Answer, CallError> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    if answer.status.is_success() {
        return Ok(answer);
    }
    let error = CallError::from_status(answer.status.as_u16(), &answer.headers);
    let text = String::from_utf8_lossy(&answer.body);
    let words =
        serde_json::from_str::<Refusal>(&text).ok().map(|refusal| refusal.error.chars().take(500).collect::<String>());
    let error = error.with_body(text);
    Err(match words {
        Some(words) => error.with_detail(words),
        // The queue always sends an error message. Without one, the response is from a proxy or another server.
        None => error.unexpected_responder(),
    })
}

/// A destination is part of the path of a publish. Characters that clients would change in a path, or that the server
/// would read as a setting, cannot be sent unchanged. Such a destination is rejected, so that the message does not go
/// elsewhere.
fn check_verbatim(destination: &str) -> Result<(), CallError> {
    const FRONT: &str = "http://queue/v2/publish/";
    let whole = format!("{FRONT}{destination}");
    let parsed = Url::parse(&whole).map_err(CallError::invalid)?;
    if parsed.as_str() != whole || parsed.fragment().is_some() {
        return Err(CallError::invalid(
            "the destination would change in transit: remove the fragment and . or .. as parts of its path, and \
             percent-encode all characters that are not ASCII",
        ));
    }
    let query = split_query(parsed.query());
    if query.token.is_some() || !query.config.is_empty() {
        return Err(CallError::invalid(
            "the query of the destination has a key that the server would read as a setting",
        ));
    }
    Ok(())
}

/// The values of a header. The API takes a string for one, and a list, as Go clients send it, for several.
#[derive(Serialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Several(Vec<String>),
}

/// One message of a batch.
#[derive(Serialize)]
struct Item<'a> {
    destination: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    headers: BTreeMap<String, Values>,
    body: &'a str,
}

impl<'a> Item<'a> {
    fn of(message: &'a Message, policy: &PublishPolicy) -> Result<Item<'a>, CallError> {
        let mut headers = BTreeMap::new();
        let lines = message.headers(policy)?;
        for name in lines.keys() {
            let texts =
                lines.get_all(name).iter().map(|value| std::str::from_utf8(value.as_bytes()).map(str::to_owned));
            let mut texts = texts.collect::<Result<Vec<_>, _>>().map_err(CallError::invalid)?;
            let values = if texts.len() == 1 { Values::One(texts.remove(0)) } else { Values::Several(texts) };
            headers.insert(name.as_str().to_owned(), values);
        }
        let body = std::str::from_utf8(message.body()).map_err(|_| {
            CallError::invalid("a batch can carry only text; publish a message with other bytes on its own")
        })?;
        Ok(Item { destination: message.destination(), queue: message.queue(), headers, body })
    }
}

/// The response to a publish: to a URL, or to a group.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Receipt),
    Many(Vec<Receipt>),
}

impl OneOrMany {
    /// A response without any message is invalid: the server rejects a group without endpoints.
    fn published(self, operation: &str) -> Result<Published, CallError> {
        let receipts = match self {
            OneOrMany::One(receipt) => vec![receipt],
            OneOrMany::Many(receipts) => receipts,
        };
        if receipts.is_empty() {
            return Err(CallError::unreadable("the queue's response has no message id").after(operation, 1));
        }
        Ok(Published::by(Route::Queue, receipts))
    }
}

/// The response to one message of a batch.
#[derive(Deserialize)]
#[serde(untagged)]
enum ItemAnswer {
    Taken(OneOrMany),
    Refused { error: String },
}

impl ItemAnswer {
    fn published(self) -> Result<Published, CallError> {
        match self {
            ItemAnswer::Taken(receipts) => receipts.published("publish a batch"),
            ItemAnswer::Refused { error } => {
                let refused = CallError::from_status(400, &HeaderMap::new());
                Err(refused.with_detail(error.chars().take(500).collect::<String>()).after("publish a batch", 1))
            }
        }
    }
}

#[cfg(test)]
mod tests;
