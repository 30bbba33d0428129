//! Carries out the effects that services request.

use dysco_explain::Cause;
use dysco_service::{Effect, Event, Fault, Flow, LayerId};

use super::{Session, direction, ends};
use crate::host::Host;
use crate::protocol::{Bytes, LONGEST, Reason, Report};

/// Greatest number of bytes of a text from a service.
const TEXT: usize = 4096;

/// Greatest number of bytes of an answer: each is two characters in a message.
const ANSWER: usize = LONGEST / 2 - 1024;

impl Session {
    pub(super) fn apply(&mut self, effect: Effect, host: &mut Host) -> Result<(), Reason> {
        match effect {
            Effect::Send(None, flow, bytes) => self.links[ends(flow)[1]].push(bytes),
            Effect::Fin(None, flow) => self.links[ends(flow)[1]].push_fin(),
            Effect::Hold(None, flow, on) => self.links[ends(flow)[0]].held = on,
            Effect::Send(Some(layer), Flow::Own(flow), bytes) => {
                self.with_own((layer, flow), |own| own.link.push(bytes));
            }
            Effect::Fin(Some(layer), Flow::Own(flow)) => {
                self.with_own((layer, flow), |own| own.link.push_fin());
            }
            Effect::Hold(Some(layer), Flow::Own(flow), on) => {
                self.with_own((layer, flow), |own| own.link.held = on);
            }
            // A service sends, ends and holds the session through the stack only.
            Effect::Send(Some(_), ..) | Effect::Fin(Some(_), _) | Effect::Hold(Some(_), ..) => {}
            Effect::Timer(layer, timer, after) => {
                host.timers.set((self.id, layer, timer), after);
            }
            Effect::Open(layer, flow, to) => self.open_own((layer, flow), to, host),
            Effect::Close(layer, flow) => self.close_own((layer, flow), host),
            Effect::Notify(layer, text) => self.notify(layer, &text, host),
            Effect::Answer(layer, bytes) => self.answer(layer, Ok(bytes), host),
            Effect::Refuse(layer, cause) => self.answer(layer, Err(cause), host),
            Effect::Cut(layer, change, at) => self.tell_cut(layer, change, at),
            Effect::Left(left) => {
                for direction in Flow::SESSION.map(direction) {
                    self.delta[direction] += left.delta[direction];
                }
                let service = self.name(left.layer);
                self.services.retain(|(layer, _)| *layer != left.layer);
                self.refuse_calls(left.layer, host);
                host.report(match self.services.is_empty() {
                    true => self.left(),
                    false => Report::Parted {
                        session: self.id,
                        service,
                    },
                });
            }
            Effect::Fault(layer, fault) => {
                let text = match fault {
                    Fault::AfterLeave => "fault: it did something after it had left",
                    Fault::AfterFin => "fault: it sent on a flow that it had ended",
                    Fault::LeftEnded => "fault: it left although it had ended a flow by itself",
                };
                self.notify(layer, text, host);
            }
            Effect::Fail(layer, why) => {
                return Err(Reason::Failed {
                    service: self.name(layer),
                    why: shorten(&why).to_owned(),
                });
            }
        }
        Ok(())
    }

    pub(super) fn name(&self, layer: LayerId) -> String {
        let found = self.services.iter().find(|(id, _)| *id == layer);
        found.map(|(_, name)| name.clone()).unwrap_or_default()
    }

    fn notify(&self, layer: LayerId, text: &str, host: &mut Host) {
        host.report(Report::Notify {
            session: self.id,
            service: self.name(layer),
            text: shorten(text).to_owned(),
        });
    }

    /// Reports an answer. An answer during a call is for that call, and a later one is for the call
    /// that has waited longest.
    fn answer(&mut self, layer: LayerId, answer: Result<bytes::Bytes, Cause>, host: &mut Host) {
        let mut calls = self.calls.iter();
        let of_layer = |(of, _): &(LayerId, u64)| *of == layer;
        let at = match self.calling {
            true => calls.rposition(of_layer),
            false => calls.position(of_layer),
        };
        let Some((_, id)) = at.and_then(|at| self.calls.remove(at)) else {
            return self.notify(layer, "fault: it answered, and was not asked", host);
        };
        let result = match answer {
            Ok(bytes) if bytes.len() > ANSWER => {
                Err(Cause::new("the answer of the service is too long"))
            }
            Ok(bytes) => Ok(Bytes(bytes.into())),
            Err(cause) => Err(cause),
        };
        host.report(Report::Answer { id, result });
    }

    fn refuse_calls(&mut self, layer: LayerId, host: &mut Host) {
        self.calls.retain(|(of, id)| {
            if *of == layer {
                host.report(Report::Answer {
                    id: *id,
                    result: Err(Cause::new("the service has left the session")),
                });
            }
            *of != layer
        });
    }

    /// Gives a service an event of a flow of its own.
    pub(super) fn tell(&mut self, layer: LayerId, event: Event) {
        self.stack.to(layer, event);
    }
}

/// Cuts a text to a length that fits into a message.
fn shorten(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT)]
}
