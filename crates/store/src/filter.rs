//! Which messages, dead letters or log lines a caller means.
//!
//! One meaning for every backend: [`Filter::matches`] decides, SQL only narrows what it is asked about.

use posthaste_engine::cause::{Cause, CauseId};
use posthaste_engine::event::{DeadLetter, Event, State};
use posthaste_engine::message::Message;
use posthaste_wire::id::{DlqId, MessageId};
use posthaste_wire::time::Timestamp;

/// OR within a field, AND between fields; an empty list does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// These messages.
    pub ids: Vec<MessageId>,
    /// Exact destination.
    pub urls: Vec<String>,
    /// Host of the destination, with or without its port.
    pub hosts: Vec<String>,
    /// Path of the destination, without its query.
    pub paths: Vec<String>,
    /// Any label of the message.
    pub labels: Vec<String>,
    /// Address of the publisher.
    pub caller_ips: Vec<String>,
    /// The URL group it was published to.
    pub topics: Vec<String>,
    /// The queue it was put into.
    pub queues: Vec<String>,
    /// The schedule that made it.
    pub schedules: Vec<String>,
    /// Its flow-control key.
    pub flow_keys: Vec<String>,
    /// The message that led to it.
    pub sources: Vec<MessageId>,
    /// Status of the last answer; 0 when there was none. Dead letters only.
    pub response_statuses: Vec<u16>,
    /// These dead letters. Dead letters only.
    pub dlq_ids: Vec<DlqId>,
    /// What they died of. Dead letters only.
    pub causes: Vec<CauseId>,
    /// Not before this time.
    pub from: Option<Timestamp>,
    /// Not after this time.
    pub to: Option<Timestamp>,
    /// Asks for ids that no message can have: nothing matches.
    pub nothing: bool,
}

/// A [`Filter`] for log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// What the message must be like; dates compare with the event time.
    pub message: Filter,
    /// These states.
    pub states: Vec<State>,
}

/// Which end of a list comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Newest entries first.
    #[default]
    LatestFirst,
    /// Oldest entries first.
    EarliestFirst,
}

impl EventFilter {
    /// Whether the log line is meant.
    pub fn matches(&self, event: &Event, message: &Message) -> bool {
        (self.states.is_empty() || self.states.contains(&event.state))
            && self.message.matches_time(event.at)
            && self.message.matches(message)
    }
}

impl Filter {
    /// The caller named nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// The asked range of time, both ends included. Ids of dead letters name their times.
    pub(super) fn dates(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let named = || self.dlq_ids.iter().map(|dlq_id| dlq_id.at);
        (self.from.max(named().min()), [self.to, named().max()].into_iter().flatten().min())
    }

    /// Whether `at`, the time that dates compare with, lies in the asked range.
    pub fn matches_time(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at <= to)
    }

    /// Whether the message is meant; dates and response statuses are the caller's to compare.
    pub fn matches(&self, message: &Message) -> bool {
        let spec = &message.spec;
        !self.nothing
            && (self.ids.is_empty() || self.ids.contains(&message.id))
            && (self.urls.is_empty() || self.urls.contains(&spec.url))
            && names(&self.topics, spec.topic.as_ref())
            && names(&self.queues, spec.queue.as_ref())
            && names(&self.schedules, spec.schedule_id.as_ref())
            && names(&self.flow_keys, spec.flow.as_ref().map(|flow| &flow.key))
            && (self.sources.is_empty() || spec.cause.is_some_and(|cause| self.sources.contains(&cause.id)))
            && (self.caller_ips.is_empty() || self.caller_ips.contains(&spec.caller_ip))
            && (self.labels.is_empty() || spec.labels.iter().any(|label| self.labels.contains(label)))
            && matches_location(&self.hosts, &self.paths, &spec.url)
    }

    /// Whether the dead letter is meant.
    pub fn matches_dead_letter(&self, letter: &DeadLetter, message: &Message) -> bool {
        let status = letter.response.as_ref().map_or(0, |response| response.status);
        (self.response_statuses.is_empty() || self.response_statuses.contains(&status))
            && (self.dlq_ids.is_empty() || self.dlq_ids.contains(&letter.dlq_id))
            && self.matches_time(letter.dlq_id.at)
            && self.matches(message)
            // What costs most is asked last.
            && (self.causes.is_empty() || self.causes.contains(&Cause::of(&message.spec.url, letter).id()))
    }
}

/// Whether a URL leads to one of these hosts, named with or without the port, and to one of these paths.
pub(super) fn matches_location(hosts: &[String], paths: &[String], url: &str) -> bool {
    if hosts.is_empty() && paths.is_empty() {
        return true;
    }
    let (host, path) = split_location(url);
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(host, |(name, _)| name);
    (hosts.is_empty() || hosts.iter().any(|wanted| wanted == host || wanted == name))
        && (paths.is_empty() || paths.iter().any(|wanted| wanted == path))
}

/// Whether one of the wanted names is that of the message; none wanted is all wanted.
fn names(wanted: &[String], name: Option<&String>) -> bool {
    wanted.is_empty() || name.is_some_and(|name| wanted.contains(name))
}

/// Host (with port) and path of a destination, as written.
fn split_location(url: &str) -> (&str, &str) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, tail) = rest.split_at(end);
    let path = &tail[..tail.find(['?', '#']).unwrap_or(tail.len())];
    (host, if path.is_empty() { "/" } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_taken_as_written() {
        let cases = [
            ("https://example.org/a/b?c=d", ("example.org", "/a/b")),
            ("http://example.org:8080", ("example.org:8080", "/")),
            ("http://[::1]:80/x", ("[::1]:80", "/x")),
            ("https://example.org?x=/y", ("example.org", "/")),
        ];
        for (url, expected) in cases {
            assert_eq!(split_location(url), expected, "{url}");
        }
    }

    #[test]
    fn hosts_match_with_and_without_port() {
        for wanted in ["example.org", "example.org:8080"] {
            let hosts = [wanted.to_owned()];
            assert!(matches_location(&hosts, &[], "http://example.org:8080/"));
            assert!(!matches_location(&hosts, &[], "http://example.com:8080/"));
        }
    }
}
