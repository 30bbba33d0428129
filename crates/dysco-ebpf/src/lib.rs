//! Empty: the crate is a build-dependency so that cargo knows when the
//! programs must be built again. They are in `main.rs`.
#![no_std]
