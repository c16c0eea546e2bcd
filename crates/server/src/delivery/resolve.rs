//! Names to addresses. Nothing is cached here: one lookup per new connection, so that what was checked
//! is what is dialled.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

/// A lookup under way.
pub type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Looks names up. The caller bounds the time.
pub trait Resolve: Send + Sync {
    /// All addresses of a name, in order of preference; an error or nothing when it has none.
    fn resolve(&self, host: &str) -> Lookup;
}

/// The resolver of the operating system, hosts file and search list included.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str) -> Lookup {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_knows_localhost_and_not_what_cannot_exist() {
        let found = SystemResolver.resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(SystemResolver.resolve("does-not-exist.invalid").await.unwrap_or_default().is_empty());
    }
}
