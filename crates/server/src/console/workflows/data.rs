//! What pages read of the API's answers about runs.
//!
//! Much of a step is what a stranger's program said of it, in any form: [`loose`] takes it as text.

use posthaste_api_types::workflow::{RunState, StepState};
use posthaste_engine::attempt_error::{Timeout, for_people};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A page of `/v2/workflows/logs`.
#[derive(Deserialize)]
pub(super) struct RunPage {
    pub(super) runs: Vec<Run>,
    pub(super) cursor: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Run {
    #[serde(rename = "workflowRunId")]
    pub(super) id: String,
    #[serde(rename = "workflowUrl")]
    pub(super) url: String,
    #[serde(rename = "workflowState")]
    pub(super) state: RunState,
    #[serde(rename = "workflowRunCreatedAt")]
    pub(super) created_at: u64,
    #[serde(rename = "workflowRunCompletedAt")]
    pub(super) completed_at: Option<u64>,
    #[serde(rename = "workflowRunResponse")]
    pub(super) response: Option<String>,
    #[serde(rename = "workflowRunCallerIp")]
    pub(super) caller_ip: Option<String>,
    pub(super) flow_control_key: Option<String>,
    #[serde(default)]
    pub(super) labels: Vec<String>,
    pub(super) invoker: Option<Invoker>,
    pub(super) dlq_id: Option<String>,
    pub(super) failure_function: Option<FailureFunction>,
    pub(super) usage: Option<Usage>,
    #[serde(default)]
    pub(super) steps: Vec<Group>,
}

impl Run {
    pub(super) fn is_running(&self) -> bool {
        self.state == RunState::Started
    }

    /// When it ended, or now.
    pub(super) fn end(&self, now: Timestamp) -> u64 {
        self.completed_at.unwrap_or(now.as_millis()).max(self.created_at)
    }

    /// Why it failed: what the step that failed last has met.
    pub(super) fn cause(&self) -> Option<String> {
        let steps = self.steps.iter().rev().flat_map(|group| &group.steps);
        let failed = steps.filter(|step| step.state == StepState::Failed).find(|step| !step.errors.is_empty())?;
        let at = failed.name().map(|name| format!(", in “{name}”")).unwrap_or_default();
        failed.errors.last().map(|error| error.in_words() + &at)
    }

    /// How many steps it has, and how many of them are done. The trigger is none, and what comes next is known once it has
    /// told its name, by failing.
    pub(super) fn count(&self) -> (usize, usize) {
        let steps = self.steps.iter().flat_map(|group| group.steps.iter().map(|step| (step, group.kind == "next")));
        let known = steps.filter(|(step, is_next)| !step.is_trigger() && (!is_next || step.name().is_some()));
        known
            .map(|(step, _)| step)
            .fold((0, 0), |(all, done), step| (all + 1, done + usize::from(step.state == StepState::Success)))
    }
}

#[derive(Deserialize)]
pub(super) struct Invoker {
    #[serde(rename = "workflowRunId")]
    pub(super) id: String,
    #[serde(rename = "workflowRunCreatedAt")]
    pub(super) created_at: Option<u64>,
}

/// How much a run has of what it may have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Usage {
    pub(super) entries: u64,
    pub(super) max_entries: u64,
    pub(super) bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) max_duration: u64,
}

#[derive(Deserialize)]
pub(super) struct Group {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) steps: Vec<Step>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Step {
    pub(super) step_id: Option<u64>,
    #[serde(deserialize_with = "loose")]
    pub(super) step_name: Option<String>,
    #[serde(deserialize_with = "loose")]
    pub(super) step_type: Option<String>,
    pub(super) message_id: Option<String>,
    pub(super) out: Option<String>,
    pub(super) retries: u64,
    pub(super) retry_delay: Option<String>,
    pub(super) state: StepState,
    pub(super) created_at: Option<u64>,
    pub(super) headers: Value,
    pub(super) next_delivery_time: Option<u64>,
    pub(super) errors: Vec<StepError>,
    pub(super) execution: Option<Execution>,
    #[serde(deserialize_with = "loose")]
    pub(super) sleep_for: Option<String>,
    #[serde(deserialize_with = "loose")]
    pub(super) sleep_until: Option<String>,
    #[serde(deserialize_with = "loose")]
    pub(super) wait_event_id: Option<String>,
    pub(super) wait_timeout: bool,
    #[serde(deserialize_with = "loose")]
    pub(super) wait_timeout_duration: Option<String>,
    pub(super) wait_timeout_deadline: Option<u64>,
    #[serde(deserialize_with = "loose")]
    pub(super) call_url: Option<String>,
    #[serde(deserialize_with = "loose")]
    pub(super) call_method: Option<String>,
    pub(super) call_headers: Value,
    pub(super) call_body: Option<String>,
    #[serde(deserialize_with = "loose")]
    pub(super) call_response_status: Option<String>,
    pub(super) call_response_headers: Value,
    pub(super) call_response_body: Option<String>,
    #[serde(rename = "invokedWorkflowRunId")]
    pub(super) invoked_id: Option<String>,
    #[serde(rename = "invokedWorkflowUrl")]
    pub(super) invoked_url: Option<String>,
    #[serde(rename = "invokedWorkflowCreatedAt")]
    pub(super) invoked_created_at: Option<u64>,
    #[serde(rename = "invokedWorkflowRunBody")]
    pub(super) invoked_body: Option<String>,
    #[serde(rename = "invokedWorkflowRunHeaders")]
    pub(super) invoked_headers: Value,
}

impl Step {
    /// The first one stands for what started the run.
    pub(super) fn is_trigger(&self) -> bool {
        self.step_id.is_none() && self.step_type.as_deref() == Some("Initial")
    }

    /// It is over when its time has come.
    pub(super) fn is_sleep(&self) -> bool {
        self.sleep_for.is_some() || self.sleep_until.is_some()
    }

    /// Its name, if the program has told it.
    pub(super) fn name(&self) -> Option<&str> {
        self.step_name.as_deref().filter(|name| !name.is_empty())
    }

    /// Whether it waits for a time that need not be waited for: a retry, a sleep or a delayed start.
    pub(super) fn can_go_now(&self, now: Timestamp) -> bool {
        let is_later = self.next_delivery_time.is_some_and(|due| due > now.as_millis());
        is_later && matches!(self.state, StepState::Retry | StepState::Progress)
    }
}

#[derive(Deserialize)]
pub(super) struct StepError {
    #[serde(default)]
    pub(super) error: String,
    #[serde(default)]
    pub(super) headers: Value,
    #[serde(default)]
    pub(super) body: String,
    pub(super) time: u64,
}

impl StepError {
    /// What went wrong, with what the program says of it.
    pub(super) fn in_words(&self) -> String {
        let error = for_people(&self.error, Timeout::Unknown);
        message_of(&self.body).map_or_else(|| error.clone().into_owned(), |message| format!("{error}: {message}"))
    }
}

/// How often a step was attempted, and how the last attempt went.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Execution {
    pub(super) attempts: u64,
    pub(super) started_at: Option<u64>,
    pub(super) duration: Option<u64>,
}

/// How telling of a failure stands.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FailureFunction {
    pub(super) message_id: String,
    pub(super) state: String,
    pub(super) fail_status: u16,
    #[serde(default)]
    pub(super) fail_response: String,
    #[serde(default)]
    pub(super) errors: Vec<StepError>,
    pub(super) response_status: Option<u16>,
    pub(super) response_body: Option<String>,
    pub(super) next_delivery_time: Option<u64>,
}

/// A page of `/v2/workflows/dlq`.
#[derive(Deserialize)]
pub(super) struct FailedPage {
    pub(super) messages: Vec<Failed>,
    pub(super) cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failed {
    pub(super) dlq_id: String,
    #[serde(rename = "workflowRunId")]
    pub(super) id: String,
    #[serde(rename = "workflowUrl")]
    pub(super) url: String,
    #[serde(rename = "workflowCreatedAt")]
    pub(super) created_at: u64,
    #[serde(default)]
    pub(super) labels: Vec<String>,
    pub(super) error: Option<String>,
    pub(super) response_status: u16,
    pub(super) response_body: Option<String>,
    pub(super) failure_function_state: Option<String>,
}

impl Failed {
    /// When it failed: its id in the DLQ says so.
    pub(super) fn failed_at(&self) -> Option<Timestamp> {
        self.dlq_id.split('-').next()?.parse().ok().map(Timestamp)
    }

    /// Why, in one line.
    pub(super) fn cause(&self) -> String {
        let answer = self.response_body.as_deref().map(str::trim).filter(|text| !text.is_empty());
        match (&self.error, answer) {
            (Some(error), _) => for_people(error, Timeout::Unknown).into_owned(),
            (None, Some(answer)) => {
                format!("{}: {}", self.response_status, message_of(answer).as_deref().unwrap_or(answer))
            }
            (None, None) => format!("{} without a body", self.response_status),
        }
    }
}

/// Who waits for an event.
#[derive(Deserialize)]
pub(super) struct Waiter {
    pub(super) url: String,
    /// Unix seconds.
    pub(super) deadline: u64,
    #[serde(default)]
    headers: Value,
}

impl Waiter {
    /// The run that waits.
    pub(super) fn run(&self) -> Option<&str> {
        self.headers["Upstash-Workflow-Runid"][0].as_str()
    }
}

/// What a program says went wrong: clients answer with an object that has a message.
pub(super) fn message_of(body: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(body).ok()?;
    answer["message"].as_str().filter(|message| !message.is_empty()).map(str::to_owned)
}

/// A text, or whatever else there is as JSON.
fn loose<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(reader)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_step_with_fields_of_any_type_is_read() {
        let step = json!({
            "stepName": "nap", "stepType": "SleepFor", "sleepFor": 7, "waitEventId": { "a": 1 }, "callUrl": null,
            "callResponseStatus": 200, "state": "STEP_SUCCESS", "headers": { "A": ["b"] }, "unknown": [],
        });
        let step: Step = serde_json::from_value(step).unwrap();
        assert_eq!((step.sleep_for.as_deref(), step.wait_event_id.as_deref()), (Some("7"), Some("{\"a\":1}")));
        assert_eq!((step.call_url, step.call_response_status.as_deref()), (None, Some("200")));
    }

    #[test]
    fn a_failed_step_counts_as_known_but_not_completed() {
        let step = |name: &str, state: &str| json!({ "stepName": name, "stepId": 1, "state": state });
        let run = |next: Value| {
            let groups = json!([
                { "type": "sequential", "steps": [{ "stepName": "init", "stepType": "Initial", "state": "STEP_SUCCESS" }] },
                { "type": "sequential", "steps": [step("pay", "STEP_SUCCESS")] },
                { "type": "next", "steps": [next] },
            ]);
            Run { steps: serde_json::from_value(groups).unwrap(), ..Run::default() }
        };
        assert_eq!(run(step("", "STEP_PROGRESS")).count(), (1, 1));
        assert_eq!(run(step("charge", "STEP_FAILED")).count(), (2, 1));
        assert_eq!(run(step("charge", "STEP_RETRY")).count(), (2, 1));
    }

    #[test]
    fn the_cause_of_a_failure_is_the_error_or_else_the_response() {
        let failed = |error: Option<&str>, body: &str| {
            let failed = json!({
                "dlqId": "1767225614000-7", "workflowRunId": "wfr_1", "workflowUrl": "http://app", "workflowCreatedAt": 1,
                "error": error, "responseStatus": 500, "responseBody": body,
            });
            serde_json::from_value::<Failed>(failed).unwrap()
        };
        assert_eq!(failed(Some("quota exceeded"), "boom").cause(), "quota exceeded");
        assert_eq!(failed(Some("context deadline exceeded"), "").cause(), "no response in time");
        assert_eq!(failed(None, " boom\n").cause(), "500: boom");
        assert_eq!(
            failed(None, "{\"error\":\"Error\",\"message\":\"no such customer\"}").cause(),
            "500: no such customer"
        );
        assert_eq!(failed(None, "").cause(), "500 without a body");
        assert_eq!(failed(None, "").failed_at(), Some(Timestamp(1_767_225_614_000)));
    }
}
