//! Interfaces that are deleted, and made anew, while sessions pass them.

use dysco_agent::InterfaceChange;

use super::Engine;

impl Engine {
    /// Looks whether the data plane still is where it was put.
    pub(super) fn sweep_interfaces(&mut self) {
        for (interface, change) in self.agent.look_at_interfaces() {
            match change {
                InterfaceChange::Gone => tracing::warn!(
                    interface,
                    "the interface is gone, and with it the data plane there: sessions that pass it are not tracked, and those that were changed do not go on; once there is one of this name again, it is attached to"
                ),
                InterfaceChange::Attached { index } => {
                    self.lead_by(&interface, index);
                    tracing::warn!(
                        interface,
                        index,
                        "the interface was made anew: the data plane is attached to it again"
                    );
                }
                InterfaceChange::Refused(error) => tracing::error!(
                    interface,
                    %error,
                    "the interface was made anew, and the data plane cannot be attached to it: this is tried again each second"
                ),
            }
        }
    }

    /// Routes that leave by it are usable.
    fn lead_by(&mut self, name: &str, index: u32) {
        let ours = self.config.host.interfaces.iter_mut();
        for interface in ours.filter(|interface| interface.name == name) {
            interface.index = index;
        }
    }
}
