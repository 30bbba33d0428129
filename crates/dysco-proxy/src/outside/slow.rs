//! A direction of a simulated process whose sink is slow: what is where.

/// How much fits where, in bytes, and how fast each end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The sender stops when so much is under way.
    pub window: i64,
    /// The process holds at most so much.
    pub buffer: i64,
    /// The sink's send buffer.
    pub queue: i64,
    /// The sender and the receiver move so much at a time.
    pub sends: i64,
    /// See `sends`.
    pub takes: i64,
}

/// Where the bytes are.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    limits: Limits,
    unread: i64,
    held: i64,
    queued: i64,
    /// The process has met a full sink, and waits until it is told to go on.
    waits: bool,
}

impl Slow {
    pub fn new(limits: Limits) -> Slow {
        Slow {
            limits,
            unread: 0,
            held: 0,
            queued: 0,
            waits: false,
        }
    }

    pub fn send(&mut self) {
        let under_way = self.unread + self.held + self.queued;
        self.unread += self.limits.sends.min(self.limits.window - under_way).max(0);
    }

    pub fn take(&mut self) {
        self.queued -= self.limits.takes.min(self.queued);
    }

    /// The process reads; returns how much.
    pub fn read(&mut self) -> i64 {
        let bytes = self.unread.min(self.limits.buffer - self.held);
        self.unread -= bytes;
        self.held += bytes;
        bytes
    }

    /// The process writes; returns how much.
    pub fn write(&mut self) -> i64 {
        if self.waits && !self.has_room() {
            return 0;
        }
        let bytes = self.held.min(self.limits.queue - self.queued);
        self.held -= bytes;
        self.queued += bytes;
        self.waits = self.held > 0;
        bytes
    }

    pub fn no_input(&self) -> bool {
        self.unread == 0
    }

    /// As the kernel sees it, from a third of the buffer on.
    pub fn has_room(&self) -> bool {
        3 * self.queued <= 2 * self.limits.queue
    }

    /// Has the process nothing to do?
    pub fn rests(&self) -> bool {
        let may_read = self.unread > 0 && self.held < self.limits.buffer;
        let may_write = self.held > 0 && (!self.waits || self.has_room());
        !may_read && !may_write
    }
}
