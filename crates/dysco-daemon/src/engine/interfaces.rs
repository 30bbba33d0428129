//! Interfaces that are deleted, and made again, while sessions pass them.

use dysco_agent::links::{self, Link};
use dysco_agent::{Attach, Attached, InterfaceChange};
use dysco_api::InterfaceReport;
use dysco_explain::Cause;

use super::Plane;

impl Plane {
    /// Checks whether the data plane is still attached to its interfaces.
    pub(super) fn sweep_interfaces(&mut self) {
        for (interface, change) in self.agent.look_at_interfaces() {
            match change {
                InterfaceChange::Gone => tracing::warn!(
                    interface,
                    "the interface is gone, and with it the data plane there: sessions that pass it are not tracked, and those that were changed do not go on; once there is one of this name again, it is attached to"
                ),
                InterfaceChange::Attached { index, anew: true } => {
                    self.lead_by(&interface, index);
                    tracing::warn!(
                        interface,
                        index,
                        "the interface was made anew: the data plane is attached to it again"
                    );
                }
                InterfaceChange::Attached { anew: false, .. } => tracing::warn!(
                    interface,
                    "another program had taken the data plane off the interface: it is attached again"
                ),
                InterfaceChange::Refused(error) => tracing::error!(
                    interface,
                    %error,
                    "the data plane is not on the interface any more, and cannot be attached to it: this is tried again each second"
                ),
            }
        }
    }

    /// Records the index of an interface: routes that leave by it are usable.
    fn lead_by(&mut self, name: &str, index: u32) {
        let ours = self.config.host.interfaces.iter_mut();
        for interface in ours.filter(|interface| interface.name == name) {
            interface.index = index;
        }
    }
    /// Returns the interfaces of the programs, with any obstacle that keeps the programs from
    /// seeing sessions there.
    pub(super) fn interface_reports(&self) -> Vec<InterfaceReport> {
        let all = links::links().unwrap_or_default();
        let attached = self.agent.attached();
        let on = attached.iter().filter(|at| at.index.is_some());
        let names: Vec<&str> = on.map(|at| at.interface.as_str()).collect();
        let reported = attached.iter().map(|at| {
            let found = at.index.and_then(|_| self.trouble(at, &names, &all));
            let (trouble, hint) = found.map(|c| (c.why, c.hint)).unzip();
            InterfaceReport {
                trouble,
                hint: hint.flatten(),
                ..interface(at)
            }
        });
        reported.collect()
    }

    fn trouble(&self, at: &Attached, ours: &[&str], all: &[Link]) -> Option<Cause> {
        let configured = self.config.host.interfaces.iter();
        let mut configured = configured.filter(|i| i.name == at.interface);
        if let Some(cause) = configured.find_map(|i| i.obstacle()) {
            return Some(cause);
        }
        let pairs = ours.iter().map(|other| [at.interface.as_str(), other]);
        let mut met = pairs.filter_map(|pair| links::stacked(&pair, all));
        if let Some((upper, lower)) = met.next() {
            return Some(stacked(upper, lower));
        }
        let others = self.agent.before_ours(at);
        (!others.is_empty()).then(|| behind(&others))
    }
}

/// Returns the trouble with stacked interfaces: a packet passes both, and the programs are on both.
/// The stacking is recent: dyscod does not start on stacked interfaces.
fn stacked(upper: &Link, lower: &Link) -> Cause {
    Cause::new(format!(
        "{} is a {} over {} now, so that a packet passes both and is changed twice: sessions \
         that were changed stall",
        upper.name, upper.kind, lower.name
    ))
    .hint("list one of the two in [host] interfaces and restart dyscod")
}

fn behind(others: &[String]) -> Cause {
    Cause::new(format!(
        "another program runs first ({}): dyscod does not see the packets that it drops, or \
         passes on by itself",
        others.join(", ")
    ))
    .hint(
        "attach that one behind dyscod's, or have it return TCX_NEXT (TC_ACT_UNSPEC in a tc \
         filter)",
    )
}

fn interface(attached: &Attached) -> InterfaceReport {
    if attached.index.is_none() {
        return InterfaceReport {
            name: attached.interface.clone(),
            attach: "not attached".to_owned(),
            xdp: false,
            programs: Vec::new(),
            trouble: None,
            hint: None,
        };
    }
    let attach = match attached.attach {
        Attach::Clsact => "clsact",
        Attach::Tcx | Attach::Auto => "tcx",
    };
    let mut programs = vec!["dysco_ingress".into(), "dysco_egress".into()];
    if attached.xdp {
        programs.push("dysco_xdp".into());
    }
    InterfaceReport {
        name: attached.interface.clone(),
        attach: attach.to_owned(),
        xdp: attached.xdp,
        programs,
        trouble: None,
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_an_interface_has_a_hint() {
        let link = |name: &str, kind: &str| Link {
            name: name.into(),
            kind: kind.into(),
            ..Link::default()
        };
        let reported = stacked(&link("br0", "bridge"), &link("eth0", ""));
        assert!(
            reported.why.contains("br0 is a bridge over eth0"),
            "{reported}"
        );
        assert!(
            reported.to_string().contains("[host] interfaces"),
            "{reported}"
        );
        let reported = behind(&["cil_from_netdev".into()]);
        assert!(reported.why.contains("(cil_from_netdev)"), "{reported}");
    }
}
