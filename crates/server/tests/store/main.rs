//! What every store must do, and what only the embedded one promises.
//!
//! `conformance` is the specification of `Store`, one claim per test, run on every backend;
//! `differential` compares backends over random histories; `sqlite_file` is about the file itself.

mod conformance;
mod differential;
mod sqlite_file;
mod support;
