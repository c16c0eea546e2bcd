//! The steps of a run with arbitrary metadata: forged numbers, results of missing steps, plans of plans. The run
//! continues or ends, its list is exactly what was sent, and its log can be shown.
//!
//! Each line is an event. Its first byte selects the kind, and the rest is a step.

use super::workflow_kept::{Kept, Outcome, TENANT};
use super::workflow_publish::check_messages;
use super::{NOW, choice};
use bytes::Bytes;
use posthaste::api::fuzzing::workflow::{shown, shown_failed};
use posthaste_engine::event::Response;
use posthaste_engine::outcome::Outcome as Brought;
use posthaste_engine::retry::Next;
use posthaste_engine::workflow::entry::{Call, Digest, OwnTerms};
use posthaste_engine::workflow::note::{NoteKey, NoteKind};
use posthaste_engine::workflow::run::{Invoke, Invoker, RunConfig, RunState, StepText};
use posthaste_engine::workflow::{Attempt, Limits, NewEntry, Notice, Overrides, Record, WaitFor, Workflow};
use posthaste_wire::encoding::from_base64;
use posthaste_wire::id::MessageId;
use posthaste_wire::workflow::CallType;

pub(super) const LIMITS: Limits = Limits { entries: 200, bytes: 1 << 20, duration_ms: 1_000_000 };
/// Most events of one input.
const LINES_MAX: usize = 60;

pub(crate) fn run(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n').take(LINES_MAX);
    let first = NewEntry::step(lines.next().unwrap_or_default().to_vec().into(), Vec::new(), NOW);
    let (mut kept, _) = Kept::start("wfr_1".to_owned(), RunConfig::default(), first, None);
    for line in lines {
        let before = kept.workflow.clone();
        let (kind, text) = choice(line);
        let outcome = happen(&mut kept, kind, text);
        check_messages(&outcome.messages);
        check_step(&before, &kept.workflow, &outcome);
        // Clients may send a result again. A result that the server adds itself is the first one.
        if let 3 | 6 = kind % 10 {
            check_results(&before, &kept.workflow);
        }
    }
    let record = kept.read();
    check_list(&record);
    for now in [NOW, NOW.plus_millis(1 << 40)] {
        let (run, lines) = shown(&record, now);
        assert!(run["workflowRunId"] == "wfr_1" && lines > 0);
    }
    let has_failed = record.workflow.run.failure.is_some();
    assert_eq!((shown_failed(&record).is_some(), record.failure_call().is_some()), (has_failed, has_failed));
    if has_failed {
        let (resumed, outcome) =
            kept.again(|record, out| record.resumed("wfr_2".to_owned(), NOW.plus_millis(9), Overrides::default(), out));
        check_messages(&outcome.messages);
        let resumed = resumed.read();
        check_list(&resumed);
        assert!(record.bodies.iter().zip(&resumed.bodies).all(|(old, new)| old == new));
    }
}

fn happen(kept: &mut Kept, kind: u8, text: &[u8]) -> Outcome {
    let step: StepText = serde_json::from_slice(text).unwrap_or_default();
    let number = text.first().copied().unwrap_or(0);
    let index = u32::from(number) % kept.workflow.entries.len() as u32;
    let entry = NewEntry::step(text.to_vec().into(), Vec::new(), NOW);
    match kind % 10 {
        0 | 1 => kept.decide(|workflow, out| workflow.append(vec![entry], &LIMITS, out)).1,
        2 => {
            let call = Call {
                url: "https://third.example/".to_owned(),
                method: "POST".to_owned(),
                step: u32::from(number),
                is_forgiven: number % 2 == 0,
                result_headers: Vec::new(),
                result_retries: None,
            };
            let entry = NewEntry { call_type: CallType::ToCallback, call: Some(call), ..entry };
            kept.decide(|workflow, out| workflow.append(vec![entry], &LIMITS, out)).1
        }
        3 => {
            let early = kept.workflow.early.first().map(|early| NoteKey { kind: NoteKind::Early, n: early.n });
            let came = early.map(|key| kept.note_body(key));
            let (timeout, headers, terms) = ("1s".to_owned(), Vec::new(), OwnTerms::default());
            let wait = WaitFor { event: "e".to_owned(), step, timeout, timeout_ms: 1_000, headers, terms };
            let body = |key: NoteKey| came.filter(|_| early == Some(key)).ok_or(key);
            let (waited, outcome) = kept.decide(|workflow, out| workflow.wait(wait, body, &LIMITS, out));
            waited.expect("what came is there").map_or_else(drop, drop);
            outcome
        }
        4 => {
            let invoke = Invoke {
                id: None,
                step,
                run_id: "wfr_child".to_owned(),
                created_at: NOW,
                url: "https://app.example/child".to_owned(),
                run_headers: Vec::new(),
                redact: Default::default(),
                headers: Vec::new(),
                terms: OwnTerms::default(),
                size: 0,
                has_out: false,
            };
            let given = Bytes::copy_from_slice(text);
            kept.decide(|workflow, out| workflow.invoke(invoke, given, &LIMITS, out)).1
        }
        5 => kept.decide(|workflow, out| workflow.notify_or_keep("e", text, &LIMITS, out)).1,
        6 => {
            let (run_id, url) = ("wfr_1".to_owned(), "https://app.example/flow".to_owned());
            let to = Invoker { run_id, created_at: None, url, step, headers: Vec::new(), terms: OwnTerms::default() };
            let notice = Notice { tenant: TENANT, to, out: "{}".into() };
            kept.decide(|workflow, out| workflow.invoked_has_ended(&notice, out)).1
        }
        7 | 8 => {
            let status = if kind % 10 == 7 { 200 } else { 500 };
            let result = Ok(Response { status, body: text.to_vec(), ..Response::default() });
            let outcome = Brought { result, duration_ms: 1, phases: None };
            let next = if status == 200 { Next::Done } else { Next::DeadLetter };
            let attempt = Attempt { outcome: &outcome, retried: 0, next, sent: &[] };
            kept.decide(|workflow, out| workflow.attempted(index, attempt, out)).1
        }
        _ if number % 8 == 0 => kept.decide(|workflow, out| workflow.cancel(out)).1,
        _ => {
            let timer = kept.workflow.waits.first().map(|wait| wait.timer);
            kept.decide(|workflow, out| timer.into_iter().for_each(|timer| workflow.deadline_reached(timer, out))).1
        }
    }
}

/// Entries are only ever appended, and a run that has ended sends at most the notification of its end.
fn check_step(before: &Workflow, after: &Workflow, outcome: &Outcome) {
    assert!(after.entries.len() >= before.entries.len());
    for (old, new) in before.entries.iter().zip(&after.entries) {
        assert!((old.id, &old.gist, &old.terms) == (new.id, &new.gist, &new.terms), "an entry has changed");
    }
    if before.run.state != RunState::Started {
        assert_eq!(
            (after.run.state, after.entries.len()),
            (before.run.state, before.entries.len()),
            "an end is an end"
        );
        assert!(outcome.messages.is_empty() && outcome.withdrawn.is_empty());
    }
    let unique: std::collections::HashSet<&MessageId> = outcome.withdrawn.iter().collect();
    assert_eq!(unique.len(), outcome.withdrawn.len(), "a message is withdrawn once");
    for index in 0..after.entries.len() as u32 {
        let _obsolete = after.is_obsolete(index);
    }
}

/// A step that has a result never gets a second one.
fn check_results(before: &Workflow, after: &Workflow) {
    for new in after.entries[before.entries.len()..].iter().filter(|new| new.is_result() && new.gist.info.id > 0) {
        let is_there = before.entries.iter().any(|old| old.is_result() && old.gist.info.id == new.gist.info.id);
        assert!(!is_there, "step {} has two results", new.gist.info.id);
    }
}

/// The list is JSON, with every entry as it was sent.
fn check_list(record: &Record) {
    let entries = &record.workflow.entries;
    let last = entries.len() as u32 - 1;
    let list: Vec<serde_json::Value> = serde_json::from_slice(&record.array_up_to(last)).expect("a list is JSON");
    assert_eq!(list.len(), entries.len());
    for (element, entry) in list.iter().zip(entries) {
        let body = element["body"].as_str().and_then(from_base64);
        assert_eq!(body.as_deref(), Some(record.body(entry)));
        assert_eq!(
            (entry.gist.size, entry.gist.digest),
            (record.body(entry).len() as u64, Digest::of(record.body(entry)))
        );
        assert_eq!(element["callType"].as_str(), Some(entry.terms.call_type.name()));
    }
}
