//! The new host: the transfers that it expects, and the parts that arrive.

use std::net::IpAddr;
use std::time::Duration;

use super::message::{Message, Moved, PART, TransferId};
use dysco_explain::Explanation;

use super::{Action, PATIENCE, Transfers, failed, tell};
use crate::five_tuple::FiveTuple;
use crate::limits::MAX_BYTES;

const MOST_EXPECTED: (usize, usize) = (16_384, 65_536);
/// Greatest number of parts that arrived before their transfer was known, of one host and of
/// all, and the time for which they are kept.
pub(super) const MOST_EARLY: (usize, usize) = (1024, 8192);
pub(super) const EARLY: Duration = Duration::from_secs(2);
/// Greatest number of parts of a session's documents.
pub(super) const MAX_PARTS: u16 = MAX_BYTES.div_ceil(PART) as u16;

/// A part of documents whose transfer is still unknown.
pub(super) struct Early {
    pub(super) transfer: TransferId,
    pub(super) peer: Vec<IpAddr>,
    pub(super) part: Part,
    pub(super) forget_at: Duration,
}

/// A part of the documents.
pub(super) struct Part {
    pub(super) attempt: u16,
    /// Index of the part, and number of parts.
    pub(super) place: (u16, u16),
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Expected {
    pub(super) session: FiveTuple,
    pub(super) from: IpAddr,
    pub(super) anchor: IpAddr,
    pub(super) dry_run: bool,
    pub(super) attempt: u16,
    pub(super) parts: Vec<Option<Vec<u8>>>,
    pub(super) forget_at: Duration,
}

impl Expected {
    /// Returns a transfer from the first of two hosts, ordered by the second, of which no part has
    /// arrived.
    pub(super) fn new(
        session: FiveTuple,
        [from, anchor]: [IpAddr; 2],
        dry_run: bool,
        forget_at: Duration,
    ) -> Expected {
        Expected {
            session,
            from,
            anchor,
            dry_run,
            attempt: 0,
            parts: Vec::new(),
            forget_at,
        }
    }

    fn names(&self, other: &Expected) -> bool {
        (self.session, self.from, self.anchor, self.dry_run)
            == (other.session, other.from, other.anchor, other.dry_run)
    }
}

impl Transfers {
    pub(super) fn expect(&mut self, transfer: TransferId, expected: Expected) -> Vec<Action> {
        let anchor = expected.anchor;
        let known = self.expected.get(&transfer);
        let same = known.is_none_or(|known| known.names(&expected));
        if !same || known.is_none() && !self.expects_more_of(anchor) {
            let result = Err(failed(
                "the new host expects too much state, or another transfer of this name",
            ));
            return vec![Action::Transmit(
                anchor,
                Message::Ended { transfer, result },
            )];
        }
        self.expected.entry(transfer).or_insert_with(|| {
            *self.expected_of.entry(anchor).or_default() += 1;
            expected
        });
        let mut actions = vec![Action::Transmit(anchor, Message::Expecting { transfer })];
        let its = |early: &mut Early| early.transfer == transfer;
        let came: Vec<Early> = self.early.extract_if(.., its).collect();
        for early in came {
            actions.extend(self.part(early.forget_at, &early.peer, transfer, early.part));
        }
        actions
    }

    pub(super) fn part(
        &mut self,
        now: Duration,
        peer: &[IpAddr],
        transfer: TransferId,
        part: Part,
    ) -> Vec<Action> {
        let Some(expected) = self.expected.get_mut(&transfer) else {
            if self.has_room_for(peer) && part.bytes.len() <= PART {
                self.early.push(Early {
                    transfer,
                    peer: peer.to_vec(),
                    part,
                    forget_at: now + EARLY,
                });
            }
            return Vec::new();
        };
        let Part {
            attempt,
            place: (part, parts),
            bytes,
        } = part;
        let possible = part < parts && parts <= MAX_PARTS && bytes.len() <= PART;
        if !possible || !peer.contains(&expected.from) || attempt < expected.attempt {
            return Vec::new();
        }
        if attempt > expected.attempt || expected.parts.len() != usize::from(parts) {
            expected.attempt = attempt;
            expected.parts = vec![None; usize::from(parts)];
        }
        expected.parts[usize::from(part)] = Some(bytes);
        if expected.parts.iter().any(Option::is_none) {
            return Vec::new();
        }
        let documents = expected.parts.drain(..).flatten().flatten().collect();
        vec![Action::Install {
            transfer,
            session: expected.session,
            documents,
            dry_run: expected.dry_run,
        }]
    }

    /// True if the anchor may have another transfer expected. No anchor displaces the requests
    /// of others.
    fn expects_more_of(&self, anchor: IpAddr) -> bool {
        let its = |anchor| self.expected_of.get(&anchor).copied().unwrap_or(0);
        self.expected.len() < MOST_EXPECTED.1 && its(anchor) < MOST_EXPECTED.0
    }

    /// True if there is room for another early part of the host. No host displaces the parts of
    /// others.
    fn has_room_for(&self, peer: &[IpAddr]) -> bool {
        let its = self.early.iter().filter(|early| early.peer == peer);
        self.early.len() < MOST_EARLY.1 && its.count() < MOST_EARLY.0
    }

    /// Sends the result of an installation: the documents installed, or the reason why none was.
    pub fn installed(
        &mut self,
        now: Duration,
        transfer: TransferId,
        result: Result<Moved, Explanation>,
    ) -> Vec<Action> {
        let expected = self.expected.get_mut(&transfer);
        let anchor = expected.map(|expected| {
            // The asking host may still update the state, until it gives up.
            expected.forget_at = expected.forget_at.min(now + PATIENCE);
            expected.anchor
        });
        anchor
            .map(|anchor| tell(anchor, transfer, result))
            .into_iter()
            .collect()
    }

    pub(super) fn expect_only(&mut self, keep: impl Fn(&Expected) -> bool) {
        for (_, gone) in self.expected.extract_if(|_, expected| !keep(expected)) {
            if let Some(its) = self.expected_of.get_mut(&gone.anchor) {
                *its -= 1;
            }
        }
        self.expected_of.retain(|_, its| *its > 0);
    }
}
