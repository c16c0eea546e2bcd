//! Checks the expressions of one request: each distinct expression once, and all of them within a limit.

use super::{CHECKED_RETRIES_MAX, InvalidExpression, RetryDelay};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The expressions of one request that are known to be valid. A step is one number, operator or call for one retry.
#[derive(Debug)]
pub struct RetryDelayChecks {
    steps_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of checked retries per expression.
    known: HashMap<String, u32>,
    steps: u64,
}

impl RetryDelayChecks {
    /// Starts without any known expressions. Rejects expressions once the checks exceed `steps_max` steps.
    pub fn new(steps_max: u64) -> RetryDelayChecks {
        RetryDelayChecks { steps_max, state: Mutex::default() }
    }

    /// Like [`RetryDelay::check`], but takes the text of the expression.
    pub fn check(&self, text: &str, retries: u32) -> Result<(), InvalidExpression> {
        let retries = retries.min(CHECKED_RETRIES_MAX);
        let mut state = self.state();
        let known = state.known.get(text).copied();
        if known.is_some_and(|known| known >= retries) {
            return Ok(());
        }
        let expression = RetryDelay::parse(text)?;
        let known = known.unwrap_or(0);
        state.steps += u64::from(retries - known) * expression.program.len() as u64;
        if state.steps > self.steps_max {
            return Err(InvalidExpression::TooManySteps(self.steps_max));
        }
        expression.check_from(known, retries)?;
        state.known.insert(text.to_owned(), retries);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_expression_is_checked_once_and_only_for_what_is_new() {
        let checks = RetryDelayChecks::new(3 * 1_000);
        for retries in [10, 1_000, 3, 1_000, 5_000] {
            assert_eq!(checks.check("1000*retried", retries), Ok(()), "{retries}");
        }
        assert_eq!(checks.state().steps, 3 * 1_000);
        assert_eq!(checks.check("1001*retried", 0), Ok(()));
        assert_eq!(checks.check("1001*retried", 1), Err(InvalidExpression::TooManySteps(3_000)));
    }

    #[test]
    fn an_expression_that_goes_wrong_later_is_still_found() {
        let checks = RetryDelayChecks::new(u64::MAX);
        assert_eq!(checks.check("sqrt(3-retried)", 4), Ok(()));
        assert_eq!(checks.check("sqrt(3-retried)", 5), Err(InvalidExpression::NotANumber(4)));
        assert_eq!(checks.check("sqrt(3-retried)", 5), Err(InvalidExpression::NotANumber(4)));
        assert_eq!(checks.check("sqrt(", 5), RetryDelay::parse("sqrt(").map(drop));
    }
}
