//! Fuzz targets: every parser of untrusted bytes, with the properties that must hold for all inputs.
//!
//! Start at [`TARGETS`]; each target is a file in `targets/`. `seeds` and `corpus` contain the first inputs, `mutate`
//! creates new ones from them, and `run` is the loop that tries them, with any compiler. `libfuzzer/` is a separate
//! package that passes the same functions to libFuzzer, which is guided by coverage: `cargo xtask fuzz`.

pub mod corpus;
pub mod mutate;
pub mod run;
pub mod seeds;
mod targets;

/// A parser under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Parses an input, and panics if a property does not hold.
    pub run: fn(&[u8]),
    /// Inputs that get far into the parser.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets. A new parser of untrusted bytes gets a line here and a file in `targets/`.
pub const TARGETS: [Target; 29] = [
    Target { name: "heads", run: targets::heads::run, seeds: seeds::heads },
    Target { name: "publish-headers", run: targets::publish_headers::run, seeds: seeds::publish_headers },
    Target { name: "destination", run: targets::destination::run, seeds: seeds::destination },
    Target { name: "duration", run: targets::duration::run, seeds: seeds::duration },
    Target { name: "retry-delay", run: targets::retry_delay::run, seeds: seeds::retry_delay },
    Target { name: "cron", run: targets::cron::run, seeds: seeds::cron },
    Target { name: "flow-control", run: targets::flow_control::run, seeds: seeds::flow_control },
    Target { name: "redact", run: targets::redact::run, seeds: seeds::redact },
    Target { name: "batch", run: targets::batch::run, seeds: seeds::batch },
    Target { name: "url-group", run: targets::url_group::run, seeds: seeds::url_group },
    Target { name: "filters", run: targets::filters::run, seeds: seeds::filters },
    Target { name: "console", run: targets::console::run, seeds: seeds::console },
    Target { name: "ids", run: targets::ids::run, seeds: seeds::ids },
    Target { name: "caller", run: targets::caller::run, seeds: seeds::caller },
    Target { name: "signature", run: targets::signature::run, seeds: seeds::signature },
    Target { name: "receiver", run: targets::receiver::run, seeds: seeds::receiver },
    Target { name: "webhook-stripe", run: targets::webhook::stripe, seeds: seeds::webhook_stripe },
    Target { name: "webhook-github", run: targets::webhook::github, seeds: seeds::webhook_github },
    Target { name: "webhook-standard", run: targets::webhook::standard, seeds: seeds::webhook_standard },
    Target { name: "webhook-slack", run: targets::webhook::slack, seeds: seeds::webhook_slack },
    Target { name: "webhook-hmac", run: targets::webhook::hmac, seeds: seeds::webhook_hmac },
    Target { name: "webhook-shared-secret", run: targets::webhook::shared_secret, seeds: seeds::webhook_shared_secret },
    Target { name: "retry-after", run: targets::retry_after::run, seeds: seeds::retry_after },
    Target { name: "answer", run: targets::answer::run, seeds: seeds::answer },
    Target { name: "egress", run: targets::egress::run, seeds: seeds::egress },
    Target { name: "stored", run: targets::stored::run, seeds: seeds::stored },
    Target { name: "journal", run: targets::journal::run, seeds: seeds::journal },
    Target { name: "workflow-publish", run: targets::workflow_publish::run, seeds: seeds::workflow_publish },
    Target { name: "workflow-steps", run: targets::workflow_steps::run, seeds: seeds::workflow_steps },
];

/// The target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
