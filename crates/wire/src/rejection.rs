//! Why a request is refused, in words for the publisher.

use std::fmt;

/// A refusal: nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Which class of refusal, and thus which status.
    pub status: RejectionKind,
    /// What is wrong and what would be accepted.
    pub message: String,
}

/// Classes of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// The request makes no sense as it is.
    Invalid,
    /// It makes sense but asks for more than the server allows.
    Quota,
}

impl RejectionKind {
    /// The HTTP status of the answer.
    pub fn code(self) -> u16 {
        match self {
            RejectionKind::Invalid => 400,
            RejectionKind::Quota => 412,
        }
    }
}

impl Rejection {
    /// A request that makes no sense.
    pub fn invalid(message: impl Into<String>) -> Rejection {
        Rejection { status: RejectionKind::Invalid, message: message.into() }
    }

    /// A request over a limit, in the words of the hosted service.
    pub fn quota(name: &str, limit: u64) -> Rejection {
        let message = format!("quota {name} exceeded, current limit: {limit}");
        Rejection { status: RejectionKind::Quota, message }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Rejection {}
