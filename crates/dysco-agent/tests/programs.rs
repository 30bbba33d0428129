//! The real, verified programs on whole packets, by BPF_PROG_TEST_RUN.

mod bench;

use bench::Programs;

#[test]
fn verifier_accepts_them() {
    Programs::load();
}
