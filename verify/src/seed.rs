//! Bugs put in on purpose, to show that the check would find them. They sit
//! around the machine, in what it hears and says: the machine has none of this.

use std::hash::{Hash, Hasher};

use dysco_common::tcp::FIN;
use dysco_common::two_paths::Cutoff;
use dysco_proto::{ChangeId, Machine, Message, Phase, Role, Subsession, Timer};

use crate::config::Configuration;
use crate::parts::Letter;
use crate::place::{self, Side};
use crate::plane::Packet;
use crate::pump::{NOW, Twist};
use crate::world::World;

pub mod local;

/// A known bug of protocols like this one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seed {
    /// The last control message is said once: its loss strands who waits.
    LastAckOnce,
    /// So is a cancel, and nobody asks what became of the change.
    CancelOnce,
    /// A time-out that was due before the cut is acted on after it.
    LateTimeout,
    /// A set-up that comes twice is carried out twice.
    DoubledSetUp,
    /// After a cancel the next change is taken for the old one.
    StaleNames,
    /// The right anchor switches when it is set up, before the left one has.
    RightFirst,
    /// A host is an anchor once more after the session has left its path.
    SecondAnchor,
    /// A host that is both anchors writes the record of the cut when that is made.
    RecordAfterCut,
    /// It starts anew without the record, and takes back what it has cut.
    ForgottenCut,
    /// It relays when the first of its two sessions has drained.
    HalfDrained,
    /// The right anchor says that it hears the new path no more, and hears it.
    HearsOn,
    /// Where the old path is behind what an end has got, that hears nothing of it.
    StaysBehind,
    /// A new path is taken for good before it has shown what was sent elsewhere.
    Unshown,
    /// It lets the ends hear what the proxy acknowledges, whoever has got that.
    ProxyBelieved,
    /// An end hears the FIN of a proxy that has died with bytes for it.
    ProxysEnd,
    /// What comes on a new path is heard before that has opened.
    HearsUnopened,
    /// A new path is taken whatever it does to numbers.
    ComparesNothing,
}

/// Does a host hear its new path on, whatever it says?
pub fn hears_on(seed: Option<Seed>, place: usize) -> bool {
    seed == Some(Seed::HearsOn) && place == 2
}

/// Is what an end that is ahead would hear of the proxy left as it is? `said` is that.
pub fn stays_behind(seed: Option<Seed>, said: &Packet, told: &mut Packet) {
    if seed == Some(Seed::StaysBehind) {
        told.seg.seq = said.seg.seq;
    }
}

/// What an end hears of what the proxy has said: `told`, but for its FIN.
pub fn tells_proxys_end(seed: Option<Seed>, said: &Packet, told: Option<Packet>) -> Option<Packet> {
    match seed {
        Some(Seed::ProxysEnd) if said.seg.has(FIN) => Some(*said),
        _ => told,
    }
}

/// Does it do without what the new path has to show?
pub fn is_drained_unshown(seed: Option<Seed>) -> bool {
    seed == Some(Seed::Unshown)
}

/// Is a new path heard before it has opened?
pub fn hears_unopened(seed: Option<Seed>) -> bool {
    seed == Some(Seed::HearsUnopened)
}

/// Is a new path taken as soon as anything answers there?
pub fn compares_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::ComparesNothing)
}

/// May a session be locked that goes another way by now?
pub fn locks_changed(seed: Option<Seed>) -> bool {
    seed == Some(Seed::SecondAnchor)
}

/// What a seeded bug keeps on a host.
#[derive(Clone, Default)]
pub struct Memory {
    /// The last path prepared.
    pub prepared: Option<(ChangeId, Subsession, dysco_common::Translation)>,
    /// The left anchor as it was before its cut.
    pub before: Option<Box<Machine>>,
    /// A record that is still to be written.
    pub record: Option<Vec<u8>>,
}

impl Hash for Memory {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // What was prepared follows from the rest of the host.
        (&self.before, &self.record).hash(state);
    }
}

/// Where identifiers begin.
pub fn ids(seed: Option<Seed>) -> fn(usize, u8) -> [u8; 8] {
    match seed {
        Some(Seed::StaleNames) => |_, _| [0xff; 8],
        _ => |place, life| [place as u8, life, 0, 0, 0, 0, 0, 0],
    }
}

/// Is what a timer repeats held back?
pub fn silences(seed: Option<Seed>, message: &Message) -> bool {
    match seed {
        Some(Seed::LastAckOnce) => matches!(message, Message::Done { .. }),
        Some(Seed::CancelOnce) => matches!(message, Message::Cancel { .. }),
        _ => false,
    }
}

/// Is it never said at all?
pub fn mutes(seed: Option<Seed>, message: &Message) -> bool {
    seed == Some(Seed::CancelOnce) && matches!(message, Message::Query { .. })
}

/// Does the host hear this message at all? Also where a bug meddles with it.
pub fn hears(seed: Option<Seed>, world: &mut World, letter: &Letter) -> bool {
    let doubled =
        seed == Some(Seed::DoubledSetUp) && matches!(letter.message, Message::SetUp { .. });
    if doubled {
        world.edit(letter.to, |host| {
            let Some((change, new, translation)) = host.spoilt.prepared else {
                return;
            };
            let known = host.machine.iter().flat_map(Machine::changes);
            let side = Side::Left;
            let known = known.filter(|c| c.change == change && c.role == Role::Right);
            if known.count() > 0
                && let Some(entry) = host.entry_mut(side)
            {
                entry.prepare(new, translation);
            }
        });
    }
    true
}

/// After each input of a host.
pub fn after(config: &Configuration, world: &mut World, place: usize) {
    let phase = |world: &World, role| {
        let machine = world.host(place).machine.as_ref()?;
        let change = machine.changes().find(|c| c.role == role)?;
        Some((change.change, change.phase))
    };
    match config.seed {
        Some(Seed::LateTimeout) => {
            if let Some((_, Phase::SettingUp)) = phase(world, Role::Left) {
                world.edit(place, |h| {
                    h.spoilt.before = h.machine.clone().map(Box::new);
                });
            }
        }
        Some(Seed::RightFirst) => {
            if let Some((change, Phase::SettingUp)) = phase(world, Role::Right) {
                let entry = world.host(place).entry(Side::Left);
                let cutoff = Cutoff {
                    at: entry.map_or(0, |e| e.s.rcv_max),
                    closes: false,
                };
                let left = place::addresses(place.saturating_sub(2));
                world.input(config, place, Twist::Plain, |m| {
                    m.handle_message(NOW, &left, Message::Switched { change, cutoff });
                });
            }
        }
        _ => {}
    }
}

/// The time-out of long ago.
pub fn late(world: &mut World, place: usize) -> Option<Timer> {
    let before = world.host(place).spoilt.before.clone()?;
    let timer = before.waits().next()?.timer;
    world.edit(place, |h| {
        h.machine = Some(*before);
        h.spoilt.before = None;
    });
    Some(timer)
}
