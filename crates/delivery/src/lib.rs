//! Sends messages to their receivers, one attempt per call, and only where the egress policy allows. This crate knows
//! no store, no API and no queue, and it does not retry: the engine decides whether there is another attempt.
//!
//! Start at [`Deliverer::attempt`]. [`target`] parses the URL, [`egress`] and [`resolve`] decide which addresses may be
//! dialled, `connect` and `pool` open and keep connections, `request` builds and signs the request, and `response`
//! reads the response within the limits of `answer_room`. The egress guard has its vectors in `vectors/ssrf.json`.
//! Modules are in reading order.
//!
//! Modules:
//!
//! - `target`, `request`: the URL and the request of an attempt
//! - `address`, `egress`: which addresses may be dialled
//! - `resolve`: name resolution
//! - `connect`, `pool`, `frames`: connections; `frames` bounds HTTP/2
//! - `stream`, `response`, `answer_room`: bodies, and responses within bounds
//! - `failure`: why an attempt failed
//! - `upstream`: a receiver that the operator chose, for `api/llm`
//! - `probes`: bounds how a tenant can explore private networks
//! - `loop_mark`: recognises deliveries that come back
//! - `fuzzing`: entry points of the fuzzers

pub mod target;

pub mod address;

pub mod egress;

pub mod resolve;

pub mod upstream;

pub mod loop_mark;

mod probes;

mod connect;

mod stream;

mod frames;

mod pool;

mod request;

mod answer_room;

mod response;

mod failure;

#[doc(hidden)]
pub mod fuzzing;

pub use answer_room::{
    ANSWER_REST_PATIENCE, ANSWER_ROOM_PATIENCE, ANSWERS_BYTES_MAX, AnswerBudget, AnswerPatience, AnswerRoom,
    ORIGIN_ANSWERS_BYTES_MAX, TENANT_ANSWERS_BYTES_MAX,
};

use bytes::Bytes;
use connect::Connector;
use egress::EgressPolicy;
use http::{HeaderMap, HeaderValue};
use http_body_util::Full;
use hyper::body::Incoming;
use loop_mark::LoopMark;
use pool::{Connection, Key, Pool};
use posthaste_engine::event::{Phases, Response};
use posthaste_engine::limits;
use posthaste_engine::message::Message;
use posthaste_engine::outcome::{AttemptError, Outcome};
use posthaste_wire::id::TenantId;
use posthaste_wire::signature::SigningKeys;
use posthaste_wire::time::Timestamp;
use request::{Ours, Prepared, addressed};
use resolve::Resolve;
use response::{Ending, Wanted};
use std::sync::Arc;
use std::time::Duration;
use target::Target;
use tokio::time::{Instant, timeout_at};
use upstream::Upstream;

/// Options of deliveries.
#[derive(Clone, Debug)]
pub struct DeliveryConfig {
    /// The allowed destinations.
    pub egress: EgressPolicy,
    /// The destination of all deliveries, instead of the URLs of their messages.
    pub upstream: Option<Upstream>,
    /// Marks deliveries, so that those that return to this server are recognized.
    pub loop_mark: Option<LoopMark>,
    /// Trusted certificate authorities besides the public ones, as PEM.
    pub extra_ca_pem: Option<Vec<u8>>,
    /// Value of the `Upstash-Region` header.
    pub region: String,
    /// Longest timeout of an attempt; a longer one in the message is cut to it.
    pub timeout_max: Duration,
    /// Timeout of a DNS lookup.
    pub dns_timeout: Duration,
    /// Timeout of connecting, over all addresses of a name.
    pub connect_timeout: Duration,
    /// Timeout of a TLS handshake.
    pub tls_timeout: Duration,
    /// How long to wait for a body that the caller does not need.
    pub body_grace: Duration,
    /// How long to wait for responses that need room.
    pub answer_patience: AnswerPatience,
    /// How long an unused connection is kept open.
    pub pool_idle_timeout: Duration,
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        DeliveryConfig {
            egress: EgressPolicy::default(),
            upstream: None,
            loop_mark: None,
            extra_ca_pem: None,
            region: "EU-CENTRAL-1".into(),
            timeout_max: Duration::from_millis(limits::TIMEOUT_MS_MAX),
            dns_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            tls_timeout: Duration::from_secs(10),
            body_grace: Duration::from_millis(limits::RESPONSE_BODY_GRACE_MS),
            answer_patience: AnswerPatience::default(),
            pool_idle_timeout: Duration::from_secs(30),
        }
    }
}

/// Why a [`Deliverer`] cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not PEM.
    #[error("the CA file is not PEM: {0}")]
    CaFile(rustls::pki_types::pem::Error),
    /// PEM, but no certificate in it.
    #[error("the CA file contains no certificate")]
    CaFileEmpty,
    /// A certificate in it does not parse.
    #[error("the CA file contains a certificate that cannot be used: {0}")]
    CaCertificate(rustls::Error),
    /// rustls was built without a required feature.
    #[error("TLS cannot be set up: {0}")]
    Tls(rustls::Error),
    /// Not a valid header value.
    #[error("the region {0:?} cannot be sent in a header")]
    Region(String),
}

/// One attempt to deliver a message.
#[derive(Clone, Debug)]
pub struct Attempt<'a> {
    /// The message to deliver.
    pub message: &'a Message,
    /// Retries before this attempt: 0 for the first.
    pub retried: u32,
    /// The tenant's keys; `current` signs.
    pub keys: &'a SigningKeys,
    /// The time of the signature.
    pub now: Timestamp,
    /// Random bytes, new for every attempt. They become the id of the signature.
    pub nonce: [u8; 20],
    /// Timeout of the whole attempt, without the wait for `room`; at most [`DeliveryConfig::timeout_max`].
    pub timeout_ms: u64,
    /// Whether the caller needs the whole body. A 2xx without all of it is then a failure.
    pub needs_body: bool,
    /// The room of a long response.
    pub room: &'a AnswerRoom,
}

/// Makes attempts. Share it in an `Arc`.
pub struct Deliverer {
    policy: EgressPolicy,
    upstream: Option<Upstream>,
    loop_mark: Option<LoopMark>,
    region: HeaderValue,
    timeout_max: Duration,
    body_grace: Duration,
    answer_patience: AnswerPatience,
    connector: Connector,
    pool: Arc<Pool>,
}

impl Deliverer {
    /// Checks the configuration. Opens no connections yet.
    pub fn new(mut config: DeliveryConfig, resolver: Arc<dyn Resolve>) -> Result<Deliverer, ConfigError> {
        if let Some(upstream) = &config.upstream {
            config.egress = upstream.policy(&config.egress);
        }
        let connector = Connector::new(&config, resolver)?;
        let region = HeaderValue::from_str(&config.region).map_err(|_| ConfigError::Region(config.region.clone()))?;
        let pool = Pool::new(config.pool_idle_timeout);
        let DeliveryConfig { egress: policy, upstream, loop_mark, timeout_max, body_grace, answer_patience, .. } =
            config;
        Ok(Deliverer { policy, upstream, loop_mark, region, timeout_max, body_grace, answer_patience, connector, pool })
    }

    /// Makes one attempt. A failed delivery is data, not an error.
    pub async fn attempt(&self, attempt: &Attempt<'_>) -> Outcome {
        let started = Instant::now();
        let timeout = Duration::from_millis(attempt.timeout_ms).min(self.timeout_max);
        let mut phases = Phases::default();
        let result = self.exchange(attempt, started + timeout, &mut phases).await;
        // The duration is comparable with the timeout that users configure.
        let duration_ms = u64::try_from(attempt.room.spent_since(started).as_millis()).unwrap_or(u64::MAX);
        let phases = (phases != Phases::default()).then(|| Box::new(phases));
        Outcome { result, duration_ms, phases }
    }

    /// Records in `phases` how far the exchange came, also if it fails or times out.
    async fn exchange(
        &self,
        attempt: &Attempt<'_>,
        deadline: Instant,
        phases: &mut Phases,
    ) -> Result<Response, AttemptError> {
        let target = self.target(&attempt.message.spec.url)?;
        let upstream = self.upstream.as_ref();
        let authorization = upstream.and_then(|upstream| upstream.authorization.as_ref());
        let url = upstream.map_or(&attempt.message.spec.url, |upstream| &upstream.url);
        let prepared = Prepared::signed(attempt, Ours { region: &self.region, url, authorization }).await?;
        let key = Key::new(attempt.message.tenant, &target);
        let Ok(sent) = timeout_at(deadline, self.send(&key, &target, &prepared, phases)).await else {
            self.pool.retire(&key);
            return Err(failure::timed_out());
        };
        let (answer, connection) = sent?;
        let until = if attempt.needs_body { deadline } else { deadline.min(Instant::now() + self.body_grace) };
        let wanted = Wanted {
            needs_body: attempt.needs_body,
            bytes_max: response_bytes_max(attempt.message),
            until,
            receiver: &target.authority,
            room: attempt.room,
            patience: self.answer_patience,
        };
        let (response, ending) = response::read(answer, &wanted).await?;
        if ending == Ending::Complete {
            self.pool.give_back(key, connection);
        }
        Ok(response)
    }

    /// Forwards a request to the upstream. The caller streams the body of the response. Returns `None` if there is no
    /// upstream.
    pub async fn pass_on(
        &self,
        tenant: TenantId,
        mut headers: HeaderMap,
        body: Bytes,
        patience: Duration,
    ) -> Option<Result<http::Response<Incoming>, AttemptError>> {
        let upstream = self.upstream.as_ref()?;
        if let Some(authorization) = &upstream.authorization {
            headers.insert(http::header::AUTHORIZATION, authorization.clone());
        }
        let exchange = async {
            let target = self.target(&upstream.url)?;
            let prepared = Prepared::PassedOn { headers, body };
            // The connection is not returned to the pool, because the reader of the response may stop in the middle.
            let key = Key::new(tenant, &target);
            let (answer, _) = self.send(&key, &target, &prepared, &mut Phases::default()).await?;
            Ok(answer)
        };
        Some(tokio::time::timeout(patience, exchange).await.unwrap_or_else(|_| Err(failure::timed_out())))
    }

    /// The checked target: the upstream if there is one, else the URL of the message.
    fn target(&self, url: &str) -> Result<Arc<Target>, AttemptError> {
        let url = self.upstream.as_ref().map_or(url, |upstream| &upstream.url);
        self.policy.checked_target(url).map_err(|refusal| {
            tracing::info!(%refusal, "destination refused");
            failure::refused(&refusal, self.policy.explain)
        })
    }

    /// Sends the request and waits for the head of the response.
    ///
    /// A receiver may close an idle connection just as a request is sent on it. If it has sent nothing back (HTTP/1),
    /// or reports that it did not process the request (HTTP/2), the request is sent once more on a new connection,
    /// within the same attempt.
    async fn send(
        &self,
        key: &Key,
        target: &Target,
        prepared: &Prepared<'_>,
        phases: &mut Phases,
    ) -> Result<(http::Response<Incoming>, Connection), AttemptError> {
        // A request that cannot be built needs no connection.
        let mut request = prepared.request()?;
        if let Some(mut connection) = self.pool.take(key) {
            phases.reused = true;
            let sent = self.addressed(request, target, connection.is_http2())?;
            match timed(&mut phases.first_byte_us, connection.send(sent)).await {
                Ok(answer) => return Ok((answer, connection)),
                Err(unanswered) if unanswered.untouched => request = prepared.request()?,
                Err(unanswered) => return Err(unanswered.error),
            }
            *phases = Phases::default();
        }
        // Boxed, because most attempts do not need it and every attempt is moved.
        let mut connection = Box::pin(self.connector.open(key.tenant(), target, phases)).await?;
        self.pool.share(key, &connection);
        let request = self.addressed(request, target, connection.is_http2())?;
        match timed(&mut phases.first_byte_us, connection.send(request)).await {
            Ok(answer) => Ok((answer, connection)),
            Err(unanswered) => Err(unanswered.error),
        }
    }

    /// The request in the form for this kind of connection, with the loop mark.
    fn addressed(
        &self,
        request: http::Request<Full<Bytes>>,
        target: &Target,
        http2: bool,
    ) -> Result<http::Request<Full<Bytes>>, AttemptError> {
        let mut request = addressed(request, target, http2)?;
        if let Some(mark) = &self.loop_mark {
            mark.put_on(request.headers_mut(), target.path.as_str());
        }
        Ok(request)
    }
}

/// Records how long the work took, whether it succeeded or not.
async fn timed<T>(spent_us: &mut Option<u64>, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = work.await;
    *spent_us = Some(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
    done
}

/// How many bytes of a response are read. For a run, the response is its result.
fn response_bytes_max(message: &Message) -> usize {
    match message.spec.workflow {
        Some(_) => limits::WORKFLOW_RESPONSE_BYTES_MAX,
        None => limits::RESPONSE_BYTES_MAX,
    }
}
