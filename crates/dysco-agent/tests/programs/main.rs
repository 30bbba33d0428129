//! The real, verified programs on whole packets, by BPF_PROG_TEST_RUN. Another library builds
//! the expected packets, including their checksums, and the tests compare them byte by byte.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod back;
mod bench;
mod chain;
mod dsr;
mod frame;
mod icmp;
mod learn;
mod left;
mod packet_services;
mod pass;
mod path_liveness;
mod relay;
mod resized;
mod stack;
mod steer;
mod translate;
mod two_paths;
mod xdp;

use bench::Programs;

#[test]
fn verifier_accepts_them() {
    Programs::load().load_all();
}
