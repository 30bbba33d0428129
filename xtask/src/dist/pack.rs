//! Packs a tree of files with the tools of the distributions.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::empty;
use crate::shell;

/// Revision of a package, which starts again with each version.
const REVISION: u32 = 1;

/// Makes a package for Debian in a folder. Returns its path.
///
/// # Errors
/// If debhelper fails.
pub(super) fn deb(tree: &Path, folder: &Path, version: &str) -> Result<PathBuf> {
    // debhelper writes the package next to its source.
    let work = folder.join("deb");
    empty(&work)?;
    let source = work.join("source");
    fs::create_dir(&source)?;
    let packaging = shell::root().join("packaging/debian");
    copy(&packaging, &source.join("debian"))?;
    copy(tree, &source.join("tree"))?;
    copy(&shell::root().join("CHANGELOG.md"), &source)?;
    let entry = format!(
        "dysco ({version}-{REVISION}) unstable; urgency=medium\n\n  \
         * See CHANGELOG.md.\n\n \
         -- The Dysco maintainers <maintainers@dysco.invalid>  {}\n",
        date("%cD", "-R")?
    );
    fs::write(source.join("debian/changelog"), entry)?;
    let mut rules = Command::new("debian/rules");
    rules.arg("binary").current_dir(&source);
    shell::run(quiet(&mut rules)).context("failed to make the package for Debian")?;
    take(&work, "deb", folder)
}

/// Makes an RPM package in a folder. Returns its path.
///
/// # Errors
/// If rpmbuild fails.
pub(super) fn rpm(tree: &Path, folder: &Path, version: &str) -> Result<PathBuf> {
    let work = folder.join("rpm");
    empty(&work)?;
    let made = work.join("made");
    let define = |name: &str, value: &OsStr| {
        let mut words = std::ffi::OsString::from(format!("{name} "));
        words.push(value);
        words
    };
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet"]);
    // The same files make the same package, whenever and wherever it is made. debhelper does so by
    // the changelog.
    rpmbuild.env("SOURCE_DATE_EPOCH", date("%ct", "+%s")?);
    for (name, value) in [
        ("_topdir", work.as_os_str()),
        ("_rpmdir", made.as_os_str()),
        (
            "_build_name_fmt",
            "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm".as_ref(),
        ),
        ("use_source_date_epoch_as_buildtime", "1".as_ref()),
        ("clamp_mtime_to_source_date_epoch", "1".as_ref()),
        ("_buildhost", "dysco.invalid".as_ref()),
        ("dysco_version", version.as_ref()),
        ("dysco_tree", tree.as_os_str()),
    ] {
        rpmbuild.arg("--define").arg(define(name, value));
    }
    rpmbuild.arg(shell::root().join("packaging/rpm/dysco.spec"));
    shell::run(quiet(&mut rpmbuild)).context("failed to make the RPM package")?;
    take(&made, "rpm", folder)
}

/// Returns the date of the last commit in a format of git's, so that a package is the same whenever
/// it is made. Without git, returns the date of today, in a format of `date`.
fn date(of_git: &str, of_date: &str) -> Result<String> {
    let git = ["-C".as_ref(), shell::root().as_os_str()];
    let mut git_log = Command::new("git");
    git_log.args(git).args(["log", "-1"]);
    git_log.arg(format!("--format={of_git}"));
    for command in [&mut git_log, Command::new("date").arg(of_date)] {
        let said = command.output();
        let said = said.ok().filter(|said| said.status.success());
        if let Some(said) = said {
            return Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned());
        }
    }
    bail!("neither git nor date tells a date")
}

/// Copies a file, or a folder with its contents, unchanged.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    shell::run(Command::new("cp").arg("-a").arg(from).arg(to))
}

/// Sends the output of a tool, which contains no results, to standard error.
fn quiet(command: &mut Command) -> &mut Command {
    command.stdout(std::io::stderr())
}

/// Moves the file with this extension out of a folder. Returns its new path.
fn take(from: &Path, ending: &str, to: &Path) -> Result<PathBuf> {
    let entries =
        fs::read_dir(from).with_context(|| format!("failed to read {}", from.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let mut files = files.filter(|file| file.extension() == Some(OsStr::new(ending)));
    let (Some(file), None) = (files.next(), files.next()) else {
        bail!("{} has not one file of type {ending}", from.display());
    };
    let moved = to.join(file.file_name().context("a package has no name")?);
    fs::rename(&file, &moved).with_context(|| format!("failed to write {}", moved.display()))?;
    Ok(moved)
}
