//! A removal is a chain of short steps on several hosts: each waits until the
//! daemon gets a processor, which on a busy host is most of the time it takes.

/// How long this thread means to run at a time.
const SLICE_NS: u64 = 100_000;

/// Asks the scheduler for short turns that come soon. The share of the
/// processor stays what it was. Kernels before 6.12 take no notice.
pub(super) fn take_short_turns() {
    // SAFETY: plain integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    let (own, none) = (0, 0);
    // SAFETY: the kernel writes at most `size` bytes to the structure.
    let read = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            own,
            &raw mut attributes,
            size,
            none,
        )
    };
    // A policy that the operator chose stays.
    if read != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.size = size;
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the kernel reads the structure, whose size it holds.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, own, &raw const attributes, none) };
    if set != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "the scheduler takes no wishes");
    }
}
