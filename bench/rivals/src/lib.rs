//! Empty library: the programs are in the binary, which the benchmark's build script builds for the
//! eBPF target. A library lets cargo notice their changes.
#![no_std]
