//! Schedules: the settings are in one table, the state of each schedule is in another.

use super::codec::{self, to_json};
use super::error::{Failure, Outcome};
use super::read::Snapshot;
use super::usage::{SCHEDULE_BYTES, row_bytes};
use super::write::Writer;
use crate::names::NamesBuilder;
use crate::{ListedSchedule, NamePage, Names, Part, weight};
use bytes::Bytes;
use posthaste_engine::schedule::{Schedule, ScheduleState};
use posthaste_wire::id::TenantId;
use rusqlite::{OptionalExtension, Row, params};

impl Snapshot<'_> {
    /// Reads only the length of a body that is not on the page.
    pub(super) fn schedules(&self, tenant: TenantId, page: &NamePage) -> Outcome<Names<ListedSchedule>> {
        const BODY: &str = "SELECT body FROM schedule WHERE tenant = ?1 AND id = ?2";
        let (compares, start) = page.start();
        let heads = format!(
            "SELECT tenant, id, plan, state, x'', length(body) FROM schedule JOIN schedule_state USING (tenant, id)
             WHERE tenant = ?1 AND id {compares} ?2 ORDER BY id"
        );
        let (mut heads, mut body) = (self.connection.prepare_cached(&heads)?, self.connection.prepare_cached(BODY)?);
        let mut rows = heads.query(params![tenant.0, start])?;
        let mut builder = NamesBuilder::new(page);
        while let Some(row) = rows.next()? {
            let (mut schedule, body_bytes) = (decode(row)?, row.get::<_, u32>(5)? as usize);
            if builder.admits(weight::of_schedule_head(&schedule)).is_break() {
                break;
            }
            if builder.takes_body(body_bytes) && body_bytes > 0 {
                schedule.body = body.query_row(params![tenant.0, schedule.id], |row| row.get::<_, Vec<u8>>(0))?.into();
            }
            builder.push(&schedule.id.clone(), ListedSchedule { schedule, body_bytes });
        }
        Ok(builder.finish())
    }

    pub(super) fn schedule(&self, tenant: TenantId, id: &str, part: Part) -> Outcome<Option<Schedule>> {
        let body = if part == Part::Whole { "body" } else { "x''" };
        let sql = format!(
            "SELECT tenant, id, plan, state, {body} FROM schedule JOIN schedule_state USING (tenant, id)
             WHERE tenant = ?1 AND id = ?2"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![tenant.0, id])?;
        rows.next()?.map(decode).transpose()
    }

    pub(super) fn schedule_states(&self) -> Outcome<Vec<(TenantId, String, ScheduleState)>> {
        const SQL: &str = "SELECT tenant, id, state FROM schedule_state ORDER BY tenant, id";
        let mut statement = self.connection.prepare(SQL)?;
        let mut rows = statement.query([])?;
        let mut states = Vec::new();
        while let Some(row) = rows.next()? {
            states.push((TenantId(row.get(0)?), row.get(1)?, codec::json("schedule", row, 2)?));
        }
        Ok(states)
    }
}

impl Writer {
    pub(super) fn put_schedule(&self, schedule: &Schedule) -> Outcome<()> {
        const PLAN: &str = "INSERT OR REPLACE INTO schedule(tenant, id, plan, body) VALUES (?1, ?2, ?3, ?4)";
        const STATE: &str = "INSERT OR REPLACE INTO schedule_state(tenant, id, state) VALUES (?1, ?2, ?3)";
        let (tenant, id) = (schedule.tenant.0, &schedule.id);
        let plan = to_json("schedule", &schedule.plan)?;
        let replaced = self.bytes_of_schedule(schedule.tenant, id)?;
        self.count_bytes(schedule.tenant, row_bytes(&[plan.len(), schedule.body.len()]) - replaced);
        // Its headers may have credentials.
        let values = params![tenant, id, plan, &schedule.body[..]];
        self.overwriting(|| Ok(self.connection.prepare_cached(PLAN)?.execute(values)?))?;
        let state = to_json("schedule", &schedule.state)?;
        self.connection.prepare_cached(STATE)?.execute(params![tenant, id, state])?;
        Ok(())
    }

    pub(super) fn set_schedule(&self, tenant: TenantId, id: &str, state: &ScheduleState) -> Outcome<()> {
        const SQL: &str = "UPDATE schedule_state SET state = ?3 WHERE tenant = ?1 AND id = ?2";
        let state = to_json("schedule", state)?;
        match self.connection.prepare_cached(SQL)?.execute(params![tenant.0, id, state])? {
            1 => Ok(()),
            _ => Err(absent(id)),
        }
    }

    /// `None` if the schedule does not exist.
    fn bytes_of_schedule(&self, tenant: TenantId, id: &str) -> Outcome<i64> {
        let sql = format!("SELECT {SCHEDULE_BYTES} FROM schedule WHERE tenant = ?1 AND id = ?2");
        let bytes = self.connection.prepare_cached(&sql)?.query_row(params![tenant.0, id], |row| row.get(0));
        Ok(bytes.optional()?.unwrap_or(0))
    }

    pub(super) fn drop_schedule(&self, tenant: TenantId, id: &str) -> Outcome<()> {
        self.count_bytes(tenant, -self.bytes_of_schedule(tenant, id)?);
        for table in ["schedule", "schedule_state"] {
            let sql = format!("DELETE FROM {table} WHERE tenant = ?1 AND id = ?2");
            if self.connection.prepare_cached(&sql)?.execute(params![tenant.0, id])? != 1 {
                return Err(absent(id));
            }
        }
        Ok(())
    }
}

pub(super) fn decode(row: &Row<'_>) -> Outcome<Schedule> {
    Ok(Schedule {
        tenant: TenantId(row.get(0)?),
        id: row.get(1)?,
        plan: codec::json("schedule", row, 2)?,
        state: codec::json("schedule", row, 3)?,
        body: Bytes::from(row.get::<_, Vec<u8>>(4)?),
    })
}

fn absent(id: &str) -> Failure {
    Failure::corrupt("schedule", format!("{id} is missing"))
}
