//! The parts of one run: the run itself, its entries and its notes. Bodies are the last column of their rows, so that
//! queries without bodies do not read them.

use super::codec::{self, bits, int, to_json};
use super::error::{Failure, Outcome};
use super::read::Snapshot;
use super::usage::{ENTRY_BYTES, NOTE_BYTES, row_bytes};
use super::write::Writer;
use crate::run::{Body, Parts, StoredNote, page_bytes};
use crate::{FailedRun, ListedWait, PageRequest, Part};
use bytes::Bytes;
use posthaste_engine::limits::RUN_SHOWN_BYTES_MAX;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{Note, NoteKey, NoteKind};
use posthaste_engine::workflow::run::{Invoke, Run, Wait};
use posthaste_engine::workflow::{Record, Workflow};
use posthaste_wire::id::{DlqId, Seq, TenantId};
use rusqlite::{OptionalExtension, Row, ToSql, params};
use std::sync::Arc;

/// Which parts of a run to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All parts.
    All,
    /// The run and its entries.
    Entries,
    /// The run and the entries that are steps of this kind.
    Steps(&'static str),
}

impl Snapshot<'_> {
    pub(super) fn workflow(&self, tenant: TenantId, no: Seq) -> Outcome<Option<Workflow>> {
        self.parts_for(tenant, no, Scope::All)?.workflow().map_err(broken)
    }

    pub(super) fn record(&self, tenant: TenantId, no: Seq) -> Outcome<Option<Record>> {
        self.parts_for(tenant, no, Scope::All)?.record().map_err(broken)
    }

    pub(super) fn run_entries(&self, tenant: TenantId, no: Seq) -> Outcome<Option<Vec<(Entry, Bytes)>>> {
        self.parts_for(tenant, no, Scope::Entries)?.list().map_err(broken)
    }

    pub(super) fn run_steps(&self, tenant: TenantId, no: Seq, kind: &str) -> Outcome<Vec<(Entry, Bytes)>> {
        match self.run(no)?.filter(|run| run.tenant == tenant) {
            Some(_) => self.steps(no, kind),
            None => Ok(Vec::new()),
        }
    }

    fn parts_for<B: Body>(&self, tenant: TenantId, no: Seq, scope: Scope) -> Outcome<Parts<B>> {
        match self.run(no)?.filter(|run| run.tenant == tenant) {
            Some(run) => self.parts_of(Some(run), no, scope),
            None => Ok(Parts::default()),
        }
    }

    /// The stored parts of a run, possibly without the run itself.
    pub(super) fn parts<B: Body>(&self, no: Seq, scope: Scope) -> Outcome<Parts<B>> {
        self.parts_of(self.run(no)?, no, scope)
    }

    fn parts_of<B: Body>(&self, run: Option<Run>, no: Seq, scope: Scope) -> Outcome<Parts<B>> {
        let notes = if scope == Scope::All { self.notes(no, "")? } else { Vec::new() };
        let entries = match scope {
            Scope::Steps(kind) => self.steps(no, kind)?,
            Scope::All | Scope::Entries => self.entries(no)?,
        };
        Ok(Parts { run, entries, notes })
    }

    /// A run of a list as logs show it, with its bytes.
    pub(super) fn shown(&self, run: Run, page: &PageRequest) -> Outcome<Option<(usize, Record)>> {
        let no = run.no;
        let heads: Parts<()> = self.parts_of(Some(run.clone()), no, Scope::All)?;
        let answers: Vec<Note> = heads.notes.iter().filter_map(StoredNote::answer).collect();
        let result_bytes = heads.result_bytes();
        let Some(workflow) = heads.workflow().map_err(broken)? else { return Ok(None) };
        let is_shown = page.part == Part::Whole && workflow.bytes() + result_bytes <= RUN_SHOWN_BYTES_MAX as u64;
        let record = match is_shown {
            true => self.parts_of(Some(run), no, Scope::All)?.record().map_err(broken)?,
            false => Some(Record::of_heads(workflow, &answers).map_err(|error| broken(error.into()))?),
        };
        Ok(record.map(|record| (page_bytes(&record), record)))
    }

    /// A failed run as the DLQ shows it, with its bytes. Reads only two of its entries.
    pub(super) fn shown_failed(&self, run: Run) -> Outcome<Option<(usize, FailedRun)>> {
        let failed = run.failure.as_ref().map_or(0, |failure| failure.entry);
        let Some(first) = self.entry(run.no, 0)? else { return Ok(None) };
        let Some((failed, ())) = self.entry(run.no, failed)? else { return Ok(None) };
        let (answer, told) = (NoteKind::Answer as u8, NoteKind::Told as u8);
        let notes = self.notes(run.no, &format!("AND kind IN ({answer}, {told})"))?;
        let notes: Vec<Note> =
            notes.into_iter().map(|StoredNote { key, data, body, .. }| Note { key, data, body }).collect();
        let failed = FailedRun::restored(run, first, failed, &notes).map_err(broken)?;
        Ok(Some((failed.bytes(), failed)))
    }

    pub(super) fn failed_run(&self, tenant: TenantId, dlq_id: DlqId) -> Outcome<Option<FailedRun>> {
        let Some(no) = self.find_failed_run(tenant, dlq_id)? else { return Ok(None) };
        let Some(run) = self.run(no)? else { return Ok(None) };
        Ok(self.shown_failed(run)?.map(|(_, failed)| failed))
    }

    /// A run without its entries and notes.
    fn run(&self, no: Seq) -> Outcome<Option<Run>> {
        let mut statement = self.connection.prepare_cached("SELECT data FROM run WHERE no = ?1")?;
        let mut rows = statement.query([int(no.0)])?;
        rows.next()?.map(|row| codec::json("run", row, 0)).transpose()
    }

    /// The entries of a run, in their order.
    fn entries<B: Body>(&self, no: Seq) -> Outcome<Vec<(Entry, B)>> {
        let sql = format!("SELECT {ENTRY_COLUMNS}, {} FROM run_entry WHERE run = ?1 ORDER BY idx", B::COLUMN);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([int(no.0)])?;
        let mut entries = Vec::new();
        while let Some(row) = rows.next()? {
            entries.push(entry(row)?);
        }
        Ok(entries)
    }

    /// The entries that are steps of this kind. Bodies of other entries are not read.
    fn steps<B: Body>(&self, no: Seq, kind: &str) -> Outcome<Vec<(Entry, B)>> {
        let sql = format!(
            "SELECT {ENTRY_COLUMNS}, {} FROM run_entry
             WHERE run = ?1 AND json_extract(gist, '$.info.kind') = ?2 ORDER BY idx",
            B::COLUMN
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![int(no.0), kind])?;
        let mut steps = Vec::new();
        while let Some(row) = rows.next()? {
            steps.push(entry(row)?);
        }
        Ok(steps)
    }

    fn entry<B: Body>(&self, no: Seq, index: u32) -> Outcome<Option<(Entry, B)>> {
        let sql = format!("SELECT {ENTRY_COLUMNS}, {} FROM run_entry WHERE run = ?1 AND idx = ?2", B::COLUMN);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![int(no.0), index])?;
        rows.next()?.map(entry).transpose()
    }

    /// The notes of a run that match the condition, in the order of their keys.
    fn notes<B: Body>(&self, no: Seq, condition: &str) -> Outcome<Vec<StoredNote<B>>> {
        let sql =
            format!("SELECT {NOTE_COLUMNS}, {} FROM run_note WHERE run = ?1 {condition} ORDER BY kind, n", B::COLUMN);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([int(no.0)])?;
        let mut notes = Vec::new();
        while let Some(row) = rows.next()? {
            notes.push(note(row)?);
        }
        Ok(notes)
    }

    /// The waits and invokes of a run.
    pub(super) fn asked_for(&self, no: Seq) -> Outcome<(Vec<Wait>, Vec<Invoke>)> {
        let (wait, invoke) = (NoteKind::Wait as u8, NoteKind::Invoke as u8);
        let (mut waits, mut invokes) = (Vec::new(), Vec::new());
        for StoredNote::<()> { key, data, .. } in self.notes(no, &format!("AND kind IN ({wait}, {invoke})"))? {
            match key.kind {
                NoteKind::Wait => waits.push(codec::from_json("note", &data)?),
                _ => invokes.push(codec::from_json("note", &data)?),
            }
        }
        Ok((waits, invokes))
    }

    pub(super) fn note_body(&self, run: Seq, key: NoteKey) -> Outcome<Bytes> {
        const SQL: &str = "SELECT body FROM run_note WHERE run = ?1 AND kind = ?2 AND n = ?3";
        let mut statement = self.connection.prepare_cached(SQL)?;
        let mut rows = statement.query(params![int(run.0), key.kind as u8, int(key.n)])?;
        match rows.next()? {
            Some(row) => Ok(Bytes::from(row.get::<_, Vec<u8>>(0)?)),
            None => Err(Failure::corrupt("note", format!("{key:?} of run {} is missing", run.0))),
        }
    }

    pub(super) fn waits(&self, tenant: TenantId, event: &str, after: Seq, max: usize) -> Outcome<Vec<ListedWait>> {
        let mut statement = self.connection.prepare_cached(WAITS)?;
        let mut rows = statement.query(params![tenant.0, event, int(max as u64), int(after.0)])?;
        let mut waits = Vec::new();
        while let Some(row) = rows.next()? {
            let redact: Option<String> = row.get(1)?;
            let redact = redact.map(|text| codec::from_json("run", &text)).transpose()?.unwrap_or_default();
            waits.push(ListedWait { url: row.get(0)?, redact, wait: codec::json("note", row, 2)? });
        }
        ListedWait::fit(&mut waits);
        Ok(waits)
    }
}

impl Writer {
    pub(super) fn put_entry(&self, run: Seq, entry: &Entry, body: &[u8]) -> Outcome<()> {
        const SQL: &str = "INSERT OR REPLACE INTO run_entry(run, idx, seq, tag, delivery, gist, terms, body)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let terms = to_json("entry", &entry.terms)?;
        let replaced = format!("SELECT {ENTRY_BYTES} FROM run_entry WHERE run = ?1 AND idx = ?2");
        self.count_part(run, &replaced, &[&int(run.0), &entry.index], row_bytes(&[terms.len(), body.len()]))?;
        self.connection.prepare_cached(SQL)?.execute(params![
            int(run.0),
            entry.index,
            int(entry.id.seq.0),
            bits(entry.id.tag),
            to_json("entry", &entry.delivery)?,
            to_json("entry", &entry.gist)?,
            terms,
            body,
        ])?;
        Ok(())
    }

    /// Updates the stored bytes for an entry or a note that is about to be written, or dropped (zero bytes). `before`
    /// selects the previous bytes.
    fn count_part(&self, run: Seq, before: &str, key: &[&dyn ToSql], bytes: i64) -> Outcome<()> {
        let mut tenant = self.connection.prepare_cached("SELECT tenant FROM run WHERE no = ?1")?;
        let tenant = tenant.query_row([int(run.0)], |row| row.get(0).map(TenantId)).optional()?;
        let Some(tenant) = tenant else { return Ok(()) };
        self.count_replaced(tenant, before, key, bytes)
    }

    fn count_note(&self, run: Seq, key: NoteKey, bytes: i64) -> Outcome<()> {
        let before = format!("SELECT {NOTE_BYTES} FROM run_note WHERE run = ?1 AND kind = ?2 AND n = ?3");
        self.count_part(run, &before, &[&int(run.0), &(key.kind as u8), &int(key.n)], bytes)
    }

    /// Writes a note only if its run exists. Nothing would ever drop a note without a run.
    pub(super) fn put_note(&self, run: Seq, note: &Note) -> Outcome<()> {
        const SQL: &str = "INSERT OR REPLACE INTO run_note(run, kind, n, data, body)
            SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM run WHERE no = ?1)";
        let NoteKey { kind, n } = note.key;
        self.count_note(run, note.key, row_bytes(&[note.data.len(), note.body.len()]))?;
        self.connection.prepare_cached(SQL)?.execute(params![
            int(run.0),
            kind as u8,
            int(n),
            note.data,
            &note.body[..]
        ])?;
        Ok(())
    }

    /// Does nothing if the note does not exist.
    pub(super) fn drop_note(&self, run: Seq, key: NoteKey) -> Outcome<()> {
        const SQL: &str = "DELETE FROM run_note WHERE run = ?1 AND kind = ?2 AND n = ?3";
        self.count_note(run, key, 0)?;
        self.connection.prepare_cached(SQL)?.execute(params![int(run.0), key.kind as u8, int(key.n)])?;
        Ok(())
    }
}

/// Columns that [`entry`] reads, except the body.
pub(super) const ENTRY_COLUMNS: &str = "idx, seq, tag, delivery, gist, terms";
/// Columns that [`note`] reads, except the body.
const NOTE_COLUMNS: &str = "kind, n, data, length(body)";

/// The waits for an event, with the URLs of their runs.
pub(super) const WAITS: &str =
    "SELECT json_extract(run.data, '$.url'), json_extract(run.data, '$.config.redact'), note.data FROM waiter
    JOIN run ON run.no = waiter.run AND run.tenant = waiter.tenant
    JOIN run_note AS note ON note.run = waiter.run AND note.kind = 1 AND note.n = waiter.seq
    WHERE waiter.tenant = ?1 AND waiter.event = ?2 AND waiter.seq > ?4 ORDER BY waiter.seq LIMIT ?3";
const _: () = assert!(NoteKind::Wait as u8 == 1);

/// A row of [`ENTRY_COLUMNS`] and its body.
pub(super) fn entry<B: Body>(row: &Row<'_>) -> Outcome<(Entry, B)> {
    let (delivery, gist) = (codec::json("entry", row, 3)?, Arc::new(codec::json("entry", row, 4)?));
    let terms = Arc::new(codec::json("entry", row, 5)?);
    let entry = Entry { index: row.get(0)?, id: codec::id(row, 1)?, gist, terms, delivery };
    Ok((entry, B::read(row.get(6)?)))
}

/// A row of [`NOTE_COLUMNS`] and its body.
pub(super) fn note<B: Body>(row: &Row<'_>) -> Outcome<StoredNote<B>> {
    let kind = NoteKind::of_number(row.get(0)?).ok_or_else(|| Failure::corrupt("note", "its kind is unknown"))?;
    let n = row.get::<_, i64>(1)?.cast_unsigned();
    let data = row.get_ref(2)?.as_str().map_err(|error| Failure::corrupt("note", error))?.to_owned();
    let size = row.get::<_, i64>(3)?.cast_unsigned();
    Ok(StoredNote { key: NoteKey { kind, n }, data, size, body: B::read(row.get(4)?) })
}

fn broken(error: crate::BoxError) -> Failure {
    Failure::corrupt("run", error)
}
