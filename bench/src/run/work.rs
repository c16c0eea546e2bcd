//! The publishes of a load run: the arguments of `load`.

use super::figure::TARGET;
use super::scenario::{AUTHORIZATION, Target};

/// The delay of messages that are never due during a measurement.
pub(super) const FAR: &str = "7d";
pub(super) const CONNECTIONS: u32 = 64;
const BODY_BYTES: u32 = 1024;
/// Longest wait for arrivals after the last publish. Later messages count as missing.
pub(super) const DRAIN_SECONDS: u32 = 60;
/// Longest duration of publishing if the number of messages ends it.
const COUNTED_SECONDS: f64 = 600.0;

#[derive(Clone, Debug)]
pub(super) struct Work {
    /// After the target's address.
    pub(super) path: String,
    /// In addition to the authorization, `Name: value`.
    pub(super) headers: Vec<String>,
    pub(super) connections: u32,
    pub(super) seconds: f64,
    /// Messages per second; 0 is closed loop.
    pub(super) rate: u32,
    /// Maximum number of messages.
    pub(super) count: Option<u32>,
    pub(super) keys: u32,
    /// Whether messages of a key must arrive in order.
    pub(super) ordered: bool,
    /// Whether the messages arrive at the sink soon, one each, and are awaited.
    pub(super) arrives: bool,
}

impl Work {
    /// Plain messages to the sink for some time.
    pub(super) fn timed(sink: &str, seconds: f64, rate: u32) -> Self {
        Self {
            path: format!("/v2/publish/{sink}/x"),
            headers: Vec::new(),
            connections: CONNECTIONS,
            seconds,
            rate,
            count: None,
            keys: 1,
            ordered: false,
            arrives: true,
        }
    }

    /// Messages that are due in a week: stored, not delivered.
    pub(super) fn stored(sink: &str, seconds: f64) -> Self {
        let headers = vec![format!("Upstash-Delay: {FAR}")];
        Self { headers, arrives: false, ..Self::timed(sink, seconds, 0) }
    }

    /// This many plain messages to the sink, as fast as possible.
    pub(super) fn counted(sink: &str, count: u32) -> Self {
        Self { count: Some(count), ..Self::timed(sink, COUNTED_SECONDS, 0) }
    }

    /// The arguments of `load`.
    pub(super) fn words(&self, target: &Target, sink: &str, label: &str) -> Vec<String> {
        let mut words = vec![
            "load".into(),
            format!("--url={}{}", target.child.base, self.path),
            format!("--header={AUTHORIZATION}"),
            format!("--conns={}", self.connections),
            format!("--body-bytes={BODY_BYTES}"),
            format!("--duration={}", self.seconds),
            format!("--rate={}", self.rate),
            format!("--keys={}", self.keys),
            format!("--sink={sink}"),
            format!("--cpu={TARGET}={}", target.child.pid),
            format!("--label={label}"),
            "--json".into(),
        ];
        let helpers = target.helpers.iter().enumerate();
        words.extend(helpers.map(|(index, helper)| format!("--cpu=helper{index}={}", helper.pid)));
        words.extend(target.beside.iter().map(|pid| format!("--cpu=beside{pid}={pid}")));
        words.extend(self.headers.iter().map(|header| format!("--header={header}")));
        words.extend(self.count.map(|count| format!("--count={count}")));
        words.extend(self.arrives.then(|| format!("--drain={DRAIN_SECONDS}")));
        words.extend(self.ordered.then(|| "--ordered".to_owned()));
        words
    }

    /// Longest duration of `load`.
    pub(super) fn limit_s(&self) -> f64 {
        self.seconds + f64::from(DRAIN_SECONDS) + 90.0
    }
}
