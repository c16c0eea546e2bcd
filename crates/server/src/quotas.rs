//! What a tenant may have and ask for, like the plans of the hosted service. Every quota can only be lowered:
//! the constants of `limits` are what the server is built for.

use crate::config::{ConfigError, Settings, Shown, duration, invalid, set, unset};
use posthaste_engine::limits;
use posthaste_engine::workflow::Limits;

/// The quotas of every tenant. Over one of them a request is refused with 412, over the last two with 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Longest delay of a publish.
    pub delay_ms: u64,
    /// Most retries of a publish.
    pub retries: u32,
    /// Longest time of one attempt, and how long it may take when the publisher says nothing.
    pub timeout_ms: u64,
    /// Schedules.
    pub schedules: usize,
    /// Queues.
    pub queues: usize,
    /// Largest parallelism of a queue.
    pub queue_parallelism: u32,
    /// Flow-control keys. Not a setting: idle ones are forgotten.
    pub flow_keys: usize,
    /// URL groups; `None`: as many as they like.
    pub url_groups: Option<usize>,
    /// Endpoints of a URL group.
    pub group_endpoints: usize,
    /// Entries, bytes and time of a run of a workflow; over them the run fails.
    pub workflow: Limits,
    /// Runs of workflows that invoke one another.
    pub workflow_depth: u32,
    /// Entries of a run of more bytes are not sent to clients that can fetch them. Not a quota: it may be raised, too.
    pub workflow_lazy_bytes: usize,
    /// Messages published on one day; `None`: as many as they like.
    pub messages_per_day: Option<u64>,
    /// Requests per second, publishes not counted; `None`: as many as they like.
    pub requests_per_second: Option<u64>,
    /// Bytes stored: all that [`Store::stored_bytes`](posthaste_store::Store::stored_bytes) counts. `None` until the
    /// server starts, which then takes half of the disk.
    pub stored_bytes: Option<u64>,
}

/// The name of the last quota in errors.
pub(crate) const STORED_BYTES_QUOTA: &str = "maxStoredBytes";

impl Default for Quotas {
    fn default() -> Self {
        Quotas {
            delay_ms: limits::DELAY_MS_MAX,
            retries: limits::RETRIES_MAX,
            timeout_ms: limits::TIMEOUT_MS_MAX,
            schedules: limits::SCHEDULES_MAX,
            queues: limits::QUEUES_MAX,
            queue_parallelism: limits::QUEUE_PARALLELISM_MAX,
            flow_keys: limits::FLOW_KEYS_MAX,
            url_groups: None,
            group_endpoints: limits::GROUP_ENDPOINTS_MAX,
            workflow: Limits {
                entries: limits::WORKFLOW_STEPS_MAX,
                bytes: limits::WORKFLOW_BYTES_MAX,
                duration_ms: limits::WORKFLOW_MS_MAX,
            },
            workflow_depth: limits::WORKFLOW_DEPTH_MAX,
            workflow_lazy_bytes: limits::WORKFLOW_LAZY_BYTES,
            messages_per_day: None,
            requests_per_second: None,
            stored_bytes: None,
        }
    }
}

impl Quotas {
    /// Checks what the settings say.
    pub(crate) fn resolve(settings: &Settings) -> Result<Quotas, ConfigError> {
        let most = Quotas::default();
        Ok(Quotas {
            delay_ms: lowered_duration("max_delay", settings.max_delay.as_deref(), 1_000, most.delay_ms)?,
            retries: lowered("max_retries", settings.max_retries, 0, most.retries)?,
            timeout_ms: lowered_duration(
                "max_timeout",
                settings.max_timeout.as_deref(),
                limits::TIMEOUT_MS_MIN,
                most.timeout_ms,
            )?,
            schedules: lowered("max_schedules", settings.max_schedules, 0, most.schedules)?,
            queues: lowered("max_queues", settings.max_queues, 0, most.queues)?,
            queue_parallelism: lowered(
                "max_queue_parallelism",
                settings.max_queue_parallelism,
                1,
                most.queue_parallelism,
            )?,
            flow_keys: most.flow_keys,
            url_groups: settings.max_url_groups,
            group_endpoints: lowered("max_group_endpoints", settings.max_group_endpoints, 1, most.group_endpoints)?,
            workflow: workflow_limits(settings, most.workflow)?,
            workflow_depth: lowered("workflow_max_depth", settings.workflow_max_depth, 1, most.workflow_depth)?,
            workflow_lazy_bytes: lazy_bytes(settings)?,
            messages_per_day: at_least_one("messages_per_day", settings.messages_per_day)?,
            requests_per_second: at_least_one("api_requests_per_second", settings.api_requests_per_second)?,
            stored_bytes: at_least_one("max_stored_bytes", settings.max_stored_bytes)?,
        })
    }

    /// Retries of a message whose publisher names none.
    pub fn retries_default(&self) -> u32 {
        limits::RETRIES_DEFAULT.min(self.retries)
    }

    /// The quotas as people may see them.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let number = |name, value: u64| set(name, value.cast_signed().into());
        let seconds = |name, ms: u64| set(name, format!("{}s", ms / 1_000).into());
        let optional = |name, value: Option<u64>| match value {
            Some(value) => number(name, value),
            None => unset(name, "not set, so there is no limit"),
        };
        vec![
            seconds("max_delay", self.delay_ms),
            number("max_retries", self.retries.into()),
            seconds("max_timeout", self.timeout_ms),
            number("max_schedules", self.schedules as u64),
            number("max_queues", self.queues as u64),
            number("max_queue_parallelism", self.queue_parallelism.into()),
            optional("max_url_groups", self.url_groups.map(|groups| groups as u64)),
            number("max_group_endpoints", self.group_endpoints as u64),
            number("workflow_max_steps", self.workflow.entries.into()),
            number("workflow_max_bytes", self.workflow.bytes),
            seconds("workflow_max_duration", self.workflow.duration_ms),
            number("workflow_max_depth", self.workflow_depth.into()),
            number("workflow_lazy_bytes", self.workflow_lazy_bytes as u64),
            optional("messages_per_day", self.messages_per_day),
            optional("api_requests_per_second", self.requests_per_second),
            match self.stored_bytes {
                Some(bytes) => number("max_stored_bytes", bytes),
                None => unset("max_stored_bytes", "not set, so half of the disk"),
            },
        ]
    }
}

fn workflow_limits(settings: &Settings, most: Limits) -> Result<Limits, ConfigError> {
    let duration = settings.workflow_max_duration.as_deref();
    Ok(Limits {
        entries: lowered("workflow_max_steps", settings.workflow_max_steps, 1, most.entries)?,
        bytes: lowered("workflow_max_bytes", settings.workflow_max_bytes, 1, most.bytes)?,
        duration_ms: lowered_duration("workflow_max_duration", duration, 1_000, most.duration_ms)?,
    })
}

fn lazy_bytes(settings: &Settings) -> Result<usize, ConfigError> {
    let max = limits::WORKFLOW_LAZY_BYTES_MAX;
    match settings.workflow_lazy_bytes.unwrap_or(limits::WORKFLOW_LAZY_BYTES) {
        bytes if bytes <= max => Ok(bytes),
        _ => Err(invalid("workflow_lazy_bytes", format!("must be 0 to {max}"))),
    }
}

fn lowered<T: Ord + Copy + std::fmt::Display>(
    setting: &'static str,
    said: Option<T>,
    min: T,
    max: T,
) -> Result<T, ConfigError> {
    match said {
        None => Ok(max),
        Some(value) if (min..=max).contains(&value) => Ok(value),
        Some(_) => Err(invalid(setting, format!("must be {min} to {max}"))),
    }
}

fn at_least_one(setting: &'static str, said: Option<u64>) -> Result<Option<u64>, ConfigError> {
    match said {
        Some(0) => Err(invalid(setting, "must be at least 1; omit it for no limit")),
        said => Ok(said),
    }
}

fn lowered_duration(setting: &'static str, said: Option<&str>, min_ms: u64, max_ms: u64) -> Result<u64, ConfigError> {
    let millis = duration(setting, said, max_ms)?;
    if (min_ms..=max_ms).contains(&millis) {
        return Ok(millis);
    }
    Err(invalid(setting, format!("must be {}s to {}s", min_ms.div_ceil(1_000), max_ms / 1_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(change: impl FnOnce(&mut Settings)) -> Result<Quotas, String> {
        let mut settings = Settings::default();
        change(&mut settings);
        Quotas::resolve(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_the_bound_of_the_server() {
        assert_eq!(resolved(|_| {}), Ok(Quotas::default()));
    }

    #[test]
    fn quotas_can_be_lowered_and_not_raised() {
        let lowered = resolved(|settings| {
            settings.max_delay = Some("7d".into());
            settings.max_retries = Some(0);
            settings.max_timeout = Some("15m".into());
            settings.max_queue_parallelism = Some(2);
            settings.workflow_max_steps = Some(10);
            settings.workflow_max_duration = Some("1d".into());
            settings.workflow_lazy_bytes = Some(0);
        });
        let expected = Quotas {
            delay_ms: 604_800_000,
            retries: 0,
            timeout_ms: 900_000,
            queue_parallelism: 2,
            workflow: Limits { entries: 10, duration_ms: 86_400_000, ..Quotas::default().workflow },
            workflow_lazy_bytes: 0,
            ..Quotas::default()
        };
        assert_eq!(lowered, Ok(expected));
        assert_eq!(expected.retries_default(), 0);
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 12] = [
            (
                |settings| settings.messages_per_day = Some(0),
                "messages_per_day: must be at least 1; omit it for no limit",
            ),
            (|settings| settings.max_delay = Some("366d".into()), "max_delay: must be 1s to 31536000s"),
            (|settings| settings.max_retries = Some(1_001), "max_retries: must be 0 to 1000"),
            (|settings| settings.max_timeout = Some("3h".into()), "max_timeout: must be 1s to 7200s"),
            (|settings| settings.max_queues = Some(100_001), "max_queues: must be 0 to 100000"),
            (|settings| settings.max_queue_parallelism = Some(0), "max_queue_parallelism: must be 1 to 1000"),
            (|settings| settings.max_group_endpoints = Some(101), "max_group_endpoints: must be 1 to 100"),
            (|settings| settings.workflow_max_steps = Some(0), "workflow_max_steps: must be 1 to 10000"),
            (|settings| settings.workflow_max_bytes = Some(u64::MAX), "workflow_max_bytes: must be 1 to 104857600"),
            (
                |settings| settings.workflow_max_duration = Some("366d".into()),
                "workflow_max_duration: must be 1s to 31536000s",
            ),
            (|settings| settings.workflow_max_depth = Some(101), "workflow_max_depth: must be 1 to 100"),
            (|settings| settings.workflow_lazy_bytes = Some(67_108_865), "workflow_lazy_bytes: must be 0 to 67108864"),
        ];
        for (change, expected) in cases {
            assert_eq!(resolved(change), Err(expected.to_owned()));
        }
    }
}
