//! Webhook events: their id, kind and payload.

use crate::replay::SingleUse;
use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::fmt;

/// Maximum size of an id that is kept unchanged, in bytes. A longer one is replaced by its hash.
pub const EVENT_ID_BYTES_MAX: usize = 128;

/// Longest kind or table that is used. A longer one is ignored.
const LABEL_BYTES_MAX: usize = 256;

/// The id of an event: the same each time the sender sends it, and different for each event. It is ASCII without white
/// space or colons, so it can be used in headers, keys and deduplication ids.
///
/// ```
/// use posthaste_kit::webhook::EventId;
///
/// assert_eq!(EventId::new("evt_1Nxyz").as_str(), "evt_1Nxyz");
/// assert!(EventId::new("two words").as_str().starts_with("sha256-"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(String);

impl EventId {
    /// Creates an id from the sender's id. An id that is empty, too long or has other characters is replaced by its
    /// hash.
    pub fn new(text: &str) -> EventId {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        if is_plain && (1..=EVENT_ID_BYTES_MAX).contains(&text.len()) {
            EventId(text.to_owned())
        } else {
            EventId::from_body(text.as_bytes())
        }
    }

    /// Creates an id from the body, for senders without event ids. The same body again counts as the same event.
    pub fn from_body(body: &[u8]) -> EventId {
        let hash = Sha256::digest(body);
        EventId(hash.iter().fold("sha256-".to_owned(), |text, byte| format!("{text}{byte:02x}")))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The event of a verified request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authentic {
    /// Id of the event.
    pub id: EventId,
    /// Kind of the event, as the sender names it, if it does: `invoice.paid`, `pull_request`, `INSERT`.
    pub kind: Option<String>,
    /// The table that changed, for database webhooks.
    pub table: Option<String>,
    /// The signature, if it may be used only once.
    pub(crate) single_use: Option<SingleUse>,
}

impl Authentic {
    /// An event with only an id.
    pub fn new(id: EventId) -> Authentic {
        Authentic { id, kind: None, table: None, single_use: None }
    }

    /// Whether the kind of the event can be read from the body. If not, it may be any kind, including a selected one.
    pub(crate) fn is_legible(body: &[u8]) -> bool {
        serde_json::from_slice::<Peek<'_>>(body).is_ok()
    }

    /// The event of a JSON body: its `type` and `table`, and an id from one of `id_members`. If there is no such
    /// member, or the body is not JSON, the hash of the body identifies the event. Only for verified bodies.
    pub(crate) fn from_body(body: &[u8], id_members: &[IdMember]) -> Authentic {
        let peek: Peek<'_> = serde_json::from_slice(body).unwrap_or_default();
        let id = id_members.iter().find_map(|member| match member {
            IdMember::Id => text(peek.id),
            IdMember::EventId => text(peek.event_id),
        });
        let id = id.filter(|id| !id.is_empty());
        Authentic {
            id: id.map_or_else(|| EventId::from_body(body), |id| EventId::new(&id)),
            kind: label(peek.kind),
            table: label(peek.table),
            single_use: None,
        }
    }
}

/// A member of a body that may contain the id of the event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdMember {
    /// `id`
    Id,
    /// `event_id`
    EventId,
}

/// The members that are read, with values of any type.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Peek<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    event_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    table: Option<&'a RawValue>,
}

fn text(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

fn label(value: Option<&RawValue>) -> Option<String> {
    text(value).filter(|text| text.len() <= LABEL_BYTES_MAX)
}

/// An event for a handler: verified, selected by the filters, and not handled before.
#[derive(Clone)]
#[non_exhaustive]
pub struct Event<P> {
    /// Id of the event.
    pub id: EventId,
    /// The [name](super::Webhook::named) of the route that received it. Event ids are unique only within a route.
    pub route: String,
    /// Kind of the event, as the sender names it, if it does: `invoice.paid`, `pull_request`, `INSERT`.
    pub kind: Option<String>,
    /// The table that changed, for database webhooks.
    pub table: Option<String>,
    /// The payload.
    pub payload: P,
    /// The body as it was received.
    pub body: Bytes,
    /// The headers as they were received, including the signature.
    pub headers: HeaderMap,
    /// Id of the request, for logs and other services: from the sender, or a new one.
    pub request_id: String,
    /// Grows with every holder of the event's key, if the store can guarantee it; see
    /// [`Lease::fence`](crate::idempotency::Lease::fence).
    pub fence: u64,
}

/// Shows neither the headers, which contain secrets, nor the content from the sender.
impl<P> fmt::Debug for Event<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("route", &self.route)
            .field("kind", &self.kind)
            .field("table", &self.table)
            .field("request_id", &self.request_id)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_kept_if_they_can_be_a_header_and_hashed_if_not() {
        let longest = "x".repeat(EVENT_ID_BYTES_MAX);
        for kept in ["evt_1", "72d3162e-0000", &longest] {
            assert_eq!(EventId::new(kept).as_str(), kept);
        }
        let too_long = "x".repeat(EVENT_ID_BYTES_MAX + 1);
        let hashed = ["", "a b", "a:b", "ü", "a\r\nb", &too_long].map(EventId::new);
        for (at, id) in hashed.iter().enumerate() {
            assert!(id.as_str().len() == 71 && id.as_str().bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
            assert!(!hashed[..at].contains(id));
        }
        let empty = "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(EventId::from_body(b"").as_str(), empty);
    }

    #[test]
    fn events_are_identified_by_a_member_or_by_the_hash_of_the_body() {
        let both = [IdMember::EventId, IdMember::Id];
        let of = |body: &str| Authentic::from_body(body.as_bytes(), &both);
        let named = of(r#"{"id":"evt_1","type":"invoice.paid","table":"orders","data":{"id":7,"type":[]}}"#);
        assert_eq!((named.id.as_str(), named.kind.as_deref()), ("evt_1", Some("invoice.paid")));
        assert_eq!(named.table.as_deref(), Some("orders"));
        assert_eq!(of(r#"{"id":"a","event_id":"b"}"#).id.as_str(), "b");
        assert_eq!(of(r#"{"id":"a","event_id":7}"#).id.as_str(), "a");
        for body in
            ["", "[]", "{", "null", r#"{"id":7,"type":7}"#, r#"{"id":""}"#, r#"{"id":"a","id":"b"}"#, "\u{feff}{}"]
        {
            assert_eq!(of(body), Authentic::new(EventId::from_body(body.as_bytes())), "{body}");
        }
        let long = format!(r#"{{"type":"{}"}}"#, "x".repeat(LABEL_BYTES_MAX + 1));
        assert_eq!(of(&long).kind, None);
    }
}
