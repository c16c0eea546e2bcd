//! Schedules against a model of the world: waits, clock jumps, pauses, replacements, restarts and crashes.
//!
//! The model simulates the store and the clock, and computes the fire times by counting minutes. In every step the
//! schedules must fire exactly as in the model, and never twice for one time.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use bytes::Bytes;
use posthaste_engine::message::MessageSpec;
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget, Schedules, Tick};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MINUTE: u64 = 60_000;
/// 2026-06-01T12:00:00Z.
const START: Timestamp = Timestamp(1_780_315_200_000);
/// Small, so that one step takes several pieces.
const PIECE: usize = 2;

#[derive(Clone, Debug)]
enum Action {
    Put {
        which: usize,
        cron: usize,
    },
    Drop {
        which: usize,
    },
    Switch {
        which: usize,
        paused: bool,
    },
    Wait {
        millis: u64,
    },
    ClockBack {
        millis: u64,
    },
    Restart,
    /// Everything is decided, and none of it is stored.
    Crash,
}

/// Expressions, and their period in minutes since the epoch.
const CRONS: [(&str, u64); 4] =
    [("* * * * *", 1), ("*/5 * * * *", 5), ("@every 7m", 7), ("CRON_TZ=Asia/Tokyo 0 * * * *", 60)];

type Key = (TenantId, String);

/// Three schedules of two tenants; the ids of two are the same.
fn key(which: usize) -> Key {
    [(TenantId(1), "a"), (TenantId(1), "b"), (TenantId(2), "a")].map(|(tenant, id)| (tenant, id.to_owned()))[which]
        .clone()
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0usize..3, 0usize..CRONS.len()).prop_map(|(which, cron)| Action::Put { which, cron }),
        1 => (0usize..3).prop_map(|which| Action::Drop { which }),
        2 => (0usize..3, any::<bool>()).prop_map(|(which, paused)| Action::Switch { which, paused }),
        12 => prop_oneof![4 => 1u64..MINUTE, 2 => Just(MINUTE), 1 => MINUTE..600 * MINUTE]
            .prop_map(|millis| Action::Wait { millis }),
        2 => prop_oneof![1u64..MINUTE, MINUTE..300 * MINUTE].prop_map(|millis| Action::ClockBack { millis }),
        1 => Just(Action::Restart),
        1 => Just(Action::Crash),
    ]
}

/// The expected behaviour of a schedule, derived only from its history.
struct Expected {
    period_ms: u64,
    paused: bool,
    /// Times up to this one have passed.
    over: Timestamp,
    /// The latest time that a schedule of this id has fired for.
    fired: Timestamp,
}

impl Expected {
    /// The one time to fire for, if any: the latest multiple of the period that is not over.
    fn fire(&mut self, now: Timestamp) -> Option<Timestamp> {
        let latest = Timestamp(now.0 / self.period_ms * self.period_ms);
        if self.paused || latest <= self.over {
            return None;
        }
        self.over = now;
        self.fired = latest;
        Some(latest)
    }
}

struct World {
    now: Timestamp,
    stored: BTreeMap<Key, Schedule>,
    schedules: Schedules,
    expected: BTreeMap<Key, Expected>,
    fired: BTreeSet<(Key, Timestamp)>,
}

impl World {
    fn new() -> World {
        World {
            now: START,
            stored: BTreeMap::new(),
            schedules: Schedules::default(),
            expected: BTreeMap::new(),
            fired: BTreeSet::new(),
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Put { which, cron } => self.put(key(which), CRONS[cron]),
            Action::Drop { which } => {
                let (key, existed) = (key(which), self.stored.remove(&key(which)).is_some());
                assert_eq!(self.schedules.remove(key.0, &key.1), existed);
                self.expected.remove(&key);
                // The next schedule with this id is another one.
                self.fired.retain(|(fired, _)| *fired != key);
            }
            Action::Switch { which, paused } => self.switch(&key(which), paused),
            Action::Wait { millis } => self.now = self.now.plus_millis(millis),
            Action::ClockBack { millis } => self.now = self.now.minus_millis(millis),
            Action::Restart => self.restart(),
            Action::Crash => {
                self.decide();
                self.restart();
            }
        }
        self.step();
    }

    fn put(&mut self, key: Key, (cron, period): (&str, u64)) {
        let fired = self.expected.get(&key).map_or(Timestamp(0), |expected| expected.fired);
        let over = fired.max(self.now);
        let expected = Expected { period_ms: period * MINUTE, paused: false, over, fired };
        self.expected.insert(key.clone(), expected);
        let replaced = self.stored.get(&key).map(|schedule| &schedule.state);
        let state = ScheduleState::begin(&Cron::parse(cron).unwrap(), replaced, self.now);
        self.schedules.put(key.0, &key.1, &state);
        self.stored.insert(key.clone(), schedule(&key, cron, self.now, state));
    }

    fn switch(&mut self, key: &Key, paused: bool) {
        let Some(schedule) = self.stored.get_mut(key) else { return };
        let expected = self.expected.get_mut(key).unwrap();
        if expected.paused && !paused {
            expected.over = expected.over.max(self.now);
        }
        expected.paused = paused;
        if let Some(state) = schedule.switched(paused, self.now) {
            self.schedules.put(key.0, &key.1, &state);
            schedule.state = state;
        }
    }

    fn restart(&mut self) {
        self.schedules = Schedules::default();
        for ((tenant, id), schedule) in &self.stored {
            self.schedules.put(*tenant, id, &schedule.state);
        }
    }

    /// Decides one piece of the due schedules.
    fn decide(&self) -> Vec<(Key, Timestamp, ScheduleState)> {
        let due = self.schedules.due(self.now, PIECE);
        assert_eq!(due.is_empty(), self.schedules.next_wake(self.now) > self.now);
        assert!(due.len() <= PIECE);
        let decide = |(tenant, id): (TenantId, std::sync::Arc<str>)| {
            let key = (tenant, id.to_string());
            match self.stored[&key].tick(self.now) {
                Tick::Fire { at, state } => (key, at, state),
                other => panic!("{key:?} was due: {other:?}"),
            }
        };
        due.into_iter().map(decide).collect()
    }

    fn step(&mut self) {
        let mut fired = BTreeMap::new();
        loop {
            let piece = self.decide();
            if piece.is_empty() {
                break;
            }
            for (key, at, state) in piece {
                assert!(at <= self.now && state.next.is_some_and(|next| next > self.now && next > at));
                assert!(self.fired.insert((key.clone(), at)), "{key:?} fired twice for {at}");
                assert_eq!(fired.insert(key.clone(), at), None, "{key:?} fired twice in one step");
                self.schedules.put(key.0, &key.1, &state);
                self.stored.get_mut(&key).unwrap().state = state;
            }
        }
        let now = self.now;
        let expected = self.expected.iter_mut().filter_map(|(key, expected)| Some((key.clone(), expected.fire(now)?)));
        assert_eq!(fired, expected.collect::<BTreeMap<_, _>>(), "at {now}");
        self.check_shown();
    }

    fn check_shown(&self) {
        for (key, schedule) in &self.stored {
            let shown = schedule.next_shown(self.now).unwrap();
            let expected = &self.expected[key];
            assert!(shown > self.now && shown.0 % expected.period_ms == 0, "{key:?} shows {shown}");
            assert_eq!(schedule.state.paused, expected.paused);
            assert_eq!(self.schedules.contains(key.0, &key.1), self.stored.contains_key(key));
        }
        for tenant in [TenantId(1), TenantId(2)] {
            let count = self.stored.keys().filter(|(owner, _)| *owner == tenant).count();
            assert_eq!(self.schedules.count(tenant), count);
        }
    }

    /// Lets time pass normally, and handles every time of every schedule that is not paused.
    fn pass_normally(&mut self) {
        let from = self.stored.values().filter_map(|schedule| schedule.state.next).max().unwrap_or(self.now);
        self.now = self.now.max(from);
        self.step();
        let (from, before) = (self.now, self.fired.clone());
        for _ in 0..180 {
            self.now = self.now.plus_millis(MINUTE / 2);
            self.step();
        }
        for (key, expected) in &self.expected {
            let count = |time: Timestamp| time.0 / expected.period_ms;
            let fired = self.fired.difference(&before).filter(|(fired, _)| fired == key).count() as u64;
            let times = if expected.paused { 0 } else { count(self.now) - count(from) };
            assert_eq!(fired, times, "{key:?}");
        }
    }
}

fn schedule(key: &Key, cron: &str, now: Timestamp, state: ScheduleState) -> Schedule {
    let destination = ScheduleTarget::Url("https://example.com".to_owned());
    let spec = MessageSpec::default();
    let plan = SchedulePlan { created_at: now, cron: cron.to_owned(), destination, delay_ms: None, spec };
    Schedule { tenant: key.0, id: key.1.clone(), plan, body: Bytes::new(), state }
}

fn daily(time_zone: &str) -> Schedule {
    let cron = format!("CRON_TZ={time_zone} 30 2 * * *");
    let state = ScheduleState::begin(&Cron::parse(&cron).unwrap(), None, START);
    schedule(&key(0), &cron, START, state)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_time_is_fired_for_twice_and_none_is_left_out_while_time_passes_normally(
        actions in proptest::collection::vec(action(), 1..60)
    ) {
        let mut world = World::new();
        for action in &actions {
            world.act(action);
        }
        world.pass_normally();
    }
}

#[test]
fn after_a_year_of_silence_one_message_is_made_for_the_latest_time() {
    let schedule = daily("Europe/Berlin");
    let now = START.plus_millis(365 * 24 * 60 * MINUTE);
    let Tick::Fire { at, state } = schedule.tick(now) else { panic!("it is due") };
    // 2027-06-01T00:30:00Z and the day after.
    assert_eq!((at, state.next), (Timestamp(1_811_809_800_000), Some(Timestamp(1_811_896_200_000))));
    assert_eq!((state.last, state.error, state.last_messages), (Some(at), None, Vec::new()));
}

#[test]
fn an_expression_that_cannot_be_read_any_more_never_fires_and_says_so() {
    let mut schedule = daily("Europe/Berlin");
    schedule.plan.cron = "CRON_TZ=Europe/Atlantis 30 2 * * *".to_owned();
    let now = schedule.state.next.unwrap();
    let Tick::Broken(state) = schedule.tick(now) else { panic!("it cannot be read") };
    assert!(state.error.as_ref().is_some_and(|error| error.contains("Europe/Atlantis")), "{state:?}");
    schedule.state = state;
    assert_eq!((schedule.tick(now), schedule.next_shown(now)), (Tick::Wait, None));
}

#[test]
fn a_tenant_with_many_due_schedules_leaves_room_for_others() {
    let mut schedules = Schedules::default();
    let state = |next| ScheduleState { next: Some(next), ..ScheduleState::default() };
    for n in 0..1_000 {
        schedules.put(TenantId(1), &format!("s{n}"), &state(START));
    }
    schedules.put(TenantId(2), "late", &state(START.plus_millis(1)));
    assert_eq!(schedules.next_wake(START), START);
    assert_eq!(schedules.due(START.minus_millis(1), 10), []);
    assert_eq!(schedules.due(START, 10).len(), 10);
    let due = schedules.due(START.plus_millis(1), 10);
    assert_eq!(due.len(), 10);
    assert_eq!((due[1].0, due[1].1.as_ref()), (TenantId(2), "late"), "in turns");
}

#[test]
fn held_schedules_of_a_tenant_wait_and_those_of_others_fire() {
    let mut schedules = Schedules::default();
    let state = |next| ScheduleState { next: Some(next), ..ScheduleState::default() };
    let at = |millis| START.plus_millis(millis);
    schedules.put(TenantId(1), "held", &state(START));
    schedules.put(TenantId(2), "free", &state(at(10)));
    schedules.hold(TenantId(1), START, at(1_000));
    let due = |now| -> Vec<TenantId> { schedules.due(now, 10).into_iter().map(|(tenant, _)| tenant).collect() };
    assert_eq!((schedules.next_wake(START), due(START)), (at(10), vec![]));
    assert_eq!((schedules.next_wake(at(10)), due(at(10))), (at(10), vec![TenantId(2)]));
    assert_eq!(due(at(1_000)), [TenantId(1), TenantId(2)]);
    let before = START.minus_millis(1);
    assert_eq!(schedules.next_wake(before), START, "a clock that is set back ends it");
    schedules.remove(TenantId(2), "free");
    assert_eq!(schedules.next_wake(at(20)), at(1_000));
}

#[test]
fn another_expression_counts_over_firings_and_pauses_until_the_next_one() {
    let mut schedule = schedule(&key(0), "0 0 * * *", START, ScheduleState::default());
    schedule.state = schedule.rescheduled(&Cron::parse("*/5 * * * *").unwrap(), START);
    assert_eq!((schedule.cron_text(), schedule.plan.cron.as_str()), ("*/5 * * * *", "0 0 * * *"));
    for _ in 0..2 {
        let next = schedule.state.next.unwrap();
        assert!(next.millis_since(START) <= 600_000, "{next:?}");
        let Tick::Fire { at, state } = schedule.tick(next) else { panic!("it is due") };
        assert_eq!(at, next);
        schedule.state = state;
        assert_eq!(schedule.cron_text(), "*/5 * * * *");
    }
    for paused in [true, false] {
        schedule.state = schedule.switched(paused, schedule.state.next.unwrap()).unwrap();
        assert_eq!(schedule.cron_text(), "*/5 * * * *");
    }
}

#[test]
fn what_fires_next_is_known_without_those_that_are_paused() {
    let mut schedules = Schedules::default();
    let state =
        |millis, paused| ScheduleState { next: Some(START.plus_millis(millis)), paused, ..ScheduleState::default() };
    for (id, millis, paused) in [("third", 3, false), ("first", 1, false), ("paused", 0, true), ("second", 2, false)] {
        schedules.put(TenantId(1), id, &state(millis, paused));
    }
    let next = schedules.next(TenantId(1), 2);
    let next: Vec<_> = next.iter().map(|(at, id)| (at.millis_since(START), id.as_ref())).collect();
    assert_eq!(next, [(1, "first"), (2, "second")]);
    assert_eq!(schedules.next(TenantId(2), 2), []);
}
