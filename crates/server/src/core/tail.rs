//! Log lines for those who watch: what was committed goes to whoever asked for it, as far as there is room.
//!
//! The core owns the list of those who listen, so that nothing is locked, and nothing is done while it is empty.

use posthaste_engine::event::{Event, Op};
use posthaste_wire::id::TenantId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// Bytes of log lines that wait for one reader, more or less; what is over it is left out, and counted.
const WAITING_BYTES_MAX: usize = 1024 * 1024;
/// What a line takes besides the answer and the error that it holds, more or less.
const LINE_BYTES: usize = 256;

/// What a reader and the core know together.
#[derive(Debug, Default)]
struct Room {
    waiting_bytes: AtomicUsize,
    missed: AtomicU64,
}

/// The core's end.
pub(crate) struct Listener {
    tenant: TenantId,
    lines: mpsc::UnboundedSender<Lines>,
    room: Arc<Room>,
}

/// The reader's end.
pub(crate) struct Tail {
    lines: mpsc::UnboundedReceiver<Lines>,
    room: Arc<Room>,
}

/// Lines of one commit, and nothing else: what is left out is not kept.
struct Lines {
    events: Arc<[Event]>,
    bytes: usize,
}

/// Both ends.
pub(crate) fn listen(tenant: TenantId) -> (Listener, Tail) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let room = Arc::<Room>::default();
    (Listener { tenant, lines: sender, room: room.clone() }, Tail { lines: receiver, room })
}

impl Tail {
    /// The lines of the next commit that has some; `None` when the core has ended.
    pub(crate) async fn next(&mut self) -> Option<Arc<[Event]>> {
        let lines = self.lines.recv().await?;
        self.room.waiting_bytes.fetch_sub(lines.bytes, Ordering::Relaxed);
        Some(lines.events)
    }

    /// How many lines were left out since this was asked last.
    pub(crate) fn take_missed(&self) -> u64 {
        self.room.missed.swap(0, Ordering::Relaxed)
    }
}

/// Everybody who listens, those of a tenant side by side.
#[derive(Default)]
pub(super) struct Listeners(Vec<Listener>);

impl Listeners {
    pub(super) fn add(&mut self, listener: Listener) {
        let place = self.0.partition_point(|other| other.tenant <= listener.tenant);
        self.0.insert(place, listener);
    }

    /// These ops are committed.
    pub(super) fn tell(&mut self, ops: &[Op]) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(|listener| !listener.lines.is_closed());
        let mut made: Option<(TenantId, Arc<[Event]>)> = None;
        for listener in &self.0 {
            let events = match made.take().filter(|(tenant, _)| *tenant == listener.tenant) {
                Some((_, events)) => events,
                None => lines_of(listener.tenant, ops),
            };
            listener.tell(&events);
            made = Some((listener.tenant, events));
        }
    }
}

impl Listener {
    fn tell(&self, events: &Arc<[Event]>) {
        let before = self.room.waiting_bytes.load(Ordering::Relaxed);
        let (mut taken, mut bytes) = (0, 0);
        for event in events.iter() {
            let more = bytes_of(event);
            if before + bytes + more > WAITING_BYTES_MAX {
                break;
            }
            (taken, bytes) = (taken + 1, bytes + more);
        }
        let missed = (events.len() - taken) as u64;
        if missed > 0 {
            self.room.missed.fetch_add(missed, Ordering::Relaxed);
        }
        if taken > 0 {
            self.room.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
            let events = if missed > 0 { events[..taken].into() } else { events.clone() };
            // One that has gone meanwhile is forgotten at the next commit.
            let _ = self.lines.send(Lines { events, bytes });
        }
    }
}

fn lines_of(tenant: TenantId, ops: &[Op]) -> Arc<[Event]> {
    let line = |op: &Op| match op {
        Op::Log(event) if event.tenant == tenant => Some(event.clone()),
        _ => None,
    };
    ops.iter().filter_map(line).collect()
}

fn bytes_of(event: &Event) -> usize {
    let answer = event.detail.response.as_ref().map_or(0, |response| {
        let headers: usize = response.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        response.body.len() + headers
    });
    LINE_BYTES + answer + event.detail.error.as_ref().map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_engine::event::{EventDetail, Response, State};
    use posthaste_wire::id::{MessageId, Seq};
    use posthaste_wire::time::Timestamp;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn line(tenant: TenantId, seq: u64, body_bytes: usize) -> Op {
        let response = Response { body: vec![0; body_bytes], ..Response::default() };
        let detail = EventDetail { response: Some(Arc::new(response)), ..EventDetail::default() };
        let id = MessageId { seq: Seq(seq), tag: 0 };
        Op::Log(Event { tenant, id, at: Timestamp(0), state: State::Error, detail })
    }

    fn taken(tail: &mut Tail) -> Vec<u64> {
        let mut seqs = Vec::new();
        while let Ok(lines) = tail.lines.try_recv() {
            tail.room.waiting_bytes.fetch_sub(lines.bytes, Ordering::Relaxed);
            seqs.extend(lines.events.iter().map(|event| event.id.seq.0));
        }
        seqs
    }

    #[test]
    fn everybody_hears_of_his_own_tenant_in_the_order_of_the_log() {
        let mut listeners = Listeners::default();
        let [(a, mut of_a), (b, mut of_b), (again, mut of_a_again)] = [A, B, A].map(listen);
        for listener in [a, b, again] {
            listeners.add(listener);
        }
        listeners.tell(&[
            line(A, 1, 0),
            line(B, 2, 0),
            Op::Remove { id: MessageId { seq: Seq(9), tag: 0 } },
            line(A, 3, 0),
        ]);
        listeners.tell(&[line(B, 4, 0)]);
        assert_eq!((taken(&mut of_a), taken(&mut of_b), taken(&mut of_a_again)), (vec![1, 3], vec![2, 4], vec![1, 3]));
        drop((of_a, of_b));
        listeners.tell(&[line(A, 5, 0)]);
        assert_eq!((listeners.0.len(), taken(&mut of_a_again)), (1, vec![5]), "who has gone is forgotten");
    }

    #[test]
    fn what_is_left_out_is_not_kept() {
        let mut listeners = Listeners::default();
        let (listener, mut tail) = listen(A);
        listeners.add(listener);
        let ops = [line(A, 1, 10), line(A, 2, WAITING_BYTES_MAX)];
        listeners.tell(&ops);
        let holders = ops.each_ref().map(|op| match op {
            Op::Log(event) => event.detail.response.as_ref().map_or(0, Arc::strong_count),
            _ => 0,
        });
        assert_eq!((holders, taken(&mut tail)), ([2, 1], vec![1]), "ours, and the reader's");
    }

    #[test]
    fn who_does_not_read_misses_lines_and_is_told_how_many() {
        let mut listeners = Listeners::default();
        let ((slow, mut of_slow), (quick, mut of_quick)) = (listen(A), listen(A));
        listeners.add(slow);
        listeners.add(quick);
        let half = WAITING_BYTES_MAX / 2 - LINE_BYTES;
        for seq in 0..10 {
            listeners.tell(&[line(A, 3 * seq, half), line(A, 3 * seq + 1, half), line(A, 3 * seq + 2, 0)]);
            assert_eq!(
                (taken(&mut of_quick), of_quick.take_missed()),
                (vec![3 * seq, 3 * seq + 1], 1),
                "no room for a third"
            );
        }
        assert_eq!((of_slow.take_missed(), taken(&mut of_slow)), (28, vec![0, 1]));
        listeners.tell(&[line(A, 100, half)]);
        assert_eq!((of_slow.take_missed(), taken(&mut of_slow)), (0, vec![100]), "there is room again");
    }
}
