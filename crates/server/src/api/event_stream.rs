//! `/v2/events/stream`: log lines as they are committed, as server-sent events.
//!
//! A stream is lossy: whoever reads too slowly, or asks for fewer lines than there are, is told how many were left out.
//! The core hands over what it has committed (`core/tail.rs`); messages are looked up here, off its thread.

use super::auth::Reader;
use super::error::ApiError;
use super::params::Params;
use super::pieces::Pieces;
use super::shape;
use super::viewer::Viewer;
use crate::app::App;
use crate::config::Mode;
use crate::core::Tail;
use crate::sse::{self, Gone, READER_PATIENCE};
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use posthaste_api_types::log::Missed;
use posthaste_engine::event::Event;
use posthaste_engine::message::Message;
use posthaste_store::{EventFilter, Part, StoreError};
use posthaste_wire::id::{MessageId, TenantId};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

/// Streams of a tenant at once; one more is refused with 429.
const TENANT_STREAMS_MAX: usize = 8;
/// Streams at once; one more is refused with 429.
const STREAMS_MAX: usize = 64;
/// Lines per second that a stream looks at, at most and by default; more are left out, and counted.
const LINES_PER_SECOND_MAX: u32 = 1_000;
/// A stream says this often that it is there: only by writing it is known that a reader has gone.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
/// How long a stream lasts; then its reader asks again, and is known again.
const STREAM_LIFE: Duration = Duration::from_secs(3_600);

/// How much of each body a stream shows unless `trimBody` says otherwise.
const STREAM_BODY_BYTES: usize = 4 * 1024;
/// Lines are sent as soon as they have this size, before more are made: one line may be larger, but never two.
const PIECE_BYTES_MAX: usize = 256 * 1024;

/// What a single line cannot be chosen by.
const OF_PAGES: [&str; 4] = ["cursor", "count", "order", "groupBy"];

pub(super) async fn stream(caller: Reader, State(app): State<Arc<App>>, params: Params) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    let tenant = viewer.tenant;
    if let Some(name) = OF_PAGES.into_iter().find(|name| params.has(name)) {
        return Err(ApiError::invalid(format!("a stream has no pages, so {name} is not supported; use /v2/events")));
    }
    let per_second = params.number("maxPerSecond", 1)?.map_or(LINES_PER_SECOND_MAX, |number| {
        u32::try_from(number).unwrap_or(LINES_PER_SECOND_MAX).min(LINES_PER_SECOND_MAX)
    });
    let body_bytes = params.trim_body()?.unwrap_or(STREAM_BODY_BYTES);
    let (filter, mode) = (params.event_filter()?, app.config.mode);
    let wanted = Arc::new(Wanted { tenant, filter, body_bytes, mode, viewer });
    let place = app.streams.enter(tenant)?;
    let tail = app.core.tail(tenant)?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let end = Box::pin(tokio::time::sleep(STREAM_LIFE));
        let mut out = Out { sender, stopping: app.stopping.clone(), end, patience: READER_PATIENCE };
        // Either way it is over.
        let (Ok(()) | Err(Gone)) = run(&app, tail, &wanted, Pace::new(per_second), &mut out).await;
        drop(place);
    });
    Ok(sse::response(receiver))
}

/// What a reader has asked for.
struct Wanted {
    tenant: TenantId,
    filter: EventFilter,
    body_bytes: usize,
    mode: Mode,
    viewer: Viewer,
}

/// Where lines go.
struct Out {
    sender: mpsc::Sender<Bytes>,
    stopping: CancellationToken,
    end: Pin<Box<Sleep>>,
    patience: Duration,
}

impl Out {
    /// A reader that has stopped keeps nothing and no place.
    async fn send(&mut self, text: String) -> Result<(), Gone> {
        tokio::select! {
            () = self.stopping.cancelled() => Err(Gone),
            () = &mut self.end => Err(Gone),
            sent = sse::hand_over(&self.sender, text, self.patience) => sent,
        }
    }
}

/// Until the reader is gone, the server stops or the stream is old.
async fn run(app: &Arc<App>, mut tail: Tail, wanted: &Arc<Wanted>, mut pace: Pace, out: &mut Out) -> Result<(), Gone> {
    let mut heartbeat = tokio::time::interval(HEARTBEAT_EVERY);
    // The first comes at once.
    heartbeat.tick().await;
    out.send(format!("retry: 1000\n{}", sse::HEARTBEAT)).await?;
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return Ok(()),
            () = out.sender.closed() => return Ok(()),
            () = &mut out.end => return Ok(()),
            _ = heartbeat.tick() => out.send(sse::HEARTBEAT.to_owned()).await?,
            events = tail.next() => {
                let Some(events) = events else { return Ok(()) };
                let mut asked = events.iter().filter(|event| wanted.may_mean(event)).cloned().collect::<Vec<_>>();
                let seen = pace.take(asked.len(), app.clock.uptime().as_secs());
                pace.missed += (asked.len() - seen) as u64;
                asked.truncate(seen);
                send_lines(app, wanted, asked.into(), out).await?;
            }
        }
        let missed = tail.take_missed() + std::mem::take(&mut pace.missed);
        if missed > 0 {
            out.send(sse::event("missed", &Pieces::of(&Missed { count: missed }).finish().into_text())).await?;
        }
    }
}

/// Sends the lines that are meant, a piece at a time.
async fn send_lines(app: &Arc<App>, wanted: &Arc<Wanted>, events: Arc<[Event]>, out: &mut Out) -> Result<(), Gone> {
    let mut first = 0;
    while first < events.len() {
        let (wanted_there, events_there) = (wanted.clone(), events.clone());
        let made = app.read_in_time(wanted.tenant, move |store| {
            let find = |id, part| store.find_message(wanted_there.tenant, id, part);
            wanted_there.piece(&events_there[first..], find)
        });
        match made.await {
            Ok((text, looked_at)) => {
                out.send(text).await?;
                first += looked_at;
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, tenant = wanted.tenant.0, "log stream ended: the store does not respond");
                return Err(Gone);
            }
        }
    }
    Ok(())
}

impl Wanted {
    /// Whether a line may be meant, as far as that can be told without its message.
    fn may_mean(&self, event: &Event) -> bool {
        let EventFilter { message, states } = &self.filter;
        (states.is_empty() || states.contains(&event.state))
            && (message.ids.is_empty() || message.ids.contains(&event.id))
            && !message.nothing
            && message.matches_time(event.at)
    }

    /// The first lines that are meant, as events, and how many lines were looked at. A message that is gone has no
    /// lines either. One message is held at a time, and its body only if it is shown.
    fn piece(
        &self,
        events: &[Event],
        find: impl Fn(MessageId, Part) -> Result<Option<Arc<Message>>, StoreError>,
    ) -> Result<(String, usize), StoreError> {
        let mut text = String::new();
        for (place, event) in events.iter().enumerate() {
            let mut message = find(event.id, Part::Head)?.filter(|head| self.filter.matches(event, head));
            if message.is_some() && self.body_bytes > 0 {
                message = find(event.id, Part::Whole)?;
            }
            let Some(message) = message else { continue };
            let mut line = Pieces::default();
            line.object(shape::event(event, &message, Some(self.body_bytes), self.mode, &self.viewer));
            text.push_str(&sse::event("line", &line.finish().into_text()));
            if text.len() >= PIECE_BYTES_MAX {
                return Ok((text, place + 1));
            }
        }
        Ok((text, events.len()))
    }
}

/// How many lines a stream looks at in a second.
#[derive(Debug)]
struct Pace {
    per_second: u32,
    second: u64,
    used: u32,
    missed: u64,
}

impl Pace {
    fn new(per_second: u32) -> Pace {
        Pace { per_second, second: 0, used: 0, missed: 0 }
    }

    /// How many of these may be looked at.
    fn take(&mut self, wanted: usize, second: u64) -> usize {
        if self.second != second {
            (self.second, self.used) = (second, 0);
        }
        let room = self.per_second - self.used;
        let taken = u32::try_from(wanted).unwrap_or(u32::MAX).min(room);
        self.used += taken;
        taken as usize
    }
}

/// Who has a stream.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: Arc<Mutex<HashMap<TenantId, usize>>>,
}

/// One of them; free again when this is dropped.
#[derive(Debug)]
struct Place {
    tenant: TenantId,
    open: Arc<Mutex<HashMap<TenantId, usize>>>,
}

impl Streams {
    fn enter(&self, tenant: TenantId) -> Result<Place, ApiError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.get(&tenant).copied().unwrap_or_default();
        if own >= TENANT_STREAMS_MAX {
            let text = format!("{TENANT_STREAMS_MAX} streams of this tenant are open, the maximum; close one");
            return Err(ApiError::too_many(text));
        }
        if open.values().sum::<usize>() >= STREAMS_MAX {
            return Err(ApiError::too_many("too many streams are open; try again later"));
        }
        open.insert(tenant, own + 1);
        Ok(Place { tenant, open: self.open.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&self.tenant) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.tenant)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credentials;
    use crate::sse::FRAME_BYTES_MAX;
    use crate::tenants::Scope;
    use posthaste_engine::event::{EventDetail, State};
    use posthaste_engine::message::MessageSpec;
    use posthaste_wire::id::Seq;
    use posthaste_wire::redact::Marks;
    use posthaste_wire::time::Timestamp;
    use std::cell::RefCell;
    use std::sync::Weak;

    const TENANT: TenantId = TenantId(1);

    fn line(seq: u64) -> Event {
        let id = MessageId { seq: Seq(seq), tag: 0 };
        Event { tenant: TENANT, id, at: Timestamp(0), state: State::Active, detail: EventDetail::default() }
    }

    /// What a stream of these bodies does with five lines: the lines of each piece, and the parts that were read.
    fn pieces(body_bytes: usize, label: Option<&str>, stored_bytes: usize) -> (Vec<usize>, Vec<Part>) {
        let viewer = Viewer::with((Marks::of(&[0; 32], TENANT), Credentials::default()), TENANT, Scope::Full);
        let mut wanted = Wanted { tenant: TENANT, filter: EventFilter::default(), body_bytes, mode: Mode::Dev, viewer };
        wanted.filter.message.labels.extend(label.map(str::to_owned));
        let (parts, held) = (RefCell::new(Vec::new()), RefCell::new(Weak::new()));
        let find = |id, part| {
            parts.borrow_mut().push(part);
            assert!(Weak::upgrade(&held.borrow()).is_none(), "the message before is not held any more");
            let body = if part == Part::Head { Bytes::new() } else { Bytes::from(vec![b'x'; stored_bytes]) };
            let (spec, at) = (MessageSpec::default(), Timestamp(0));
            let message = Arc::new(Message { id, tenant: TENANT, created_at: at, not_before: at, spec, body });
            if part == Part::Whole {
                *held.borrow_mut() = Arc::downgrade(&message);
            }
            Ok(Some(message))
        };
        let events: Vec<Event> = (1..=5).map(line).collect();
        let (mut first, mut sizes) = (0, Vec::new());
        while first < events.len() {
            let (text, looked_at) = wanted.piece(&events[first..], find).unwrap();
            assert_eq!(text.matches("event: line").count(), if label.is_none() { looked_at } else { 0 });
            sizes.push(looked_at);
            first += looked_at;
        }
        (sizes, parts.into_inner())
    }

    #[test]
    fn large_bodies_are_sent_one_by_one_and_read_only_to_be_shown() {
        let both = [Part::Head, Part::Whole].repeat(5);
        assert_eq!(pieces(usize::MAX, None, PIECE_BYTES_MAX), (vec![1; 5], both.clone()));
        assert_eq!(pieces(usize::MAX, None, PIECE_BYTES_MAX / 2), (vec![2, 2, 1], both.clone()));
        assert_eq!(pieces(STREAM_BODY_BYTES, None, PIECE_BYTES_MAX), (vec![5], both), "little of each is shown");
        assert_eq!(pieces(0, None, PIECE_BYTES_MAX), (vec![5], vec![Part::Head; 5]), "nothing is shown");
        assert_eq!(pieces(usize::MAX, Some("red"), PIECE_BYTES_MAX), (vec![5], vec![Part::Head; 5]), "none is meant");
    }

    /// Whoever waits longer than this in a test waits for ever.
    const LONG: Duration = Duration::from_secs(10);

    fn out(life: Duration, patience: Duration) -> (Out, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(1);
        let end = Box::pin(tokio::time::sleep(life));
        (Out { sender, stopping: CancellationToken::new(), end, patience }, receiver)
    }

    #[tokio::test]
    async fn a_reader_that_has_stopped_ends_its_stream() {
        let soon = Duration::from_millis(20);
        for (life, patience) in [(soon, 2 * LONG), (2 * LONG, soon)] {
            let (mut out, _receiver) = out(life, patience);
            let sent = tokio::time::timeout(LONG, out.send("x".repeat(FRAME_BYTES_MAX + 1))).await;
            assert_eq!(sent, Ok(Err(Gone)), "a life of {life:?}, a patience of {patience:?}");
        }
        let (mut out, _receiver) = out(2 * LONG, 2 * LONG);
        out.stopping.cancel();
        assert_eq!(tokio::time::timeout(LONG, out.send("x".repeat(FRAME_BYTES_MAX + 1))).await, Ok(Err(Gone)));
    }

    #[tokio::test]
    async fn a_reader_gets_all_of_a_text() {
        let (mut out, mut receiver) = out(2 * LONG, 2 * LONG);
        let text = "0123456789".repeat(FRAME_BYTES_MAX / 4);
        let read = async {
            let mut read = Vec::new();
            while read.len() < text.len() {
                let frame = receiver.recv().await.expect("there is more");
                assert!(frame.len() <= FRAME_BYTES_MAX);
                read.extend_from_slice(&frame);
            }
            read
        };
        let (sent, read) = tokio::join!(out.send(text.clone()), read);
        assert_eq!((sent, read == text.as_bytes()), (Ok(()), true));
    }

    #[test]
    fn a_second_has_room_for_so_many_lines() {
        let mut pace = Pace::new(10);
        assert_eq!([pace.take(4, 7), pace.take(4, 7), pace.take(4, 7), pace.take(1, 7)], [4, 4, 2, 0]);
        assert_eq!([pace.take(100, 8), pace.take(3, 9)], [10, 3], "another second");
    }

    #[test]
    fn there_are_only_so_many_streams_and_who_leaves_makes_room() {
        let streams = Streams::default();
        let mut places: Vec<Place> = Vec::new();
        for tenant in 0..STREAMS_MAX / TENANT_STREAMS_MAX {
            for _ in 0..TENANT_STREAMS_MAX {
                places.push(streams.enter(TenantId(tenant as u32)).unwrap());
            }
            assert!(streams.enter(TenantId(tenant as u32)).is_err(), "its own are used up");
        }
        assert!(streams.enter(TenantId(99)).is_err(), "all are used up");
        places.pop();
        drop(streams.enter(TenantId(99)).unwrap());
        drop(places);
        assert!(streams.open.lock().unwrap().is_empty());
    }
}
