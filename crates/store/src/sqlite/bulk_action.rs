//! Bulk actions and their progress. Old ones are dropped with the rest of the history; see `retention`.

use super::codec::{self, int, to_json};
use super::error::{Failure, Outcome};
use super::read::Snapshot;
use super::usage::{DATA_BYTES, row_bytes};
use super::write::Writer;
use crate::UnfinishedAction;
use posthaste_engine::bulk_action::BulkAction;
use posthaste_wire::id::{Seq, TenantId};
use rusqlite::{Params, params};

impl Snapshot<'_> {
    pub(super) fn bulk_actions(&self, tenant: TenantId, before: Option<Seq>, max: usize) -> Outcome<Vec<BulkAction>> {
        let rest = "WHERE tenant = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3";
        let end = before.map_or(i64::MAX, |before| int(before.0));
        self.collect_bulk_actions(rest, params![tenant.0, end, int(max as u64)])
    }

    pub(super) fn bulk_action(&self, tenant: TenantId, id: Seq) -> Outcome<Option<BulkAction>> {
        let found = self.collect_bulk_actions("WHERE tenant = ?1 AND id = ?2", params![tenant.0, int(id.0)])?;
        Ok(found.into_iter().next())
    }

    pub(super) fn unfinished_bulk_actions(&self) -> Outcome<Vec<UnfinishedAction>> {
        const SQL: &str = "SELECT tenant, id, data ->> 'rate' FROM bulk_action WHERE completed = 0 ORDER BY id";
        let mut statement = self.connection.prepare_cached(SQL)?;
        let mut rows = statement.query([])?;
        let mut actions = Vec::new();
        while let Some(row) = rows.next()? {
            let (tenant, id) = (TenantId(row.get(0)?), Seq(row.get::<_, i64>(1)?.cast_unsigned()));
            actions.push(UnfinishedAction { tenant, id, rate: row.get(2)? });
        }
        Ok(actions)
    }

    fn collect_bulk_actions(&self, rest: &str, values: impl Params) -> Outcome<Vec<BulkAction>> {
        let mut statement = self.connection.prepare_cached(&format!("SELECT data FROM bulk_action {rest}"))?;
        let mut rows = statement.query(values)?;
        let mut actions = Vec::new();
        while let Some(row) = rows.next()? {
            actions.push(codec::json("bulk action", row, 0)?);
        }
        Ok(actions)
    }
}

impl Writer {
    pub(super) fn put_bulk_action(&self, action: &BulkAction) -> Outcome<()> {
        const SQL: &str = "INSERT INTO bulk_action(id, tenant, completed, data) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT(id) DO UPDATE SET completed = excluded.completed, data = excluded.data
            WHERE tenant = excluded.tenant";
        let (completed, data) = (action.completed_at.is_some(), to_json("bulk action", action)?);
        let replaced = format!("SELECT {DATA_BYTES} FROM bulk_action WHERE id = ?1");
        self.count_replaced(action.tenant, &replaced, [int(action.id.0)], row_bytes(&[data.len()]))?;
        let mut statement = self.connection.prepare_cached(SQL)?;
        match statement.execute(params![int(action.id.0), action.tenant.0, completed, data])? {
            1 => Ok(()),
            _ => Err(Failure::corrupt("bulk action", "its position is taken")),
        }
    }
}
