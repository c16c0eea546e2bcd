//! The headers and steps of a workflow client, as far as the server must understand them.
//!
//! The server never changes a step and reads only its metadata, for decisions and logs.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Features that the client of a run supports, from `Upstash-Feature-Set`. Unknown names are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// The client fetches the steps itself if a delivery has no body.
    pub lazy_fetch: bool,
    /// A failure callback contains the payload of the trigger, not the body of the failed delivery.
    pub initial_body: bool,
    /// A first response that no workflow would give ends the run.
    pub detect_trigger: bool,
    /// The settings of the trigger apply to all entries.
    pub trigger_on_config: bool,
    /// A failed call is a result and does not end the run.
    pub no_delete: bool,
}

impl Features {
    /// The features that the newest client sends with a trigger. The server uses them for triggers without a client.
    pub const OF_TRIGGER: Features = Features {
        lazy_fetch: true,
        initial_body: true,
        detect_trigger: true,
        trigger_on_config: true,
        no_delete: false,
    };

    /// Reads the values of the header: names separated by commas, in any number of header lines.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Features {
        let mut features = Features::default();
        for name in values.into_iter().flat_map(|value| value.split(',')) {
            match name.trim() {
                "LazyFetch" => features.lazy_fetch = true,
                "InitialBody" => features.initial_body = true,
                "WF_DetectTrigger" => features.detect_trigger = true,
                "WF_TriggerOnConfig" => features.trigger_on_config = true,
                "WF_NoDelete" => features.no_delete = true,
                _ => {}
            }
        }
        features
    }
}

/// The kind of a run's entry, from `Upstash-Workflow-CallType`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum CallType {
    /// A step, or the trigger.
    Step,
    /// A call to another service.
    ToCallback,
    /// The result of such a call.
    FromCallback,
    /// A kind that a later client may add; stored and forwarded unchanged.
    Other(String),
}

impl CallType {
    /// The name on the wire.
    pub fn name(&self) -> &str {
        match self {
            CallType::Step => "step",
            CallType::ToCallback => "toCallback",
            CallType::FromCallback => "fromCallback",
            CallType::Other(name) => name,
        }
    }
}

impl From<String> for CallType {
    fn from(name: String) -> Self {
        match name.as_str() {
            "step" => CallType::Step,
            "toCallback" => CallType::ToCallback,
            "fromCallback" => CallType::FromCallback,
            _ => CallType::Other(name),
        }
    }
}

impl From<CallType> for String {
    fn from(call_type: CallType) -> Self {
        call_type.name().to_owned()
    }
}

/// Longest name of a step's kind. A longer name is ignored.
pub const KIND_BYTES_MAX: usize = 64;

/// The metadata of a step. Fields that are missing or malformed count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepInfo {
    /// Its number within the function, from 1; 0 announces a branch of a parallel group.
    pub id: u32,
    /// `Run`, `SleepFor`, `Call` and so on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The number of steps in its group.
    pub concurrent: u32,
    /// The number of the announced branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<u32>,
}

impl StepInfo {
    /// Reads a step.
    pub fn parse(text: &[u8]) -> StepInfo {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Raw {
            step_id: serde_json::Value,
            step_type: serde_json::Value,
            concurrent: serde_json::Value,
            target_step: serde_json::Value,
        }
        let raw: Raw = serde_json::from_slice(text).unwrap_or_default();
        let number = |value: &serde_json::Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let kind = raw.step_type.as_str().filter(|kind| kind.len() <= KIND_BYTES_MAX);
        StepInfo {
            id: number(&raw.step_id).unwrap_or(0),
            kind: kind.unwrap_or_default().to_owned(),
            concurrent: number(&raw.concurrent).unwrap_or(1),
            target: number(&raw.target_step).filter(|target| *target > 0),
        }
    }

    /// Whether it announces a branch and holds no result.
    pub fn is_plan(&self) -> bool {
        self.target.is_some()
    }
}

/// The time of a `SleepUntil` step, in Unix seconds with a fraction. Clients round the time in the header.
pub fn sleep_until(step: &[u8]) -> Option<Timestamp> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Raw {
        step_type: String,
        sleep_until: f64,
    }
    let raw: Raw = serde_json::from_slice(step).ok().filter(|raw: &Raw| raw.step_type == "SleepUntil")?;
    // First rounds to the microsecond, because fractions of a second are seldom exact. Then rounds up, so that no run
    // resumes early.
    let millis = ((raw.sleep_until * 1e6).round() / 1e3).ceil();
    // Values that are not a number, negative or too large become the nearest valid time.
    (millis > 0.0).then_some(Timestamp(millis as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_until_is_exact() {
        let step = |kind: &str, until: &str| format!(r#"{{"stepId":1,"stepType":"{kind}","sleepUntil":{until}}}"#);
        for (until, expected) in [
            ("1767225600", Some(1_767_225_600_000)),
            ("1767225600.123", Some(1_767_225_600_123)),
            ("1767225600.4996", Some(1_767_225_600_500)),
            ("-5", None),
            ("\"soon\"", None),
            ("null", None),
            ("1e300", Some(u64::MAX)),
        ] {
            assert_eq!(sleep_until(step("SleepUntil", until).as_bytes()), expected.map(Timestamp), "{until}");
        }
        assert_eq!(sleep_until(step("SleepFor", "1767225600").as_bytes()), None);
        assert_eq!(sleep_until(b"no JSON"), None);
    }

    #[test]
    fn names_of_kinds_are_bounded() {
        let step = |kind: &str| StepInfo::parse(format!(r#"{{"stepId":1,"stepType":"{kind}"}}"#).as_bytes()).kind;
        assert_eq!(step(&"k".repeat(KIND_BYTES_MAX)).len(), KIND_BYTES_MAX);
        assert_eq!(step(&"k".repeat(KIND_BYTES_MAX + 1)), "", "it is kept in RAM with every step");
    }

    #[test]
    fn features_are_read_over_lines_and_spaces() {
        let all = ["LazyFetch, InitialBody", "WF_DetectTrigger,WF_TriggerOnConfig,WF_New"];
        assert_eq!(Features::parse(all), Features::OF_TRIGGER);
        let call = Features { no_delete: true, initial_body: true, ..Features::default() };
        assert_eq!(Features::parse(["WF_NoDelete,InitialBody"]), call);
        assert_eq!(Features::parse([""]), Features::default());
    }

    #[test]
    fn call_types_survive_being_stored() {
        for name in ["step", "toCallback", "fromCallback", "stepConfig"] {
            let call_type = CallType::from(name.to_owned());
            assert_eq!(serde_json::to_string(&call_type).unwrap(), format!("{name:?}"));
            assert_eq!(serde_json::from_str::<CallType>(&format!("{name:?}")).unwrap(), call_type);
        }
    }

    #[test]
    fn steps_are_read_as_far_as_they_make_sense() {
        let plan = br#"{"stepId":0,"stepName":"a","stepType":"SleepFor","concurrent":2,"targetStep":3,"sleepFor":5}"#;
        let info = StepInfo::parse(plan);
        assert_eq!((info.id, info.kind.as_str(), info.concurrent, info.target), (0, "SleepFor", 2, Some(3)));
        assert!(info.is_plan());
        let python = br#"{"stepId":1,"stepName":"b","stepType":"Run","out":"null","concurrent":1,"targetStep":0}"#;
        assert!(!StepInfo::parse(python).is_plan(), "Python writes targetStep 0 for none");
        for malformed in [&b"not json"[..], b"[]", b"null", br#"{"stepId":-1,"stepName":7}"#, b"\xff"] {
            assert_eq!(StepInfo::parse(malformed), StepInfo { concurrent: 1, ..StepInfo::default() });
        }
    }
}
