//! What can go wrong with the file, and what the caller is told.

use crate::{BoxError, StoreError};
use rusqlite::ErrorCode;
use std::path::PathBuf;

/// Why a store file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A later release has written the file.
    #[error(
        "the store has format {found}, but this release knows only up to {supported}: upgrade the posthaste binary"
    )]
    Newer {
        /// The format of the file.
        found: i64,
        /// The newest format that this release knows.
        supported: i64,
    },
    /// Another program's file.
    #[error("{} is not a store of Posthaste", .path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot create {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("cannot open {}", .path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What it said.
        #[source]
        source: BoxError,
    },
}

/// A failure inside this module; [`Failure::of_read`] and [`Failure::of_write`] say what it means.
#[derive(Debug)]
pub(super) enum Failure {
    Sqlite(rusqlite::Error),
    Fenced,
    Corrupt { what: &'static str, source: BoxError },
}

/// What the functions of this module return.
pub(super) type Outcome<T> = Result<T, Failure>;

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sqlite(error)
    }
}

impl Failure {
    /// Something that must be there, or must not, is not so.
    pub(super) fn corrupt(what: &'static str, source: impl Into<BoxError>) -> Self {
        Failure::Corrupt { what, source: source.into() }
    }

    /// Nothing was changed, so every failure that is not about the data may pass.
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

    /// A lock or a broken rule leaves the file as it was; after anything else nobody can be sure.
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

/// The bytes are wrong, not the circumstances.
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
