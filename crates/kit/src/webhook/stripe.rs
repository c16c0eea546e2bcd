//! Stripe: `Stripe-Signature: t=…,v1=…`, and the envelope of its events.

use super::event::IdMember;
use super::mac::{
    DAY_SECONDS, ENTRIES_MAX, InvalidScheme, Keys, MacBytes, TOLERANCE, TOLERANCE_MAX, check_age, from_hex, header,
    time, valid_for,
};
use super::{Authentic, Incoming, Scheme};
use crate::receiver::{Reason, Rejected};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, SystemTime};

const HEADER: &str = "stripe-signature";
/// Stripe retries for up to three days. One more day covers late attempts.
const RETRY_WINDOW: Duration = Duration::from_secs(4 * DAY_SECONDS);

/// Verifies webhooks of Stripe.
///
/// ```
/// use posthaste_kit::webhook::Stripe;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheme = Stripe::new("whsec_…")?;
/// assert!(Stripe::new("").is_err(), "without a secret there is no route");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Stripe {
    keys: Keys,
    tolerance: Duration,
}

impl Stripe {
    /// Creates the scheme with the secret of the endpoint, `whsec_…`.
    pub fn new(secret: impl AsRef<str>) -> Result<Stripe, InvalidScheme> {
        Ok(Stripe { keys: Keys::from_text(secret)?, tolerance: TOLERANCE })
    }

    /// Also accepts another secret.
    pub fn or(mut self, secret: impl AsRef<str>) -> Result<Stripe, InvalidScheme> {
        self.keys = self.keys.and(Keys::from_text(secret)?);
        Ok(self)
    }

    /// Sets the maximum age of a request, and how far its clock may be ahead. Default: [`TOLERANCE`]; maximum:
    /// [`TOLERANCE_MAX`].
    pub fn tolerance(mut self, tolerance: Duration) -> Stripe {
        self.tolerance = tolerance.min(TOLERANCE_MAX);
        self
    }
}

impl Scheme for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn verify(&self, request: &Incoming<'_>, now: SystemTime) -> Result<Authentic, Rejected> {
        let signed = Signed::parse(header(request.headers, HEADER)?)?;
        if !self.keys.made(&[signed.at.as_bytes(), b".", request.body], &signed.macs) {
            return Err(Reason::Signature.into());
        }
        check_age(time(signed.at)?, now, self.tolerance)?;
        Ok(Authentic::from_body(request.body, &[IdMember::Id]))
    }

    fn precheck(&self, headers: &HeaderMap) -> Result<(), Rejected> {
        Ok(Signed::parse(header(headers, HEADER)?).map(drop)?)
    }

    fn retry_window(&self) -> Duration {
        RETRY_WINDOW
    }

    fn valid_for(&self) -> Duration {
        valid_for(self.tolerance)
    }
}

/// The parts of the header. Unknown versions are skipped; `v0` is not a signature.
struct Signed<'a> {
    at: &'a str,
    macs: Vec<MacBytes>,
}

impl<'a> Signed<'a> {
    fn parse(value: &'a str) -> Result<Signed<'a>, Reason> {
        let (mut at, mut macs) = (None, Vec::new());
        for (count, entry) in value.split(',').enumerate() {
            if count == ENTRIES_MAX {
                return Err(Reason::TooLong);
            }
            match entry.split_once('=') {
                Some(("t", _)) if at.is_some() => return Err(Reason::Ambiguous),
                Some(("t", text)) => at = Some(text),
                Some(("v1", mac)) => macs.extend(from_hex(mac)),
                Some(_) => {}
                None => return Err(Reason::Malformed),
            }
        }
        Ok(Signed { at: at.ok_or(Reason::Malformed)?, macs })
    }
}

/// An event of Stripe. `T` is the type of its object.
///
/// ```
/// use posthaste_kit::webhook::StripeEvent;
///
/// #[derive(serde::Deserialize)]
/// struct Invoice {
///     amount_paid: u64,
/// }
///
/// # fn main() -> Result<(), serde_json::Error> {
/// let body = r#"{"id":"evt_1","type":"invoice.paid","created":1780315200,"livemode":true,
///     "api_version":"2026-03-01","data":{"object":{"amount_paid":1200}}}"#;
/// let event: StripeEvent<Invoice> = serde_json::from_str(body)?;
/// assert_eq!((event.kind.as_str(), event.data.object.amount_paid), ("invoice.paid", 1200));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StripeEvent<T = Value> {
    /// Id of the event, `evt_…`.
    pub id: String,
    /// Kind of the event, such as `invoice.paid`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Time of the event, in seconds since 1970. Events may arrive in a different order.
    pub created: i64,
    /// Whether the event is about real money.
    pub livemode: bool,
    /// Version of the API that `data` uses.
    #[serde(default)]
    pub api_version: Option<String>,
    /// The connected account.
    #[serde(default)]
    pub account: Option<String>,
    /// The object.
    pub data: StripeData<T>,
    /// The API call that caused the event.
    #[serde(default)]
    pub request: Option<StripeRequest>,
}

/// The object of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StripeData<T = Value> {
    /// The object at the time of the event.
    pub object: T,
    /// Previous values of the attributes that changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_attributes: Option<Value>,
}

/// The API call that caused an event. Both fields are absent if Stripe caused it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RequestForm")]
#[non_exhaustive]
pub struct StripeRequest {
    /// Id of the call, `req_…`.
    pub id: Option<String>,
    /// Idempotency key of the call.
    pub idempotency_key: Option<String>,
}

/// Versions of the API before May 2017 send only the id.
#[derive(Deserialize)]
#[serde(untagged)]
enum RequestForm {
    Old(String),
    Full {
        #[serde(default)]
        id: Option<String>,
        #[serde(default)]
        idempotency_key: Option<String>,
    },
}

impl From<RequestForm> for StripeRequest {
    fn from(form: RequestForm) -> Self {
        match form {
            RequestForm::Old(id) => StripeRequest { id: Some(id), idempotency_key: None },
            RequestForm::Full { id, idempotency_key } => StripeRequest { id, idempotency_key },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn headers_are_read_strictly() {
        let hex = "ab".repeat(32);
        let parse = |text: &str| Signed::parse(text).map(|signed| (signed.at.to_owned(), signed.macs.len()));
        assert_eq!(parse(&format!("t=5,v1={hex},v0={hex},v1={hex}")), Ok(("5".to_owned(), 2)));
        assert_eq!(parse("v1=00,t=5"), Ok(("5".to_owned(), 0)));
        assert_eq!(parse("v1=00"), Err(Reason::Malformed));
        assert_eq!(parse("t=5,,v1=00"), Err(Reason::Malformed));
        assert_eq!(parse("t=5,t=5"), Err(Reason::Ambiguous));
        let entries = |count: usize| vec![format!("v1={hex}"); count].join(",");
        assert_eq!(parse(&format!("t=5,{}", entries(ENTRIES_MAX - 1))), Ok(("5".to_owned(), ENTRIES_MAX - 1)));
        assert_eq!(parse(&format!("t=5,{}", entries(ENTRIES_MAX))), Err(Reason::TooLong));
    }

    #[test]
    fn both_forms_of_a_request_are_read() {
        let event = |request: Value| -> Option<StripeRequest> {
            let data = json!({"object": {}, "previous_attributes": {"status": "draft"}});
            let mut event = json!({"id": "evt_1", "type": "a.b", "created": 1, "livemode": false, "data": data});
            event["request"] = request;
            let event: StripeEvent = serde_json::from_value(event).unwrap();
            assert_eq!(event.data.previous_attributes, Some(json!({"status": "draft"})));
            event.request
        };
        let expected = |id: Option<&str>, key: Option<&str>| {
            Some(StripeRequest { id: id.map(str::to_owned), idempotency_key: key.map(str::to_owned) })
        };
        assert_eq!(event(json!("req_1")), expected(Some("req_1"), None));
        assert_eq!(event(json!({"id": "req_1", "idempotency_key": "k"})), expected(Some("req_1"), Some("k")));
        assert_eq!(event(json!({"id": null})), expected(None, None));
        assert_eq!(event(Value::Null), None);
    }
}
