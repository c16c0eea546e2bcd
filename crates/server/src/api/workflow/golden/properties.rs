//! Whatever is sent: it is refused with words, or what comes of it can be delivered.

use super::{U, bounds};
use crate::api::publish::Line;
use crate::api::workflow::protocol::Protocol;
use crate::api::workflow::translate::{self, Item, Wanted};
use bytes::Bytes;
use posthaste_engine::limits::{RETRIES_MAX, WORKFLOW_NAME_BYTES_MAX};
use posthaste_engine::workflow::run::FailureCall;
use posthaste_wire::header;
use proptest::prelude::*;
use serde_json::json;

fn any_header() -> impl Strategy<Value = (String, Vec<u8>)> {
    let name = "(?i)(upstash-)?(failure-callback-|callback-)?(forward-)?(upstash-)?(workflow-(init|runid|createdat\
                |calltype|invoke|invoke-count|unknown-sdk|trigger-by-sdk|sdk-version|stepid|is-failure|url)|feature-set\
                |label|retries|retry-delay|delay|not-before|timeout|method|flow-control-key|flow-control-value\
                |redact-fields|callback|failure-callback|content-type|host|content-length|connection|user-agent|signature|message-id|proxy-x\
                |authorization|cookie|x-[a-z]{1,3}|cron|[a-z é-]{0,4})";
    let value = prop_oneof![
        "(true|false|step|toCallback|wfr_[a-z]|[0-9]{1,4}|5s|a,b|body|rate=1|head|https://a.example/)"
            .prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..12),
    ];
    // What makes all the others count.
    let decisive = prop_oneof![
        Just(("upstash-workflow-runid", "wfr_1")),
        Just(("upstash-workflow-init", "true")),
        Just(("upstash-workflow-calltype", "toCallback")),
        Just(("upstash-callback", "https://a.example/")),
        Just(("upstash-failure-callback", "https://a.example/")),
        Just(("upstash-callback-forward-upstash-workflow-stepid", "3")),
        Just(("upstash-workflow-invoke", "true")),
    ];
    prop_oneof![
        2 => (name, value),
        1 => decisive.prop_map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())),
    ]
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let headers = json!({ "Upstash-Forward-Host": ["a"], "Upstash-Forward-X": ["b"] });
    let step = json!({ "stepId": 1 });
    let invoke = json!({ "workflowRunId": "wfr_p", "workflowUrl": "u", "step": step, "headers": headers });
    prop_oneof![Just(invoke.to_string().into_bytes()), proptest::collection::vec(any::<u8>(), 0..20)]
}

/// Whether these headers can go out with a delivery. A call's may be of the protocol, the user having chosen them.
fn assert_deliverable(headers: &[(String, String)]) -> Result<(), TestCaseError> {
    for (name, value) in headers {
        prop_assert!(header::is_valid_name(name) && *name == header::canonical(name), "{name}");
        prop_assert!(!header::is_hop_by_hop_or_framing(name) && !header::is_set_by_server(name), "{name}");
        prop_assert!(!name.eq_ignore_ascii_case(header::CONTENT_TYPE), "{name}");
        prop_assert!(!value.contains(|c: char| c.is_control() && c != '\t'), "{name}: {value:?}");
    }
    Ok(())
}

fn has(headers: &[(String, String)], name: &str) -> bool {
    headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name))
}

fn assert_told(failure: Option<&FailureCall>) -> Result<(), TestCaseError> {
    let Some(failure) = failure else { return Ok(()) };
    assert_deliverable(&failure.headers)?;
    prop_assert!(!has(&failure.headers, header::WORKFLOW_SDK_VERSION), "its body is no list of entries");
    Ok(())
}

fn assert_sound(wanted: &Wanted) -> Result<(), TestCaseError> {
    let entry = match wanted {
        Wanted::Start(run) => {
            prop_assert!((1..=WORKFLOW_NAME_BYTES_MAX).contains(&run.id.len()) && run.config.retries <= RETRIES_MAX);
            assert_deliverable(&run.config.headers)?;
            prop_assert!(!run.config.headers.iter().any(|(name, _)| name.starts_with("Upstash-")));
            prop_assert!(has(&run.first.headers, header::WORKFLOW_SDK_VERSION));
            assert_told(run.config.failure.as_ref())?;
            if let Some(by) = &run.invoked_by {
                assert_deliverable(&by.headers)?;
            }
            &run.first
        }
        Wanted::Append(run, entry) => {
            prop_assert!((1..=WORKFLOW_NAME_BYTES_MAX).contains(&run.id.len()));
            entry
        }
    };
    assert_deliverable(&entry.headers)?;
    prop_assert!(entry.retries.is_none_or(|retries| retries <= RETRIES_MAX) && !entry.content_type.is_empty());
    assert_told(entry.failure.as_ref())?;
    if let Some(call) = &entry.call {
        assert_deliverable(&call.result_headers)?;
        prop_assert!(!has(&call.result_headers, header::WORKFLOW_SDK_VERSION) && call.step > 0);
        prop_assert!(entry.body.is_empty() || !["GET", "HEAD"].contains(&call.method.as_str()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_is_sent_is_refused_or_can_be_delivered(
        headers in proptest::collection::vec(any_header(), 0..12),
        body in any_body(),
    ) {
        let lines: Vec<Line<'_>> = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        let item = || Item { url: U, lines: &lines, body: Bytes::from(body.clone()) };
        let read = Protocol::read(&lines).and_then(|protocol| translate::wanted(&protocol, item(), &bounds()));
        match &read {
            Ok(wanted) => assert_sound(wanted)?,
            Err(rejection) => prop_assert!(!rejection.message.is_empty()),
        }
        if let Ok(run) = translate::triggered(item(), &bounds()) {
            assert_sound(&Wanted::Start(Box::new(run)))?;
        }
    }
}
