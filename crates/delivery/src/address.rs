//! Classifies addresses that are not on the public internet.
//!
//! For IPv6 there is an allow-list (only 2000::/3, without its special blocks); for IPv4 there is the IANA
//! special-purpose table. Pure: `egress` decides what a policy additionally permits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// The machine itself.
    Loopback,
    /// Private networks, unique local addresses and the carrier range.
    Private,
    /// Addresses of the local link, where most clouds have their metadata service.
    LinkLocal,
    /// A metadata service of the cloud outside the link-local range.
    Metadata,
    /// Stands for any address. On Linux it reaches the machine itself.
    Unspecified,
    /// Addresses with many receivers at once.
    Multicast,
    /// Addresses for documentation, benchmarking, tunnels and translation, and all unassigned ones.
    Reserved,
}

impl AddressKind {
    /// The indefinite article for the name.
    pub fn article(self) -> &'static str {
        if self == AddressKind::Unspecified { "an" } else { "a" }
    }
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressKind::Loopback => "loopback",
            AddressKind::Private => "private",
            AddressKind::LinkLocal => "link-local",
            AddressKind::Metadata => "cloud metadata",
            AddressKind::Unspecified => "unspecified",
            AddressKind::Multicast => "multicast",
            AddressKind::Reserved => "reserved",
        })
    }
}

/// The kind of a special address; `None` for a public one.
pub fn kind(address: IpAddr) -> Option<AddressKind> {
    match address.to_canonical() {
        IpAddr::V4(v4) => kind_v4(v4),
        IpAddr::V6(v6) => kind_v6(v6),
    }
}

/// Addresses of services that hand out the machine's credentials. No allow-list permits them.
pub fn is_metadata(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => METADATA_V4.contains(&v4),
        IpAddr::V6(v6) => METADATA_V6.contains(&v6),
    }
}

const METADATA_V4: [Ipv4Addr; 6] = [
    Ipv4Addr::new(169, 254, 169, 254), // nearly every cloud
    Ipv4Addr::new(169, 254, 170, 2),   // container credentials
    Ipv4Addr::new(169, 254, 170, 23),  // pod identity
    Ipv4Addr::new(100, 100, 100, 200), // in the carrier range
    Ipv4Addr::new(168, 63, 129, 16),   // in a public range
    Ipv4Addr::new(192, 0, 0, 192),     // in the protocol range
];

const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// The IPv4 address at the end of a translation or tunnel address: IPv4-compatible, NAT64, 6to4, ISATAP.
pub fn embedded_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address.to_canonical() else { return None };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0) if v6 != Ipv6Addr::LOCALHOST && v6 != Ipv6Addr::UNSPECIFIED => Some(joined(g, h)),
        (0x64, 0xff9b, 0, 0, 0, 0) | (0x64, 0xff9b, 1, ..) | (_, _, _, _, 0 | 0x200, 0x5efe) => Some(joined(g, h)),
        (0x2002, high, low, ..) => Some(joined(high, low)),
        _ => None,
    }
}

fn joined(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

fn kind_v4(address: Ipv4Addr) -> Option<AddressKind> {
    match address.octets() {
        [127, ..] => Some(AddressKind::Loopback),
        [169, 254, ..] => Some(AddressKind::LinkLocal),
        _ if METADATA_V4.contains(&address) => Some(AddressKind::Metadata),
        [0, ..] => Some(AddressKind::Unspecified),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Some(AddressKind::Private),
        [224..=239, ..] => Some(AddressKind::Multicast),
        [192, 0, 0 | 2, _] | [192, 88, 99, _] => Some(AddressKind::Reserved),
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => Some(AddressKind::Reserved),
        [240..=255, ..] => Some(AddressKind::Reserved),
        _ => None,
    }
}

fn kind_v6(address: Ipv6Addr) -> Option<AddressKind> {
    match address.segments() {
        _ if address == Ipv6Addr::LOCALHOST => Some(AddressKind::Loopback),
        _ if address == Ipv6Addr::UNSPECIFIED => Some(AddressKind::Unspecified),
        _ if METADATA_V6.contains(&address) => Some(AddressKind::Metadata),
        [0xfe80..=0xfebf, ..] => Some(AddressKind::LinkLocal),
        [0xfc00..=0xfdff, ..] => Some(AddressKind::Private),
        [0xff00..=0xffff, ..] => Some(AddressKind::Multicast),
        // Protocol assignments (Teredo, ORCHID, benchmarking), documentation, and 6to4.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => Some(AddressKind::Reserved),
        // An ISATAP interface id tunnels to the IPv4 address it contains.
        [0x2000..=0x3fff, _, _, _, 0 | 0x200, 0x5efe, high, low] => kind_v4(joined(high, low)),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(AddressKind::Reserved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_recognised_at_its_edges() {
        let cases = [
            ("127.255.255.255", Some(AddressKind::Loopback)),
            ("::1", Some(AddressKind::Loopback)),
            ("::ffff:127.0.0.1", Some(AddressKind::Loopback)),
            ("172.15.255.255", None),
            ("172.16.0.0", Some(AddressKind::Private)),
            ("172.31.255.255", Some(AddressKind::Private)),
            ("fdff::1", Some(AddressKind::Private)),
            ("169.254.169.254", Some(AddressKind::LinkLocal)),
            ("febf::1", Some(AddressKind::LinkLocal)),
            ("fec0::1", Some(AddressKind::Reserved)),
            ("100.100.100.200", Some(AddressKind::Metadata)),
            ("fd00:ec2::254", Some(AddressKind::Metadata)),
            ("223.255.255.255", None),
            ("224.0.0.0", Some(AddressKind::Multicast)),
            ("240.0.0.0", Some(AddressKind::Reserved)),
            ("1fff::1", Some(AddressKind::Reserved)),
            ("2001:200::1", None),
            ("3fff:1000::1", None),
            ("4000::1", Some(AddressKind::Reserved)),
            ("64:ff9b::5db8:d822", Some(AddressKind::Reserved)),
        ];
        for (address, expected) in cases {
            assert_eq!(kind(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn translated_addresses_reveal_the_embedded_address() {
        let metadata = Some(Ipv4Addr::new(169, 254, 169, 254));
        let cases = [
            ("64:ff9b::a9fe:a9fe", metadata),
            ("64:ff9b:1::a9fe:a9fe", metadata),
            ("2002:a9fe:a9fe::1", metadata),
            ("::a9fe:a9fe", metadata),
            ("2606:2800::5efe:a9fe:a9fe", metadata),
            ("2606:2800::1", None),
            ("::1", None),
            ("10.0.0.1", None),
        ];
        for (address, expected) in cases {
            assert_eq!(embedded_v4(address.parse().unwrap()), expected, "{address}");
        }
    }
}
