//! Answers of the API, as far as these pages use them.

use posthaste_api_types::log::{Connection, LogState};
use posthaste_api_types::message::{DeduplicatedBy, SourceKind};
use posthaste_engine::attempt_error::{Timeout, for_people};
use posthaste_wire::encoding::from_base64;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Header lines, by name.
pub(super) type Headers = BTreeMap<String, Vec<String>>;

/// `GET /v2/logs?groupBy=messageId`.
#[derive(Deserialize)]
pub(super) struct Grouped {
    #[serde(default)]
    pub(super) messages: Vec<Group>,
    pub(super) cursor: Option<String>,
}

/// A message with its lines, newest first.
#[derive(Deserialize)]
pub(super) struct Group {
    #[serde(rename = "messageId")]
    pub(super) id: String,
    pub(super) events: Vec<Line>,
}

/// `GET /v2/events`.
#[derive(Deserialize)]
pub(super) struct Events {
    pub(super) events: Vec<Line>,
    pub(super) cursor: Option<String>,
}

/// What messages and their log lines say of the message.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct About {
    pub(super) url: String,
    pub(super) method: String,
    pub(super) header: Headers,
    #[serde(rename = "callerIP")]
    pub(super) caller_ip: String,
    pub(super) max_retries: u32,
    pub(super) labels: Vec<String>,
    pub(super) queue_name: Option<String>,
    pub(super) flow_control_key: Option<String>,
    pub(super) parallelism: Option<u32>,
    pub(super) rate: Option<u32>,
    /// In seconds.
    pub(super) period: Option<u64>,
    pub(super) schedule_id: Option<String>,
    pub(super) topic_name: Option<String>,
    pub(super) endpoint_name: Option<String>,
    pub(super) api: Option<String>,
    pub(super) retry_delay_expression: Option<String>,
    pub(super) callback: Option<String>,
    pub(super) failure_callback: Option<String>,
    #[serde(alias = "callbackHeader")]
    pub(super) callback_headers: Headers,
    #[serde(alias = "failureCallbackHeader")]
    pub(super) failure_callback_headers: Headers,
    pub(super) source_message_id: Option<String>,
    pub(super) source_kind: Option<SourceKind>,
    pub(super) deduplication: Option<DeduplicatedBy>,
    /// In milliseconds in log lines, in seconds elsewhere.
    pub(super) timeout: Option<u64>,
}

/// A log line.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) time: u64,
    pub(super) state: LogState,
    pub(super) message_id: String,
    #[serde(flatten)]
    pub(super) about: About,
    /// Base64.
    pub(super) body: Option<String>,
    pub(super) next_delivery_time: Option<u64>,
    /// Which attempt it is about; 1 is the first.
    pub(super) attempt: Option<u64>,
    pub(super) error: Option<String>,
    pub(super) duration: Option<u64>,
    pub(super) connection: Option<Connection>,
    pub(super) response_status: Option<u16>,
    #[serde(default)]
    pub(super) response_headers: Headers,
    pub(super) response_body: Option<String>,
}

impl Line {
    /// No line follows this one.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.state, LogState::Delivered | LogState::Failed | LogState::Canceled)
    }

    /// What an attempt brought, in short: a status, or why there is none.
    pub(super) fn outcome(&self) -> Option<String> {
        let status = self.response_status.map(|status| status.to_string());
        status.or_else(|| Some(for_people(self.error.as_deref()?, Timeout::of(self.about.timeout)).into_owned()))
    }
}

/// `GET /v2/messages/{id}`: while it lives, and a little longer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Message {
    #[serde(flatten)]
    pub(super) about: About,
    pub(super) created_at: u64,
    pub(super) not_before: u64,
    body: Option<String>,
    body_base64: Option<String>,
}

impl Message {
    /// The exact bytes.
    pub(super) fn body(&self) -> Vec<u8> {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, encoded) => encoded.as_deref().and_then(from_base64).unwrap_or_default(),
        }
    }
}
