//! A program that restricts its own system calls (seccomp). A filter may refuse any call, and may
//! end the program for it. The shim therefore takes back its reports before the filter is in
//! force, and makes no system call of its own afterwards.

use core::ffi::{c_int, c_long, c_uint};

use crate::real::real;
use crate::{link, own, table, tell};

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    let call = || real!(prctl: fn(option => c_int, a => usize, b => usize, c => usize, d => usize) -> c_int);
    if by_prctl(option, a, b) {
        around(|| call().into()) as c_int
    } else {
        call()
    }
}

/// Returns true if a system call with these arguments restricts those that follow.
pub(crate) fn restricts(number: c_long, [a, b, c]: [usize; 3]) -> bool {
    match number {
        libc::SYS_seccomp => match a as c_uint {
            libc::SECCOMP_SET_MODE_STRICT => true,
            // Without a filter, the program only asks what the kernel supports.
            libc::SECCOMP_SET_MODE_FILTER => c != 0,
            _ => false,
        },
        libc::SYS_prctl => by_prctl(a as c_int, b, c),
        _ => false,
    }
}

fn by_prctl(option: c_int, mode: usize, filter: usize) -> bool {
    option == libc::PR_SET_SECCOMP
        && match mode as c_uint {
            libc::SECCOMP_MODE_STRICT => true,
            libc::SECCOMP_MODE_FILTER => filter != 0,
            _ => false,
        }
}

/// Makes a call that restricts the program. Ends the shim's work, unless the call fails.
pub(crate) fn around(call: impl FnOnce() -> c_long) -> c_long {
    // The child of a `vfork` restricts itself, and not its parent.
    if !own::calls() {
        return call();
    }
    let locked = tell::lock();
    tell::take_back_all();
    let (link, owner) = (link::suspend(), own::suspend());
    let r = call();
    if r < 0 {
        link::resume(link);
        own::resume(owner);
        tell::owe_all();
    } else {
        table::clear();
        tell::owe_nothing();
    }
    if locked {
        tell::unlock();
    }
    r
}
