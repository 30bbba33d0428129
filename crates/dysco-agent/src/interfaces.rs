//! Interfaces that are deleted, and made anew with the same name, while this process runs. The
//! programs disappear with the old interface, and are attached to the new one. They are attached again
//! as well if others have taken them off.

pub(crate) mod leaving;
mod place;

use std::io::ErrorKind;
use std::slice;

use aya::programs::{SchedClassifier, TcAttachType};
use nix::errno::Errno;
use nix::net::if_::{if_indextoname, if_nametoindex};

use crate::Agent;
use crate::attach::link::interface_of;
use crate::attach::{self, Attach, Attached, clsact};
use crate::error::AgentError;
use crate::hooks::HOOKS;
use crate::links;
use crate::maps::lock;
use crate::pins::pin_path;
use crate::xdp::{self, Xdp};

pub(crate) use place::Place;

/// Change of an interface.
#[derive(Debug)]
pub enum InterfaceChange {
    /// The interface is gone.
    Gone,
    /// The programs are attached to it again.
    Attached {
        /// Its index.
        index: u32,
        /// True if another interface has its name now, and false if something had removed the programs.
        anew: bool,
    },
    /// The programs are not on the interface of this name, and cannot be attached to it. The attempt is
    /// repeated, and reported once.
    Refused(AgentError),
}

impl Agent {
    /// Interfaces that the programs are on or shall be on.
    pub fn attached(&self) -> Vec<Attached> {
        let places = lock(&self.places);
        places.iter().map(|place| place.attached.clone()).collect()
    }

    /// True if the programs are on the interface with this index.
    pub(crate) fn is_on(&self, index: u32) -> bool {
        let places = lock(&self.places);
        places
            .iter()
            .any(|place| place.attached.index == Some(index))
    }

    /// Attaches the programs to interfaces that were made anew. Returns the changes since the
    /// last call. To be called about once a second.
    pub fn look_at_interfaces(&self) -> Vec<(String, InterfaceChange)> {
        let mut places = lock(&self.places);
        let names: Vec<String> = places
            .iter()
            .map(|place| place.attached.interface.clone())
            .collect();
        let changes = places.iter_mut().filter_map(|place| {
            let change = self.look_at(place, &names)?;
            Some((place.attached.interface.clone(), change))
        });
        let changes = changes.collect();
        if let Err(error) = self.detours.follow_addresses() {
            tracing::debug!(%error, "cannot look at the addresses of interfaces");
        }
        changes
    }

    fn look_at(&self, place: &mut Place, all: &[String]) -> Option<InterfaceChange> {
        let now = match if_nametoindex(place.attached.interface.as_str()) {
            Ok(index) => Some(index),
            Err(Errno::ENODEV | Errno::ENXIO) => None,
            // The kernel did not answer, for want of a descriptor.
            Err(_) => return None,
        };
        let was = place.attached.index;
        if now == was && (now.is_none() || self.has_programs(&place.attached)) {
            place.refused &= now.is_some();
            return None;
        }
        place.attached.index = None;
        place.attached.xdp = false;
        let Some(index) = now else {
            place.refused = false;
            return Some(InterfaceChange::Gone);
        };
        self.leave_renamed(place.last, all);
        match self.attach_anew(&place.attached, all) {
            Ok((_, xdp)) => {
                self.lead_by(place.last, index);
                place.attached.index = Some(index);
                place.attached.xdp = xdp;
                let anew = place.last != index;
                (place.last, place.refused) = (index, false);
                Some(InterfaceChange::Attached { index, anew })
            }
            Err(error) => {
                let reported = std::mem::replace(&mut place.refused, true);
                (!reported).then_some(InterfaceChange::Refused(error))
            }
        }
    }

    /// True if the programs are on the interface. Others can remove a filter, its qdisc or a link.
    fn has_programs(&self, at: &Attached) -> bool {
        HOOKS.iter().all(|(name, side)| match at.attach {
            Attach::Clsact => clsact::is_there(&at.interface, name, *side),
            Attach::Tcx | Attach::Auto => {
                let link = pin_path(&self.dir, &at.interface, name);
                match interface_of(&link) {
                    Ok(index) => Some(index) == at.index,
                    // For want of a descriptor, the kernel does not tell.
                    Err(error) => error.kind() != ErrorKind::NotFound,
                }
            }
        })
    }

    /// Takes the programs off the interface of this index, if it has the name of no other place now.
    /// Its filters would go on under the new name.
    fn leave_renamed(&self, index: u32, all: &[String]) {
        let Ok(name) = if_indextoname(index) else {
            return;
        };
        let name = name.to_string_lossy().into_owned();
        if !all.contains(&name) {
            attach::detach(&self.dir, &name);
        }
    }

    /// Attaches the programs as at the start. Returns the method, and true if XDP relays there.
    fn attach_anew(&self, at: &Attached, all: &[String]) -> Result<(Attach, bool), AgentError> {
        refuse_stacked(&at.interface, all)?;
        let names = slice::from_ref(&at.interface);
        let chosen = xdp::chosen(self.relays_by, names);
        let serves = self.packet_services.in_use();
        let mut loaded = lock(&self.loaded);
        let attached = attach::attach(&mut loaded, &self.dir, &at.interface, at.attach)?;
        if serves {
            attach::attach_served(&mut loaded, &self.dir, &at.interface, attached.attach)?;
        }
        // Sessions need XDP less than they need the daemon: without XDP, TC relays.
        let fast = xdp::attach(&mut loaded.ethernet, &self.dir, names, (Xdp::Auto, &chosen))?;
        Ok((attached.attach, !fast.is_empty()))
    }

    /// Attaches the programs to one more interface, by the method that the configuration names.
    ///
    /// # Errors
    /// If they cannot be put there: nothing is changed then.
    pub fn add_interface(&self, name: &str, how: Attach) -> Result<(), AgentError> {
        let mut places = lock(&self.places);
        let index = if_nametoindex(name).map_err(|e| AgentError::Attach {
            interface: name.to_owned(),
            source: Box::new(e),
        })?;
        let mut all: Vec<String> = places
            .iter()
            .map(|place| place.attached.interface.clone())
            .collect();
        all.push(name.to_owned());
        let mut attached = Attached {
            interface: name.to_owned(),
            index: None,
            attach: how,
            xdp: false,
        };
        let added = self.attach_anew(&attached, &all);
        let (how, xdp) = added.inspect_err(|_| attach::detach(&self.dir, name))?;
        (attached.attach, attached.xdp) = (how, xdp);
        places.push(Place::new(attached, index));
        Ok(())
    }

    /// Takes the programs off an interface. Sessions that pass the interface are not seen there
    /// any longer.
    pub fn remove_interface(&self, name: &str) {
        lock(&self.places).retain(|place| place.attached.interface != name);
        attach::detach(&self.dir, name);
    }

    /// Names of the other programs that run first on an interface, by the same method of attaching.
    /// The packets that such a program ends are not seen here.
    pub fn before_ours(&self, at: &Attached) -> Vec<String> {
        if at.index.is_none() {
            return Vec::new();
        }
        let sides = HOOKS.iter();
        let mut others: Vec<String> = sides
            .flat_map(|(name, side)| match at.attach {
                Attach::Clsact => clsact::filters_before(&at.interface, *side),
                Attach::Tcx | Attach::Auto => tcx_before(name, &at.interface, *side),
            })
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Redirects sessions and hops from an interface that is gone to the one in its place.
    fn lead_by(&self, gone: u32, index: u32) {
        let Ok(present) = links::links() else {
            return;
        };
        // The interface may only have another name now.
        if present.iter().any(|there| there.index == gone) {
            return;
        }
        if let Some(to) = present.iter().find(|there| there.index == index) {
            self.detours.lead_by(gone, to);
        }
        for (slot, _) in self.sessions().iter().filter(|(_, s)| s.ifindex == gone) {
            self.memory().set_interface(*slot, index);
        }
        for (host, mut hop) in self.hops() {
            if hop.ifindex != gone {
                continue;
            }
            hop.ifindex = index;
            if let Err(error) = self.set_hop(host, &hop) {
                tracing::warn!(%host, %error, "no session is steered to a host for a while");
            }
        }
    }
}

fn tcx_before(ours: &str, interface: &str, side: TcAttachType) -> Vec<String> {
    match SchedClassifier::query_tcx(interface, side) {
        Ok((_, programs)) => attach::before(ours, &programs),
        Err(_) => Vec::new(),
    }
}

/// Refuses an interface on which packets would be changed twice. If the kernel does not describe
/// its interfaces, nothing is refused.
fn refuse_stacked(interface: &str, ours: &[String]) -> Result<(), AgentError> {
    let all = links::links().unwrap_or_default();
    let met = |other: &String| links::stacked(&[interface, other], &all);
    match ours.iter().find_map(met) {
        Some((upper, lower)) => Err(AgentError::Stacked {
            upper: upper.name.clone(),
            kind: upper.kind.clone(),
            lower: lower.name.clone(),
        }),
        None => Ok(()),
    }
}
