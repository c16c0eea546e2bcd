//! Which runs a query names, in logs and in the DLQ.

use super::shape::{call_state, run_state};
use super::steps::StepState;
use crate::api::error::ApiError;
use crate::api::params::Params;
use posthaste_engine::workflow::run::{FailureCallState, RunState};
use posthaste_store::{RunFilter, UrlFilter};
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;

const RUN_STATES: [RunState; 4] = [RunState::Started, RunState::Success, RunState::Failed, RunState::Canceled];
const CALL_STATES: [FailureCallState; 4] =
    [FailureCallState::InProgress, FailureCallState::Success, FailureCallState::Failed, FailureCallState::Canceled];

/// What `state` names: runs and steps.
#[derive(Debug, Default)]
pub(super) struct States {
    pub(super) runs: Vec<RunState>,
    pub(super) steps: Vec<StepState>,
}

/// Reads `state`; `workflowRuns` wins over it, as over all filters.
pub(super) fn states(params: &Params) -> Result<States, ApiError> {
    let mut states = States::default();
    if params.has("workflowRuns") {
        return Ok(states);
    }
    for name in params.many(&["state"])? {
        let run = RUN_STATES.into_iter().find(|state| run_state(*state) == name);
        let step = StepState::ALL.into_iter().find(|state| state.name() == name);
        match (run, step) {
            (Some(run), _) => states.runs.push(run),
            (None, Some(step)) => states.steps.push(step),
            (None, None) => {
                let names = RUN_STATES.map(run_state).into_iter().chain(StepState::ALL.map(StepState::name));
                let names: Vec<_> = names.collect();
                let text = format!("state {name} does not exist; accepted are {}", names.join(", "));
                return Err(ApiError::invalid(text));
            }
        }
    }
    Ok(states)
}

/// What logs and the DLQ can both be asked for.
fn common(params: &Params) -> Result<RunFilter, ApiError> {
    let mut filter = RunFilter {
        ids: params.many_or_whole("workflowRunId")?,
        created_at: params.date("workflowCreatedAt")?,
        labels: params.many(&["label"])?,
        flow_keys: params.many_or_whole("flowControlKey")?,
        caller_ips: params.many(&["callerIp", "callerIP"])?,
        hosts: params.many(&["host"])?,
        paths: params.many_or_whole("path")?,
        from: params.date("fromDate")?,
        to: params.date("toDate")?,
        ..RunFilter::default()
    };
    let (urls, others) = (params.urls("workflowUrl")?, params.urls("url")?);
    let is_meant = |url: &String, by: &[String]| by.is_empty() || by.contains(url);
    let both = urls.iter().filter(|url| is_meant(url, &others));
    let both = both.chain(others.iter().filter(|_| urls.is_empty()));
    filter.urls = both.cloned().map(UrlFilter::Exact).collect();
    filter.nothing = filter.urls.is_empty() && !(urls.is_empty() && others.is_empty());
    Ok(filter)
}

/// Which runs a log is asked for; states are the caller's to add.
pub(super) fn of_logs(params: &Params) -> Result<RunFilter, ApiError> {
    if params.has("workflowRuns") {
        return Ok(RunFilter { instances: instances(params)?, ..RunFilter::default() });
    }
    let mut filter = common(params)?;
    let messages = params.many(&["messageId", "messageIds"])?;
    filter.messages = messages.iter().filter_map(|id| id.parse::<MessageId>().ok()).collect();
    filter.nothing |= filter.messages.is_empty() && !messages.is_empty();
    Ok(filter)
}

/// Which failed runs the DLQ is asked for.
pub(super) fn of_dlq(params: &Params) -> Result<RunFilter, ApiError> {
    let mut filter = common(params)?;
    for text in params.many(&["responseStatus"])? {
        let status = text.parse();
        let invalid = |_| ApiError::invalid(format!("responseStatus {text} is not an HTTP status"));
        filter.response_statuses.push(status.map_err(invalid)?);
    }
    for name in params.many(&["failureFunctionState", "failureCallbackState"])? {
        let Some(state) = CALL_STATES.into_iter().find(|state| call_state(*state) == name) else {
            let names = CALL_STATES.map(call_state).join(", ");
            return Err(ApiError::invalid(format!("failureFunctionState {name} does not exist; accepted are {names}")));
        };
        filter.failure_calls.push(state);
    }
    Ok(filter)
}

/// `workflowRuns=id@time,id@time`.
fn instances(params: &Params) -> Result<Vec<(String, Timestamp)>, ApiError> {
    let instance = |text: String| {
        let (id, time) = text.rsplit_once('@')?;
        Some((id.to_owned(), Timestamp(time.parse().ok()?)))
    };
    let read = |text: String| {
        let invalid = format!("workflowRuns: {text} is not a run id and creation time, such as wfr_a@1767225600000");
        instance(text).ok_or_else(|| ApiError::invalid(invalid))
    };
    params.many(&["workflowRuns"])?.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        Params::from_query(Some(query))
    }

    #[test]
    fn instances_win_over_all_other_filters() {
        let filter = of_logs(&params("workflowRunId=x&label=y&workflowRuns=wfr_a@7,wfr_b@c@8")).unwrap();
        let instances = vec![("wfr_a".to_owned(), Timestamp(7)), ("wfr_b@c".to_owned(), Timestamp(8))];
        assert_eq!(filter, RunFilter { instances, ..RunFilter::default() });
        for wrong in ["workflowRuns=wfr_a", "workflowRuns=wfr_a@x", "workflowRuns="] {
            assert!(of_logs(&params(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn filters_are_read_one_by_one() {
        let query = "workflowRunId=wfr_a&workflowCreatedAt=7&workflowUrl=http://a/b&label=x,y&label=z&host=a&path=/b\
                     &flowControlKey=k&callerIp=10.0.0.4&fromDate=1&toDate=9&unknown=1";
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let expected = RunFilter {
            ids: texts(&["wfr_a"]),
            created_at: Some(Timestamp(7)),
            urls: vec![UrlFilter::Exact("http://a/b".into())],
            labels: texts(&["x", "y", "z"]),
            hosts: texts(&["a"]),
            paths: texts(&["/b"]),
            flow_keys: texts(&["k"]),
            caller_ips: texts(&["10.0.0.4"]),
            from: Some(Timestamp(1)),
            to: Some(Timestamp(9)),
            ..RunFilter::default()
        };
        assert_eq!(of_logs(&params(query)).unwrap(), expected);
        assert_eq!(of_dlq(&params(query)).unwrap(), expected);
        let failed = of_dlq(&params("responseStatus=500,503&failureCallbackState=CALLBACK_FAIL")).unwrap();
        let calls = vec![FailureCallState::Failed];
        let expected = RunFilter { response_statuses: vec![500, 503], failure_calls: calls, ..RunFilter::default() };
        assert_eq!(failed, expected);
    }

    #[test]
    fn urls_may_be_repeated_or_listed_and_may_hold_commas() {
        let urls = |query: &str| {
            let exact = |url: UrlFilter| match url {
                UrlFilter::Exact(url) => url,
                UrlFilter::Prefix(start) => panic!("{start}"),
            };
            of_logs(&params(query)).unwrap().urls.into_iter().map(exact).collect::<Vec<_>>()
        };
        assert_eq!(urls("workflowUrl=http://a/b&workflowUrl=http://c"), ["http://a/b", "http://c"]);
        assert_eq!(urls("url=http://a/b,https://c"), ["http://a/b", "https://c", "http://a/b,https://c"]);
        assert_eq!(urls("workflowUrl=http://a/b%3Fids%3D1%2C2"), ["http://a/b?ids=1,2"]);
        assert_eq!(urls("url=http://a,http://b&workflowUrl=http://b,http://c"), ["http://b"]);
    }

    #[test]
    fn what_no_run_can_have_matches_nothing_and_what_is_wrong_is_refused() {
        assert!(of_logs(&params("messageId=msg_none")).unwrap().nothing);
        assert!(of_dlq(&params("url=http://a&workflowUrl=http://b")).unwrap().nothing);
        assert!(!of_dlq(&params("url=http://a&workflowUrl=http://a")).unwrap().nothing);
        for wrong in ["label=", "workflowUrl=", "fromDate=x", "responseStatus=x", "failureFunctionState=FAILED"] {
            assert!(of_dlq(&params(wrong)).is_err(), "{wrong}");
        }
        let found = states(&params("state=RUN_FAILED,STEP_RETRY")).unwrap();
        assert_eq!((found.runs, found.steps), (vec![RunState::Failed], vec![StepState::Retry]));
        assert!(states(&params("state=FAILED")).is_err());
        let none = states(&params("state=RUN_FAILED,STEP_RETRY&workflowRuns=wfr_a@7")).unwrap();
        assert!(none.runs.is_empty() && none.steps.is_empty(), "instances win over states, too");
    }
}
