//! Flow-control keys: their limits. Their messages are live rows, see `live`.

use super::codec::{self, to_json};
use super::error::Outcome;
use super::read::Snapshot;
use super::write::Writer;
use posthaste_engine::flow::Flow;
use posthaste_wire::id::TenantId;
use rusqlite::params;

impl Snapshot<'_> {
    pub(super) fn flows(&self) -> Outcome<Vec<Flow>> {
        let mut statement = self.connection.prepare("SELECT data FROM flow ORDER BY tenant, key")?;
        let mut rows = statement.query([])?;
        let mut flows = Vec::new();
        while let Some(row) = rows.next()? {
            flows.push(codec::json("flow-control key", row, 0)?);
        }
        Ok(flows)
    }
}

impl Writer {
    pub(super) fn put_flow(&self, flow: &Flow) -> Outcome<()> {
        const SQL: &str = "INSERT OR REPLACE INTO flow(tenant, key, data) VALUES (?1, ?2, ?3)";
        let data = to_json("flow-control key", flow)?;
        self.connection.prepare_cached(SQL)?.execute(params![flow.tenant.0, flow.key, data])?;
        Ok(())
    }

    pub(super) fn drop_flow(&self, tenant: TenantId, key: &str) -> Outcome<()> {
        const SQL: &str = "DELETE FROM flow WHERE tenant = ?1 AND key = ?2";
        self.connection.prepare_cached(SQL)?.execute(params![tenant.0, key])?;
        Ok(())
    }
}
