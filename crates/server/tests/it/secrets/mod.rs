//! Secrets stay where they belong. Every secret of a run is a random text of its own, and everything that the server
//! says or leaves behind is searched for all of them, in plain and as base64 and the like.
//!
//! `server` looks at one in this process: log at the finest level, metrics, answers, streams, errors, pages, deliveries, data
//! files. What goes in is in `messages` and `runs`, what is looked at in `reading`. `process` looks at the command: what it
//! prints, also when it cannot start. `credentials` follows those that are stored encrypted through every way in, `encryption_key`
//! changes their key.

mod credentials;
mod encryption_key;
mod messages;
mod process;
mod reading;
mod runs;
mod server;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A secret, and where it may be found.
#[derive(Clone, Debug)]
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
    /// Answers and streams for the owner, errors not among them; what shows the signing keys is not either.
    Answer,
    /// All that another tenant can see.
    Others,
    OpenApi,
    /// Pages of the console, but for the one that shows the signing keys.
    Console,
    /// What receivers get.
    Delivery,
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

/// Makes secrets, and remembers where each may be found.
#[derive(Default)]
struct Mint {
    secrets: Vec<Secret>,
    /// The server has an encryption key, so that what is stored to sign and to log in with is not in its files.
    is_encrypted: bool,
}

/// What tenants may see of their own messages.
const OWN: &[Place] = &[Place::Answer, Place::Console, Place::Delivery, Place::Files];
/// What is kept for deliveries and never shown.
const HIDDEN: &[Place] = &[Place::Delivery, Place::Files];
/// The same of what is stored encrypted.
const OWN_SEALED: &[Place] = &[Place::Answer, Place::Console, Place::Delivery];
const HIDDEN_SEALED: &[Place] = &[Place::Delivery];
/// What is kept to sign with.
const KEPT: &[Place] = &[Place::Files];

impl Mint {
    fn add(&mut self, text: String, allowed: &'static [Place]) -> String {
        self.secrets.push(Secret { text: text.clone(), allowed });
        text
    }

    /// One that nobody may ever see.
    fn never(&mut self, kind: &str) -> String {
        self.add(canary(kind), &[])
    }

    /// A part of a message that its owner is shown.
    fn own(&mut self, kind: &str) -> String {
        self.add(canary(kind), OWN)
    }

    /// A part of a message that is hidden, or not.
    fn part(&mut self, kind: &str, is_hidden: bool) -> String {
        // What a webhook is sent is the data of an event.
        let is_sealed = self.is_encrypted && kind.contains("authorization") && !kind.contains("webhook");
        match (is_hidden, is_sealed) {
            (true, false) => self.add(canary(&format!("hidden-{kind}")), HIDDEN),
            (true, true) => self.add(canary(&format!("hidden-{kind}")), HIDDEN_SEALED),
            (false, false) => self.own(kind),
            (false, true) => self.add(canary(kind), OWN_SEALED),
        }
    }

    /// A key that is kept to sign with.
    fn kept(&mut self, text: String) -> String {
        self.add(text, if self.is_encrypted { &[] } else { KEPT })
    }

    /// Those that may be found in exactly these places.
    fn allowed_in(&self, places: &[Place]) -> Vec<&Secret> {
        self.secrets.iter().filter(|secret| secret.allowed == places).collect()
    }
}

/// How many bytes of a secret are looked for first.
const START_BYTES: usize = 7;

/// Where a text holds each of the secrets, in whatever writing. Most of them begin alike, so that a text is read a few times
/// and not once for each.
fn places_in(text: &str, secrets: &[&Secret]) -> Vec<Option<usize>> {
    let mut begun: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut places = Vec::new();
    for secret in secrets {
        let start = &secret.text[..START_BYTES];
        let candidates = begun.entry(start).or_insert_with(|| {
            writings(start).iter().flat_map(|writing| text.match_indices(writing.as_str()).map(|(at, _)| at)).collect()
        });
        let writings = writings(&secret.text);
        let is_here = |at: &usize| writings.iter().any(|it| text.as_bytes()[*at..].starts_with(it.as_bytes()));
        places.push(candidates.iter().copied().find(is_here));
    }
    places
}

/// The ways in which a text may be written down: as it is, as base64 wherever it stands in what was encoded, as bytes.
fn writings(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let decimal: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut writings = vec![text.to_owned(), decimal.join(", "), decimal.join(","), hex];
    for before in 0..3 {
        let all = [&vec![0; before], bytes].concat();
        // Letters that also say something of the neighbours are left out.
        let known = (before * 8).div_ceil(6)..all.len() * 8 / 6;
        writings.extend(
            [STANDARD_NO_PAD.encode(&all), URL_SAFE_NO_PAD.encode(&all)].map(|it| it[known.clone()].to_owned()),
        );
    }
    writings
}

/// Searches what was found in places for secrets that may not be there; says which, and around what.
fn leaks(secrets: &[Secret], found: &[(Place, String)]) -> Vec<String> {
    let mut leaks = Vec::new();
    for (place, text) in found {
        let forbidden: Vec<&Secret> = secrets.iter().filter(|secret| !secret.allowed.contains(place)).collect();
        for (secret, at) in forbidden.iter().zip(places_in(text, &forbidden)) {
            if let Some(at) = at {
                let around: String = text[..at].chars().rev().take(160).collect::<Vec<_>>().into_iter().rev().collect();
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
    for before in ["", "a", "ab", "abc"] {
        let encoded = STANDARD_NO_PAD.encode(format!("{before}{token}?~"));
        assert_eq!(found(Place::Log, format!("body={encoded}")), 1, "{before}");
    }
    assert_eq!(found(Place::Log, format!("{:?}", token.as_bytes())), 1);
}
