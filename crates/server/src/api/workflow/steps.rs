//! The steps of a run as its log groups them: what was done, what goes on, and what is tried now.
//!
//! Everything is derived from the run and its entries. Start at [`groups`].

pub(super) use posthaste_api_types::workflow::StepState;
use posthaste_engine::workflow::Workflow;
use posthaste_engine::workflow::entry::{Delivery, DeliveryState, Entry};
use posthaste_engine::workflow::run::{Invoke, Run, RunState, Wait, number_of};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::CallType;
use std::collections::HashMap;

/// Steps that belong together.
pub(super) enum Group<'a> {
    /// One step.
    Sequential(Item<'a>),
    /// Steps that run at the same time, of which there will be `size`.
    Parallel { size: u32, branches: Vec<Item<'a>> },
    /// Deliveries that execute what comes next; which step that is, only the endpoint knows.
    Next(Vec<&'a Entry>),
}

impl<'a> Group<'a> {
    /// The name on the wire.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Group::Sequential(_) => "sequential",
            Group::Parallel { .. } => "parallel",
            Group::Next(_) => "next",
        }
    }

    /// Its steps, as far as they are known.
    pub(super) fn items(&self) -> &[Item<'a>] {
        match self {
            Group::Sequential(item) => std::slice::from_ref(item),
            Group::Parallel { branches, .. } => branches,
            Group::Next(_) => &[],
        }
    }

    fn items_mut(&mut self) -> &mut [Item<'a>] {
        match self {
            Group::Sequential(item) => std::slice::from_mut(item),
            Group::Parallel { branches, .. } => branches,
            Group::Next(_) => &mut [],
        }
    }
}

/// One step: all that belongs to it.
#[derive(Default)]
pub(super) struct Item<'a> {
    /// Its number within the function; the first entry has none.
    pub(super) number: Option<u32>,
    /// What it brought.
    pub(super) result: Option<&'a Entry>,
    /// The entry that announced it as a branch.
    pub(super) plan: Option<&'a Entry>,
    /// The call that it makes.
    pub(super) call: Option<&'a Entry>,
    /// The delivery of what came of that call.
    pub(super) answer: Option<&'a Entry>,
    /// What it waits for.
    pub(super) wait: Option<&'a Wait>,
    /// The run that it invoked, if its end is not in the list.
    pub(super) invoke: Option<&'a Invoke>,
    /// The delivery that has executed it: the one that announced it, or else that of the step before.
    pub(super) executed_by: Option<&'a Entry>,
}

/// How a step or delivery stands.
pub(super) struct Standing<'a> {
    pub(super) state: StepState,
    /// The delivery whose errors tell why.
    pub(super) trouble: Option<&'a Entry>,
    /// When something will be tried for it.
    pub(super) due: Option<Timestamp>,
}

impl<'a> Standing<'a> {
    fn plain(state: StepState) -> Standing<'a> {
        Standing { state, trouble: None, due: None }
    }

    /// How a delivery stands that has not brought what it is for.
    pub(super) fn of_delivery(entry: &'a Entry, now: Timestamp) -> Standing<'a> {
        let Delivery { state, due, attempts, .. } = entry.delivery;
        match state {
            DeliveryState::Pending if attempts > 0 => {
                Standing { state: StepState::Retry, trouble: Some(entry), due: Some(due) }
            }
            DeliveryState::Pending => {
                Standing { due: Some(due).filter(|due| *due > now), ..Standing::plain(StepState::Progress) }
            }
            DeliveryState::Failed => Standing { trouble: Some(entry), ..Standing::plain(StepState::Failed) },
            DeliveryState::Canceled => Standing { trouble: Some(entry), ..Standing::plain(StepState::Canceled) },
            DeliveryState::Done => Standing::plain(StepState::Progress),
        }
    }
}

impl<'a> Item<'a> {
    /// The deliveries that work for it, newest first.
    pub(super) fn deliveries(&self) -> impl Iterator<Item = &'a Entry> {
        [self.answer, self.call, self.plan].into_iter().flatten()
    }

    /// The delivery whose attempts are those of the step.
    pub(super) fn work(&self) -> Option<&'a Entry> {
        self.call.or(self.executed_by)
    }

    /// What API answers must hide of the run that it invoked.
    pub(super) fn invoked_redact(&self) -> Option<&'a RedactFields> {
        self.invoke.map(|invoke| &invoke.redact)
    }

    /// What answers about this step must hide, because anything that belongs to it asks for that.
    pub(super) fn redact(&self) -> RedactFields {
        let entries = [self.result, self.plan, self.call, self.answer].into_iter().flatten();
        let entries = entries.map(|entry| &entry.terms.redact);
        let (wait, invoke) = (self.wait.map(|wait| &wait.terms), self.invoke.map(|invoke| &invoke.terms));
        let asked = wait.into_iter().chain(invoke).map(|terms| &terms.redact);
        entries.chain(asked).fold(RedactFields::default(), |all, one| all.union(one))
    }

    /// When something was begun that no entry stands for.
    pub(super) fn started(&self) -> Option<Timestamp> {
        self.wait.map(Wait::since).or(self.invoke.map(|invoke| invoke.created_at))
    }

    /// The delivery before it that led to it.
    fn predecessor(&self, entries: &'a [Entry]) -> Option<&'a Entry> {
        let (before, since) = match (self.call.or(self.result), self.started()) {
            (Some(first), _) => (&entries[..first.index as usize], Timestamp::MAX),
            (None, Some(since)) => (entries, since),
            (None, None) => return None,
        };
        let leads_on = |entry: &&Entry| entry.index == 0 || entry.is_result();
        before.iter().rev().filter(leads_on).find(|entry| entry.terms.accepted_at <= since)
    }

    /// How it stands.
    pub(super) fn standing(&self, run: &Run, now: Timestamp) -> Standing<'a> {
        if let Some(failed) = self.deliveries().find(|entry| entry.delivery.state == DeliveryState::Failed) {
            return Standing::of_delivery(failed, now);
        }
        if let Some(result) = self.result {
            return match sleep(result, run, now) {
                Some(Sleep::Until(due)) => Standing { due: Some(due), ..Standing::plain(StepState::Progress) },
                Some(Sleep::Canceled) => Standing::plain(StepState::Canceled),
                None => Standing::plain(StepState::Success),
            };
        }
        match (self.invoke, run.state) {
            (Some(invoke), _) if invoke.has_out => Standing::plain(StepState::Success),
            (_, RunState::Started) => self
                .deliveries()
                .next()
                .map_or(Standing::plain(StepState::Progress), |entry| Standing::of_delivery(entry, now)),
            // It goes on without the run that invoked it.
            (Some(_), RunState::Success | RunState::Failed) => Standing::plain(StepState::Progress),
            (_, RunState::Success | RunState::Failed | RunState::Canceled) => Standing::plain(StepState::Canceled),
        }
    }
}

/// A step that is over when its delivery is due.
pub(super) enum Sleep {
    /// It is not over yet.
    Until(Timestamp),
    /// The run ended before.
    Canceled,
}

/// Whether the step behind an entry only waits for time to pass.
pub(super) fn sleep(entry: &Entry, run: &Run, now: Timestamp) -> Option<Sleep> {
    let Delivery { state, due, attempts, .. } = entry.delivery;
    if entry.index == 0 || attempts > 0 {
        return None;
    }
    match state {
        DeliveryState::Pending if due > now => Some(Sleep::Until(due)),
        DeliveryState::Canceled if run.ended_at.is_some_and(|ended_at| due > ended_at) => Some(Sleep::Canceled),
        _ => None,
    }
}

/// The log of a run.
pub(super) fn groups(workflow: &Workflow, now: Timestamp) -> Vec<Group<'_>> {
    let mut grouping = Grouping::default();
    for entry in &workflow.entries {
        grouping.take(entry);
    }
    for wait in &workflow.waits {
        grouping.item(number_of(&wait.step)).wait = Some(wait);
    }
    for invoke in &workflow.invokes {
        grouping.item(number_of(&invoke.step)).invoke = Some(invoke);
    }
    for item in grouping.groups.iter_mut().flat_map(Group::items_mut) {
        item.executed_by = item.plan.or_else(|| item.predecessor(&workflow.entries));
    }
    let next = grouping.next(workflow, now);
    if !next.is_empty() {
        grouping.groups.push(Group::Next(next));
    }
    grouping.groups
}

/// The header that names the step which waits for a call.
const STEP_ID: &str = "Upstash-Workflow-Stepid";

#[derive(Default)]
struct Grouping<'a> {
    groups: Vec<Group<'a>>,
    /// Where the step of a number is: in which group, and where in that.
    places: HashMap<u32, (usize, usize)>,
    /// Entries whose deliveries no item stands for, by their index.
    others: Vec<u32>,
}

impl<'a> Grouping<'a> {
    fn take(&mut self, entry: &'a Entry) {
        match &entry.terms.call_type {
            _ if entry.index == 0 => {
                self.others.push(entry.index);
                self.groups.push(Group::Sequential(Item { result: Some(entry), ..Item::default() }));
            }
            CallType::Step => match entry.gist.info.target {
                Some(target) => self.plan(entry, target),
                None => self.result(entry),
            },
            CallType::ToCallback => {
                let number = entry.terms.call.as_ref().map_or(0, |call| call.step);
                self.item(number).call.get_or_insert(entry);
            }
            CallType::FromCallback => {
                let named = entry.terms.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(STEP_ID));
                let number = named.and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
                self.item(number).answer.get_or_insert(entry);
            }
            CallType::Other(_) => self.others.push(entry.index),
        }
    }

    /// A branch is announced: of the group that is still incomplete, or of a new one.
    fn plan(&mut self, entry: &'a Entry, target: u32) {
        if self.places.contains_key(&target) {
            self.others.push(entry.index);
            return;
        }
        let size = entry.gist.info.concurrent;
        let is_open = match self.groups.last() {
            Some(Group::Parallel { size: known, branches }) => *known == size && branches.len() < size as usize,
            _ => false,
        };
        if !is_open {
            self.groups.push(Group::Parallel { size, branches: Vec::new() });
        }
        let group = self.groups.len() - 1;
        if let Group::Parallel { branches, .. } = &mut self.groups[group] {
            self.places.insert(target, (group, branches.len()));
            branches.push(Item { number: Some(target), plan: Some(entry), ..Item::default() });
        }
    }

    /// A step has brought something. Only the first result counts, for clients as well.
    fn result(&mut self, entry: &'a Entry) {
        self.others.push(entry.index);
        match entry.gist.info.id {
            0 => self.groups.push(Group::Sequential(Item { result: Some(entry), ..Item::default() })),
            number => drop(self.item(number).result.get_or_insert(entry)),
        }
    }

    /// The step of this number: one that is known, or one that stands alone.
    fn item(&mut self, number: u32) -> &mut Item<'a> {
        let (group, place) = *self.places.entry(number).or_insert_with(|| {
            self.groups.push(Group::Sequential(Item { number: Some(number), ..Item::default() }));
            (self.groups.len() - 1, 0)
        });
        &mut self.groups[group].items_mut()[place]
    }

    /// Deliveries that fail, and the newest one, if it is not answered and has not led to anything yet.
    fn next(&self, workflow: &'a Workflow, now: Timestamp) -> Vec<&'a Entry> {
        let run = &workflow.run;
        if run.state == RunState::Success {
            return Vec::new();
        }
        let is_next = |entry: &&Entry| match entry.delivery.state {
            DeliveryState::Failed => true,
            DeliveryState::Pending if entry.delivery.attempts > 0 => true,
            DeliveryState::Pending | DeliveryState::Canceled => {
                self.is_at_the_end(entry) && sleep(entry, run, now).is_none()
            }
            DeliveryState::Done => false,
        };
        self.others.iter().map(|index| &workflow.entries[*index as usize]).filter(is_next).collect()
    }

    /// The last group is complete, and this is its newest result.
    fn is_at_the_end(&self, entry: &Entry) -> bool {
        let Some(last) = self.groups.last() else { return false };
        let size = match last {
            Group::Parallel { size, .. } => *size as usize,
            Group::Sequential(_) | Group::Next(_) => 1,
        };
        let newest = last.items().iter().filter_map(|item| item.result).map(|result| result.index).max();
        let results = last.items().iter().filter(|item| item.result.is_some()).count();
        results >= size && newest == Some(entry.index)
    }
}
