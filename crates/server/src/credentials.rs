//! Credentials that publishers store to have them sent later, such as `Authorization`: encrypted while they are stored, if the
//! operator has set an encryption key.
//!
//! They are sealed when a command enters the core ([`core::inbox`](crate::core)) and when a URL group is changed, after everything
//! that compares or counts what the publisher sent. They are opened where a request is put together, where they are shown
//! (`api/viewer.rs`), and where a stored header becomes a part of a new publish. Engine, node, store and simulation see texts.
//!
//! A sealed value is [`SEALED`] and then as `sealed.rs` writes it. No publisher can send that character, so no published value is
//! taken for a sealed one.

mod renewal;

pub use renewal::RenewalError;

use crate::sealed::{self, CannotOpen, KeyRing, Place};
use posthaste_engine::bulk_action::{BulkAction, Task};
use posthaste_engine::message::{CallbackSpec, DedupKey, MessageSpec};
use posthaste_engine::schedule::Schedule;
use posthaste_engine::url_group::UrlGroup;
use posthaste_engine::workflow::entry::Call;
use posthaste_engine::workflow::run::{FailureCall, RunConfig};
use posthaste_engine::workflow::{NewEntry, Overrides, Record, WaitFor, Workflow};
use posthaste_node::NewMessage;
use posthaste_wire::encoding::{SEALED, is_sealed};
use posthaste_wire::id::TenantId;
use posthaste_wire::redact::is_credential;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The field of all sealed headers: a value may move from a schedule to its messages, or from a run to the next.
const FIELD: &str = "header";

/// Seals and opens credentials. Without a key it seals nothing and costs nothing.
#[derive(Clone, Copy, Default)]
pub struct Credentials {
    /// As long-lived as the process, so that everything that shows or sends a header can have a copy.
    keys: Option<&'static KeyRing>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// A stored header that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored value of header {name} cannot be read: {source}{}", advice(.source))]
pub struct Unreadable {
    /// Its name.
    pub name: String,
    /// Why.
    pub source: CannotOpen,
}

fn advice(source: &CannotOpen) -> &'static str {
    match source {
        CannotOpen::UnknownKey(_) => "; the operator must add that key there as an older key, and restart the server",
        CannotOpen::UnknownFormat | CannotOpen::Forged => "; send or publish it again with that header",
    }
}

impl Credentials {
    /// Seals with the first of these keys, and opens with all.
    pub fn new(keys: Option<KeyRing>) -> Credentials {
        // A process has one configuration, and it holds for as long as the process.
        Credentials { keys: keys.map(|keys| &*Box::leak(Box::new(keys))) }
    }

    /// Whether there is a key to seal with.
    pub(crate) fn has_key(self) -> bool {
        self.keys.is_some()
    }

    /// Seals the credentials among these headers; those that are sealed stay as they are.
    pub(crate) fn seal(self, tenant: TenantId, stored: &mut impl StoredHeaders) {
        let Some(keys) = self.keys else { return };
        stored
            .for_each(&mut |name, value| {
                if !is_sealed(value) && is_credential(name) {
                    *value = sealed_value(keys, tenant, value);
                }
                Ok(())
            })
            .expect("sealing never fails");
    }

    /// What is stored to find duplicates, instead of a plain hash: that of the content includes credentials, and a weak one could
    /// be guessed from it. Must be done exactly once.
    pub(crate) fn seal_duplicate_key(self, tenant: TenantId, key: &mut Option<DedupKey>) {
        if let (Some(keys), Some(DedupKey(hash))) = (self.keys, key) {
            // Never the plain one instead. A ring has a first key.
            *hash = keys.hash(tenant, hash).expect("a hash can be made");
        }
    }

    /// Opens all sealed headers.
    pub(crate) fn open_all(self, tenant: TenantId, stored: &mut impl StoredHeaders) -> Result<(), Unreadable> {
        stored.for_each(&mut |name, value| {
            if is_sealed(value) {
                let opened = self.open(tenant, value).map_err(|source| Unreadable { name: name.to_owned(), source })?;
                *value = opened.into_owned();
            }
            Ok(())
        })
    }

    /// The value as it was published.
    pub(crate) fn open(self, tenant: TenantId, value: &str) -> Result<Cow<'_, str>, CannotOpen> {
        match value.strip_prefix(SEALED) {
            None => Ok(Cow::Borrowed(value)),
            Some(sealed) => sealed::open_sealed(self.keys, Place { tenant, field: FIELD }, sealed).map(Cow::Owned),
        }
    }

    /// Seals all credentials with the newest key, also those that an older one has sealed. What cannot be read stays as it is.
    pub(crate) fn renew(self, tenant: TenantId, stored: &mut impl StoredHeaders) -> Renewed {
        let mut renewed = Renewed::default();
        let Some(keys) = self.keys else { return renewed };
        stored
            .for_each(&mut |name, value| {
                let is_current = value.strip_prefix(SEALED).is_some_and(|sealed| keys.is_current(sealed));
                if is_current || !(is_sealed(value) || is_credential(name)) {
                    return Ok(());
                }
                match self.open(tenant, value) {
                    Ok(opened) => {
                        *value = sealed_value(keys, tenant, &opened);
                        renewed.is_changed = true;
                    }
                    Err(source) => renewed.unreadable.push(Unreadable { name: name.to_owned(), source }),
                }
                Ok(())
            })
            .expect("the visit never fails");
        renewed
    }
}

/// How headers were sealed with the newest key.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    /// One or more were not sealed with it before.
    pub(crate) is_changed: bool,
    /// Those that stay as they were.
    pub(crate) unreadable: Vec<Unreadable>,
}

/// A sealed value is a third longer than the value, and at most this many bytes more.
#[cfg(test)]
const SEALED_BYTES_MORE: usize = 70;

fn sealed_value(keys: &KeyRing, tenant: TenantId, value: &str) -> String {
    let sealed = keys.seal_alike(Place { tenant, field: FIELD }, value);
    // Never in the clear instead. AES-GCM refuses only texts of more than 64 GB.
    format!("{SEALED}{}", sealed.expect("a header can be encrypted"))
}

/// Whether one of these is sealed.
pub(crate) fn has_sealed(headers: &[(String, String)]) -> bool {
    headers.iter().any(|(_, value)| is_sealed(value))
}

/// Looks at a header and may change its value.
pub(crate) type Visit<'a> = dyn FnMut(&str, &mut String) -> Result<(), Unreadable> + 'a;

/// Something that has headers to send later.
pub(crate) trait StoredHeaders {
    /// Visits every header, until one cannot be read.
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable>;
}

impl StoredHeaders for Vec<(String, String)> {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.iter_mut().try_for_each(|(name, value)| visit(name, value))
    }
}

/// Headers with several values each, as a wait for an event has them.
impl StoredHeaders for Vec<(String, Vec<String>)> {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.iter_mut().try_for_each(|(name, values)| values.iter_mut().try_for_each(|value| visit(name, value)))
    }
}

impl<T: StoredHeaders> StoredHeaders for Option<T> {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.iter_mut().try_for_each(|stored| stored.for_each(visit))
    }
}

impl<T: StoredHeaders> StoredHeaders for Box<T> {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        (**self).for_each(visit)
    }
}

impl StoredHeaders for MessageSpec {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)?;
        self.callback.for_each(visit)?;
        self.failure_callback.for_each(visit)
    }
}

impl StoredHeaders for CallbackSpec {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)
    }
}

impl StoredHeaders for NewMessage {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.spec.for_each(visit)
    }
}

impl StoredHeaders for Schedule {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.plan.spec.for_each(visit)
    }
}

impl StoredHeaders for UrlGroup {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)
    }
}

impl StoredHeaders for BulkAction {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        match &mut self.task {
            Task::DlqRetry { changes, .. } => changes.for_each(visit),
            Task::Cancel | Task::DlqDelete { .. } => Ok(()),
        }
    }
}

impl StoredHeaders for RunConfig {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)?;
        self.failure.for_each(visit)
    }
}

impl StoredHeaders for FailureCall {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)
    }
}

impl StoredHeaders for NewEntry {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)?;
        self.call.for_each(visit)?;
        self.failure.for_each(visit)
    }
}

impl StoredHeaders for Call {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.result_headers.for_each(visit)
    }
}

impl StoredHeaders for WaitFor {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.headers.for_each(visit)
    }
}

/// All that a run which begins again takes along.
impl StoredHeaders for Record {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        let Workflow { run, entries, waits, invokes, .. } = &mut self.workflow;
        Arc::make_mut(&mut run.config).for_each(visit)?;
        for entry in entries {
            let terms = Arc::make_mut(&mut entry.terms);
            terms.headers.for_each(visit)?;
            terms.call.for_each(visit)?;
        }
        waits.iter_mut().try_for_each(|wait| wait.headers.for_each(visit))?;
        invokes.iter_mut().try_for_each(|invoke| {
            invoke.run_headers.for_each(visit)?;
            invoke.headers.for_each(visit)
        })
    }
}

impl StoredHeaders for Overrides {
    fn for_each(&mut self, visit: &mut Visit<'_>) -> Result<(), Unreadable> {
        self.failure.for_each(visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use posthaste_wire::encoding::header_text;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TENANT: TenantId = TenantId(7);

    fn credentials() -> Credentials {
        Credentials::new(Some(KeyRing::parse(KEY).unwrap()))
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn credentials_are_sealed_and_everything_else_stays_as_it_is() {
        let latin1 = header_text(b"caf\xe9\xff").into_owned();
        let plain = pairs(&[
            ("Authorization", "Bearer one"),
            ("Content-Type", "text/plain"),
            ("Cookie", &latin1),
            ("X-Api-Key", ""),
            ("Upstash-Callback-Forward-X-Auth-Token", "sealed:1:a:b"),
            ("X-Open", "Bearer two"),
        ]);
        let mut headers = plain.clone();
        credentials().seal(TENANT, &mut headers);
        let sealed: Vec<bool> = headers.iter().map(|(_, value)| is_sealed(value)).collect();
        assert_eq!(sealed, [true, false, true, true, true, false]);
        assert!(has_sealed(&headers) && !has_sealed(&plain));
        let once = headers.clone();
        credentials().seal(TENANT, &mut headers);
        assert_eq!(headers, once, "what is sealed stays as it is");
        let mut opened = headers.clone();
        credentials().open_all(TENANT, &mut opened).unwrap();
        assert_eq!(opened, plain);
        let unreadable = credentials().open_all(TenantId(8), &mut headers).unwrap_err();
        assert_eq!(unreadable.source, CannotOpen::Forged, "another tenant's");
        let text = Credentials::default().open_all(TENANT, &mut headers).unwrap_err().to_string();
        let fingerprint = headers[0].1.split(':').nth(2).unwrap();
        let expected = format!(
            "the stored value of header Authorization cannot be read: it is encrypted with key {fingerprint}, which is not in \
             encryption_key or encryption_key_file; the operator must add that key there as an older key, and restart the server"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn without_a_key_nothing_is_sealed_and_what_looks_sealed_is_not_taken_for_plain() {
        let mut headers = pairs(&[("Authorization", "Bearer one")]);
        Credentials::default().seal(TENANT, &mut headers);
        assert_eq!(headers, pairs(&[("Authorization", "Bearer one")]));
        for forged in ["\u{1}", "\u{1}Bearer one", "\u{1}sealed:1:", "\u{1}sealed:2:a:b"] {
            assert_eq!(credentials().open(TENANT, forged).unwrap_err(), CannotOpen::UnknownFormat, "{forged:?}");
        }
        assert!(matches!(credentials().open(TENANT, "sealed:1:a:b"), Ok(Cow::Borrowed("sealed:1:a:b"))));
    }

    /// Nanoseconds per header, in the fastest of many batches:
    /// `cargo test -p posthaste --release --lib credentials -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures time, which other programs disturb"]
    fn sealing_and_opening_a_header_take_microseconds() {
        const BATCHES: usize = 200;
        const ROUNDS: u32 = 1_000;
        let clock = Clock::default();
        let time = |what: &str, work: &mut dyn FnMut()| {
            let batch = |_| {
                let begun = clock.uptime();
                (0..ROUNDS).for_each(|_| work());
                (clock.uptime() - begun).as_nanos() / u128::from(ROUNDS)
            };
            // Interruptions are no property of the code.
            let nanos = (0..BATCHES).map(batch).min().expect("there are batches");
            println!("{what}: {nanos} ns");
            assert!(nanos < 20_000, "{what} takes {nanos} ns");
        };
        for length in [40, 400] {
            let plain = pairs(&[("Authorization", &"a".repeat(length))]);
            let mut sealed = plain.clone();
            credentials().seal(TENANT, &mut sealed);
            println!("{length} bytes are stored as {}", sealed[0].1.len());
            let with_key = credentials();
            time("a copy", &mut || drop(std::hint::black_box(plain.clone())));
            time("a copy and sealing it", &mut || {
                let mut headers = plain.clone();
                with_key.seal(TENANT, std::hint::black_box(&mut headers));
            });
            time("a copy and opening it", &mut || {
                let mut headers = sealed.clone();
                with_key.open_all(TENANT, std::hint::black_box(&mut headers)).unwrap();
            });
        }
        let many = pairs(&[("Content-Type", "application/json"); 10]);
        time("looking for sealed ones among ten that are not", &mut || {
            assert!(!has_sealed(std::hint::black_box(&many)))
        });
    }

    #[test]
    fn a_sealed_value_is_a_third_longer_and_seventy_bytes() {
        for length in [0, 1, 40, 32 * 1024] {
            let value = sealed_value(credentials().keys.unwrap(), TENANT, &"a".repeat(length));
            assert!(value.len() <= length * 4 / 3 + SEALED_BYTES_MORE, "{length}: {}", value.len());
        }
    }
}
