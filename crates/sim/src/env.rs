//! What everybody in the simulation shares: time, chance, the store, the receivers and the judge.

use crate::agenda::{Agenda, Event};
use crate::bug::Bug;
use crate::command::{Answer, Ended, RequestId};
use crate::endpoint::{self, Visit};
use crate::judge::Judge;
use crate::judge::start::Start;
use crate::node::Stop;
use crate::random::Random;
use crate::receiver::{self, Reception};
use crate::store::{CommitError, Store};
use crate::story::Story;
use crate::swarm::Swarm;
use posthaste_engine::message::{Live, Message};
use posthaste_engine::outcome::Verdict;
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// When a simulation begins, by a clock that is right. A full minute.
const BEGIN: Timestamp = Timestamp(1_780_315_200_000);
/// No seed has as many requests of others.
const FIRST_OWN_REQUEST: u64 = 1 << 32;
/// A clock that was set is noticed after at most this long.
pub(crate) const CLOCK_CHECK_MS: u64 = 5_000;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Env {
    /// Milliseconds since the beginning. Everybody's clock may differ; this one never goes back.
    pub now_ms: u64,
    pub random: Random,
    pub agenda: Agenda,
    pub store: Store,
    pub judge: Judge,
    pub story: Story,
    pub swarm: Swarm,
    pub bug: Option<Bug>,
    pub healed: bool,
    /// Until when each node cannot reach the store.
    pub cut_off_until_ms: Vec<u64>,
    /// Requests that nodes have made of themselves.
    own_requests: u64,
    /// Endpoints that wait for an answer.
    pub visits: BTreeMap<RequestId, Visit>,
}

impl Env {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, told: bool) -> Env {
        let mut random = Random::new(seed);
        let swarm = Swarm::draw(&mut random);
        let cut_off_until_ms = vec![0; swarm.nodes];
        Env {
            now_ms: 0,
            random,
            agenda: Agenda::default(),
            store: Store::default(),
            judge: Judge::new(swarm.settings, swarm.heeds_tenure),
            story: Story::new(told),
            swarm,
            bug,
            healed: false,
            cut_off_until_ms,
            own_requests: 0,
            visits: BTreeMap::new(),
        }
    }

    /// The time by the store's clock, which is right.
    pub(crate) fn store_now(&self) -> Timestamp {
        BEGIN.plus_millis(self.now_ms)
    }

    /// The time by a clock that is off by so much.
    pub(crate) fn clock(&self, offset_ms: i64) -> Timestamp {
        Timestamp(self.store_now().0.saturating_add_signed(offset_ms))
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(crate) fn tell(&mut self, about: Option<MessageId>, text: impl FnOnce() -> String) {
        self.story.tell(self.now_ms, about, text);
    }

    /// A request that a node makes of itself.
    pub(crate) fn own_request(&mut self) -> RequestId {
        self.own_requests += 1;
        RequestId(FIRST_OWN_REQUEST + self.own_requests)
    }

    /// So many times in ten thousand, as long as things may fail.
    pub(crate) fn chance(&mut self, share: u64) -> bool {
        share > 0 && !self.healed && self.random.below(10_000) < share
    }

    /// A moment between two steps of an owner: it may be its last.
    pub(crate) fn crash_point(&mut self, place: &'static str) -> Result<(), Stop> {
        if self.chance(self.swarm.faults.crash_points) {
            self.tell(None, || format!("the owner crashes {place}"));
            return Err(Stop::Crash);
        }
        Ok(())
    }

    /// Whether a node cannot reach the store, nor the store that node.
    pub(crate) fn is_cut_off(&self, node: usize) -> bool {
        self.now_ms < self.cut_off_until_ms[node]
    }

    /// The owner reads from the store, which may fail.
    pub(crate) fn read(&mut self, node: usize) -> Result<(), Stop> {
        if self.is_cut_off(node) {
            return Err(Stop::Store(CommitError::Unavailable));
        }
        if self.store.is_full || !self.chance(self.swarm.faults.refused_commits) {
            return Ok(());
        }
        Err(Stop::Store(CommitError::Unavailable))
    }

    /// An owner answers.
    pub(crate) fn answer(&mut self, answer: &Answer, epoch: u64) {
        self.story.note(answer.request.0);
        self.story.tell(self.now_ms, None, || format!("request {} is answered: {:?}", answer.request.0, answer.said));
        self.judge.answered(answer, epoch, self.now_ms, &self.store);
        if let Some(visit) = self.visits.remove(&answer.request) {
            let at_ms = self.now_ms + self.random.below(3);
            self.agenda.plan(at_ms, Event::Ask(Box::new(visit)));
        }
    }

    /// An owner starts an attempt.
    pub(crate) fn start(&mut self, start: &Start, live: Live, message: Arc<Message>) {
        let Start { node, incarnation, epoch, .. } = *start;
        self.story.note(live.id.tag);
        self.story.tell(self.now_ms, Some(live.id), || {
            format!("attempt {} starts on node {node}, epoch {epoch}", live.retried)
        });
        self.judge.started(start, &live, &message, self.now_ms, &self.store);
        if let Some(step) = message.spec.workflow.filter(|_| epoch == self.store.epoch()) {
            self.judge.sent(step, &live, &message, self.now_ms, &self.store);
        }
        let reception = receiver::receive(&mut self.random, &self.swarm.faults, self.healed, &message);
        let at_ms = self.now_ms + reception.takes_ms;
        if endpoint::is_for_endpoint(&message) {
            let is_answered = reception.outcome.verdict() == Verdict::Success;
            if reception.said_success {
                self.visit(start, live, &message, &reception);
            }
            if is_answered {
                return;
            }
        } else if reception.said_success {
            self.judge.said_success(epoch, live.id, live.retried);
        }
        self.story.tell(self.now_ms, Some(live.id), || reception.describe());
        let ended = Box::new(Ended { message, outcome: reception.outcome, sent: true, live, epoch });
        if self.chance(self.swarm.faults.doubled_outcomes * 10) {
            let ended = ended.clone();
            let late_ms = self.random.below(2_000);
            self.agenda.plan(at_ms + late_ms, Event::Ended { node, incarnation, ended });
        }
        self.agenda.plan(at_ms, Event::Ended { node, incarnation, ended });
    }

    /// A delivery of a run is on its way to its endpoint.
    fn visit(&mut self, start: &Start, live: Live, message: &Arc<Message>, reception: &Reception) {
        let Start { node, incarnation, epoch, .. } = *start;
        let random = &mut self.random;
        let mut fresh_id = || format!("child-{:x}", random.next_u64());
        let Some((deed, asks)) = endpoint::open(&self.swarm.programs, message, &mut fresh_id) else {
            return self.judge.blame("an endpoint can read what it gets", Some(live.id), self.now_ms, || {
                String::from_utf8_lossy(&message.body).into_owned()
            });
        };
        let Some(step) = message.spec.workflow else { return };
        let is_unheard = reception.outcome.verdict() != Verdict::Success;
        let outcome = reception.outcome.clone();
        let ended = Ended { message: message.clone(), outcome, sent: true, live, epoch };
        let visit = Visit { node, incarnation, run: step.run, deed, asks, is_unheard, ended };
        self.judge.shown(start, &visit, self.now_ms, &self.store);
        self.agenda.plan(self.now_ms + reception.takes_ms / 2, Event::Execute(Box::new(visit)));
    }
}
