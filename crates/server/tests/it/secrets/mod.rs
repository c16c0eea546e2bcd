//! Secrets stay where they belong. Every secret of a run is a random text of its own, and everything that the server
//! says or leaves behind is searched for all of them.
//!
//! `server` looks at one in this process: log at the finest level, metrics, answers, errors, pages, data files. `process` looks
//! at the command: what it prints, also when it cannot start.

mod process;
mod server;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A secret, and where it may be found.
struct Secret {
    text: String,
    allowed: &'static [Place],
}

/// Where secrets are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Log,
    Metrics,
    Error,
    /// Answers to the owner, errors not among them; what shows the signing keys is not either.
    Answer,
    OpenApi,
    /// Pages of the console, but for the one that shows the signing keys.
    Console,
    /// The data directory.
    Files,
    /// What is printed of values, as a panic or a careless log line would.
    Debug,
    Output,
}

/// A text that nobody else has. `kind` says in a failure what it was.
fn canary(kind: &str) -> String {
    let random = RandomState::new().hash_one(kind);
    format!("canary-{kind}-{random:016x}")
}

/// Searches what was found in places for secrets that may not be there; says which, and around what.
fn leaks(secrets: &[Secret], found: &[(Place, String)]) -> Vec<String> {
    let mut leaks = Vec::new();
    for (place, text) in found {
        for secret in secrets.iter().filter(|secret| !secret.allowed.contains(place)) {
            if let Some(at) = text.find(&secret.text) {
                let around: String = text[..at].chars().rev().take(80).collect::<Vec<_>>().into_iter().rev().collect();
                leaks.push(format!("{} is in {place:?}, behind {around:?}", secret.text));
            }
        }
    }
    leaks
}

#[test]
fn a_planted_leak_is_found_and_what_is_allowed_is_none() {
    let (token, header) = (canary("token"), canary("header"));
    assert_ne!(token, canary("token"), "no two are the same");
    let secrets =
        [Secret { text: token.clone(), allowed: &[] }, Secret { text: header.clone(), allowed: &[Place::Files] }];
    let found = |place, text: String| leaks(&secrets, &[(place, text)]).len();
    assert_eq!(found(Place::Log, format!("{{\"header\":\"Bearer {token}\"}}")), 1);
    assert_eq!(found(Place::Files, format!("\0{token}\0{header}")), 1);
    assert_eq!(found(Place::Answer, header), 1);
    assert_eq!(found(Place::Output, "nothing to see".to_owned()), 0);
}
