//! Errors of the store file, and how they appear to the caller.

use crate::{BoxError, StoreError};
use rusqlite::ErrorCode;
use std::path::PathBuf;

/// Why a store file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A later release wrote the file.
    #[error(
        "the store has format {found}, but this release knows only up to {supported}: upgrade the posthaste binary"
    )]
    Newer {
        /// The format of the file.
        found: i64,
        /// The newest format that this release knows.
        supported: i64,
    },
    /// The file belongs to another program.
    #[error("{} is not a store of Posthaste", .path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// The file system returned an error.
    #[error("cannot create {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// SQLite returned an error.
    #[error("cannot open {}", .path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        #[source]
        source: BoxError,
    },
}

/// A failure inside this module. [`Failure::of_read`] and [`Failure::of_write`] convert it for the caller.
#[derive(Debug)]
pub(super) enum Failure {
    Sqlite(rusqlite::Error),
    Fenced,
    Corrupt { what: &'static str, source: BoxError },
}

/// The result of this module's functions.
pub(super) type Outcome<T> = Result<T, Failure>;

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sqlite(error)
    }
}

impl Failure {
    /// The file lacks a required row, or has one that must not exist.
    pub(super) fn corrupt(what: &'static str, source: impl Into<BoxError>) -> Self {
        Failure::Corrupt { what, source: source.into() }
    }

    /// A failed read changed nothing, so any failure that is not about the data may be temporary.
    pub(super) fn of_read(self) -> StoreError {
        match self {
            Failure::Fenced => StoreError::Fenced,
            Failure::Corrupt { what, source } => StoreError::Corrupt { what, source },
            Failure::Sqlite(error) if is_damage(&error) => {
                StoreError::Corrupt { what: "database", source: error.into() }
            }
            Failure::Sqlite(error) => StoreError::Unavailable(error.into()),
        }
    }

    /// The end of a transaction failed.
    pub(super) fn of_commit(self) -> StoreError {
        match self {
            Failure::Sqlite(error) => StoreError::Unknown(error.into()),
            other => other.of_write(),
        }
    }

    /// After a lock conflict or a constraint violation the file is unchanged. After any other failure its state is
    /// unknown.
    pub(super) fn of_write(self) -> StoreError {
        match self {
            Failure::Fenced => StoreError::Fenced,
            Failure::Corrupt { what, source } => StoreError::Corrupt { what, source },
            Failure::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Unavailable(error.into()),
                Some(ErrorCode::ConstraintViolation) => StoreError::Corrupt { what: "row", source: error.into() },
                _ => StoreError::Unknown(error.into()),
            },
        }
    }
}

/// Whether the data is wrong, rather than the environment.
fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        || matches!(
            error,
            rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..)
        )
}
