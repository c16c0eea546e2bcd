//! The egress policy: rules for the URLs, names and addresses that deliveries may go to.
//!
//! Pure, except for one query to the operating system: whether an address belongs to this machine (see
//! [`EgressPolicy::own_addrs`]). [`EgressPolicy::check_url`] covers everything that needs no DNS, so a publish can be
//! rejected with it. [`EgressPolicy::check_addresses`] checks the results of DNS, right before connecting.

use super::address::{self, AddressKind};
use super::target::{Target, TargetHost, Targets};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

/// Destinations that are allowed in addition to the public internet, and the server's own addresses. The default allows
/// nothing more.
#[derive(Clone, Debug, Default)]
pub struct EgressPolicy {
    /// Allow `localhost` and loopback addresses, on any port. For development.
    pub allow_loopback: bool,
    /// Private networks that are allowed. Metadata services stay blocked.
    pub allow_cidrs: Vec<IpNet>,
    /// Names that may have private addresses. Loopback and link-local addresses are still refused.
    pub allow_hosts: Vec<String>,
    /// Names and ports of this server. A message must not be able to call its API.
    pub own_hosts: Vec<(String, u16)>,
    /// Addresses that this server listens on. The unspecified address stands for all addresses of this machine at the
    /// time of the check. The machine does not know addresses that lead here only from outside (NAT, a load balancer).
    /// They belong in this list as well, or their names in `own_hosts`.
    pub own_addrs: Vec<SocketAddr>,
    /// The address of the console's test receiver. Exactly this address and port is allowed, whatever else is blocked.
    pub receiver: Option<SocketAddr>,
    /// Addresses of the public URL. As destinations they lead to this server. A name with one of them may be another
    /// site of the same proxy, so [`super::loop_mark`] handles it.
    pub public_addrs: Vec<SocketAddr>,
    /// Whether tenants see why a private destination is refused or unreachable. If tenants are not the operator, the
    /// reason would reveal the operator's network. The log always contains it.
    pub explain: bool,
    /// Recently parsed destinations.
    pub targets: Arc<Targets>,
}

/// Why a destination is refused. In an API response the text follows `invalid destination url: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Neither http nor https.
    #[error("endpoint has invalid scheme, add http:// or https://")]
    Scheme,
    /// Not a valid destination URL.
    #[error("{0}")]
    Malformed(String),
    /// A port of a protocol other than HTTP.
    #[error("port {0} is not allowed")]
    Port(u16),
    /// A name with a meaning only inside a network.
    #[error("{0} is a local name")]
    LocalName(String),
    /// Not a public address.
    #[error("endpoint resolves to {} {kind} address: {address}", kind.article())]
    Address {
        /// The kind of address.
        kind: AddressKind,
        /// The address.
        address: IpAddr,
    },
    /// This server, by its public name.
    #[error("endpoint is this server itself")]
    Own,
    /// This server, by one of its addresses.
    #[error("endpoint is this server itself")]
    OwnAddress,
}

/// The text for tenants about a refusal that concerns the operator's network.
const NOT_ALLOWED: &str = "the egress policy of this server does not allow this destination";

impl Refusal {
    /// The text for tenants: the whole reason if they may see it, or if the URL alone reveals it.
    pub fn shown(&self, explain: bool) -> String {
        match self {
            Refusal::LocalName(_) | Refusal::Address { .. } | Refusal::OwnAddress if !explain => NOT_ALLOWED.to_owned(),
            _ => self.to_string(),
        }
    }
}

/// Fetch's list of bad ports, and the ports of databases and Docker. Sorted.
const BAD_PORTS: [u16; 91] = [
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109,
    110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530, 531,
    532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 2375, 2376, 3306, 3659,
    4045, 4190, 5060, 5061, 5432, 6000, 6379, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 9200, 10080, 11211,
    27017,
];

/// Names with these suffixes never lead to the public internet.
const LOCAL_SUFFIXES: [&str; 6] = ["localhost", "local", "internal", "home.arpa", "onion", "localdomain"];

impl EgressPolicy {
    /// Checks everything that needs no DNS.
    pub fn check_url(&self, url: &str) -> Result<(), Refusal> {
        self.checked_target(url).map(drop)
    }

    /// Like [`EgressPolicy::check_url`], and returns the parsed destination.
    pub fn checked_target(&self, url: &str) -> Result<Arc<Target>, Refusal> {
        let target = self.targets.parse(url)?;
        self.check_target(&target)?;
        Ok(target)
    }

    /// Like [`EgressPolicy::check_url`], for a parsed destination.
    fn check_target(&self, target: &Target) -> Result<(), Refusal> {
        match &target.host {
            TargetHost::Address(address) => {
                if self.receiver == Some(SocketAddr::new(address.to_canonical(), target.port)) {
                    return Ok(());
                }
                let loopback = self.allow_loopback && address::kind(*address) == Some(AddressKind::Loopback);
                check_port(target.port, loopback)?;
                if self.public_addrs.contains(&SocketAddr::new(address.to_canonical(), target.port)) {
                    return Err(Refusal::OwnAddress);
                }
                self.check_address(*address, target.port, false)
            }
            TargetHost::Name(name) => {
                check_port(target.port, self.allow_loopback && name == "localhost")?;
                self.check_name(name, target.port)
            }
        }
    }

    /// Checks the addresses of a name. One refused address refuses the name.
    pub fn check_addresses(&self, host: &str, port: u16, addresses: &[IpAddr]) -> Result<(), Refusal> {
        let trusted = self.is_allowed_host(host);
        addresses.iter().try_for_each(|address| self.check_address(*address, port, trusted))
    }

    fn check_name(&self, name: &str, port: u16) -> Result<(), Refusal> {
        if self.own_hosts.iter().any(|(own, own_port)| same_name(own, name) && *own_port == port) {
            return Err(Refusal::Own);
        }
        if self.is_allowed_host(name) || (self.allow_loopback && name == "localhost") {
            return Ok(());
        }
        // `localhost` is known without DNS. Its addresses are checked, so that the refusal names the missing
        // permission.
        if name == "localhost" {
            let both: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return self.check_addresses(name, port, &both);
        }
        let under = |suffix: &str| name.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if !name.contains('.') || LOCAL_SUFFIXES.iter().any(|suffix| under(suffix)) {
            return Err(Refusal::LocalName(name.to_owned()));
        }
        Ok(())
    }

    /// `trusted` is set for addresses of a name that may have private addresses.
    fn check_address(&self, address: IpAddr, port: u16, trusted: bool) -> Result<(), Refusal> {
        let address = address.to_canonical();
        if self.own_addrs.iter().any(|own| is_own(own, address, port)) {
            return Err(Refusal::OwnAddress);
        }
        let Some(kind) = address::kind(address) else { return Ok(()) };
        let by_policy = match kind {
            AddressKind::Loopback => self.allow_loopback,
            AddressKind::Private => trusted,
            _ => false,
        };
        let allowed = by_policy || self.allow_cidrs.iter().any(|network| network.contains(&address));
        if !allowed || address::is_metadata(address) {
            return Err(Refusal::Address { kind, address });
        }
        // An allowed translation prefix must not permit an embedded address that is blocked.
        match address::embedded_v4(address) {
            Some(behind) => self.check_address(behind.into(), port, trusted),
            None => Ok(()),
        }
    }

    fn is_allowed_host(&self, name: &str) -> bool {
        self.allow_hosts.iter().any(|allowed| same_name(allowed, name))
    }
}

fn check_port(port: u16, loopback_allowed: bool) -> Result<(), Refusal> {
    if BAD_PORTS.binary_search(&port).is_ok() && (port == 0 || !loopback_allowed) {
        return Err(Refusal::Port(port));
    }
    Ok(())
}

fn same_name(configured: &str, name: &str) -> bool {
    configured.strip_suffix('.').unwrap_or(configured).eq_ignore_ascii_case(name)
}

/// Whether it is our own listener. All addresses of this machine reach a listener on the unspecified address.
fn is_own(own: &SocketAddr, address: IpAddr, port: u16) -> bool {
    let own_ip = own.ip().to_canonical();
    own.port() == port
        && (own_ip == address || (own_ip.is_unspecified() && (address.is_loopback() || is_of_this_machine(address))))
}

/// Sends nothing: a datagram socket only asks for the route. A machine uses an address itself as the source for packets
/// to it.
fn is_of_this_machine(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let spoken_from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    spoken_from.is_ok_and(|from| from.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dev() -> EgressPolicy {
        EgressPolicy {
            allow_loopback: true,
            own_addrs: vec!["0.0.0.0:8080".parse().unwrap()],
            own_hosts: vec![("localhost".into(), 8080)],
            ..EgressPolicy::default()
        }
    }

    #[test]
    fn bad_ports_are_sorted() {
        assert!(BAD_PORTS.is_sorted());
    }

    #[test]
    fn a_publish_to_loopback_reads_like_the_hosted_service() {
        for url in ["http://127.0.0.1:3000/", "http://localhost:3000/"] {
            let refusal = EgressPolicy::default().check_url(url).unwrap_err();
            assert_eq!(refusal.to_string(), "endpoint resolves to a loopback address: 127.0.0.1");
        }
        let refusal = EgressPolicy::default().check_url("http://0.0.0.0/").unwrap_err();
        assert_eq!(refusal.to_string(), "endpoint resolves to an unspecified address: 0.0.0.0");
        let refusal = EgressPolicy::default().check_url("my-topic/x").unwrap_err();
        assert_eq!(refusal.to_string(), "endpoint has invalid scheme, add http:// or https://");
    }

    #[test]
    fn tenants_see_only_reasons_that_their_url_reveals() {
        let policy = EgressPolicy {
            own_addrs: vec!["10.0.0.5:8080".parse().unwrap()],
            own_hosts: vec![("queue.example".into(), 443)],
            public_addrs: vec!["93.184.216.34:443".parse().unwrap()],
            ..EgressPolicy::default()
        };
        let refused = |url: &str| policy.check_url(url).unwrap_err();
        for url in [
            "http://10.0.0.1/",
            "http://10.0.0.5:8080/",
            "http://169.254.169.254/",
            "http://db.internal/",
            "http://localhost/",
            "https://93.184.216.34/",
        ] {
            assert_eq!(refused(url).shown(false), NOT_ALLOWED, "{url}");
            assert_eq!(refused(url).shown(true), refused(url).to_string(), "{url}");
            assert_ne!(refused(url).shown(true), NOT_ALLOWED, "{url}");
        }
        for url in ["ftp://a.example/", "http://a.example:22/", "https://queue.example/", "http://u@a.example/"] {
            assert_eq!(refused(url).shown(false), refused(url).to_string(), "{url}");
        }
        assert_eq!(policy.check_url("http://93.184.216.34/"), Ok(()), "another port is another server");
        let shared: IpAddr = "93.184.216.34".parse().unwrap();
        assert_eq!(policy.check_addresses("neighbour.example", 443, &[shared]), Ok(()), "another site of one proxy");
    }

    #[test]
    fn development_reaches_loopback_on_any_port_but_not_itself() {
        let allowed = ["http://localhost:3000/", "http://127.0.0.1:6379/", "http://[::1]:22/", "http://127.9.9.9/"];
        for url in allowed {
            assert_eq!(dev().check_url(url), Ok(()), "{url}");
        }
        assert_eq!(dev().check_addresses("localhost", 3000, &["::1".parse().unwrap()]), Ok(()));
        for url in ["http://localhost:8080/v2/publish/x", "http://127.0.0.1:8080/", "http://[::1]:8080/"] {
            assert_eq!(dev().check_url(url).unwrap_err().to_string(), "endpoint is this server itself", "{url}");
        }
        for url in ["http://10.0.0.1/", "http://metadata/", "http://0.0.0.0:3000/", "http://localhost:0/"] {
            assert!(dev().check_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn only_the_socket_of_the_test_receiver_is_open_on_loopback() {
        let receiver = "127.0.0.1:41234".parse().unwrap();
        let policy = EgressPolicy { receiver: Some(receiver), ..EgressPolicy::default() };
        for url in ["http://127.0.0.1:41234/x", "http://[::ffff:127.0.0.1]:41234/"] {
            assert_eq!(policy.check_url(url), Ok(()), "{url}");
        }
        for url in [
            "http://127.0.0.1:41235/",
            "http://127.0.0.1/",
            "http://127.0.0.2:41234/",
            "http://[::1]:41234/",
            "http://localhost:41234/",
            "http://10.0.0.1:41234/",
        ] {
            assert!(policy.check_url(url).is_err(), "{url}");
        }
        // A name may lead anywhere, and to another address the next time.
        assert!(policy.check_addresses("rebound.example", 41234, &[receiver.ip()]).is_err());
    }

    #[test]
    fn localhost_is_allowed_by_the_networks_of_its_addresses() {
        let check = |cidrs: &[&str]| {
            let allow_cidrs = cidrs.iter().map(|text| text.parse().unwrap()).collect();
            EgressPolicy { allow_cidrs, ..EgressPolicy::default() }.check_url("http://localhost:3000/")
        };
        let refused =
            |address: &str| Err(Refusal::Address { kind: AddressKind::Loopback, address: address.parse().unwrap() });
        assert_eq!(check(&["127.0.0.0/8", "::1/128"]), Ok(()));
        assert_eq!(check(&["127.0.0.1/32"]), refused("::1"), "the hint names what is still missing");
        assert_eq!(check(&["::1/128"]), refused("127.0.0.1"));
    }

    #[test]
    fn a_listener_on_all_addresses_owns_every_address_of_the_machine() {
        // The address for outgoing traffic, if there is one.
        let outward = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect("192.0.2.1:9")?;
            socket.local_addr()
        });
        let outward = outward.map_or(Ipv4Addr::LOCALHOST.into(), |from| from.ip());
        for own in ["0.0.0.0:8080", "[::]:8080"] {
            let policy = EgressPolicy {
                allow_loopback: true,
                allow_cidrs: vec!["0.0.0.0/0".parse().unwrap()],
                own_addrs: vec![own.parse().unwrap()],
                ..EgressPolicy::default()
            };
            let check = |address: IpAddr, port: u16| policy.check_addresses("own.example", port, &[address]);
            assert_eq!(check(outward, 8080), Err(Refusal::OwnAddress), "{own} {outward}");
            assert_eq!(check(outward, 8081), Ok(()), "{own} {outward}");
            for other in ["93.184.216.34", "10.255.255.1", "2606:2800:220:1:248:1893:25c8:1946"] {
                assert_ne!(check(other.parse().unwrap(), 8080), Err(Refusal::OwnAddress), "{own} {other}");
            }
        }
    }

    #[test]
    fn allow_lists_open_only_what_they_name() {
        let policy = EgressPolicy {
            allow_cidrs: ["10.1.0.0/16", "169.254.0.0/16", "64:ff9b::/96"].map(|text| text.parse().unwrap()).into(),
            allow_hosts: vec!["app".into()],
            ..EgressPolicy::default()
        };
        let cases = [
            ("http://10.1.2.3/", true),
            ("http://10.2.0.1/", false),
            ("http://169.254.7.7/", true),
            ("http://169.254.169.254/", false),
            ("http://[64:ff9b::5db8:d822]/", true),
            ("http://[64:ff9b::a9fe:a9fe]/", false),
            ("http://[64:ff9b::7f00:1]/", false),
            ("http://app:3000/", true),
            ("http://app:5432/", false),
            ("http://other:3000/", false),
        ];
        for (url, allowed) in cases {
            assert_eq!(policy.check_url(url).is_ok(), allowed, "{url}");
        }
        let answers = [
            ("192.168.7.7", true),
            ("fd00::7", true),
            ("127.0.0.1", false),
            ("fe80::1", false),
            ("100.100.100.200", false),
        ];
        for (answer, allowed) in answers {
            assert_eq!(policy.check_addresses("app", 3000, &[answer.parse().unwrap()]).is_ok(), allowed, "{answer}");
            assert!(policy.check_addresses("app.example", 3000, &[answer.parse().unwrap()]).is_err(), "{answer}");
        }
    }
}
