//! The rest of a publish path and its query: the result is stable, checked, and does not contain the token.

use posthaste::api::fuzzing::LIMITS;
use posthaste_delivery::target::{Target, TargetHost};
use posthaste_wire::destination::{self, Destination, check_url, is_name, origin, split_query};
use url::{Host, Url};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
    let parts = split_query(query);
    if let Some(rest) = &parts.destination {
        let again = split_query(Some(rest));
        assert!(again.token.is_none() && again.config.is_empty(), "{rest:?} still holds what is ours");
        assert_eq!(again.destination.as_ref(), Some(rest));
        for (name, _) in url::form_urlencoded::parse(rest.as_bytes()) {
            let name = name.to_ascii_lowercase();
            assert!(name != "qstash_token" && !name.starts_with("upstash-"), "{rest:?} still holds {name}");
        }
    }
    assert!(parts.config.iter().all(|(name, _)| name.starts_with("upstash-") && *name == name.to_ascii_lowercase()));
    check(Destination::parse(path, parts.destination.as_deref(), LIMITS.url_bytes_max));
    check(Destination::parse_whole(text, LIMITS.url_bytes_max));
}

fn check(read: Result<Destination, destination::InvalidDestination>) {
    match read {
        Err(refusal) => super::check_refusal(&refusal.to_string()),
        Ok(Destination::Url(url)) => {
            assert_eq!(check_url(&url, LIMITS.url_bytes_max), Ok(()), "{url:?}");
            let again = Destination::parse_whole(&url, LIMITS.url_bytes_max);
            assert_eq!(again, Ok(Destination::Url(url.clone())), "read again");
            assert!(!url.contains('#') && url.len() <= LIMITS.url_bytes_max, "{url:?}");
            check_target(&url);
        }
        Ok(Destination::Group(name)) => assert!(is_name(&name), "{name:?}"),
        Ok(Destination::Api(name)) => assert!(name.starts_with("api/"), "{name:?}"),
    }
}

/// A delivery connects to the host that a URL parser finds, and connections are counted by the same host.
fn check_target(url: &str) {
    let parsed = Url::parse(url).expect("it was checked");
    let origin = origin(url).expect("it was checked");
    let Ok(target) = Target::parse(url) else { return };
    let host = match &target.host {
        TargetHost::Name(name) => Host::Domain(name.as_str()),
        TargetHost::Address(std::net::IpAddr::V4(address)) => Host::Ipv4(*address),
        TargetHost::Address(std::net::IpAddr::V6(address)) => Host::Ipv6(*address),
    };
    let expected = match parsed.host() {
        Some(Host::Domain(name)) => Host::Domain(name.strip_suffix('.').unwrap_or(name)),
        Some(other) => other,
        None => panic!("{url:?} has no host"),
    };
    assert_eq!(host, expected, "{url:?}");
    assert_eq!(Some(target.port), parsed.port_or_known_default(), "{url:?}");
    assert_eq!(target.https, parsed.scheme() == "https", "{url:?}");
    assert_eq!(origin, format!("{}://{host}:{}", parsed.scheme(), target.port), "{url:?}");
    let path = target.path.as_str();
    assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()), "{url:?} asks for {path:?}");
}
