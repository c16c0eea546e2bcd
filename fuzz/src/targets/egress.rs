//! The egress guard: everything it allows is public by a second table of special networks, in any spelling.
//!
//! The first line is a URL, and each further line is an address from DNS.

use ipnet::IpNet;
use posthaste_delivery::egress::EgressPolicy;
use posthaste_delivery::target::{Target, TargetHost};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;
use url::{Host, Url};

/// IANA's special-purpose IPv4 networks, and the metadata services outside them.
const SPECIAL_V4: [&str; 19] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
];
/// For IPv6 only global unicast is public, without these networks.
const SPECIAL_V6: [&str; 5] = ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2001:2::/48"];

static SPECIAL: LazyLock<Vec<IpNet>> =
    LazyLock::new(|| SPECIAL_V4.iter().chain(&SPECIAL_V6).map(|text| text.parse().expect("a network")).collect());

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n');
    let url = lines.next().unwrap_or_default();
    let policy = EgressPolicy::default();
    match policy.check_url(url) {
        Err(refusal) => super::check_refusal(&refusal.to_string()),
        Ok(()) => check_allowed(url),
    }
    let addresses: Vec<IpAddr> = lines.filter_map(|line| line.trim().parse().ok()).collect();
    let allowed = policy.check_addresses("name.example", 443, &addresses).is_ok();
    let all_global = addresses.iter().all(|address| is_global(*address));
    assert_eq!(allowed, all_global, "{addresses:?}");
    if let Some(bytes) = data.first_chunk::<16>() {
        let address: IpAddr = Ipv6Addr::from(*bytes).into();
        let alone = policy.check_addresses("name.example", 443, &[address]).is_ok();
        assert_eq!(alone, is_global(address), "{address}");
        let literal = format!("http://[{address}]/");
        assert_eq!(policy.check_url(&literal).is_ok(), is_global(address), "{literal}");
    }
}

/// An allowed URL leads to the host that another parser finds, which is neither a special address nor a local name.
fn check_allowed(url: &str) {
    let parsed = Url::parse(url).unwrap_or_else(|error| panic!("{url:?} is allowed, but {error}"));
    assert!(["http", "https"].contains(&parsed.scheme()), "{url:?}");
    assert!(parsed.username().is_empty() && parsed.password().is_none(), "{url:?}");
    let target = Target::parse(url).expect("it is allowed");
    assert_eq!(Some(target.port), parsed.port_or_known_default(), "{url:?}");
    match parsed.host() {
        Some(Host::Ipv4(address)) => assert!(is_global(address.into()), "{url:?}"),
        Some(Host::Ipv6(address)) => assert!(is_global(address.into()), "{url:?}"),
        Some(Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            assert_eq!(target.host, TargetHost::Name(name.to_owned()), "{url:?}");
            assert!(name.contains('.') && name.parse::<IpAddr>().is_err(), "{url:?}");
            let last = name.rsplit('.').next().unwrap_or_default();
            assert!(!["localhost", "local", "internal", "onion", "localdomain"].contains(&last), "{url:?}");
        }
        None => panic!("{url:?} is allowed and has no host"),
    }
}

fn is_global(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if SPECIAL.iter().any(|network| network.contains(&address)) {
        return false;
    }
    let IpAddr::V6(v6) = address else { return true };
    let segments = v6.segments();
    let is_isatap = matches!(segments[4], 0 | 0x200) && segments[5] == 0x5efe;
    let tunnelled = std::net::Ipv4Addr::from_bits(u32::from(segments[6]) << 16 | u32::from(segments[7]));
    (0x2000..=0x3fff).contains(&segments[0]) && (!is_isatap || is_global(tunnelled.into()))
}
