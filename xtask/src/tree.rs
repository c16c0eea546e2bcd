//! The files of the repository, read once.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Directories and files that tools create. They are skipped.
const SKIPPED: [&str; 12] = [
    ".git",
    "target",
    "node_modules",
    ".next",
    ".venv",
    "__pycache__",
    "posthaste-data",
    ".tools",
    ".pytest_cache",
    "results",
    "corpus",
    "artifacts",
];

/// A text file: its path from the root, with slashes, and its text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Its lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<File>,
}

/// The root of the repository that contains the sources of this program.
pub(crate) fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the repository")?;
    Ok(root.to_owned())
}

impl Tree {
    /// Reads the repository that contains the sources of this program.
    pub(crate) fn read() -> Result<Tree> {
        let root = root()?;
        let mut tree = Tree { root: root.clone(), files: Vec::new() };
        tree.read_dir(&root)?;
        tree.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(tree)
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| File { path: (*path).to_owned(), text: (*text).to_owned() });
        Tree { root: PathBuf::new(), files: files.collect() }
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }

    fn read_dir(&mut self, dir: &Path) -> Result<()> {
        for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                self.read_dir(&path)?;
            } else if kind.is_file() {
                // Files that are not text have no rules.
                let Ok(text) = std::fs::read_to_string(&path) else { continue };
                let path = path.strip_prefix(&self.root)?.to_string_lossy().replace('\\', "/");
                self.files.push(File { path, text });
            }
        }
        Ok(())
    }
}
