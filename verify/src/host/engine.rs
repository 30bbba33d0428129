//! The host as the engine that a machine drives.

use dysco_proto::{Command, Machine, Report};

use super::{Host, Wrong};
use crate::drive::Engine;

impl Engine for Host {
    type Wrong = Wrong;

    fn machine(&mut self) -> Option<&mut Machine> {
        self.machine.as_mut()
    }

    fn die(&mut self) {
        Host::die(self);
    }

    fn fail(&mut self, command: &Command) -> bool {
        Host::fail(self, command)
    }

    fn take_wrong(&mut self) -> Option<Wrong> {
        self.wrong.take()
    }

    fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    fn go_on(&mut self) {
        Host::go_on(self);
    }

    fn put_off(&mut self, command: Option<Command>) {
        Host::put_off(self, command);
    }

    fn hear(&mut self, report: Report) {
        Host::hear(self, report);
    }
}
