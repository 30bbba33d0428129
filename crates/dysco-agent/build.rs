//! Builds the eBPF programs with the workspace's own toolchain, once for interfaces with an Ethernet
//! header and once for those without.
//!
//! The target has no prebuilt `core`, so it is built too; RUSTC_BOOTSTRAP lets
//! the pinned stable compiler do that, which keeps one toolchain for all.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let workspace =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
            .join("../..");
    for dir in ["crates/dysco-ebpf", "crates/common"] {
        println!("cargo:rerun-if-changed={}", workspace.join(dir).display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    build(&workspace, &out, "dysco", &[]);
    build(
        &workspace,
        &out,
        "dysco_headerless",
        &["--features", "headerless"],
    );
}

/// Builds the programs with these further arguments, and puts the object file at `name`.
fn build(workspace: &Path, out: &Path, name: &str, arguments: &[&str]) {
    let target_dir = out.join("ebpf");
    let status = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"))
        .current_dir(workspace)
        .args(["build", "--package", "dysco-ebpf", "--bin", "dysco", "--release"])
        .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core"])
        .arg("--target-dir")
        .arg(&target_dir)
        .args(arguments)
        .env("RUSTC_BOOTSTRAP", "1")
        // BTF is made from debug information. Kernels of this target read unaligned words;
        // without the feature LLVM assembles them from bytes. Copying "in order" would call a
        // loop over bytes.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Cdebuginfo=2\x1f-Clink-arg=--btf\x1f-Ctarget-cpu=v3\x1f-Clink-arg=--disable-expand-memcpy-in-order\x1f-Clink-arg=--cpu-features=+allows-misaligned-mem-access\x1f-Coverflow-checks=off")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("RUSTC")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status();
    match status {
        Ok(s) if s.success() => {}
        Ok(s) => panic!(
            "the eBPF programs do not build ({s}); is bpf-linker installed? `cargo xtask setup` installs it"
        ),
        Err(e) => panic!("cargo cannot be started for the eBPF programs: {e}"),
    }
    let built = target_dir.join("bpfel-unknown-none/release/dysco");
    std::fs::copy(&built, out.join(name)).expect("the built eBPF object is where cargo puts it");
}
