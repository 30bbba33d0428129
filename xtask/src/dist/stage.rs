//! Tree of files that the packages install.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Profile, empty};
use crate::{build, shell};

/// Programs of a host, with their folders there, and the symbols that strip may remove.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("dyscod", "usr/sbin", "--strip-all"),
    ("dyscoctl", "usr/bin", "--strip-all"),
    (
        "libdysco_splice_preload.so",
        "usr/lib/dysco",
        "--strip-unneeded",
    ),
];

/// Files of the repository, and their places on a host.
const FILES: &[(&str, &str)] = &[
    (
        "crates/dysco-splice-preload/include/dysco.h",
        "usr/include/dysco.h",
    ),
    ("packaging/dyscod.toml", "etc/dysco/dyscod.toml"),
    ("packaging/policy.toml", "etc/dysco/policy.toml"),
    ("packaging/sysctl.conf", "etc/sysctl.d/60-dysco.conf"),
    (
        "packaging/modules-load.conf",
        "usr/lib/modules-load.d/dysco.conf",
    ),
    (
        "packaging/dyscod.service",
        "usr/lib/systemd/system/dyscod.service",
    ),
    (
        "packaging/haproxy-dysco.conf",
        "usr/share/dysco/haproxy-dysco.conf",
    ),
    (
        "packaging/dyscod-containers.conf",
        "usr/share/dysco/dyscod-containers.conf",
    ),
    (
        "packaging/dyscod-services.conf",
        "usr/share/dysco/dyscod-services.conf",
    ),
    (
        "packaging/prometheus/alerts.yml",
        "usr/share/dysco/prometheus/alerts.yml",
    ),
    (
        "packaging/grafana/dysco.json",
        "usr/share/dysco/grafana/dysco.json",
    ),
    ("LICENSE-MIT", "usr/share/doc/dysco/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/dysco/LICENSE-APACHE"),
    ("LICENSE-GPL2", "usr/share/doc/dysco/LICENSE-GPL2"),
];

/// Folders of the generated files, and their places on a host.
const GENERATED: &[(&str, &str)] = &[
    ("man", "usr/share/man/man8"),
    ("completions/bash", "usr/share/bash-completion/completions"),
    ("completions/zsh", "usr/share/zsh/vendor-completions"),
    ("completions/fish", "usr/share/fish/vendor_completions.d"),
];

/// Builds the contents of the packages, and fills a tree with them below `folder`. Returns the
/// tree.
///
/// # Errors
/// If a program fails, or a file cannot be written.
pub(super) fn fill(folder: &Path, profile: Profile) -> Result<PathBuf> {
    let built = match profile {
        Profile::Release => build::programs_with_sbom()?,
        Profile::Dev => build::built_for_tests()?,
    };
    let tree = folder.join("tree");
    empty(&tree)?;
    for (name, place, option) in PROGRAMS {
        let to = tree.join(place).join(name);
        make_parent(&to)?;
        let mut strip = Command::new("strip");
        shell::run(strip.args([option, "-o"]).arg(&to).arg(built.join(name)))?;
        let mode = if name.ends_with(".so") { 0o644 } else { 0o755 };
        set_mode(&to, mode)?;
    }
    for (file, place) in FILES {
        install(&shell::root().join(file), &tree.join(place))?;
    }
    for page in files(&shell::root().join("docs"))? {
        if page
            .extension()
            .is_some_and(|end| end == "md" || end == "json")
        {
            install_into(&page, &tree.join("usr/share/doc/dysco"))?;
        }
    }
    generate(&folder.join("generated"), &tree)?;
    open_folders(&tree)?;
    Ok(tree)
}

/// Installs the man pages and completions.
fn generate(folder: &Path, tree: &Path) -> Result<()> {
    empty(folder)?;
    let mut cargo = shell::cargo();
    // The build is that of the tests: these files do not depend on it.
    cargo.args(["run", "--quiet", "--locked", "-p", "dysco-packaging", "--"]);
    shell::run(cargo.arg(folder))?;
    for (from, place) in GENERATED {
        for file in files(&folder.join(from))? {
            install_into(&file, &tree.join(place))?;
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder);
    let entries = entries.with_context(|| format!("failed to read {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn install_into(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().context("a file has no name")?;
    install(file, &folder.join(name))
}

fn install(file: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    let copied = fs::copy(file, to).map(|_| ());
    copied.with_context(|| format!("failed to copy {} to {}", file.display(), to.display()))?;
    set_mode(to, 0o644)
}

fn make_parent(file: &Path) -> Result<()> {
    let folder = file.parent().context("a file has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))
}

/// Lets everybody enter the folders of a tree, whatever the umask of this process is.
fn open_folders(folder: &Path) -> Result<()> {
    set_mode(folder, 0o755)?;
    let inner = files(folder)?.into_iter().filter(|path| path.is_dir());
    inner.into_iter().try_for_each(|inner| open_folders(&inner))
}

fn set_mode(file: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(file, fs::Permissions::from_mode(mode))
        .with_context(|| format!("failed to set the mode of {}", file.display()))
}
