//! Bodies that several messages share. Each is stored once, and dropped with the last message or dead letter that
//! refers to it.
//!
//! The `body` column of such a message is the id of the shared body: an integer instead of a blob.

use super::codec::int;
use super::error::{Failure, Outcome};
use super::read::Snapshot;
use super::usage::{SHARED_BYTES, row_bytes};
use super::write::Writer;
use bytes::Bytes;
use posthaste_engine::message::{Message, is_same_body};
use posthaste_wire::id::TenantId;
use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, Row, params};
use std::collections::BTreeMap;

/// Selects the id of a shared body, or NULL if the row contains the body.
pub(super) const SHARED_ID: &str = "CASE typeof(body) WHEN 'integer' THEN body END";

/// The last shared body that was read. Messages with the same body are often read one after the other.
pub(super) type LastShared = Option<(i64, Bytes)>;

impl Snapshot<'_> {
    /// The body of a column, wherever it is stored.
    pub(super) fn body(&self, row: &Row<'_>, column: usize, last: &mut LastShared) -> Outcome<Bytes> {
        let id = match row.get_ref(column)? {
            ValueRef::Integer(id) => id,
            other => {
                let bytes = other.as_bytes().map_err(|error| Failure::corrupt("message", error))?;
                return Ok(Bytes::copy_from_slice(bytes));
            }
        };
        if let Some((_, body)) = last.as_ref().filter(|(read, _)| *read == id) {
            return Ok(body.clone());
        }
        let mut statement = self.connection.prepare_cached("SELECT body FROM shared_body WHERE id = ?1")?;
        let body: Option<Vec<u8>> = statement.query_row([id], |row| row.get(0)).optional()?;
        let body = Bytes::from(body.ok_or_else(|| absent(id))?);
        *last = Some((id, body.clone()));
        Ok(body)
    }
}

impl Writer {
    /// Stores the bodies that neighbours among these messages share. Returns the id of the shared body for each message
    /// that has one.
    pub(super) fn share_bodies(&self, messages: &[&Message]) -> Outcome<Vec<Option<i64>>> {
        const SQL: &str = "INSERT OR ROLLBACK INTO shared_body(id, tenant, refs, body) VALUES (?1, ?2, ?3, ?4)";
        let mut shared = Vec::with_capacity(messages.len());
        for group in messages.chunk_by(|a, b| is_same_body(&a.body, &b.body)) {
            let first = group[0];
            if group.len() == 1 {
                shared.push(None);
                continue;
            }
            let id = int(first.id.seq.0);
            let values = params![id, first.tenant.0, int(group.len() as u64), &first.body[..]];
            self.connection.prepare_cached(SQL)?.execute(values)?;
            self.count_bytes(first.tenant, row_bytes(&[first.body.len()]));
            shared.extend(std::iter::repeat_n(Some(id), group.len()));
        }
        Ok(shared)
    }

    /// Adds a reference to a shared body.
    pub(super) fn keep_shared_body(&self, id: i64) -> Outcome<()> {
        const SQL: &str = "UPDATE shared_body SET refs = refs + 1 WHERE id = ?1";
        match self.connection.prepare_cached(SQL)?.execute([id])? {
            1 => Ok(()),
            _ => Err(absent(id)),
        }
    }

    /// Drops this many references to each body, and the body together with its last reference.
    pub(super) fn release_shared_bodies(&self, released: &BTreeMap<i64, i64>) -> Outcome<()> {
        const RELEASE: &str = "UPDATE shared_body SET refs = refs - ?2 WHERE id = ?1 RETURNING refs";
        for (id, count) in released {
            let left: Option<i64> =
                self.connection.prepare_cached(RELEASE)?.query_row([id, count], |row| row.get(0)).optional()?;
            if left.ok_or_else(|| absent(*id))? <= 0 {
                let sql = format!("DELETE FROM shared_body WHERE id = ?1 RETURNING tenant, {SHARED_BYTES}");
                let dropped = |row: &Row<'_>| Ok((TenantId(row.get(0)?), row.get::<_, i64>(1)?));
                let (tenant, bytes) = self.connection.prepare_cached(&sql)?.query_row([id], dropped)?;
                self.count_bytes(tenant, -bytes);
            }
        }
        Ok(())
    }
}

fn absent(id: i64) -> Failure {
    Failure::corrupt("shared body", format!("{id} is missing"))
}
