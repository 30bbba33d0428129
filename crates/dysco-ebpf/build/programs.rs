//! Builds eBPF programs with the workspace's own toolchain, for the build scripts of the packages
//! that load them.
//!
//! The target has no prebuilt `core`, so it is built too; RUSTC_BOOTSTRAP lets
//! the pinned stable compiler do that, which keeps one toolchain for all.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// BTF is made from debug information. Kernels of this target read unaligned words; without the
/// feature LLVM assembles them from bytes. Copying "in order" would call a loop over bytes.
const FLAGS: &str = "-Cdebuginfo=2\x1f-Clink-arg=--btf\x1f-Ctarget-cpu=v3\x1f-Clink-arg=--disable-expand-memcpy-in-order\x1f-Clink-arg=--cpu-features=+allows-misaligned-mem-access\x1f-Coverflow-checks=off";

/// Builds the programs of a package of the workspace, and puts the object file at `name` in the
/// folder of the build script.
pub(crate) fn build(workspace: &Path, package: &str, bin: &str, name: &str, arguments: &[&str]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // All packages of a profile share what their programs are built from: out, the script, build.
    let shared = out.ancestors().nth(3).unwrap_or(&out).join("ebpf");
    let artifacts = out.join("ebpf").join(name);
    let status = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"))
        .current_dir(workspace)
        .args(["build", "--package", package, "--bin", bin, "--release"])
        .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core"])
        .arg("--target-dir")
        .arg(shared)
        // The place in the shared folder may have another build's object as soon as this one ends.
        .args(["-Z", "unstable-options", "--artifact-dir"])
        .arg(&artifacts)
        .args(arguments)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS)
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("RUSTC")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "the eBPF programs of {package} do not build ({status}); is bpf-linker installed? \
             `cargo xtask setup` installs it"
        ),
        Err(error) => panic!("cargo cannot be started for the eBPF programs: {error}"),
    }
    std::fs::copy(artifacts.join(bin), out.join(name)).expect("cargo puts the object there");
}
