//! Simulated processes with sessions of all kinds, and their counts at random moments while they
//! hold bytes.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRng;

use super::pairing::{Counts, Found, Kind, Series};
use super::slow::{Limits, Slow};

/// Treatment of a client's session by a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Habit {
    /// Forwards all bytes, after this number of its own.
    Relay(i64),
    /// Forwards the same bytes to two servers.
    Mirror,
    /// Answers by itself, while the server's session idles.
    Cache,
    /// Adds a byte to each message.
    Adds,
    /// Writes three quarters of the bytes that it reads.
    Shrinks,
    /// Uses its server's session for the next client too.
    Pool,
    /// Forwards all bytes, after this number of its own, as fast as the sink of one direction
    /// allows: forward if true, otherwise reverse.
    Slow(i64, bool, Limits),
}

/// Counts of one socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Socket {
    read: i64,
    written: i64,
}

pub(super) struct World {
    rng: TestRng,
    habits: Vec<Habit>,
    sockets: Vec<Socket>,
    kinds: Vec<Kind>,
    /// Sockets of each client: accepted, opened, and the second one of a mirror.
    pub own: Vec<(usize, usize, Option<usize>)>,
    /// Bytes that were read and not written yet: client, forward, number.
    held: Vec<(usize, bool, i64)>,
    /// Slow direction of each client that has one.
    slow: HashMap<usize, Slow>,
}

impl World {
    pub(super) fn new(rng: TestRng, habits: &[Habit]) -> World {
        let mut w = World {
            rng,
            habits: habits.to_vec(),
            sockets: Vec::new(),
            kinds: Vec::new(),
            own: Vec::new(),
            held: Vec::new(),
            slow: HashMap::new(),
        };
        for habit in habits {
            let a = w.socket(true);
            let shared = match w.own.last() {
                Some((_, b, _)) if *habit == Habit::Pool => Some(*b),
                _ => None,
            };
            let b = shared.unwrap_or_else(|| w.socket(false));
            let second = (*habit == Habit::Mirror).then(|| w.socket(false));
            if let Habit::Relay(header) | Habit::Slow(header, ..) = habit {
                w.sockets[b].written += header;
            }
            if let Habit::Slow(_, _, limits) = habit {
                w.slow.insert(w.own.len(), Slow::new(*limits));
            }
            w.own.push((a, b, second));
        }
        w
    }

    fn socket(&mut self, accepted: bool) -> usize {
        self.sockets.push(Socket::default());
        self.kinds.push(Kind {
            accepted,
            port: 80,
            born: Some(self.kinds.len() as u64),
        });
        self.sockets.len() - 1
    }

    fn below(&mut self, n: usize) -> usize {
        (self.rng.next_u64() % n as u64) as usize
    }

    /// Returns the source and the sink of a client's slow direction.
    fn ends(&self, client: usize) -> (usize, usize) {
        let (a, b, _) = self.own[client];
        match self.habits[client] {
            Habit::Slow(_, false, _) => (b, a),
            _ => (a, b),
        }
    }

    /// Advances each slow direction, including its process.
    fn step_slow(&mut self) {
        let clients: Vec<usize> = self.slow.keys().copied().collect();
        for client in clients {
            let turn = self.below(5);
            let (from, to) = self.ends(client);
            let Some(slow) = self.slow.get_mut(&client) else {
                continue;
            };
            match turn {
                0 => slow.send(),
                1 => slow.take(),
                2 => self.sockets[from].read += slow.read(),
                3 => self.sockets[to].written += slow.write(),
                _ => {
                    self.sockets[to].written += slow.write();
                    self.sockets[from].read += slow.read();
                    self.sockets[to].written += slow.write();
                }
            }
        }
    }

    /// Returns true if the process has no work to do.
    fn rests(&self) -> bool {
        self.held.is_empty() && self.slow.values().all(Slow::rests)
    }

    /// Returns the slow direction of which a socket is the source or the sink, if any.
    fn slow_at(&self, socket: usize, source: bool) -> Option<&Slow> {
        let at = |client: &usize| {
            let (from, to) = self.ends(*client);
            socket == if source { from } else { to }
        };
        self.slow
            .iter()
            .find(|(client, _)| at(client))
            .map(|(_, s)| s)
    }

    /// Moves bytes: reads and holds some, or writes some of those held.
    fn step(&mut self) {
        if !self.held.is_empty() && self.below(4) != 0 {
            let i = self.below(self.held.len());
            let (client, forward, bytes) = self.held.swap_remove(i);
            return self.write(client, forward, bytes);
        }
        let client = self.below(self.own.len());
        // Half of the steps have one size, so that sessions in step are likely.
        let size = match self.below(2) {
            0 => 1000,
            _ => 1 + self.below(1400) as i64,
        };
        let (forward, bytes) = (self.below(2) == 0, size);
        let (a, b, _) = self.own[client];
        match (self.habits[client], forward) {
            (Habit::Cache, false) => {}
            (Habit::Slow(_, slow, _), forward) if slow == forward => {}
            (Habit::Cache, true) => {
                self.sockets[a].read += bytes;
                self.sockets[a].written += 10 * bytes;
            }
            (_, forward) => {
                let from = if forward { a } else { b };
                self.sockets[from].read += bytes;
                self.held.push((client, forward, bytes));
            }
        }
    }

    fn write(&mut self, client: usize, forward: bool, bytes: i64) {
        let (a, b, second) = self.own[client];
        let bytes = match self.habits[client] {
            Habit::Adds => bytes + 1,
            Habit::Shrinks => bytes - bytes / 4,
            _ => bytes,
        };
        if !forward {
            self.sockets[a].written += bytes;
            return;
        }
        self.sockets[b].written += bytes;
        if let Some(second) = second {
            self.sockets[second].written += bytes;
        }
    }

    /// Watches for a number of moments. Some sockets are missed at each of them.
    pub(super) fn watch(&mut self, moments: u64, order: &[usize]) -> Series {
        let kinds = order.iter().map(|i| self.kinds[*i]).collect();
        let mut series = Series::new(kinds);
        for at in 0..moments {
            for _ in 0..self.below(6) {
                self.step();
            }
            self.step_slow();
            let moment = series.moment(Duration::from_millis(5 * at), self.rests());
            for (place, i) in order.iter().enumerate() {
                let Socket { read, written } = self.sockets[*i];
                series.reading(place, read, written);
                let missed = self.below(5);
                let counts = Counts {
                    read: (missed != 0).then_some(read),
                    written: (missed != 1).then_some(written),
                    no_input: self.slow_at(*i, true).is_none_or(Slow::no_input),
                    has_room: self.slow_at(*i, false).is_none_or(Slow::has_room),
                };
                series.still(moment, place, counts);
            }
        }
        series
    }

    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.sockets.len()).collect()
    }

    /// Returns the right verdict: the sockets and deltas of a relay, with indices in this order.
    pub(crate) fn truth(&self, client: usize, order: &[usize]) -> Option<Found> {
        let (a, b, _) = self.own[client];
        let header = match self.habits[client] {
            Habit::Relay(header) | Habit::Slow(header, ..) => header,
            // The verdict holds as long as no other client has come.
            Habit::Pool => 0,
            _ => return None,
        };
        if self.own.iter().filter(|o| o.1 == b).count() > 1 {
            return None;
        }
        let at = |i| order.iter().position(|o| *o == i).unwrap();
        Some(Found {
            a: at(a),
            b: at(b),
            forward: header,
            reverse: 0,
        })
    }
}

pub(crate) fn habit() -> impl Strategy<Value = Habit> {
    prop_oneof![
        4 => (0..600i64).prop_map(Habit::Relay),
        1 => Just(Habit::Mirror),
        1 => Just(Habit::Cache),
        1 => Just(Habit::Adds),
        1 => Just(Habit::Shrinks),
        1 => Just(Habit::Pool),
        2 => slow(),
    ]
}

pub(super) fn slow() -> impl Strategy<Value = Habit> {
    let sizes = (1..80i64, 1..20i64, 1..60i64, 1..40i64, 1..20i64);
    (0..600i64, any::<bool>(), sizes).prop_map(|(header, forward, of)| {
        let (window, buffer, queue, sends, takes) = of;
        let limits = Limits {
            window: window << 10,
            buffer: buffer << 10,
            queue: queue << 10,
            sends: sends << 8,
            takes: takes << 8,
        };
        Habit::Slow(header, forward, limits)
    })
}

pub(super) fn rng(seed: [u8; 32]) -> TestRng {
    TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed)
}
