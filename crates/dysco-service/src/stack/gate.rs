//! The bytes of one direction that a service gets. Other bytes pass by it, in order.

/// A gate in front of a service, for one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gate {
    /// Number of bytes that pass by first. `None` until the other host has sent it: until then all
    /// bytes pass by.
    before: Option<u64>,
    /// Number of bytes that the service gets after these; `None` for all following bytes.
    given: Option<u64>,
}

impl Gate {
    /// The service gets all bytes.
    pub(super) const OPEN: Gate = Gate::after(0);
    /// The service gets no bytes.
    pub(super) const CLOSED: Gate = Gate {
        before: Some(0),
        given: Some(0),
    };
    /// The service gets no bytes until the other host has named the first one.
    pub(super) const WAITING: Gate = Gate {
        before: None,
        given: None,
    };

    /// Returns a gate that lets a number of bytes pass by first.
    pub(super) const fn after(bytes: u64) -> Gate {
        Gate {
            before: Some(bytes),
            given: None,
        }
    }

    /// Lets the service get this number of further bytes, and none after them. Returns false if its
    /// first byte is not known.
    pub(super) fn end_after(&mut self, bytes: u64) -> bool {
        self.given = Some(bytes);
        self.before.is_some()
    }

    /// Takes up to `len` bytes. Returns their number, and true if the service gets them.
    pub(super) fn take(&mut self, len: usize) -> (usize, bool) {
        let (left, served) = match (&mut self.before, &mut self.given) {
            (None, _) | (Some(0), Some(0)) => return (len, false),
            (Some(0), None) => return (len, true),
            (Some(0), Some(given)) => (given, true),
            (Some(before), _) => (before, false),
        };
        let taken = usize::try_from(*left).map_or(len, |left| left.min(len));
        *left -= taken as u64;
        (taken, served)
    }

    /// Returns true if the service gets the end of the direction.
    pub(super) fn gives_end(self) -> bool {
        self.before == Some(0) && self.given != Some(0)
    }

    /// Returns true if the service gets no further byte.
    pub(super) fn is_closed(self) -> bool {
        self == Gate::CLOSED
    }

    /// Returns the number of bytes that pass by before the first one that the service gets.
    pub(super) fn to_pass(self) -> u64 {
        self.before.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_divided_at_the_told_ones() {
        let mut gate = Gate::after(5);
        assert_eq!(gate.take(3), (3, false));
        assert!(!gate.gives_end());
        assert_eq!((gate.take(9), gate.to_pass()), ((2, false), 0));
        assert_eq!((gate.take(7), gate), ((7, true), Gate::OPEN));
        assert!(gate.end_after(5));
        assert_eq!(gate.take(3), (3, true));
        assert!(gate.gives_end() && !gate.is_closed());
        assert_eq!(gate.take(9), (2, true));
        assert_eq!(gate.take(7), (7, false));
        assert!(!gate.gives_end() && gate.is_closed());
        let mut waiting = Gate::WAITING;
        assert_eq!(waiting.take(7), (7, false));
        assert!(!waiting.end_after(1));
        // The last byte is known before the first one has arrived.
        let mut both = Gate::after(2);
        assert!(both.end_after(3));
        assert_eq!([both.take(9), both.take(9)], [(2, false), (3, true)]);
        assert!(both.is_closed());
    }
}
