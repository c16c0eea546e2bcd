//! `X-Forwarded-For`: the caller is the peer or an address in the header, and never a trusted proxy with another
//! address before it.

use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use posthaste::api::fuzzing::caller;
use std::net::{IpAddr, Ipv4Addr};

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

pub(crate) fn run(data: &[u8]) {
    let trusted: [IpNet; 2] = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().expect("a network"));
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(line) else { continue };
        headers.append("x-forwarded-for", value);
    }
    assert_eq!(caller(STRANGER, &headers, &trusted), STRANGER, "who is not trusted is not believed");
    let found = caller(PROXY, &headers, &trusted);
    assert_eq!(found, found.to_canonical());
    let is_trusted = trusted.iter().any(|network| network.contains(&found));
    assert!(!is_trusted || found == PROXY, "{found} is a proxy");
    headers.append("x-forwarded-for", HeaderValue::from_static("203.0.113.9"));
    assert_eq!(caller(PROXY, &headers, &trusted), STRANGER, "the last entry counts");
}
