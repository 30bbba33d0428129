//! Bugs put in on purpose that act on more than one value.

use dysco_common::two_paths::Cutoff;
use dysco_proto::{Machine, Message, Phase, Role, Timer};

use super::World;
use crate::config::Configuration;
use crate::drive::{NOW, Twist};
use crate::parts::Letter;
use crate::place::{self, Side};
use crate::seed::Seed;

impl World {
    /// Returns true if the host receives this message. Also applies a bug that alters the message.
    pub(super) fn hears(&mut self, seed: Option<Seed>, letter: &Letter) -> bool {
        let doubled =
            seed == Some(Seed::DoubledSetUp) && matches!(letter.message, Message::SetUp { .. });
        if doubled {
            self.edit(letter.to, |host| {
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

    /// Applies the bug after each input of a host.
    pub(super) fn act_as_seeded(&mut self, config: &Configuration, place: usize) {
        let phase = |world: &World, role| {
            let machine = world.host(place).machine.as_ref()?;
            let change = machine.changes().find(|c| c.role == role)?;
            Some((change.change, change.phase))
        };
        match config.seed {
            Some(Seed::LateTimeout) => {
                if let Some((_, Phase::SettingUp)) = phase(self, Role::Left) {
                    self.edit(place, |h| {
                        h.spoilt.before = h.machine.clone().map(Box::new);
                    });
                }
            }
            Some(Seed::RightFirst) => {
                if let Some((change, Phase::SettingUp)) = phase(self, Role::Right) {
                    let entry = self.host(place).entry(Side::Left);
                    let cutoff = Cutoff {
                        at: entry.map_or(0, |e| e.s.rcv_max),
                        closes: false,
                    };
                    let left = place::addresses(place.saturating_sub(2));
                    self.input(config, place, Twist::Plain, |m| {
                        m.handle_message(NOW, &left, Message::Switched { change, cutoff });
                    });
                }
            }
            _ => {}
        }
    }

    /// Restores the left anchor as it was before its cutover, and returns the timer that expires there.
    pub(crate) fn late_timer(&mut self, place: usize) -> Option<Timer> {
        let before = self.host(place).spoilt.before.clone()?;
        let timer = before.waits().next()?.timer;
        self.edit(place, |h| {
            h.machine = Some(*before);
            h.spoilt.before = None;
        });
        Some(timer)
    }
}
