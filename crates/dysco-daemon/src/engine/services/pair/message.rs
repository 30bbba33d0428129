//! Messages of the other host about a pair.

use dysco_common::detour::phase;
use dysco_control::Incoming;
use dysco_explain::Cause;
use dysco_proto::marked::Marked;
use dysco_proto::pairs::{Change, Content, Message, PairId};
use dysco_runner::protocol::Request;

use super::super::{Services, Stage};
use super::invite::Invitation;
use super::send;
use crate::engine::Plane;

impl Services {
    /// Takes a message about services at both ends.
    pub(in crate::engine) fn take_pair_message(&mut self, plane: &mut Plane, incoming: &Incoming) {
        let Some(Message { pair, content }) = Message::decode(&incoming.message) else {
            plane.state.malformed += 1;
            tracing::warn!(from = %incoming.via, "a message about services was discarded");
            return;
        };
        let content = match content {
            Content::Invite {
                opener,
                other,
                services,
                secret,
                token,
                silent,
            } => {
                let invitation = Invitation {
                    opener,
                    other,
                    services,
                    secret,
                    token,
                    silent,
                };
                return self.invited(plane, incoming, pair, invitation);
            }
            other => other,
        };
        let slot = self.slot_of_pair(pair).filter(|slot| {
            let paired = self.sessions.get(slot).and_then(|one| one.paired.as_ref());
            paired.is_some_and(|paired| incoming.from.holds(paired.peer))
        });
        match slot {
            Some(slot) => self.take_content(plane, slot, content),
            // The handler of an earlier process has not told its pairs yet: the message comes again.
            None if !self.taking_up.is_empty() => {}
            None => unknown(plane, incoming, pair, &content),
        }
    }

    fn take_content(&mut self, plane: &mut Plane, slot: u32, content: Content) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let Some(paired) = &mut one.paired else {
            return;
        };
        match content {
            Content::Invite { .. } => {}
            Content::Invited(answer) => self.answered_invitation(plane, slot, answer),
            Content::Proceed => {
                paired.proceeds = true;
                match one.stage {
                    Stage::Accepted(..) => self.order(plane, slot),
                    // It has not received the answer.
                    Stage::Entering | Stage::In => self.say(plane, slot, Content::Ready),
                    _ => {}
                }
            }
            Content::Ready => self.order(plane, slot),
            Content::Cut(change, at) => self.cut_told(plane, slot, change, at),
            Content::Done(change) => {
                paired.done = Some(change);
                plane.agent.confirm_detour(slot, phase_of(change));
                self.step(plane, slot);
            }
            Content::Leave => self.leave_with_peer(plane, slot),
            Content::Leaving => {
                if one.stage == Stage::Leaving {
                    one.leave_out(plane, slot);
                }
            }
            Content::Out => {
                paired.out = true;
                self.step(plane, slot);
            }
            Content::Abort(cause) => self.aborted(plane, slot, cause),
            Content::Alter(wanted) => self.alter(plane, slot, &wanted),
            Content::Altered(secret, result) => self.altered(plane, slot, secret, result),
        }
    }

    /// The other host has told the cutoff of its end's data.
    fn cut_told(&mut self, plane: &mut Plane, slot: u32, change: Change, at: u32) {
        if plane.agent.tell_cut(slot, phase_of(change), at) {
            if change == Change::Enter {
                let session = u64::from(slot);
                self.send(slot, Request::Open { session });
            }
            self.step(plane, slot);
            return;
        }
        // A repetition: the change is over here. Or this host has not ordered it yet.
        let over = self.sessions.get(&slot).map(|one| (change, one.stage));
        if matches!(
            over,
            Some((Change::Enter, Stage::In | Stage::Leaving) | (Change::Leave, Stage::Leaving))
        ) {
            self.say(plane, slot, Content::Done(change));
        }
    }

    /// The other host has ended the pair.
    fn aborted(&mut self, plane: &mut Plane, slot: u32, cause: Cause) {
        let stage = self.sessions.get(&slot).map(|one| one.stage);
        match stage {
            None | Some(Stage::Direct) => {}
            Some(Stage::Invited | Stage::Sockets) => self.refuse(plane, slot, cause),
            Some(Stage::Offered(..) | Stage::Accepted(..)) => {
                self.release(slot);
                self.refuse(plane, slot, cause);
            }
            Some(Stage::Leaving) if self.is_out(plane, slot) => self.out(plane, slot),
            Some(_) => self.end_session(
                plane,
                slot,
                &format!("the handler of the other host has ended: {}", cause.why),
            ),
        }
    }
}

/// Answers about a pair that this host does not know, or no longer.
fn unknown(plane: &Plane, incoming: &Incoming, pair: PairId, content: &Content) {
    let answer = match content {
        // An answer of the same kind would be answered in turn, for ever.
        Content::Proceed | Content::Ready | Content::Cut(..) | Content::Leave | Content::Out => {
            let why = "the host of the other end no longer knows these services: the session has \
                       ended there, or they were given up";
            Content::Abort(why.into())
        }
        // The other services stay there.
        Content::Alter(wanted) => {
            let why = "the host of its other end no longer knows its services";
            Content::Altered(wanted.secret, Err(why.into()))
        }
        _ => return,
    };
    if let Some(peer) = incoming.from.addresses.first() {
        send(plane, *peer, pair, answer);
    }
}

/// Returns the phase of a way during a change.
pub(super) fn phase_of(change: Change) -> u32 {
    match change {
        Change::Enter => phase::ENTERING,
        Change::Leave => phase::LEAVING,
    }
}
