//! A receiver chosen by the operator, for messages to a built-in API.
//!
//! Publishers do not control its address, so the address may be private. Its credentials are added when a message is
//! sent, and are never stored.

use super::egress::EgressPolicy;
use super::target::{Target, TargetHost};
use http::HeaderValue;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The destination of everything that a [`super::Deliverer`] sends, whatever the messages say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The complete URL.
    pub url: String,
    /// Value of the `Authorization` header; marked as sensitive, so that it is not printed.
    pub authorization: Option<HeaderValue>,
}

/// The error in an upstream, for the person who configured it.
#[derive(Debug, thiserror::Error)]
pub enum InvalidUpstream {
    /// Not a valid URL.
    #[error("{0}")]
    Url(String),
    /// Not a valid header value.
    #[error("the token cannot be sent in a header")]
    Token,
}

impl Upstream {
    /// Creates an upstream below a base URL, with an optional bearer token.
    pub fn new(base: &str, path: &str, token: Option<&str>) -> Result<Upstream, InvalidUpstream> {
        let url = format!("{}/{path}", base.trim_end_matches('/'));
        Target::parse(&url).map_err(|refusal| InvalidUpstream::Url(refusal.to_string()))?;
        let bearer = |token: &str| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| InvalidUpstream::Token)?;
            value.set_sensitive(true);
            Ok(value)
        };
        Ok(Upstream { url, authorization: token.map(bearer).transpose()? })
    }

    /// The operator's policy, extended to allow this receiver. This server and metadata services stay blocked.
    pub(super) fn policy(&self, policy: &EgressPolicy) -> EgressPolicy {
        let host = match Target::parse(&self.url).map(|target| target.host) {
            Ok(TargetHost::Name(name)) => Some(name),
            Ok(TargetHost::Address(_)) | Err(_) => None,
        };
        EgressPolicy {
            allow_loopback: true,
            allow_cidrs: vec![IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())],
            allow_hosts: host.into_iter().collect(),
            ..policy.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_opened_for_private_receivers_only_as_far_as_needed() {
        for (base, address) in [
            ("http://127.0.0.1:11434/v1", "127.0.0.1"),
            ("http://10.1.2.3/v1/", "10.1.2.3"),
            ("http://ollama:11434/v1", "192.168.1.1"),
            ("http://localhost:11434/v1", "::1"),
            ("https://llm.internal/v1", "fd00::1"),
        ] {
            let upstream = Upstream::new(base, "chat/completions", None).unwrap();
            let policy = upstream.policy(&EgressPolicy::default());
            assert_eq!(policy.check_url(&upstream.url), Ok(()), "{base}");
            let host = base.split(['/', ':']).nth(3).unwrap();
            assert_eq!(policy.check_addresses(host, 80, &[address.parse().unwrap()]), Ok(()), "{base}");
            assert!(policy.check_addresses(host, 80, &["169.254.169.254".parse().unwrap()]).is_err(), "{base}");
        }
        let upstream = Upstream::new("http://127.0.0.1:8080/v1", "chat/completions", None).unwrap();
        let own = EgressPolicy { own_addrs: vec!["127.0.0.1:8080".parse().unwrap()], ..EgressPolicy::default() };
        assert!(upstream.policy(&own).check_url(&upstream.url).is_err(), "this server itself");
    }

    #[test]
    fn the_token_is_not_printed() {
        let upstream = Upstream::new("https://llm.example/v1/", "chat/completions", Some("sk-secret")).unwrap();
        assert_eq!(upstream.url, "https://llm.example/v1/chat/completions");
        assert!(!format!("{upstream:?}").contains("secret"));
        assert!(Upstream::new("https://llm.example", "x", Some("a\nb")).is_err());
        for base in ["", "llm.example", "ftp://llm.example", "https://user:password@llm.example"] {
            assert!(Upstream::new(base, "x", None).is_err(), "{base}");
        }
    }
}
