//! Workflow runs in random histories. The engine decides, and both stores get the resulting changes, including some
//! that no engine would produce.

use super::{LABELS, NAMES, Pair};
use crate::run_support::*;
use crate::support::*;
use posthaste_engine::event::Op;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::{Delivery, DeliveryState};
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::{FailureCall, Invoker, Run, RunState, Trigger};
use posthaste_engine::workflow::{Attempt, Change, Notice, Outbox, Overrides, Waiter, Workflow};
use posthaste_store::{Order, ReadPool, RunFilter, Store};
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::workflow::Features;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::sync::Arc;

const EVENTS: [&str; 2] = ["x", "'"];

/// One step of an existing run, or a new run.
#[derive(Clone, Debug)]
pub(super) enum RunStep {
    Start { tenant: u32, name: usize, label: usize, unknown_client: bool, failure_call: bool },
    GoOn { which: Index, how: How },
}

#[derive(Clone, Debug)]
pub(super) enum How {
    Append {
        entries: u32,
        bytes: usize,
    },
    Answer {
        entry: Index,
        status: u16,
        again: bool,
    },
    Wait {
        event: usize,
    },
    Notify {
        event: usize,
    },
    Keep {
        event: usize,
    },
    Invoke {
        bytes: usize,
    },
    ChildEnds {
        which: Index,
    },
    Told {
        status: u16,
        again: bool,
    },
    TellAgain,
    Replace,
    Finish,
    Cancel,
    LeaveDlq,
    Resume,
    Restart,
    /// A message of the run ends, but the run is not notified.
    Withdraw {
        entry: Index,
    },
    /// An op that is impossible, or valid only by chance.
    AbsentEntry,
    OldWaiter {
        which: Index,
        comes: bool,
    },
    OtherTime,
}

pub(super) fn run_step() -> impl Strategy<Value = RunStep> {
    let start = (1..3_u32, 0..NAMES.len(), 0..LABELS.len(), any::<bool>(), any::<bool>());
    let event = || 0..EVENTS.len();
    let how = prop_oneof![
        4 => (1..4_u32, select(vec![0, 3, 40, 20_000])).prop_map(|(entries, bytes)| How::Append { entries, bytes }),
        5 => (any::<Index>(), select(vec![200, 200, 500]), any::<bool>())
            .prop_map(|(entry, status, again)| How::Answer { entry, status, again }),
        2 => event().prop_map(|event| How::Wait { event }),
        2 => event().prop_map(|event| How::Notify { event }),
        2 => event().prop_map(|event| How::Keep { event }),
        2 => select(vec![0, 30, 20_000]).prop_map(|bytes| How::Invoke { bytes }),
        2 => any::<Index>().prop_map(|which| How::ChildEnds { which }),
        1 => (select(vec![200, 500]), any::<bool>()).prop_map(|(status, again)| How::Told { status, again }),
        1 => Just(How::TellAgain),
        1 => Just(How::Replace),
        2 => Just(How::Finish),
        1 => Just(How::Cancel),
        2 => Just(How::LeaveDlq),
        1 => Just(How::Resume),
        1 => Just(How::Restart),
        1 => any::<Index>().prop_map(|entry| How::Withdraw { entry }),
        1 => Just(How::AbsentEntry),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(which, comes)| How::OldWaiter { which, comes }),
        1 => Just(How::OtherTime),
    ];
    prop_oneof![
        1 => start.prop_map(|(tenant, name, label, unknown_client, failure_call)| {
            RunStep::Start { tenant, name, label, unknown_client, failure_call }
        }),
        4 => (any::<Index>(), how).prop_map(|(which, how)| RunStep::GoOn { which, how }),
    ]
}

/// A filter, before the runs of the history are known.
#[derive(Clone, Debug, Default)]
pub(super) struct AskRuns {
    names: Vec<usize>,
    labels: Vec<usize>,
    states: Vec<RunState>,
    statuses: Vec<u16>,
    message: Option<(Index, Index)>,
    created: Option<Index>,
    from: Option<u64>,
    to: Option<u64>,
}

pub(super) fn ask_runs() -> impl Strategy<Value = AskRuns> {
    let rarely = 0.25;
    let time = || prop::option::weighted(rarely, select(vec![0, 1, 3 * HOUR, DAY, 10 * DAY]));
    let states = vec![RunState::Started, RunState::Success, RunState::Failed, RunState::Canceled];
    (
        prop::option::weighted(rarely, prop::collection::vec(0..NAMES.len(), 1..3)),
        prop::option::weighted(rarely, prop::collection::vec(0..LABELS.len(), 1..3)),
        prop::option::weighted(rarely, prop::collection::vec(select(states), 1..3)),
        prop::option::weighted(rarely, Just(vec![500])),
        prop::option::weighted(rarely, any::<(Index, Index)>()),
        prop::option::weighted(rarely, any::<Index>()),
        time(),
        time(),
    )
        .prop_map(|(names, labels, states, statuses, message, created, from, to)| AskRuns {
            names: names.unwrap_or_default(),
            labels: labels.unwrap_or_default(),
            states: states.unwrap_or_default(),
            statuses: statuses.unwrap_or_default(),
            message,
            created,
            from,
            to,
        })
}

impl Pair {
    pub(super) fn apply_to_runs(&mut self, step: &RunStep) {
        match step {
            RunStep::Start { tenant, name, label, unknown_client, failure_call } => {
                let (tenant, name) = (TenantId(*tenant), NAMES[*name]);
                let newest = self.model.find_run(tenant, name, None, ReadPool::Core).unwrap();
                let newest = newest.and_then(|no| self.model.workflow(tenant, no).unwrap());
                let mut created_at = self.now;
                if let Some(Workflow { run, .. }) = newest {
                    if run.state == RunState::Started {
                        return;
                    }
                    created_at = created_at.max(run.created_at.plus_millis(1));
                }
                let mut new = new_run(name, created_at);
                (new.tenant, new.config.labels) = (tenant, vec![LABELS[*label].into()]);
                if *unknown_client {
                    new.config.trigger = Trigger::UnknownClient;
                }
                if *failure_call {
                    new.config.failure = Some(FailureCall { url: new.url.clone(), ..FailureCall::default() });
                }
                let (run, ops) = self.decide(|out| Workflow::start(new, out));
                assert!(self.commit(&ops));
                self.runs.push(run);
            }
            RunStep::GoOn { which, how } if !self.runs.is_empty() => {
                let which = which.index(self.runs.len());
                self.go_on_with_run(which, how);
            }
            RunStep::GoOn { .. } => {}
        }
    }

    fn go_on_with_run(&mut self, which: usize, how: &How) {
        let (mut run, now) = (self.runs[which].clone(), self.now);
        let ops = match how {
            How::Append { entries, bytes } => {
                let first = run.entries.len() as u32;
                let text = "x".repeat(*bytes);
                let mut entries: Vec<_> = (first..first + entries).map(|number| step(number, &text)).collect();
                if *bytes == 3 {
                    entries.push(call(first));
                }
                // Rejected if the run has ended: then there is nothing to write.
                self.decide(|out| run.append(entries, &LIMITS, out).is_ok()).1
            }
            How::Answer { entry, status, again } => {
                let index = entry.index(run.entries.len());
                match self.answer(&mut run, index, *status, *again) {
                    Some(ops) => ops,
                    None => return,
                }
            }
            How::Replace => {
                let replace = |out: &mut Outbox<'_>| {
                    run.restart_by_client("new".into(), "text/plain".into(), Vec::new(), Features::default(), out)
                };
                self.decide(replace).1
            }
            How::Finish => self.decide(|out| run.finish(Some(format!("{} entries", run.entries.len())), out)).1,
            How::Cancel => self.decide(|out| run.cancel(out)).1,
            How::LeaveDlq => self.decide(|out| run.leave_dlq(out)).1,
            How::Resume | How::Restart => {
                if run.run.state != RunState::Failed {
                    return;
                }
                // The run restarts from its stored data, which may already have been dropped.
                let record = self.both(|store| store.run_record(run.run.tenant, run.run.no, ReadPool::Core)).unwrap();
                let Some(failed) = record else { return };
                self.last_name += 1;
                let (id, overrides) = (format!("again {}", self.last_name), Overrides::default());
                let (again, ops) = self.decide(|out| match how {
                    How::Resume => failed.resumed(id, now, overrides, out),
                    _ => failed.restarted(id, now, overrides, out),
                });
                assert!(self.commit(&ops));
                self.runs.push(again);
                return;
            }
            How::Withdraw { entry } => {
                let id = run.entries[entry.index(run.entries.len())].id;
                vec![Op::Remove { id }]
            }
            How::AbsentEntry => {
                let (run, index) = (run.run.no, run.entries.len() as u32);
                vec![Op::Workflow(Change::Delivery { run, index, delivery: Delivery::due_at(now) })]
            }
            How::OldWaiter { which, comes } => {
                if self.waiters.is_empty() {
                    return;
                }
                let waiter = which.get(&self.waiters).clone();
                vec![Op::Workflow(if *comes { Change::Waiter(waiter) } else { Change::NoWaiter(waiter) })]
            }
            How::OtherTime => {
                let other = Run { created_at: run.run.created_at.plus_millis(1), ..run.run.clone() };
                // After a run was dropped, another one may have its position. It has no entries, so it does not exist
                // either.
                if self.model.workflow(run.run.tenant, run.run.no).unwrap().is_none() {
                    return;
                }
                vec![Op::Workflow(Change::Run(Arc::new(other)))]
            }
            other => self.change_notes(&mut run, other),
        };
        if !ops.is_empty() && self.commit(&ops) {
            self.runs[which] = run;
        }
    }

    /// Adds a note to a run, or removes one.
    fn change_notes(&mut self, run: &mut Workflow, how: &How) -> Vec<Op> {
        match how {
            How::Wait { event } => {
                let number = (run.entries.len() + run.waits.len()) as u32;
                let (wait, no) = (wait_for(EVENTS[*event], number), run.run.no);
                // Also for a run that was dropped, where there is nothing to read.
                let early = run.early.iter().find(|early| early.event == wait.event);
                let key = early.map(|early| NoteKey { kind: NoteKind::Early, n: early.n });
                let body = key.map(|key| self.both(|store| store.note_body(no, key)));
                let kept = |_| body.clone().unwrap_or(Err("nothing was kept"));
                self.decide(|out| run.wait(wait, kept, &LIMITS, out).is_ok()).1
            }
            How::Notify { event } => self.decide(|out| run.notify(EVENTS[*event], b"data", out)).1,
            How::Keep { event } => {
                let data = format!("{} data", run.early.len());
                self.decide(|out| run.notify_or_keep(EVENTS[*event], data.as_bytes(), &LIMITS, out).is_ok()).1
            }
            How::Invoke { bytes } => {
                let number = (run.entries.len() + run.invokes.len()) as u32;
                let given = "x".repeat(*bytes).into();
                self.decide(|out| run.invoke(invoke(number), given, &LIMITS, out).is_ok()).1
            }
            How::ChildEnds { which } if !run.invokes.is_empty() => {
                let step = which.get(&run.invokes).step.clone();
                let (run_id, url, headers, terms) = Default::default();
                let to = Invoker { run_id, created_at: None, url, step, headers, terms };
                let notice = Notice { tenant: run.run.tenant, to, out: "out".into() };
                self.decide(|out| run.invoked_has_ended(&notice, out)).1
            }
            How::Told { status, again } => {
                let next = if *again { Next::RetryAt(self.now) } else { Next::DeadLetter };
                let outcome = outcome(*status);
                let attempt = Attempt { outcome: &outcome, retried: 0, next, sent: b"" };
                self.decide(|out| run.failure_told(attempt, out)).1
            }
            How::TellAgain => self.decide(|out| run.tell_again(out)).1,
            _ => Vec::new(),
        }
    }

    /// Ends an attempt; `None` if none was in flight.
    fn answer(&mut self, run: &mut Workflow, index: usize, status: u16, again: bool) -> Option<Vec<Op>> {
        let entry = &run.entries[index];
        let (id, is_pending) = (entry.id, entry.delivery.state == DeliveryState::Pending);
        if !is_pending || !self.is_live(run.run.tenant, id) {
            return None;
        }
        let next = match (status, again) {
            (200, _) => Next::Done,
            (_, true) => Next::RetryAt(self.now.plus_millis(HOUR)),
            (_, false) => Next::DeadLetter,
        };
        let outcome = outcome(status);
        let attempt = Attempt { outcome: &outcome, retried: 0, next, sent: b"sent" };
        let ((), mut ops) = self.decide(|out| run.attempted(index as u32, attempt, out));
        let is_withdrawn = ops.iter().any(|op| matches!(op, Op::Remove { id: other } if *other == id));
        if !matches!(next, Next::RetryAt(_)) && !is_withdrawn {
            ops.push(Op::Remove { id });
        }
        Some(ops)
    }

    /// Runs a decision of the engine, and withdraws those of its messages that are live.
    fn decide<T>(&mut self, decide: impl FnOnce(&mut Outbox<'_>) -> T) -> (T, Vec<Op>) {
        let (now, last) = (self.now, &mut self.last);
        let mut next_id = || {
            *last = Seq::next(*last, now);
            MessageId { seq: *last, tag: last.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
        };
        let mut out = Outbox::new(now, &mut next_id);
        let decided = decide(&mut out);
        let tenant = out.messages.first().map(|message| message.tenant);
        self.messages.extend(out.messages.iter().cloned());
        self.waiters.extend(out.changes.iter().filter_map(|change| match change {
            Change::Waiter(waiter) => Some(Waiter::clone(waiter)),
            _ => None,
        }));
        let mut ops = ops_of(out);
        let tenants = tenant.map_or(vec![TenantId(1), TenantId(2)], |tenant| vec![tenant]);
        ops.retain(|op| match op {
            Op::Remove { id } => tenants.iter().any(|tenant| self.is_live(*tenant, *id)),
            _ => true,
        });
        (decided, ops)
    }

    fn is_live(&self, tenant: TenantId, id: MessageId) -> bool {
        !self.model.find_live(tenant, &[id]).unwrap().is_empty()
    }

    pub(super) fn ask_for_runs(&self, ask: &AskRuns, count: usize, order: Order) {
        let pick = |which: &Index| (!self.runs.is_empty()).then(|| which.get(&self.runs));
        let message = |(run, entry): &(Index, Index)| Some(entry.get(&pick(run)?.entries).id);
        let filter = RunFilter {
            ids: ask.names.iter().map(|name| NAMES[*name].to_owned()).collect(),
            labels: ask.labels.iter().map(|label| LABELS[*label].to_owned()).collect(),
            states: ask.states.clone(),
            response_statuses: ask.statuses.clone(),
            messages: ask.message.iter().filter_map(message).collect(),
            created_at: ask.created.as_ref().and_then(pick).map(|run| run.run.created_at),
            from: ask.from.map(|back| self.now.minus_millis(back)),
            to: ask.to.map(|back| self.now.minus_millis(back)),
            ..RunFilter::default()
        };
        for tenant in [1, 2].map(TenantId) {
            self.both(|store| store.match_runs(tenant, &filter, Seq::MIN, count)).unwrap();
            self.both(|store| Ok(walk(count, order, |page| store.list_runs(tenant, &filter, page).unwrap()))).unwrap();
            self.both(|store| Ok(walk(count, order, |page| store.list_failed_runs(tenant, &filter, page).unwrap())))
                .unwrap();
        }
    }

    pub(super) fn check_runs(&self) {
        for Workflow { run, .. } in &self.runs {
            self.both(|store| store.workflow(run.tenant, run.no)).unwrap();
            self.both(|store| store.run_record(run.tenant, run.no, ReadPool::Queries)).unwrap();
            self.both(|store| store.run_entries(run.tenant, run.no, ReadPool::Queries)).unwrap();
            self.both(|store| store.find_run(run.tenant, &run.id, None, ReadPool::Core)).unwrap();
            self.both(|store| store.find_run(run.tenant, &run.id, Some(run.created_at), ReadPool::Core)).unwrap();
            if let Some(failure) = &run.failure {
                self.both(|store| store.failed_run(run.tenant, failure.dlq_id)).unwrap();
                self.both(|store| store.find_failed_run(run.tenant, failure.dlq_id, ReadPool::Core)).unwrap();
            }
        }
        for tenant in [1, 2].map(TenantId) {
            for event in EVENTS {
                self.both(|store| store.waiters(tenant, event, 2)).unwrap();
                self.both(|store| store.waits(tenant, event, Seq::MIN, 3)).unwrap();
            }
        }
    }

    /// The queries of the core at every step. None of them applies pending changes to the database.
    pub(super) fn peek_at_runs(&self, which: &Index) {
        if self.runs.is_empty() {
            return;
        }
        let Run { tenant, no, id, .. } = &which.get(&self.runs).run;
        self.both(|store| store.workflow(*tenant, *no)).unwrap();
        self.both(|store| store.run_record(*tenant, *no, ReadPool::Queries)).unwrap();
        self.both(|store| store.find_run(*tenant, id, None, ReadPool::Core)).unwrap();
    }
}
