//! The actions that a world offers.

use dysco_proto::Machine;

use super::{Action, Exploration, LIFE};
use crate::chain::configuration::LEFT;
use crate::chain::host::Later;
use crate::chain::place::{LEFTWARDS, RIGHTWARDS};
use crate::chain::streams::Delivery;
use crate::chain::world::World;
use crate::drive::{OUTPUTS, Twist};
use crate::socket::Say;

impl Exploration {
    fn twists(&self, world: &World, place: usize) -> impl Iterator<Item = Twist> + use<> {
        let crashes = world.left.crashes * u8::from(self.is_mortal(place));
        Twist::all(OUTPUTS, [crashes, world.left.refusals, 0])
    }

    /// True if the daemon of this host may die.
    fn is_mortal(&self, place: usize) -> bool {
        self.config.mortal.is_empty() || self.config.mortal.contains(&place)
    }

    pub(super) fn operators(&self, world: &World, actions: &mut Vec<Action>) {
        let Some(machine) = &world.host(LEFT).machine else {
            return;
        };
        if world.left.cancels > 0 {
            actions.extend(machine.changes().map(|c| Action::Cancel(c.change)));
        }
        if !world.gone() {
            let mut left = 0..self.config.asks.len();
            if self.config.in_turn {
                let next = world.asked.trailing_ones() as usize;
                let idle = machine.changes().next().is_none();
                left = next..(next + usize::from(idle)).min(left.end);
            }
            let left = left.filter(|i| world.asked & (1 << i) == 0);
            for i in left {
                actions.extend(
                    self.twists(world, LEFT)
                        .map(|twist| Action::Request(i, twist)),
                );
            }
        }
    }

    pub(super) fn messages(&self, world: &World, actions: &mut Vec<Action>) {
        for index in 0..world.net.len() {
            let keep = false;
            let twists = self.twists(world, world.net[index].to);
            actions.extend(twists.map(|twist| Action::Deliver { index, keep, twist }));
            if world.left.duplicates > 0 {
                actions.push(Action::Deliver {
                    index,
                    keep: true,
                    twist: Twist::Plain,
                });
            }
            if world.left.losses > 0 {
                actions.push(Action::Lose(index));
            }
        }
    }

    pub(super) fn hosts(&self, world: &World, actions: &mut Vec<Action>) {
        let only_time = world.only_time_helps(&self.config);
        let has_pending = |m: &Machine| m.waits().any(|w| w.has_pending);
        let any_pending = world
            .hosts()
            .any(|h| h.machine.as_ref().is_some_and(has_pending));
        for host in world.hosts() {
            let place = host.place;
            let Some(machine) = &host.machine else {
                actions.push(Action::Start(place));
                continue;
            };
            if world.left.crashes > 0 && self.is_mortal(place) {
                actions.push(Action::Crash(place));
            }
            for (index, event) in host.events.iter().enumerate() {
                if world.comes_later(place, event) {
                    continue;
                }
                // No machine takes part in this event: it fails, or it does not.
                let steps = match event {
                    Later::Install(..) => 1,
                    Later::InUse { .. } => 0,
                    _ => u8::MAX,
                };
                let twists = self.twists(world, place).filter(move |twist| match twist {
                    Twist::Plain | Twist::HeldUp(_) => true,
                    Twist::Fails(step) => *step < steps,
                    Twist::Dies(_) => steps > 1,
                });
                actions.extend(twists.map(|twist| Action::Happen {
                    place,
                    index,
                    twist,
                }));
            }
            for waits in machine.waits() {
                let timer = waits.timer;
                if waits.has_pending && (only_time || world.left.duplicates > 0) {
                    actions.push(Action::Repeat(place, timer));
                }
                let late = |at| match at < LIFE {
                    true => only_time || world.left.late > 0,
                    false => only_time && !any_pending,
                };
                if waits.deadline.is_some_and(late) {
                    let twists = self.twists(world, place);
                    actions.extend(twists.map(|twist| Action::Expire {
                        place,
                        timer,
                        twist,
                    }));
                }
            }
        }
    }

    pub(super) fn paths(&self, world: &World, actions: &mut Vec<Action>) {
        for place in 0..world.hosts().len() {
            for change in world.carried(place) {
                let twists = self.twists(world, place);
                actions.extend(twists.map(|twist| Action::Look(place, change, twist)));
            }
            actions.extend(world.waits_late(place).map(|c| Action::Late(place, c)));
        }
        let in_vain = world.waits_in_vain(LEFT);
        actions.extend(in_vain.map(|(change, to)| Action::GiveUpState(change, to)));
        if world.left.late > 0 {
            let in_vain: Vec<_> = world.waits_in_vain(LEFT).collect();
            let late = world.waits_for_state(LEFT).filter(|w| !in_vain.contains(w));
            actions.extend(late.map(|(change, to)| Action::GiveUpState(change, to)));
        }
        actions.extend(world.can_follow().map(Action::Follow));
        actions.extend(world.uncertain().map(Action::AskInUse));
        if world.left.deaths > 0 {
            actions.extend(world.mortal().map(Action::Break));
        }
        if world.left.resets > 0 && !world.gone() {
            actions.push(Action::Reset);
        }
    }

    pub(super) fn streams(&self, world: &World, actions: &mut Vec<Action>) {
        let config = &self.config;
        if world.streams.is_none() {
            return;
        }
        let still = world.is_still(config);
        for side in [RIGHTWARDS, LEFTWARDS] {
            for say in [Say::New, Say::Ack, Say::Again, Say::AllAgain] {
                let again = matches!(say, Say::Again | Say::AllAgain);
                if again && !still && world.left.again == 0 || !world.can_say(config, side, say) {
                    continue;
                }
                actions.push(Action::Say(side, say, Delivery::Arrives));
                if world.left.packets > 0 {
                    actions.push(Action::Say(side, say, Delivery::Lost));
                }
                if world.left.slow > 0 && world.can_be_late() {
                    actions.push(Action::Say(side, say, Delivery::Late));
                }
            }
        }
        if !world.can_be_late() {
            actions.push(Action::ComesLate);
        }
        let primers = world.primers(config).into_iter();
        actions.extend(primers.map(|(place, side, route)| Action::Prime(place, side, route)));
        let rejections = world.rejections(config).into_iter();
        actions
            .extend(rejections.map(|(p, side, route, next)| Action::Reject(p, side, route, next)));
        if world.is_collectable(config) && world.only_time_helps(config) {
            actions.push(Action::Collect);
        }
    }
}
