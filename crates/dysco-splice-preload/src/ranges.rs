//! Calls that close a range of descriptors. They spare the shim's own descriptor.

use core::ffi::{c_int, c_uint};

use crate::real::real;
use crate::{hooks, link, track};

/// Descriptors of this process, each as a name.
const LISTING: &core::ffi::CStr = c"/proc/self/fd";
/// Offset of the length of an entry that `getdents64` returns.
const LENGTH: usize = 16;
/// Offset of its name.
const NAME: usize = 19;

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close(
        first,
        last,
        flags,
        |first, last| real!(close_range: fn(first => c_uint, last => c_uint, flags => c_int) -> c_int),
    )
}

/// Closes a range by calls of the system's function, and records what they have closed.
pub(crate) fn close(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    call: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    // Close-on-exec closes nothing now.
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
        return call(first, last);
    }
    for (first, last) in around_ours(first, last).into_iter().flatten() {
        track::range_closes(first, last);
        let r = call(first, last);
        track::range_closed(first, last, r == 0);
        if r != 0 {
            return r;
        }
    }
    0
}

/// Returns the parts of a range before and after the shim's descriptor.
fn around_ours(first: c_uint, last: c_uint) -> [Option<(c_uint, c_uint)>; 2] {
    let ours = link::fd();
    if ours < 0 || !(first..=last).contains(&(ours as c_uint)) || !link::is_ours(ours) {
        return [Some((first, last)), None];
    }
    let ours = ours as c_uint;
    let below = (first < ours).then(|| (first, ours - 1));
    let above = (ours < last).then(|| (ours + 1, last));
    [below, above]
}

/// Closes all descriptors from `first` on. As in libc, it also does so where the kernel or a
/// filter of system calls refuses `close_range`.
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    // SAFETY: the shim's own hook, which accepts any numbers.
    let r = unsafe { close_range(first as c_uint, c_uint::MAX, 0) };
    if r == 0 || close_listed(first) {
        return;
    }
    // libc closes the shim's descriptor too, which the shim replaces, or ends the program, as it
    // would without the shim.
    track::range_closes(first as c_uint, c_uint::MAX);
    real!(closefrom: fn(first => c_int) -> c_int);
    track::range_closed(first as c_uint, c_uint::MAX, true);
}

/// Closes each descriptor from `first` on that the kernel lists. Returns false if it lists none.
fn close_listed(first: c_int) -> bool {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    let dir = unsafe {
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, LISTING.as_ptr(), flags) as c_int
    };
    if dir < 0 {
        return false;
    }
    let mut entries = [0u8; 1024];
    let listed = loop {
        // The kernel continues after the last number that it has listed, whatever was closed.
        // SAFETY: the buffer is a local variable of this length.
        let n = unsafe {
            let (at, len) = (entries.as_mut_ptr(), entries.len());
            libc::syscall(libc::SYS_getdents64, dir, at, len)
        };
        match usize::try_from(n) {
            Ok(0) => break true,
            Ok(n) => close_all(entries.get(..n).unwrap_or_default(), first, dir),
            Err(_) => break false,
        }
    };
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_close, dir) };
    listed
}

/// Closes the descriptors from `first` on that these entries name, except `dir`.
fn close_all(mut entries: &[u8], first: c_int, dir: c_int) {
    while let Some(&[low, high]) = entries.get(LENGTH..LENGTH + 2) {
        let len = usize::from(u16::from_ne_bytes([low, high]));
        let (Some(name), Some(rest)) = (entries.get(NAME..len), entries.get(len..)) else {
            return;
        };
        entries = rest;
        if let Some(fd) = number(name)
            && fd >= first
            && fd != dir
        {
            // SAFETY: the shim's own hook, which accepts any number.
            unsafe { hooks::close(fd) };
        }
    }
}

/// Reads a number, which a NUL byte ends.
fn number(name: &[u8]) -> Option<c_int> {
    let end = name.iter().position(|b| *b == 0)?;
    core::str::from_utf8(name.get(..end)?).ok()?.parse().ok()
}
