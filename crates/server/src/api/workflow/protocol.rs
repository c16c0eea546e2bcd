//! What the headers of a publish say about a run: which, and what is to happen to it.

use super::checked_name;
use crate::api::publish::Line;
use crate::core::RunKey;
use posthaste_wire::boolean::parse_bool;
use posthaste_wire::echo::echo;
use posthaste_wire::encoding::utf8_or_latin1;
use posthaste_wire::header;
use posthaste_wire::rejection::Rejection;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::{CallType, Features};
use std::borrow::Cow;

/// Whether a batch may be about runs: it names such headers, in whatever case.
pub(in crate::api) fn may_concern_a_run(batch: &[u8]) -> bool {
    memchr::memmem::find(batch, b"orkflow-").is_some()
}

/// Whether a publish starts a run or appends to one. The names may come in any case.
///
/// Everything else about a run, such as a forwarded header, is no reason to treat a message otherwise.
pub(in crate::api) fn concerns_a_run<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    const DECISIVE: [&str; 2] = [header::WORKFLOW_INIT, header::WORKFLOW_RUN_ID];
    names.any(|name| {
        has_prefix(name, header::WORKFLOW_PREFIX) && DECISIVE.iter().any(|it| it.eq_ignore_ascii_case(name))
    })
}

/// Whether a name begins so, in any case.
pub(super) fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// What the headers of a publish say about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    /// It starts a run.
    pub(super) is_start: bool,
    /// The name of the run.
    pub(super) run_id: Option<String>,
    /// Which instance of it.
    pub(super) created_at: Option<Timestamp>,
    /// What kind of entry it appends.
    pub(super) call_type: CallType,
    /// The body says which step of another run invokes this one.
    pub(super) is_invoke: bool,
    /// The endpoint itself triggers a run that waits for that.
    pub(super) is_by_client: bool,
    /// Nobody knows which client the endpoint has.
    pub(super) is_client_unknown: bool,
    /// How many runs led to this one.
    pub(super) depth: u32,
    /// What the client can do.
    pub(super) features: Features,
    /// The method of a call.
    pub(super) method: Option<String>,
}

impl Protocol {
    /// Reads the headers of a publish.
    pub(super) fn read(lines: &[Line<'_>]) -> Result<Protocol, Rejection> {
        let flag = |name: &str| match value(lines, name) {
            None => Ok(false),
            Some(text) => parse_bool(&text).ok_or_else(|| {
                refused(name, &format!("{} is not a boolean; accepted are true and false", echo(&text)))
            }),
        };
        let forwarded = |name: &str| value(lines, &format!("{}{name}", header::FORWARD_PREFIX));
        let is_true = |text: Option<Cow<'_, str>>| text.is_some_and(|text| parse_bool(&text) == Some(true));
        let run_id = value(lines, header::WORKFLOW_RUN_ID);
        let features: Vec<Cow<'_, str>> = values(lines, header::FEATURE_SET).collect();
        let call_type =
            value(lines, header::WORKFLOW_CALL_TYPE).map_or(CallType::Step, |name| name.into_owned().into());
        Ok(Protocol {
            is_start: flag(header::WORKFLOW_INIT)?,
            run_id: run_id.map(|id| checked_name("Upstash-Workflow-RunId", &id)).transpose()?,
            created_at: created_at(lines),
            call_type,
            is_invoke: flag(header::WORKFLOW_INVOKE)?,
            is_by_client: flag(header::WORKFLOW_TRIGGER_BY_SDK)?,
            is_client_unknown: flag(header::WORKFLOW_UNKNOWN_SDK)? || is_true(forwarded(header::WORKFLOW_UNKNOWN_SDK)),
            depth: forwarded(header::WORKFLOW_INVOKE_COUNT).and_then(|text| text.parse().ok()).unwrap_or(0),
            features: Features::parse(features.iter().map(AsRef::as_ref)),
            method: value(lines, header::METHOD).map(Cow::into_owned),
        })
    }

    /// An endpoint sends it while it executes a step.
    pub(super) fn is_within_a_run(&self) -> bool {
        !self.is_start || self.is_invoke
    }

    /// It goes to its destination, and not to wherever the run is executed.
    pub(super) fn has_destination(&self) -> bool {
        self.is_start || self.call_type == CallType::ToCallback
    }

    /// The run that it appends to.
    pub(super) fn run(&self) -> Result<RunKey, Rejection> {
        let id = self.run_id.clone();
        let id = id.ok_or_else(|| refused(header::WORKFLOW_RUN_ID, "is missing: it names the run to continue"))?;
        Ok(RunKey { id, created_at: self.created_at })
    }
}

/// The instance of a run that the headers name. Zero is what clients say who do not know.
pub(super) fn created_at(lines: &[Line<'_>]) -> Option<Timestamp> {
    let millis = value(lines, header::WORKFLOW_CREATED_AT)?.parse().ok()?;
    Some(Timestamp(millis)).filter(|at| *at != Timestamp(0))
}

/// The first value of a header, without outer white space.
pub(super) fn value<'a>(lines: &[Line<'a>], name: &str) -> Option<Cow<'a, str>> {
    values(lines, name).next()
}

fn values<'a>(lines: &[Line<'a>], name: &str) -> impl Iterator<Item = Cow<'a, str>> {
    let named = lines.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name));
    named.map(|(_, value)| utf8_or_latin1(value.trim_ascii()))
}

/// A refusal that names the header.
pub(super) fn refused(name: &str, reason: &str) -> Rejection {
    Rejection::invalid(format!("{}: {reason}", header::canonical(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_headers_make_a_publish_one_about_a_run() {
        let cases = [
            (&["content-type", "upstash-workflow-init"][..], true),
            (&["Upstash-Workflow-RunId"], true),
            (&["upstash-workflow-sdk-version", "upstash-workflow-url"], false),
            (&["upstash-forward-upstash-workflow-init", "x-upstash-workflow-init"], false),
            (&["upstash-callback-workflow-runid", "upstash-workflow-"], false),
            (&["upstash-workflow-runid-2", "\u{1F980}\u{1F980}\u{1F980}\u{1F980}\u{1F980}"], false),
            (&[], false),
        ];
        for (names, expected) in cases {
            assert_eq!(concerns_a_run(names.iter().copied()), expected, "{names:?}");
        }
    }

    #[test]
    fn instances_are_named_by_a_time() {
        for (text, expected) in [("1767225600000", Some(Timestamp(1_767_225_600_000))), ("0", None), ("soon", None)] {
            assert_eq!(created_at(&[("Upstash-Workflow-CreatedAt", text.as_bytes())]), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_boolean_is_refused() {
        for name in ["Upstash-Workflow-Init", "Upstash-Workflow-Invoke", "Upstash-Workflow-Trigger-By-Sdk"] {
            let rejection = Protocol::read(&[(name, b"maybe")]).unwrap_err();
            assert_eq!(rejection.message, format!("{name}: \"maybe\" is not a boolean; accepted are true and false"));
        }
    }
}
