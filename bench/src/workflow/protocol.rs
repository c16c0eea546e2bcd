//! The invocation protocol of durable workflows from the side of an endpoint: the required contents of a delivery, the
//! next step, and the requests that start a run, add a step to it and end it. Pure; start at [`replay`].
//!
//! A run is identified by its measurement and its number. Everything that it publishes follows from these two, so every
//! byte that comes back can be compared.

use crate::load::excerpt;
use crate::marker::Marker;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;

/// The features that the official SDK announces with every publish.
const FEATURES: &str = "LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig";
/// How long [`Script::Sleep`] sleeps: 7 days.
const SLEEP_SECONDS: u32 = 7 * 86_400;

/// One run of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunKey {
    pub(crate) measurement: u32,
    pub(crate) number: u32,
}

impl RunKey {
    /// The run's id at the server.
    pub(crate) fn id(self) -> String {
        format!("wfr_bench-{:08x}-{:08x}", self.measurement, self.number)
    }

    pub(crate) fn parse(id: &str) -> Option<Self> {
        let (measurement, number) = id.strip_prefix("wfr_bench-")?.split_once('-')?;
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        let key = Self { measurement: hex(measurement)?, number: hex(number)? };
        (key.id() == id).then_some(key)
    }
}

/// The steps of the runs at a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// This many trivial steps, one after the other.
    Steps(u32),
    /// One step that sleeps longer than any measurement takes.
    Sleep,
}

/// A step as it is published.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) body: String,
    pub(crate) delay_seconds: Option<u32>,
}

impl Script {
    /// The path of its runs' URL.
    pub(crate) fn path(self, measurement: u32) -> String {
        match self {
            Script::Steps(_) => format!("/steps/{measurement:08x}"),
            Script::Sleep => format!("/sleep/{measurement:08x}"),
        }
    }

    /// The script and the measurement of a path. Runs at `/steps/…` have `steps` steps.
    pub(crate) fn at(path: &str, steps: u32) -> Option<(Self, u32)> {
        let (kind, measurement) = path.strip_prefix('/')?.split_once('/')?;
        let script = match kind {
            "steps" => Script::Steps(steps),
            "sleep" => Script::Sleep,
            _ => return None,
        };
        Some((script, u32::from_str_radix(measurement, 16).ok()?))
    }

    /// The `nth` step of a run, counted from 1; `None` after the last one.
    fn step(self, key: RunKey, nth: usize) -> Option<Step> {
        match self {
            Script::Steps(steps) if nth <= steps as usize => {
                // Contains odd spaces, an escape and a letter beyond ASCII: parsing and rewriting the JSON would change
                // it.
                let out =
                    format!(r#"{{ "run":{},  "step" : {nth}, "sum":{}.50, "fa\u00e7ade":"œuvre" }}"#, key.number, nth);
                let out = Value::String(out);
                let body = format!(
                    r#"{{"stepId":{nth},"stepName":"step {nth}","stepType":"Run","out":{out},"concurrent":1}}"#
                );
                Some(Step { body, delay_seconds: None })
            }
            Script::Sleep if nth == 1 => {
                let body = format!(
                    r#"{{"stepId":1,"stepName":"nap","stepType":"SleepFor","sleepFor":{SLEEP_SECONDS},"concurrent":1}}"#
                );
                Some(Step { body, delay_seconds: Some(SLEEP_SECONDS) })
            }
            Script::Steps(_) | Script::Sleep => None,
        }
    }

    /// How often a finished run was delivered: once for its start and once for the result of every step.
    pub(crate) fn deliveries(self) -> u32 {
        match self {
            Script::Steps(steps) => steps + 1,
            Script::Sleep => 1,
        }
    }
}

/// The result of a run.
pub(crate) fn result(key: RunKey) -> String {
    format!(r#"{{"run" : {},"ok":true}}"#, key.number)
}

/// The payload that starts a run: a marker with the time.
pub(crate) fn payload(key: RunKey, sent_ns: u64) -> String {
    let mut marker = [0; Marker::LEN];
    Marker { run: key.measurement, sequence: key.number, sent_ns }.write(&mut marker);
    format!(r#"{{"m":"{}"}}"#, String::from_utf8_lossy(&marker))
}

/// One element of a delivery.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry<'a> {
    #[serde(borrow)]
    pub(crate) message_id: Cow<'a, str>,
    #[serde(borrow)]
    body: Cow<'a, str>,
    #[serde(borrow)]
    call_type: Cow<'a, str>,
}

/// The content of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    /// When the run was started.
    pub(crate) sent_ns: u64,
    pub(crate) next: Next,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Step(Step),
    /// All steps are done; this is the result.
    End(String),
}

/// Processes the entries of a delivery as the run's function would, and returns the next action, or the problem with
/// the entries.
pub(crate) fn replay(script: Script, key: RunKey, message_id: &str, entries: &[Entry]) -> Result<Replay, String> {
    let last = entries.last().ok_or("a delivery has no entries")?;
    if last.message_id != message_id {
        return Err(format!("the last entry of the delivery of {message_id} is {}", last.message_id));
    }
    let mut sent_ns = 0;
    for (position, entry) in entries.iter().enumerate() {
        if entry.call_type != "step" {
            return Err(format!("entry {position} is a {}", entry.call_type));
        }
        let found = STANDARD.decode(entry.body.as_bytes());
        let found = found.map_err(|error| format!("entry {position} is not base64: {error}"))?;
        let expected = match position {
            0 => {
                sent_ns = Marker::find(&found).ok_or("the first entry has no marker")?.sent_ns;
                payload(key, sent_ns)
            }
            _ => script.step(key, position).ok_or_else(|| format!("there is no step {position}"))?.body,
        };
        if found != expected.as_bytes() {
            return Err(format!("entry {position} is {}, not {expected}", excerpt(&found)));
        }
    }
    let next = match (script.step(key, entries.len()), script) {
        (Some(step), _) => Next::Step(step),
        (None, Script::Steps(_)) => Next::End(result(key)),
        (None, Script::Sleep) => return Err("a run that sleeps for days was woken up".into()),
    };
    Ok(Replay { sent_ns, next })
}

/// The batch element that starts a run, as the official client creates it.
pub(crate) fn trigger(key: RunKey, url: &str, sent_ns: u64) -> Value {
    let (id, body) = (key.id(), payload(key, sent_ns));
    json!({"destination": url, "body": body, "headers": {
        "content-type": "application/json",
        "upstash-method": "POST",
        "upstash-workflow-init": "true",
        "upstash-workflow-runid": id,
        "upstash-workflow-url": url,
        "upstash-workflow-sdk-version": "1",
        "upstash-forward-upstash-workflow-sdk-version": "1",
        "upstash-feature-set": FEATURES,
        "upstash-failure-callback": url,
        "upstash-failure-callback-workflow-runid": id,
        "upstash-failure-callback-workflow-init": "false",
        "upstash-failure-callback-workflow-url": url,
        "upstash-failure-callback-workflow-calltype": "failureCall",
        "upstash-failure-callback-feature-set": FEATURES,
        "upstash-failure-callback-forward-upstash-workflow-is-failure": "true",
        "upstash-failure-callback-forward-upstash-workflow-failure-callback": "true",
    }})
}

/// The body of the batch that adds a step to its run.
pub(crate) fn append(key: RunKey, url: &str, step: &Step) -> Vec<u8> {
    let mut element = json!({"destination": url, "body": step.body, "headers": {
        "content-type": "application/json",
        "upstash-method": "POST",
        "upstash-workflow-init": "false",
        "upstash-workflow-runid": key.id(),
        "upstash-workflow-url": url,
        "upstash-workflow-sdk-version": "1",
        "upstash-forward-upstash-workflow-sdk-version": "1",
        "upstash-feature-set": FEATURES,
    }});
    if let Some(seconds) = step.delay_seconds {
        element["headers"]["upstash-delay"] = format!("{seconds}s").into();
    }
    json!([element]).to_string().into_bytes()
}

/// The path that ends a run.
pub(crate) fn end_path(key: RunKey) -> String {
    format!("/v2/workflows/runs/{}?cancel=false", key.id())
}

/// A complete request to the API; `headers` are whole lines without their line breaks.
pub(crate) fn request(method: &str, path: &str, host: &str, headers: &[String], kind: &str, body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    head.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len()));
    [head.as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RunKey = RunKey { measurement: 0xabc, number: 17 };
    const SCRIPT: Script = Script::Steps(2);

    /// The entries of a run after this many steps, with ids `m0`, `m1` and so on.
    fn bodies(steps: usize) -> Vec<String> {
        let first = payload(KEY, 99);
        std::iter::once(first).chain((1..=steps).map(|nth| SCRIPT.step(KEY, nth).unwrap().body)).collect()
    }

    fn entries(bodies: &[String]) -> Vec<Entry<'static>> {
        let entry = |(nth, body): (usize, &String)| Entry {
            message_id: format!("m{nth}").into(),
            body: STANDARD.encode(body).into(),
            call_type: "step".into(),
        };
        bodies.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn ids_and_paths_are_read_back() {
        assert_eq!(RunKey::parse(&KEY.id()), Some(KEY));
        for id in ["wfr_bench-abc-11", "wfr_other", "wfr_bench-00000abc-0000001g"] {
            assert_eq!(RunKey::parse(id), None, "{id}");
        }
        for script in [Script::Steps(5), Script::Sleep] {
            assert_eq!(Script::at(&script.path(7), 5), Some((script, 7)));
        }
        assert_eq!(Script::at("/other/7", 5), None);
    }

    #[test]
    fn a_delivery_asks_for_the_step_after_its_last_entry() {
        for steps in 0..2 {
            let found = replay(SCRIPT, KEY, &format!("m{steps}"), &entries(&bodies(steps))).unwrap();
            let step = SCRIPT.step(KEY, steps + 1).unwrap();
            assert_eq!(found, Replay { sent_ns: 99, next: Next::Step(step) });
        }
        let end = replay(SCRIPT, KEY, "m2", &entries(&bodies(2))).unwrap();
        assert_eq!(end.next, Next::End(r#"{"run" : 17,"ok":true}"#.into()));
    }

    #[test]
    fn a_sleeper_sleeps_and_must_not_wake_up() {
        let start = bodies(0);
        let found = replay(Script::Sleep, KEY, "m0", &entries(&start)).unwrap();
        let Next::Step(step) = found.next else { panic!("it must sleep") };
        assert_eq!(step.delay_seconds, Some(604_800));
        let awake = [start[0].clone(), step.body];
        let problem = replay(Script::Sleep, KEY, "m1", &entries(&awake)).unwrap_err();
        assert!(problem.contains("woken up"), "{problem}");
    }

    #[test]
    fn wrong_deliveries_are_distinguished() {
        let right = bodies(2);
        let of = |change: &dyn Fn(&mut Vec<Entry>)| {
            let mut entries = entries(&right);
            change(&mut entries);
            replay(SCRIPT, KEY, "m2", &entries).unwrap_err()
        };
        let normalised = serde_json::from_str::<Value>(&right[1]).unwrap();
        let cases: [(&str, String); 8] = [
            ("has no entries", of(&|entries| entries.clear())),
            ("is m1", of(&|entries| drop(entries.pop()))),
            (
                "entry 1 is",
                of(&|entries| {
                    entries.swap(1, 2);
                    entries[2].message_id = "m2".into();
                }),
            ),
            ("entry 1 is a toCallback", of(&|entries| entries[1].call_type = "toCallback".into())),
            ("not base64", of(&|entries| entries[1].body = "?".into())),
            ("no marker", of(&|entries| entries[0].body = STANDARD.encode("{}").into())),
            ("entry 0 is", of(&|entries| entries[0].body = STANDARD.encode(payload(KEY, 99) + " ").into())),
            ("entry 1 is", of(&|entries| entries[1].body = STANDARD.encode(normalised.to_string()).into())),
        ];
        for (expected, found) in cases {
            assert!(found.contains(expected), "{found:?} lacks {expected:?}");
        }
        let beyond = [right.clone(), vec!["{}".into()]].concat();
        assert_eq!(replay(SCRIPT, KEY, "m3", &entries(&beyond)), Err("there is no step 3".into()));
        let other = RunKey { number: 18, ..KEY };
        assert!(replay(SCRIPT, other, "m0", &entries(&bodies(0))).is_err(), "another run's start");
    }

    #[test]
    fn a_result_must_keep_its_bytes() {
        let body = SCRIPT.step(KEY, 1).unwrap().body;
        let out = serde_json::from_str::<Value>(&body).unwrap()["out"].as_str().unwrap().to_owned();
        let value: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(value["façade"], "œuvre");
        assert_ne!(value.to_string(), out, "JSON that is read and written again is other text");
    }

    #[test]
    fn a_sleeping_step_carries_its_delay() {
        let step = Script::Sleep.step(KEY, 1).unwrap();
        let batch: Value = serde_json::from_slice(&append(KEY, "http://127.0.0.1:1/sleep/abc", &step)).unwrap();
        assert_eq!(batch[0]["headers"]["upstash-delay"], "604800s");
        let step = SCRIPT.step(KEY, 1).unwrap();
        let batch: Value = serde_json::from_slice(&append(KEY, "http://127.0.0.1:1/steps/abc", &step)).unwrap();
        assert_eq!(batch[0]["headers"]["upstash-delay"], Value::Null);
        assert_eq!(batch[0]["body"], step.body);
    }
}
