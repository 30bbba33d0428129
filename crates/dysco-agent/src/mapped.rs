//! An array map, mapped into this process.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::AgentError;

/// The mapped array. `T` is plain integers in `repr(C)`.
pub(crate) struct Mapped<T> {
    base: NonNull<T>,
    len: u32,
    bytes: usize,
}

// SAFETY: the memory is shared with the kernel anyway; all access goes through
// atomics and volatile accesses of its owners.
unsafe impl<T> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    /// Maps the array behind `fd`, which has `len` entries.
    pub(crate) fn new(fd: impl AsFd, len: u32) -> Result<Mapped<T>, AgentError> {
        let page = 4096;
        let bytes = (len as usize * size_of::<T>()).div_ceil(page) * page;
        let length =
            NonZeroUsize::new(bytes).ok_or(AgentError::Memory(nix::errno::Errno::EINVAL))?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping of a map made with BPF_F_MMAPABLE. It overlaps nothing else of
        // this process.
        let base = unsafe { mmap(None, length, prot, MapFlags::MAP_SHARED, fd, 0) }
            .map_err(AgentError::Memory)?;
        Ok(Mapped {
            base: base.cast(),
            len,
            bytes,
        })
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the address of an entry, which is valid as long as `self`.
    pub(crate) fn at(&self, index: u32) -> *mut T {
        assert!(index < self.len, "entry {index} of {}", self.len);
        // SAFETY: within the mapping, by the line above.
        unsafe { self.base.as_ptr().add(index as usize) }
    }

    /// Returns an aligned word of an entry.
    pub(crate) fn word(&self, field: *mut u32) -> &AtomicU32 {
        // SAFETY: `field` is an aligned word of the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(field) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing borrows any more. An error leaves it.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
