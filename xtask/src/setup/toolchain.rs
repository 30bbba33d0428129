//! Parts of the Rust toolchain that rustup adds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::packages::to_stderr;
use super::{ARM64, Need};
use crate::shell;

/// A part of the toolchain.
pub(super) struct Part {
    /// A file or folder of it, below the toolchain's own folder.
    path: &'static str,
    /// Arguments of the rustup that adds it.
    add: [&'static str; 3],
    /// First need that requires it.
    need: Need,
}

const PARTS: &[Part] = &[
    // The eBPF programs are built with it.
    Part {
        path: "lib/rustlib/src/rust/library/Cargo.lock",
        add: ["component", "add", "rust-src"],
        need: Need::Build,
    },
    Part {
        path: "lib/rustlib/aarch64-unknown-linux-gnu/lib",
        add: ["target", "add", ARM64],
        need: Need::Arm64,
    },
];

/// Returns the parts that are missing.
pub(super) fn absent(need: Need) -> Vec<&'static Part> {
    let needed: Vec<_> = PARTS.iter().filter(|p| need.includes(p.need)).collect();
    match toolchain() {
        Some(toolchain) => needed
            .into_iter()
            .filter(|part| !toolchain.join(part.path).exists())
            .collect(),
        None => needed,
    }
}

impl Part {
    /// Adds the part.
    pub(super) fn install(&self) -> Result<()> {
        let [_, _, name] = self.add;
        eprintln!("missing: {name} of the toolchain; asking rustup");
        shell::run(to_stderr(Command::new("rustup").args(self.add)))
            .with_context(|| format!("failed to add {name} to the toolchain"))
    }
}

/// Returns the folder of the toolchain.
fn toolchain() -> Option<PathBuf> {
    // Cargo names its own path, which makes a call of rustc unnecessary.
    if let Some(own) = std::env::var_os("CARGO") {
        let toolchain = Path::new(&own).ancestors().nth(2);
        if let Some(toolchain) = toolchain.filter(|t| t.join("lib/rustlib").exists()) {
            return Some(toolchain.to_path_buf());
        }
    }
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let said = asked.ok()?.stdout;
    Some(PathBuf::from(String::from_utf8_lossy(&said).trim()))
}
