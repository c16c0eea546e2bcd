//! The bytes of one connection, plain or encrypted. Observes the activity on HTTP/1, and the first bytes of a receiver
//! that should speak TLS. `frames` counts the frames on HTTP/2.

use posthaste_engine::limits;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::client::TlsStream;

/// The activity on an HTTP/1 connection since the start of the current request. HTTP/1 has one request at a time; on
/// HTTP/2 bytes say nothing about a particular request.
#[derive(Debug, Default)]
pub(super) struct Activity {
    answered: AtomicBool,
}

impl Activity {
    /// Call it before a request is sent.
    pub(super) fn begin(&self) {
        self.answered.store(false, Ordering::Release);
    }

    /// Whether the receiver has sent at least one byte since [`Activity::begin`].
    pub(super) fn answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }
}

/// Counts the interim responses to one request. hyper reports them on HTTP/1 only; on HTTP/2 `frames` counts them.
#[derive(Debug, Default)]
pub(super) struct Interim {
    count: AtomicU32,
    flooded: Notify,
}

impl Interim {
    /// Counts an interim response.
    pub(super) fn add(&self) {
        if self.count.fetch_add(1, Ordering::AcqRel) == limits::RESPONSE_INTERIM_MAX {
            self.flooded.notify_one();
        }
    }

    /// Resolves when there were too many.
    pub(super) async fn flooded(&self) {
        self.flooded.notified().await;
    }
}

/// A connection's transport.
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<Opened>>),
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The start of every HTTP/1 response.
const HTTP_OPENING: &[u8; 5] = b"HTTP/";

/// A connection that keeps the first bytes of the receiver, because they explain a failed handshake.
pub(super) struct Opened {
    stream: TcpStream,
    opening: [u8; HTTP_OPENING.len()],
    seen: usize,
}

impl Opened {
    pub(super) fn new(stream: TcpStream) -> Opened {
        Opened { stream, opening: Default::default(), seen: 0 }
    }

    /// Whether the receiver speaks HTTP without TLS. A handshake fails at the first segment that is not TLS, and
    /// servers send a status line in one segment.
    pub(super) fn is_plain_http(&self) -> bool {
        self.opening == *HTTP_OPENING
    }
}

impl AsyncRead for Opened {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let (seen, new) = (self.seen, &buffer.filled()[before..]);
        let kept = new.len().min(HTTP_OPENING.len() - seen);
        self.opening[seen..seen + kept].copy_from_slice(&new[..kept]);
        self.seen += kept;
        polled
    }
}

impl AsyncWrite for Opened {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A transport of HTTP/1 that reports every received byte to its [`Activity`].
pub(super) struct Watched {
    pub(super) transport: Transport,
    pub(super) activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.transport).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.answered.store(true, Ordering::Release);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}
