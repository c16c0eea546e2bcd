//! QStash and Posthaste as senders of webhooks, with the same checks as for deliveries.

use super::mac::optional_header;
use super::{Authentic, EventId, Incoming, Scheme};
use crate::Receiver;
use crate::idempotency::KEEP_DEFAULT;
use crate::receiver::{Reason, Rejected};
use http::HeaderMap;
use posthaste_wire::header::MESSAGE_ID;
use std::time::{Duration, SystemTime};

/// A queue can send events too; the message id identifies them. Posthaste signs the id. Hosted QStash does not, so an
/// attacker who can hold back a delivery can change its id. A route with a store accepts each signature once.
impl Scheme for Receiver {
    fn name(&self) -> &'static str {
        "qstash"
    }

    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected> {
        let verified = self.verify_at(request.headers, request.uri, request.body, now)?;
        let id = match &verified.message_id {
            Some(signed) => signed,
            None => optional_header(request.headers, MESSAGE_ID)?.ok_or(Reason::EventId)?,
        };
        Ok(Authentic {
            id: EventId::new(id),
            single_use: Some(self.single_use(&verified, now)),
            ..Authentic::from_body(request.body, &[])
        })
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        self.token(headers).map(drop)
    }

    /// As for [jobs](crate::job): if a response is lost, the next attempt comes up to one day later.
    fn retry_window(&self) -> Duration {
        KEEP_DEFAULT
    }

    fn valid_for(&self) -> Duration {
        Receiver::valid_for(self)
    }

    fn is_queue(&self) -> bool {
        true
    }
}
