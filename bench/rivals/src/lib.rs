//! Empty: the programs are the binary, built for the eBPF target by the
//! benchmark's build script. A library lets cargo see that they changed.
#![no_std]
