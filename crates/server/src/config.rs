//! Every setting, defined once: a flag, an environment variable `POSTHASTE_*` and a key of the TOML file.
//!
//! [`Settings`] is what was said, in that order of precedence; [`Config`] is what it means, checked.

mod problem;
mod shown;

pub use shown::{Shown, Source};
pub(crate) use shown::{set, unset};

use crate::browsers::{BrowserPolicy, canonical_origin};
use crate::http;
use crate::quotas::Quotas;
use crate::sealed::KeyRing;
use crate::tenants::{self, TenantConfig, TenantSettings};
use ipnet::IpNet;
use posthaste_delivery::egress::EgressPolicy;
use posthaste_delivery::upstream::{InvalidUpstream, Upstream};
use posthaste_engine::limits;
use posthaste_engine::shard;
use posthaste_store::Retention;
use posthaste_wire::duration::parse_duration;
use posthaste_wire::echo::echo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the server is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On a developer's machine: loopback only, the published development credentials.
    Dev,
    /// In production: own credentials, public destinations only unless allowed.
    Serve,
}

/// The settings from the command line, the environment and the file. `None`: not set.
///
/// Not `Debug`: it holds secrets.
#[derive(Clone, Default, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Address to listen on [default: 127.0.0.1:8080]
    #[arg(long, help_heading = "Listening", env = "POSTHASTE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Directory for all data; created if it does not exist [default: ./posthaste-data]
    #[arg(long, help_heading = "Listening", env = "POSTHASTE_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// URL at which clients reach this server; messages to it are rejected as loops
    #[arg(long, help_heading = "Listening", env = "POSTHASTE_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,
    /// Networks of proxies whose X-Forwarded-For is trusted (repeat, or separate with commas)
    #[arg(
        long,
        help_heading = "Listening",
        env = "POSTHASTE_TRUSTED_PROXIES",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub trusted_proxies: Option<Vec<String>>,
    /// Maximum connections from one address (IPv6: a /64 network), except from trusted proxies [default: 1000]
    #[arg(long, help_heading = "Listening", env = "POSTHASTE_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    pub connections_per_address: Option<usize>,
    /// Origins (with their scheme) whose web pages may call the API; dev also accepts pages of this machine
    #[arg(
        long,
        help_heading = "Listening",
        env = "POSTHASTE_ALLOWED_ORIGINS",
        value_name = "ORIGIN",
        value_delimiter = ','
    )]
    pub allowed_origins: Option<Vec<String>>,

    /// API token of the single tenant "default"
    #[arg(long, help_heading = "Tenants", env = "POSTHASTE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Read-only API token of the single tenant "default"
    #[arg(
        long,
        help_heading = "Tenants",
        env = "POSTHASTE_READ_ONLY_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub read_only_token: Option<String>,
    /// Key that signs the deliveries of the single tenant "default"
    #[arg(
        long,
        help_heading = "Tenants",
        env = "POSTHASTE_CURRENT_SIGNING_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    pub current_signing_key: Option<String>,
    /// Signing key that becomes the current one at the next rotation
    #[arg(
        long,
        help_heading = "Tenants",
        env = "POSTHASTE_NEXT_SIGNING_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    pub next_signing_key: Option<String>,
    /// Also accept the token as ?qstash_token= [default: true in dev, false in serve]
    #[arg(long, help_heading = "Tenants", env = "POSTHASTE_QUERY_TOKEN", value_name = "BOOL")]
    pub query_token: Option<bool>,
    /// Start the test receiver of the console on a loopback port [default: true in dev, false in serve]
    #[arg(long, help_heading = "Observing", env = "POSTHASTE_CONSOLE_RECEIVER", value_name = "BOOL")]
    pub console_receiver: Option<bool>,
    /// Token for /metrics; without it, /metrics is off in serve and open in dev
    #[arg(
        long,
        help_heading = "Observing",
        env = "POSTHASTE_METRICS_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub metrics_token: Option<String>,

    /// PEM file with certificate authorities to trust in addition to the public ones
    #[arg(long, help_heading = "Deliveries", env = "POSTHASTE_EGRESS_CA_FILE", value_name = "FILE")]
    pub egress_ca_file: Option<PathBuf>,
    /// Private networks that messages may be sent to, such as 10.0.0.0/8 (repeat, or separate with commas)
    #[arg(
        long,
        help_heading = "Deliveries",
        env = "POSTHASTE_EGRESS_ALLOW_CIDRS",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub egress_allow_cidrs: Option<Vec<String>>,
    /// Host names that messages may be sent to although they are local or have private addresses
    #[arg(
        long,
        help_heading = "Deliveries",
        env = "POSTHASTE_EGRESS_ALLOW_HOSTS",
        value_name = "HOST",
        value_delimiter = ','
    )]
    pub egress_allow_hosts: Option<Vec<String>>,
    /// Show tenants why a private destination is rejected or unreachable [default: true in dev, false in serve]
    #[arg(long, help_heading = "Deliveries", env = "POSTHASTE_EGRESS_DETAIL", value_name = "BOOL")]
    pub egress_detail: Option<bool>,
    /// Base URL of an OpenAI-compatible API for api/llm, including its /v1
    #[arg(long, help_heading = "Deliveries", env = "POSTHASTE_LLM_URL", value_name = "URL")]
    pub llm_url: Option<String>,
    /// Bearer token for that API
    #[arg(
        long,
        help_heading = "Deliveries",
        env = "POSTHASTE_LLM_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub llm_token: Option<String>,
    /// Value of the Upstash-Region header of deliveries [default: EU-CENTRAL-1]
    #[arg(long, help_heading = "Deliveries", env = "POSTHASTE_REGION", value_name = "REGION")]
    pub region: Option<String>,

    /// Maximum deliveries in flight per tenant [default: 1000]
    #[arg(long, help_heading = "Deliveries", env = "POSTHASTE_TENANT_PARALLELISM", value_name = "N")]
    pub tenant_parallelism: Option<u32>,
    /// Maximum deliveries in flight per tenant and destination [default: 200]
    #[arg(long, help_heading = "Deliveries", env = "POSTHASTE_DESTINATION_PARALLELISM", value_name = "N")]
    pub destination_parallelism: Option<u32>,
    /// Key that encrypts stored signing keys and forwarded credentials: 32 bytes in hexadecimal or base64, optionally followed by older keys, separated by commas
    #[arg(
        long,
        help_heading = "Storing",
        env = "POSTHASTE_ENCRYPTION_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    pub encryption_key: Option<String>,
    /// File with that key on its first line, optionally followed by older keys, one per line
    #[arg(long, help_heading = "Storing", env = "POSTHASTE_ENCRYPTION_KEY_FILE", value_name = "FILE")]
    pub encryption_key_file: Option<PathBuf>,
    /// Maximum size of a message body in bytes [default: 10485760]
    #[arg(long, help_heading = "Storing", env = "POSTHASTE_MESSAGE_BYTES_MAX", value_name = "BYTES")]
    pub message_bytes_max: Option<usize>,
    /// Free disk space in bytes below which publishes are rejected; 0 disables the check [default: 67108864]
    #[arg(long, help_heading = "Storing", env = "POSTHASTE_DISK_RESERVE_BYTES", value_name = "BYTES")]
    pub disk_reserve_bytes: Option<u64>,
    /// Write to a journal first and to the database shortly after; false writes only to the database [default: true]
    #[arg(long, help_heading = "Storing", env = "POSTHASTE_JOURNAL", value_name = "BOOL")]
    pub journal: Option<bool>,
    /// How long logs and ended messages are kept [default: 7d]
    #[arg(long, help_heading = "Storing", env = "POSTHASTE_LOG_RETENTION", value_name = "DURATION")]
    pub log_retention: Option<String>,
    /// How long dead letters are kept [default: 30d]
    #[arg(long, help_heading = "Storing", env = "POSTHASTE_DLQ_RETENTION", value_name = "DURATION")]
    pub dlq_retention: Option<String>,
    /// Ignore `count` in bulk cancels, as the hosted service does [default: false]
    #[arg(long, help_heading = "Storing", env = "POSTHASTE_BULK_CANCEL_IGNORE_COUNT", value_name = "BOOL")]
    pub bulk_cancel_ignore_count: Option<bool>,

    /// Maximum delay of a publish, at most 365d [default: 365d]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_DELAY", value_name = "DURATION")]
    pub max_delay: Option<String>,
    /// Maximum retries of a publish, at most 1000 [default: 1000]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_RETRIES", value_name = "N")]
    pub max_retries: Option<u32>,
    /// Maximum time of one attempt, at most 2h; also the timeout of messages without one [default: 2h]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_TIMEOUT", value_name = "DURATION")]
    pub max_timeout: Option<String>,
    /// Maximum schedules per tenant, at most 100000 [default: 100000]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_SCHEDULES", value_name = "N")]
    pub max_schedules: Option<usize>,
    /// Maximum queues per tenant, at most 100000 [default: 100000]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_QUEUES", value_name = "N")]
    pub max_queues: Option<usize>,
    /// Maximum parallelism of a queue, at most 1000 [default: 1000]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_QUEUE_PARALLELISM", value_name = "N")]
    pub max_queue_parallelism: Option<u32>,
    /// Maximum URL groups per tenant; no limit if not set
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_URL_GROUPS", value_name = "N")]
    pub max_url_groups: Option<usize>,
    /// Maximum endpoints of a URL group, at most 100 [default: 100]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_GROUP_ENDPOINTS", value_name = "N")]
    pub max_group_endpoints: Option<usize>,
    /// Maximum entries of a workflow run (trigger, steps, calls), at most 10000 [default: 10000]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_WORKFLOW_MAX_STEPS", value_name = "N")]
    pub workflow_max_steps: Option<u32>,
    /// Maximum bytes of the entries of a workflow run, at most 104857600 [default: 104857600]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_WORKFLOW_MAX_BYTES", value_name = "BYTES")]
    pub workflow_max_bytes: Option<u64>,
    /// Maximum duration of a workflow run, at most 365d [default: 365d]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_WORKFLOW_MAX_DURATION", value_name = "DURATION")]
    pub workflow_max_duration: Option<String>,
    /// Maximum depth of workflow runs that invoke one another, at most 100 [default: 100]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_WORKFLOW_MAX_DEPTH", value_name = "N")]
    pub workflow_max_depth: Option<u32>,
    /// Maximum bytes of workflow entries in a delivery; clients that support it fetch larger lists themselves [default: 3145728]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_WORKFLOW_LAZY_BYTES", value_name = "BYTES")]
    pub workflow_lazy_bytes: Option<usize>,
    /// Maximum messages that a tenant may publish per day (UTC); no limit if not set
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MESSAGES_PER_DAY", value_name = "N")]
    pub messages_per_day: Option<u64>,
    /// Maximum requests of a tenant per second, not counting publishes; no limit if not set
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_API_REQUESTS_PER_SECOND", value_name = "N")]
    pub api_requests_per_second: Option<u64>,
    /// Maximum bytes that a tenant may store [default: half of the disk]
    #[arg(long, help_heading = "Quotas", env = "POSTHASTE_MAX_STORED_BYTES", value_name = "BYTES")]
    pub max_stored_bytes: Option<u64>,

    /// How long open requests, and then deliveries in flight, may take to finish at shutdown [default: 10s]
    #[arg(long, help_heading = "Listening", env = "POSTHASTE_SHUTDOWN_GRACE", value_name = "DURATION")]
    pub shutdown_grace: Option<String>,
    /// Format of log lines [default: pretty in dev, json in serve]
    #[arg(long, help_heading = "Observing", env = "POSTHASTE_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Filter for log lines, such as info or posthaste=debug [default: warn in dev, info in serve]
    #[arg(long, help_heading = "Observing", env = "POSTHASTE_LOG", value_name = "FILTER")]
    pub log: Option<String>,

    /// Tenants, in the file only.
    #[arg(skip)]
    pub tenants: Vec<TenantSettings>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For machines, one object per line.
    Json,
}

/// The checked settings, with defaults filled in.
#[derive(Clone, Debug)]
pub struct Config {
    /// How the server is run.
    pub mode: Mode,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Directory that holds all data.
    pub data_dir: PathBuf,
    /// URL under which clients reach the server.
    pub public_url: Option<String>,
    /// Proxies whose X-Forwarded-For says who calls.
    pub trusted_proxies: Vec<IpNet>,
    /// Connections at once from one address.
    pub connections_per_address: usize,
    /// Which web pages may call the API, and under which names it answers.
    pub browsers: BrowserPolicy,
    /// Tenants of the server.
    pub tenants: Vec<TenantConfig>,
    /// Whether `?qstash_token=` is accepted.
    pub query_token: bool,
    /// Whether the console has a test receiver.
    pub console_receiver: bool,
    /// Access to `/metrics`.
    pub metrics_access: MetricsAccess,
    /// Where messages may go. Our own addresses are added when the listener is bound.
    pub egress: EgressPolicy,
    /// Certificate authorities to trust besides the public ones, as PEM.
    pub egress_ca_pem: Option<Vec<u8>>,
    /// Where `api/llm` leads, with its credentials.
    pub llm: Option<Upstream>,
    /// Value of the Upstash-Region header.
    pub region: String,
    /// The engine's caps.
    pub shard: shard::Settings,
    /// Quotas of each tenant.
    pub quotas: Quotas,
    /// Keys that encrypt stored signing keys and forwarded credentials; `None` stores them in the clear.
    pub encryption: Option<KeyRing>,
    /// Largest message body.
    pub message_bytes_max: usize,
    /// Bytes of disk to keep free.
    pub disk_reserve_bytes: u64,
    /// Whether a journal is in front of the database.
    pub journal: bool,
    /// How long history and dead letters are kept.
    pub retention: Retention,
    /// Whether `count` in bulk cancels is ignored.
    pub bulk_cancel_ignore_count: bool,
    /// How long deliveries in flight may take to finish at shutdown.
    pub shutdown_grace: Duration,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Which log lines are written.
    pub log: String,
    /// Where each setting that was said comes from, by its name in the file; the others have their defaults.
    pub sources: BTreeMap<String, Source>,
}

/// Access to `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAccess {
    /// It does not exist.
    Off,
    /// Everybody who reaches the listener gets it.
    Open,
    /// Requests with a token that has this SHA-256 get it.
    Token([u8; 32]),
}

/// An error in the settings, for the person who wrote them.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file could not be read.
    #[error("cannot read {what} {path}")]
    Read {
        /// Which file.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{path} is not a valid configuration: {message}")]
    Syntax {
        /// Where.
        path: PathBuf,
        /// The problem and its line.
        message: String,
    },
    /// A value is wrong.
    #[error("{setting}: {problem}")]
    Invalid {
        /// Which setting, as in the TOML file.
        setting: &'static str,
        /// The problem, and the accepted values.
        problem: String,
    },
}

pub(crate) fn invalid(setting: &'static str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { setting, problem: problem.into() }
}

impl Settings {
    /// Reads a TOML file.
    pub fn from_file(path: &Path) -> Result<Settings, ConfigError> {
        let read = |source| ConfigError::Read { what: "the configuration", path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        Settings::parse(path, &text)
    }

    /// Reads the text of a TOML file, whose path is for errors.
    pub fn parse(path: &Path, text: &str) -> Result<Settings, ConfigError> {
        let syntax = |error| ConfigError::Syntax { path: path.to_owned(), message: problem::describe(text, &error) };
        toml::from_str(text).map_err(syntax)
    }

    /// These settings, and for what they leave open the other ones.
    pub fn or(self, other: Settings) -> Result<Settings, ConfigError> {
        let mut merged = other.said()?;
        merged.extend(self.said()?);
        serde_json::from_value(merged.into()).map_err(|error| invalid("settings", error.to_string()))
    }

    /// The names of what was said.
    pub fn names(&self) -> Result<Vec<String>, ConfigError> {
        Ok(self.said()?.into_iter().map(|(name, _)| name).collect())
    }

    fn said(&self) -> Result<serde_json::Map<String, serde_json::Value>, ConfigError> {
        let value = serde_json::to_value(self).map_err(|error| invalid("settings", error.to_string()))?;
        let serde_json::Value::Object(map) = value else { return Ok(serde_json::Map::new()) };
        Ok(map.into_iter().filter(|(_, value)| !value.is_null() && *value != serde_json::json!([])).collect())
    }
}

impl Config {
    /// Checks the settings and fills in the defaults.
    pub fn resolve(mode: Mode, settings: Settings) -> Result<Config, ConfigError> {
        let listen = listen_address(mode, settings.listen.as_deref())?;
        let retention = Retention {
            history_ms: duration("log_retention", settings.log_retention.as_deref(), limits::HISTORY_MS_DEFAULT)?,
            dlq_ms: duration("dlq_retention", settings.dlq_retention.as_deref(), limits::DLQ_MS_DEFAULT)?,
        };
        let grace = duration("shutdown_grace", settings.shutdown_grace.as_deref(), 10_000)?;
        let message_bytes_max = settings.message_bytes_max.unwrap_or(limits::MESSAGE_BYTES_MAX);
        if message_bytes_max == 0 || message_bytes_max > limits::MESSAGE_BYTES_CEILING {
            return Err(invalid("message_bytes_max", format!("must be 1 to {}", limits::MESSAGE_BYTES_CEILING)));
        }
        let connections_per_address = settings.connections_per_address.unwrap_or(http::CONNECTIONS_PER_ADDRESS);
        if connections_per_address == 0 || connections_per_address > http::CONNECTIONS_MAX {
            return Err(invalid("connections_per_address", format!("must be 1 to {}", http::CONNECTIONS_MAX)));
        }
        let dev = mode == Mode::Dev;
        Ok(Config {
            mode,
            sources: settings.names()?.into_iter().map(|name| (name, Source::Given)).collect(),
            listen,
            tenants: tenants::resolve(mode, &settings)?,
            public_url: settings.public_url.clone(),
            trusted_proxies: networks("trusted_proxies", settings.trusted_proxies.as_deref())?,
            connections_per_address,
            browsers: browser_policy(mode, &settings)?,
            query_token: settings.query_token.unwrap_or(dev),
            console_receiver: settings.console_receiver.unwrap_or(dev),
            metrics_access: match &settings.metrics_token {
                Some(token) => MetricsAccess::Token(tenants::hash(token)),
                None if dev => MetricsAccess::Open,
                None => MetricsAccess::Off,
            },
            egress: egress_policy(mode, &settings)?,
            egress_ca_pem: settings.egress_ca_file.as_deref().map(read_ca_file).transpose()?,
            llm: llm_upstream(&settings)?,
            region: settings.region.clone().unwrap_or_else(|| "EU-CENTRAL-1".to_owned()),
            shard: shard_settings(&settings)?,
            quotas: Quotas::resolve(&settings)?,
            encryption: encryption(&settings)?,
            message_bytes_max,
            disk_reserve_bytes: settings.disk_reserve_bytes.unwrap_or(limits::DISK_RESERVE_BYTES),
            journal: settings.journal.unwrap_or(true),
            retention,
            bulk_cancel_ignore_count: settings.bulk_cancel_ignore_count.unwrap_or(false),
            shutdown_grace: Duration::from_millis(grace),
            log_format: settings.log_format.unwrap_or(if dev { LogFormat::Pretty } else { LogFormat::Json }),
            log: settings.log.unwrap_or_else(|| if dev { "warn" } else { "info" }.to_owned()),
            data_dir: settings.data_dir.unwrap_or_else(|| PathBuf::from("posthaste-data")),
        })
    }
}

fn listen_address(mode: Mode, text: Option<&str>) -> Result<SocketAddr, ConfigError> {
    let text = text.unwrap_or("127.0.0.1:8080");
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    let wrong = || invalid("listen", format!("{text:?} is not an address and port such as 127.0.0.1:8080"));
    let address = found.ok_or_else(wrong)?;
    if mode == Mode::Dev && !address.ip().is_loopback() {
        return Err(invalid(
            "listen",
            format!(
                "{address} is not a loopback address; `dev` has published credentials and listens on loopback only, use `serve`"
            ),
        ));
    }
    Ok(address)
}

/// A duration of a setting, in milliseconds.
pub(crate) fn duration(setting: &'static str, text: Option<&str>, default_ms: u64) -> Result<u64, ConfigError> {
    let Some(text) = text else { return Ok(default_ms) };
    match parse_duration(text) {
        Ok(0) => Err(invalid(setting, "must be longer than zero")),
        Ok(millis) => Ok(millis),
        Err(error) => Err(invalid(setting, format!("{} is {error}", echo(text)))),
    }
}

/// The networks of a setting.
fn networks(setting: &'static str, texts: Option<&[String]>) -> Result<Vec<IpNet>, ConfigError> {
    let network = |text: &String| {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map_err(|_| invalid(setting, format!("{text:?} is not a network such as 10.0.0.0/8 or an address")))
    };
    texts.unwrap_or_default().iter().map(network).collect()
}

fn browser_policy(mode: Mode, settings: &Settings) -> Result<BrowserPolicy, ConfigError> {
    let origin = |text: &String| {
        let problem =
            || format!("{text:?} is not an origin such as https://app.example.com: a scheme, a host and no path");
        canonical_origin(text).ok_or_else(|| invalid("allowed_origins", problem()))
    };
    let own_name = settings.public_url.as_deref().map(|url| own_host(url).map(|(name, _)| name)).transpose()?;
    Ok(BrowserPolicy {
        allow_loopback: mode == Mode::Dev,
        origins: settings.allowed_origins.iter().flatten().map(origin).collect::<Result<_, _>>()?,
        hosts: (mode == Mode::Dev).then(|| own_name.into_iter().collect()),
    })
}

fn egress_policy(mode: Mode, settings: &Settings) -> Result<EgressPolicy, ConfigError> {
    let mut policy = EgressPolicy {
        allow_loopback: mode == Mode::Dev,
        allow_cidrs: networks("egress_allow_cidrs", settings.egress_allow_cidrs.as_deref())?,
        allow_hosts: settings.egress_allow_hosts.clone().unwrap_or_default(),
        explain: settings.egress_detail.unwrap_or(mode == Mode::Dev),
        ..EgressPolicy::default()
    };
    if let Some(public_url) = settings.public_url.as_deref() {
        let (host, port) = own_host(public_url)?;
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => policy.own_addrs.push(SocketAddr::new(address, port)),
            Err(_) => policy.own_hosts.push((host, port)),
        }
    }
    Ok(policy)
}

/// Host and port of the public URL.
fn own_host(public_url: &str) -> Result<(String, u16), ConfigError> {
    let wrong = || invalid("public_url", format!("{public_url:?} is not a URL such as https://posthaste.example.com"));
    let url = url::Url::parse(public_url).map_err(|_| wrong())?;
    let host = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https")).ok_or_else(wrong)?;
    Ok((host.to_owned(), url.port_or_known_default().ok_or_else(wrong)?))
}

/// Path that is appended to the base URL of a language model.
const LLM_PATH: &str = "chat/completions";

fn llm_upstream(settings: &Settings) -> Result<Option<Upstream>, ConfigError> {
    let token = settings.llm_token.as_deref();
    match settings.llm_url.as_deref() {
        None if token.is_some() => Err(invalid("llm_token", "llm_url is missing: it says where the token is for")),
        None => Ok(None),
        Some(url) => match Upstream::new(url, LLM_PATH, token) {
            Ok(upstream) => Ok(Some(upstream)),
            Err(InvalidUpstream::Token) => Err(invalid("llm_token", InvalidUpstream::Token.to_string())),
            Err(InvalidUpstream::Url(problem)) => {
                Err(invalid("llm_url", format!("{problem}; it is a URL such as https://api.openai.com/v1")))
            }
        },
    }
}

fn encryption(settings: &Settings) -> Result<Option<KeyRing>, ConfigError> {
    let (setting, text) = match (&settings.encryption_key, &settings.encryption_key_file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(invalid("encryption_key", "encryption_key_file is set as well; name the key in one place"));
        }
        (Some(text), None) => ("encryption_key", text.clone()),
        (None, Some(path)) => {
            let read = |source| ConfigError::Read { what: "the encryption key", path: path.clone(), source };
            ("encryption_key_file", std::fs::read_to_string(path).map_err(read)?)
        }
    };
    KeyRing::parse(&text).map(Some).map_err(|error| invalid(setting, error.to_string()))
}

fn read_ca_file(path: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|source| ConfigError::Read {
        what: "the certificate authorities",
        path: path.to_owned(),
        source,
    })
}

fn shard_settings(settings: &Settings) -> Result<shard::Settings, ConfigError> {
    let tenant = settings.tenant_parallelism.unwrap_or(limits::TENANT_IN_FLIGHT_MAX);
    let origin = settings.destination_parallelism.unwrap_or(limits::ORIGIN_IN_FLIGHT_MAX);
    for (setting, value) in [("tenant_parallelism", tenant), ("destination_parallelism", origin)] {
        if value == 0 || value > limits::IN_FLIGHT_MAX {
            return Err(invalid(setting, format!("must be 1 to {}", limits::IN_FLIGHT_MAX)));
        }
    }
    Ok(shard::Settings { tenant_in_flight_max: tenant, origin_in_flight_max: origin, ..shard::Settings::default() })
}
