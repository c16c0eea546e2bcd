//! Which runs of workflows a caller means.
//!
//! One meaning for every backend, as for messages: [`RunFilter::matches`] decides, SQL only narrows.

use super::filter::matches_location;
use posthaste_engine::workflow::Workflow;
use posthaste_engine::workflow::run::{FailureCallState, Invoke, Run, RunState, Wait};
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;

/// OR within a field, AND between fields; an empty list does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Runs of these names.
    pub ids: Vec<String>,
    /// These instances: name and time of creation.
    pub instances: Vec<(String, Timestamp)>,
    /// Instances of this time of creation.
    pub created_at: Option<Timestamp>,
    /// Runs that have one of these messages.
    pub messages: Vec<MessageId>,
    /// Where its steps are executed.
    pub urls: Vec<UrlFilter>,
    /// Host of that, with or without its port.
    pub hosts: Vec<String>,
    /// Path of that, without its query.
    pub paths: Vec<String>,
    /// How it stands.
    pub states: Vec<RunState>,
    /// Any label of the run.
    pub labels: Vec<String>,
    /// Its flow-control key.
    pub flow_keys: Vec<String>,
    /// Address of whoever triggered it.
    pub caller_ips: Vec<String>,
    /// Status of the answer that made it fail; 0 when there was none. Failed runs only.
    pub response_statuses: Vec<u16>,
    /// How telling of its failure stands. Failed runs only.
    pub failure_calls: Vec<FailureCallState>,
    /// Not before this time: of creation, or in the DLQ of failure.
    pub from: Option<Timestamp>,
    /// Not after this time.
    pub to: Option<Timestamp>,
    /// Asks for what no run can have: nothing matches.
    pub nothing: bool,
}

/// A URL, compared as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlFilter {
    /// This one.
    Exact(String),
    /// Those that begin like this.
    Prefix(String),
}

impl UrlFilter {
    fn matches(&self, url: &str) -> bool {
        match self {
            UrlFilter::Exact(wanted) => url == wanted,
            UrlFilter::Prefix(start) => url.starts_with(start.as_str()),
        }
    }
}

impl RunFilter {
    /// The asked range of time, both ends included.
    pub(super) fn dates(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.from, self.to)
    }

    /// Whether `at`, the time that dates compare with, lies in the asked range.
    pub fn matches_time(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at <= to)
    }

    /// Whether the run is meant, but for dates and messages.
    pub fn matches(&self, run: &Run) -> bool {
        let any = |wanted: &[String], found: &dyn Fn(&str) -> bool| {
            wanted.is_empty() || wanted.iter().any(|wanted| found(wanted))
        };
        let failure = run.failure.as_deref();
        let status = failure.map(|failure| failure.status);
        let call = failure.and_then(|failure| failure.call.as_ref()).map(|call| call.state);
        !self.nothing
            && any(&self.ids, &|id| run.id == id)
            && (self.instances.is_empty()
                || self.instances.iter().any(|(id, at)| *id == run.id && *at == run.created_at))
            && self.created_at.is_none_or(|at| run.created_at == at)
            && (self.urls.is_empty() || self.urls.iter().any(|url| url.matches(&run.url)))
            && matches_location(&self.hosts, &self.paths, &run.url)
            && (self.states.is_empty() || self.states.contains(&run.state))
            && any(&self.labels, &|label| run.config.labels.iter().any(|known| known == label))
            && any(&self.flow_keys, &|key| run.config.flow.as_ref().is_some_and(|flow| flow.key == key))
            && any(&self.caller_ips, &|ip| run.config.caller_ip == ip)
            && (self.response_statuses.is_empty()
                || status.is_some_and(|status| self.response_statuses.contains(&status)))
            && (self.failure_calls.is_empty() || call.is_some_and(|call| self.failure_calls.contains(&call)))
    }

    /// Whether the run has one of the messages asked for.
    pub fn matches_messages(&self, workflow: &Workflow) -> bool {
        self.messages.is_empty()
            || workflow.entries.iter().any(|entry| self.messages.contains(&entry.id))
            || self.matches_messages_of(&workflow.run, &workflow.waits, &workflow.invokes)
    }

    /// The same for those that are no entries: of waits and invokes, and of the call about its failure.
    pub(super) fn matches_messages_of(&self, run: &Run, waits: &[Wait], invokes: &[Invoke]) -> bool {
        let waits = waits.iter().map(|wait| wait.timer);
        let invokes = invokes.iter().filter_map(|invoke| invoke.id);
        let call = run.failure.as_deref().and_then(|failure| failure.call.as_ref()).map(|call| call.id);
        waits.chain(invokes).chain(call).any(|id| self.messages.contains(&id))
    }
}
