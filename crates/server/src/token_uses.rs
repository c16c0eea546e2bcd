//! When each token was last used, kept over restarts in a small file of the data directory.
//!
//! The file is written at most once in [`TOKEN_USES_EVERY`] and when the server stops, so a crash loses up to that much.
//! Nothing depends on it: a file that cannot be read or written costs a warning.

use crate::app::App;
use serde_json::Error as JsonError;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the last uses of tokens are written; a crash loses up to this much of them.
const TOKEN_USES_EVERY: Duration = Duration::from_secs(60);
/// Largest file that is read; a larger one is not ours.
const TOKEN_USES_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Unix milliseconds of the last use, by the hash of the token in hexadecimal.
pub(crate) type Uses = BTreeMap<String, u64>;

/// The uses that an earlier process has written.
pub(crate) fn read(data_dir: &Path) -> Uses {
    let path = path_in(data_dir);
    match parsed(&path) {
        Ok(uses) => uses,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Uses::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), error = %error, "the last uses of tokens cannot be read");
            Uses::new()
        }
    }
}

/// Writes uses every now and then until `stop`.
pub(crate) async fn run(app: Arc<App>, stop: CancellationToken) {
    let mut written = app.tokens.uses();
    loop {
        tokio::select! {
            () = tokio::time::sleep(TOKEN_USES_EVERY) => {}
            () = stop.cancelled() => return,
        }
        let uses = app.tokens.uses();
        if uses != written {
            save(&app, uses.clone()).await;
            written = uses;
        }
    }
}

/// Writes the uses so far, when the server stops.
pub(crate) async fn save_last(app: &App) {
    save(app, app.tokens.uses()).await;
}

async fn save(app: &App, uses: Uses) {
    let dir = app.config.data_dir.clone();
    // A server in RAM has no directory.
    if uses.is_empty() || !dir.is_dir() {
        return;
    }
    let written = tokio::task::spawn_blocking(move || write(&dir, &uses)).await;
    if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
        tracing::warn!(error = %error, "the last uses of tokens cannot be written");
    }
}

fn path_in(data_dir: &Path) -> PathBuf {
    data_dir.join("token-uses.json")
}

fn parsed(path: &Path) -> io::Result<Uses> {
    if fs::metadata(path)?.len() > TOKEN_USES_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {TOKEN_USES_BYTES_MAX} bytes")));
    }
    serde_json::from_slice(&fs::read(path)?).map_err(|error: JsonError| io::Error::other(error))
}

/// All or nothing: a crash leaves the file before.
fn write(data_dir: &Path, uses: &Uses) -> io::Result<()> {
    let path = path_in(data_dir);
    let fresh = path.with_extension("json.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(uses)?)?;
    fs::rename(&fresh, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_damaged_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), Uses::new());
        let uses = Uses::from([("ab".to_owned(), 7), ("cd".to_owned(), u64::MAX)]);
        write(dir.path(), &uses).unwrap();
        assert_eq!(read(dir.path()), uses);
        fs::write(path_in(dir.path()), b"{\"ab\": 7").unwrap();
        assert_eq!(read(dir.path()), Uses::new());
    }
}
