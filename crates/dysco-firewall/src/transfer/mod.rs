//! Transfer of state from one host to another. An end of the session asks for it, the old host
//! exports it, and the new host installs it. The code is sans-IO, like the session protocol, and
//! separate from it: a change waits for a transfer as for any other step.
//!
//! ```text
//! anchor               new host              old host
//!   ---- Give -------------------------------->            it exports
//!   ---- Expect -------->
//!   <--- Expecting ------
//!                          <--- Part, Part … --
//!   <--- Ended ----------                                  it installs
//! ```
//!
//! The asking host sends `Give` without waiting. The new host keeps parts that overtake `Expect`
//! until that message arrives.
//!
//! Only a host that has an end of the session may ask. The new host takes documents only from
//! the named old host, and only of the named session. The old host cannot be the asking host,
//! which would open its own way through a firewall. A repeated request is harmless: the state is
//! exported again, and updated.

mod message;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use dysco_explain::Explanation;
use dysco_proto::KindName;

use super::document::{FiveTuple, MAX_BYTES};
use message::{MAX_REASON, PART};
pub use message::{Message, Moved, TransferId};

/// Time after which a message without an answer is sent again.
const REPEAT: Duration = Duration::from_secs(1);
/// Time after which the asking host gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which a host forgets that it was asked to expect state.
const MEMORY: Duration = Duration::from_secs(60);
/// Greatest number of transfers at a time that this host began; that one host, and all hosts,
/// want this host to expect.
const MOST: usize = 4096;
const MOST_EXPECTED: (usize, usize) = (16_384, 65_536);
/// Greatest number of parts that arrived before their transfer was known, of one host and of
/// all, and the time for which they are kept.
const MOST_EARLY: (usize, usize) = (1024, 8192);
const EARLY: Duration = Duration::from_secs(2);
/// Greatest number of parts of a session's documents.
const MAX_PARTS: u16 = MAX_BYTES.div_ceil(PART) as u16;

/// Step that the caller must take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this message.
    Transmit(IpAddr, Message),
    /// Export, and call [`Transfers::exported`].
    Export {
        /// The handle for that call.
        give: Give,
        /// The session.
        session: FiveTuple,
        /// The kinds.
        kinds: Vec<KindName>,
    },
    /// Install, and call [`Transfers::installed`].
    Install {
        /// The transfer.
        transfer: TransferId,
        /// The session.
        session: FiveTuple,
        /// The documents' JSON.
        documents: Vec<u8>,
        /// True to check only that the documents could be installed.
        dry_run: bool,
    },
    /// A transfer that this host began has ended.
    Ended {
        /// The transfer.
        transfer: TransferId,
        /// The documents installed, or the reason why none was.
        result: Result<Moved, Explanation>,
    },
}

impl Action {
    /// Returns its name, for tests; for a message that of the message.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Transmit(_, message) => message.name(),
            Action::Export { .. } => "Export",
            Action::Install { .. } => "Install",
            Action::Ended { .. } => "Moved",
        }
    }
}

/// Destination of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Give {
    transfer: TransferId,
    anchor: IpAddr,
    to: IpAddr,
    attempt: u16,
}

/// Request of an end of the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// The session.
    pub session: FiveTuple,
    /// The old host.
    pub from: IpAddr,
    /// The new host.
    pub to: IpAddr,
    /// Only these kinds; all if empty.
    pub kinds: Vec<KindName>,
    /// True to check only that the state could be installed.
    pub dry_run: bool,
}

/// The transfers of this host, in all three roles.
#[derive(Default)]
pub struct Transfers {
    orders: HashMap<TransferId, Ordered>,
    expected: HashMap<TransferId, Expected>,
    /// Number of expected transfers, by anchor.
    expected_of: HashMap<IpAddr, usize>,
    early: Vec<Early>,
}

/// A part of documents whose transfer is still unknown.
struct Early {
    transfer: TransferId,
    peer: Vec<IpAddr>,
    part: Part,
    forget_at: Duration,
}

/// A part of the documents.
struct Part {
    attempt: u16,
    /// Index of the part, and number of parts.
    place: (u16, u16),
    bytes: Vec<u8>,
}

struct Ordered {
    order: Order,
    /// True if the new host has said that it expects the transfer.
    expecting: bool,
    attempt: u16,
    repeat_at: Duration,
    give_up_at: Duration,
}

struct Expected {
    session: FiveTuple,
    from: IpAddr,
    anchor: IpAddr,
    dry_run: bool,
    attempt: u16,
    parts: Vec<Option<Vec<u8>>>,
    forget_at: Duration,
}

impl Transfers {
    /// Begins a transfer, which ends with an [`Action::Ended`].
    pub fn begin(&mut self, now: Duration, transfer: TransferId, order: Order) -> Vec<Action> {
        if self.orders.len() >= MOST {
            let result = Err(failed("too many transfers are in progress").hint("try again"));
            return vec![Action::Ended { transfer, result }];
        }
        let ordered = Ordered {
            order,
            expecting: false,
            attempt: 0,
            repeat_at: now + REPEAT,
            give_up_at: now + PATIENCE,
        };
        let said = ordered.say(transfer);
        self.orders.insert(transfer, ordered);
        said
    }

    /// Handles a message of a host with these addresses.
    pub fn handle(&mut self, now: Duration, peer: &[IpAddr], message: Message) -> Vec<Action> {
        match message {
            Message::Expect {
                transfer,
                session,
                from,
                dry_run,
            } => {
                let expected = |anchor| Expected {
                    session,
                    from,
                    anchor,
                    dry_run,
                    attempt: 0,
                    parts: Vec::new(),
                    forget_at: now + MEMORY,
                };
                match end_of(&session, peer) {
                    Some(anchor) if peer.contains(&from.to_canonical()) => {
                        let why = format!("{from} asks for it, and gives no state itself");
                        vec![tell(anchor, transfer, Err(failed(why)))]
                    }
                    Some(anchor) => self.expect(transfer, expected(anchor)),
                    None => Vec::new(),
                }
            }
            Message::Expecting { transfer } => {
                let ordered = self.orders.get_mut(&transfer);
                if let Some(ordered) = ordered.filter(|o| peer.contains(&o.order.to)) {
                    ordered.expecting = true;
                }
                Vec::new()
            }
            Message::Give {
                transfer,
                session,
                to,
                kinds,
                attempt,
            } => match end_of(&session, peer) {
                Some(anchor) => vec![Action::Export {
                    give: Give {
                        transfer,
                        anchor,
                        to,
                        attempt,
                    },
                    session,
                    kinds,
                }],
                None => Vec::new(),
            },
            Message::Part {
                transfer,
                attempt,
                part,
                parts,
                bytes,
            } => {
                let part = Part {
                    attempt,
                    place: (part, parts),
                    bytes,
                };
                self.part(now, peer, transfer, part)
            }
            Message::Ended { transfer, result } => self.ended(peer, transfer, result),
        }
    }

    fn expect(&mut self, transfer: TransferId, expected: Expected) -> Vec<Action> {
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

    fn part(
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

    fn ended(
        &mut self,
        peer: &[IpAddr],
        transfer: TransferId,
        result: Result<Moved, Explanation>,
    ) -> Vec<Action> {
        let own = self.orders.get(&transfer).is_some_and(|ordered| {
            let Order { from, to, .. } = &ordered.order;
            // The old host can only report a failure.
            peer.contains(to) || (peer.contains(from) && result.is_err())
        });
        if !own {
            return Vec::new();
        }
        self.orders.remove(&transfer);
        vec![Action::Ended { transfer, result }]
    }

    /// Sends the result of an export: the documents, or the reason why there are none.
    pub fn exported(&self, give: Give, documents: Result<Vec<u8>, Explanation>) -> Vec<Action> {
        let Give {
            transfer,
            anchor,
            to,
            attempt,
        } = give;
        let documents = match documents {
            Ok(documents) if documents.len() <= MAX_BYTES => documents,
            Ok(_) => return vec![tell(anchor, transfer, Err(failed("the state is too long")))],
            Err(why) => return vec![tell(anchor, transfer, Err(why))],
        };
        let parts = documents.len().div_ceil(PART) as u16;
        let part = |(part, bytes): (u16, &[u8])| {
            let message = Message::Part {
                transfer,
                attempt,
                part,
                parts,
                bytes: bytes.to_vec(),
            };
            Action::Transmit(to, message)
        };
        (0..).zip(documents.chunks(PART)).map(part).collect()
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

    /// Forgets a session: no transfer of it is expected any longer.
    pub fn forget(&mut self, session: &FiveTuple) {
        let names = [*session, session.reversed()];
        self.expect_only(|expected| !names.contains(&expected.session));
    }

    fn expect_only(&mut self, keep: impl Fn(&Expected) -> bool) {
        for (_, gone) in self.expected.extract_if(|_, expected| !keep(expected)) {
            if let Some(its) = self.expected_of.get_mut(&gone.anchor) {
                *its -= 1;
            }
        }
        self.expected_of.retain(|_, its| *its > 0);
    }

    /// Repeats messages without an answer, gives up transfers, and forgets them. To be called at
    /// least once a second.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        self.expect_only(|expected| expected.forget_at > now);
        self.early.retain(|early| early.forget_at > now);
        let late = |ordered: &Ordered| ordered.give_up_at <= now;
        let mut actions = Vec::new();
        for (transfer, ordered) in self.orders.extract_if(|_, ordered| late(ordered)) {
            let Order { from, to, .. } = ordered.order;
            let silent = if ordered.expecting {
                [from, to]
            } else {
                [to, to]
            };
            let who = match silent {
                [a, b] if a == b => a.to_string(),
                [a, b] => format!("{a} or {b}"),
            };
            let why = format!("{who} has not answered in time");
            let result = Err(failed(why).hint("see whether dyscod runs there"));
            actions.push(Action::Ended { transfer, result });
        }
        for (transfer, ordered) in &mut self.orders {
            if ordered.repeat_at <= now {
                ordered.repeat_at = now + REPEAT;
                ordered.attempt += 1;
                actions.extend(ordered.say(*transfer));
            }
        }
        actions
    }
}

impl Ordered {
    /// Repeats the requests that have no answer. The old host has the most work and is asked
    /// until the end. The new host is asked until it says that it expects the transfer.
    fn say(&self, transfer: TransferId) -> Vec<Action> {
        let Order {
            session,
            from,
            to,
            kinds,
            dry_run,
        } = self.order.clone();
        let expect = Message::Expect {
            transfer,
            session,
            from,
            dry_run,
        };
        let give = Message::Give {
            transfer,
            session,
            to,
            kinds,
            attempt: self.attempt,
        };
        let expect = (!self.expecting).then_some(Action::Transmit(to, expect));
        let give = Action::Transmit(from, give);
        [give].into_iter().chain(expect).collect()
    }
}

impl Expected {
    fn names(&self, other: &Expected) -> bool {
        (self.session, self.from, self.anchor, self.dry_run)
            == (other.session, other.from, other.anchor, other.dry_run)
    }
}

fn failed(why: impl ToString) -> Explanation {
    Explanation::new("move state", why)
}

fn tell(to: IpAddr, transfer: TransferId, result: Result<Moved, Explanation>) -> Action {
    let result = result.map_err(|mut error| {
        let Explanation { what, why, hint } = &mut error;
        for part in [what, why].into_iter().chain(hint) {
            part.truncate(part.floor_char_boundary(MAX_REASON));
        }
        error
    });
    Action::Transmit(to, Message::Ended { transfer, result })
}

/// Returns the end of the session that a host with these addresses has.
fn end_of(session: &FiveTuple, peer: &[IpAddr]) -> Option<IpAddr> {
    let ends = session.ends().map(|end| end.ip().to_canonical());
    ends.into_iter().find(|end| peer.contains(end))
}
