//! Halves of services at both ends that come into a stack and leave it while data flows.
//!
//! The two halves of a service are in the stacks of two hosts. They come in, and leave, at the same
//! byte of each direction. The host that sends the direction chooses the byte, and sends its number
//! before the next bytes. Both hosts count alike: the number is that of the bytes which passed
//! through another half, or through the half that leaves.

use dysco_explain::Cause;

use super::gate::Gate;
use super::layer::{Layer, Leaving};
use super::{Change, Effect, LayerId, Stack, index, next};
use crate::{Ends, Event, Flow, Service};

impl Stack {
    /// Returns true if this service is one half of a service at both ends.
    pub fn is_half(&self, layer: LayerId) -> bool {
        let mut layers = self.layers.iter();
        layers.any(|one| one.id == layer && one.is_half)
    }

    /// Checks that a service can come in by [`Stack::enter`].
    ///
    /// # Errors
    /// The reason against it.
    pub fn check_half(&self, service: &dyn Service) -> Result<(), Cause> {
        self.check(service)?;
        match service.needs(&self.session)?.ends {
            Ends::Pair => Ok(()),
            Ends::One => Err(Cause::new(format!(
                "{} is a service for one end",
                service.name()
            ))),
        }
    }

    /// Puts one half of a service between the other halves and the program. `outward` is the
    /// direction towards the other host. The half gets that direction from the next byte on. `told`
    /// is the byte of the other direction that the other host has named; without it, that direction
    /// waits for [`Stack::told`].
    ///
    /// # Errors
    /// If the service is no half, or no other half is in the stack, or the service cannot work in
    /// this session, or the byte that the other host has named has passed. The stack stays
    /// unchanged.
    pub fn enter(
        &mut self,
        service: Box<dyn Service>,
        outward: Flow,
        told: Option<u64>,
    ) -> Result<LayerId, Cause> {
        self.check_half(&*service)?;
        let inward = outward.reverse();
        let of = self.outermost_half(outward)?;
        let gate = match told {
            None => Gate::WAITING,
            Some(at) => self.gate_behind(of, inward, at)?,
        };
        let cut = self.layers[of].served[index(outward)];
        let at = match outward {
            Flow::Back => of + 1,
            _ => of,
        };
        let id = self.insert(at, service);
        self.layers[at].gates[index(inward)] = gate;
        self.effects.push_back(Effect::Cut(id, Change::Enters, cut));
        self.run();
        Ok(id)
    }

    /// Asks one half of a service to leave. The other half leaves once its host is notified.
    pub fn part(&mut self, layer: LayerId, outward: Flow) {
        let mut layers = self.layers.iter_mut();
        if let Some(layer) = layers.find(|one| one.id == layer && one.leaving.is_none()) {
            layer.leaving = Some(Leaving::Asked(outward));
            layer.events.push_back(Event::Leave);
        }
        self.run();
    }

    /// Handles the other host's notice of the byte at which its half comes in or leaves.
    ///
    /// # Errors
    /// If that byte has passed, or the service is no half, or does not wait for this notice.
    pub fn told(
        &mut self,
        layer: LayerId,
        outward: Flow,
        change: Change,
        at: u64,
    ) -> Result<(), Cause> {
        let inward = index(outward.reverse());
        let place = self.place_of(layer).filter(|at| self.layers[*at].is_half);
        let place = place.ok_or_else(|| Cause::new("the service is not at both ends"))?;
        match change {
            Change::Enters if self.layers[place].gates[inward] == Gate::WAITING => {
                let of = next(place, outward);
                self.layers[place].gates[inward] = self.gate_behind(of, outward.reverse(), at)?;
            }
            Change::Enters => return Err(Cause::new("the service has come in already")),
            Change::Leaves => {
                let one = &mut self.layers[place];
                let left = at.checked_sub(one.served[inward]).ok_or_else(late)?;
                if !one.gates[inward].end_after(left) {
                    return Err(Cause::new("the service has not come in"));
                }
                self.ask_to_leave(place);
                self.part(layer, outward);
            }
        }
        Ok(())
    }

    /// Returns true if a half gets all bytes of both directions, or has left.
    pub fn has_entered(&self, layer: LayerId) -> bool {
        let mut layers = self.layers.iter();
        let one = layers.find(|one| one.id == layer);
        one.is_none_or(|one| one.gates.iter().all(|gate| *gate == Gate::OPEN))
    }

    /// Returns the place of the half that is next to the program. A half that leaves does not
    /// count: it may have left the stack of the other host.
    fn outermost_half(&self, outward: Flow) -> Result<usize, Cause> {
        let mut layers = self.layers.iter();
        let stays = |one: &Layer| one.is_half && one.leaving.is_none();
        let place = match outward {
            Flow::Back => layers.rposition(stays),
            _ => layers.position(stays),
        };
        place.ok_or_else(|| Cause::new("no service at both ends is in the session"))
    }

    /// Returns the gate of a half that gets the bytes which another half sends. `at` is the first
    /// of these bytes, counted from the first byte that the other half has sent.
    fn gate_behind(&self, of: usize, inward: Flow, at: u64) -> Result<Gate, Cause> {
        let missing = || Cause::new("no service at both ends is in the session");
        let of = self.layers.get(of).ok_or_else(missing)?;
        let left = at.checked_sub(of.sent[index(inward)]).ok_or_else(late)?;
        match of.gates[index(inward)] {
            Gate::WAITING => Err(Cause::new("the service behind it has not come in")),
            _ => Ok(Gate::after(of.to_pass(inward) + left)),
        }
    }

    /// Handles the leave of a service. Returns true if it has left. A half that was asked to leave
    /// leaves one direction after the other.
    pub(super) fn leaves(&mut self, at: usize) -> bool {
        let layer = &mut self.layers[at];
        match layer.leaving {
            // The other half would get bytes that are not meant for it.
            None if layer.is_half => {
                let why = "it left, and its other half did not".to_owned();
                self.effects.push_back(Effect::Fail(layer.id, why));
            }
            None | Some(Leaving::Last(_)) => return true,
            Some(Leaving::Half(_)) => {}
            Some(Leaving::Asked(outward)) => {
                layer.leaving = Some(Leaving::Half(outward));
                layer.close(outward);
                let (id, cut) = (layer.id, layer.sent[index(outward)]);
                self.effects.push_back(Effect::Cut(id, Change::Leaves, cut));
            }
        }
        false
    }

    /// Asks a half to leave its second direction, once it has received the last byte of that.
    pub(super) fn ask_to_leave(&mut self, at: usize) {
        let Some(layer) = self.layers.get_mut(at) else {
            return;
        };
        if let Some(outward) = layer.has_done_its_half() {
            layer.leaving = Some(Leaving::Last(outward));
            layer.events.push_back(Event::Leave);
        }
    }

    /// Lets bytes or an end pass by the service at a place.
    pub(super) fn pass_by(&mut self, at: usize, event: Event) {
        if let Event::Data { flow, .. } | Event::Fin(flow) = event {
            if matches!(event, Event::Fin(_)) {
                self.layers[at].pass_end(flow);
            }
            self.deliver(next(at, flow), flow, event);
            self.ask_to_leave(at);
        }
    }
}

fn late() -> Cause {
    Cause::new("the other host has told a byte that has passed")
}
