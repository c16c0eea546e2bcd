//! The configuration as people may see it: every setting, no secret.

use super::{Config, LLM_PATH, LogFormat, MetricsAccess};
use ipnet::IpNet;

/// What concerns tenants, besides the quotas. All else tells of the operator's machines.
const FOR_TENANTS: [&str; 7] = [
    "region",
    "tenant_parallelism",
    "destination_parallelism",
    "message_bytes_max",
    "log_retention",
    "dlq_retention",
    "bulk_cancel_ignore_count",
];

/// Who has said what a setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag.
    Flag,
    /// A variable of the environment.
    Environment,
    /// The TOML file.
    File,
    /// Whoever made the settings.
    Given,
}

/// A setting as people may see it: what it is, or why that is not shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// As in the TOML file.
    pub name: &'static str,
    /// Its value, or a text.
    pub value: Result<toml::Value, String>,
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            Ok(value) => write!(f, "{} = {value}", self.name),
            Err(why) => write!(f, "# {}: {why}", self.name),
        }
    }
}

impl Config {
    /// The configuration as TOML, with secrets and what is unset as comments: what `--print-config` shows.
    pub fn describe(&self) -> String {
        let mut lines: Vec<String> = self.shown().iter().map(Shown::to_string).collect();
        let tenants = self.tenants.iter();
        lines.extend(tenants.map(|tenant| format!("# tenant: {}, its secrets hidden here", tenant.name)));
        lines.join("\n")
    }

    /// Every setting that holds for all tenants, without secrets.
    pub fn shown(&self) -> Vec<Shown> {
        let mut shown = self.shown_of_server();
        shown.extend(self.quotas.shown());
        shown
    }

    /// Those of them that concern a tenant.
    pub fn shown_to_tenants(&self) -> Vec<Shown> {
        let mut shown = self.shown_of_server();
        shown.retain(|setting| FOR_TENANTS.contains(&setting.name));
        shown.extend(self.quotas.shown());
        shown
    }

    fn shown_of_server(&self) -> Vec<Shown> {
        let millis = |ms: u64| format!("{}s", ms / 1_000);
        let texts = |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
        let log_format = match self.log_format {
            LogFormat::Pretty => "pretty",
            LogFormat::Json => "json",
        };
        vec![
            set("listen", self.listen.to_string().into()),
            set("data_dir", self.data_dir.display().to_string().into()),
            match &self.public_url {
                Some(url) => set("public_url", without_password(url).into()),
                None => unset("public_url", "not set"),
            },
            set("trusted_proxies", texts(&self.trusted_proxies).into()),
            set("connections_per_address", (self.connections_per_address as i64).into()),
            set("allowed_origins", self.browsers.origins.clone().into()),
            set("query_token", self.query_token.into()),
            set("console_receiver", self.console_receiver.into()),
            unset(
                "metrics_token",
                match self.metrics_access {
                    MetricsAccess::Off => "not set, so /metrics is off",
                    MetricsAccess::Open => "not set, and /metrics is open in dev",
                    MetricsAccess::Token(_) => "set, hidden here",
                },
            ),
            match &self.llm {
                Some(llm) => set("llm_url", llm.url.trim_end_matches(LLM_PATH).trim_end_matches('/').into()),
                None => unset("llm_url", "not set, so there is no api/llm"),
            },
            unset(
                "llm_token",
                match self.llm.as_ref().and_then(|llm| llm.authorization.as_ref()) {
                    Some(_) => "set, hidden here",
                    None => "not set",
                },
            ),
            set("region", self.region.as_str().into()),
            set("egress_allow_cidrs", texts(&self.egress.allow_cidrs).into()),
            set("egress_allow_hosts", self.egress.allow_hosts.clone().into()),
            set("egress_detail", self.egress.explain.into()),
            unset("egress_ca_file", if self.egress_ca_pem.is_some() { "loaded" } else { "not set" }),
            set("tenant_parallelism", i64::from(self.shard.tenant_in_flight_max).into()),
            set("destination_parallelism", i64::from(self.shard.origin_in_flight_max).into()),
            unset("encryption_key", if self.encryption.is_some() { "set, hidden here" } else { "not set" }),
            unset("encryption_key_file", if self.encryption.is_some() { "see encryption_key" } else { "not set" }),
            set("message_bytes_max", (self.message_bytes_max as i64).into()),
            set("disk_reserve_bytes", self.disk_reserve_bytes.cast_signed().into()),
            set("journal", self.journal.into()),
            set("log_retention", millis(self.retention.history_ms).into()),
            set("dlq_retention", millis(self.retention.dlq_ms).into()),
            set("bulk_cancel_ignore_count", self.bulk_cancel_ignore_count.into()),
            set("shutdown_grace", millis(self.shutdown_grace.as_millis() as u64).into()),
            set("log_format", log_format.into()),
            set("log", self.log.as_str().into()),
        ]
    }
}

/// A setting that has a value to show.
pub(crate) fn set(name: &'static str, value: toml::Value) -> Shown {
    Shown { name, value: Ok(value) }
}

/// A setting that is not set, or is not shown.
pub(crate) fn unset(name: &'static str, why: &str) -> Shown {
    Shown { name, value: Err(why.to_owned()) }
}

fn without_password(text: &str) -> String {
    match url::Url::parse(text) {
        Ok(mut url) if !url.username().is_empty() || url.password().is_some() => {
            // Only a URL without a host cannot lose them.
            let lost = url.set_username("").and_then(|()| url.set_password(None));
            lost.map_or_else(|()| "hidden here".to_owned(), |()| url.to_string())
        }
        _ => text.to_owned(),
    }
}
