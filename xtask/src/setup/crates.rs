//! Programs that cargo installs.

use std::process::Command;

use anyhow::{Context, Result};

use super::Need;
use super::packages::to_stderr;
use crate::shell;

const LLVM: &str = "/usr/lib/llvm-22";
/// Libraries from which bpf-linker is built.
pub(super) const LIBRARIES: &[(&str, &str)] = &[
    ("/usr/lib/llvm-22/bin/llvm-config", "llvm-22-dev"),
    ("/usr/include/zlib.h", "zlib1g-dev"),
    ("/usr/include/zstd.h", "libzstd-dev"),
];

/// A program that cargo installs, at this version or a later one.
pub(super) struct Crate {
    /// Name of the crate, and of the program.
    pub name: &'static str,
    version: [u32; 3],
    options: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// First need that requires it.
    pub need: Need,
}

/// Linker of eBPF programs.
pub(super) const BPF_LINKER: Crate = Crate {
    name: "bpf-linker",
    version: [0, 13, 0],
    options: &["--no-default-features", "--features", "llvm-22"],
    env: &[
        ("LLVM_PREFIX", LLVM),
        // LLVM does the work, and is already built.
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ],
    need: Need::Build,
};

/// Environment for programs that need not be fast: they are built in less time.
const QUICK_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
];

/// Runner of the tests.
pub(super) const NEXTEST: Crate = Crate {
    name: "cargo-nextest",
    version: [0, 9, 151],
    options: &["--no-default-features", "--features", "default-no-update"],
    env: QUICK_BUILD,
    need: Need::Tests,
};

const AUDITABLE: Crate = Crate {
    name: "cargo-auditable",
    version: [0, 7, 7],
    options: &[],
    env: QUICK_BUILD,
    need: Need::ReleasePackages,
};

/// Programs that cargo installs.
pub(super) const CRATES: &[&Crate] = &[&BPF_LINKER, &NEXTEST, &AUDITABLE];

impl Crate {
    /// True if the program is installed, in this version or a later one.
    pub(super) fn is_there(&self) -> bool {
        let Some(program) = shell::find(self.name) else {
            return false;
        };
        let Ok(said) = Command::new(program).arg("--version").output() else {
            return false;
        };
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let reported = said.split_whitespace().nth(1).and_then(version);
        let known = reported.or_else(|| self.installed());
        known.is_some_and(|v| v >= self.version)
    }

    /// Version that cargo has installed. It is used for a program that does not report its version.
    fn installed(&self) -> Option<[u32; 3]> {
        let list = shell::cargo().args(["install", "--list"]).output().ok()?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let prefix = format!("{} v", self.name);
        let found = list.lines().find_map(|line| line.strip_prefix(&prefix))?;
        version(found.trim_end_matches(':'))
    }

    /// Builds and installs the program.
    pub(super) fn install(&self) -> Result<()> {
        let [a, b, c] = self.version;
        let exact = format!("{a}.{b}.{c}");
        eprintln!(
            "missing: {} {exact}; cargo builds it, which takes minutes",
            self.name
        );
        let mut cargo = shell::cargo();
        cargo
            .args(["install", "--locked", "--version", &exact, self.name])
            .args(self.options);
        // The program is built outside this repository's target folder, so that cargo clean does
        // not cause a new build.
        cargo
            .env_remove("CARGO_TARGET_DIR")
            .envs(self.env.iter().copied());
        shell::run(to_stderr(&mut cargo))
            .with_context(|| format!("failed to install {}", self.name))
    }
}

fn version(text: &str) -> Option<[u32; 3]> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("0.9.151"), Some([0, 9, 151]));
        assert!(version("0.10.0") > version("0.9.151"));
        assert_eq!(version("nightly"), None);
    }
}
