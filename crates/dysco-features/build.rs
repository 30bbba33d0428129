//! An empty build script. Cargo builds build dependencies only for a package that has one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
