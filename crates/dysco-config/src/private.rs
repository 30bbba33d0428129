//! Files that only their owner may read.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o600;

/// Creates a directory that only its owner may enter, and its parents for all users. An existing
/// directory stays unchanged.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Writes a file and replaces its contents.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    let mut file = options.open(path)?;
    // A file of an earlier release may be readable by all.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(bytes)
}
