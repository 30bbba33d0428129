//! Builds the eBPF programs, once for interfaces with an Ethernet header and once for those without.

use std::env;
use std::path::PathBuf;

#[path = "../dysco-ebpf/build/programs.rs"]
mod programs;

fn main() {
    let own =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let workspace = own.join("../..");
    for dir in ["crates/dysco-ebpf", "crates/common"] {
        println!("cargo:rerun-if-changed={}", workspace.join(dir).display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    let headerless = ["--features", "headerless"];
    programs::build(&workspace, "dysco-ebpf", "dysco", "dysco", &[]);
    programs::build(
        &workspace,
        "dysco-ebpf",
        "dysco",
        "dysco_headerless",
        &headerless,
    );
}
