//! Table with one slot of counters for each descriptor, in lazily mapped memory.

use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use crate::system;

/// Number of descriptors that can be watched. Higher descriptors are ignored.
pub(crate) const CAPACITY: usize = 1 << 20;

/// Kind of a descriptor.
pub(crate) mod kind {
    /// A descriptor that is not watched.
    pub(crate) const NONE: u32 = 0;
    /// A socket that this process created.
    pub(crate) const SOCKET: u32 = 1;
    /// A socket that this process accepted.
    pub(crate) const ACCEPTED: u32 = 2;
    /// The read end of a pipe.
    pub(crate) const PIPE_READ: u32 = 3;
    /// The write end of a pipe.
    pub(crate) const PIPE_WRITE: u32 = 4;
}

/// Bits of [`Slot::flags`].
pub(crate) mod flag {
    /// Pipe: the last splice into it had no limit.
    pub(crate) const ASKED_ENDLESS: u32 = 1;
    /// Socket: the bytes written here come from `from`, endlessly and with a steady delta.
    pub(crate) const ENDLESS: u32 = 2;
    /// Socket: the program itself declared that direction.
    pub(crate) const DECLARED: u32 = 4;
    /// Socket: never to be paired again.
    pub(crate) const UNFIT: u32 = 8;
    /// A call that may close the descriptor has begun.
    pub(crate) const CLOSING: u32 = 16;
}

/// A descriptor and its generation: a number that is used again is another handle. 0 stands for
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(pub u64);

impl Handle {
    /// No descriptor.
    pub(crate) const NONE: Handle = Handle(0);

    /// Returns the number of the descriptor.
    pub(crate) fn fd(self) -> i32 {
        (self.0 >> 32) as i32 - 1
    }

    /// Returns the kernel's cookie of this socket, which is read once; 0 if it was closed.
    pub(crate) fn cookie(self) -> u64 {
        let Some(s) = self.slot() else { return 0 };
        let known = s.cookie.load(Relaxed);
        if known != 0 {
            return known;
        }
        let asked = system::cookie(self.fd());
        // A life ends before its descriptor is closed. While the life lasts, the cookie is
        // therefore that of its socket.
        fence(SeqCst);
        if self.slot().is_none() {
            return 0;
        }
        s.cookie.store(asked, SeqCst);
        if self.slot().is_none() {
            // The slot belongs to the next life now, which has another cookie.
            let _ = s.cookie.compare_exchange(asked, 0, SeqCst, Relaxed);
        }
        asked
    }

    /// Returns the slot, if the life has not ended.
    pub(crate) fn slot(self) -> Option<&'static Slot> {
        let s = slot(self.fd())?;
        (s.life(self.fd()) == self).then_some(s)
    }
}

/// State of one descriptor. All zero at first.
#[repr(C, align(128))]
pub(crate) struct Slot {
    generation: AtomicU32,
    /// A [`kind`].
    pub kind: AtomicU32,
    /// Bytes read.
    pub read: AtomicU64,
    /// Bytes written.
    pub written: AtomicU64,
    /// The other socket of the pair, or the other end of the pipe.
    pub peer: AtomicU64,
    /// [`flag`] bits.
    pub flags: AtomicU32,
    /// Read end of the pipe from which bytes were last moved to this socket.
    pub pipe: AtomicI32,
    /// Socket: the pipe that was last reported, and the second of that report.
    pub reported_pipe: AtomicI32,
    /// Second of the report that `reported_pipe` belongs to.
    pub reported_second: AtomicU32,
    /// Pipe read end: source of the bytes in it. Socket: source of the bytes that are spliced to
    /// it.
    pub from: AtomicU64,
    /// Pipe read end: bytes in it. Socket: the direction's delta at the last move.
    pub level: AtomicI64,
    /// Socket: bytes read from it that are in a pipe now.
    pub piped: AtomicI64,
    /// Socket: the direction's delta as last reported.
    pub reported_delta: AtomicI64,
    /// Socket: value of `written` at the last report.
    pub reported_at: AtomicU64,
    /// First socket of a pair: the link's epoch of the last report; 0 if a report is owed.
    pub reported_epoch: AtomicU32,
    /// Number of reports that revoked a claim or changed a delta.
    pub noise: AtomicU32,
    /// Socket: the kernel's cookie; 0 until it is read.
    cookie: AtomicU64,
}

impl Slot {
    /// Returns the current life of the descriptor.
    pub(crate) fn life(&self, fd: i32) -> Handle {
        Handle((fd as u64).wrapping_add(1) << 32 | u64::from(self.generation.load(Relaxed)))
    }

    /// Returns the other socket of the pair, or the other end of the pipe.
    pub(crate) fn peer(&self) -> Handle {
        Handle(self.peer.load(Relaxed))
    }

    /// Returns true if one of these flags is set.
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.flags.load(Relaxed) & bits != 0
    }

    /// Begins a new life of this kind.
    pub(crate) fn begin(&self, kind: u32) {
        self.generation.fetch_add(1, Relaxed);
        self.read.store(0, Relaxed);
        self.written.store(0, Relaxed);
        self.peer.store(0, Relaxed);
        self.flags.store(0, Relaxed);
        self.pipe.store(-1, Relaxed);
        self.reported_pipe.store(-1, Relaxed);
        self.reported_second.store(0, Relaxed);
        self.from.store(0, Relaxed);
        self.level.store(0, Relaxed);
        self.piped.store(0, Relaxed);
        self.reported_delta.store(0, Relaxed);
        self.reported_at.store(0, Relaxed);
        self.reported_epoch.store(0, Relaxed);
        self.noise.store(0, Relaxed);
        self.cookie.store(0, Relaxed);
        self.kind.store(kind, Relaxed);
    }
}

/// Returns the bytes written to B less the bytes read from A. Bytes in a pipe count as written.
pub(crate) fn delta(a: &Slot, b: &Slot) -> i64 {
    let gone = b.written.load(Relaxed).wrapping_sub(a.read.load(Relaxed)) as i64;
    gone.wrapping_add(a.piped.load(Relaxed))
}

/// Returns the accepted socket first; if both are alike, the one with the lower descriptor.
pub(crate) fn ordered(one: Handle, s: &Slot, other: Handle) -> (Handle, Handle) {
    let accepted = |s: &Slot| s.kind.load(Relaxed) == kind::ACCEPTED;
    let other_accepted = other.slot().is_some_and(accepted);
    let first = match (accepted(s), other_accepted) {
        (true, false) => true,
        (false, true) => false,
        _ => one.fd() < other.fd(),
    };
    if first { (one, other) } else { (other, one) }
}

/// Number of slots that are mapped at once: 32 KiB of memory.
const BLOCK: usize = 256;
const BLOCKS: usize = CAPACITY / BLOCK;

/// Blocks of slots, each mapped when one of its descriptors is first watched. A table in one
/// piece would take 128 MiB of an address space that `RLIMIT_AS` may limit (`haproxy -m`).
static TABLE: [AtomicPtr<Slot>; BLOCKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCKS];
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Returns the highest descriptor that was ever watched.
pub(crate) fn highest() -> i32 {
    HIGHEST.load(Relaxed) as i32
}

/// Returns the slot of a descriptor, or `None` if neither the descriptor nor its neighbours were
/// ever watched.
#[inline(always)]
pub(crate) fn slot(fd: i32) -> Option<&'static Slot> {
    let i = fd as usize;
    let block = NonNull::new(TABLE.get(i / BLOCK)?.load(Acquire))?;
    // SAFETY: a mapping holds BLOCK slots, lives as long as the process, and an all-zero slot is
    // a valid one; slots hold only atomics.
    Some(unsafe { block.add(i % BLOCK).as_ref() })
}

/// Begins a new life of a descriptor. Returns `None` if it is out of range, or without memory.
pub(crate) fn begin(fd: i32, kind: u32) -> Option<&'static Slot> {
    let s = slot(fd).or_else(|| {
        map(TABLE.get(fd as usize / BLOCK)?);
        slot(fd)
    })?;
    s.begin(kind);
    HIGHEST.fetch_max(fd as usize, Relaxed);
    Some(s)
}

/// Ends all lives.
pub(crate) fn clear() {
    for s in (0..=highest()).filter_map(slot) {
        if s.kind.load(Relaxed) != kind::NONE {
            s.begin(kind::NONE);
        }
    }
}

/// Maps a block, unless another thread does or there is no memory.
#[cold]
fn map(block: &AtomicPtr<Slot>) {
    let len = BLOCK * size_of::<Slot>();
    // SAFETY: a fresh anonymous mapping; nothing else uses it.
    let p = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return;
    }
    let none = core::ptr::null_mut();
    if block
        .compare_exchange(none, p.cast(), Release, Relaxed)
        .is_err()
    {
        // SAFETY: another thread was first; this mapping was never shared.
        unsafe { libc::munmap(p, len) };
    }
}
