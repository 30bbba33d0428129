//! Bugs put in on purpose, to show that the check would find them. They sit
//! around the machine, in what it hears and has done: the machine has none of this.

use dysco_common::transit::Stays;
use dysco_proto::{ChangeId, Machine, Message, Phase, Role, Scope};

use super::config::{Configuration, LEFT, RIGHT};
use super::host::{LEFTWARDS, address};
use super::world::World;
use crate::pump::{NOW, Twist};

/// A bug that a protocol like this one may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seed {
    /// The right anchor forgets the path before when it has switched.
    RightForgets,
    /// The left anchor takes its cancel for answered at once.
    NoAck,
    /// A left anchor that is elsewhere is taken to be back on the path before at once.
    LeftNotBack,
    /// A cancel is said once, and nobody asks what became of the change.
    CancelOnce,
    /// A record is not written a second time.
    NoRecord,
    /// A second change goes on with the chain of before the first one's success.
    SecondAnchor,
    /// Hosts that leave are not asked by how much they have changed the stream.
    DeltaUnasked,
    /// State is taken for installed as soon as it is asked for.
    StateEarly,
    /// What was installed stays when the session does not come to the host after all.
    StateStays,
    /// What a new path has not carried is acknowledged there.
    AcksUnseen,
    /// A new path is taken for good before it has carried all.
    SettlesEarly,
    /// Who goes back to a path does not show its firewalls how far it is.
    BackUnshown,
    /// A host that stays takes the path that came last for the one in use.
    TakesLast,
    /// A host whose daemon begins anew collects the path that came first.
    CollectsLiving,
    /// The left anchor moves no numbers by what a host that leaves has changed.
    DeltaUnmoved,
    /// What comes by a path is heard before that has opened.
    HearsUnopened,
    /// A path is taken whatever it does to numbers.
    ComparesNothing,
}

/// Does an operator's request say what the session had at first?
pub fn is_outdated(seed: Option<Seed>) -> bool {
    seed == Some(Seed::SecondAnchor)
}

/// Is state said to be installed before it is?
pub fn hurries_state(seed: Option<Seed>) -> bool {
    seed == Some(Seed::StateEarly)
}

/// Does a firewall keep what it has of a session that its host forgets?
pub fn keeps_state(seed: Option<Seed>, scope: Scope) -> bool {
    seed == Some(Seed::StateStays) && scope == Scope::Newcomer
}

/// May a path hear an acknowledgement of what it has not carried?
pub fn acks_unseen(seed: Option<Seed>) -> bool {
    seed == Some(Seed::AcksUnseen)
}

/// Has a path carried all as soon as it is taken?
pub fn settles_early(seed: Option<Seed>) -> bool {
    seed == Some(Seed::SettlesEarly)
}

/// Are firewalls on the way back shown nothing?
pub fn shows_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::BackUnshown)
}

/// Which of two paths a host keeps that a session passes, whose daemon was away.
pub fn guesses(seed: Option<Seed>, known: Stays) -> Stays {
    match seed {
        Some(Seed::TakesLast) => Stays::Later,
        _ => known,
    }
}

/// Does a daemon that begins anew keep one path of a session alone, without asking?
pub fn collects_living(seed: Option<Seed>) -> bool {
    seed == Some(Seed::CollectsLiving)
}

/// Do numbers stay as they are where a host leaves that has moved them?
pub fn moves_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::DeltaUnmoved)
}

/// Is a path heard before it has opened?
pub fn hears_unopened(seed: Option<Seed>) -> bool {
    seed == Some(Seed::HearsUnopened)
}

/// Is a path taken as soon as its SYN is answered?
pub fn compares_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::ComparesNothing)
}

/// Is only the first record of each change written, at the left anchor?
pub fn forgets_records(seed: Option<Seed>) -> bool {
    seed == Some(Seed::NoRecord)
}

/// Is what a timer repeats held back?
pub fn silences(seed: Option<Seed>, message: &Message) -> bool {
    seed == Some(Seed::CancelOnce) && matches!(message, Message::Cancel { .. })
}

/// Is it never said at all?
pub fn mutes(seed: Option<Seed>, message: &Message) -> bool {
    match seed {
        Some(Seed::CancelOnce) => matches!(message, Message::Query { .. }),
        Some(Seed::DeltaUnasked) => matches!(message, Message::AskDelta { .. }),
        _ => false,
    }
}

/// After each input of a host.
pub fn after(config: &Configuration, world: &mut World, place: usize) {
    let part = |world: &World, role| -> Option<(ChangeId, Phase)> {
        let changes = world.host(place).machine.iter().flat_map(Machine::changes);
        let mut own = changes.filter(|c| c.role == role);
        own.next().map(|c| (c.change, c.phase))
    };
    let says = |world: &mut World, message: Message| {
        world.input(config, LEFT, Twist::Plain, |m| {
            m.handle_message(NOW, &[address(RIGHT)], message);
        });
    };
    match config.seed {
        Some(Seed::RightForgets) => {
            if let Some((_, Phase::Draining)) = part(world, Role::Tail) {
                world.edit(place, |h| h.planes[LEFTWARDS].other = None);
            }
        }
        Some(Seed::NoAck) => {
            if let Some((change, Phase::Cancelling)) = part(world, Role::Head) {
                let before = world.host(LEFT).held.contains_key(&change);
                if before {
                    says(world, Message::CancelAck { change });
                }
            }
        }
        Some(Seed::LeftNotBack) => {
            if let Some((change, Phase::Cancelling)) = part(world, Role::Head)
                && let Some(left) = world.left_of(change).filter(|_| place == LEFT)
                && world.believed.insert(change)
            {
                world.input(config, LEFT, Twist::Plain, |m| {
                    m.handle_message(NOW, &[address(left)], Message::Abandoned { change });
                });
            }
        }
        _ => {}
    }
}
