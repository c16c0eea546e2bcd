//! What is at the queue besides messages on their way: URL groups, queues, schedules, dead letters.
//!
//! Each is a view of the [`QueueClient`] with the verbs of its part of the API. What does not exist is `None` or
//! `false`, not an error.

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

/// One destination of a URL group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Where messages go.
    pub url: String,
    /// What it is called.
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
    /// Its name.
    pub name: String,
    /// Where its messages go.
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

    /// Adds endpoints, and the group with them; changes those that have the same name or URL.
    pub async fn add(&self, name: &str, endpoints: &[Endpoint]) -> Result<(), CallError> {
        let request = Request::new(Method::POST, &["topics", name, "endpoints"])?;
        let request = request.with_json(&json!({ "endpoints": endpoints }))?;
        self.0.call::<Ignored>("add endpoints", request).await.map(drop)
    }

    /// Removes the endpoints with these URLs; the group goes with the last one.
    pub async fn remove(&self, name: &str, urls: &[&str]) -> Result<(), CallError> {
        let endpoints: Vec<_> = urls.iter().map(|url| json!({ "url": url })).collect();
        let request = Request::new(Method::DELETE, &["topics", name, "endpoints"])?;
        let request = request.with_json(&json!({ "endpoints": endpoints }))?;
        found(self.0.call::<Ignored>("remove endpoints", request).await).map(drop)
    }

    /// A group.
    pub async fn get(&self, name: &str) -> Result<Option<UrlGroup>, CallError> {
        found(self.0.call("look up a URL group", Request::new(Method::GET, &["topics", name])?).await)
    }

    /// All groups.
    pub async fn list(&self) -> Result<Vec<UrlGroup>, CallError> {
        self.0.call("list URL groups", Request::new(Method::GET, &["topics"])?).await
    }

    /// Removes a group. Messages on their way go on.
    pub async fn delete(&self, name: &str) -> Result<(), CallError> {
        let request = Request::new(Method::DELETE, &["topics", name])?;
        found(self.0.call::<Ignored>("delete a URL group", request).await).map(drop)
    }
}

/// Messages one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// How many of its messages are delivered at once.
    pub parallelism: u32,
    /// Whether deliveries are stopped.
    #[serde(default)]
    pub paused: bool,
    /// How many messages wait or are being delivered.
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

    /// Makes a queue or changes it: so many of its messages are delivered at once. It is not paused afterwards.
    pub async fn put(&self, name: &str, parallelism: u32) -> Result<(), CallError> {
        if !is_name(name) {
            return Err(CallError::invalid(format!("{name:?} is not a valid queue name")));
        }
        let body = json!({ "queueName": name, "parallelism": parallelism, "paused": false });
        let request = Request::new(Method::POST, &["queues"])?.with_json(&body)?;
        self.0.call::<Ignored>("put a queue", request).await.map(drop)
    }

    /// A queue.
    pub async fn get(&self, name: &str) -> Result<Option<Queue>, CallError> {
        found(self.0.call("look up a queue", Request::new(Method::GET, &["queues", name])?).await)
    }

    /// All queues.
    pub async fn list(&self) -> Result<Vec<Queue>, CallError> {
        self.0.call("list queues", Request::new(Method::GET, &["queues"])?).await
    }

    /// Stops deliveries; messages are still taken. False if there is no such queue.
    pub async fn pause(&self, name: &str) -> Result<bool, CallError> {
        self.switch("pause a queue", name, "pause").await
    }

    /// Goes on with deliveries. False if there is no such queue.
    pub async fn resume(&self, name: &str) -> Result<bool, CallError> {
        self.switch("resume a queue", name, "resume").await
    }

    /// Removes a queue with all messages that wait in it.
    pub async fn delete(&self, name: &str) -> Result<(), CallError> {
        let request = Request::new(Method::DELETE, &["queues", name])?;
        found(self.0.call::<Ignored>("delete a queue", request).await).map(drop)
    }

    async fn switch(&self, operation: &str, name: &str, verb: &str) -> Result<bool, CallError> {
        let request = Request::new(Method::POST, &["queues", name, verb])?;
        Ok(found(self.0.call::<Ignored>(operation, request).await)?.is_some())
    }
}

/// A message that is published again and again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Schedule {
    /// Its id.
    pub schedule_id: String,
    /// When, as a cron expression.
    pub cron: String,
    /// Where to.
    pub destination: String,
    /// Attempts after the first, for each message.
    #[serde(default)]
    pub retries: u32,
    /// Whether it is stopped.
    #[serde(default)]
    pub is_paused: bool,
    /// The queue that its messages go through.
    #[serde(default)]
    pub queue_name: Option<String>,
    /// When it is next, in milliseconds since 1970.
    #[serde(default)]
    pub next_schedule_time: Option<u64>,
    /// When it last was, in milliseconds since 1970.
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

    /// Publishes this message whenever the cron expression says so. A schedule with the same id is replaced, so that a
    /// program can do this whenever it starts. What the message says about duplicates does not count: every time is
    /// another message.
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

    /// A schedule.
    pub async fn get(&self, id: &str) -> Result<Option<Schedule>, CallError> {
        found(self.0.call("look up a schedule", Request::new(Method::GET, &["schedules", id])?).await)
    }

    /// All schedules.
    pub async fn list(&self) -> Result<Vec<Schedule>, CallError> {
        self.0.call("list schedules", Request::new(Method::GET, &["schedules"])?).await
    }

    /// Stops it until it is resumed. False if there is no such schedule.
    pub async fn pause(&self, id: &str) -> Result<bool, CallError> {
        self.switch("pause a schedule", Method::PATCH, &["schedules", id, "pause"]).await
    }

    /// Goes on with it. False if there is no such schedule.
    pub async fn resume(&self, id: &str) -> Result<bool, CallError> {
        self.switch("resume a schedule", Method::PATCH, &["schedules", id, "resume"]).await
    }

    /// Removes it. False if there is no such schedule.
    pub async fn delete(&self, id: &str) -> Result<bool, CallError> {
        self.switch("delete a schedule", Method::DELETE, &["schedules", id]).await
    }

    async fn switch(&self, operation: &str, method: Method, parts: &[&str]) -> Result<bool, CallError> {
        Ok(found(self.0.call::<Ignored>(operation, Request::new(method, parts)?).await)?.is_some())
    }
}

/// A message as the queue has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StoredMessage {
    /// Its id.
    pub message_id: String,
    /// Where it goes.
    pub url: String,
    /// The method of its delivery.
    #[serde(default)]
    pub method: Option<String>,
    /// The headers of its delivery.
    #[serde(default)]
    pub header: BTreeMap<String, Vec<String>>,
    /// What it carries, if that is text.
    #[serde(default)]
    pub body: Option<String>,
    /// What it carries in base64, if it is no text.
    #[serde(default)]
    pub body_base64: Option<String>,
    /// Attempts after the first.
    #[serde(default)]
    pub max_retries: u32,
    /// The wait before each of them.
    #[serde(default)]
    pub retry_delay_expression: Option<String>,
    /// The queue that it goes through.
    #[serde(default)]
    pub queue_name: Option<String>,
    /// The URL group that it was published to.
    #[serde(default)]
    pub topic_name: Option<String>,
    /// The schedule that published it.
    #[serde(default)]
    pub schedule_id: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Not before, in milliseconds since 1970.
    #[serde(default)]
    pub not_before: u64,
    /// When it was published, in milliseconds since 1970.
    #[serde(default)]
    pub created_at: u64,
}

/// A message that failed for good.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its id among the dead letters.
    pub dlq_id: String,
    /// The message.
    #[serde(flatten)]
    pub message: StoredMessage,
    /// The status of the last answer; 0 if there was none.
    #[serde(default)]
    pub response_status: u16,
    /// The last answer, if it is text.
    #[serde(default)]
    pub response_body: Option<String>,
}

/// A page of dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct DeadLetterPage {
    /// The letters, newest first.
    #[serde(rename = "messages")]
    pub letters: Vec<DeadLetter>,
    /// Where the next page begins; `None` on the last.
    #[serde(default, deserialize_with = "not_empty")]
    pub cursor: Option<String>,
}

/// Which dead letters are meant: those for which all that is given is true. The default means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Of this message.
    pub message_id: Option<String>,
    /// For this URL.
    pub url: Option<String>,
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this URL group.
    pub url_group: Option<String>,
    /// With this label.
    pub label: Option<String>,
    /// With this status of the last answer.
    pub response_status: Option<u16>,
    /// From here on: see [`DeadLetterPage::cursor`].
    pub cursor: Option<String>,
    /// At most so many, up to 100.
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
        // Any URL does: only its query is wanted.
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

    /// A page of them.
    pub async fn list(&self, filter: &DeadLetterFilter) -> Result<DeadLetterPage, CallError> {
        let mut request = Request::new(Method::GET, &["dlq"])?;
        request.path.push_str(&filter.query());
        self.0.call("list dead letters", request).await
    }

    /// One of them.
    pub async fn get(&self, dlq_id: &str) -> Result<Option<DeadLetter>, CallError> {
        found(self.0.call("look up a dead letter", Request::new(Method::GET, &["dlq", dlq_id])?).await)
    }

    /// Publishes it again, as a new message, and removes it. `None` if it is not there.
    pub async fn retry(&self, dlq_id: &str) -> Result<Option<Published>, CallError> {
        let request = Request::new(Method::POST, &["dlq", "retry", dlq_id])?.once();
        let receipt: Option<Receipt> = found(self.0.call("retry a dead letter", request).await)?;
        Ok(receipt.map(|receipt| Published::by(Route::Queue, vec![receipt])))
    }

    /// Publishes a page of them again: at most 100, or [`DeadLetterFilter::count`]. How many that were; none when there
    /// are none left.
    pub async fn retry_page(&self, filter: &DeadLetterFilter) -> Result<Vec<Receipt>, CallError> {
        #[derive(Deserialize)]
        struct Answer {
            responses: Vec<Receipt>,
        }
        let mut request = Request::new(Method::POST, &["dlq", "retry"])?.once();
        request.path.push_str(&filter.query());
        Ok(self.0.call::<Answer>("retry dead letters", request).await?.responses)
    }

    /// Removes it. False if it is not there.
    pub async fn delete(&self, dlq_id: &str) -> Result<bool, CallError> {
        let request = Request::new(Method::DELETE, &["dlq", dlq_id])?;
        Ok(found(self.0.call::<Ignored>("delete a dead letter", request).await)?.is_some())
    }

    /// Removes a page of them: at most 100, or [`DeadLetterFilter::count`]. How many that were; zero when there are
    /// none left.
    pub async fn delete_page(&self, filter: &DeadLetterFilter) -> Result<u64, CallError> {
        #[derive(Deserialize)]
        struct Answer {
            deleted: u64,
        }
        // Repeated, it would be another page.
        let mut request = Request::new(Method::DELETE, &["dlq"])?.once();
        request.path.push_str(&filter.query());
        Ok(self.0.call::<Answer>("delete dead letters", request).await?.deleted)
    }
}

/// Hosted QStash says `""` where it means none.
fn not_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|cursor| !cursor.is_empty()))
}
