//! Queues: their settings. Their messages are live rows, see `live`.

use super::codec::{self, int};
use super::error::Outcome;
use super::read::Snapshot;
use super::write::Writer;
use crate::names::NamesBuilder;
use crate::{NamePage, Names};
use posthaste_engine::queue::Queue;
use posthaste_wire::id::TenantId;
use rusqlite::{Row, params};

/// Columns that [`decode`] reads.
const COLUMNS: &str = "tenant, name, parallelism, paused, created_at, updated_at, deleted";

impl Snapshot<'_> {
    pub(super) fn queues(&self, tenant: Option<TenantId>) -> Outcome<Vec<Queue>> {
        let condition = if tenant.is_some() { "WHERE tenant = ?1" } else { "" };
        let sql = format!("SELECT {COLUMNS} FROM queue {condition} ORDER BY tenant, name");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = match tenant {
            Some(tenant) => statement.query([tenant.0])?,
            None => statement.query([])?,
        };
        let mut queues = Vec::new();
        while let Some(row) = rows.next()? {
            queues.push(decode(row)?);
        }
        Ok(queues)
    }

    pub(super) fn list_queues(&self, tenant: TenantId, page: &NamePage) -> Outcome<Names<Queue>> {
        let (compares, start) = page.start();
        let condition = format!("tenant = ?1 AND name {compares} ?2 AND NOT deleted");
        let sql = format!("SELECT {COLUMNS} FROM queue WHERE {condition} ORDER BY name");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![tenant.0, start])?;
        let mut builder = NamesBuilder::new(page);
        while let Some(row) = rows.next()? {
            let queue = decode(row)?;
            if builder.admits(queue.name.len()).is_break() {
                break;
            }
            builder.push(&queue.name.clone(), queue);
        }
        Ok(builder.finish())
    }

    pub(super) fn queue(&self, tenant: TenantId, name: &str) -> Outcome<Option<Queue>> {
        let sql = format!("SELECT {COLUMNS} FROM queue WHERE tenant = ?1 AND name = ?2");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![tenant.0, name])?;
        rows.next()?.map(decode).transpose()
    }
}

impl Writer {
    pub(super) fn put_queue(&self, queue: &Queue) -> Outcome<()> {
        let sql = format!("INSERT OR REPLACE INTO queue({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)");
        self.connection.prepare_cached(&sql)?.execute(params![
            queue.tenant.0,
            queue.name,
            queue.parallelism,
            queue.paused,
            int(queue.created_at.0),
            int(queue.updated_at.0),
            queue.deleted,
        ])?;
        Ok(())
    }

    pub(super) fn drop_queue(&self, tenant: TenantId, name: &str) -> Outcome<()> {
        const SQL: &str = "DELETE FROM queue WHERE tenant = ?1 AND name = ?2";
        self.connection.prepare_cached(SQL)?.execute(params![tenant.0, name])?;
        Ok(())
    }
}

pub(super) fn decode(row: &Row<'_>) -> Outcome<Queue> {
    Ok(Queue {
        tenant: TenantId(row.get(0)?),
        name: row.get(1)?,
        parallelism: row.get(2)?,
        paused: row.get(3)?,
        created_at: codec::time(row, 4)?,
        updated_at: codec::time(row, 5)?,
        deleted: row.get(6)?,
    })
}
