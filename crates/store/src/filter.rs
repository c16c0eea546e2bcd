//! Filters that select messages, dead letters or log lines.
//!
//! Filters mean the same for all backends: [`Filter::matches`] decides, and SQL only narrows the candidates.

use posthaste_engine::cause::{Cause, CauseId};
use posthaste_engine::event::{DeadLetter, Event, State};
use posthaste_engine::message::Message;
use posthaste_wire::id::{DlqId, MessageId};
use posthaste_wire::time::Timestamp;

/// OR within a field, AND between fields; an empty list does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Ids of messages.
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
    /// The URL group that the message was published to.
    pub topics: Vec<String>,
    /// The queue of the message.
    pub queues: Vec<String>,
    /// The schedule that created it.
    pub schedules: Vec<String>,
    /// Its flow-control key.
    pub flow_keys: Vec<String>,
    /// The message that caused it.
    pub sources: Vec<MessageId>,
    /// Status of the last response; 0 if there was none. Dead letters only.
    pub response_statuses: Vec<u16>,
    /// Ids of dead letters. Dead letters only.
    pub dlq_ids: Vec<DlqId>,
    /// Causes of the failure. Dead letters only.
    pub causes: Vec<CauseId>,
    /// Not before this time.
    pub from: Option<Timestamp>,
    /// Not after this time.
    pub to: Option<Timestamp>,
    /// Matches nothing, because the caller asked for ids that no message can have.
    pub nothing: bool,
}

/// A [`Filter`] for log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// The filter for the message. Its dates apply to the time of the event.
    pub message: Filter,
    /// States of the log line.
    pub states: Vec<State>,
}

/// The sort order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Newest entries first.
    #[default]
    LatestFirst,
    /// Oldest entries first.
    EarliestFirst,
}

impl EventFilter {
    /// Whether the log line matches.
    pub fn matches(&self, event: &Event, message: &Message) -> bool {
        (self.states.is_empty() || self.states.contains(&event.state))
            && self.message.matches_time(event.at)
            && self.message.matches(message)
    }
}

impl Filter {
    /// Whether the filter does not restrict anything.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// The date range, both ends included. Ids of dead letters contain their times, so they narrow it.
    pub(super) fn dates(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let named = || self.dlq_ids.iter().map(|dlq_id| dlq_id.at);
        (self.from.max(named().min()), [self.to, named().max()].into_iter().flatten().min())
    }

    /// Whether `at`, the time that the dates apply to, lies in the range.
    pub fn matches_time(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at <= to)
    }

    /// Whether the message matches. The caller compares dates and response statuses.
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

    /// Whether the dead letter matches.
    pub fn matches_dead_letter(&self, letter: &DeadLetter, message: &Message) -> bool {
        let status = letter.response.as_ref().map_or(0, |response| response.status);
        (self.response_statuses.is_empty() || self.response_statuses.contains(&status))
            && (self.dlq_ids.is_empty() || self.dlq_ids.contains(&letter.dlq_id))
            && self.matches_time(letter.dlq_id.at)
            && self.matches(message)
            // The most expensive check comes last.
            && (self.causes.is_empty() || self.causes.contains(&Cause::of(&message.spec.url, letter).id()))
    }
}

/// Whether a URL has one of these hosts, named with or without the port, and one of these paths.
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

/// Whether the message's name is among the wanted ones. An empty list matches all.
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
