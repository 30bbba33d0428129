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
//! Only a host that holds an end of the session may ask, and the new host takes
//! documents from the one old host that it named, of that one session. That cannot be the
//! host that asks: it would open its own way through a firewall. Asking again is harmless:
//! the state is exported anew, and brought up to date.

mod message;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

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
/// Most transfers at once that this host began, and that one host and all want it to expect.
const MOST: usize = 4096;
const MOST_EXPECTED: (usize, usize) = (16_384, 65_536);
/// Most parts that came before it was known what for, of one host and of all, and how
/// long they are kept.
const MOST_EARLY: (usize, usize) = (1024, 8192);
const EARLY: Duration = Duration::from_secs(2);
/// Most parts of the documents of a session.
const MAX_PARTS: u16 = MAX_BYTES.div_ceil(PART) as u16;

/// Step that the caller must take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Say this.
    Transmit(IpAddr, Message),
    /// Export, and hand in [`Transfers::exported`].
    Export {
        /// For which transfer.
        give: Give,
        /// Of which session.
        session: FiveTuple,
        /// The kinds.
        kinds: Vec<KindName>,
    },
    /// Install, and hand in [`Transfers::installed`].
    Install {
        /// For which transfer.
        transfer: TransferId,
        /// Of which session.
        session: FiveTuple,
        /// The documents' JSON.
        documents: Vec<u8>,
        /// Only see whether it could be.
        dry_run: bool,
    },
    /// A transfer that this host began has ended.
    Ended {
        /// The transfer.
        transfer: TransferId,
        /// Installed, or why nothing was.
        result: Result<Moved, String>,
    },
}

impl Action {
    /// Its name, for tests; that of the message which it is to say.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Transmit(_, message) => message.name(),
            Action::Export { .. } => "Export",
            Action::Install { .. } => "Install",
            Action::Ended { .. } => "Moved",
        }
    }
}

/// To whom an export goes.
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
    /// Whose state.
    pub session: FiveTuple,
    /// The old host.
    pub from: IpAddr,
    /// The new host.
    pub to: IpAddr,
    /// Only these kinds; all without any.
    pub kinds: Vec<KindName>,
    /// Only see whether it could be installed.
    pub dry_run: bool,
}

/// The transfers of this host, in all of its parts.
#[derive(Default)]
pub struct Transfers {
    orders: HashMap<TransferId, Ordered>,
    expected: HashMap<TransferId, Expected>,
    /// Number of expected transfers, by anchor.
    expected_of: HashMap<IpAddr, usize>,
    early: Vec<Early>,
}

/// A part of documents that nothing is known of yet.
struct Early {
    transfer: TransferId,
    peer: Vec<IpAddr>,
    part: Part,
    forget_at: Duration,
}

/// Some of the documents.
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
    /// Begins a transfer. It ends in an [`Action::Ended`].
    pub fn begin(&mut self, now: Duration, transfer: TransferId, order: Order) -> Vec<Action> {
        if self.orders.len() >= MOST {
            let result = Err("too many transfers are under way; try again".to_owned());
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

    /// Takes a message of a host with these addresses.
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
                        vec![tell(anchor, transfer, Err(why))]
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
            let result = Err("the new host expects too much, or something else".to_owned());
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

    /// Nobody crowds out what others ask for.
    fn expects_more_of(&self, anchor: IpAddr) -> bool {
        let its = |anchor| self.expected_of.get(&anchor).copied().unwrap_or(0);
        self.expected.len() < MOST_EXPECTED.1 && its(anchor) < MOST_EXPECTED.0
    }

    /// Nobody crowds out what others send.
    fn has_room_for(&self, peer: &[IpAddr]) -> bool {
        let its = self.early.iter().filter(|early| early.peer == peer);
        self.early.len() < MOST_EARLY.1 && its.count() < MOST_EARLY.0
    }

    fn ended(
        &mut self,
        peer: &[IpAddr],
        transfer: TransferId,
        result: Result<Moved, String>,
    ) -> Vec<Action> {
        let own = self.orders.get(&transfer).is_some_and(|ordered| {
            let Order { from, to, .. } = &ordered.order;
            // The old host can only say that it did not.
            peer.contains(to) || (peer.contains(from) && result.is_err())
        });
        if !own {
            return Vec::new();
        }
        self.orders.remove(&transfer);
        vec![Action::Ended { transfer, result }]
    }

    /// An export was made, or why not.
    pub fn exported(&self, give: Give, documents: Result<Vec<u8>, String>) -> Vec<Action> {
        let Give {
            transfer,
            anchor,
            to,
            attempt,
        } = give;
        let documents = match documents {
            Ok(documents) if documents.len() <= MAX_BYTES => documents,
            Ok(_) => return vec![tell(anchor, transfer, Err("the state is too long".into()))],
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

    /// Documents were installed, or why not.
    pub fn installed(
        &mut self,
        now: Duration,
        transfer: TransferId,
        result: Result<Moved, String>,
    ) -> Vec<Action> {
        let expected = self.expected.get_mut(&transfer);
        let anchor = expected.map(|expected| {
            // Who asked may still bring it up to date, as long as it has patience.
            expected.forget_at = expected.forget_at.min(now + PATIENCE);
            expected.anchor
        });
        anchor
            .map(|anchor| tell(anchor, transfer, result))
            .into_iter()
            .collect()
    }

    /// This host forgets a session: nothing of it is expected any more.
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

    /// Says again what was not answered, gives up, and forgets. Once a second or
    /// more often.
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
            let result = Err(format!("no answer of {who} in time; is dyscod up there?"));
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

fn tell(to: IpAddr, transfer: TransferId, result: Result<Moved, String>) -> Action {
    let result = result.map_err(|mut why| {
        let end = (0..=MAX_REASON.min(why.len()))
            .rev()
            .find(|&at| why.is_char_boundary(at));
        why.truncate(end.unwrap_or(0));
        why
    });
    Action::Transmit(to, Message::Ended { transfer, result })
}

/// The end of the session that a host with these addresses is.
fn end_of(session: &FiveTuple, peer: &[IpAddr]) -> Option<IpAddr> {
    let ends = session.ends().map(|end| end.ip().to_canonical());
    ends.into_iter().find(|end| peer.contains(end))
}
