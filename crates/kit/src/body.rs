//! Reading request bodies with a limit on size and time.

use crate::clock::Stopwatch;
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt as _;
use std::pin::{Pin, pin};
use std::time::Duration;

/// Default maximum size of a body, in bytes.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Default time limit for reading a body.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How many bytes of a body that is too large a handler reads and discards, so that the sender can read the error
/// response. With more, the connection is cut, and the sender may take that for a temporary fault.
pub const DRAIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It is larger than allowed; the rest was not read.
    #[error("the body is longer than {limit} bytes")]
    TooLong {
        /// The maximum size, in bytes.
        limit: usize,
    },
    /// It did not arrive in time.
    #[error("the body did not arrive within {} s", .0.as_secs())]
    TooSlow(Duration),
    /// The connection broke, or the data was not valid HTTP.
    #[error("the body could not be read")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Limits on the size of a body and the time to read it.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Maximum size, in bytes.
    pub bytes: usize,
    /// Maximum time to read the whole body.
    pub time: Duration,
}

impl Default for BodyLimits {
    fn default() -> Self {
        BodyLimits { bytes: BODY_BYTES_MAX, time: READ_TIMEOUT }
    }
}

impl BodyLimits {
    /// Reads the whole body. A body whose declared length exceeds the limit is not read at all.
    pub async fn read<B>(self, body: B) -> Result<Bytes, BodyError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let too_long = BodyError::TooLong { limit: self.bytes };
        if body.size_hint().lower() > self.bytes as u64 {
            return Err(too_long);
        }
        let whole = async {
            let mut body = pin!(body);
            let mut first = Bytes::new();
            let mut more: Option<BytesMut> = None;
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.map_err(|error| BodyError::Broken(error.into()))?.into_data() else { continue };
                let length = more.as_ref().map_or(first.len(), BytesMut::len);
                if data.len() > self.bytes - length {
                    return Err(too_long);
                }
                match &mut more {
                    Some(more) => more.extend_from_slice(&data),
                    // Most bodies arrive in one piece, which need not be copied.
                    None if first.is_empty() => first = data,
                    None => {
                        let mut joined = BytesMut::with_capacity(first.len() + data.len());
                        joined.extend_from_slice(&first);
                        joined.extend_from_slice(&data);
                        more = Some(joined);
                    }
                }
            }
            Ok(more.map_or(first, BytesMut::freeze))
        };
        tokio::time::timeout(self.time, whole).await.unwrap_or(Err(BodyError::TooSlow(self.time)))
    }

    /// Like [`read`](Self::read), for callers that respond: discards the rest of a body that is too long, within the
    /// remaining time.
    pub(crate) async fn read_or_drain<B>(self, body: B) -> Result<Bytes, BodyError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let watch = Stopwatch::start();
        let mut body = pin!(body);
        let read = self.read(body.as_mut()).await;
        if matches!(read, Err(BodyError::TooLong { .. })) {
            // The response is the same if the rest is late or broken.
            let _ = tokio::time::timeout(self.time.saturating_sub(watch.elapsed()), drain(body)).await;
        }
        read
    }
}

/// Reads and discards the rest, so that the sender finishes sending and reads the response.
async fn drain<B: Body<Data = Bytes>>(mut body: Pin<&mut B>) {
    let mut left = DRAIN_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Full, StreamBody};
    use std::convert::Infallible;
    use tokio_stream::StreamExt;

    fn pieces(sizes: &[usize]) -> impl Body<Data = Bytes, Error = Infallible> {
        let frames: Vec<_> = sizes.iter().map(|size| Ok(http_body::Frame::data(Bytes::from(vec![7; *size])))).collect();
        StreamBody::new(tokio_stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_is_read_only_up_to_the_limit() {
        let limits = BodyLimits { bytes: 10, ..BodyLimits::default() };
        for sizes in [&[10][..], &[4, 6], &[3, 3, 4], &[0, 10], &[]] {
            let read = limits.read(pieces(sizes)).await.unwrap();
            assert_eq!(read.len(), sizes.iter().sum::<usize>());
        }
        for sizes in [&[11][..], &[4, 7], &[3, 3, 5], &[10, 1]] {
            assert!(matches!(limits.read(pieces(sizes)).await, Err(BodyError::TooLong { limit: 10 })), "{sizes:?}");
        }
        assert!(matches!(limits.read(Full::from(vec![0; 11])).await, Err(BodyError::TooLong { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn reading_an_endless_body_times_out() {
        let stream = tokio_stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>();
        let limits = BodyLimits::default();
        assert!(matches!(limits.read(StreamBody::new(stream)).await, Err(BodyError::TooSlow(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn draining_uses_only_the_time_left_for_reading() {
        let late = StreamExt::then(tokio_stream::once(vec![0; 11]), |bytes| async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(bytes)))
        });
        let stalled = StreamBody::new(late.chain(tokio_stream::pending()));
        let limits = BodyLimits { bytes: 10, time: Duration::from_secs(7) };
        let watch = Stopwatch::start();
        assert!(matches!(limits.read_or_drain(stalled).await, Err(BodyError::TooLong { .. })));
        assert_eq!(watch.elapsed().as_secs(), 7);
        // No time limit.
        let limits = BodyLimits { bytes: 10, time: Duration::MAX };
        assert!(matches!(limits.read_or_drain(pieces(&[11, 11])).await, Err(BodyError::TooLong { .. })));
    }
}
