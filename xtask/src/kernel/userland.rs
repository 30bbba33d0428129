//! Files of a guest other than its kernel: a root file system, and the programs under test.
//!
//! A guest of this machine's architecture has this machine's files. For arm64, the programs are
//! built here, and the packages of the same release of Debian are unpacked into a folder. Nothing
//! in that folder runs on this machine, so that their scripts do not run either.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::arch::Arch;
use super::packages::own_sources;
use crate::setup::{self, Need};
use crate::{build, shell};

/// Packages of a root file system, in addition to those of the demos and the links.
const PACKAGES: &[&str] = &[
    "base-files",
    "base-passwd",
    "busybox-static",
    "coreutils",
    "dash",
    "kmod",
    "libgcc-s1",
    "mount",
    "netbase",
    "util-linux",
];

/// Files of a guest, by their paths on this machine.
pub(super) struct Userland {
    /// Root of the file system.
    pub root: PathBuf,
    /// Folder with the programs that run on a host.
    pub programs: PathBuf,
    /// This program, for the guest.
    pub xtask: PathBuf,
    /// busybox, which needs no library.
    pub busybox: PathBuf,
    /// Program of the tests of hosts, if the guest runs those that need another kernel.
    pub tests: Option<PathBuf>,
}

impl Userland {
    /// Builds the programs for an architecture, and makes a root file system below `folder` if the
    /// guest cannot have this machine's. With `tests`, builds the tests of hosts for this machine's
    /// architecture.
    ///
    /// # Errors
    /// If a build or a download fails.
    pub(super) fn make(arch: Arch, folder: &Path, tests: bool) -> Result<Userland> {
        match arch {
            Arch::Amd64 => Ok(Userland {
                root: PathBuf::from("/"),
                programs: build::built_for_tests()?,
                xtask: std::env::current_exe().context("failed to find this program's own path")?,
                busybox: shell::find("busybox").context("busybox is missing")?,
                tests: tests.then(build::tests_of_hosts).transpose()?,
            }),
            Arch::Arm64 => {
                let programs = build::for_arm64()?;
                let root = root(arch, folder)?;
                Ok(Userland {
                    busybox: root.join("usr/bin/busybox"),
                    root,
                    xtask: programs.join("xtask"),
                    programs,
                    tests: None,
                })
            }
        }
    }

    /// Returns the folder of the programs if it is not below the root.
    pub(super) fn added(&self) -> Option<&Path> {
        let below = self.programs.starts_with(&self.root);
        (!below).then_some(self.programs.as_path())
    }
}

/// Makes a root file system for another architecture, unless it is there. Returns its path.
fn root(arch: Arch, folder: &Path) -> Result<PathBuf> {
    let suite = suite(&fs::read_to_string("/etc/os-release")?)?;
    let root = folder.join(format!("{}.root", arch.name()));
    // Only a complete root has this file.
    let made = root.join("etc/made-of");
    let packages = packages().join(",");
    let content = format!("{suite}: {packages}\n");
    if fs::read_to_string(&made).is_ok_and(|of| of == content) {
        return Ok(root);
    }
    eprintln!("unpacking packages of Debian's {suite} for {}", arch.name());
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let _ = fs::remove_dir_all(&root);
    let [main, _] = own_sources()?;
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--quiet", "--format=directory", "--variant=extract"]);
    mmdebstrap.arg("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr");
    mmdebstrap.arg(format!("--architectures={}", arch.name()));
    mmdebstrap.arg(format!("--include={packages}"));
    mmdebstrap.arg(&suite).arg(&root).arg(main);
    shell::run(mmdebstrap.stdout(std::io::stderr()))?;
    // The script of base-passwd would do this.
    for file in ["passwd", "group"] {
        let master = root.join(format!("usr/share/base-passwd/{file}.master"));
        fs::copy(&master, root.join("etc").join(file))
            .with_context(|| format!("failed to copy {}", master.display()))?;
    }
    fs::write(&made, content).with_context(|| format!("failed to write {}", made.display()))?;
    Ok(root)
}

fn packages() -> Vec<&'static str> {
    let needed = [Need::Demo, Need::Links];
    let needed = needed.into_iter().flat_map(setup::packages_from);
    PACKAGES.iter().copied().chain(needed).collect()
}

/// Returns this machine's suite of Debian from its os-release(5). Programs that are linked with the
/// C library of a release may not run with that of an earlier one.
fn suite(release: &str) -> Result<String> {
    let value = |key: &str| {
        let mut lines = release.lines().filter_map(|line| line.split_once('='));
        let (_, value) = lines.find(|(name, _)| *name == key)?;
        Some(value.trim_matches('"').to_owned())
    };
    ensure!(
        value("ID").as_deref() == Some("debian"),
        "this is no Debian"
    );
    value("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_has_the_programs_of_the_demos_and_no_compiler() {
        let packages = packages();
        for package in ["haproxy", "nginx-light", "iproute2", "wireguard-tools"] {
            assert!(packages.contains(&package), "{package}");
        }
        assert!(!packages.contains(&"build-essential"), "{packages:?}");
    }

    #[test]
    fn programs_are_added_unless_they_are_below_the_root() {
        let of = |root: &str| Userland {
            root: root.into(),
            programs: "/home/dysco/target/debug".into(),
            xtask: PathBuf::new(),
            busybox: PathBuf::new(),
            tests: None,
        };
        assert_eq!(of("/").added(), None);
        let added = of("/home/dysco/target/kernels/arm64.root");
        assert_eq!(added.added(), Some(Path::new("/home/dysco/target/debug")));
    }

    #[test]
    fn the_suite_is_that_of_this_machine() {
        let debian =
            "PRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nVERSION_CODENAME=trixie\nID=debian\n";
        assert_eq!(suite(debian).expect("a suite"), "trixie");
        let quoted = "VERSION_CODENAME=\"bookworm\"\nID=\"debian\"\n";
        assert_eq!(suite(quoted).expect("a suite"), "bookworm");
        let other = "VERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n";
        assert!(suite(other).is_err());
        assert!(suite("ID=debian\n").is_err());
    }
}
