//! The processor's own count of the instructions that the kernel executes for this thread, if the
//! machine permits reading it.

use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The required part of `perf_event_attr`: its first published size.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Event that is counted.
#[derive(Clone, Copy)]
struct Event {
    kind: u32,
    config: u64,
}

const INSTRUCTIONS: Event = Event { kind: 0, config: 1 };
/// `exclude_user` and `exclude_hv`: bits 4 and 6.
const KERNEL_ALONE: u64 = 1 << 4 | 1 << 6;

/// A running counter.
pub(crate) struct Instructions(OwnedFd);

impl Instructions {
    /// Begins to count.
    ///
    /// # Errors
    /// If the machine has no such counter, as most virtual machines, or forbids it.
    pub(crate) fn begin() -> Result<Instructions, Error> {
        open(INSTRUCTIONS, KERNEL_ALONE).map(Instructions)
    }

    /// Number of instructions so far.
    pub(crate) fn so_far(&self) -> Result<u64, Error> {
        let mut count = 0u64;
        let (at, len) = ((&raw mut count).cast(), size_of_val(&count));
        // SAFETY: the kernel writes at most `len` bytes.
        let read = unsafe { libc::read(self.0.as_raw_fd(), at, len) };
        match read {
            8 => Ok(count),
            0.. => Err(Error::from(ErrorKind::UnexpectedEof)),
            _ => Err(Error::last_os_error()),
        }
    }
}

fn open(event: Event, flags: u64) -> Result<OwnedFd, Error> {
    let attributes = Attributes {
        kind: event.kind,
        size: size_of::<Attributes>() as u32,
        config: event.config,
        flags,
        ..Attributes::default()
    };
    let (own, any_cpu, no_group, close_on_exec) = (0, -1, -1, 1u64 << 3);
    // SAFETY: the kernel reads as many bytes of the attributes as their size field says.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            own,
            any_cpu,
            no_group,
            close_on_exec,
        )
    };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event that the kernel itself counts on every machine. It proves that the call works.
    const CONTEXT_SWITCHES: Event = Event { kind: 1, config: 3 };

    #[test]
    fn what_is_counted_rises() {
        let counter = match open(CONTEXT_SWITCHES, 0) {
            Ok(fd) => Instructions(fd),
            Err(error) => panic!("failed to count context switches: {error}"),
        };
        let before = counter.so_far().expect("it can be read");
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(counter.so_far().expect("it can be read") > before);
    }
}
