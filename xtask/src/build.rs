//! `cargo xtask build`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::setup::Need;
use crate::{setup, shell};

/// Build everything.
#[derive(Args)]
pub(crate) struct Build {
    /// Optimise fully
    #[arg(long)]
    release: bool,
}

impl Build {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        setup::ensure(Need::Build)?;
        everything(self.release)
    }
}

/// Builds the workspace. The build of `dysco-agent` includes the eBPF programs.
pub(crate) fn everything(release: bool) -> Result<()> {
    let mut cargo = workspace(&["build"]);
    cargo.args(release.then_some("--release"));
    shell::run(&mut cargo)
}

/// Builds the programs, the shim and all tests in one step.
pub(crate) fn programs_and_tests() -> Result<()> {
    let targets = ["--lib", "--bins", "--tests", "--examples"];
    shell::run(workspace(&["build"]).args(targets))
}

/// Returns a cargo command for all packages but those of eBPF programs.
pub(crate) fn workspace(command: &[&str]) -> Command {
    let mut cargo = shell::cargo();
    cargo.args(command).args([
        "--workspace",
        "--exclude",
        "dysco-ebpf",
        "--exclude",
        "dysco-rivals",
    ]);
    cargo
}

/// Packages of the programs that run on a host.
const PROGRAMS: &[&str] = &["dysco-daemon", "dysco-ctl", "dysco-splice-preload"];

/// Builds the programs that run on a host, fully optimised. Returns their folder.
pub(crate) fn programs(quiet: bool) -> Result<PathBuf> {
    release(PROGRAMS, quiet)
}

/// Builds the programs that run on a host and a package that runs them, fully optimised and in one
/// step, so that they share their libraries. Returns their folder.
pub(crate) fn programs_and(package: &str, quiet: bool) -> Result<PathBuf> {
    release(&[PROGRAMS, &[package]].concat(), quiet)
}

/// Builds the programs that run on a host for packages: fully optimised, with a list of its
/// dependencies in each file. Returns their folder.
pub(crate) fn programs_with_sbom() -> Result<PathBuf> {
    built(
        &["auditable", "build", "--release"],
        PROGRAMS,
        "release",
        false,
    )
}

/// Build options of the programs of a demo.
#[derive(Args)]
pub(crate) struct Demonstrated {
    /// Optimise fully: the build takes several times as long, and changes are faster
    #[arg(long)]
    release: bool,
}

impl Demonstrated {
    /// Builds the programs that run on a host. Returns their folder.
    pub(crate) fn programs(&self, quiet: bool) -> Result<PathBuf> {
        if self.release {
            programs(quiet)
        } else {
            built(&["build"], PROGRAMS, "debug", quiet)
        }
    }
}

/// Builds packages, fully optimised. Returns their folder. If `DYSCO_BIN_DIR` names a folder with
/// built programs, nothing is built.
pub(crate) fn release(packages: &[&str], quiet: bool) -> Result<PathBuf> {
    built(&["build", "--release"], packages, "release", quiet)
}

/// Builds the programs that run on a host in the same way as the tests. Returns their folder.
pub(crate) fn built_for_tests() -> Result<PathBuf> {
    built(&["build"], PROGRAMS, "debug", true)
}

/// Builds the tests of hosts as all tests are built. Returns the path of their program.
pub(crate) fn tests_of_hosts() -> Result<PathBuf> {
    let words = [
        "--quiet",
        "--no-run",
        "--test",
        "hosts",
        "--message-format",
        "json",
    ];
    let out = workspace(&["test"])
        .args(words)
        .stderr(Stdio::inherit())
        .output()
        .context("failed to run cargo")?;
    ensure!(out.status.success(), "the tests of hosts do not build");
    let messages = serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>();
    let programs = messages.filter_map(|m| Some(m.ok()?["executable"].as_str()?.into()));
    programs
        .last()
        .context("cargo names no program of the tests")
}

/// Builds the programs that run on a host, and this one, for arm64, in the same way as the tests.
/// Returns their folder. `DYSCO_BIN_DIR` has no effect: it names programs for this machine.
pub(crate) fn for_arm64() -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--target", setup::ARM64]);
    cargo.args(PROGRAMS.iter().chain(&["xtask"]).flat_map(|p| ["-p", *p]));
    cargo.env(
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
        setup::ARM64_LINKER,
    );
    shell::run(&mut cargo)?;
    Ok(shell::target()?.join(setup::ARM64).join("debug"))
}

/// Variable that names a folder with built programs.
const GIVEN: &str = "DYSCO_BIN_DIR";

/// Returns true if the programs are given, so that this program does not know how they were built.
pub(crate) fn is_given() -> bool {
    std::env::var_os(GIVEN).is_some()
}

fn built(command: &[&str], packages: &[&str], folder: &str, quiet: bool) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(GIVEN) {
        return Ok(folder.into());
    }
    let mut cargo = shell::cargo();
    cargo.args(command);
    cargo.args(packages.iter().flat_map(|package| ["-p", *package]));
    cargo.args(quiet.then_some("--quiet"));
    shell::run(&mut cargo)?;
    Ok(shell::target()?.join(folder))
}
