//! Requests of workflow clients: a publish with the headers of a run, a trigger without a client, a wait. An accepted
//! request advances a run, can be stored, and can be delivered over HTTP.
//!
//! The first byte selects the kind. Header lines follow, `Name: value`, then an empty line and the body.

use super::workflow_kept::Kept;
use super::workflow_steps::LIMITS;
use super::{NOW, check_refusal, choice};
use http::{HeaderName, HeaderValue};
use posthaste::api::fuzzing::workflow::{self, Asked, AskedWait, NAME_BYTES_MAX, WAIT_MS_MAX};
use posthaste_engine::message::Message;
use posthaste_engine::workflow::run::RunConfig;
use posthaste_engine::workflow::{NewEntry, WaitFor, Waited};
use posthaste_wire::encoding::{base64, header_bytes};
use posthaste_wire::header;

const URL: &str = "https://app.example/flow";

pub(crate) fn run(data: &[u8]) {
    let (kind, data) = choice(data);
    let (lines, body) = request(data);
    match kind % 4 {
        0 | 1 => {
            let read = if kind % 4 == 0 { workflow::publish } else { workflow::trigger };
            let (asked, again) = (read(URL, &lines, body, NOW), read(URL, &lines, body, NOW));
            assert_eq!(format!("{asked:?}"), format!("{again:?}"), "reading twice");
            match asked {
                Ok(asked) => check(asked),
                Err(refusal) => check_refusal(&refusal),
            }
        }
        2 => match workflow::wait("ev/1", &lines, body, NOW) {
            Ok(wait) => check_wait(wait),
            Err(refusal) => check_refusal(&refusal),
        },
        _ => workflow::filters(&String::from_utf8_lossy(data)).unwrap_or_else(|refusal| check_refusal(&refusal)),
    }
}

/// Headers and body.
fn request(data: &[u8]) -> (Vec<(&str, &[u8])>, &[u8]) {
    let split = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = split.map_or((data, &[][..]), |at| (&data[..at], &data[at + 2..]));
    (head.split(|byte| *byte == b'\n').filter_map(line).collect(), body)
}

fn line(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
}

fn check(asked: Asked) {
    match asked {
        Asked::Start { id, config, first, invoker } => {
            check_name(&id);
            if let Some(invoker) = &invoker {
                check_name(&invoker.run_id);
                invoker.headers.iter().for_each(|(name, _)| check_may_travel(name));
            }
            let body = first.body.clone();
            let (kept, outcome) = Kept::start(id, *config, *first, invoker.map(|invoker| *invoker));
            check_messages(&outcome.messages);
            assert_eq!(kept.read().bodies, [body], "what is sent is what was sent");
        }
        Asked::Append(id, entry) => {
            check_name(&id);
            check_append(*entry);
        }
    }
}

/// An entry is appended once, even if it is sent several times.
fn check_append(entry: NewEntry) {
    let first = NewEntry::step(b"{}".to_vec().into(), Vec::new(), NOW);
    let (mut kept, _) = Kept::start("wfr_1".to_owned(), RunConfig::default(), first, None);
    for deduplicated in [false, true] {
        let entry = entry.clone();
        let (appended, outcome) = kept.decide(|workflow, out| workflow.append(vec![entry], &LIMITS, out));
        let appended = appended.expect("the run goes on and has room");
        assert_eq!((appended.len(), appended[0].deduplicated), (1, deduplicated));
        check_messages(&outcome.messages);
    }
    assert_eq!(kept.read().bodies[1..], [entry.body]);
}

/// An event ends a wait, and the result is the step with the data of the event.
fn check_wait(wait: AskedWait) {
    let AskedWait { run, event, step, timeout: (timeout, timeout_ms), headers, terms } = wait;
    check_name(&run);
    check_name(&event);
    assert!(timeout_ms <= WAIT_MS_MAX);
    let first = NewEntry::step(b"{}".to_vec().into(), Vec::new(), NOW);
    let (mut kept, _) = Kept::start(run, RunConfig::default(), first, None);
    let wait = WaitFor { event: event.clone(), step: step.clone(), timeout, timeout_ms, headers, terms };
    let nothing = |_| Err("no event came before");
    let (waited, _) = kept.decide(|workflow, out| workflow.wait(wait, nothing, &LIMITS, out));
    assert_eq!(waited, Ok(Ok(Waited::Waiting)));
    assert_eq!(kept.read().workflow.waits.len(), 1);
    let (resolved, outcome) = kept.decide(|workflow, out| workflow.notify(&event, b"data", out));
    assert!(resolved.is_some(), "the event has come");
    check_messages(&outcome.messages);
    let result: serde_json::Value = serde_json::from_slice(&kept.read().bodies[1]).expect("a result is JSON");
    assert_eq!(result["out"], base64(b"data"));
    assert!(step.iter().all(|(name, value)| ["out", "waitEventId"].contains(&name.as_str()) || result[name] == *value));
}

fn check_name(name: &str) {
    assert!((1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control), "{name:?}");
}

/// The messages of a run can be sent.
pub(crate) fn check_messages(messages: &[std::sync::Arc<Message>]) {
    for (name, value) in messages.iter().flat_map(|message| &message.spec.headers) {
        assert!(HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name:?} cannot be sent");
        assert!(HeaderValue::from_bytes(&header_bytes(value)).is_ok(), "{name}: {value:?} cannot be sent");
        check_may_travel(name);
    }
}

/// Headers that only the server may set: signatures, ids, counts, and the origin of a message.
const OF_SERVER: [&str; 8] = [
    "Upstash-Signature",
    "Upstash-Message-Id",
    "Upstash-Retried",
    "Upstash-Schedule-Id",
    "Upstash-Topic-Name",
    "Upstash-Caller-Ip",
    "Upstash-Region",
    "Posthaste-Hops",
];

/// Clients cannot make the server send these headers.
fn check_may_travel(name: &str) {
    let is_of_proxy = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("proxy-"));
    let is_of_server = OF_SERVER.iter().any(|known| known.eq_ignore_ascii_case(name));
    assert!(!header::is_hop_by_hop_or_framing(name) && !is_of_proxy && !is_of_server, "{name:?} is sent on");
}

#[test]
fn seeds_are_accepted() {
    let mut refused = Vec::new();
    for seed in crate::seeds::workflow_publish() {
        let (kind, data) = choice(&seed);
        let (lines, body) = request(data);
        let read = match kind {
            0 => workflow::publish(URL, &lines, body, NOW).map(drop),
            1 => workflow::trigger(URL, &lines, body, NOW).map(drop),
            2 => workflow::wait("ev/1", &lines, body, NOW).map(drop),
            _ => workflow::filters(&String::from_utf8_lossy(data)),
        };
        refused.extend(read.err());
    }
    assert_eq!(refused, [""; 0]);
}
