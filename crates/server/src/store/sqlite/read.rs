//! The queries, each on one snapshot of the file.
//!
//! Pages are in `list`. SQL narrows by tenant, time and id; [`Filter`] decides on the decoded rows.

use super::codec::{self, LETTER_COLUMNS, LIVE_COLUMNS, MESSAGE_COLUMNS, bits, int};
use super::error::{Failure, Outcome};
use super::schema::{Buckets, Kind};
use crate::store::latest_duplicate_window;
use crate::store::{Counts, DeadLetterRecord, Filter, MessageRecord, ShardId, SigningKeys};
use posthaste_engine::message::{DedupKey, DueKey, Live, Message, Origin};
use posthaste_engine::url_group::UrlGroup;
use posthaste_wire::id::{DlqId, MessageId, Seq, TenantId};
use posthaste_wire::signature::SigningKey;
use posthaste_wire::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;

/// A reading connection with the tables that its snapshot has.
pub(super) struct Snapshot<'a> {
    pub(super) connection: &'a Connection,
    pub(super) buckets: &'a Buckets,
}

impl Snapshot<'_> {
    /// Two walks, because SQLite finds a place behind (due, seq) in the index only when `due` is given:
    /// what is due at the same ms, which may be a million messages, and what is due later.
    pub(super) fn load_due(
        &self,
        shard: ShardId,
        origin: Option<Origin>,
        after: DueKey,
        until: Timestamp,
        max: usize,
    ) -> Outcome<Vec<Live>> {
        let (index, condition) = match origin {
            None => ("live_due", ""),
            Some(_) => ("live_origin", "AND origin = ?5"),
        };
        let mut found = Vec::new();
        let at_once = ("due = ?1 AND seq > ?2", [int(after.due.0), int(after.seq.0)]);
        let later = ("due > ?1 AND due <= ?2", [int(after.due.0), int(until.0)]);
        let walks = if after.due <= until { &[at_once, later][..] } else { &[] };
        for (range, [first, last]) in walks {
            let sql = format!(
                "SELECT {LIVE_COLUMNS} FROM live INDEXED BY {index}
                 WHERE {range} AND shard = ?3 {condition} ORDER BY due, seq LIMIT ?4"
            );
            let mut statement = self.connection.prepare_cached(&sql)?;
            let limit = int((max - found.len()) as u64);
            let mut rows = match origin {
                None => statement.query(params![first, last, shard.0, limit])?,
                Some(origin) => statement.query(params![first, last, shard.0, limit, bits(origin.0)])?,
            };
            while let Some(row) = rows.next()? {
                found.push(codec::live(row)?);
            }
        }
        Ok(found)
    }

    pub(super) fn load_messages(&self, ids: &[MessageId]) -> Outcome<Vec<Arc<Message>>> {
        let load = |id: &MessageId| {
            let found = self.find_message(id.seq, codec::message)?.filter(|message| message.id == *id);
            found.map(Arc::new).ok_or_else(|| absent("message", *id))
        };
        ids.iter().map(load).collect()
    }

    /// The highest position in the file. Dropped messages are remembered in `meta`.
    pub(super) fn last_seq(&self) -> Outcome<Seq> {
        let one = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
        let mut last = one("SELECT value FROM meta WHERE key = 'last_seq'")?.max(one("SELECT max(seq) FROM live")?);
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

    pub(super) fn find_duplicates(
        &self,
        keys: &[(TenantId, DedupKey)],
        now: Timestamp,
    ) -> Outcome<Vec<Option<MessageId>>> {
        // Tables go by the end of the window, so those before `now` hold nothing that counts.
        let latest = latest_duplicate_window(now);
        let buckets = self.buckets.between(Kind::Dedup, now, latest);
        let mut found = vec![None; keys.len()];
        for bucket in buckets.into_iter().rev() {
            let sql = format!(
                "SELECT seq, tag FROM dedup_{bucket}
                 WHERE tenant = ?1 AND key = ?2 AND expires > ?3 AND expires <= ?4"
            );
            let mut statement = self.connection.prepare_cached(&sql)?;
            for ((tenant, key), found) in keys.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
                let mut rows = statement.query(params![tenant.0, &key.0[..], int(now.0), int(latest.0)])?;
                if let Some(row) = rows.next()? {
                    *found = Some(codec::id(row, 0)?);
                }
            }
        }
        Ok(found)
    }

    pub(super) fn find_live(&self, tenant: TenantId, ids: &[MessageId]) -> Outcome<Vec<Live>> {
        let sql = format!("SELECT {LIVE_COLUMNS} FROM live WHERE seq = ?1 AND tag = ?2 AND tenant = ?3");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut found = Vec::new();
        for id in ids {
            let mut rows = statement.query(params![int(id.seq.0), bits(id.tag), tenant.0])?;
            if let Some(row) = rows.next()? {
                found.push(codec::live(row)?);
            }
        }
        Ok(found)
    }

    pub(super) fn match_live(&self, tenant: TenantId, filter: &Filter, after: Seq, max: usize) -> Outcome<Vec<Live>> {
        if filter.nothing {
            return Ok(Vec::new());
        }
        // A position is never earlier than the creation, so `from` bounds it too.
        let first = filter.from.map_or(Seq::MIN, Seq::first_at).max(Seq(after.0.saturating_add(1)));
        let sql = format!(
            "SELECT {LIVE_COLUMNS} FROM live WHERE seq >= ?1 AND tenant = +?2 {} ORDER BY seq",
            only_ids(&filter.ids)
        );
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query(params![int(first.0), tenant.0])?;
        let mut found = Vec::new();
        while found.len() < max
            && let Some(row) = rows.next()?
        {
            let live = codec::live(row)?;
            if filter.is_empty() || self.message_matches(live.id, filter)? {
                found.push(live);
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

    fn message_matches(&self, id: MessageId, filter: &Filter) -> Outcome<bool> {
        let head = self.find_message(id.seq, codec::message_head)?.ok_or_else(|| absent("message", id))?;
        Ok(filter.matches(&head) && filter.matches_time(head.created_at))
    }

    /// A message is readable as long as it lives or has a log line, whatever table its row is in.
    pub(super) fn message(&self, tenant: TenantId, id: MessageId) -> Outcome<Option<MessageRecord>> {
        let found = self.find_message(id.seq, codec::message)?;
        let Some(message) = found.filter(|message| message.id == id && message.tenant == tenant).map(Arc::new) else {
            return Ok(None);
        };
        if let Some(live) = self.find_live(tenant, &[id])?.pop() {
            return Ok(Some(MessageRecord { message, live: Some(live), ended_at: None }));
        }
        let mut has_lines = false;
        for bucket in self.buckets.of(Kind::Event).iter().rev() {
            let sql = format!("SELECT at, state FROM event_{bucket} WHERE seq = ?1 ORDER BY at DESC, n DESC");
            let mut statement = self.connection.prepare_cached(&sql)?;
            let mut rows = statement.query([int(id.seq.0)])?;
            while let Some(row) = rows.next()? {
                has_lines = true;
                if codec::state(row.get(1)?)?.is_final() {
                    let ended_at = Some(Timestamp(row.get::<_, i64>(0)?.cast_unsigned()));
                    return Ok(Some(MessageRecord { message, live: None, ended_at }));
                }
            }
        }
        Ok(has_lines.then_some(MessageRecord { message, live: None, ended_at: None }))
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
                let (letter, message) = (codec::dead_letter(row)?, Arc::new(codec::message(row)?));
                return Ok(Some(DeadLetterRecord { letter, message }));
            }
        }
        Ok(None)
    }

    pub(super) fn tenant(&self, name: &str) -> Outcome<Option<TenantId>> {
        let mut statement = self.connection.prepare_cached("SELECT no FROM tenant WHERE name = ?1")?;
        Ok(statement.query_row([name], |row| row.get(0).map(TenantId)).optional()?)
    }

    pub(super) fn signing_keys(&self, tenant: TenantId) -> Outcome<Option<SigningKeys>> {
        let mut statement =
            self.connection.prepare_cached("SELECT current, next FROM signing_key WHERE tenant = ?1")?;
        let key = |row: &Row<'_>, column| row.get::<_, String>(column).map(SigningKey::new);
        let keys = statement.query_row([tenant.0], |row| Ok(SigningKeys { current: key(row, 0)?, next: key(row, 1)? }));
        Ok(keys.optional()?)
    }

    pub(super) fn url_groups(&self, tenant: TenantId) -> Outcome<Vec<UrlGroup>> {
        let mut statement =
            self.connection.prepare_cached("SELECT data FROM url_group WHERE tenant = ?1 ORDER BY name")?;
        let mut rows = statement.query([tenant.0])?;
        let mut groups = Vec::new();
        while let Some(row) = rows.next()? {
            groups.push(codec::url_group(row)?);
        }
        Ok(groups)
    }

    pub(super) fn url_group(&self, tenant: TenantId, name: &str) -> Outcome<Option<UrlGroup>> {
        let mut statement =
            self.connection.prepare_cached("SELECT data FROM url_group WHERE tenant = ?1 AND name = ?2")?;
        let mut rows = statement.query(params![tenant.0, name])?;
        rows.next()?.map(codec::url_group).transpose()
    }

    /// Reads the row of a message wherever it is.
    pub(super) fn find_message<T>(&self, seq: Seq, decode: impl Fn(&Row<'_>) -> Outcome<T>) -> Outcome<Option<T>> {
        for bucket in self.buckets.places_of(seq) {
            let sql = format!("SELECT {MESSAGE_COLUMNS} FROM message_{bucket} WHERE seq = ?1");
            let mut statement = self.connection.prepare_cached(&sql)?;
            let mut rows = statement.query([int(seq.0)])?;
            if let Some(row) = rows.next()? {
                return decode(row).map(Some);
            }
        }
        Ok(None)
    }
}

/// A condition on `seq`. Numbers only, so there is nothing to escape.
pub(super) fn only_ids(ids: &[MessageId]) -> String {
    if ids.is_empty() {
        return String::new();
    }
    let numbers: Vec<String> = ids.iter().map(|id| id.seq.0.to_string()).collect();
    format!("AND seq IN ({})", numbers.join(", "))
}

fn absent(what: &'static str, id: MessageId) -> Failure {
    Failure::corrupt(what, format!("{id} is not there"))
}
