//! The choice between two paths of a session on a host that it passes by both.

use dysco_common::transit::{Keep, Stays};

#[test]
fn of_two_paths_the_one_stays_that_is_in_use() {
    let kept = |paths: &[u32], until| Keep::InUse { paths, until }.of(2, 5);
    assert_eq!(kept(&[2], 7), Stays::Earlier);
    assert_eq!(kept(&[5], 7), Stays::Later);
    // The rest of the chain may have kept the path that is given up here.
    assert_eq!(kept(&[2, 5], 7), Stays::Later);
    // The path is being laid, or was laid since. The reporting host does not know it.
    assert_eq!(kept(&[2], 5), Stays::Both);
    assert_eq!(kept(&[2], 4), Stays::Both);
    // Neither path is named: the report concerns another session of this name.
    assert_eq!(kept(&[1, 3], 7), Stays::Both);
}

#[test]
fn of_two_paths_the_one_leaves_that_was_given_up() {
    let kept = |paths: &[u32]| Keep::Without(paths).of(0, 5);
    assert_eq!(kept(&[5]), Stays::Earlier);
    assert_eq!(kept(&[0]), Stays::Later);
    assert_eq!(kept(&[0, 5]), Stays::Both);
    assert_eq!(kept(&[4, 6]), Stays::Both);
}
