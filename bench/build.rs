//! Builds the eBPF programs of rivals in the same way as `dysco-agent` builds the data plane.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let own =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed={}", own.join("rivals").display());
    println!("cargo:rerun-if-changed=build.rs");
    let target_dir = out.join("ebpf");
    let status = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"))
        .current_dir(own.join(".."))
        .args([
            "build",
            "--package",
            "dysco-rivals",
            "--bin",
            "rivals",
            "--release",
        ])
        .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core"])
        .arg("--target-dir")
        .arg(&target_dir)
        .env("RUSTC_BOOTSTRAP", "1")
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            "-Cdebuginfo=2\x1f-Clink-arg=--btf\x1f-Ctarget-cpu=v3",
        )
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("RUSTC")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "the eBPF programs of rivals do not build ({status}); is bpf-linker installed? \
             `cargo xtask setup` installs it"
        ),
        Err(error) => panic!("cargo cannot be started for the eBPF programs: {error}"),
    }
    let built = target_dir.join("bpfel-unknown-none/release/rivals");
    std::fs::copy(&built, out.join("rivals")).expect("the object is where cargo puts it");
}
