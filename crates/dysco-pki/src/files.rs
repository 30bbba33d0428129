//! Files of keys and certificates. Only the list of revoked certificates is ever replaced. Root
//! alone may read keys.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::PkiError;

/// Mode of a file that anyone may read.
pub(crate) const PUBLIC: u32 = 0o644;
/// Mode of a file that only the owner may read.
pub(crate) const SECRET: u32 = 0o600;

/// Files of which all are written or none.
#[derive(Default)]
pub(crate) struct Batch {
    written: Vec<PathBuf>,
}

impl Batch {
    /// Writes a file that must not exist yet.
    pub(crate) fn write(&mut self, path: &Path, mode: u32, text: &str) -> Result<(), PkiError> {
        let fail = |source: std::io::Error| match source.kind() {
            ErrorKind::AlreadyExists => PkiError::Exists { path: path.into() },
            _ => PkiError::Write {
                path: path.into(),
                source,
            },
        };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let mut file = options.open(path).map_err(fail)?;
        self.written.push(path.into());
        file.write_all(text.as_bytes()).map_err(fail)?;
        file.sync_all().map_err(fail)
    }

    /// Keeps the files, once all are written.
    pub(crate) fn keep(mut self) {
        self.written.clear();
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for path in &self.written {
            // Half a batch is worse than a file that could not be removed.
            let _ = fs::remove_file(path);
        }
    }
}

/// Writes a file completely in place of an existing one, if any.
pub(crate) fn replace(path: &Path, mode: u32, text: &str) -> Result<(), PkiError> {
    let fail = |source| PkiError::Write {
        path: path.into(),
        source,
    };
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // Left by a process that was killed.
    let _ = fs::remove_file(&new);
    let mut batch = Batch::default();
    batch.write(&new, mode, text)?;
    fs::rename(&new, path).map_err(fail)?;
    batch.keep();
    Ok(())
}

/// Makes a directory that only its owner may enter; an existing one stays as it is.
pub(crate) fn make_dir(dir: &Path) -> Result<(), PkiError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.map_err(|source| PkiError::Write {
        path: dir.into(),
        source,
    })
}

/// Reads a certificate's file.
pub(crate) fn read(
    what: &'static str,
    path: &Path,
    hint: &'static str,
) -> Result<Vec<u8>, PkiError> {
    fs::read(path).map_err(|source| PkiError::Read {
        what,
        path: path.into(),
        source,
        hint,
    })
}

/// Reads a key's file. Returns an error if anybody but its owner may read it.
pub(crate) fn read_key(
    what: &'static str,
    path: &Path,
    hint: &'static str,
) -> Result<Vec<u8>, PkiError> {
    let fail = |source| PkiError::Read {
        what,
        path: path.into(),
        source,
        hint,
    };
    let mut file = File::open(path).map_err(fail)?;
    let mode = file.metadata().map_err(fail)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(PkiError::Exposed {
            path: path.into(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}
