//! Resolves names as this machine is configured, without a thread per lookup.
//!
//! Nothing is cached. Each new connection has its own lookup, so that exactly the checked addresses are dialled, a name
//! can move at any time, and no receiver's zone decides how much memory its records take. The machine's own name server
//! caches.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::system_conf;
use posthaste_engine::limits;
use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Semaphore;

/// A lookup in progress.
pub type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Resolves names. The caller sets the timeout; dropping a lookup cancels it.
pub trait Resolve: Send + Sync {
    /// All addresses of a name, in order of preference. Returns an error or nothing if it has none. An error of kind
    /// [`io::ErrorKind::NetworkDown`] means that no name can be resolved, and gives the reason.
    fn resolve(&self, host: &str) -> Lookup;
}

/// Most addresses of one name. All of them are checked before some are dialled, so none may be left out: a name with
/// more addresses is refused.
pub const ANSWERS_MAX: usize = 256;
/// How long to wait for a name server before the same or the next one is queried again. With two more tries, this ends
/// within the five seconds of a lookup, so a family that gets no reply does not block the other.
const TRY_TIMEOUT: Duration = Duration::from_millis(1_500);
const TRIES_AGAIN_MAX: usize = 2;
/// Replies that do not fit into a datagram use one TCP connection; this many at once.
const OVER_TCP_MAX: usize = 1_024;
/// The configuration files are checked for changes after this time.
const RECHECK: Duration = Duration::from_secs(1);
/// Lookups that may always run at once. See [`lookups_max`].
const LOOKUPS_MIN: usize = 64;

/// Resolves names according to `/etc/hosts` and `/etc/resolv.conf`: name servers, search list and `ndots`. Changed
/// files are read again.
///
/// As usual, a name in the hosts file is not looked up elsewhere. Unlike in the C library, `localhost` and names under
/// it are loopback even if the hosts file does not contain them, and `nsswitch.conf` (mDNS and the like) is ignored.
pub struct SystemResolver {
    files: Files,
    state: Mutex<State>,
    running: Arc<Semaphore>,
}

struct State {
    loaded: Arc<Loaded>,
    checked: Instant,
}

impl Default for SystemResolver {
    /// Reads the files. While there is no usable `/etc/resolv.conf`, lookups fail.
    fn default() -> Self {
        SystemResolver::new(Files { resolv: "/etc/resolv.conf".into(), hosts: "/etc/hosts".into() })
    }
}

impl SystemResolver {
    fn new(files: Files) -> SystemResolver {
        let state = Mutex::new(State { loaded: Arc::new(files.load()), checked: Instant::now() });
        SystemResolver { files, state, running: Arc::new(Semaphore::new(lookups_max())) }
    }

    /// The current contents of the files.
    fn current(&self) -> Arc<Loaded> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.elapsed() >= RECHECK {
            state.checked = Instant::now();
            if self.files.stamps() != state.loaded.stamps {
                state.loaded = Arc::new(self.files.load());
            }
        }
        state.loaded.clone()
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str) -> Lookup {
        let (loaded, running) = (self.current(), self.running.clone());
        let host = plain_name(host);
        Box::pin(async move {
            if let Some(known) = loaded.hosts.get(&host) {
                return Ok(known.clone());
            }
            if host == "localhost" || host.ends_with(".localhost") {
                return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
            }
            let dns = loaded.dns.as_ref().map_err(|why| io::Error::new(io::ErrorKind::NetworkDown, why.clone()))?;
            let name = Name::from_ascii(&host).map_err(io::Error::other)?;
            let _running = running.acquire().await.map_err(io::Error::other)?;
            let found = dns.lookup_ip(name).await.map_err(not_found)?;
            let of_family = |v6: bool| found.iter().filter(move |address| address.is_ipv6() == v6);
            all_or_none(of_family(false).chain(of_family(true)))
        })
    }
}

/// All addresses of a name. They are all checked before some are dialled, so none may be left out.
fn all_or_none(found: impl Iterator<Item = IpAddr>) -> io::Result<Vec<IpAddr>> {
    let all: Vec<IpAddr> = found.take(ANSWERS_MAX + 1).collect();
    match all.len() > ANSWERS_MAX {
        true => Err(io::Error::other(format!("more than {ANSWERS_MAX} addresses"))),
        false => Ok(all),
    }
}

/// How many lookups may query name servers at once.
///
/// While a name server does not reply, a lookup holds up to eight sockets: one for each of four tries in both families,
/// because a random port protects against forged replies. All lookups together get half of the file descriptors of this
/// process. With a limit of 160,000 or more there is a lookup for every possible attempt. With a small limit, many slow
/// names delay others.
fn lookups_max() -> usize {
    let limits_of_process = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let open_files = limits_of_process.lines().find_map(|line| line.strip_prefix("Max open files"));
    let open_files = open_files.and_then(|values| values.split_whitespace().next()?.parse::<usize>().ok());
    let attempts_max = usize::try_from(limits::IN_FLIGHT_MAX).unwrap_or(usize::MAX);
    (open_files.unwrap_or_default() / 16).clamp(LOOKUPS_MIN, attempts_max)
}

/// Paths of the configuration files.
struct Files {
    resolv: PathBuf,
    hosts: PathBuf,
}

/// Distinguishes two versions of a file.
type Stamp = Option<(SystemTime, u64)>;

/// The contents of the files.
struct Loaded {
    stamps: [Stamp; 2],
    hosts: HashMap<String, Vec<IpAddr>>,
    /// The resolver, or why no name server can be queried.
    dns: Result<TokioResolver, String>,
}

impl Files {
    fn stamps(&self) -> [Stamp; 2] {
        [&self.resolv, &self.hosts].map(|path| {
            let about = fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len()))
        })
    }

    fn load(&self) -> Loaded {
        let stamps = self.stamps();
        let hosts = fs::read(&self.hosts).map(|bytes| parse_hosts(&String::from_utf8_lossy(&bytes)));
        let dns = read_dns(&self.resolv);
        if let Err(why) = &dns {
            tracing::warn!("host names cannot be resolved; deliveries to them will fail: {why}");
        }
        Loaded { stamps, hosts: hosts.unwrap_or_default(), dns }
    }
}

fn read_dns(path: &Path) -> Result<TokioResolver, String> {
    let explain = |error: NetError| format!("{} cannot be used: {error}", path.display());
    read_config(path).and_then(|(config, options)| build(config, options)).map_err(explain)
}

#[cfg(not(target_vendor = "apple"))]
fn read_config(path: &Path) -> Result<(ResolverConfig, ResolverOpts), NetError> {
    system_conf::parse_resolv_conf(fs::read(path)?)
}

/// The file is only used to detect changes; its contents are stored elsewhere.
#[cfg(target_vendor = "apple")]
fn read_config(_path: &Path) -> Result<(ResolverConfig, ResolverOpts), NetError> {
    system_conf::read_system_conf()
}

fn build(config: ResolverConfig, mut options: ResolverOpts) -> Result<TokioResolver, NetError> {
    // A search list replaces the machine's own domain.
    let domain = config.domain().filter(|_| config.search().is_empty()).cloned();
    let config = ResolverConfig::from_parts(domain, config.search().to_vec(), config.name_servers().to_vec());
    options.timeout = options.timeout.min(TRY_TIMEOUT);
    options.attempts = options.attempts.min(TRIES_AGAIN_MAX);
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    options.num_concurrent_reqs = 1;
    options.max_active_requests = OVER_TCP_MAX;
    options.preserve_intermediates = false;
    // Without a size, records would stay until the cache is next cleaned.
    options.cache_size = 0;
    options.positive_max_ttl = Some(Duration::ZERO);
    options.negative_max_ttl = Some(Duration::ZERO);
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options).build()
}

/// Parses the hosts file: an address and its names on each line.
fn parse_hosts(text: &str) -> HashMap<String, Vec<IpAddr>> {
    let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else { continue };
        for name in words {
            let known = hosts.entry(plain_name(name)).or_default();
            if !known.contains(&address) {
                known.push(address);
            }
        }
    }
    hosts
}

fn plain_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn not_found(error: NetError) -> io::Error {
    let kind = if error.is_no_records_found() { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
    io::Error::new(kind, error.to_string())
}

#[cfg(test)]
#[cfg(not(target_vendor = "apple"))]
mod tests {
    use super::*;
    use hickory_resolver::proto::op::{Message, ResponseCode};
    use hickory_resolver::proto::rr::rdata::{A, AAAA};
    use hickory_resolver::proto::rr::{RData, Record, RecordType};
    use hickory_resolver::system_conf::parse_resolv_conf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tempfile::TempDir;
    use tokio::net::UdpSocket;
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn files(resolv: Option<&str>, hosts: Option<&str>) -> (TempDir, SystemResolver) {
        let dir = TempDir::new().unwrap();
        let files = Files { resolv: dir.path().join("resolv.conf"), hosts: dir.path().join("hosts") };
        for (path, text) in [(&files.resolv, resolv), (&files.hosts, hosts)] {
            if let Some(text) = text {
                fs::write(path, text).unwrap();
            }
        }
        (dir, SystemResolver::new(files))
    }

    #[tokio::test]
    async fn localhost_resolves_and_impossible_names_do_not() {
        let resolver = SystemResolver::default();
        let found = resolver.resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(resolver.resolve("does-not-exist.invalid").await.is_err());
    }

    #[tokio::test]
    async fn without_name_servers_only_the_hosts_file_and_localhost_resolve() {
        let hosts = "# a comment\n10.0.0.7 app App.Example. # more\n\nfd00::7\tapp\n10.0.0.7 app\nnonsense x\n";
        for resolv in [None, Some("search example\n"), Some("")] {
            let (_dir, resolver) = files(resolv, Some(hosts));
            assert_eq!(resolver.resolve("app").await.unwrap(), ips(&["10.0.0.7", "fd00::7"]));
            assert_eq!(resolver.resolve("APP.example").await.unwrap(), ips(&["10.0.0.7"]));
            for name in ["localhost", "a.localhost"] {
                assert_eq!(resolver.resolve(name).await.unwrap(), ips(&["127.0.0.1", "::1"]));
            }
            for name in ["x", "nonsense", "hook.example"] {
                let error = resolver.resolve(name).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::NetworkDown, "{name}");
                assert!(error.to_string().contains("resolv.conf cannot be used: "), "{error}");
            }
        }
        let (_dir, resolver) = files(None, None);
        assert_eq!(resolver.resolve("localhost").await.unwrap(), ips(&["127.0.0.1", "::1"]));
    }

    #[tokio::test]
    async fn changed_files_are_read_again() {
        let (dir, resolver) = files(None, Some("10.0.0.1 app"));
        assert_eq!(resolver.resolve("app").await.unwrap(), ips(&["10.0.0.1"]));
        fs::write(dir.path().join("hosts"), "10.0.0.22 app").unwrap();
        fs::write(dir.path().join("resolv.conf"), "nameserver 127.0.0.1").unwrap();
        resolver.state.lock().unwrap().checked -= RECHECK;
        assert_eq!(resolver.resolve("app").await.unwrap(), ips(&["10.0.0.22"]));
        assert!(resolver.current().dns.is_ok());
    }

    /// A name server on loopback that counts its queries.
    struct NameServer {
        resolver: SystemResolver,
        asked: Arc<AtomicUsize>,
        _dir: TempDir,
    }

    impl NameServer {
        /// `resolv` contains further lines of the configuration. Queries for names that begin with `slow` get no reply.
        async fn start(resolv: &str) -> NameServer {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let port = socket.local_addr().unwrap().port();
            let asked = Arc::new(AtomicUsize::new(0));
            let count = asked.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                loop {
                    let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                    let number = count.fetch_add(1, Ordering::SeqCst);
                    let question = Message::from_vec(&buffer[..length]).unwrap();
                    if let Some(answer) = NameServer::answer(&question, number) {
                        let _ = socket.send_to(&answer.to_vec().unwrap(), from).await;
                    }
                }
            });
            let (dir, resolver) = files(Some("nameserver 127.0.0.1"), Some("10.0.0.1 only-v4.example"));
            let (config, options) = parse_resolv_conf(format!("nameserver 127.0.0.1\n{resolv}\n")).unwrap();
            let mut servers = config.name_servers().to_vec();
            servers.iter_mut().flat_map(|server| &mut server.connections).for_each(|to| to.port = port);
            let config = ResolverConfig::from_parts(config.domain().cloned(), config.search().to_vec(), servers);
            let stamps = resolver.files.stamps();
            let hosts = parse_hosts("10.0.0.1 only-v4.example");
            resolver.state.lock().unwrap().loaded =
                Arc::new(Loaded { stamps, hosts, dns: Ok(build(config, options).unwrap()) });
            NameServer { resolver, asked, _dir: dir }
        }

        fn answer(question: &Message, number: usize) -> Option<Message> {
            let query = question.queries[0].clone();
            let (name, v6) = (query.name().to_ascii(), query.query_type() == RecordType::AAAA);
            let v4 = |last: usize| RData::A(A::new(192, 0, 2, u8::try_from(last).unwrap()));
            let data = match name.split('.').next().unwrap() {
                "slow" | "slow_v6" if v6 => return None,
                name if name.starts_with("slow") && name != "slow_v6" => return None,
                "both" if v6 => vec![RData::AAAA(AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))],
                "both" | "slow_v6" => vec![v4(1)],
                "service" if !v6 && name.ends_with(".svc.example.") => vec![v4(2)],
                "moves" if !v6 => vec![v4(number % 200)],
                "many" if !v6 => (1..=20).map(v4).collect(),
                "hook_1" if !v6 => vec![v4(3)],
                _ => Vec::new(),
            };
            let mut answer = Message::response(question.id, question.op_code);
            answer.metadata.response_code =
                if data.is_empty() { ResponseCode::NXDomain } else { ResponseCode::NoError };
            answer.add_query(query.clone());
            answer.add_answers(data.into_iter().map(|data| Record::from_rdata(query.name().clone(), 3_600, data)));
            Some(answer)
        }

        async fn find(&self, host: &str) -> io::Result<Vec<IpAddr>> {
            self.resolver.resolve(host).await
        }
    }

    #[tokio::test]
    async fn both_families_are_queried_and_replies_are_bounded() {
        let server = NameServer::start("").await;
        assert_eq!(server.find("both.example").await.unwrap(), ips(&["192.0.2.1", "2001:db8::1"]));
        assert_eq!(server.find("many.example").await.unwrap().len(), 20, "none is left out before they are checked");
        let address = |n: usize| IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(n).unwrap()));
        assert_eq!(all_or_none((0..ANSWERS_MAX).map(address)).unwrap().len(), ANSWERS_MAX);
        assert!(all_or_none((0..=ANSWERS_MAX).map(address)).is_err());
        assert_eq!(server.find("hook_1.example").await.unwrap(), ips(&["192.0.2.3"]));
        assert_eq!(server.find("nobody.example").await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let asked = server.asked.load(Ordering::SeqCst);
        assert_eq!(server.find("only-v4.example").await.unwrap(), ips(&["10.0.0.1"]));
        assert_eq!(server.asked.load(Ordering::SeqCst), asked, "a name in the hosts file is not asked for");
    }

    #[tokio::test]
    async fn a_name_can_move_at_any_time() {
        let server = NameServer::start("").await;
        let first = server.find("moves.example").await.unwrap();
        assert_ne!(server.find("moves.example").await.unwrap(), first);
        for _ in 0..2 {
            let asked = server.asked.load(Ordering::SeqCst);
            assert!(server.find("nobody.example").await.is_err());
            assert_eq!(server.asked.load(Ordering::SeqCst), asked + 2);
        }
    }

    #[tokio::test]
    async fn search_list_and_ndots_are_honoured() {
        let server = NameServer::start("search other.example svc.example").await;
        assert_eq!(server.find("service").await.unwrap(), ips(&["192.0.2.2"]));
        let server = NameServer::start("search svc.example\noptions ndots:3").await;
        let found = server.find("service.a.b").await.unwrap();
        assert_eq!(found, ips(&["192.0.2.2"]), "fewer dots: the search list goes first");
    }

    #[tokio::test]
    async fn one_silent_family_does_not_cost_the_other() {
        let server = NameServer::start("").await;
        let found = timeout(Duration::from_secs(5), server.find("slow_v6.example")).await;
        assert_eq!(found.expect("in time").unwrap(), ips(&["192.0.2.1"]));
    }

    #[tokio::test]
    async fn slow_names_do_not_delay_others_and_release_their_permits() {
        let server = NameServer::start("").await;
        let slow_count = lookups_max().min(200) - 1;
        let mut slow = JoinSet::new();
        for number in 0..slow_count {
            slow.spawn(server.resolver.resolve(&format!("slow{number}.example")));
        }
        while server.asked.load(Ordering::SeqCst) < slow_count {
            tokio::task::yield_now().await;
        }
        let found = tokio::select! {
            found = server.find("both.example") => found,
            _ = slow.join_next() => panic!("it waited for a slow one"),
        };
        assert_eq!(found.unwrap().len(), 2);
        slow.shutdown().await;
        assert_eq!(server.resolver.running.available_permits(), lookups_max());
    }
}
