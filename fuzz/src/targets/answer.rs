//! A receiver's bytes, through hyper, over a pipe in memory: the outcome is within the limits, and immediate.
//!
//! The first byte selects the kind of request, the second the number of pieces, and whether the end is repeated until
//! every limit is reached.

use super::choice;
use posthaste_delivery::fuzzing::{Asked, exchange};
use posthaste_engine::limits::{LOG_RESPONSE_BYTES_MAX, RESPONSE_BYTES_MAX, RESPONSE_HEADERS_MAX};
use posthaste_engine::outcome::Outcome;
use posthaste_wire::header;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;

/// Capacity of the pipe.
const PIPE_BYTES: usize = 64 * 1024;
/// The receiver sends everything and closes, so nothing ever waits this long.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(data: &[u8]) {
    thread_local! {
        static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime can be made");
    }
    let (how, data) = choice(data);
    let (pieces, data) = choice(data);
    let asked = Asked { http2: how & 1 != 0, needs_body: how & 2 != 0, get: how & 4 != 0, patience: PATIENCE };
    let grown = grown(data, pieces & 0xe0 == 0xe0);
    let data = grown.as_slice();
    let piece = data.len().div_ceil(usize::from(pieces % 8) + 1).max(1);
    let result = RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            let (result, ()) = tokio::join!(exchange(ours, asked), answer(theirs, data, piece));
            result
        })
    });
    let outcome = match result {
        Ok((response, _)) => {
            assert!((101..1_000).contains(&response.status), "{}", response.status);
            assert!(response.headers.len() <= RESPONSE_HEADERS_MAX);
            assert!(response.headers.iter().all(|(name, _)| header::canonical(name) == *name));
            let has = |name: &str| response.headers.iter().any(|(other, _)| other == name);
            assert!(!(has("Content-Length") && has("Transfer-Encoding")), "two lengths");
            let is_success = (200..300).contains(&response.status);
            let kept = if is_success && !asked.needs_body { LOG_RESPONSE_BYTES_MAX } else { RESPONSE_BYTES_MAX };
            assert!(response.body.len() <= kept);
            assert!(response.body.is_empty() || asked.http2 || find(data, &response.body), "a body out of nowhere");
            assert!(!(response.truncated && is_success && asked.needs_body), "the whole body was needed");
            Ok(response)
        }
        Err(error) => {
            super::check_refusal(&error.message);
            assert_ne!(error.message, "context deadline exceeded", "the receiver had closed");
            Err(error)
        }
    };
    let _verdict = Outcome { result: outcome, duration_ms: 1, phases: None }.verdict();
}

/// The bytes, with the last of them repeated until they exceed every limit.
fn grown(data: &[u8], repeated: bool) -> Vec<u8> {
    let mut grown = data.to_vec();
    let end = &data[data.len() - data.len().min(64)..];
    while repeated && !end.is_empty() && grown.len() <= RESPONSE_BYTES_MAX + PIPE_BYTES {
        grown.extend_from_slice(end);
    }
    grown
}

/// Sends everything after the first byte of the request, reads on, and closes.
async fn answer(mut stream: DuplexStream, data: &[u8], piece: usize) {
    let mut buffer = [0; 1024];
    // It does not matter whether the other end still reads.
    let _first = stream.read(&mut buffer).await;
    for bytes in data.chunks(piece) {
        if stream.write_all(bytes).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    let _closed = stream.shutdown().await;
    while let Ok(1..) = stream.read(&mut buffer).await {}
}

/// Whether the bytes of a body occur in the response in order, with framing in between.
fn find(data: &[u8], body: &[u8]) -> bool {
    let mut rest = data.iter();
    body.iter().all(|byte| rest.any(|other| other == byte))
}
