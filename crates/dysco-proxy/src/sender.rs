//! Senders of reports.

/// Sender of a report, as the kernel attests it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    /// Pid of the sender.
    pub pid: i32,
    /// User id of the sender.
    pub uid: u32,
}
