//! Queries, each on one snapshot of the file.
//!
//! Queries about live rows are in `live`, pages are in `list`, and each kind of named object has its own file.

use super::codec::{self, BODY_COLUMN, HEAD_COLUMNS, LETTER_COLUMNS, MESSAGE_COLUMNS, int};
use super::error::{Failure, Outcome};
use super::schema::{Buckets, Kind};
use super::shared_body::LastShared;
use crate::latest_duplicate_window;
use crate::names::NamesBuilder;
use crate::weight;
use crate::{Counts, DeadLetterRecord, MessageRecord, NamePage, Names, Part, SigningKeys};
use posthaste_engine::message::{DedupKey, Message};
use posthaste_engine::url_group::UrlGroup;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::signature::SigningKey;
use posthaste_wire::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;

/// A reading connection and the tables of its snapshot.
pub(super) struct Snapshot<'a> {
    pub(super) connection: &'a Connection,
    pub(super) buckets: &'a Buckets,
}

impl Snapshot<'_> {
    pub(super) fn load_messages(&self, ids: &[MessageId]) -> Outcome<Vec<Arc<Message>>> {
        let mut last = None;
        let load = |id: &MessageId| {
            let found = self.find_message(id.seq, |row| self.whole(row, &mut last))?;
            let found = found.filter(|message| message.id == *id);
            found.map(Arc::new).ok_or_else(|| absent("message", *id))
        };
        ids.iter().map(load).collect()
    }

    pub(super) fn message_of(&self, tenant: TenantId, id: MessageId, part: Part) -> Outcome<Option<Arc<Message>>> {
        let found = match part {
            Part::Head => self.find_row(id.seq, HEAD_COLUMNS, codec::message_head)?,
            Part::Whole => self.find_message(id.seq, |row| self.whole(row, &mut None))?,
        };
        Ok(found.filter(|message| message.id == id && message.tenant == tenant).map(Arc::new))
    }

    /// The highest position in the file. `meta` records it for dropped rows.
    pub(super) fn last_seq(&self) -> Outcome<Seq> {
        let one = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
        let mut last = one("SELECT value FROM meta WHERE key = 'last_seq'")?;
        last = last.max(one("SELECT max(seq) FROM live")?).max(one("SELECT max(id) FROM bulk_action")?);
        for bucket in self.buckets.of(Kind::Message) {
            last = last.max(one(&format!("SELECT max(seq) FROM message_{bucket}"))?);
        }
        Ok(Seq(last.unwrap_or(0).cast_unsigned()))
    }

    pub(super) fn counts(&self) -> Outcome<Counts> {
        let count = |table: &str| {
            let sql = format!("SELECT count(*) FROM {table}");
            self.connection.query_row(&sql, [], |row| row.get::<_, i64>(0))
        };
        let mut counts = Counts { live: count("live")?.cast_unsigned(), dead_letters: 0 };
        for bucket in self.buckets.of(Kind::DeadLetter) {
            counts.dead_letters += count(&format!("dlq_{bucket}"))?.cast_unsigned();
        }
        Ok(counts)
    }

    pub(super) fn find_windows(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Outcome<Vec<Option<(MessageId, Timestamp)>>> {
        // Tables are named by the end of the window, so tables before `now` contain no window that counts.
        let latest = latest_duplicate_window(now);
        let buckets = self.buckets.between(Kind::Dedup, now, latest);
        let mut found = vec![None; keys.len()];
        for bucket in buckets.into_iter().rev() {
            let sql = format!(
                "SELECT seq, tag, expires FROM dedup_{bucket}
                 WHERE tenant = ?1 AND key = ?2 AND expires > ?3 AND expires <= ?4"
            );
            let mut statement = self.connection.prepare_cached(&sql)?;
            for ((tenant, key), found) in keys.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
                let mut rows = statement.query(params![tenant.0, &key.0[..], int(now.0), int(latest.0)])?;
                if let Some(row) = rows.next()? {
                    *found = Some((codec::id(row, 0)?, codec::time(row, 2)?));
                }
            }
        }
        Ok(found)
    }

    pub(super) fn find_dead_letters(&self, tenant: TenantId, ids: &[DlqId]) -> Outcome<Vec<DlqId>> {
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            for bucket in self.buckets.between(Kind::DeadLetter, id.at, id.at) {
                let sql = format!("SELECT 1 FROM dlq_{bucket} WHERE tenant = ?1 AND at = ?2 AND seq = ?3");
                let mut statement = self.connection.prepare_cached(&sql)?;
                if statement.exists(params![tenant.0, int(id.at.0), int(id.n)])? {
                    found.push(*id);
                }
            }
        }
        Ok(found)
    }

    /// A message is readable while it is live or has a log line, in whichever table its row is.
    pub(super) fn message(&self, tenant: TenantId, id: MessageId, part: Part) -> Outcome<Option<MessageRecord>> {
        let Some(message) = self.message_of(tenant, id, part)? else { return Ok(None) };
        if let Some(live) = self.find_live(tenant, &[id])?.pop() {
            return Ok(Some(MessageRecord { message, live: Some(live), ended_at: None, final_state: None }));
        }
        let mut has_lines = false;
        for bucket in self.buckets.of(Kind::Event).iter().rev() {
            let sql = format!("SELECT at, state FROM event_{bucket} WHERE seq = ?1 ORDER BY at DESC, n DESC");
            let mut statement = self.connection.prepare_cached(&sql)?;
            let mut rows = statement.query([int(id.seq.0)])?;
            while let Some(row) = rows.next()? {
                has_lines = true;
                let state = codec::state(row.get(1)?)?;
                if state.is_final() {
                    let ended_at = Some(Timestamp(row.get::<_, i64>(0)?.cast_unsigned()));
                    return Ok(Some(MessageRecord { message, live: None, ended_at, final_state: Some(state) }));
                }
            }
        }
        Ok(has_lines.then_some(MessageRecord { message, live: None, ended_at: None, final_state: None }))
    }

    pub(super) fn dead_letter(&self, tenant: TenantId, dlq_id: DlqId) -> Outcome<Option<DeadLetterRecord>> {
        for bucket in self.buckets.between(Kind::DeadLetter, dlq_id.at, dlq_id.at) {
            let sql = format!(
                "SELECT {MESSAGE_COLUMNS}, {LETTER_COLUMNS} FROM dlq_{bucket}
                 WHERE tenant = ?1 AND at = ?2 AND seq = ?3"
            );
            let mut statement = self.connection.prepare_cached(&sql)?;
            let mut rows = statement.query(params![tenant.0, int(dlq_id.at.0), int(dlq_id.n)])?;
            if let Some(row) = rows.next()? {
                let (letter, message) = (codec::dead_letter(row)?, Arc::new(self.whole(row, &mut None)?));
                return Ok(Some(DeadLetterRecord { letter, message }));
            }
        }
        Ok(None)
    }

    pub(super) fn tenant(&self, name: &str) -> Outcome<Option<TenantId>> {
        let mut statement = self.connection.prepare_cached("SELECT no FROM tenant WHERE name = ?1")?;
        Ok(statement.query_row([name], |row| row.get(0).map(TenantId)).optional()?)
    }

    /// The only value of `meta` that is not a number.
    pub(super) fn secret(&self) -> Outcome<Option<[u8; 32]>> {
        let mut statement = self.connection.prepare_cached("SELECT value FROM meta WHERE key = 'secret'")?;
        Ok(statement.query_row([], |row| row.get(0)).optional()?)
    }

    pub(super) fn signing_keys(&self, tenant: TenantId) -> Outcome<Option<SigningKeys>> {
        let mut statement =
            self.connection.prepare_cached("SELECT current, next FROM signing_key WHERE tenant = ?1")?;
        let key = |row: &Row<'_>, column| row.get::<_, String>(column).map(SigningKey::new);
        let keys = statement.query_row([tenant.0], |row| Ok(SigningKeys { current: key(row, 0)?, next: key(row, 1)? }));
        Ok(keys.optional()?)
    }

    pub(super) fn tenants_with_keys(&self) -> Outcome<Vec<TenantId>> {
        let mut statement = self.connection.prepare_cached("SELECT tenant FROM signing_key")?;
        let tenants = statement.query_map([], |row| row.get(0).map(TenantId))?.collect::<Result<_, _>>()?;
        Ok(tenants)
    }

    pub(super) fn url_groups(&self, tenant: TenantId, page: &NamePage) -> Outcome<Names<UrlGroup>> {
        let (compares, start) = page.start();
        let sql = format!("SELECT data FROM url_group WHERE tenant = ?1 AND name {compares} ?2 ORDER BY name");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![tenant.0, start])?;
        let mut builder = NamesBuilder::new(page);
        while let Some(row) = rows.next()? {
            let group: UrlGroup = codec::json("URL group", row, 0)?;
            if builder.admits(weight::of_url_group(&group)).is_break() {
                break;
            }
            builder.push(&group.name.clone(), group);
        }
        Ok(builder.finish())
    }

    pub(super) fn url_group_count(&self, tenant: TenantId) -> Outcome<usize> {
        let mut statement = self.connection.prepare_cached("SELECT count(*) FROM url_group WHERE tenant = ?1")?;
        let count = statement.query_row([tenant.0], |row| row.get::<_, i64>(0))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    pub(super) fn url_group(&self, tenant: TenantId, name: &str) -> Outcome<Option<UrlGroup>> {
        let mut statement =
            self.connection.prepare_cached("SELECT data FROM url_group WHERE tenant = ?1 AND name = ?2")?;
        let mut rows = statement.query(params![tenant.0, name])?;
        rows.next()?.map(|row| codec::json("URL group", row, 0)).transpose()
    }

    /// A row of [`MESSAGE_COLUMNS`].
    pub(super) fn whole(&self, row: &Row<'_>, last: &mut LastShared) -> Outcome<Message> {
        Ok(Message { body: self.body(row, BODY_COLUMN, last)?, ..codec::message_head(row)? })
    }

    /// Reads the row of a message from whichever table has it.
    pub(super) fn find_message<T>(&self, seq: Seq, decode: impl FnMut(&Row<'_>) -> Outcome<T>) -> Outcome<Option<T>> {
        self.find_row(seq, MESSAGE_COLUMNS, decode)
    }

    pub(super) fn find_row<T>(
        &self,
        seq: Seq,
        columns: &str,
        mut decode: impl FnMut(&Row<'_>) -> Outcome<T>,
    ) -> Outcome<Option<T>> {
        for bucket in self.buckets.places_of(seq) {
            let sql = format!("SELECT {columns} FROM message_{bucket} WHERE seq = ?1");
            let mut statement = self.connection.prepare_cached(&sql)?;
            let mut rows = statement.query([int(seq.0)])?;
            if let Some(row) = rows.next()? {
                return decode(row).map(Some);
            }
        }
        Ok(None)
    }
}

/// A condition on `seq`; empty if there are no ids. It contains only numbers, so nothing needs escaping.
pub(super) fn only_ids(ids: &[MessageId]) -> String {
    if ids.is_empty() {
        return String::new();
    }
    let numbers: Vec<String> = ids.iter().map(|id| id.seq.0.to_string()).collect();
    format!("AND seq IN ({})", numbers.join(", "))
}

pub(super) fn absent(what: &'static str, id: MessageId) -> Failure {
    Failure::corrupt(what, format!("{id} is missing"))
}
