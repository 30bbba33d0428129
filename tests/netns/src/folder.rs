//! The folder of a lab's logs and captures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{Host, clean, counters};

/// A folder that the end of the lab removes, unless it is to be kept.
pub struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) keep: bool,
}

impl Folder {
    /// Creates a folder. It is kept until [`Folder::finish`] decides otherwise.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(name: &str) -> Result<Folder> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("dysco-{name}-"))
            .tempdir();
        let path = dir.context("failed to make the lab's folder")?.keep();
        clean::remember(&path)?;
        Ok(Folder { path, keep: true })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the folder be removed with its lab.
    ///
    /// # Errors
    /// If something still runs on one of these hosts.
    pub fn finish<'a>(&mut self, hosts: impl IntoIterator<Item = &'a Host>) -> Result<()> {
        let left: Vec<_> = hosts.into_iter().flat_map(counters::processes).collect();
        self.keep = !left.is_empty();
        ensure!(
            left.is_empty(),
            "left running on a host: {}",
            left.join(", ")
        );
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("logs and captures are kept in {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
        clean::forget(&self.path);
    }
}
