//! Builds the eBPF programs of rivals in the same way as `dysco-agent` builds the data plane.

use std::env;
use std::path::PathBuf;

#[path = "../crates/dysco-ebpf/build/programs.rs"]
mod programs;

fn main() {
    let own =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed={}", own.join("rivals").display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../crates/dysco-ebpf/build");
    programs::build(&own.join(".."), "dysco-rivals", "rivals", "rivals", &[]);
}
