//! Empty: the crate is a build dependency, so that cargo knows when to build the programs again.
//! The programs are in `main.rs`.
#![no_std]
