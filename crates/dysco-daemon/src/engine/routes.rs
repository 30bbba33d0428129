//! Routes of new paths, and the interfaces that the data plane can use.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_agent::{AgentError, NewPath};
use dysco_config::{Interface, strict_reverse_path};
use dysco_explain::{Cause, Explain};
use dysco_proto::{ChangeId, HostEvent, Reason};

use super::held::{ProxyChanges, Routed, Waiting};
use super::{Answer, Plane};

/// Time after which the settings of interfaces are read again.
const STRICT_FOR: Duration = Duration::from_secs(1);

impl ProxyChanges {
    pub(super) fn look_up(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        from: IpAddr,
        to: IpAddr,
    ) {
        let own = self
            .slot_of(plane, change)
            .map(|slot| plane.agent.session(slot).key);
        let known = plane.state.route(from, to);
        let strict = if from.is_ipv4() {
            self.strict_interfaces(plane)
        } else {
            Vec::new()
        };
        if let Some(ifindex) = known.filter(|ifindex| !strict.contains(ifindex)) {
            return self.routed(plane, change, Ok(ifindex));
        }
        let routes = plane.routes.clone();
        let answers = plane.answers.clone();
        tokio::spawn(async move {
            let found = match known {
                Some(ifindex) => Ok(ifindex),
                None => routes.get(from, to).await.map(|r| r.ifindex),
            };
            // Packets on the new path have the address of the session's other end.
            let found = match (found, own) {
                (Ok(ifindex), Some(own)) if strict.contains(&ifindex) => {
                    let (local, remote) = (own.local.ip(), own.remote.ip());
                    match routes.get(local, remote).await {
                        Ok(back) if back.ifindex != ifindex => Err(AgentError::ReversePath(remote)),
                        _ => Ok(ifindex),
                    }
                }
                (found, _) => found,
            };
            let _ = answers.send(Answer::Route(change, found));
        });
    }

    /// Returns the interfaces on which the kernel drops IPv4 packets whose source it reaches by
    /// another interface (RFC 3704, 2.2).
    fn strict_interfaces(&mut self, plane: &Plane) -> Vec<u32> {
        let now = Instant::now();
        if let Some((at, known)) = &self.strict
            && now - *at < STRICT_FOR
        {
            return known.clone();
        }
        let strict = strict_reverse_path(&plane.config.host.interfaces);
        let strict: Vec<u32> = strict.into_iter().map(|i| i.index).collect();
        self.strict = Some((now, strict.clone()));
        strict
    }

    /// Continues the step that waited for the route.
    pub(super) fn routed(&mut self, plane: &mut Plane, change: ChangeId, found: Routed) {
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let (Some(waiting), Some(new)) = (held.waiting.take(), held.new) else {
            return;
        };
        let usable = found
            .map_err(|error| match error {
                AgentError::ReversePath(_) => Reason::NewPathUnusable(error.explain().cause()),
                _ => Reason::NoRoute(new.remote().ip()),
            })
            .and_then(|ifindex| plane.usable_way(new.local().ip(), new.remote().ip(), ifindex));
        let event = match waiting {
            // A join waits for two routes: see `ways_found`.
            Waiting::Join { .. } => return,
            Waiting::Reserve { new } => HostEvent::Reserved {
                change,
                result: usable.map(|_| new),
            },
            Waiting::Prepare { translation } => {
                let path = usable.map(|ifindex| NewPath {
                    key: new,
                    ifindex,
                    translation,
                });
                let result = path.and_then(|path| self.prepare_path(plane, change, &path));
                HostEvent::TwoPaths { change, result }
            }
        };
        plane.tell_machine(event);
    }
}

impl Plane {
    /// Returns true if the data plane is attached to the interface.
    pub(super) fn is_ours(&self, ifindex: u32) -> bool {
        let ours = &self.config.host.interfaces;
        ours.iter().any(|i| i.index == ifindex)
    }

    /// Returns the reason why no session can be changed on one of the interfaces that `is` selects.
    pub(super) fn filtered(&self, is: impl Fn(&Interface) -> bool) -> Option<Cause> {
        let ours = self.config.host.interfaces.iter();
        ours.filter(|i| is(i)).find_map(Interface::filtered)
    }

    /// Returns the interface of a route that was found, if the data plane can use it.
    pub(super) fn usable_way(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        ifindex: u32,
    ) -> Result<u32, Reason> {
        if !self.is_ours(ifindex) {
            let why = format!("the route to {to} leaves by an interface that is not dyscod's");
            return Err(Reason::NewPathUnusable(Cause::new(why).hint(
                "add that interface to interfaces under [host] and restart dyscod, or keep the middlebox",
            )));
        }
        if let Some(cause) = self.filtered(|i| i.index == ifindex) {
            return Err(Reason::NewPathUnusable(cause));
        }
        self.state.keep_route(from, to, ifindex, Instant::now());
        Ok(ifindex)
    }
}
