//! The host as the engine that a machine drives.

use dysco_proto::{Command, Machine, Progress, Report, Role};

use super::{Ending, Host, Wrong};
use crate::chain::place::{LEFTWARDS, RIGHTWARDS};
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

    fn hear(&mut self, report: Report) {
        match report {
            Report::Progress {
                change,
                role,
                progress,
                ..
            } if progress.is_end() => {
                let changed = progress == Progress::Removed;
                let side = match role {
                    Role::Head | Role::Lead => RIGHTWARDS,
                    _ => LEFTWARDS,
                };
                let taken = self.planes[side].current == Some(change);
                // The next process of a right anchor may be asked again about a change that is
                // over.
                let falsely = match role {
                    Role::Head if self.led.contains(&change) => false,
                    Role::Head => changed != taken,
                    _ => changed && !taken,
                };
                if falsely && !self.gone {
                    self.wrong = Some(Wrong::FalseReport);
                }
                self.endings.push(Ending {
                    change,
                    role,
                    changed,
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
