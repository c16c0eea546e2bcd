//! The kit's side of the tests in `e2e/` that compare it with the official SDKs. `signatures sign` creates signatures
//! with the kit's test helper. `signatures verify` checks signatures of others with the kit's receiver.
//!
//! Each reads a JSON list from standard input and writes one of the same length: the signatures, or the reasons for
//! their rejection (`null` if valid).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Uri};
use posthaste_kit::Receiver;
use posthaste_kit::receiver::SIGNATURE_HEADER;
use posthaste_kit::testing::TestDelivery;
use serde::Deserialize;
use std::error::Error;
use std::io::{stdin, stdout};
use std::time::{Duration, UNIX_EPOCH};

/// A delivery to sign.
#[derive(Deserialize)]
struct Unsigned {
    url: String,
    key: String,
    /// In base64.
    body: String,
    /// Seconds since 1970.
    at: u64,
}

/// A received delivery, and the keys of its receiver.
#[derive(Deserialize)]
struct Arrived {
    current: String,
    next: String,
    url: String,
    signature: String,
    /// In base64.
    body: String,
}

fn sign(request: Unsigned) -> Result<String, Box<dyn Error>> {
    let delivery = TestDelivery::to(&request.url).body(STANDARD.decode(request.body)?);
    Ok(delivery.signature(&request.key, UNIX_EPOCH + Duration::from_secs(request.at)))
}

fn verify(arrived: Arrived) -> Result<Option<String>, Box<dyn Error>> {
    let mut headers = HeaderMap::new();
    headers.insert(SIGNATURE_HEADER, HeaderValue::from_str(&arrived.signature)?);
    let uri: Uri = arrived.url.parse()?;
    let receiver = Receiver::new(arrived.current, arrived.next)?.at_url(arrived.url);
    let verified = receiver.verify(&headers, &uri, &STANDARD.decode(arrived.body)?);
    Ok(verified.err().map(|rejected| rejected.reason().to_string()))
}

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("sign") => {
            let all: Vec<Unsigned> = serde_json::from_reader(stdin())?;
            serde_json::to_writer(stdout(), &all.into_iter().map(sign).collect::<Result<Vec<_>, _>>()?)?;
        }
        Some("verify") => {
            let all: Vec<Arrived> = serde_json::from_reader(stdin())?;
            serde_json::to_writer(stdout(), &all.into_iter().map(verify).collect::<Result<Vec<_>, _>>()?)?;
        }
        _ => return Err("say `sign` or `verify`".into()),
    }
    Ok(())
}
