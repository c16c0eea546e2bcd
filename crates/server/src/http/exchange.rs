//! What the two sides of one connection know of each other: the reader of its bytes, and the requests that are answered.

use super::heads::Room;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// Bytes of heads that all connections, or those of one address, may still hold.
#[derive(Debug)]
pub(super) struct HeadBudget(AtomicUsize);

impl HeadBudget {
    pub(super) fn new(bytes: usize) -> HeadBudget {
        HeadBudget(AtomicUsize::new(bytes))
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Heads that were read.
    heads: AtomicU64,
    /// Requests whose answer was begun.
    begun: AtomicU64,
    /// How often the connection had its turn among all tasks.
    turns: AtomicU64,
    /// Answers that are not written yet.
    open: AtomicU64,
    /// Bytes that are taken from the budget.
    held: AtomicUsize,
    budget: Arc<HeadBudget>,
    /// What the address of the client may hold; `None` if that is not bounded.
    share: Option<Arc<HeadBudget>>,
}

impl Exchange {
    pub(super) fn new(budget: Arc<HeadBudget>, share: Option<Arc<HeadBudget>>) -> Exchange {
        Exchange {
            heads: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            open: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            budget,
            share,
        }
    }

    /// So many heads were read.
    pub(super) fn read(&self, heads: u64) {
        self.heads.store(heads, Ordering::Relaxed);
    }

    /// A request is about to be served. Says whether the client has sent more without waiting for the answer.
    pub(super) fn begin(&self) -> bool {
        let begun = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        self.heads.load(Ordering::Relaxed) > begun
    }

    /// The connection has its turn.
    pub(super) fn begin_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets other tasks have theirs, between two requests of a client that has sent many. hyper may poll a request several
    /// times in one turn, so that one `yield_now` is not enough.
    pub(super) async fn next_turn(&self) {
        let turn = self.turns.load(Ordering::Relaxed);
        while self.turns.load(Ordering::Relaxed) == turn {
            tokio::task::yield_now().await;
        }
    }

    /// The request is served: its head is not needed any more, but its answer is still to be written.
    pub(super) fn answer(self: Arc<Self>, body: Body) -> Answer {
        self.release();
        self.open.fetch_add(1, Ordering::Relaxed);
        Answer { body, exchange: self }
    }

    /// Whether an answer is being written.
    pub(super) fn is_answering(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// A pipelined head that has begun to arrive loses its room too: at most what one read brings.
    fn release(&self) {
        if self.held.load(Ordering::Relaxed) > 0 {
            let held = self.held.swap(0, Ordering::Relaxed);
            self.budget.give_back(held);
            if let Some(share) = &self.share {
                share.give_back(held);
            }
        }
    }
}

impl Room for Exchange {
    fn hold(&self, bytes: usize) -> bool {
        // Only the reader of the connection takes room, so nothing is taken meanwhile.
        let more = bytes.saturating_sub(self.held.load(Ordering::Relaxed));
        if self.share.as_ref().is_some_and(|share| !share.take(more)) {
            return false;
        }
        let is_taken = self.budget.take(more);
        match &self.share {
            _ if is_taken => drop(self.held.fetch_add(more, Ordering::Relaxed)),
            Some(share) => share.give_back(more),
            None => {}
        }
        is_taken
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.release();
    }
}

/// The body of an answer, which says when it is written.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    exchange: Arc<Exchange>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.exchange.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_share_the_room_for_large_heads() {
        let budget = Arc::new(HeadBudget::new(100));
        let (one, other) = (Arc::new(Exchange::new(budget.clone(), None)), Exchange::new(budget.clone(), None));
        assert!(one.hold(40) && one.hold(60), "the second includes the first");
        assert!(!other.hold(41) && other.hold(40));
        drop(other);
        assert!(one.hold(100));
        drop(one.clone().answer(Body::empty()));
        assert!(Exchange::new(budget.clone(), None).hold(100), "a request that is served needs none");
        drop(one);
        assert!(Exchange::new(budget, None).hold(100));
    }

    #[test]
    fn connections_of_one_address_hold_no_more_than_its_share() {
        let (budget, share) = (Arc::new(HeadBudget::new(100)), Arc::new(HeadBudget::new(60)));
        let of_address = || Exchange::new(budget.clone(), Some(share.clone()));
        let (one, two, other) = (of_address(), of_address(), Exchange::new(budget.clone(), None));
        assert!(one.hold(50) && !two.hold(11), "the address has used its share");
        assert!(other.hold(45), "another address still has room");
        assert!(!two.hold(10), "there is no room for all");
        drop(other);
        assert!(two.hold(10), "a refused head has given its part of the share back");
        drop((one, two));
        assert!(of_address().hold(60));
    }

    #[test]
    fn a_request_that_others_follow_is_pipelined() {
        let exchange = Exchange::new(Arc::new(HeadBudget::new(0)), None);
        exchange.read(2);
        assert!(exchange.begin());
        assert!(!exchange.begin());
        exchange.read(3);
        assert!(!exchange.begin());
    }
}
