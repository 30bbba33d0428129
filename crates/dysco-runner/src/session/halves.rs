//! Halves of services at both ends that come into a session with such services, and leave it, while
//! data flows. By marks between the frames of their connection, the runners of the two hosts tell
//! each other the byte in front of which a half comes in or leaves.

use dysco_explain::Cause;
use dysco_service::{Change, Flow, LayerId, Service};

use super::frames::Mark;
use super::{Session, ends};
use crate::host::Host;
use crate::protocol::{Reason, Report};

/// Services at both ends of a session, as one of its runners knows them.
pub(super) struct Halves {
    /// Direction towards the other host.
    pub outward: Flow,
    /// Services that the other host may put in, as its `dyscod` has announced.
    ready: Vec<Box<dyn Service>>,
    /// Names of services that may leave. The connection between the runners is not encrypted: a mark
    /// alone takes no service out.
    may_leave: Vec<String>,
    /// Services that this host has put in and that do not get all bytes yet.
    entering: Vec<LayerId>,
}

impl Halves {
    pub(super) fn new(outward: Flow) -> Halves {
        Halves {
            outward,
            ready: Vec::new(),
            may_leave: Vec::new(),
            entering: Vec::new(),
        }
    }
}

impl Session {
    /// Returns the direction towards the other host.
    ///
    /// # Errors
    /// If the session's services are at one end, or leave, or the session closes.
    pub(crate) fn outward(&self) -> Result<Flow, Cause> {
        let one_end = || Cause::new("its services are at one end alone");
        let halves = self.halves.as_ref().ok_or_else(one_end)?;
        if self.taken || self.services.is_empty() {
            return Err(Cause::new("its services are leaving it").hint("ask again in a moment"));
        }
        if !halves.entering.is_empty() {
            return Err(Cause::new("others are coming in").hint("ask again in a moment"));
        }
        match self.links.iter().all(super::Link::is_open) {
            true => Ok(halves.outward),
            false => Err(Cause::new("the session is closing")),
        }
    }

    /// Keeps services ready until the other host puts them in, and lets it take others out.
    pub(crate) fn expect(
        &mut self,
        services: Vec<Box<dyn Service>>,
        leaves: Vec<String>,
    ) -> Result<(), Cause> {
        self.check_halves(&services)?;
        if let Some(halves) = &mut self.halves {
            halves.ready = services;
            halves.may_leave = leaves;
        }
        Ok(())
    }

    /// Puts halves of services in, in order from the end that opened the session. The other host is
    /// ready for them.
    pub(crate) fn enter(
        &mut self,
        mut services: Vec<Box<dyn Service>>,
        host: &mut Host,
    ) -> Result<(), Cause> {
        self.check_halves(&services)?;
        self.stack.set_now(host.now());
        // The first to come in is next to the services that are there.
        if self.outward()? == Flow::Forward {
            services.reverse();
        }
        for service in services {
            let layer = self.enter_one(service, None)?;
            if let Some(halves) = &mut self.halves {
                halves.entering.push(layer);
            }
        }
        Ok(())
    }

    /// Asks halves of services to leave. The other host is ready for that.
    pub(super) fn part_halves(&mut self, layers: &[LayerId]) -> Result<(), Cause> {
        let outward = self.outward()?;
        for layer in layers {
            let name = self.name(*layer);
            if let Some(halves) = &mut self.halves {
                halves.may_leave.push(name);
            }
            self.stack.part(*layer, outward);
        }
        Ok(())
    }

    /// Checks that each service has its own name: marks name services.
    fn check_halves(&self, services: &[Box<dyn Service>]) -> Result<(), Cause> {
        let listed = self.services.iter().map(|(_, name)| name.as_str());
        let mut names: Vec<&str> = listed.collect();
        for service in services {
            self.stack.check_half(&**service)?;
            if names.contains(&service.name()) {
                return Err(Cause::new(format!("{} is in it already", service.name())));
            }
            names.push(service.name());
        }
        Ok(())
    }

    fn enter_one(
        &mut self,
        service: Box<dyn Service>,
        told: Option<u64>,
    ) -> Result<LayerId, Cause> {
        let name = service.name().to_owned();
        let outward = self
            .halves
            .as_ref()
            .map_or(Flow::Forward, |halves| halves.outward);
        let layer = self.stack.enter(service, outward, told)?;
        self.services.push((layer, name));
        let place = |(layer, _): &(LayerId, String)| self.stack.place_of(*layer);
        self.services
            .sort_by_key(|one| place(one).unwrap_or(usize::MAX));
        Ok(layer)
    }

    /// Tells the other runner the byte at which a half comes in or leaves.
    pub(super) fn tell_cut(&mut self, layer: LayerId, change: Change, at: u64) {
        let service = self.name(layer);
        if let Some(halves) = &self.halves {
            let mark = Mark {
                change,
                at,
                service,
            };
            self.links[ends(halves.outward)[1]].push_mark(&mark);
        }
    }

    /// Handles a mark of the other runner.
    ///
    /// # Errors
    /// The reason for which the session has ended: the two stacks no longer fit.
    pub(super) fn told(&mut self, mark: &Mark, host: &mut Host) -> Result<(), Reason> {
        self.stack.set_now(host.now());
        let failed = |cause: Cause| Reason::Failed {
            service: mark.service.clone(),
            why: cause.why,
        };
        let mut known = self.services.iter();
        let known = known.find(|(_, name)| *name == mark.service);
        let known = known.map(|(layer, _)| *layer);
        let Some(halves) = &mut self.halves else {
            return Ok(());
        };
        if let Some(layer) = known {
            let announced = halves
                .may_leave
                .iter()
                .position(|name| *name == mark.service);
            match (mark.change, announced) {
                (Change::Enters, _) => {}
                (Change::Leaves, Some(at)) => drop(halves.may_leave.swap_remove(at)),
                (Change::Leaves, None) => {
                    let why = "the other host takes a service out that it has not announced";
                    return Err(failed(why.into()));
                }
            }
            let told = self.stack.told(layer, halves.outward, mark.change, mark.at);
            return told.map_err(failed);
        }
        let mut ready = halves.ready.iter();
        let ready = ready.position(|service| service.name() == mark.service);
        let Some(ready) = ready.filter(|_| mark.change == Change::Enters) else {
            let why = "the other host changes a service that is not in the session";
            return Err(failed(why.into()));
        };
        let service = halves.ready.remove(ready);
        self.enter_one(service, Some(mark.at)).map_err(failed)?;
        host.report(Report::Joined {
            session: self.id,
            service: mark.service.clone(),
        });
        Ok(())
    }

    /// Reports that all halves which this host has put in get all bytes. A direction that has ended
    /// has none for them.
    pub(super) fn tell_entered(&mut self, host: &mut Host) {
        let Some(halves) = &mut self.halves else {
            return;
        };
        let over = self.links[ends(halves.outward)[1]].ended;
        let mut entering = halves.entering.iter();
        if halves.entering.is_empty()
            || !over && !entering.all(|layer| self.stack.has_entered(*layer))
        {
            return;
        }
        halves.entering.clear();
        host.report(Report::Added {
            session: self.id,
            result: Ok(()),
        });
    }
}
