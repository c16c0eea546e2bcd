//! Messages of runs: timed and retried like others, and reported only to the run.

use crate::world::CAPS;
use bytes::Bytes;
use posthaste_engine::event::{Op, Response};
use posthaste_engine::limits::HORIZON_MS;
use posthaste_engine::message::{Live, Message, MessageSpec, Origin};
use posthaste_engine::outcome::Outcome;
use posthaste_engine::retry::Next;
use posthaste_engine::shard::{Effect, Output, Shard, Step, StepEnd, Storage};
use posthaste_engine::workflow::{Part, StepRef};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use std::sync::Arc;

const T0: Timestamp = Timestamp(1_780_315_200_000);

struct Rig {
    shard: Shard,
    out: Output,
}

impl Rig {
    fn new() -> Rig {
        let mut shard = Shard::new(CAPS);
        let mut out = Output::default();
        let load = shard.wants_load(T0).expect("a new shard wants the window");
        shard.loaded(&load, &[], T0, &mut out);
        Rig { shard, out }
    }

    /// The decisions since the last call.
    fn taken(&mut self) -> (Vec<Op>, Vec<Live>) {
        let Output { ops, effects, .. } = std::mem::take(&mut self.out);
        (ops, effects.into_iter().map(|Effect::Start { live, .. }| live).collect())
    }

    fn decide(&mut self, new: &[Step], withdrawn: &[MessageId], now: Timestamp) -> (Vec<Op>, Vec<Live>) {
        self.shard.decided(new, withdrawn, now, &mut self.out);
        self.taken()
    }

    fn end(&mut self, step: &Step, status: u16, now: Timestamp) -> (Option<StepEnd>, Vec<Op>) {
        let response = Response { status, ..Response::default() };
        let outcome = Outcome { result: Ok(response), duration_ms: 1, phases: None };
        let end = self.shard.step_ended(&step.message, &outcome, 0, Storage::Free, now, &mut self.out);
        (end, self.taken().0)
    }
}

fn step(number: u64, delay_ms: u64) -> Step {
    let spec = MessageSpec {
        url: "http://app:3000/wf".into(),
        method: "POST".into(),
        retries: 1,
        retry_delay: Some("1000".into()),
        workflow: Some(StepRef { run: Seq(1), part: Part::Entry(0) }),
        ..MessageSpec::default()
    };
    let id = MessageId { seq: Seq(Seq::first_at(T0).0 + number), tag: number };
    let not_before = T0.plus_millis(delay_ms);
    let message = Message { id, tenant: TenantId(1), created_at: T0, not_before, spec, body: Bytes::new() };
    Step { message: Arc::new(message), origin: Origin(7), body_bytes: 10 }
}

#[test]
fn a_step_is_retried_like_a_message_and_only_its_run_hears_of_it() {
    let mut rig = Rig::new();
    let step = step(1, 0);
    let (ops, started) = rig.decide(std::slice::from_ref(&step), &[], T0);
    assert!(matches!(&ops[..], [Op::Insert { live, .. }] if live.is_step && live.body_bytes == 10));
    assert_eq!(started.len(), 1);
    let (end, ops) = rig.end(&step, 500, T0);
    let due = T0.plus_millis(1_000);
    assert_eq!(end, Some(StepEnd { retried: 0, next: Next::RetryAt(due) }));
    assert!(matches!(&ops[..], [Op::Update(live)] if live.due == due && live.retried == 1));
    rig.shard.wake(due, &mut rig.out);
    let (ops, started) = rig.taken();
    assert!(ops.is_empty() && started.len() == 1 && started[0].retried == 1, "{ops:?} {started:?}");
    let (end, ops) = rig.end(&step, 500, due);
    assert_eq!(end, Some(StepEnd { retried: 1, next: Next::DeadLetter }));
    assert!(matches!(&ops[..], [Op::Remove { id }] if *id == step.message.id), "no log and no dead letter: {ops:?}");
    assert_eq!((rig.shard.held(), rig.shard.in_flight()), (0, 0));
}

#[test]
fn what_waits_and_is_withdrawn_is_never_started() {
    let mut rig = Rig::new();
    let far = step(2, 10 * HORIZON_MS);
    let (soon, ready) = (step(1, 500), [step(3, 0), step(4, 0), step(5, 0)]);
    rig.decide(&[soon.clone(), far.clone()], &[], T0);
    let (_, started) = rig.decide(&ready, &[], T0);
    assert_eq!(started.len() as u32, CAPS.origin_in_flight_max, "the third waits for a place");
    let withdrawn = [soon, far, ready[2].clone()].map(|step| step.message.id);
    let (ops, _) = rig.decide(&[], &withdrawn, T0);
    let removed: Vec<MessageId> =
        ops.iter().filter_map(|op| if let Op::Remove { id } = op { Some(*id) } else { None }).collect();
    assert_eq!(removed, withdrawn);
    rig.end(&ready[0], 200, T0);
    rig.shard.wake(T0.plus_millis(1_000), &mut rig.out);
    assert!(rig.taken().1.is_empty());
    assert_eq!(rig.shard.in_flight(), 1);
}

#[test]
fn what_is_under_way_and_withdrawn_ends_without_a_retry_and_unheard() {
    let mut rig = Rig::new();
    let step = step(1, 0);
    rig.decide(std::slice::from_ref(&step), &[], T0);
    let (ops, _) = rig.decide(&[], &[step.message.id], T0);
    assert!(matches!(&ops[..], [Op::Update(live)] if live.cancel_requested));
    let (end, ops) = rig.end(&step, 500, T0);
    assert_eq!(end, None);
    assert!(matches!(&ops[..], [Op::Remove { .. }]), "{ops:?}");
}

#[test]
fn a_cancel_of_messages_passes_steps_by() {
    let mut rig = Rig::new();
    let (ops, _) = rig.decide(&[step(1, 500)], &[], T0);
    let Op::Insert { live, .. } = &ops[0] else { panic!("{ops:?}") };
    assert_eq!(rig.shard.cancel(&[*live], T0, &mut rig.out), []);
    assert!(rig.taken().0.is_empty());
}

#[test]
fn what_fits_is_started_soon_however_many_lanes_before_it_do_not_fit() {
    let mut rig = Rig::new();
    let to = |number, body_bytes| Step { origin: Origin(number), body_bytes, ..step(number, 0) };
    let large: Vec<Step> = (1..=300).map(|number| to(number, 60)).collect();
    assert_eq!(rig.decide(&large, &[], T0).1.len(), 1, "the first leaves 10 bytes to the others");
    let (mut now, mut started) = (T0, rig.decide(&[to(301, 5)], &[], T0).1);
    while started.is_empty() {
        now = rig.shard.next_wake();
        assert!(now.millis_since(T0) < 100, "nobody wakes it");
        rig.shard.wake(now, &mut rig.out);
        started = rig.taken().1;
    }
    assert_eq!(started[0].body_bytes, 5);
    assert!(now > T0, "there are more lanes than are looked at once");
}
