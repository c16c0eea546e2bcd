//! Supabase: auth hooks, which are Standard Webhooks, and database webhooks, which are sent by database triggers.

use super::{Authentic, Hmac, Incoming, InvalidScheme, Scheme, SharedSecret, Standard};
use crate::receiver::Rejected;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// The header of a shared secret, by default.
const SECRET_HEADER: &str = "x-webhook-secret";
/// The header of an HMAC, by default.
const SIGNATURE_HEADER: &str = "x-supabase-signature";
/// Auth hooks are retried three times, two seconds apart.
const AUTH_RETRY_WINDOW: Duration = Duration::from_secs(3_600);
/// Database webhooks are not retried, and the body identifies them. If events were remembered longer, a row that
/// changes back and forth would look like a repetition.
const DATABASE_RETRY_WINDOW: Duration = Duration::from_secs(300);

/// Verifies webhooks of Supabase. The kind of a change is `INSERT`, `UPDATE` or `DELETE`.
///
/// Database webhooks have no event id, so the body identifies the event. Two identical changes within the
/// [retention](super::Webhook::keep), such as a flag that is set, cleared and set again, count as one unless the row
/// has a time or a version that changes with it.
///
/// ```
/// use posthaste_kit::webhook::{Hmac, Supabase};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let auth_hook = Supabase::auth_hook("v1,whsec_AQIDBAUGBwgBAgMEBQYHCAECAwQFBgcI")?;
/// let database_webhook = Supabase::shared_secret("in the header X-Webhook-Secret")?;
/// let trigger_with_pgcrypto = Supabase::hmac("in the header X-Supabase-Signature, in hexadecimal digits")?;
/// let in_another_header = Supabase::from(Hmac::in_header("X-Signature", "the secret")?.prefix("sha256="));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Supabase(Proof);

#[derive(Clone, Debug)]
enum Proof {
    Standard(Standard),
    Hmac(Box<Hmac>),
    Shared(SharedSecret),
}

impl Supabase {
    /// An auth hook, with its secret as Supabase shows it, `v1,whsec_…`.
    pub fn auth_hook(secret: impl AsRef<str>) -> Result<Supabase, InvalidScheme> {
        let secret = secret.as_ref().trim();
        Standard::new(secret.strip_prefix("v1,").unwrap_or(secret)).map(Supabase::from)
    }

    /// A database webhook whose trigger signs the body with `hmac(…, 'sha256')` and sends the MAC as
    /// `X-Supabase-Signature`.
    pub fn hmac(secret: impl AsRef<str>) -> Result<Supabase, InvalidScheme> {
        Hmac::in_header(SIGNATURE_HEADER, secret).map(Supabase::from)
    }

    /// A database webhook created in the dashboard, with the header `X-Webhook-Secret` added.
    pub fn shared_secret(secret: impl AsRef<str>) -> Result<Supabase, InvalidScheme> {
        SharedSecret::in_header(SECRET_HEADER, secret).map(Supabase::from)
    }
}

impl From<Standard> for Supabase {
    fn from(scheme: Standard) -> Self {
        Supabase(Proof::Standard(scheme))
    }
}

impl From<Hmac> for Supabase {
    fn from(scheme: Hmac) -> Self {
        Supabase(Proof::Hmac(Box::new(scheme)))
    }
}

impl From<SharedSecret> for Supabase {
    fn from(scheme: SharedSecret) -> Self {
        Supabase(Proof::Shared(scheme))
    }
}

impl Scheme for Supabase {
    fn name(&self) -> &'static str {
        "supabase"
    }

    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected> {
        match &self.0 {
            Proof::Standard(scheme) => scheme.verify(request, now),
            Proof::Hmac(scheme) => scheme.verify(request, now),
            Proof::Shared(scheme) => scheme.verify(request, now),
        }
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        match &self.0 {
            Proof::Standard(scheme) => scheme.precheck(headers),
            Proof::Hmac(scheme) => scheme.precheck(headers),
            Proof::Shared(scheme) => scheme.precheck(headers),
        }
    }

    fn retry_window(&self) -> Duration {
        match &self.0 {
            Proof::Standard(_) => AUTH_RETRY_WINDOW,
            Proof::Hmac(_) | Proof::Shared(_) => DATABASE_RETRY_WINDOW,
        }
    }

    fn valid_for(&self) -> Duration {
        match &self.0 {
            Proof::Standard(scheme) => scheme.valid_for(),
            Proof::Hmac(scheme) => scheme.valid_for(),
            Proof::Shared(scheme) => scheme.valid_for(),
        }
    }
}

/// A change of a row, from a database webhook. `T` is the type of the row.
///
/// ```
/// use posthaste_kit::webhook::SupabaseChange;
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     id: u64,
/// }
///
/// # fn main() -> Result<(), serde_json::Error> {
/// let body = r#"{"type":"INSERT","table":"orders","schema":"public","record":{"id":7},"old_record":null}"#;
/// match serde_json::from_str(body)? {
///     SupabaseChange::<Order>::Insert { table, record, .. } => assert_eq!((table.as_str(), record.id), ("orders",
/// 7)),
///     other => panic!("{} is no INSERT", other.operation()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "UPPERCASE")]
pub enum SupabaseChange<T = Value> {
    /// A row was inserted.
    Insert {
        /// The table.
        table: String,
        /// The schema of the table.
        schema: String,
        /// The new row.
        record: T,
    },
    /// A row was updated.
    Update {
        /// The table.
        table: String,
        /// The schema of the table.
        schema: String,
        /// The row after the update.
        record: T,
        /// The row before the update.
        old_record: T,
    },
    /// A row was deleted.
    Delete {
        /// The table.
        table: String,
        /// The schema of the table.
        schema: String,
        /// The row before it was deleted.
        old_record: T,
    },
}

impl<T> SupabaseChange<T> {
    /// `INSERT`, `UPDATE` or `DELETE`.
    pub fn operation(&self) -> &'static str {
        match self {
            SupabaseChange::Insert { .. } => "INSERT",
            SupabaseChange::Update { .. } => "UPDATE",
            SupabaseChange::Delete { .. } => "DELETE",
        }
    }

    /// The table.
    pub fn table(&self) -> &str {
        let (SupabaseChange::Insert { table, .. }
        | SupabaseChange::Update { table, .. }
        | SupabaseChange::Delete { table, .. }) = self;
        table
    }

    /// The schema of the table.
    pub fn schema(&self) -> &str {
        let (SupabaseChange::Insert { schema, .. }
        | SupabaseChange::Update { schema, .. }
        | SupabaseChange::Delete { schema, .. }) = self;
        schema
    }

    /// The row after the change, unless it was deleted.
    pub fn record(&self) -> Option<&T> {
        match self {
            SupabaseChange::Insert { record, .. } | SupabaseChange::Update { record, .. } => Some(record),
            SupabaseChange::Delete { .. } => None,
        }
    }

    /// The row before the change, unless it is new.
    pub fn old_record(&self) -> Option<&T> {
        match self {
            SupabaseChange::Insert { .. } => None,
            SupabaseChange::Update { old_record, .. } | SupabaseChange::Delete { old_record, .. } => Some(old_record),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changes_have_the_expected_rows() {
        let change = |kind: &str, record: Value, old: Value| {
            let body = json!({"type": kind, "table": "t", "schema": "public", "record": record, "old_record": old});
            serde_json::from_value::<SupabaseChange<Row>>(body).ok()
        };
        let (row, none) = (json!({"id": 1}), Value::Null);
        let read = |kind: &str, record: &Value, old: &Value| {
            let change = change(kind, record.clone(), old.clone())?;
            assert_eq!((change.operation(), change.table(), change.schema()), (kind, "t", "public"));
            Some((change.record().is_some(), change.old_record().is_some()))
        };
        assert_eq!(read("INSERT", &row, &none), Some((true, false)));
        assert_eq!(read("UPDATE", &row, &row), Some((true, true)));
        assert_eq!(read("DELETE", &none, &row), Some((false, true)));
        // A missing row that is required, and bodies that are not a change of a row.
        for (kind, record, old) in [("INSERT", &none, &row), ("UPDATE", &row, &none), ("DELETE", &row, &none)] {
            assert_eq!(read(kind, record, old), None, "{kind}");
        }
        assert_eq!(read("TRUNCATE", &none, &none), None);
        assert_eq!(read("insert", &row, &none), None);
    }

    #[derive(Deserialize)]
    struct Row {
        #[serde(rename = "id")]
        _id: u64,
    }
}
