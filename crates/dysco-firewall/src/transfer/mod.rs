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
mod receiving;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use dysco_explain::Explanation;
use dysco_proto::KindName;

use super::five_tuple::FiveTuple;
use super::limits::MAX_BYTES;
use message::{MAX_REASON, PART};
use receiving::{Early, Expected, Part};

pub use message::{Message, Moved, TransferId};

/// Time after which a message without an answer is sent again.
const REPEAT: Duration = Duration::from_secs(1);
/// Time after which the asking host gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which a host forgets that it was asked to expect state.
const MEMORY: Duration = Duration::from_secs(60);
/// Greatest number of transfers at a time: of those that this host began, of those that one host
/// wants this host to expect, and of those that all hosts want it to expect.
const MOST: usize = 4096;

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
    /// Returns the name of the action or of its message, for tests.
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

struct Ordered {
    order: Order,
    /// True if the new host has answered that it expects the transfer.
    expecting: bool,
    attempt: u16,
    repeat_at: Duration,
    give_up_at: Duration,
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
                let Some(anchor) = end_of(&session, peer) else {
                    return Vec::new();
                };
                if peer.contains(&from.to_canonical()) {
                    let why = format!("{from} asks for it, and gives no state itself");
                    return vec![tell(anchor, transfer, Err(failed(why)))];
                }
                let forget_at = now + MEMORY;
                let expected = Expected::new(session, [from, anchor], dry_run, forget_at);
                self.expect(transfer, expected)
            }
            Message::Expecting { transfer } => {
                self.expecting(peer, transfer);
                Vec::new()
            }
            Message::Give {
                transfer,
                session,
                to,
                kinds,
                attempt,
            } => {
                let export = |anchor| Action::Export {
                    give: Give {
                        transfer,
                        anchor,
                        to,
                        attempt,
                    },
                    session,
                    kinds,
                };
                end_of(&session, peer).map(export).into_iter().collect()
            }
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

    fn expecting(&mut self, peer: &[IpAddr], transfer: TransferId) {
        let ordered = self.orders.get_mut(&transfer);
        if let Some(ordered) = ordered.filter(|o| peer.contains(&o.order.to)) {
            ordered.expecting = true;
        }
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

    /// Forgets a session: no transfer of it is expected any longer.
    pub fn forget(&mut self, session: &FiveTuple) {
        let names = [*session, session.reversed()];
        self.expect_only(|expected| !names.contains(&expected.session));
    }

    /// Repeats messages without an answer, gives up transfers, and forgets them. The caller calls
    /// this at least once a second.
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
    /// until the end. The new host is asked until it answers that it expects the transfer.
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
