//! Bounds how many different wrong tokens one address may try at the API.
//!
//! A caller that repeats one stale token guesses nothing, so only different tokens count. At the bound, an address may use
//! the tokens that it has used before, so neighbours behind the same NAT keep working. Every other token is refused with 429,
//! right or wrong: a guess gets no feedback until the next minute.

use super::allowance::{CallerGroup, Exhausted};
use super::auth::bearer;
use super::caller::caller_of;
use super::error::ApiError;
use crate::app::App;
use crate::config::MetricsAccess;
use crate::tenants::hash;
use axum::extract::Request;
use axum::http::header;
use posthaste_wire::destination::split_query;
use posthaste_wire::time::Timestamp;
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Different wrong tokens that one address (IPv6: a /64 network) may try at the API in a minute; then tokens that it has not
/// used before are refused with 429 until the next one.
const TOKEN_GUESSES_MAX: usize = 60;
/// Pairs of a token and an address that are remembered as right; of two that share a place the newer one stays.
const PROVEN_TOKENS_MAX: usize = 65_536;
/// How long wrong tokens are counted.
const WINDOW_MS: u64 = 60_000;

/// See the module's text.
pub(crate) struct TokenGuesses {
    /// Keys of right tokens. A key is a hash that nobody outside can compute; the token itself is still checked.
    proven: Box<[AtomicU64]>,
    wrong: Mutex<HashMap<CallerGroup, Wrong>>,
    hasher: RandomState,
}

/// The wrong tokens of an address.
#[derive(Default)]
struct Wrong {
    window: u64,
    keys: Vec<u64>,
}

/// Refuses a request whose token must not be looked up. Every right token that passes is remembered.
pub(super) fn refuse(app: &App, request: &Request) -> Option<ApiError> {
    let token = shown(app, request)?;
    // The console has no peer: it asks with tokens of its own.
    let address = caller_of(app, request)?;
    let guesses = &app.allowances.guesses;
    let caller = app.allowances.caller(address);
    let key = guesses.key(&token, caller);
    if guesses.is_proven(key) || is_webhook(request.uri().path()) {
        return None;
    }
    let now = app.clock.now();
    match guesses.judge(caller, key, now, || is_known(app, &token)) {
        Verdict::Pass => None,
        Verdict::Last => {
            tracing::warn!(%address, "too many wrong tokens; rejecting new tokens from this address for a minute");
            None
        }
        Verdict::Refused(exhausted) => Some(ApiError::too_many_guesses(exhausted)),
    }
}

/// The token that a request shows.
fn shown<'a>(app: &App, request: &'a Request) -> Option<Cow<'a, str>> {
    match request.headers().contains_key(header::AUTHORIZATION) {
        true => bearer(request.headers()).map(Cow::Borrowed),
        false if app.config.query_token => split_query(request.uri().query()).token.map(Cow::Owned),
        false => None,
    }
}

fn is_known(app: &App, token: &str) -> bool {
    let is_for_metrics =
        || matches!(&app.config.metrics_access, MetricsAccess::Token(expected) if *expected == hash(token));
    app.tokens.knows(token) || is_for_metrics()
}

/// Whether a path leads to a webhook, whose callers have credentials of other systems.
fn is_webhook(path: &str) -> bool {
    let mut segments = path.split('/').skip(2);
    segments.next().is_some_and(|segment| segment.eq_ignore_ascii_case("workflows")) && segments.next() == Some("hooks")
}

/// What becomes of a token that is not proven.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is looked up.
    Pass,
    /// The same, and it was the last wrong one that may be.
    Last,
    Refused(Exhausted),
}

impl TokenGuesses {
    pub(super) fn new() -> TokenGuesses {
        TokenGuesses {
            proven: (0..PROVEN_TOKENS_MAX).map(|_| AtomicU64::new(0)).collect(),
            wrong: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    fn key(&self, token: &str, caller: CallerGroup) -> u64 {
        self.hasher.hash_one((token, caller))
    }

    fn slot(&self, key: u64) -> &AtomicU64 {
        &self.proven[key as usize % PROVEN_TOKENS_MAX]
    }

    fn is_proven(&self, key: u64) -> bool {
        self.slot(key).load(Ordering::Relaxed) == key
    }

    fn judge(&self, caller: CallerGroup, key: u64, now: Timestamp, is_known: impl FnOnce() -> bool) -> Verdict {
        let window = now.as_millis() / WINDOW_MS;
        let mut all = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let wrong = all.entry(caller).or_default();
        if wrong.window != window {
            *wrong = Wrong { window, keys: Vec::new() };
        }
        if wrong.keys.contains(&key) {
            return Verdict::Pass;
        }
        if wrong.keys.len() >= TOKEN_GUESSES_MAX {
            let reset = Timestamp((window + 1) * WINDOW_MS);
            return Verdict::Refused(Exhausted { limit: TOKEN_GUESSES_MAX as u64, remaining: 0, reset, now });
        }
        if is_known() {
            self.slot(key).store(key, Ordering::Relaxed);
            return Verdict::Pass;
        }
        wrong.keys.push(key);
        if wrong.keys.len() == TOKEN_GUESSES_MAX { Verdict::Last } else { Verdict::Pass }
    }
}

#[cfg(test)]
mod tests {
    use super::super::allowance::Allowances;
    use super::*;

    const NOW: Timestamp = Timestamp(600_000);
    const NEXT: Timestamp = Timestamp(660_000);

    struct World {
        allowances: Allowances,
        caller: CallerGroup,
    }

    impl World {
        fn new() -> World {
            let allowances = Allowances::new(None, None);
            let caller = allowances.caller("192.0.2.1".parse().unwrap());
            World { allowances, caller }
        }

        /// Whether a token gets as far as being looked up.
        fn passes(&self, token: &str, is_known: bool, now: Timestamp) -> bool {
            let guesses = &self.allowances.guesses;
            let key = guesses.key(token, self.caller);
            guesses.is_proven(key) || !matches!(guesses.judge(self.caller, key, now, || is_known), Verdict::Refused(_))
        }
    }

    #[test]
    fn after_too_many_wrong_tokens_only_those_pass_that_were_right_before() {
        let world = World::new();
        assert!(world.passes("right", true, NOW));
        for n in 0..TOKEN_GUESSES_MAX {
            assert!(world.passes(&format!("wrong-{n}"), false, NOW), "{n}");
        }
        assert!(!world.passes("another wrong one", false, NOW));
        assert!(!world.passes("a guess that is right", true, NOW), "it must not be told from a wrong one");
        assert!(world.passes("right", true, NOW));
        assert!(world.passes("wrong-7", false, NOW), "what is known to be wrong says nothing new");
        assert!(world.passes("a guess that is right", true, NEXT), "the next minute begins anew");
    }

    #[test]
    fn a_stale_token_counts_once_however_often_it_is_shown() {
        let world = World::new();
        for _ in 0..10 * TOKEN_GUESSES_MAX {
            assert!(world.passes("stale", false, NOW));
        }
        assert!(world.passes("right", true, NOW));
        assert_eq!(world.allowances.guesses.wrong.lock().unwrap()[&world.caller].keys.len(), 1);
    }

    #[test]
    fn only_paths_of_webhooks_are_left_alone() {
        for (path, is) in [
            ("/v2/workflows/hooks/user/run/event", true),
            ("/v2/Workflows/hooks/user/run/event", true),
            ("/v2/workflows/runs/hooks", false),
            ("/v2/hooks/workflows", false),
            ("/", false),
        ] {
            assert_eq!(is_webhook(path), is, "{path}");
        }
    }
}
