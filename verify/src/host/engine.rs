//! The host as the engine that a machine drives.

use dysco_proto::{Command, Machine, Progress, Reason, Report, Role};

use super::{Alone, Ending, Host, Wrong};
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
        match report {
            Report::Progress {
                change,
                role,
                progress,
                ..
            } if progress.is_end() => {
                let removed = progress == Progress::Removed;
                let alone = match (role, &progress) {
                    (Role::Local, Progress::Refused(Reason::AlreadyOut)) => Some(Alone::Already),
                    (Role::Local, Progress::RolledBack(_) | Progress::Lost(_)) => {
                        Some(Alone::TakenBack)
                    }
                    _ => None,
                };
                self.endings.push(Ending {
                    change,
                    role,
                    removed,
                    alone,
                });
            }
            // The next process does not know which hosts took part in a change.
            Report::Violation { .. } if self.life == 0 => {
                self.wrong = Some(Wrong::TakenForIntruder);
            }
            Report::Violation { .. } | Report::Progress { .. } | Report::Trouble { .. } => {}
        }
    }
}
