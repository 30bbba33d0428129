//! Runs cargo and finds programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the folder of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the folder in which cargo builds: this program was built there itself.
pub(crate) fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let folder = own.parent().and_then(Path::parent).map(Path::to_path_buf);
    folder.context("this program is in no folder of cargo's")
}

/// Returns a command for the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(cargo_path());
    command.current_dir(root());
    // These variables are meant for this program only; they would make cargo rebuild everything.
    let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(own) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns the path of cargo.
pub(crate) fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs a command with the same output as this program. Returns an error if the command fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let shown = words.join(" ");
    let status = command
        .status()
        .with_context(|| format!("failed to run {shown}"))?;
    ensure!(status.success(), "{shown}: {status}");
    Ok(())
}

/// Returns the path of a program, if it is installed.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let administrators = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(home.map(|h| h.join("bin")));
    folders
        .chain(administrators)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}
