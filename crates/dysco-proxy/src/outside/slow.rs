//! A direction of a simulated process with a slow sink, and the places of its bytes.

/// Capacities in bytes, and the speed of each end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Number of bytes in transit at which the sender stops.
    pub window: i64,
    /// Maximum number of bytes that the process holds.
    pub buffer: i64,
    /// Size of the sink's send buffer.
    pub queue: i64,
    /// Number of bytes that the sender sends at a time.
    pub sends: i64,
    /// Number of bytes that the receiver takes at a time.
    pub takes: i64,
}

/// Number of bytes in each place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    limits: Limits,
    unread: i64,
    held: i64,
    queued: i64,
    /// True if the process has met a full sink, and waits until the sink is writable.
    waits: bool,
}

impl Slow {
    pub(super) fn new(limits: Limits) -> Slow {
        Slow {
            limits,
            unread: 0,
            held: 0,
            queued: 0,
            waits: false,
        }
    }

    pub(super) fn send(&mut self) {
        let under_way = self.unread + self.held + self.queued;
        self.unread += self.limits.sends.min(self.limits.window - under_way).max(0);
    }

    pub(super) fn take(&mut self) {
        self.queued -= self.limits.takes.min(self.queued);
    }

    /// Lets the process read, and returns the number of bytes.
    pub(super) fn read(&mut self) -> i64 {
        let bytes = self.unread.min(self.limits.buffer - self.held);
        self.unread -= bytes;
        self.held += bytes;
        bytes
    }

    /// Lets the process write, and returns the number of bytes.
    pub(super) fn write(&mut self) -> i64 {
        if self.waits && !self.has_room() {
            return 0;
        }
        let bytes = self.held.min(self.limits.queue - self.queued);
        self.held -= bytes;
        self.queued += bytes;
        self.waits = self.held > 0;
        bytes
    }

    pub(crate) fn no_input(&self) -> bool {
        self.unread == 0
    }

    /// Returns true if the kernel would report the sink as writable, which it does while at least
    /// a third of the buffer is free.
    pub(super) fn has_room(&self) -> bool {
        3 * self.queued <= 2 * self.limits.queue
    }

    /// Returns true if the process has no work to do.
    pub(super) fn rests(&self) -> bool {
        let may_read = self.unread > 0 && self.held < self.limits.buffer;
        let may_write = self.held > 0 && (!self.waits || self.has_room());
        !may_read && !may_write
    }
}
