//! Bugs put in on purpose that act after an input of a host.

use dysco_proto::{ChangeId, Machine, Message, Phase, Role};

use super::World;
use crate::chain::configuration::{Configuration, LEFT, RIGHT};
use crate::chain::place::{LEFTWARDS, address};
use crate::chain::seed::Seed;
use crate::drive::{NOW, Twist};

impl World {
    /// Applies the bug after each input of a host.
    pub(in crate::chain) fn act_as_seeded(&mut self, config: &Configuration, place: usize) {
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
                if let Some((_, Phase::Draining)) = part(self, Role::Tail) {
                    self.edit(place, |h| h.planes[LEFTWARDS].other = None);
                }
            }
            Some(Seed::NoAck) => {
                if let Some((change, Phase::Cancelling)) = part(self, Role::Head) {
                    let before = self.host(LEFT).held.contains_key(&change);
                    if before {
                        says(self, Message::CancelAck { change });
                    }
                }
            }
            Some(Seed::LeftNotBack) => {
                if let Some((change, Phase::Cancelling)) = part(self, Role::Head)
                    && let Some(left) = self.left_of(change).filter(|_| place == LEFT)
                    && self.believed.insert(change)
                {
                    self.input(config, LEFT, Twist::Plain, |m| {
                        m.handle_message(NOW, &[address(left)], Message::Abandoned { change });
                    });
                }
            }
            _ => {}
        }
    }
}
