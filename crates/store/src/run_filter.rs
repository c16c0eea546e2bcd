//! Filters that select workflow runs.
//!
//! Filters mean the same for all backends: [`RunFilter::matches`] decides, and SQL only narrows the candidates.

use super::filter::matches_location;
use posthaste_engine::workflow::Workflow;
use posthaste_engine::workflow::run::{FailureCallState, Invoke, Run, RunState, Wait};
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;

/// OR within a field, AND between fields; an empty list does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Names of runs.
    pub ids: Vec<String>,
    /// Instances: name and time of creation.
    pub instances: Vec<(String, Timestamp)>,
    /// Time of creation.
    pub created_at: Option<Timestamp>,
    /// Ids of messages of the run.
    pub messages: Vec<MessageId>,
    /// URL of its endpoint.
    pub urls: Vec<UrlFilter>,
    /// Host of that URL, with or without its port.
    pub hosts: Vec<String>,
    /// Path of that URL, without its query.
    pub paths: Vec<String>,
    /// State of the run.
    pub states: Vec<RunState>,
    /// Any label of the run.
    pub labels: Vec<String>,
    /// Its flow-control key.
    pub flow_keys: Vec<String>,
    /// Address of the caller that triggered it.
    pub caller_ips: Vec<String>,
    /// Address of the caller that triggered it.
    pub response_statuses: Vec<u16>,
    /// Status of the response that made the run fail; 0 if there was none. Failed runs only.
    pub failure_calls: Vec<FailureCallState>,
    /// State of the failure callback. Failed runs only.
    pub from: Option<Timestamp>,
    /// Not after this time.
    pub to: Option<Timestamp>,
    /// Matches nothing, because the caller asked for something that no run can have.
    pub nothing: bool,
}

/// A URL filter that compares text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlFilter {
    /// This URL.
    Exact(String),
    /// URLs with this prefix.
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
    /// The date range, both ends included.
    pub(super) fn dates(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.from, self.to)
    }

    /// Whether `at`, the time that the dates apply to, lies in the range.
    pub fn matches_time(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at <= to)
    }

    /// Whether the run matches, apart from dates and messages.
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

    /// Whether the run has one of the requested messages.
    pub fn matches_messages(&self, workflow: &Workflow) -> bool {
        self.messages.is_empty()
            || workflow.entries.iter().any(|entry| self.messages.contains(&entry.id))
            || self.matches_messages_of(&workflow.run, &workflow.waits, &workflow.invokes)
    }

    /// Whether one of the requested messages belongs to a wait, an invoke or the failure callback of the run.
    pub(super) fn matches_messages_of(&self, run: &Run, waits: &[Wait], invokes: &[Invoke]) -> bool {
        let waits = waits.iter().map(|wait| wait.timer);
        let invokes = invokes.iter().filter_map(|invoke| invoke.id);
        let call = run.failure.as_deref().and_then(|failure| failure.call.as_ref()).map(|call| call.id);
        waits.chain(invokes).chain(call).any(|id| self.messages.contains(&id))
    }
}
