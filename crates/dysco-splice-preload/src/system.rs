//! Clocks, cookies and errno, by calls of the system that the program does not notice.

/// Returns the seconds of a clock that costs nearly nothing.
pub(crate) fn seconds() -> i64 {
    now().tv_sec
}

/// Returns the milliseconds of the same clock, accurate to a few milliseconds.
pub(crate) fn milliseconds() -> i64 {
    let t = now();
    t.tv_sec * 1_000 + t.tv_nsec / 1_000_000
}

fn now() -> libc::timespec {
    // SAFETY: the call fills a local timespec.
    unsafe {
        let mut t: libc::timespec = core::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut t);
        t
    }
}

/// Returns the kernel's cookie of a socket, which is never reused; 0 if the descriptor has none.
/// Preserves the program's errno.
pub(crate) fn cookie(fd: i32) -> u64 {
    let before = errno();
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: option and length are local variables.
    let r = unsafe {
        let p = (&raw mut cookie).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, p, &mut len)
    };
    set_errno(before);
    if r == 0 { cookie } else { 0 }
}

/// Returns the calling thread's errno.
pub(crate) fn errno() -> i32 {
    // SAFETY: always a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(e: i32) {
    // SAFETY: always a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() = e }
}
