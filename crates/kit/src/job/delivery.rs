//! The headers of a delivery whose signature is verified.

use crate::propagation::{DEDUPLICATION_ID_HEADER, EVENT_ID_HEADER, MAX_RETRIES_HEADER};
use crate::receiver::{SIGNATURE_HEADER, Verified};
use crate::telemetry::{Relation, TraceContext, id_from};
use http::HeaderMap;
use posthaste_wire::header as wire;
use std::fmt;

/// Header with the id of the message; the response carries it too.
pub const MESSAGE_ID_HEADER: &str = wire::MESSAGE_ID;

/// A delivery: its message, its attempt and its forwarded headers.
///
/// The signature covers the URL, the body and, from Posthaste, the id of the message, but no other header. The other
/// headers are only as trustworthy as the connection. Hosted QStash does not sign the id
/// ([`verified().message_id`](crate::receiver::Verified::message_id) is `None`), so an attacker who can hold back a
/// delivery can also give it another id. Effects that must not happen twice then need a key from the body, see
/// [`idempotency`](crate::idempotency).
#[derive(Clone)]
pub struct Delivery {
    message_id: String,
    request_id: String,
    retried: u32,
    max_retries: u32,
    verified: Verified,
    headers: HeaderMap,
}

/// A signed delivery without a message id, or with contradictory ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMessageId;

impl Delivery {
    /// Reads the headers. `max_retries` applies unless the publisher sent its own number.
    pub(super) fn read(
        mut headers: HeaderMap,
        request_id: String,
        max_retries: u32,
        verified: Verified,
    ) -> Result<Delivery, NoMessageId> {
        // The signature is no longer needed, and a removed header cannot be logged.
        headers.remove(SIGNATURE_HEADER);
        // The signed id counts. The header is the same or absent, otherwise the signature would have been rejected.
        let message_id = match &verified.message_id {
            Some(signed) => signed.clone(),
            None => id_from(&headers, MESSAGE_ID_HEADER).ok_or(NoMessageId)?.to_owned(),
        };
        let retried = number(&headers, wire::RETRIED).unwrap_or(0);
        let max_retries = number(&headers, MAX_RETRIES_HEADER).unwrap_or(max_retries);
        Ok(Delivery { message_id, request_id, retried, max_retries, verified, headers })
    }

    /// Id of the message, the same for all its deliveries.
    pub fn message_id(&self) -> &str {
        &self.message_id
    }

    /// Id of the request that led to the message; pass it on.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Number of the attempt as counted by the queue, starting at 1.
    pub fn attempt(&self) -> u32 {
        self.retried.saturating_add(1)
    }

    /// Maximum number of retries, if the publisher sent it; the queue does not send it.
    pub fn max_retries(&self) -> u32 {
        self.max_retries
    }

    /// Whether this is the last attempt, as far as is known.
    pub fn is_final_attempt(&self) -> bool {
        self.retried >= self.max_retries
    }

    /// The content of the signature: the URL that was published to, and the time.
    pub fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Id of the event that the message is about, if the publisher set it.
    pub fn event_id(&self) -> Option<&str> {
        id_from(&self.headers, EVENT_ID_HEADER)
    }

    /// Deduplication id of the message, if the publisher set it.
    pub fn deduplication_id(&self) -> Option<&str> {
        id_from(&self.headers, DEDUPLICATION_ID_HEADER)
    }

    /// Id of the schedule that created the message.
    pub fn schedule_id(&self) -> Option<&str> {
        id_from(&self.headers, wire::SCHEDULE_ID)
    }

    /// URL group that the message was published to.
    pub fn url_group(&self) -> Option<&str> {
        id_from(&self.headers, wire::TOPIC_NAME)
    }

    /// Trace context of the publisher; pass it on.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::from_headers(&self.headers)
    }

    /// The relation of this attempt to that trace.
    pub fn relation(&self) -> Relation {
        Relation::of(self.trace(), self.attempt())
    }

    /// All headers except the signature, including those that the publisher forwarded.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

/// Without the headers, because they may contain secrets of the publisher.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("message_id", &self.message_id)
            .field("request_id", &self.request_id)
            .field("attempt", &self.attempt())
            .field("max_retries", &self.max_retries)
            .finish_non_exhaustive()
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u32> {
    id_from(headers, name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<Delivery, NoMessageId> {
        read_signed(pairs, None)
    }

    fn read_signed(pairs: &[(&'static str, &'static str)], message_id: Option<&str>) -> Result<Delivery, NoMessageId> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        let url = "https://app.example.com/jobs".to_owned();
        let message_id = message_id.map(str::to_owned);
        let verified =
            Verified { url, message_id, jwt_id: None, issued_at: None, expires_at: 0, nonce: "jwt_1".to_owned() };
        Delivery::read(headers, "req_1".to_owned(), 5, verified)
    }

    #[test]
    fn a_delivery_says_which_message_and_which_attempt() {
        let pairs = [
            (wire::SIGNATURE, "eyJ"),
            (wire::MESSAGE_ID, "msg_1"),
            (wire::RETRIED, "2"),
            (wire::SCHEDULE_ID, "scd_1"),
            (wire::TOPIC_NAME, "group"),
            (EVENT_ID_HEADER, "evt_1"),
            (DEDUPLICATION_ID_HEADER, "mail-1"),
        ];
        let delivery = read(&pairs).unwrap();
        assert_eq!((delivery.message_id(), delivery.attempt(), delivery.max_retries()), ("msg_1", 3, 5));
        assert_eq!((delivery.schedule_id(), delivery.url_group()), (Some("scd_1"), Some("group")));
        assert_eq!((delivery.event_id(), delivery.deduplication_id()), (Some("evt_1"), Some("mail-1")));
        assert!(!delivery.headers().contains_key(wire::SIGNATURE));
        assert!(!format!("{delivery:?}").contains("evt_1"));
    }

    #[test]
    fn the_last_attempt_is_known_by_the_number_of_retries() {
        let cases =
            [("4", None, false), ("5", None, true), ("6", None, true), ("4", Some("4"), true), ("5", Some("9"), false)];
        for (retried, max_retries, is_final) in cases {
            let mut pairs = vec![(wire::MESSAGE_ID, "msg_1"), (wire::RETRIED, retried)];
            pairs.extend(max_retries.map(|max| (MAX_RETRIES_HEADER, max)));
            assert_eq!(read(&pairs).unwrap().is_final_attempt(), is_final, "{retried} of {max_retries:?}");
        }
    }

    #[test]
    fn invalid_numbers_count_as_absent() {
        for value in ["-1", "x", "", "4294967296"] {
            let delivery = read(&[(wire::MESSAGE_ID, "msg_1"), (wire::RETRIED, value)]).unwrap();
            assert_eq!(delivery.attempt(), 1, "{value}");
        }
        let last = read(&[(wire::MESSAGE_ID, "msg_1"), (wire::RETRIED, "4294967295")]).unwrap();
        assert_eq!(last.attempt(), u32::MAX);
    }

    #[test]
    fn a_delivery_needs_exactly_one_id() {
        assert_eq!(read(&[]).unwrap_err(), NoMessageId);
        assert_eq!(read(&[(wire::MESSAGE_ID, "")]).unwrap_err(), NoMessageId);
        assert_eq!(read(&[(wire::MESSAGE_ID, "a"), (wire::MESSAGE_ID, "a")]).unwrap_err(), NoMessageId);
        assert_eq!(read_signed(&[], Some("msg_7")).unwrap().message_id(), "msg_7");
    }
}
