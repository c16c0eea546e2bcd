//! Encrypts the credentials of schedules and URL groups with the newest key when the server starts: both may stay for years.
//!
//! Messages and runs are written once and end, so they keep the key that they were sealed with.

use super::{Credentials, Renewed, StoredHeaders, Unreadable};
use crate::sealed::CannotOpen;
use posthaste_engine::event::Op;
use posthaste_engine::url_group::Edit;
use posthaste_store::{Durability, Epoch, NamePage, Names, Part, ShardId, Store, StoreError};
use posthaste_wire::id::TenantId;
use posthaste_wire::time::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why the credentials of schedules and URL groups were not all encrypted anew.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// One is sealed with a key that is not there.
    #[error("{what} of tenant {tenant}: {source}")]
    Unreadable {
        /// The schedule or the URL group.
        what: String,
        /// The tenant's number in the store.
        tenant: u32,
        /// Why.
        source: Unreadable,
    },
}

impl Credentials {
    /// Checks that the stored credentials of all schedules and URL groups can be read, also of tenants that are no longer
    /// configured, and encrypts those that are not encrypted with the newest key. Without a key it looks at nothing.
    pub fn renew_stored(self, store: &dyn Store, shard: ShardId, now: Timestamp) -> Result<(), RenewalError> {
        if !self.has_key() {
            return Ok(());
        }
        let mut tenants: BTreeSet<TenantId> = store.tenants_with_keys()?.into_iter().collect();
        tenants.extend(store.schedule_states()?.into_iter().map(|(tenant, ..)| tenant));
        let mut renewal = Renewal { credentials: self, store, shard, now, lease: None, has_begun: false };
        let (mut schedules, mut groups) = (0_u64, 0_u64);
        for tenant in tenants {
            schedules += pages(|page| renewal.schedules(tenant, page))?;
            groups += pages(|page| renewal.url_groups(tenant, page))?;
        }
        if schedules + groups > 0 {
            store.flush()?;
            tracing::info!(schedules, groups, "encrypted stored credentials with the newest key");
        }
        Ok(())
    }
}

struct Renewal<'a> {
    credentials: Credentials,
    store: &'a dyn Store,
    shard: ShardId,
    now: Timestamp,
    /// Taken when the first schedule has to be written. The core takes its own afterwards.
    lease: Option<Epoch>,
    /// Something was written, which may take a while for many.
    has_begun: bool,
}

/// How many a page has changed, and where the next one begins.
type Page = (u64, Option<String>);

/// Goes through a list, one page at a time.
fn pages(mut renew: impl FnMut(&NamePage) -> Result<Page, RenewalError>) -> Result<u64, RenewalError> {
    let (mut page, mut count) = (NamePage { part: Part::Head, ..NamePage::FIRST }, 0);
    loop {
        let (changed, next) = renew(&page)?;
        count += changed;
        match next {
            Some(name) => page.after = Some(name),
            None => return Ok(count),
        }
    }
}

impl Renewal<'_> {
    fn schedules(&mut self, tenant: TenantId, page: &NamePage) -> Result<Page, RenewalError> {
        let (Names { entries, next }, mut changed) = (self.store.schedules(tenant, page)?, 0);
        for mut head in entries.into_iter().map(|listed| listed.schedule) {
            let mut spec = head.plan.spec.clone();
            if !self.renew(tenant, || format!("schedule {}", head.id), &mut spec)? {
                continue;
            }
            // With its body, which is written again.
            if let Some(whole) = self.store.schedule(tenant, &head.id, Part::Whole)? {
                head.body = whole.body;
                head.plan.spec = spec;
                let epoch = self.epoch()?;
                self.store.commit(self.shard, epoch, &[Op::PutSchedule(Arc::new(head))], Durability::Lazy)?;
                changed += 1;
            }
        }
        Ok((changed, next))
    }

    fn url_groups(&mut self, tenant: TenantId, page: &NamePage) -> Result<Page, RenewalError> {
        let (Names { entries, next }, mut changed) = (self.store.url_groups(tenant, page)?, 0);
        for mut group in entries {
            let mut headers = std::mem::take(&mut group.headers);
            if !self.renew(tenant, || format!("URL group {}", group.name), &mut headers)? {
                continue;
            }
            // Its owner has not changed it, so its time stays.
            let edited =
                self.store.edit_url_group(tenant, &group.name, &Edit::SetHeaders(headers), group.updated_at)?;
            changed += u64::from(edited.is_ok());
        }
        Ok((changed, next))
    }

    /// Whether it has changed and must be written. Only the key that the operator can add stops the start: a damaged value
    /// stays, and each attempt that needs it fails and says why.
    fn renew(
        &mut self,
        tenant: TenantId,
        what: impl Fn() -> String,
        stored: &mut impl StoredHeaders,
    ) -> Result<bool, RenewalError> {
        let Renewed { is_changed, unreadable } = self.credentials.renew(tenant, stored);
        for source in unreadable {
            match source.source {
                CannotOpen::UnknownKey(_) => {
                    return Err(RenewalError::Unreadable { what: what(), tenant: tenant.0, source });
                }
                CannotOpen::UnknownFormat | CannotOpen::Forged => tracing::error!(
                    tenant = tenant.0, of = what(), header = source.name, error = %source.source,
                    "a stored credential cannot be read; set this header again, attempts that need it fail until then"
                ),
            }
        }
        if is_changed && !self.has_begun {
            tracing::info!("encrypting stored credentials with the newest key; many of them take a while");
            self.has_begun = true;
        }
        Ok(is_changed)
    }

    fn epoch(&mut self) -> Result<Epoch, StoreError> {
        match self.lease {
            Some(epoch) => Ok(epoch),
            None => Ok(*self.lease.insert(self.store.lease(self.shard, self.now)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed::KeyRing;
    use bytes::Bytes;
    use posthaste_engine::message::MessageSpec;
    use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
    use posthaste_engine::url_group::Endpoint;
    use posthaste_store::memory::MemoryStore;
    use posthaste_wire::encoding::{is_sealed, unsealed};

    const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const NEW: &str = "f0f102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const SHARD: ShardId = ShardId(0);
    /// Of no configuration, and without signing keys.
    const TENANT: TenantId = TenantId(9);
    /// More than one page.
    const GROUPS: usize = 130;

    fn credentials(keys: &str) -> Credentials {
        Credentials::new(Some(KeyRing::parse(keys).unwrap()))
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn schedule() -> Schedule {
        Schedule {
            tenant: TENANT,
            id: "daily".to_owned(),
            plan: SchedulePlan {
                created_at: Timestamp(5),
                cron: "0 0 * * *".to_owned(),
                destination: ScheduleTarget::Url("https://a.example/".to_owned()),
                delay_ms: Some(7),
                spec: MessageSpec {
                    headers: vec![pair("Authorization", "Bearer one"), pair("X-Open", "1")],
                    ..MessageSpec::default()
                },
            },
            body: Bytes::from_static(b"the body"),
            state: ScheduleState { next: Some(Timestamp(9)), last: Some(Timestamp(8)), ..ScheduleState::default() },
        }
    }

    fn store() -> MemoryStore {
        let store = MemoryStore::new();
        let epoch = store.lease(SHARD, Timestamp(1)).unwrap();
        store.commit(SHARD, epoch, &[Op::PutSchedule(Arc::new(schedule()))], Durability::Synced).unwrap();
        for n in 0..GROUPS {
            let endpoint = Endpoint { url: "https://a.example/".to_owned(), name: None };
            let headers = vec![pair("upstash-forward-cookie", &format!("c={n}"))];
            for edit in [Edit::Add(vec![endpoint]), Edit::SetHeaders(headers)] {
                store.edit_url_group(TENANT, &format!("group-{n:03}"), &edit, Timestamp(3)).unwrap().unwrap();
            }
        }
        store
    }

    fn stored(store: &MemoryStore) -> (Schedule, Vec<posthaste_engine::url_group::UrlGroup>) {
        let groups = (0..GROUPS).map(|n| store.url_group(TENANT, &format!("group-{n:03}")).unwrap().unwrap());
        (store.schedule(TENANT, "daily", Part::Whole).unwrap().unwrap(), groups.collect())
    }

    #[test]
    fn schedules_and_groups_of_all_tenants_are_encrypted_with_the_newest_key_and_otherwise_unchanged() {
        let store = store();
        let plain = stored(&store);
        Credentials::default().renew_stored(&store, SHARD, Timestamp(20)).unwrap();
        assert_eq!(stored(&store), plain, "nothing without a key");
        for keys in [OLD, &format!("{NEW},{OLD}"), NEW] {
            let credentials = credentials(keys);
            credentials.renew_stored(&store, SHARD, Timestamp(20)).unwrap();
            let (mut schedule, mut groups) = stored(&store);
            let current = |headers: &[(String, String)]| {
                headers.iter().all(|(_, value)| credentials.keys.unwrap().is_current(&value[1..]))
            };
            assert!(is_sealed(&schedule.plan.spec.headers[0].1) && !is_sealed(&schedule.plan.spec.headers[1].1));
            assert!(current(&schedule.plan.spec.headers[..1]) && groups.iter().all(|group| current(&group.headers)));
            credentials.open_all(TENANT, &mut schedule).unwrap();
            groups.iter_mut().for_each(|group| credentials.open_all(TENANT, group).unwrap());
            assert!((schedule, groups) == plain, "{keys}: the same but for the encryption");
        }
        let before = stored(&store);
        let epoch = store.lease(SHARD, Timestamp(30)).unwrap();
        credentials(NEW).renew_stored(&store, SHARD, Timestamp(40)).unwrap();
        assert_eq!(stored(&store), before, "written only when it has to be");
        store.commit(SHARD, epoch, &[], Durability::Lazy).expect("nothing to write takes no lease");
    }

    #[test]
    fn damaged_values_stay_and_stop_neither_the_start_nor_the_renewal_of_the_others() {
        let store = store();
        credentials(OLD).renew_stored(&store, SHARD, Timestamp(20)).unwrap();
        let (mut schedule, groups) = stored(&store);
        // That of another tenant cannot be opened here.
        let mut of_other = vec![pair("Cookie", "c=1")];
        credentials(OLD).seal(TenantId(8), &mut of_other);
        let damaged = [of_other.remove(0), pair("X-Api-Key", "\u{1}sealed:2:a:b")];
        schedule.plan.spec.headers.extend(damaged.clone());
        let epoch = store.lease(SHARD, Timestamp(21)).unwrap();
        store.commit(SHARD, epoch, &[Op::PutSchedule(Arc::new(schedule))], Durability::Synced).unwrap();
        let edit = Edit::SetHeaders(damaged.to_vec());
        store.edit_url_group(TENANT, &groups[0].name, &edit, Timestamp(22)).unwrap().unwrap();

        let both = credentials(&format!("{NEW},{OLD}"));
        both.renew_stored(&store, SHARD, Timestamp(30)).unwrap();
        let (schedule, groups) = stored(&store);
        let is_current = |value: &str| credentials(NEW).keys.unwrap().is_current(&value[1..]);
        assert!(is_current(&schedule.plan.spec.headers[0].1), "the readable header of the same schedule");
        assert_eq!((&schedule.plan.spec.headers[2..], &groups[0].headers[..]), (&damaged[..], &damaged[..]));
        assert!(groups[1..].iter().all(|group| is_current(&group.headers[0].1)));
        let error = both.open(TENANT, &schedule.plan.spec.headers[2].1).unwrap_err();
        assert_eq!(error, CannotOpen::Forged, "an attempt says why it fails");
    }

    #[test]
    fn a_schedule_or_group_under_an_unknown_key_is_named_and_left_as_it_is() {
        let store = store();
        credentials(OLD).renew_stored(&store, SHARD, Timestamp(20)).unwrap();
        let before = stored(&store);
        let error = credentials(NEW).renew_stored(&store, SHARD, Timestamp(20)).unwrap_err().to_string();
        let fingerprint = before.0.plan.spec.headers[0].1.split(':').nth(2).unwrap();
        for part in ["schedule daily of tenant 9", "Authorization", fingerprint, "encryption_key"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        assert!(!error.contains("Bearer") && !error.contains(char::is_control), "{error}");
        assert_eq!(stored(&store), before);
        assert_eq!(unsealed(&before.0.plan.spec.headers[0].1), "REDACTED");
    }
}
