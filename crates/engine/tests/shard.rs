//! The shard against a model of the world: random publishes, outcomes, cancels, waits and crashes.
//!
//! The model plays the store, the receivers and the clock. After every step it checks the caps; after
//! healing it checks that every message has ended exactly once and that nothing is stuck.

use bytes::Bytes;
use posthaste_engine::event::{Event, Op, Response, State};
use posthaste_engine::message::{DedupKey, DueKey, Live, Message, MessageSpec, Origin};
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome};
use posthaste_engine::shard::{Effect, Load, Output, Publish, Settings, Shard};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const CAPS: Settings = Settings {
    in_flight_max: 6,
    tenant_in_flight_max: 4,
    origin_in_flight_max: 2,
    in_flight_bytes_max: 100,
    tenant_in_flight_bytes_max: 70,
    held_max: 12,
    lane_held_max: 4,
    load_page: 5,
    dedup_window_ms: 600_000,
};

#[derive(Clone, Debug)]
enum Action {
    Publish { tenant: u32, origin: u64, delay_ms: u64, key: Option<u8>, retries: u32, bytes: usize },
    End { which: usize, how: How },
    Cancel { which: usize },
    Wait { millis: u64 },
    ClockBack { millis: u64 },
    Crash,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Ok,
    Fail,
    FailWithRetryAfter(u32),
    Refuse,
    NoAnswer,
}

fn action() -> impl Strategy<Value = Action> {
    let how = prop_oneof![
        4 => Just(How::Ok),
        2 => Just(How::Fail),
        1 => (0u32..100).prop_map(How::FailWithRetryAfter),
        1 => Just(How::Refuse),
        1 => Just(How::NoAnswer),
    ];
    let delay = prop_oneof![4 => Just(0u64), 2 => 1u64..5_000, 1 => 30_000u64..200_000];
    let publish = (0u32..2, 0u64..3, delay, proptest::option::weighted(0.2, 0u8..4), 0u32..3, 0usize..60).prop_map(
        |(tenant, origin, delay_ms, key, retries, bytes)| Action::Publish {
            tenant,
            origin,
            delay_ms,
            key,
            retries,
            bytes,
        },
    );
    prop_oneof![
        8 => publish,
        8 => (0usize..8, how).prop_map(|(which, how)| Action::End { which, how }),
        1 => (0usize..40).prop_map(|which| Action::Cancel { which }),
        3 => prop_oneof![1u64..100, 1_000u64..70_000].prop_map(|millis| Action::Wait { millis }),
        1 => prop_oneof![1u64..100, 1_000u64..100_000_000].prop_map(|millis| Action::ClockBack { millis }),
        1 => Just(Action::Crash),
    ]
}

/// The world around a shard.
struct World {
    shard: Shard,
    now: Timestamp,
    /// The latest time so far: what was due then may start although the clock went back.
    latest: Timestamp,
    last_seq: Seq,
    messages: HashMap<Seq, Arc<Message>>,
    live: BTreeMap<Seq, Live>,
    keys: HashMap<(TenantId, DedupKey), (MessageId, Timestamp)>,
    events: Vec<Event>,
    buried: BTreeSet<Seq>,
    in_flight: Vec<Live>,
    published: usize,
}

impl World {
    fn new() -> World {
        World {
            shard: Shard::new(CAPS),
            now: Timestamp(1_000_000_000),
            latest: Timestamp(1_000_000_000),
            last_seq: Seq::MIN,
            messages: HashMap::new(),
            live: BTreeMap::new(),
            keys: HashMap::new(),
            events: Vec::new(),
            buried: BTreeSet::new(),
            in_flight: Vec::new(),
            published: 0,
        }
    }

    fn act(&mut self, action: &Action) {
        self.latest = self.latest.max(self.now);
        let mut out = Output::default();
        match action {
            Action::Publish { .. } => self.publish(action, &mut out),
            Action::End { which, how } => self.end(*which, *how, &mut out),
            Action::Cancel { which } => {
                let row = self.live.values().nth(which % self.live.len().max(1)).copied();
                let rows: Vec<Live> = row.into_iter().collect();
                self.shard.cancel(&rows, self.now, &mut out);
            }
            Action::Wait { millis } => self.now = self.now.plus_millis(*millis),
            Action::ClockBack { millis } => self.now = self.now.minus_millis(*millis),
            Action::Crash => {
                self.shard = Shard::new(CAPS);
                self.in_flight.clear();
            }
        }
        self.settle(out);
    }

    fn publish(&mut self, action: &Action, out: &mut Output) {
        let Action::Publish { tenant, origin, delay_ms, key, retries, bytes } = action.clone() else { unreachable!() };
        self.last_seq = Seq::next(self.last_seq, self.now);
        let tenant = TenantId(tenant);
        let message = Arc::new(Message {
            id: MessageId { seq: self.last_seq, tag: 7 },
            tenant,
            created_at: self.now,
            not_before: self.now.plus_millis(delay_ms),
            spec: spec(retries),
            body: Bytes::from(vec![0; bytes]),
        });
        let key = key.map(|byte| DedupKey([byte; 32]));
        let stored = key.and_then(|key| self.keys.get(&(tenant, key))).filter(|(_, expires)| self.now < *expires);
        let dedup = key.map(|key| (key, stored.map(|(id, _)| *id)));
        let origin = Origin(u64::from(tenant.0) * 10 + origin);
        let publish = Publish { message: message.clone(), origin, dedup, replaces: None };
        let accepted = self.shard.publish(publish, self.now, out);
        if !accepted.deduplicated {
            assert_eq!(accepted.id, message.id);
            self.messages.insert(message.id.seq, message);
            self.published += 1;
        }
    }

    fn end(&mut self, which: usize, how: How, out: &mut Output) {
        if self.in_flight.is_empty() {
            return;
        }
        let live = self.in_flight.swap_remove(which % self.in_flight.len());
        let message = self.messages[&live.id.seq].clone();
        self.shard.ended(&message, outcome(how), 3, self.now, out);
    }

    /// Commits, carries out the effects, and lets the shard do everything that is due now.
    fn settle(&mut self, out: Output) {
        self.commit(out);
        for _ in 0..1_000 {
            let mut out = Output::default();
            self.shard.wake(self.now, &mut out);
            let load = self.shard.wants_load(self.now);
            if let Some(load) = load {
                let rows = self.rows(&load);
                self.shard.loaded(&load, &rows, self.now, &mut out);
            }
            self.commit(out);
            if load.is_none() {
                return;
            }
        }
        panic!("the shard asks for loads without end");
    }

    fn rows(&self, load: &Load) -> Vec<Live> {
        let mut rows: Vec<Live> = self
            .live
            .values()
            .filter(|row| load.lane.is_none_or(|(_, origin)| origin == row.origin))
            .filter(|row| row.due_key() > load.after && row.due <= load.until)
            .copied()
            .collect();
        rows.sort_by_key(Live::due_key);
        rows.truncate(load.max);
        rows
    }

    fn commit(&mut self, out: Output) {
        for op in out.ops {
            match op {
                Op::Insert { live, .. } => assert!(self.live.insert(live.id.seq, live).is_none()),
                Op::Remember { tenant, key, id, expires } => {
                    self.keys.insert((tenant, key), (id, expires));
                }
                Op::Log(event) => self.events.push(event),
                Op::Update(live) => assert!(self.live.insert(live.id.seq, live).is_some()),
                Op::Remove { id } => assert!(self.live.remove(&id.seq).is_some()),
                Op::Bury(letter) => {
                    assert!(self.live.remove(&letter.id.seq).is_some());
                    assert!(self.buried.insert(letter.id.seq));
                }
                Op::Exhume { .. } => panic!("nobody deletes dead letters here"),
            }
        }
        self.shard.committed();
        for Effect::Start { live, message } in out.effects {
            let row = self.live.get(&live.id.seq).expect("only live messages start");
            assert!(row.due <= self.now.max(self.latest), "started before it was due");
            assert!(!row.cancel_requested, "started after its cancel was promised");
            assert_eq!(row.retried, live.retried);
            assert!(message.is_none_or(|message| message.id == live.id));
            assert!(self.in_flight.iter().all(|other| other.id != live.id), "two attempts at once");
            self.in_flight.push(live);
        }
        self.check_caps();
    }

    fn check_caps(&self) {
        let count = |same: &dyn Fn(&Live) -> bool| self.in_flight.iter().filter(|live| same(live)).count() as u32;
        assert!(count(&|_| true) <= CAPS.in_flight_max);
        for live in &self.in_flight {
            assert!(count(&|other| other.tenant == live.tenant) <= CAPS.tenant_in_flight_max);
            assert!(count(&|other| other.origin == live.origin) <= CAPS.origin_in_flight_max);
        }
        let bytes: u64 = self.in_flight.iter().map(|live| u64::from(live.body_bytes)).sum();
        assert!(bytes <= CAPS.in_flight_bytes_max || self.in_flight.len() == 1);
        for tenant in [TenantId(0), TenantId(1)] {
            let own: Vec<u64> = self
                .in_flight
                .iter()
                .filter(|live| live.tenant == tenant)
                .map(|live| u64::from(live.body_bytes))
                .collect();
            assert!(own.iter().sum::<u64>() <= CAPS.tenant_in_flight_bytes_max || own.len() == 1);
        }
        assert_eq!(self.shard.in_flight() as usize, self.in_flight.len());
        // A lane may hold what could start at once, whatever the rest holds.
        assert!(self.shard.held() <= CAPS.held_max + 6 * CAPS.origin_in_flight_max as usize + self.in_flight.len());
    }

    /// Receivers answer, time passes, nothing crashes: everything must come to its end.
    fn heal(&mut self) {
        for _ in 0..5_000 {
            if self.live.is_empty() {
                return;
            }
            if self.in_flight.is_empty() {
                let first = self.live.values().map(|row| row.due).min().expect("not empty");
                self.now = self.now.max(first).plus_millis(1_000);
                self.settle(Output::default());
            }
            while !self.in_flight.is_empty() {
                let mut out = Output::default();
                self.end(0, How::Ok, &mut out);
                self.settle(out);
            }
        }
        panic!("{} messages are stuck", self.live.len());
    }

    fn check_history(&self) {
        let mut ends: HashMap<Seq, Vec<State>> = HashMap::new();
        for event in &self.events {
            if event.state.is_final() {
                ends.entry(event.id.seq).or_default().push(event.state);
            }
        }
        assert_eq!(ends.len(), self.published, "every message ends");
        for (seq, states) in ends {
            assert_eq!(states.len(), 1, "a message ends once: {states:?}");
            assert_eq!(states[0] == State::Failed, self.buried.contains(&seq), "failed messages are in the DLQ");
        }
        let mut last: HashMap<Seq, State> = HashMap::new();
        for event in &self.events {
            let before = last.insert(event.id.seq, event.state);
            assert!(may_follow(before, event.state), "{:?}: {:?} after {before:?}", event.id, event.state);
        }
    }
}

/// The sequences of the contract; a crash may leave an attempt without an end.
fn may_follow(before: Option<State>, state: State) -> bool {
    use State::{Active, CancelRequested, Canceled, Created, Delivered, Error, Failed, Retry};
    match state {
        Created => before.is_none(),
        Active => matches!(before, Some(Created | Retry | Active)),
        Delivered => before == Some(Active),
        Error => matches!(before, Some(Active | CancelRequested)),
        Retry | Failed => before == Some(Error),
        CancelRequested => matches!(before, Some(Created | Active | Retry)),
        Canceled => matches!(before, Some(CancelRequested | Error)),
    }
}

fn spec(retries: u32) -> MessageSpec {
    MessageSpec {
        url: "https://example.com/".into(),
        method: "POST".into(),
        headers: Vec::new(),
        retries,
        retry_delay: Some("2000".into()),
        timeout_ms: None,
        labels: Vec::new(),
        redact: RedactFields::default(),
        caller_ip: String::new(),
        topic: None,
        endpoint: None,
    }
}

fn outcome(how: How) -> Outcome {
    let answer = |status: u16, header: Option<(&str, String)>| {
        let headers = header.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        Ok(Response { status, headers, ..Response::default() })
    };
    let result = match how {
        How::Ok => answer(200, None),
        How::Fail => answer(500, None),
        How::FailWithRetryAfter(seconds) => answer(429, Some(("Retry-After", seconds.to_string()))),
        How::Refuse => answer(489, Some(("Upstash-NonRetryable-Error", "true".into()))),
        How::NoAnswer => Err(AttemptError { class: ErrorClass::Timeout, message: "context deadline exceeded".into() }),
    };
    Outcome { result, duration_ms: 1 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_message_ends_once_and_caps_hold(actions in proptest::collection::vec(action(), 1..160)) {
        let mut world = World::new();
        world.settle(Output::default());
        for action in &actions {
            world.act(action);
        }
        world.heal();
        world.check_history();
    }
}

#[test]
fn a_backlog_to_one_destination_does_not_hold_up_another() {
    let mut world = World::new();
    world.settle(Output::default());
    let publish = |origin| Action::Publish { tenant: 0, origin, delay_ms: 0, key: None, retries: 0, bytes: 1 };
    for _ in 0..200 {
        world.act(&publish(0));
    }
    assert_eq!(world.in_flight.len(), 2, "the cap of the sick destination");
    world.act(&publish(1));
    let healthy = world.in_flight.iter().filter(|live| live.origin == Origin(1)).count();
    assert_eq!(healthy, 1, "the healthy destination is served at once");
    assert!(world.shard.held() < 20, "the backlog waits in the store");
}

#[test]
fn a_fresh_publish_starts_with_its_message_and_a_loaded_one_without() {
    let mut shard = Shard::new(CAPS);
    let mut world = World::new();
    let mut out = Output::default();
    let load = shard.wants_load(world.now).expect("a new shard wants the window");
    shard.loaded(&load, &[], world.now, &mut out);
    std::mem::swap(&mut shard, &mut world.shard);
    let action = Action::Publish { tenant: 0, origin: 0, delay_ms: 0, key: None, retries: 0, bytes: 1 };
    world.publish(&action, &mut out);
    assert!(out.synced, "a publish must be on disk before it is answered");
    assert!(matches!(out.effects[..], [Effect::Start { message: Some(_), .. }]));
    let row = match &out.ops[0] {
        Op::Insert { live, .. } => *live,
        other => panic!("{other:?}"),
    };
    let mut restarted = Shard::new(CAPS);
    let mut out = Output::default();
    let load = restarted.wants_load(world.now).expect("a new shard wants the window");
    assert_eq!(load.after, DueKey::MIN);
    restarted.loaded(&load, &[row], world.now, &mut out);
    assert!(matches!(out.effects[..], [Effect::Start { message: None, .. }]));
}

#[test]
fn duplicates_within_one_batch_are_recognised_before_anything_is_committed() {
    let mut world = World::new();
    world.settle(Output::default());
    let action = Action::Publish { tenant: 0, origin: 0, delay_ms: 0, key: Some(1), retries: 0, bytes: 1 };
    let mut out = Output::default();
    world.publish(&action, &mut out);
    world.publish(&action, &mut out);
    assert_eq!(world.published, 1);
    assert_eq!(out.ops.iter().filter(|op| matches!(op, Op::Insert { .. })).count(), 1);
}

#[test]
fn a_replay_that_is_a_duplicate_leaves_its_dead_letter_alone() {
    let mut world = World::new();
    world.settle(Output::default());
    let action = Action::Publish { tenant: 0, origin: 0, delay_ms: 0, key: Some(1), retries: 0, bytes: 1 };
    world.act(&action);
    let original = world.messages.values().next().expect("published").clone();
    let message = Arc::new(Message { id: MessageId { seq: Seq(u64::MAX >> 2), tag: 1 }, ..(*original).clone() });
    let mut replay = |dedup| {
        let mut out = Output::default();
        let replaces = Some(posthaste_wire::id::DlqId { at: world.now, n: 1 });
        let publish = Publish { message: message.clone(), origin: Origin(0), dedup, replaces };
        let accepted = world.shard.publish(publish, world.now, &mut out);
        (accepted.deduplicated, out.ops.iter().any(|op| matches!(op, Op::Exhume { .. })))
    };
    assert_eq!(replay(Some((DedupKey([1; 32]), Some(original.id)))), (true, false));
    assert_eq!(replay(None), (false, true));
}

#[test]
fn the_bytes_of_ended_attempts_are_given_back() {
    let mut world = World::new();
    world.settle(Output::default());
    let publish = |origin| Action::Publish { tenant: 0, origin, delay_ms: 0, key: None, retries: 0, bytes: 30 };
    for _ in 0..20 {
        world.act(&publish(0));
        world.act(&Action::End { which: 0, how: How::Ok });
    }
    for origin in 0..3 {
        world.act(&publish(origin));
    }
    assert_eq!(world.in_flight.len(), 2, "two bodies of 30 fit into a tenant's 70 bytes");
}

#[test]
fn large_bodies_that_wait_for_room_hold_up_nobody_else() {
    let mut world = World::new();
    world.settle(Output::default());
    let publish = |tenant, origin, bytes| Action::Publish { tenant, origin, delay_ms: 0, key: None, retries: 0, bytes };
    for _ in 0..4 {
        world.act(&publish(0, 0, 60));
    }
    world.act(&publish(1, 0, 5));
    world.act(&publish(0, 1, 5));
    let started: Vec<(u32, u32)> = world.in_flight.iter().map(|live| (live.tenant.0, live.body_bytes)).collect();
    assert_eq!(started, [(0, 60), (1, 5), (0, 5)]);
}

#[test]
fn a_full_shard_still_holds_what_a_lane_could_start_at_once() {
    let mut world = World::new();
    world.settle(Output::default());
    let publish = |tenant, origin| Action::Publish { tenant, origin, delay_ms: 0, key: None, retries: 0, bytes: 1 };
    for _ in 0..6 {
        world.act(&publish(0, 0));
        world.act(&publish(0, 1));
    }
    assert_eq!(world.shard.held(), CAPS.held_max, "one tenant fills the shard");
    for _ in 0..4 {
        world.act(&publish(1, 0));
    }
    assert_eq!(world.shard.held(), CAPS.held_max + 4, "two under way and two that follow them without a load");
}

#[test]
fn origins_that_collide_do_not_mix_tenants_up() {
    let mut world = World::new();
    world.settle(Output::default());
    for (tenant, origin) in [(0, 10), (1, 0)] {
        world.act(&Action::Publish { tenant, origin, delay_ms: 0, key: None, retries: 0, bytes: 1 });
    }
    assert!(world.in_flight.iter().all(|live| live.origin == Origin(10)));
    for _ in 0..2 {
        world.act(&Action::End { which: 0, how: How::Ok });
    }
    assert_eq!((world.live.len(), world.shard.in_flight()), (0, 0));
}

#[test]
fn a_draining_shard_starts_nothing_but_still_accepts() {
    let mut world = World::new();
    world.settle(Output::default());
    world.shard.drain();
    world.act(&Action::Publish { tenant: 0, origin: 0, delay_ms: 0, key: None, retries: 0, bytes: 1 });
    assert_eq!((world.live.len(), world.in_flight.len()), (1, 0));
}
