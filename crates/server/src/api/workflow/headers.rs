//! Which headers travel on within a run.
//!
//! Clients hand on whatever their endpoint has received, also what belongs to one connection or was set by this server.
//! A plain publish refuses such names; here they are left out, because nobody chose them.

use super::protocol::has_prefix;
use super::translate::Bounds;
use crate::api::publish::{Line, flow_spec};
use posthaste_engine::limits::{FORWARD_HEADER_BYTES_MAX, FORWARD_HEADERS_MAX};
use posthaste_engine::workflow::entry::OwnTerms;
use posthaste_wire::encoding::is_sealed;
use posthaste_wire::header;
use posthaste_wire::publish as options;
use posthaste_wire::rejection::Rejection;

/// Headers of a delivery, names in canonical form.
pub(super) type Headers = Vec<(String, String)>;

/// To whom a header goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// To the run's endpoint.
    Endpoint,
    /// To somebody whom the run calls: the user chose all of them.
    ThirdParty,
}

/// Starts a header to send on with the result of a call.
const CALLBACK_FORWARD: &str = "upstash-callback-forward-";
/// Starts a header to send on with the news of a failure.
const FAILURE_FORWARD: &str = "upstash-failure-callback-forward-";
/// Names who hears of a failure of the run, and starts what is said about that, where an old client sends a call: what it
/// means for the run, it says of the callback.
const FAILURE_OF_CALLBACK: &str = "upstash-callback-failure-callback";
/// Start headers about a run that are no settings of a message.
const PROTOCOL: [&str; 4] =
    [header::WORKFLOW_PREFIX, "upstash-callback-workflow-", "upstash-failure-callback-workflow-", FAILURE_OF_CALLBACK];

/// The lines that the reader of a publish shall see: those of the protocol are read elsewhere, and what may not travel
/// is left out. A plain `Content-Type` wins over a forwarded one.
pub(super) fn cleaned<'a>(lines: &[Line<'a>], receiver: Receiver) -> Vec<Line<'a>> {
    let is_content_type = |name: &str| name.eq_ignore_ascii_case(header::CONTENT_TYPE);
    let has_own_type = lines.iter().any(|(name, value)| is_content_type(name) && !value.trim_ascii().is_empty());
    let stays = |(name, _): &&Line<'a>| {
        let is_protocol = PROTOCOL.iter().any(|prefix| has_prefix(name, prefix));
        let is_settled = is_protocol || name.eq_ignore_ascii_case(header::METHOD);
        let travels = match forwarded_name(name) {
            None => true,
            Some((header::FORWARD_PREFIX, name)) => {
                may_travel(name, receiver) && !(has_own_type && is_content_type(name))
            }
            Some((_, name)) => may_travel(name, Receiver::Endpoint) && !is_content_type(name),
        };
        !is_settled && travels
    };
    lines.iter().filter(stays).copied().collect()
}

/// The lines of a call, in which an old client has named who hears of a failure of the run, as those of a step name it: each
/// that has to be said otherwise with its name there. What is said the usual way wins.
pub(super) fn failure_of_callback(lines: &[Line<'_>]) -> Vec<(String, Vec<u8>)> {
    let has = |wanted: &str| lines.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
    if has(header::FAILURE_CALLBACK) {
        return Vec::new();
    }
    let said = lines.iter().filter(|(name, _)| has_prefix(name, FAILURE_OF_CALLBACK));
    let renamed = said.map(|(name, value)| {
        (format!("{}{}", header::FAILURE_CALLBACK, &name[FAILURE_OF_CALLBACK.len()..]), value.to_vec())
    });
    renamed.filter(|(name, _)| !has(name)).collect()
}

/// The prefix and the name of a header to send on.
pub(super) fn forwarded_name(name: &str) -> Option<(&'static str, &str)> {
    let prefixes = [header::FORWARD_PREFIX, CALLBACK_FORWARD, FAILURE_FORWARD];
    let prefix = prefixes.into_iter().find(|prefix| has_prefix(name, prefix))?;
    Some((prefix, &name[prefix.len()..]))
}

/// Whether a header that a client sends on may go there.
fn may_travel(name: &str, receiver: Receiver) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    if header::is_hop_by_hop_or_framing(name) || has_prefix(name, "proxy-") || header::is_set_by_server(name) {
        return false;
    }
    match receiver {
        Receiver::ThirdParty => true,
        Receiver::Endpoint => {
            let is_known = is(header::LABEL) || has_prefix(name, header::WORKFLOW_PREFIX);
            let is_of_sender = is(header::ACCEPT_ENCODING) || is(header::USER_AGENT);
            !is_of_sender && (is_known || !has_prefix(name, header::PREFIX))
        }
    }
}

/// The header of this name, taken out.
pub(super) fn take(headers: &mut Headers, name: &str) -> Option<String> {
    let found = headers.iter().position(|(other, _)| other.eq_ignore_ascii_case(name))?;
    let (_, value) = headers.remove(found);
    headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    Some(value)
}

/// Sets a header, in the place of any of this name.
pub(super) fn set(headers: &mut Headers, name: &str, value: &str) {
    take(headers, name);
    headers.push((header::canonical(name), value.to_owned()));
}

/// Those of the user, and those of the protocol.
pub(super) fn parted(headers: Headers) -> (Headers, Headers) {
    headers.into_iter().partition(|(name, _)| !has_prefix(name, header::PREFIX))
}

/// Headers in a body, such as those to deliver the end of a wait with: without those that are to be sent on and may not
/// be. The others stay as they were sent.
pub(super) fn deliverable(mut headers: Vec<(String, Vec<String>)>) -> Result<Vec<(String, Vec<String>)>, Rejection> {
    headers.retain(|(name, values)| match forwarded_name(name) {
        Some((header::FORWARD_PREFIX, name)) => {
            let is_sendable = values.iter().all(|value| !value.contains(char::is_control));
            header::is_valid_name(name) && is_sendable && may_travel(name, Receiver::Endpoint)
        }
        // These are only shown.
        _ => !values.iter().any(|value| is_sealed(value)),
    });
    let bytes: usize = headers.iter().flat_map(|(name, values)| values.iter().map(|it| name.len() + it.len())).sum();
    if headers.len() > FORWARD_HEADERS_MAX || bytes > FORWARD_HEADER_BYTES_MAX {
        let text = format!("at most {FORWARD_HEADERS_MAX} headers with {FORWARD_HEADER_BYTES_MAX} bytes are accepted");
        return Err(Rejection::invalid(text));
    }
    Ok(headers)
}

/// Those of them that are to be sent on, each with its first value.
pub(super) fn forwarded(headers: &[(String, Vec<String>)]) -> Headers {
    let sent_on = |(name, values): &(String, Vec<String>)| {
        let (_, name) = forwarded_name(name).filter(|(prefix, _)| *prefix == header::FORWARD_PREFIX)?;
        Some((header::canonical(name), values.first()?.clone()))
    };
    headers.iter().filter_map(sent_on).collect()
}

/// What they say about the delivery itself: clients that say so with every step say it there, too.
pub(super) fn own_terms(headers: &[(String, Vec<String>)], bounds: &Bounds<'_>) -> Result<OwnTerms, Rejection> {
    const TERMS: [&str; 5] = [
        header::RETRIES,
        header::RETRY_DELAY,
        header::FLOW_CONTROL_KEY,
        header::FLOW_CONTROL_VALUE,
        header::REDACT_FIELDS,
    ];
    let is_one = |name: &str| TERMS.iter().any(|term| term.eq_ignore_ascii_case(name));
    let said = headers.iter().filter(|(name, _)| is_one(name));
    let said = said.filter_map(|(name, values)| Some((name.as_str(), values.first()?.as_bytes())));
    let options = options::parse(said, &bounds.limits, bounds.now)?;
    options.check_retry_delay_by(bounds.checks, options.retries.unwrap_or(bounds.retries_default))?;
    let redact = options.redact.clone().unwrap_or_default();
    Ok(OwnTerms { flow: flow_spec(&options), retries: options.retries, retry_delay: options.retry_delay, redact })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(names: &[&str], receiver: Receiver) -> Vec<String> {
        let lines: Vec<Line<'_>> = names.iter().map(|name| (*name, b"v".as_slice())).collect();
        cleaned(&lines, receiver).into_iter().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn what_belongs_to_one_connection_or_to_this_server_does_not_travel() {
        let left_out = [
            "Upstash-Forward-Host",
            "upstash-forward-content-length",
            "upstash-forward-connection",
            "upstash-forward-keep-alive",
            "upstash-forward-transfer-encoding",
            "upstash-forward-te",
            "upstash-forward-trailer",
            "upstash-forward-upgrade",
            "upstash-forward-proxy-anything",
            "upstash-forward-accept-encoding",
            "upstash-forward-expect",
            "upstash-forward-user-agent",
            "upstash-forward-upstash-signature",
            "upstash-forward-upstash-message-id",
            "upstash-forward-upstash-retried",
            "upstash-forward-upstash-region",
            "upstash-forward-upstash-telemetry-sdk",
            "upstash-forward-posthaste-hops",
            "upstash-callback-forward-host",
            "upstash-callback-forward-content-type",
            "Upstash-Failure-Callback-Forward-Content-Length",
            "upstash-failure-callback-forward-upstash-signature",
            "upstash-workflow-url",
            "upstash-callback-workflow-runid",
            "upstash-failure-callback-workflow-calltype",
            "upstash-callback-failure-callback",
            "Upstash-Callback-Failure-Callback-Retries",
            "upstash-callback-failure-callback-forward-upstash-workflow-is-failure",
            "upstash-method",
        ];
        assert_eq!(kept(&left_out, Receiver::Endpoint), [""; 0]);
        let stay = [
            "upstash-forward-authorization",
            "upstash-forward-cookie",
            "upstash-forward-content-type",
            "upstash-forward-x-tenant",
            "upstash-forward-upstash-label",
            "upstash-forward-upstash-workflow-sdk-version",
            "upstash-callback-forward-upstash-workflow-stepid",
            "upstash-failure-callback-forward-x-tenant",
            "upstash-failure-callback-forward-upstash-workflow-is-failure",
            "upstash-retries",
            "upstash-feature-set",
        ];
        assert_eq!(kept(&stay, Receiver::Endpoint), stay);
    }

    #[test]
    fn a_call_carries_what_the_user_chose() {
        let names = ["upstash-forward-upstash-delay", "upstash-forward-user-agent", "upstash-forward-accept-encoding"];
        assert_eq!(kept(&names, Receiver::ThirdParty), names);
        assert_eq!(kept(&["upstash-forward-host", "upstash-forward-upstash-signature"], Receiver::ThirdParty), [""; 0]);
    }

    #[test]
    fn a_plain_content_type_wins() {
        assert_eq!(kept(&["Content-Type", "upstash-forward-content-type"], Receiver::Endpoint), ["Content-Type"]);
    }

    #[test]
    fn headers_in_bodies_are_cleaned_too() {
        let given = |name: &str, value: &str| (name.to_owned(), vec![value.to_owned()]);
        let headers = vec![
            given("Upstash-Workflow-RunId", "wfr_1"),
            given("Upstash-Forward-Upstash-Workflow-Sdk-Version", "1"),
            given("Upstash-Forward-host", "a"),
            given("Upstash-Forward-x-tenant", "t1"),
            given("Upstash-Forward-x-broken", "a\r\nb: c"),
            given("Upstash-Forward-a b", "1"),
            given("content-type", "application/json"),
        ];
        let cleaned = deliverable(headers.clone()).unwrap();
        assert_eq!(cleaned, [0, 1, 3, 6].map(|index: usize| headers[index].clone()));
        let sent_on = [("Upstash-Workflow-Sdk-Version", "1"), ("X-Tenant", "t1")];
        assert_eq!(forwarded(&cleaned), sent_on.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let many = vec![given("X", "1"); FORWARD_HEADERS_MAX + 1];
        assert!(deliverable(many[1..].to_vec()).is_ok() && deliverable(many).is_err());
    }
}
