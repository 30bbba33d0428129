//! Requests of operators.

use std::net::IpAddr;

use dysco_common::Element;
use dysco_proto::{Margins, Order, Reason};

use super::configuration::{Ask, Configuration, LEFT, RIGHT};
use super::place::{element, place_of, session};
use super::seed;
use super::world::{Accepted, Broken, World};
use crate::drive::{NOW, Twist};

/// Index of the request that is made when everything is over.
pub(super) const LAST: usize = 7;

impl World {
    /// Returns the requested chain, and true if the request is about only one host of the chain.
    fn asked_for(&self, ask: Ask) -> (Vec<usize>, bool) {
        let now = self.host(LEFT).chain.iter();
        let now: Vec<usize> = now.filter_map(|e| place_of(e.host())).collect();
        match ask {
            Ask::Become(chain) => (chain.to_vec(), false),
            Ask::Without(old) => (now.into_iter().filter(|h| *h != old).collect(), true),
            Ask::Replace(old, new) => {
                let place = |host: usize| if host == old { new } else { host };
                (now.into_iter().map(place).collect(), true)
            }
        }
    }

    /// Makes an operator's request for a chain. Returns false if the request makes no sense now.
    pub fn ask(&mut self, config: &Configuration, i: usize, twist: Twist) -> bool {
        let (after, about_one) = self.asked_for(config.asks[i]);
        self.ask_for(config, i, &after, about_one, twist)
    }

    /// Requests one more chain when everything is over.
    pub(crate) fn ask_once_more(&mut self, config: &Configuration) {
        self.once_more = true;
        let after: &[usize] = match self.host(LEFT).chain.is_empty() {
            true => &[2],
            false => &[],
        };
        self.ask_for(config, LAST, after, false, Twist::Plain);
    }

    fn ask_for(
        &mut self,
        config: &Configuration,
        i: usize,
        after: &[usize],
        about_one: bool,
        twist: Twist,
    ) -> bool {
        let before = self.host(LEFT).chain.clone();
        let after: Vec<_> = after.iter().map(|at| element(*at)).collect();
        if before == after {
            return false;
        }
        self.asked |= 1 << i;
        let order = self.order(config, before, after, about_one);
        let number = order.number;
        let place = |host: Option<IpAddr>| host.and_then(place_of);
        let first = place(order.left()).unwrap_or(LEFT);
        let between = order
            .segment_after()
            .iter()
            .filter_map(|e| place_of(e.host()));
        let last = place(order.inner_right()).unwrap_or(RIGHT);
        let path = [first].into_iter().chain(between).chain([last]).collect();
        let state = order.state.clone();
        let (stay, leave): (Vec<&Element>, Vec<&Element>) = order
            .segment_before()
            .iter()
            .partition(|e| order.segment_after().contains(e));
        let at = |e: &Element| place_of(e.host());
        let leave = leave.into_iter().filter_map(at).collect();
        let anchors = [order.left(), order.inner_right()].into_iter();
        let stay = stay.into_iter().filter_map(at);
        let remain = stay.chain(anchors.filter_map(place)).collect();
        let mut asked = Err(Reason::Cancelled);
        let out = self.edit(LEFT, |h| {
            h.input(twist, |m| asked = m.request_chain(NOW, order))
        });
        match asked {
            Ok(change) => {
                self.accepted.push(Accepted {
                    change,
                    number,
                    path,
                    life: self.host(LEFT).life,
                    state,
                    leave,
                    remain,
                });
                if first != LEFT {
                    self.edit(LEFT, |h| h.led.insert(change));
                }
            }
            Err(_) => {
                self.refused |= 1 << i;
                if config.disjoint {
                    self.broken = Some(Broken::Refused);
                }
            }
        }
        self.settle(config, LEFT, twist, out)
    }

    /// Returns the order for a change between these chains.
    fn order(
        &mut self,
        config: &Configuration,
        before: Vec<Element>,
        after: Vec<Element>,
        about_one: bool,
    ) -> Order {
        let before = match seed::is_outdated(config.seed) {
            true => config.first.iter().map(|at| element(*at)).collect(),
            false => before,
        };
        let margins = match about_one {
            true => Margins::between(&before, &after),
            false => Margins::default(),
        };
        let mut order = Order {
            session: session(),
            before,
            after,
            margins,
            state: Vec::new(),
            paths: Vec::new(),
            number: 0,
        };
        self.edit(LEFT, |h| h.number_path(&mut order));
        if config.state {
            // No configuration has both a host that stays and state that moves.
            let pairs = order.before.iter().zip(&order.after);
            order.state = pairs.map(|(from, to)| (from.host(), to.host())).collect();
        }
        order
    }
}
