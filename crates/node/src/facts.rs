//! What commands must know of the store, and what the store has said.
//!
//! Commands say what they want to know before they decide; the driver reads for all commands of a round at once. A command that
//! is about stored rows needs the truth: nothing that was decided before may be uncommitted when its facts are read and used.

use posthaste_engine::message::{DedupKey, Live};
use posthaste_engine::schedule::Schedule;
use posthaste_engine::url_group::UrlGroup;
use posthaste_engine::workflow::StepRef;
use posthaste_wire::id::{DlqId, MessageId, TenantId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What must be read, of each kind at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The messages that these keys stand for.
    pub duplicates: Vec<(TenantId, DedupKey)>,
    /// The live rows of these messages, if they belong to the tenant.
    pub live: Vec<(TenantId, MessageId)>,
    /// What these messages are for their runs, if they are of runs and live.
    pub steps: Vec<(TenantId, MessageId)>,
    /// Which of these dead letters exist.
    pub dead_letters: Vec<(TenantId, DlqId)>,
    /// These schedules, without their bodies.
    pub schedules: Vec<(TenantId, String)>,
    /// Schedules whose time has come, with their bodies.
    pub due: DueSchedules,
    /// These URL groups.
    pub url_groups: Vec<(TenantId, String)>,
}

/// Schedules that are about to fire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSchedules {
    /// In the order in which they fire.
    pub schedules: Vec<(TenantId, Arc<str>)>,
    /// No further one is read after this many bytes of bodies.
    pub bytes_max: usize,
}

impl Wanted {
    /// Whether nothing must be read.
    pub fn is_empty(&self) -> bool {
        let Wanted { duplicates, live, steps, dead_letters, schedules, due, url_groups } = self;
        duplicates.is_empty()
            && live.is_empty()
            && steps.is_empty()
            && dead_letters.is_empty()
            && schedules.is_empty()
            && due.schedules.is_empty()
            && url_groups.is_empty()
    }

    pub(crate) fn merge(&mut self, other: Wanted) {
        self.duplicates.extend(other.duplicates);
        self.live.extend(other.live);
        self.steps.extend(other.steps);
        self.dead_letters.extend(other.dead_letters);
        self.schedules.extend(other.schedules);
        self.due.schedules.extend(other.due.schedules);
        self.due.bytes_max = self.due.bytes_max.max(other.due.bytes_max);
        self.url_groups.extend(other.url_groups);
    }
}

/// What was read. Something that is not in here does not exist.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The message that each key stands for.
    pub duplicates: HashMap<(TenantId, DedupKey), MessageId>,
    /// Live rows.
    pub live: HashMap<(TenantId, MessageId), Live>,
    /// What messages are for their runs.
    pub steps: HashMap<MessageId, StepRef>,
    /// Dead letters.
    pub dead_letters: HashSet<(TenantId, DlqId)>,
    /// Schedules without their bodies, by their ids.
    pub schedules: HashMap<TenantId, HashMap<String, Schedule>>,
    /// Schedules with their bodies, in the order asked, as far as they were read; `None` for one that does not exist.
    pub due: Vec<Option<Schedule>>,
    /// URL groups, by their names.
    pub url_groups: HashMap<TenantId, HashMap<String, UrlGroup>>,
}
