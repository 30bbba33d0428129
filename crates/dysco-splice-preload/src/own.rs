//! Distinguishes the process that the table belongs to from its children. The child of a `vfork`
//! runs in its parent's memory, and closes and opens its own descriptors with the same numbers.
//! Its calls must not count as calls of the parent.

use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering::Relaxed};

/// Pid of the process that owns this memory. It is in a page that the kernel clears in a copy
/// (after any kind of fork), but not for a child that shares the memory.
static OWNER: AtomicPtr<AtomicI32> = AtomicPtr::new(core::ptr::null_mut());

const PAGE: usize = 4096;

/// Marks the memory as that of this process. Runs before `main`.
pub(crate) fn start() {
    // SAFETY: a fresh anonymous mapping that nothing else uses and that stays; all-zero is a
    // valid integer.
    unsafe {
        let p = libc::mmap(
            core::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if p == libc::MAP_FAILED {
            return;
        }
        if libc::madvise(p, PAGE, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(p, PAGE);
            return;
        }
        OWNER.store(p.cast(), Relaxed);
    }
    calls();
}

/// Returns true if the table's process calls. If this is unknown, the caller counts as a child,
/// and its sockets are not reported.
pub(crate) fn calls() -> bool {
    // SAFETY: null, or the page, which stays.
    let Some(owner) = (unsafe { OWNER.load(Relaxed).as_ref() }) else {
        return false;
    };
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    // Only a filter of system calls makes it fail.
    if own <= 0 {
        return false;
    }
    match owner.load(Relaxed) {
        0 => {
            owner.store(own, Relaxed);
            true
        }
        owner => owner == own,
    }
}

/// Counts each caller as a child from now on. Returns the value by which `resume` ends this.
pub(crate) fn suspend() -> *mut AtomicI32 {
    OWNER.swap(core::ptr::null_mut(), Relaxed)
}

/// Ends the effect of `suspend`.
pub(crate) fn resume(owner: *mut AtomicI32) {
    OWNER.store(owner, Relaxed);
}
