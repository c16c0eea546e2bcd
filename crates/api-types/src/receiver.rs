//! Deliveries that the test receiver of the console has received.

use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Deliveries that were cleared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cleared {
    pub deleted: u64,
}

/// URL of the test receiver for a tenant, and its last deliveries, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestReceiver {
    pub url: String,
    #[schema(inline)]
    pub deliveries: Vec<ReceivedDelivery>,
}

/// A delivery that the test receiver has received.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedDelivery {
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    pub attempt: u64,
    pub method: String,
    /// Responses that the URL asks for.
    pub script: String,
    /// Response that was sent: a status, optionally with a delay, or `hang`.
    pub answer: String,
    #[serde(default)]
    pub header: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    pub body_bytes: u64,
    /// True if `body` holds only the first bytes.
    pub is_cut: bool,
    #[schema(inline)]
    pub signature: SignatureVerdict,
}

/// Which of the two signing keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum KeyName {
    Current,
    Next,
}

/// Whether the signature of a delivery is valid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignatureVerdict {
    pub is_valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub key: Option<KeyName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
