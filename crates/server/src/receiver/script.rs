//! What the URL of the test receiver asks it to answer: `500,500,200`, `200+3s`, `hang`, `489`.

use axum::http::StatusCode;
use posthaste_wire::duration::parse_duration;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Answers that a script can have.
const SCRIPT_STEPS_MAX: usize = 20;
/// Longest delay before an answer.
pub(super) const ANSWER_DELAY_MS_MAX: u64 = 10 * 60 * 1_000;

/// One answer for each attempt; the last one for all further ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script(Vec<Step>);

/// What one attempt is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A status, after a while.
    Answer {
        /// The status.
        status: StatusCode,
        /// How long it takes.
        delay: Duration,
    },
    /// Nothing, ever.
    Hang,
}

/// The text is no script; the message is for whoever wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidScript(String);

impl fmt::Display for InvalidScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is not a response of the test receiver: use statuses from 200 to 599 or hang, up to {SCRIPT_STEPS_MAX} separated \
             by commas; a status can have a delay up to 10m, such as 200+3s",
            self.0
        )
    }
}

impl FromStr for Script {
    type Err = InvalidScript;

    fn from_str(text: &str) -> Result<Script, InvalidScript> {
        if text.is_empty() {
            return Ok(Script(vec![Step::Answer { status: StatusCode::OK, delay: Duration::ZERO }]));
        }
        let steps = text.split(',').take(SCRIPT_STEPS_MAX + 1).map(str::parse).collect::<Result<Vec<Step>, _>>()?;
        if steps.len() > SCRIPT_STEPS_MAX {
            return Err(InvalidScript("a longer list".to_owned()));
        }
        Ok(Script(steps))
    }
}

impl FromStr for Step {
    type Err = InvalidScript;

    fn from_str(text: &str) -> Result<Step, InvalidScript> {
        // What is wrong is told, but not at any length.
        let invalid = || InvalidScript(format!("{:?}", text.chars().take(40).collect::<String>()));
        if text == "hang" {
            return Ok(Step::Hang);
        }
        let (status, delay) = text.split_once('+').unwrap_or((text, "0"));
        let number = status.parse().ok().filter(|number| (200..600).contains(number)).ok_or_else(invalid)?;
        let status = StatusCode::from_u16(number).map_err(|_| invalid())?;
        let delay = parse_duration(delay).ok().filter(|millis| *millis <= ANSWER_DELAY_MS_MAX).ok_or_else(invalid)?;
        Ok(Step::Answer { status, delay: Duration::from_millis(delay) })
    }
}

impl Script {
    /// What the attempt after so many retries is answered.
    pub(super) fn step(&self, retried: u32) -> Step {
        self.0.get(retried as usize).or(self.0.last()).copied().unwrap_or(Step::Hang)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.0.iter().map(Step::to_string).collect();
        f.write_str(&steps.join(","))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Hang => f.write_str("hang"),
            Step::Answer { status, delay } if delay.is_zero() => write!(f, "{}", status.as_u16()),
            Step::Answer { status, delay } => write!(f, "{}+{}s", status.as_u16(), delay.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str, attempts: u32) -> String {
        let script: Script = text.parse().unwrap();
        (0..attempts).map(|retried| script.step(retried).to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_attempt_has_its_response_and_the_last_one_repeats() {
        for (text, expected) in [
            ("", "200 200 200 200"),
            ("404", "404 404 404 404"),
            ("500,500,200", "500 500 200 200"),
            ("hang,200+3s", "hang 200+3s 200+3s 200+3s"),
            ("503+2m,489", "503+120s 489 489 489"),
        ] {
            assert_eq!(steps(text, 4), expected, "{text}");
            let script: Script = text.parse().unwrap();
            assert_eq!(script.to_string().parse(), Ok(script), "{text}");
        }
    }

    #[test]
    fn an_invalid_script_is_refused_with_the_reason() {
        let long = vec!["200"; SCRIPT_STEPS_MAX + 1].join(",");
        for text in ["x", "100", "600", "200,", ",200", "200+", "200+11m", "200+x", "+3s", "hang+3s", "-200", &long] {
            let invalid = text.parse::<Script>().expect_err(text).to_string();
            assert!(invalid.contains("200 to 599") && invalid.len() < 300, "{text}: {invalid}");
        }
        assert!(vec!["200"; SCRIPT_STEPS_MAX].join(",").parse::<Script>().is_ok());
    }
}
