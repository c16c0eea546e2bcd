//! QStash and Posthaste as senders of webhooks: the same check as for deliveries.

use super::mac::optional_header;
use super::{Authentic, EventId, Incoming, Scheme};
use crate::Receiver;
use crate::receiver::{Reason, Rejected};
use std::time::{Duration, SystemTime};

/// Names the message. Not signed: a receiver that knows its own URL takes a message for no other endpoint, but who
/// has seen one can send it again under another name until its signature ends.
const MESSAGE_ID: &str = "upstash-message-id";

/// A queue may send events as well: the message id names them.
impl Scheme for Receiver {
    fn name(&self) -> &'static str {
        "qstash"
    }

    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected> {
        self.verify_at(request.headers, request.uri, request.body, now)?;
        let id = optional_header(request.headers, MESSAGE_ID)?.ok_or(Reason::EventId)?;
        Ok(Authentic { id: EventId::new(id), ..Authentic::from_body(request.body, &[]) })
    }

    fn valid_for(&self) -> Duration {
        Receiver::valid_for(self)
    }

    fn is_queue(&self) -> bool {
        true
    }
}
