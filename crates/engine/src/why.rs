//! Why a message waits now, or how it ended: as data, and as one sentence for people.
//!
//! [`Shard::why`] finds the obstacle of a live message, and [`ending`] reads the log of one that has ended.
//!
//! [`Shard::why`]: crate::shard::Shard::why

use crate::attempt_error::{Timeout, for_people};
use crate::event::{Event, State};
use posthaste_wire::time::Timestamp;
use std::fmt::Write as _;

/// The reason why a live message waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    /// When its next attempt is due, or was.
    pub due: Timestamp,
    /// Retries done so far.
    pub retried: u32,
    /// Whether it was cancelled while an attempt is in flight.
    pub cancel_requested: bool,
    /// Its obstacle.
    pub obstacle: Obstacle,
}

/// The obstacle of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its time, which has not come.
    Time,
    /// Its turn in a queue.
    Queue(InQueue),
    /// Its flow-control key.
    Flow(InFlow),
    /// Its destination, which is busy.
    Destination(AtDestination),
    /// Its tenant or the server is at a limit.
    Room(Room),
    /// An attempt is in flight.
    Attempt,
    /// The server is stopping.
    Stopping,
    /// Nothing: it starts at once.
    Nothing,
}

/// A position in a line. Lines are kept in RAM up to a limit, and positions beyond it are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first is 1.
    Nth(usize),
    /// More than this many are ahead.
    Beyond(usize),
}

/// The place of a message in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InQueue {
    /// The queue.
    pub name: String,
    /// Whether the queue is paused.
    pub paused: bool,
    /// When its settings were last changed.
    pub changed_at: Timestamp,
    /// How many of its messages may have a slot at once.
    pub parallelism: u32,
    /// How many have a slot.
    pub taken: usize,
    /// `None` if it has its turn but must still wait.
    pub position: Option<Position>,
}

/// The place of a message in the lane of its flow-control key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlow {
    /// The key.
    pub key: String,
    /// Whether the key is paused.
    pub paused: bool,
    /// Most deliveries in flight at once.
    pub parallelism: Option<u32>,
    /// Deliveries in flight.
    pub in_flight: u32,
    /// Most starts within a period.
    pub rate: Option<u32>,
    /// Length of that period.
    pub period_ms: u64,
    /// Its position.
    pub position: Position,
    /// The earliest time at which the rate lets it start; `None` if something other than the rate delays it.
    pub opens_at: Option<Timestamp>,
}

/// The place of a message in the lane of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtDestination {
    /// Its position.
    pub position: Position,
    /// Deliveries in flight to it.
    pub in_flight: u32,
    /// Most deliveries in flight.
    pub max: u32,
    /// Why the destination is busy.
    pub busy: Busy,
}

/// Why a destination takes nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// It has reached its cap.
    Full,
    /// It has used up its share of the tenant's slots.
    Share,
    /// The bodies in flight leave no room for this one.
    Bytes,
}

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The tenant's cap of deliveries in flight.
    Tenant(u32),
    /// The server's cap of deliveries in flight.
    Server(u32),
    /// The bodies in flight of the tenant, or of all tenants, leave no room for its body.
    Bytes,
    /// They leave no room for the body of the first message in its lane, which no other may pass.
    BytesOfFirst,
    /// RAM holds as many messages as allowed, and this one is only in the store.
    Memory,
}

/// How a message has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Its final state.
    pub state: State,
    /// The time.
    pub at: Timestamp,
    /// Attempts that have ended.
    pub attempts: u32,
    /// The result of the last attempt.
    pub last: Option<Answer>,
    /// Its id in the DLQ.
    pub dlq_id: Option<String>,
}

/// The result of an attempt, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This status.
    Status(u16),
    /// No response, for this reason.
    Error(String),
}

/// Further data for the sentence about a message.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The origin of its destination.
    pub destination: &'a str,
    /// When it was published.
    pub created_at: Timestamp,
    /// Number of retries after the first attempt.
    pub retries: u32,
    /// Timeout of its attempts.
    pub timeout: Timeout,
    /// Whether it is the deadline of a workflow's wait.
    pub is_deadline: bool,
}

/// Reads the end of a message from its log lines, oldest first; `None` if it has not ended.
pub fn ending<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<Ending> {
    let (mut attempts, mut last, mut end) = (0, None, None);
    for event in events {
        let detail = &event.detail;
        let answer = match (&detail.response, &detail.error) {
            (Some(response), _) => Some(Answer::Status(response.status)),
            (None, error) => error.clone().map(Answer::Error),
        };
        let is_outcome = event.state == State::Error || (event.state.is_final() && detail.response.is_some());
        if is_outcome {
            attempts += u32::from(detail.duration_ms.is_some());
            last = answer;
        }
        if event.state.is_final() {
            end = Some((event.state, event.at, detail.dlq_id.clone()));
        }
    }
    let (state, at, dlq_id) = end?;
    Some(Ending { state, at, attempts, last, dlq_id })
}

/// The sentence about a message that has ended. `in_dlq` says whether its dead letter still exists.
pub fn ended_sentence(ending: &Ending, subject: &Subject<'_>, in_dlq: bool, now: Timestamp) -> String {
    let Ending { attempts, at, .. } = *ending;
    match ending.state {
        State::Delivered => {
            let took = length(at.millis_since(subject.created_at));
            format!("delivered on the {} attempt after {took}", ordinal(attempts.max(1) as usize))
        }
        State::Failed => {
            let place = if in_dlq { "in the DLQ" } else { "failed, no longer in the DLQ" };
            let cause =
                ending.last.as_ref().map_or_else(|| "no attempts left".to_owned(), |last| describe(last, subject));
            format!("{place}: {cause}, {}", used_up(attempts, subject.retries))
        }
        _ => {
            let ago = ago(at, now);
            match (attempts, &ending.last) {
                (0, _) => format!("cancelled {ago}, before the 1st attempt"),
                (_, Some(Answer::Status(200..=299))) => {
                    format!("cancelled {ago}, during the {} attempt, which succeeded", ordinal(attempts as usize))
                }
                (1, _) => format!("cancelled {ago}, after 1 failed attempt"),
                _ => format!("cancelled {ago}, after {attempts} failed attempts"),
            }
        }
    }
}

/// `500 from https://example.com`.
fn describe(answer: &Answer, subject: &Subject<'_>) -> String {
    match answer {
        Answer::Status(status) => format!("{status} from {}", subject.destination),
        Answer::Error(error) => for_people(error, subject.timeout).into_owned(),
    }
}

fn used_up(attempts: u32, retries: u32) -> String {
    match (attempts.saturating_sub(1), retries) {
        _ if attempts == 0 => "without any attempt".to_owned(),
        (_, 0) => "with no retries".to_owned(),
        (1, 1) => "after 1 retry".to_owned(),
        (used, max) if used >= max => format!("after {max} retries"),
        (used, max) => format!("not retryable ({used} of {max} retries used)"),
    }
}

/// The sentence about a waiting message. `last` is the result of its last attempt, `under_way_since` the start of the
/// one in flight.
pub fn waiting_sentence(
    waiting: &WaitReason,
    subject: &Subject<'_>,
    last: Option<&Answer>,
    under_way_since: Option<Timestamp>,
    now: Timestamp,
) -> String {
    let nth = ordinal(waiting.retried as usize + 1);
    match &waiting.obstacle {
        Obstacle::Time if subject.is_deadline => {
            format!("its run is waiting for an event; the wait times out in {}", until(waiting.due, now))
        }
        Obstacle::Time if waiting.retried == 0 => format!("delayed: due in {}", until(waiting.due, now)),
        Obstacle::Time => {
            let mut text = format!(
                "attempt {} of {} is due in {}",
                waiting.retried + 1,
                subject.retries + 1,
                until(waiting.due, now)
            );
            if let Some(last) = last {
                let _ = write!(text, ", after {}", describe(last, subject));
            }
            text
        }
        Obstacle::Queue(queue) => in_queue(queue, now),
        Obstacle::Flow(flow) => in_flow(flow, now),
        Obstacle::Destination(destination) => at_destination(destination, subject),
        Obstacle::Room(Room::Tenant(count)) => {
            format!("waiting for a free slot: the tenant has {count} deliveries in flight, its maximum")
        }
        Obstacle::Room(Room::Server(count)) => {
            format!("waiting for a free slot: the server has {count} deliveries in flight, its maximum")
        }
        Obstacle::Room(Room::Bytes) => {
            "waiting for memory: the bodies in flight leave too little room for this one".to_owned()
        }
        Obstacle::Room(Room::BytesOfFirst) => {
            "waiting for memory: the bodies in flight leave too little room for the first message in its line"
                .to_owned()
        }
        Obstacle::Room(Room::Memory) => {
            "waiting for memory: the server holds the maximum number of messages and loads this one later".to_owned()
        }
        Obstacle::Attempt => {
            let state = under_way_since.map_or("is in flight".to_owned(), |since| {
                format!("has been in flight for {}", length(now.millis_since(since)))
            });
            let end = if waiting.cancel_requested { "; the message is cancelled and will not be retried" } else { "" };
            format!("the {nth} attempt {state}{end}")
        }
        Obstacle::Stopping => "the server is stopping: the message starts after the restart".to_owned(),
        Obstacle::Nothing => "ready: it starts immediately".to_owned(),
    }
}

fn in_queue(queue: &InQueue, now: Timestamp) -> String {
    let InQueue { name, parallelism, taken, .. } = queue;
    let paused = || format!("queue {name} is paused (changed {})", ago(queue.changed_at, now));
    match queue.position {
        None if queue.paused => format!("{}: it is this message's turn when the queue resumes", paused()),
        None => format!("queue {name} now has a parallelism of {parallelism}, and earlier messages use all of it"),
        Some(position) if queue.paused => format!("{}: {} in line", paused(), place(position)),
        Some(position) => format!("{} in line for queue {name}, {taken} of {parallelism} in flight", place(position)),
    }
}

fn in_flow(flow: &InFlow, now: Timestamp) -> String {
    let InFlow { key, in_flight, .. } = flow;
    let nth = place(flow.position);
    if flow.paused {
        return format!("flow-control key {key} is paused: {nth} in line");
    }
    let mut text = format!("{nth} in line for key {key}");
    if let Some(max) = flow.parallelism.filter(|max| in_flight >= max) {
        let _ = write!(text, ", {in_flight} of {max} in flight");
    }
    if let (Some(rate), Some(opens_at)) = (flow.rate, flow.opens_at) {
        let least = if matches!(flow.position, Position::Beyond(_)) { "at least" } else { "about" };
        let _ = write!(text, ", {}, {least} {}", pace(rate, flow.period_ms), until(opens_at, now));
    }
    text
}

fn at_destination(destination: &AtDestination, subject: &Subject<'_>) -> String {
    let AtDestination { in_flight, max, busy, position } = destination;
    let why = match busy {
        Busy::Full => format!("{in_flight} of {max} deliveries in flight"),
        Busy::Share => format!("{in_flight} deliveries in flight, its fair share while the tenant is busy"),
        Busy::Bytes => "where the bodies in flight leave too little room for the next one".to_owned(),
    };
    format!("{} in line for {}, {why}", place(*position), subject.destination)
}

/// `3rd`, or `at least 64 others ahead`.
fn place(position: Position) -> String {
    match position {
        Position::Nth(nth) => ordinal(nth),
        Position::Beyond(0) => "waiting".to_owned(),
        Position::Beyond(count) => format!("at least {count} others ahead"),
    }
}

/// `5/s`, `5 per 90 s`.
fn pace(rate: u32, period_ms: u64) -> String {
    match period_ms {
        1_000 => format!("{rate}/s"),
        60_000 => format!("{rate}/min"),
        3_600_000 => format!("{rate}/h"),
        86_400_000 => format!("{rate}/d"),
        _ => format!("{rate} per {}", length(period_ms)),
    }
}

fn until(time: Timestamp, now: Timestamp) -> String {
    length(time.millis_since(now))
}

fn ago(time: Timestamp, now: Timestamp) -> String {
    match now.millis_since(time) {
        0..1_000 => "just now".to_owned(),
        millis => format!("{} ago", length(millis)),
    }
}

/// A duration in the largest precise enough unit: `20 ms`, `0.6 s`, `12 s`, `3 min`, `5 h`, `2 d`.
fn length(millis: u64) -> String {
    match millis {
        0..100 => format!("{millis} ms"),
        100..10_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        10_000..120_000 => format!("{} s", millis / 1_000),
        120_000..7_200_000 => format!("{} min", millis / 60_000),
        7_200_000..172_800_000 => format!("{} h", millis / 3_600_000),
        _ => format!("{} d", millis / 86_400_000),
    }
}

/// `1st`, `2nd`, `3rd`, `11th`.
fn ordinal(number: usize) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests;
