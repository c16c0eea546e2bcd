//! Hostile inputs, from `vectors/api-inputs.json`: what each case expects is said there, not here.
//!
//! `table` sends the well-formed requests, `raw` the hand-written bytes, `slow` what takes its time, `limits` makes
//! load, `console` visits pages. `absent` has the cases about features that this version lacks. Every
//! case of the file is run by exactly one of them, or by a test of another suite that [`ELSEWHERE`] names.

mod absent;
mod console;
mod limits;
mod raw;
mod slow;
mod table;

use crate::support::{Setup, TestServer};
use serde_json::Value;
use std::collections::HashSet;

const VECTORS: &str = include_str!("../../../../../vectors/api-inputs.json");

/// How many cases there are, so that none is lost with a new version of the file.
const CASES: usize = 280;

/// What says where they are.
const PAGE: &str = include_str!("../../../../../docs/reliability/hostile-input.md");

/// Cases that need a process or a disk of their own: the source of the test that runs each, and its name.
const ELSEWHERE: [(&str, &str, &str); 5] = [
    ("lim-disk-95", include_str!("../../crash/full.rs"), "falls_below_its_reserve"),
    ("lim-fd-limit", include_str!("../../crash/descriptors.rs"), "a_server_without_descriptors_waits_and_recovers"),
    ("lim-store-stalled", include_str!("../../crash/disk.rs"), "run_slow"),
    (
        "lim-log-retention",
        include_str!("../../../../store/tests/store/conformance/retention.rs"),
        "retention_has_no_leftovers_in_large_buckets",
    ),
    ("lim-message-count", include_str!("../load.rs"), "a_backlog_larger_than_memory_survives_a_restart"),
];

/// One case of the file.
struct Case {
    id: String,
    value: Value,
}

impl Case {
    fn text(&self, name: &str) -> &str {
        self.value[name].as_str().unwrap_or_default()
    }

    /// Which statuses are right; none means that the connection is closed.
    fn expected(&self) -> Vec<u16> {
        let statuses = self.value["expect_status"].as_array().expect("expect_status is a list");
        statuses.iter().filter_map(Value::as_u64).map(|status| status as u16).collect()
    }

    /// Whether `table` runs it.
    fn is_plain(&self) -> bool {
        !set_apart().any(|id| id == self.id)
    }
}

/// The ids of all cases that do not belong to `table`.
fn set_apart() -> impl Iterator<Item = &'static str> {
    let elsewhere = ELSEWHERE.iter().map(|(id, ..)| *id);
    let with_tests = limits::IDS.iter().chain(console::IDS).chain(slow::IDS).chain(&raw::IDS).copied();
    with_tests.chain(absent::ids()).chain(elsewhere)
}

fn cases() -> Vec<Case> {
    let file: Value = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let all = file["cases"].as_array().expect("cases are a list");
    let case =
        |value: &Value| Case { id: value["id"].as_str().expect("a case has an id").to_owned(), value: value.clone() };
    all.iter().map(case).collect()
}

fn case(id: &str) -> Case {
    cases().into_iter().find(|case| case.id == id).unwrap_or_else(|| panic!("there is no case {id}"))
}

/// Tests that are the case they are named with: the name of a function, which is given the case.
macro_rules! tests_of_cases {
    ($($id:literal => $name:ident,)*) => {
        /// The cases of this module, each with a test of its own.
        pub(super) const IDS: &[&str] = &[$($id),*];

        mod tests {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(super::super::case($id)).await;
                }
            )*
        }
    };
}
use tests_of_cases;

#[test]
fn every_case_is_run_once() {
    let all: Vec<String> = cases().into_iter().map(|case| case.id).collect();
    assert_eq!(all.len(), CASES);
    let known: HashSet<&str> = all.iter().map(String::as_str).collect();
    let mut seen = HashSet::new();
    for id in set_apart() {
        assert!(known.contains(id), "there is no case {id}");
        assert!(seen.insert(id), "{id} is run twice");
    }
    let plain = cases().iter().filter(|case| case.is_plain()).count();
    assert_eq!(plain + seen.len(), CASES);
    let counted = [
        ("`table`", plain),
        ("`raw`", raw::IDS.len()),
        ("`limits`", limits::IDS.len()),
        ("`slow`", slow::IDS.len()),
        ("`console`", console::IDS.len()),
        ("other suites", ELSEWHERE.len()),
        ("`absent`", absent::ids().count()),
    ];
    for (place, count) in counted {
        assert!(PAGE.contains(&format!("| {place} | {count} |")), "the page does not say that {place} has {count}");
    }
    for (id, source, test) in ELSEWHERE {
        assert!(source.contains(&format!("fn {test}(")), "{id}: the test {test} is gone");
    }
}

/// As in production, with the token in the query switched on and small bodies so that limits are met soon.
async fn hardened(query_token: bool) -> TestServer {
    let mut setup = Setup::serve();
    setup.settings.egress_allow_cidrs = None;
    setup.settings.query_token = Some(query_token);
    setup.settings.message_bytes_max = Some(BODY_LIMIT);
    TestServer::with(setup).await
}

/// Largest message body of a [`hardened`] server.
const BODY_LIMIT: usize = 1024 * 1024;

/// How many messages the server has ever accepted.
fn accepted(server: &TestServer) -> f64 {
    server.metric("posthaste_published_total{result=\"accepted\"}")
}
