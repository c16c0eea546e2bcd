//! Opens connections, only to addresses that the policy allows.
//!
//! There is one lookup. All its addresses are checked, only checked addresses are dialled, and the peer is checked
//! again. Proxy variables are ignored. Start at [`Connector::open`].

use super::address;
use super::egress::EgressPolicy;
use super::failure::{self, failure};
use super::frames::Framed;
use super::pool::Connection;
use super::probes::Probes;
use super::resolve::Resolve;
use super::stream::{Activity, Opened, Transport, Watched};
use super::target::{Target, TargetHost};
use super::{ConfigError, DeliveryConfig, timed};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use posthaste_engine::event::Phases;
use posthaste_engine::limits;
use posthaste_engine::outcome::{AttemptError, ErrorClass};
use posthaste_wire::id::TenantId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Most addresses of one name that are dialled.
const ADDRESSES_MAX: usize = 16;
/// How long one address is tried before the next one is tried in parallel.
const STAGGER: Duration = Duration::from_millis(300);
/// Bytes that may be in transit on one HTTP/2 stream before they are read.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The same limit for a whole connection, large enough for all its streams together. Some streams may stall while their
/// response waits for room; the others must still receive data.
const CONNECTION_WINDOW: u32 = (limits::ORIGIN_IN_FLIGHT_MAX + 16) * STREAM_WINDOW;
/// Interval of the pings on an HTTP/2 connection with requests in flight.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

// hyper's own default, which unlike a configured value costs no allocation per response.
const _: () = assert!(limits::RESPONSE_HEADERS_MAX == 100);

/// Opens connections to receivers.
pub(super) struct Connector {
    policy: EgressPolicy,
    probes: Probes,
    resolver: Arc<dyn Resolve>,
    tls: TlsConnector,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    dns_timeout: Duration,
    connect_timeout: Duration,
    tls_timeout: Duration,
}

impl Connector {
    pub(super) fn new(config: &DeliveryConfig, resolver: Arc<dyn Resolve>) -> Result<Connector, ConfigError> {
        Ok(Connector {
            policy: config.egress.clone(),
            probes: Probes::default(),
            resolver,
            tls: TlsConnector::from(Arc::new(tls_config(config.extra_ca_pem.as_deref())?)),
            http1: http1_builder(),
            http2: http2_builder(),
            dns_timeout: config.dns_timeout,
            connect_timeout: config.connect_timeout,
            tls_timeout: config.tls_timeout,
        })
    }

    /// Opens a connection to a target whose URL was already checked.
    pub(super) async fn open(
        &self,
        tenant: TenantId,
        target: &Target,
        phases: &mut Phases,
    ) -> Result<Connection, AttemptError> {
        let addresses = match &target.host {
            TargetHost::Address(address) => vec![SocketAddr::new(address.to_canonical(), target.port)],
            TargetHost::Name(name) => timed(&mut phases.dns_us, self.addresses(name, target.port)).await?,
        };
        let is_public = |address: &SocketAddr| address::kind(address.ip()).is_none();
        if self.policy.explain || addresses.iter().all(is_public) {
            return self.connect(target, &addresses, &AtomicUsize::new(0), phases).await;
        }
        self.connect_inside(tenant, target, &addresses, phases).await
    }

    /// Connects to the operator's network. The tenant sees only that it failed; the log contains the reason.
    async fn connect_inside(
        &self,
        tenant: TenantId,
        target: &Target,
        addresses: &[SocketAddr],
        phases: &mut Phases,
    ) -> Result<Connection, AttemptError> {
        let origin = target.origin.as_str();
        let permit = timeout(self.connect_timeout, self.probes.permit(tenant, addresses)).await;
        let Some(permit) = permit.ok().filter(|permit| !permit.addresses.is_empty()) else {
            tracing::warn!(
                tenant = tenant.0,
                origin,
                "not connected: the tenant has failed to connect to too many private addresses"
            );
            return Err(failure(ErrorClass::Connect, failure::TOO_MANY_UNREACHED));
        };
        let connected = self.connect(target, &permit.addresses, &permit.dialled, phases).await;
        permit.end(phases.address.filter(|_| connected.is_ok()));
        connected.map_err(|error| {
            tracing::info!(tenant = tenant.0, origin, error = error.message, "no connection to a private address");
            *phases = Phases::default();
            failure(error.class, failure::NOT_CONNECTED)
        })
    }

    async fn connect(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        dialled: &AtomicUsize,
        phases: &mut Phases,
    ) -> Result<Connection, AttemptError> {
        let connecting = timed(&mut phases.connect_us, timeout(self.connect_timeout, dial(addresses, dialled)));
        let stream = match connecting.await {
            Ok(connected) => connected.map_err(|error| failure::not_connected(&error))?,
            Err(_) => return Err(failure::phase_timed_out(ErrorClass::Connect, "connecting", self.connect_timeout)),
        };
        let peer = stream.peer_addr().map_err(|error| failure::not_connected(&error))?;
        if !addresses.iter().any(|address| address.ip() == peer.ip() && address.port() == peer.port()) {
            return Err(failure(ErrorClass::Blocked, format!("destination refused: connected to {peer} instead")));
        }
        phases.address = Some(peer);
        stream.set_nodelay(true).map_err(|error| failure::not_connected(&error))?;
        if !target.https {
            return self.over_http1(Transport::Plain(stream)).await;
        }
        let stream = timed(&mut phases.tls_us, self.encrypt(target, stream)).await?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            self.over_http2(Transport::Tls(Box::new(stream))).await
        } else {
            self.over_http1(Transport::Tls(Box::new(stream))).await
        }
    }

    /// The addresses to dial for a name, all of them allowed.
    async fn addresses(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, AttemptError> {
        let found = match timeout(self.dns_timeout, self.resolver.resolve(name)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) if error.kind() == io::ErrorKind::NetworkDown => {
                return Err(self.unresolved(ErrorClass::Dns, name, Some(error.to_string())));
            }
            Ok(Err(_)) => Vec::new(),
            Err(_) => return Err(failure::phase_timed_out(ErrorClass::Dns, "looking up the host", self.dns_timeout)),
        };
        if found.is_empty() {
            return Err(self.unresolved(ErrorClass::Dns, name, None));
        }
        if let Err(refusal) = self.policy.check_addresses(name, port, &found) {
            return Err(match self.policy.explain {
                true => failure::refused(&refusal, true),
                false => self.unresolved(ErrorClass::Blocked, name, Some(refusal.to_string())),
            });
        }
        Ok(in_turns(&found).map(|address| SocketAddr::new(address.to_canonical(), port)).collect())
    }

    /// The error if there is no address to dial. Tenants must not learn whether a name exists in the operator's
    /// network, so a name without addresses and a name with private ones give the same error.
    fn unresolved(&self, class: ErrorClass, name: &str, why: Option<String>) -> AttemptError {
        match (self.policy.explain, why) {
            (true, None) => failure(class, format!("unable to resolve host: {name}")),
            (true, Some(why)) => failure(class, format!("unable to resolve host: {name}: {why}")),
            (false, why) => {
                tracing::info!(host = name, why = why.unwrap_or_default(), "no address to deliver to");
                failure(class, format!("unable to resolve host: {name} has no address that deliveries may go to"))
            }
        }
    }

    async fn encrypt(&self, target: &Target, stream: TcpStream) -> Result<TlsStream<Opened>, AttemptError> {
        let name = match &target.host {
            TargetHost::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| failure(ErrorClass::Tls, format!("{name} cannot have a certificate")))?,
            TargetHost::Address(address) => ServerName::from(*address),
        };
        let handshake = self.tls.connect(name, Opened::new(stream)).into_fallible();
        match timeout(self.tls_timeout, handshake).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err((_, stream))) if stream.is_plain_http() => Err(failure(ErrorClass::Tls, failure::PLAIN_HTTP)),
            Ok(Err((error, _))) => Err(failure(ErrorClass::Tls, format!("TLS handshake failed: {error}"))),
            Err(_) => Err(failure::phase_timed_out(ErrorClass::Tls, "TLS handshake", self.tls_timeout)),
        }
    }

    async fn over_http1(&self, transport: Transport) -> Result<Connection, AttemptError> {
        let activity = Arc::new(Activity::default());
        let stream = TokioIo::new(Watched { transport, activity: activity.clone() });
        let (sender, connection) = self.http1.handshake(stream).await.map_err(|error| failure::exchange(&error))?;
        tokio::spawn(connection);
        Ok(Connection::Http1 { sender, activity })
    }

    async fn over_http2(&self, transport: Transport) -> Result<Connection, AttemptError> {
        let stream = Framed::new(transport);
        let flooded = stream.flooded();
        let (sender, connection) =
            self.http2.handshake(TokioIo::new(stream)).await.map_err(|error| failure::exchange(&error))?;
        tokio::spawn(connection);
        Ok(Connection::Http2 { sender, flooded })
    }
}

pub(super) fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .title_case_headers(true)
        .max_buf_size(limits::RESPONSE_HEADER_BYTES_MAX)
        .max_header_size(limits::RESPONSE_HEADER_BYTES_MAX);
    builder
}

pub(super) fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits::RESPONSE_HEADER_BYTES_MAX).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// The TLS configuration with the public CAs and the operator's own.
fn tls_config(extra_ca_pem: Option<&[u8]>) -> Result<ClientConfig, ConfigError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = extra_ca_pem {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(ConfigError::CaFile)?).map_err(ConfigError::CaCertificate)?;
        }
        if roots.len() == before {
            return Err(ConfigError::CaFileEmpty);
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ConfigError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The first addresses, alternating between both families, so that an unreachable family does not use up the time.
fn in_turns(found: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let starts_with_v6 = found.first().is_some_and(IpAddr::is_ipv6);
    let preferred = found.iter().copied().filter(move |address| address.is_ipv6() == starts_with_v6);
    let mut others = found.iter().copied().filter(move |address| address.is_ipv6() != starts_with_v6);
    let mut ordered = Vec::with_capacity(found.len().min(ADDRESSES_MAX));
    for address in preferred {
        ordered.push(address);
        ordered.extend(others.next());
    }
    ordered.extend(others);
    ordered.truncate(ADDRESSES_MAX);
    ordered.into_iter()
}

/// Connects to the first address that accepts. Each address gets a head start before the next one is tried in parallel.
/// Counts the dialled addresses.
async fn dial(addresses: &[SocketAddr], dialled: &AtomicUsize) -> io::Result<TcpStream> {
    if let [only] = addresses {
        dialled.store(1, Ordering::Relaxed);
        return TcpStream::connect(only).await;
    }
    let mut rest = addresses.iter().copied();
    let mut tries = JoinSet::new();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        if let Some(address) = rest.next() {
            dialled.fetch_add(1, Ordering::Relaxed);
            tries.spawn(TcpStream::connect(address));
        }
        tokio::select! {
            done = tries.join_next() => match done {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => last = error,
                Some(Err(_)) => {}
                None => return Err(last),
            },
            () = sleep(STAGGER), if rest.len() > 0 => {}
        }
    }
}
