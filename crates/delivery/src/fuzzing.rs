//! Reads a receiver's response from a pipe in memory, for the targets of `fuzz/`. Not used elsewhere.

use super::answer_room::{AnswerPatience, AnswerRoom};
use super::connect::http1_builder;
use super::frames::Framed;
use super::pool::Connection;
use super::response::{self, Ending, Wanted};
use super::stream::Activity;
use super::{connect::http2_builder, failure};
use bytes::Bytes;
use http::uri::Authority;
use http::{Method, Request};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use posthaste_engine::event::Response;
use posthaste_engine::outcome::AttemptError;
use posthaste_wire::id::TenantId;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

/// The request to send.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Whether to use HTTP/2, as if already negotiated.
    pub http2: bool,
    /// Whether the caller needs the whole body.
    pub needs_body: bool,
    /// Whether the method is GET. Some methods have responses without a body.
    pub get: bool,
    /// Timeout of the whole exchange.
    pub patience: Duration,
}

/// Sends one request over `stream` as an attempt does, and reads the response. The second value is true if the
/// connection is reusable.
pub async fn exchange<S>(stream: S, asked: Asked) -> Result<(Response, bool), AttemptError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let deadline = Instant::now() + asked.patience;
    let mut connection = if asked.http2 {
        let stream = Framed::new(stream);
        let flooded = stream.flooded();
        let opened = http2_builder().handshake(TokioIo::new(stream)).await;
        let (sender, driver) = opened.map_err(|error| failure::exchange(&error))?;
        tokio::spawn(driver);
        Connection::Http2 { sender, flooded }
    } else {
        let opened = http1_builder().handshake(TokioIo::new(stream)).await;
        let (sender, driver) = opened.map_err(|error| failure::exchange(&error))?;
        tokio::spawn(driver);
        Connection::Http1 { sender, activity: Arc::new(Activity::default()) }
    };
    let mut request = Request::new(Full::new(Bytes::from_static(b"published")));
    *request.method_mut() = if asked.get { Method::GET } else { Method::POST };
    *request.uri_mut() = http::Uri::from_static(if asked.http2 { "https://receiver.example/" } else { "/" });
    let answer = match timeout_at(deadline, connection.send(request)).await {
        Ok(answer) => answer.map_err(|unanswered| unanswered.error)?,
        Err(_) => return Err(failure::timed_out()),
    };
    let room = AnswerRoom::new(Arc::default(), TenantId(1));
    let wanted = Wanted {
        needs_body: asked.needs_body,
        bytes_max: posthaste_engine::limits::RESPONSE_BYTES_MAX,
        until: deadline,
        receiver: &Authority::from_static("receiver.example"),
        room: &room,
        patience: AnswerPatience::default(),
    };
    let (response, ending) = response::read(answer, &wanted).await?;
    Ok((response, ending == Ending::Complete))
}
