//! Resources of the queue: URL groups, queues, schedules and dead letters.
//!
//! Each is a view of the [`QueueClient`] with the operations of its part of the API. If a resource does not exist, the
//! result is `None` or `false`, not an error.

use super::client::{Ignored, QueueClient, Request, found};
use super::message::Message;
use super::{Published, Receipt, Route};
use crate::call::CallError;
use crate::propagation::DEDUPLICATION_ID_HEADER;
use http::{HeaderName, HeaderValue, Method};
use posthaste_wire::destination::is_name;
use posthaste_wire::header;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// A destination of a URL group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// URL of the destination.
    pub url: String,
    /// Name of the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Endpoint {
    /// An endpoint without a name.
    pub fn new(url: impl Into<String>) -> Endpoint {
        Endpoint { url: url.into(), name: None }
    }
}

/// A name for several destinations.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UrlGroup {
    /// Name of the group.
    pub name: String,
    /// Endpoints of the group.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
}

/// URL groups; see [`QueueClient::url_groups`].
#[derive(Debug)]
pub struct UrlGroups<'a>(&'a QueueClient);

impl<'a> UrlGroups<'a> {
    pub(super) fn new(client: &'a QueueClient) -> Self {
        UrlGroups(client)
    }

    /// Adds endpoints, and replaces those with the same name or URL. Creates the group if it does not exist.
    pub async fn add(&self, name: &str, endpoints: &[Endpoint]) -> Result<(), CallError> {
        let request = Request::new(Method::POST, &["topics", name, "endpoints"])?;
        let request = request.with_json(&json!({ "endpoints": endpoints }))?;
        self.0.call::<Ignored>("add endpoints", request).await.map(drop)
    }

    /// Removes the endpoints with these URLs. Removing the last one removes the group.
    pub async fn remove(&self, name: &str, urls: &[&str]) -> Result<(), CallError> {
        let endpoints: Vec<_> = urls.iter().map(|url| json!({ "url": url })).collect();
        let request = Request::new(Method::DELETE, &["topics", name, "endpoints"])?;
        let request = request.with_json(&json!({ "endpoints": endpoints }))?;
        found(self.0.call::<Ignored>("remove endpoints", request).await).map(drop)
    }

    /// Returns a group.
    pub async fn get(&self, name: &str) -> Result<Option<UrlGroup>, CallError> {
        found(self.0.call("look up a URL group", Request::new(Method::GET, &["topics", name])?).await)
    }

    /// Returns all groups.
    pub async fn list(&self) -> Result<Vec<UrlGroup>, CallError> {
        self.0.call("list URL groups", Request::new(Method::GET, &["topics"])?).await
    }

    /// Deletes a group. Its published messages are still delivered.
    pub async fn delete(&self, name: &str) -> Result<(), CallError> {
        let request = Request::new(Method::DELETE, &["topics", name])?;
        found(self.0.call::<Ignored>("delete a URL group", request).await).map(drop)
    }
}

/// A FIFO queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Queue {
    /// Name of the queue.
    pub name: String,
    /// Maximum number of its messages delivered at the same time.
    pub parallelism: u32,
    /// Whether deliveries are paused.
    #[serde(default)]
    pub paused: bool,
    /// Number of messages that wait or are being delivered.
    #[serde(default)]
    pub lag: u64,
}

/// Queues; see [`QueueClient::queues`].
#[derive(Debug)]
pub struct Queues<'a>(&'a QueueClient);

impl<'a> Queues<'a> {
    pub(super) fn new(client: &'a QueueClient) -> Self {
        Queues(client)
    }

    /// Creates or updates a queue with this parallelism, and resumes it if it is paused.
    pub async fn put(&self, name: &str, parallelism: u32) -> Result<(), CallError> {
        if !is_name(name) {
            return Err(CallError::invalid(format!("{name:?} is not a valid queue name")));
        }
        let body = json!({ "queueName": name, "parallelism": parallelism, "paused": false });
        let request = Request::new(Method::POST, &["queues"])?.with_json(&body)?;
        self.0.call::<Ignored>("put a queue", request).await.map(drop)
    }

    /// Returns a queue.
    pub async fn get(&self, name: &str) -> Result<Option<Queue>, CallError> {
        found(self.0.call("look up a queue", Request::new(Method::GET, &["queues", name])?).await)
    }

    /// Returns all queues.
    pub async fn list(&self) -> Result<Vec<Queue>, CallError> {
        self.0.call("list queues", Request::new(Method::GET, &["queues"])?).await
    }

    /// Pauses deliveries; messages are still accepted. False if the queue does not exist.
    pub async fn pause(&self, name: &str) -> Result<bool, CallError> {
        self.switch("pause a queue", name, "pause").await
    }

    /// Resumes deliveries. False if the queue does not exist.
    pub async fn resume(&self, name: &str) -> Result<bool, CallError> {
        self.switch("resume a queue", name, "resume").await
    }

    /// Deletes a queue and cancels its waiting messages.
    pub async fn delete(&self, name: &str) -> Result<(), CallError> {
        let request = Request::new(Method::DELETE, &["queues", name])?;
        found(self.0.call::<Ignored>("delete a queue", request).await).map(drop)
    }

    async fn switch(&self, operation: &str, name: &str, verb: &str) -> Result<bool, CallError> {
        let request = Request::new(Method::POST, &["queues", name, verb])?;
        Ok(found(self.0.call::<Ignored>(operation, request).await)?.is_some())
    }
}

/// A schedule, which publishes a message repeatedly.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Schedule {
    /// Id of the schedule.
    pub schedule_id: String,
    /// Cron expression.
    pub cron: String,
    /// Destination of the messages.
    pub destination: String,
    /// Number of retries of each message.
    #[serde(default)]
    pub retries: u32,
    /// Whether the schedule is paused.
    #[serde(default)]
    pub is_paused: bool,
    /// FIFO queue for the messages.
    #[serde(default)]
    pub queue_name: Option<String>,
    /// Next firing time, in milliseconds since 1970.
    #[serde(default)]
    pub next_schedule_time: Option<u64>,
    /// Last firing time, in milliseconds since 1970.
    #[serde(default)]
    pub last_schedule_time: Option<u64>,
}

/// Schedules; see [`QueueClient::schedules`].
#[derive(Debug)]
pub struct Schedules<'a>(&'a QueueClient);

impl<'a> Schedules<'a> {
    pub(super) fn new(client: &'a QueueClient) -> Self {
        Schedules(client)
    }

    /// Publishes the message at the times of the cron expression. A schedule with the same id is replaced, so a program
    /// can call this at every start. Deduplication settings of the message have no effect: each firing creates a new
    /// message.
    pub async fn put(&self, id: &str, cron: &str, message: &Message) -> Result<(), CallError> {
        if !is_name(id) {
            return Err(CallError::invalid(format!("{id:?} is not a valid schedule id")));
        }
        let mut headers = self.0.headers_of(message)?;
        headers.remove(header::DEDUPLICATION_ID);
        headers.remove(header::CONTENT_BASED_DEDUPLICATION);
        headers.remove(format!("{}{DEDUPLICATION_ID_HEADER}", header::FORWARD_PREFIX));
        let settings =
            [(header::CRON, Some(cron)), (header::SCHEDULE_ID, Some(id)), (header::QUEUE_NAME, message.queue())];
        for (name, value) in settings.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).map_err(CallError::invalid)?);
        }
        let path = format!("/v2/schedules/{}", message.destination());
        let request =
            Request { path, headers, body: message.body().clone(), ..Request::new(Method::POST, &["schedules"])? };
        self.0.call::<Ignored>("put a schedule", request).await.map(drop)
    }

    /// Returns a schedule.
    pub async fn get(&self, id: &str) -> Result<Option<Schedule>, CallError> {
        found(self.0.call("look up a schedule", Request::new(Method::GET, &["schedules", id])?).await)
    }

    /// Returns all schedules.
    pub async fn list(&self) -> Result<Vec<Schedule>, CallError> {
        self.0.call("list schedules", Request::new(Method::GET, &["schedules"])?).await
    }

    /// Pauses a schedule. False if it does not exist.
    pub async fn pause(&self, id: &str) -> Result<bool, CallError> {
        self.switch("pause a schedule", Method::PATCH, &["schedules", id, "pause"]).await
    }

    /// Resumes a schedule. False if it does not exist.
    pub async fn resume(&self, id: &str) -> Result<bool, CallError> {
        self.switch("resume a schedule", Method::PATCH, &["schedules", id, "resume"]).await
    }

    /// Deletes a schedule. False if it does not exist.
    pub async fn delete(&self, id: &str) -> Result<bool, CallError> {
        self.switch("delete a schedule", Method::DELETE, &["schedules", id]).await
    }

    async fn switch(&self, operation: &str, method: Method, parts: &[&str]) -> Result<bool, CallError> {
        Ok(found(self.0.call::<Ignored>(operation, Request::new(method, parts)?).await)?.is_some())
    }
}

/// A message as stored by the queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StoredMessage {
    /// Id of the message.
    pub message_id: String,
    /// Destination URL.
    pub url: String,
    /// Method of the delivery.
    #[serde(default)]
    pub method: Option<String>,
    /// Headers of the delivery.
    #[serde(default)]
    pub header: BTreeMap<String, Vec<String>>,
    /// The body, if it is text.
    #[serde(default)]
    pub body: Option<String>,
    /// The body in base64, if it is not text.
    #[serde(default)]
    pub body_base64: Option<String>,
    /// Number of retries.
    #[serde(default)]
    pub max_retries: u32,
    /// Expression for the delay before each retry.
    #[serde(default)]
    pub retry_delay_expression: Option<String>,
    /// FIFO queue of the message.
    #[serde(default)]
    pub queue_name: Option<String>,
    /// URL group that the message was published to.
    #[serde(default)]
    pub topic_name: Option<String>,
    /// Schedule that created the message.
    #[serde(default)]
    pub schedule_id: Option<String>,
    /// Labels of the message.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Earliest time of the first attempt, in milliseconds since 1970.
    #[serde(default)]
    pub not_before: u64,
    /// Time of the publish, in milliseconds since 1970.
    #[serde(default)]
    pub created_at: u64,
}

/// A message that failed permanently.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeadLetter {
    /// Id of the dead letter.
    pub dlq_id: String,
    /// The message.
    #[serde(flatten)]
    pub message: StoredMessage,
    /// Status of the last response; 0 if there was none.
    #[serde(default)]
    pub response_status: u16,
    /// Body of the last response, if it is text.
    #[serde(default)]
    pub response_body: Option<String>,
}

/// A page of dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct DeadLetterPage {
    /// Dead letters, newest first.
    #[serde(rename = "messages")]
    pub letters: Vec<DeadLetter>,
    /// Cursor of the next page; `None` on the last page.
    #[serde(default, deserialize_with = "not_empty")]
    pub cursor: Option<String>,
}

/// Filter for dead letters. All given conditions must match; the default matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Id of the message.
    pub message_id: Option<String>,
    /// Destination URL.
    pub url: Option<String>,
    /// FIFO queue.
    pub queue: Option<String>,
    /// URL group.
    pub url_group: Option<String>,
    /// Label.
    pub label: Option<String>,
    /// Status of the last response.
    pub response_status: Option<u16>,
    /// Start of the page: see [`DeadLetterPage::cursor`].
    pub cursor: Option<String>,
    /// Maximum number of dead letters on the page. Default and maximum: 100.
    pub count: Option<u32>,
}

impl DeadLetterFilter {
    fn query(&self) -> String {
        let text = |value: &Option<String>| value.clone();
        let parts = [
            ("messageId", text(&self.message_id)),
            ("url", text(&self.url)),
            ("queueName", text(&self.queue)),
            ("topicName", text(&self.url_group)),
            ("label", text(&self.label)),
            ("responseStatus", self.response_status.map(|status| status.to_string())),
            ("cursor", text(&self.cursor)),
            ("count", self.count.map(|count| count.to_string())),
        ];
        let given = parts.into_iter().filter_map(|(name, value)| Some((name, value?)));
        // The URL is arbitrary, because only its query is used.
        let url = reqwest::Url::parse_with_params("http://queue/", given);
        let query = url.ok().and_then(|url| url.query().map(str::to_owned)).filter(|query| !query.is_empty());
        query.map(|query| format!("?{query}")).unwrap_or_default()
    }
}

/// Dead letters; see [`QueueClient::dead_letters`].
#[derive(Debug)]
pub struct DeadLetters<'a>(&'a QueueClient);

impl<'a> DeadLetters<'a> {
    pub(super) fn new(client: &'a QueueClient) -> Self {
        DeadLetters(client)
    }

    /// Returns a page of dead letters.
    pub async fn list(&self, filter: &DeadLetterFilter) -> Result<DeadLetterPage, CallError> {
        let mut request = Request::new(Method::GET, &["dlq"])?;
        request.path.push_str(&filter.query());
        self.0.call("list dead letters", request).await
    }

    /// Returns a dead letter.
    pub async fn get(&self, dlq_id: &str) -> Result<Option<DeadLetter>, CallError> {
        found(self.0.call("look up a dead letter", Request::new(Method::GET, &["dlq", dlq_id])?).await)
    }

    /// Publishes a dead letter again, as a new message, and removes it. `None` if it does not exist.
    pub async fn retry(&self, dlq_id: &str) -> Result<Option<Published>, CallError> {
        let request = Request::new(Method::POST, &["dlq", "retry", dlq_id])?.once();
        let receipt: Option<Receipt> = found(self.0.call("retry a dead letter", request).await)?;
        Ok(receipt.map(|receipt| Published::by(Route::Queue, vec![receipt])))
    }

    /// Publishes a page of dead letters again: at most 100, or [`DeadLetterFilter::count`]. Returns the new messages;
    /// empty if no dead letter is left.
    pub async fn retry_page(&self, filter: &DeadLetterFilter) -> Result<Vec<Receipt>, CallError> {
        #[derive(Deserialize)]
        struct Answer {
            responses: Vec<Receipt>,
        }
        let mut request = Request::new(Method::POST, &["dlq", "retry"])?.once();
        request.path.push_str(&filter.query());
        Ok(self.0.call::<Answer>("retry dead letters", request).await?.responses)
    }

    /// Deletes a dead letter. False if it does not exist.
    pub async fn delete(&self, dlq_id: &str) -> Result<bool, CallError> {
        let request = Request::new(Method::DELETE, &["dlq", dlq_id])?;
        Ok(found(self.0.call::<Ignored>("delete a dead letter", request).await)?.is_some())
    }

    /// Deletes a page of dead letters: at most 100, or [`DeadLetterFilter::count`]. Returns their number; zero if no
    /// dead letter is left.
    pub async fn delete_page(&self, filter: &DeadLetterFilter) -> Result<u64, CallError> {
        #[derive(Deserialize)]
        struct Answer {
            deleted: u64,
        }
        // A repeated request would delete another page.
        let mut request = Request::new(Method::DELETE, &["dlq"])?.once();
        request.path.push_str(&filter.query());
        Ok(self.0.call::<Answer>("delete dead letters", request).await?.deleted)
    }
}

/// Hosted QStash sends `""` for none.
fn not_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|cursor| !cursor.is_empty()))
}
