//! The stream between a client and hyper: it reads along ([`Heads`]), gives hyper's own refusals a text, and lets go of
//! clients that do not read what they asked for.

use super::exchange::Exchange;
use super::heads::{Heads, Refusal};
use super::refusal::{Bare, POISON};
use super::{LINGER_BYTES_MAX, LINGER_TIMEOUT, READ_AHEAD_BYTES_MAX, WRITE_TIMEOUT};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// A connection as it comes from the network.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// Makes closing drop what the client has not read, instead of leaving it to the kernel.
    fn abandon(&self);
}

impl Transport for TcpStream {
    fn abandon(&self) {
        if let Err(error) = self.set_zero_linger() {
            tracing::debug!(error = %error, "cannot set SO_LINGER on a connection");
        }
    }
}

/// Bytes that are read at once after a refusal, to be forgotten.
const LINGER_READ_BYTES: usize = 16 * 1024;

/// See the module's text.
pub(super) struct Guarded<T> {
    io: T,
    heads: Heads,
    exchange: Arc<Exchange>,
    /// Why nothing more is read, and how much of the poison hyper has got.
    refused: Option<(Refusal, usize)>,
    /// What is written in place of hyper's own refusal, and how much of it is written.
    instead: Option<(Vec<u8>, usize)>,
    /// The last write was not taken whole, so the next one is in the midst of an answer.
    is_partial: bool,
    /// The client does not take what is written to it.
    is_blocked: bool,
    /// Who wanted to read meanwhile.
    reader: Option<Waker>,
    patience: Option<Pin<Box<Sleep>>>,
    /// Others have had their turn before the next read of a long head.
    has_yielded: bool,
    /// Bytes that were read and forgotten after a refusal.
    lingered: Option<usize>,
}

impl<T: Transport> Guarded<T> {
    pub(super) fn new(io: T, exchange: Arc<Exchange>) -> Guarded<T> {
        Guarded {
            io,
            heads: Heads::default(),
            exchange,
            refused: None,
            instead: None,
            is_partial: false,
            is_blocked: false,
            reader: None,
            patience: None,
            has_yielded: false,
            lingered: None,
        }
    }

    /// Reads into `buf`, but not far beyond the request that is being read: what the client has pipelined can wait.
    fn poll_fill(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = usize::try_from(self.heads.body_left()).unwrap_or(usize::MAX);
        let max = left.saturating_add(READ_AHEAD_BYTES_MAX);
        if buf.remaining() <= max {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        // Rare, because hyper's buffer is that large only after large bodies: these bytes are zeroed first.
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(max));
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        buf.advance(read);
        Poll::Ready(Ok(()))
    }

    /// hyper reads bytes that it must refuse, in a head, or an end that comes too early, in a body.
    fn poison(&mut self, buf: &mut ReadBuf<'_>) {
        let Some((_, given)) = &mut self.refused else { return };
        let rest = &POISON[*given..];
        let part = &rest[..rest.len().min(buf.remaining())];
        buf.put_slice(part);
        *given += part.len();
    }

    /// Notes what came of a write, and gives up a client that has taken nothing for too long.
    fn wrote(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if wrote.is_ready() {
            self.is_blocked = false;
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
            return wrote;
        }
        if !self.is_blocked {
            self.is_blocked = true;
            self.wait_until(Instant::now() + WRITE_TIMEOUT);
        }
        ready!(self.poll_patience(cx));
        self.io.abandon();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its responses")))
    }

    fn wait_until(&mut self, deadline: Instant) {
        match &mut self.patience {
            Some(patience) => patience.as_mut().reset(deadline),
            None => self.patience = Some(Box::pin(sleep_until(deadline))),
        }
    }

    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.patience.as_mut().map_or(Poll::Pending, |patience| patience.as_mut().poll(cx))
    }

    /// Takes what hyper says by itself, to say something better.
    fn replaces(&mut self, slices: &[IoSlice<'_>]) -> bool {
        if self.is_partial || self.exchange.is_answering() {
            return false;
        }
        let Some(bare) = Bare::of(slices) else { return false };
        self.instead = Some((bare.with_text(self.refused.map(|(why, _)| why)), 0));
        true
    }

    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((bytes, written)) = self.instead.as_ref().filter(|(bytes, written)| *written < bytes.len()) {
            let wrote = Pin::new(&mut self.io).poll_write(cx, &bytes[*written..]);
            let more = ready!(self.wrote(cx, wrote))?;
            if more == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if let Some((_, written)) = &mut self.instead {
                *written += more;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and forgets what a refused client still sends: closing at once would reset the connection, and the client
    /// would not see the answer.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingered.is_none() {
            self.lingered = Some(0);
            self.wait_until(Instant::now() + LINGER_TIMEOUT);
        }
        let mut forgotten = [0; LINGER_READ_BYTES];
        let mut buf = ReadBuf::new(&mut forgotten);
        let read = Pin::new(&mut self.io).poll_read(cx, &mut buf);
        if read.is_pending() {
            return self.poll_patience(cx).map(Ok);
        }
        let lingered = self.lingered.get_or_insert(0);
        *lingered += buf.filled().len();
        if buf.filled().is_empty() || *lingered > LINGER_BYTES_MAX {
            return Poll::Ready(Ok(()));
        }
        // Others have their turn between two reads.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: Transport> AsyncRead for Guarded<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.refused.is_some() {
            this.poison(buf);
            return Poll::Ready(Ok(()));
        }
        // Whoever does not read answers cannot ask for more of them.
        if this.is_blocked {
            this.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // hyper reads a long head for as long as there is something to read, and looks at all of it each time.
        if this.heads.is_long() && !std::mem::replace(&mut this.has_yielded, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.has_yielded = false;
        let before = buf.filled().len();
        ready!(this.poll_fill(cx, buf))?;
        let read = this.heads.read(&buf.filled()[before..], this.exchange.as_ref());
        this.exchange.read(this.heads.complete());
        if let Err((good, why)) = read {
            buf.set_filled(before + good);
            // A body ends here; a head is made one that hyper refuses too.
            let given = if this.heads.is_in_body() { POISON.len() } else { 0 };
            this.refused = Some((why, given));
            this.poison(buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Transport> AsyncWrite for Guarded<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_instead(cx))?;
        let offered = slices.iter().map(|slice| slice.len()).sum();
        if this.replaces(slices) {
            return Poll::Ready(Ok(offered));
        }
        let wrote = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        let wrote = ready!(this.wrote(cx, wrote));
        this.is_partial = wrote.as_ref().is_ok_and(|written| *written < offered);
        Poll::Ready(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_instead(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_instead(cx))?;
        if this.lingered.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
        }
        match this.instead {
            Some(_) => this.poll_linger(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::HeadBudget;
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    fn guarded(client_bytes: usize) -> (DuplexStream, Guarded<DuplexStream>) {
        let (client, server) = duplex(client_bytes);
        (client, Guarded::new(server, Arc::new(Exchange::new(Arc::new(HeadBudget::new(0)), None))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_given_up_and_one_that_reads_slowly_is_not() {
        let (mut client, mut server) = guarded(10);
        let begun = Instant::now();
        let writing = tokio::spawn(async move { server.write_all(&[b'x'; 40]).await.map_err(|error| error.kind()) });
        let mut read = [0; 10];
        for _ in 0..2 {
            tokio::time::sleep(WRITE_TIMEOUT - Duration::from_secs(1)).await;
            client.read_exact(&mut read).await.unwrap();
        }
        assert_eq!(writing.await.unwrap(), Err(io::ErrorKind::TimedOut));
        let slow = 2 * (WRITE_TIMEOUT - Duration::from_secs(1));
        assert_eq!(begun.elapsed().as_secs(), (slow + WRITE_TIMEOUT).as_secs(), "counted from the last progress");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_while_the_client_does_not_read_its_answers() {
        let (mut client, server) = guarded(1_000);
        let (mut reader, mut writer) = tokio::io::split(server);
        let writing = tokio::spawn(async move { writer.write_all(&[b'x'; 1_500]).await });
        tokio::task::yield_now().await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let reading = tokio::spawn(async move { reader.read_u8().await.unwrap() });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!reading.is_finished() && !writing.is_finished());
        client.read_exact(&mut [0; 1_500]).await.unwrap();
        writing.await.unwrap().unwrap();
        assert_eq!(reading.await.unwrap(), b'G');
    }

    #[tokio::test]
    async fn what_is_pipelined_is_read_in_small_pieces() {
        let (mut client, mut server) = guarded(1024 * 1024);
        let requests = "GET / HTTP/1.1\r\n\r\n".repeat(10_000);
        client.write_all(requests.as_bytes()).await.unwrap();
        let mut read = vec![0; 512 * 1024];
        assert_eq!(server.read(&mut read).await.unwrap(), READ_AHEAD_BYTES_MAX);
        // The rest of a body is read with it.
        let (mut client, mut server) = guarded(1024 * 1024);
        let head = b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n";
        client.write_all(head).await.unwrap();
        assert_eq!(server.read(&mut read).await.unwrap(), head.len());
        client.write_all(&vec![b'x'; 100_000]).await.unwrap();
        client.write_all(requests.as_bytes()).await.unwrap();
        assert_eq!(server.read(&mut read).await.unwrap(), 100_000 + READ_AHEAD_BYTES_MAX);
    }

    #[tokio::test]
    async fn a_refused_head_becomes_one_that_nobody_accepts() {
        let (mut client, mut server) = guarded(1_000);
        client.write_all(b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        server.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.as_slice(), [b"GET / HTTP/1.1\r\nA: b", POISON].concat());
        let (mut client, mut server) = guarded(1_000);
        let head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5";
        client.write_all(&[head, b"\nhello".as_slice()].concat()).await.unwrap();
        let mut read = Vec::new();
        server.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.as_slice(), head, "a body ends too early");
    }
}
