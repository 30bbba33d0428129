//! Whether the process that calls is the one that the table is of. The child of a
//! `vfork` runs in its parent's memory, and closes and opens descriptors of its own by
//! the same numbers; what it does there must not be taken for the parent's.

use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering::Relaxed};

/// The process whose memory this is, in a page that the kernel empties in a copy of it
/// (a fork, however it is called), and not for a child that shares it.
static OWNER: AtomicPtr<AtomicI32> = AtomicPtr::new(core::ptr::null_mut());

const PAGE: usize = 4096;

/// Before `main`: takes the memory for this process.
pub fn start() {
    // SAFETY: a fresh anonymous mapping that nothing else uses and that stays; all zero
    // it is a valid integer.
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

/// Is it the table's process that calls? If that cannot be told it is taken for a
/// child, and nothing is said of its sockets.
pub fn calls() -> bool {
    // SAFETY: null, or the page, which stays.
    let Some(owner) = (unsafe { OWNER.load(Relaxed).as_ref() }) else {
        return false;
    };
    // SAFETY: no arguments, and it never fails.
    let own = unsafe { libc::getpid() };
    match owner.load(Relaxed) {
        0 => {
            owner.store(own, Relaxed);
            true
        }
        owner => owner == own,
    }
}
