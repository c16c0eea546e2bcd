//! Who looks at something, and what is hidden from them.
//!
//! What a message or a run asks to hide is hidden from everybody. Credentials that are sent on are hidden from those who may
//! only read, whatever was asked: they are for the receiver. Marks are those of the values as they were published, also if
//! they are stored encrypted.

use super::shape::header_lists;
use crate::app::App;
use crate::credentials::Credentials;
use crate::tenants::Scope;
use posthaste_api_types::HeaderLists;
use posthaste_engine::message::{CauseKind, Message};
use posthaste_wire::encoding::{header_bytes, header_shown};
use posthaste_wire::id::TenantId;
use posthaste_wire::redact::{Marks, RedactFields, is_credential};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::BTreeMap;

/// Somebody who may read what a tenant has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewer {
    pub(super) tenant: TenantId,
    marks: Marks,
    credentials: Credentials,
    sees_credentials: bool,
}

impl Viewer {
    /// Somebody with a token of this scope.
    pub(super) fn of_scope(app: &App, tenant: TenantId, scope: Scope) -> Viewer {
        Viewer::with((app.marks_of(tenant), app.core.credentials()), tenant, scope)
    }

    /// The same, with what marks are made of and what opens stored credentials.
    pub(super) fn with((marks, credentials): (Marks, Credentials), tenant: TenantId, scope: Scope) -> Viewer {
        Viewer { tenant, marks, credentials, sees_credentials: scope == Scope::Full }
    }

    /// What stands in the place of a hidden value.
    pub(super) fn mark(&self, original: &[u8]) -> String {
        self.marks.mark(original)
    }

    /// Whether the value of a header is hidden.
    pub(super) fn hides_header(&self, redact: &RedactFields, name: &str) -> bool {
        redact.hides_header(name) || (!self.sees_credentials && is_credential(name))
    }

    /// Headers that are sent on, some of them hidden.
    pub(super) fn sent_headers(&self, headers: &[(String, String)], redact: &RedactFields) -> HeaderLists {
        header_lists(headers, |name, value| {
            self.stored_value(self.hides_header(redact, name), value, |value| header_shown(value).into_owned())
        })
    }

    /// A stored value of a header: its mark if it is hidden.
    pub(super) fn stored_value(&self, is_hidden: bool, value: &str, shown: impl Fn(&str) -> String) -> String {
        match self.credentials.open(self.tenant, value) {
            Ok(value) if is_hidden => self.mark(&header_bytes(&value)),
            Ok(value) => shown(&value),
            Err(error) => format!("REDACTED: {error}"),
        }
    }

    /// Headers of a response, or of a URL group.
    pub(super) fn received_headers(&self, headers: &[(String, String)]) -> HeaderLists {
        let nothing = RedactFields::default();
        header_lists(headers, |name, value| self.stored_value(self.hides_header(&nothing, name), value, str::to_owned))
    }

    /// The same of headers in JSON: names with lists of values, or with one.
    pub(super) fn received_json(&self, headers: Value) -> Value {
        let Value::Object(mut headers) = headers else { return headers };
        let is_hidden = |name: &str| self.hides_header(&RedactFields::default(), name);
        for (_, values) in headers.iter_mut().filter(|(name, _)| is_hidden(name)) {
            let values = match values {
                Value::Array(values) => values.as_mut_slice(),
                value => std::slice::from_mut(value),
            };
            for value in values {
                *value = self.mark(value.as_str().unwrap_or_default().as_bytes()).into();
            }
        }
        headers.into()
    }

    /// Whether the body of a message is hidden: it asks for that, or it is a callback that tells of credentials.
    pub(super) fn hides_body(&self, message: &Message) -> bool {
        let tells_credentials = || match message.spec.cause.map(|cause| cause.kind) {
            Some(CauseKind::Callback | CauseKind::FailureCallback) => tells_credentials(&message.body) != Some(false),
            // Perhaps a callback, before it failed.
            Some(CauseKind::DlqRetry) => tells_credentials(&message.body) == Some(true),
            None => false,
        };
        message.spec.redact.body || (!self.sees_credentials && tells_credentials())
    }
}

/// The parts of a callback's body that have headers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldHeaders {
    #[serde(default)]
    header: Option<BTreeMap<String, IgnoredAny>>,
    #[serde(default)]
    source_header: Option<BTreeMap<String, IgnoredAny>>,
}

/// Whether a callback's body has headers that carry credentials; `None` if it is not the body of one.
fn tells_credentials(body: &[u8]) -> Option<bool> {
    let ToldHeaders { header, source_header } = serde_json::from_slice(body).ok()?;
    Some([header, source_header].into_iter().flatten().flatten().any(|(name, _)| is_credential(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_that_tell_of_credentials_are_known_by_their_headers() {
        for (body, expected) in [
            (&br#"{"status":200,"header":{"Set-Cookie":["a"]},"body":"x"}"#[..], Some(true)),
            (br#"{"sourceHeader":{"authorization":["Bearer a"]},"header":{}}"#, Some(true)),
            (br#"{"sourceHeader":{"Content-Type":["a"]},"header":{"Via":["b"]},"sourceBody":"Cookie"}"#, Some(false)),
            (br#"{"sourceHeader":null}"#, Some(false)),
            (b"", None),
            (b"not JSON", None),
        ] {
            assert_eq!(tells_credentials(body), expected, "{}", String::from_utf8_lossy(body));
        }
    }
}
