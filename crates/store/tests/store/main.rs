//! Requirements for all stores, and the additional promises of the embedded one.
//!
//! `conformance` specifies `Store`, one claim per test, and runs on every backend. `differential` compares backends
//! over random histories. `sqlite_file`, `journal_file` and `journal_runs` test the files, and `upgrade` tests files of
//! earlier formats.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod conformance;
mod differential;
mod journal_file;
mod journal_runs;
mod run_support;
mod sqlite_file;
mod support;
mod upgrade;
