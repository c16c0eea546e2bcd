//! Which runs: the forms of the lists, and what a bulk cancel understands of them.

use crate::console::filters::{Field, Form, choice, field};
use crate::console::visitor::Problem;

pub(super) use crate::console::filters::Filters;

const STATES: &[(&str, &str)] = &[
    ("", "any"),
    ("RUN_STARTED", "running"),
    ("RUN_SUCCESS", "succeeded"),
    ("RUN_FAILED", "failed"),
    ("RUN_CANCELED", "cancelled"),
    ("STEP_PROGRESS", "has a step in progress"),
    ("STEP_RETRY", "has a step that is retrying"),
    ("STEP_FAILED", "has a failed step"),
    ("STEP_CANCELED", "has a cancelled step"),
    ("STEP_SUCCESS", "has a completed step"),
];

const CALLBACK_STATES: &[(&str, &str)] = &[
    ("", "any"),
    ("CALLBACK_FAIL", "failed"),
    ("CALLBACK_INPROGRESS", "in progress"),
    ("CALLBACK_SUCCESS", "succeeded"),
    ("CALLBACK_CANCELED", "cancelled"),
];

/// Fields of both forms: what is asked for most, and the others.
const NAMES: &[Field] = &[
    field("workflowRunId", "Run ID", "wfr_…"),
    field("label", "Label", ""),
    field("workflowUrl", "Exact URL", "https://…"),
];
const OTHERS: &[Field] = &[
    field("host", "Host", "app.example.com"),
    field("path", "Path", "/api/order"),
    field("flowControlKey", "Flow-control key", ""),
    field("callerIp", "Caller IP", "10.0.0.7"),
    field("workflowCreatedAt", "Created at (Unix ms)", "1767225600000"),
    field("fromDate", "Created from (UTC)", ""),
    field("toDate", "Created to (UTC)", ""),
];
const HINT: &str = "Separate several values with commas to match any of them.";

/// Of `/v2/workflows/logs`.
pub(super) const RUNS: Form = Form {
    path: super::PATH,
    common: &[&[choice("state", "State", STATES)], NAMES],
    others: &[OTHERS, &[field("messageId", "Message ID of a step", "msg_…")]],
    hint: HINT,
};

/// Of `/v2/workflows/dlq`.
pub(super) const FAILED: Form = Form {
    path: super::FAILED_PATH,
    common: &[NAMES, &[field("responseStatus", "Last status", "500")]],
    others: &[&[choice("failureFunctionState", "Failure callback", CALLBACK_STATES)], OTHERS],
    hint: HINT,
};

/// As a bulk cancel wants them; says why there can be none.
pub(super) fn for_cancel(filters: &Filters, count: &str) -> Result<String, Problem> {
    if !matches!(filters.value("state"), "" | "RUN_STARTED") {
        let text = "runs cannot be cancelled by “State”; remove that filter or choose “running”";
        return Err(Problem::refused(text));
    }
    let exact = if filters.value("workflowUrl").is_empty() { "" } else { "true" };
    let more = [("state", ""), ("workflowUrlExactMatch", exact), ("count", count)];
    filters.for_cancel("runs", &["messageId", "workflowCreatedAt"], &more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_has_its_own_filters() {
        for (form, is_empty) in [(&RUNS, true), (&FAILED, false)] {
            assert_eq!(Filters::read(form, "cursor=1-2&responseStatus=500").is_empty(), is_empty);
        }
    }

    #[test]
    fn a_cancel_has_the_filters_of_the_list_or_is_refused() {
        let cancel = |text: &str| for_cancel(&Filters::read(&RUNS, text), "500").map_err(|problem| problem.text);
        assert_eq!(cancel("").unwrap(), "count=500");
        assert_eq!(
            cancel("workflowUrl=http%3A%2F%2Fa&state=RUN_STARTED&cursor=1-2&toDate=7").unwrap(),
            "workflowUrl=http%3A%2F%2Fa&toDate=7&workflowUrlExactMatch=true&count=500"
        );
        for refused in ["state=RUN_FAILED", "state=STEP_RETRY", "messageId=msg_1", "workflowCreatedAt=7"] {
            assert!(cancel(refused).is_err(), "{refused}");
        }
    }
}
