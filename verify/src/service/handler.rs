//! The handler of a host: its sockets for the session, and its services.

use super::tcp::{ADDED, Byte, HANDLED, Tcp};

/// Change of a stream's length by a service, besides the change of each byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Delta {
    /// None.
    #[default]
    Zero,
    /// A byte follows the first one.
    More,
    /// The first byte is taken away.
    Less,
}

impl Delta {
    /// Returns the bytes that replace a byte. `first` is true for the first byte.
    pub fn of(self, byte: Byte, first: bool) -> Vec<Byte> {
        let changed = byte | HANDLED;
        match self {
            Delta::More if first => vec![changed, byte | ADDED],
            Delta::Less if first => Vec::new(),
            _ => vec![changed],
        }
    }

    /// Returns the number of bytes that are added once this many have arrived, modulo 2^32.
    pub fn added(self, seen: u8) -> u32 {
        match self {
            _ if seen == 0 => 0,
            Delta::Zero => 0,
            Delta::More => 1,
            Delta::Less => u32::MAX,
        }
    }
}

/// The handler's part in a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Handler {
    /// The near socket and, for services at one end, the far one.
    pub sockets: [Option<Tcp>; 2],
    /// Effect of the services on each direction.
    pub deltas: [Delta; 2],
    /// Bytes of each direction that the services had.
    pub seen: [u8; 2],
    /// Bytes that were read from each socket.
    pub read: [u8; 2],
    /// True if the services have left: bytes then pass unchanged.
    pub left: bool,
    /// Connection to the other handler.
    pub tunnel: Option<u8>,
    /// True if bytes of the other handler may be read.
    pub open: bool,
    /// Bytes of the connection that were not read.
    pub came: Vec<Byte>,
    /// True if the last frame of the other handler has arrived.
    pub came_end: bool,
    /// True if the last frame was sent.
    pub sent_end: bool,
}

impl Handler {
    /// Puts services between two sockets. `start` has the first numbers of the two ends' streams:
    /// of the local end, and of the other end.
    pub fn new(start: [u32; 2], deltas: [Delta; 2], far: bool) -> Handler {
        Handler {
            sockets: [
                Some(Tcp::new(start[1], start[0])),
                far.then(|| Tcp::new(start[0], start[1])),
            ],
            deltas,
            seen: [0; 2],
            read: [0; 2],
            left: false,
            tunnel: None,
            open: false,
            came: Vec::new(),
            came_end: false,
            sent_end: false,
        }
    }

    /// True if its sockets were reset.
    pub(crate) fn is_dead(&self) -> bool {
        self.sockets.iter().flatten().all(|socket| socket.dead)
    }

    /// Moves the bytes of one direction from socket to socket.
    pub fn relay(&mut self, d: usize) {
        let [near, far] = &mut self.sockets;
        let (from, to) = match d {
            0 => (near, far),
            _ => (far, near),
        };
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        for byte in &from.got[usize::from(self.read[d])..] {
            self.read[d] += 1;
            if self.left {
                to.sends.push(*byte);
                continue;
            }
            to.sends.extend(self.deltas[d].of(*byte, self.seen[d] == 0));
            self.seen[d] += 1;
        }
        to.ends |= from.has_ended();
    }

    /// Encrypts what the local end has sent. Returns the bytes for the other handler, and whether
    /// the last frame follows them.
    pub(crate) fn encrypt(&mut self) -> (Vec<Byte>, bool) {
        let Some(near) = &self.sockets[0] else {
            return (Vec::new(), false);
        };
        let new = &near.got[usize::from(self.read[0])..];
        let out = new.iter().map(|byte| byte | HANDLED).collect();
        self.read[0] = near.got.len() as u8;
        let end = near.has_ended() && !self.sent_end;
        self.sent_end |= end;
        (out, end)
    }

    /// Decrypts what the other handler has sent, if it may be read.
    pub(crate) fn decrypt(&mut self) {
        let Some(near) = self.sockets[0].as_mut().filter(|_| self.open) else {
            return;
        };
        let came = self.came.drain(..);
        near.sends.extend(came.map(|byte| byte ^ HANDLED | ADDED));
        near.ends |= self.came_end;
    }
}
