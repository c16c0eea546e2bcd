//! What every store must do, and what only the embedded one promises.
//!
//! `conformance` is the specification of `Store`, one claim per test, run on every backend;
//! `differential` compares backends over random histories; `sqlite_file` and `journal_file` are about the files,
//! `upgrade` about files of earlier formats.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod conformance;
mod differential;
mod journal_file;
mod sqlite_file;
mod support;
mod upgrade;
