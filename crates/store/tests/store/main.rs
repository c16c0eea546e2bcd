//! What every store must do, and what only the embedded one promises.
//!
//! `conformance` is the specification of `Store`, one claim per test, run on every backend;
//! `differential` compares backends over random histories; `sqlite_file`, `journal_file` and `journal_runs` are about
//! the files, `upgrade` about files of earlier formats.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod conformance;
mod differential;
mod journal_file;
mod journal_runs;
mod run_support;
mod sqlite_file;
mod support;
mod upgrade;
