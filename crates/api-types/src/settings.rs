//! The configuration in effect, without secrets.

use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the server was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ServerMode {
    Dev,
    Serve,
}

/// The access that a token gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum TokenScope {
    Full,
    ReadOnly,
}

/// The origin of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum SettingSource {
    Default,
    Flag,
    Environment,
    File,
    Given,
}

/// The effective configuration without secrets, and the names of the tokens of the tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    pub version: String,
    #[schema(inline)]
    pub mode: ServerMode,
    /// Unix milliseconds.
    #[schema(value_type = u64)]
    pub started_at: Timestamp,
    pub tenant: String,
    #[schema(inline)]
    pub tokens: Vec<Token>,
    #[schema(inline)]
    pub settings: Vec<Setting>,
}

/// A token of the tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    pub name: String,
    #[schema(inline)]
    pub scope: TokenScope,
    /// Time of the last use, in Unix milliseconds; absent if the token was never used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub last_used: Option<Timestamp>,
}

/// A setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
    /// Why `value` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[schema(inline)]
    pub source: SettingSource,
}
