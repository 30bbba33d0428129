//! Direct server return (mode `return`) at the server's host: replies leave it for the client
//! directly. Also the check, on both hosts, whether they still do.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dysco_agent::{AgentError, NewPath};
use dysco_api::{Way, WayChange};
use dysco_common::seq::after;
use dysco_common::{FlowKey, Session, Translation, View};
use dysco_explain::{Cause, Explain};
use dysco_proto::{ChangeId, HostEvent, Probe, Reason, Subsession};
use etherparse::{TcpHeader, TcpOptionElement};

use super::measure::no_longer;
use super::packets::{self, packet_of};
use super::raw::{send, send_by};
use super::{Answer, Plane};

/// Time without an acknowledgement after which replies take the old path again.
const PATIENCE: Duration = Duration::from_secs(3);
/// Intervals at which the old path is shown again how far replies are: some packets may be lost.
const ANNOUNCE_AGAIN: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
];
/// Number of stray packets that still count as the last ones of a path.
const MAX_LATE_PACKETS: u32 = 8;

/// Action that is due once the route to the client is known.
#[derive(Clone, Copy)]
pub(super) enum DsrRequest {
    /// Send the client a segment under the relaying host's address.
    Prove {
        probe: Probe,
        translation: Option<Translation>,
    },
    /// Send the client all replies that way.
    Return { translation: Translation },
}

/// Result of looking up the route to a client.
pub(super) struct DsrRoute {
    change: ChangeId,
    /// Session of this host.
    own: Subsession,
    /// Session that the client knows.
    path: Subsession,
    request: DsrRequest,
    found: Result<u32, AgentError>,
}

/// Memory of the sessions in this mode.
#[derive(Default)]
pub(super) struct Returns {
    /// At the host that replies leave: the highest number acknowledged, and since when.
    stuck: HashMap<u32, (u64, u32, Instant)>,
    /// At the relaying host: the number of packets received when replies began to bypass it.
    strays: HashMap<u32, (u64, u32)>,
}

impl Returns {
    /// Records that no reply should arrive by this entry any more.
    pub(crate) fn passed_by(&mut self, slot: u32, s: &Session) {
        self.strays.insert(slot, (s.created_ns, s.new_in));
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.stuck.remove(&slot);
        self.strays.remove(&slot);
    }

    /// Returns true if nothing has been acknowledged for too long.
    fn is_stuck(&mut self, slot: u32, s: &Session, now: Instant) -> bool {
        if !after(s.snd_max, s.rcv_ack) {
            self.stuck.remove(&slot);
            return false;
        }
        let fresh = (s.created_ns, s.rcv_ack, now);
        let known = self.stuck.entry(slot).or_insert(fresh);
        if (known.0, known.1) != (s.created_ns, s.rcv_ack) {
            *known = fresh;
        }
        now.duration_since(known.2) >= PATIENCE
    }

    /// Returns true if replies arrive here although they should not.
    fn are_back(&mut self, slot: u32, s: &Session) -> bool {
        let known = self.strays.entry(slot).or_insert((s.created_ns, s.new_in));
        if known.0 != s.created_ns {
            *known = (s.created_ns, s.new_in);
        }
        s.new_in.wrapping_sub(known.1) > MAX_LATE_PACKETS
    }
}

impl Returns {
    /// Looks up the route to the client, and then carries out the request.
    pub(super) fn request_dsr(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        own: Subsession,
        path: Subsession,
        request: DsrRequest,
    ) {
        let (from, to) = (own.right.ip(), path.left.ip());
        let dsr = move |found| DsrRoute {
            change,
            own,
            path,
            request,
            found,
        };
        if let Some(ifindex) = plane.state.route(from, to) {
            return self.dsr_route_found(plane, dsr(Ok(ifindex)));
        }
        let (routes, answers) = (plane.routes.clone(), plane.answers.clone());
        tokio::spawn(async move {
            let found = routes.get(from, to).await.map(|r| r.ifindex);
            let _ = answers.send(Answer::DsrRoute(Box::new(dsr(found))));
        });
    }

    /// Carries out the request, once the route is known or there is none.
    pub(super) fn dsr_route_found(&mut self, plane: &mut Plane, s: DsrRoute) {
        let change = s.change;
        let result = self.run_request(plane, s);
        plane.tell_machine(HostEvent::Prepared { change, result });
    }

    fn run_request(&mut self, plane: &mut Plane, dsr: DsrRoute) -> Result<(), Reason> {
        let DsrRoute {
            own, path, request, ..
        } = dsr;
        let client = path.left;
        let found = dsr.found.map_err(|_| Reason::NoRoute(client.ip()))?;
        let ifindex = plane.usable_way(own.right.ip(), client.ip(), found)?;
        let slot = plane.find(&own).ok_or(Reason::NotTracked(own))?;
        let s = plane.agent.session(slot);
        let key = FlowKey::new(path.right, client);
        let view = s.view();
        if !matches!(view, View::Tracked | View::Returned) || s.life.reset != 0 {
            return Err(no_longer(view));
        }
        match request {
            DsrRequest::Prove { probe, translation } => {
                let bytes = segment(&s, &path, &probe, translation);
                let interface = plane.interface(ifindex);
                send_by(&bytes, client, interface).map_err(|e| Reason::Failed(Cause::new(e)))
            }
            DsrRequest::Return { .. } if view == View::Returned && s.path == key => Ok(()),
            DsrRequest::Return { translation } => {
                let path = NewPath {
                    key,
                    ifindex,
                    translation,
                };
                self.forget(slot);
                plane
                    .agent
                    .start_dsr(slot, &path)
                    .map_err(|e| Reason::NewPathUnusable(e.explain().into()))
            }
        }
    }

    /// Runs once a second for each session: replies that do not arrive take the old path again,
    /// which is always open.
    pub(super) fn sweep_return(&mut self, plane: &mut Plane, slot: u32, s: &Session, now: Instant) {
        match s.view() {
            View::Returned if self.is_stuck(slot, s, now) => {
                plane.agent.unprepare(slot);
                plane.announce_old_way(slot, s);
                let why = format!("nothing was acknowledged for {} s", PATIENCE.as_secs());
                self.no_return(plane, slot, s, &why);
            }
            View::Relayed(_) => {
                let Some(a) = plane.linked(slot, s).filter(|_| s.life.opened_here != 0) else {
                    return;
                };
                let other = plane.agent.session(a);
                if other.two.returns != 0 && self.are_back(slot, s) {
                    plane.agent.set_returns(a, false);
                    self.no_return(plane, a, &other, "replies pass this host again");
                }
            }
            _ => {}
        }
    }

    fn no_return(&mut self, plane: &mut Plane, slot: u32, s: &Session, why: &str) {
        self.forget(slot);
        let id = plane.session_id(slot, s);
        plane.report("no_return", Some(id), format!("{:?}: {why}", s.key));
        let change = WayChange {
            from: Way::Return,
            to: Way::Local,
            by: "dyscod, since replies did not arrive".into(),
        };
        plane.history.changed(id, change, None);
    }
}

impl Plane {
    fn interface(&self, ifindex: u32) -> Option<&str> {
        let ours = self.config.host.interfaces.iter();
        ours.clone()
            .find(|i| i.index == ifindex)
            .map(|i| i.name.as_str())
    }

    /// Shows firewalls on the path by the relaying host how far this end has sent past it.
    ///
    /// A stateful firewall there has not seen those replies, and drops acknowledgements of them as
    /// invalid. It would also drop the acknowledgement of anything retransmitted there, since the
    /// client has received more. This end sent no more than the window that the client's last
    /// acknowledgement opened, which the firewall has seen: the firewall accepts a segment with the
    /// highest number at once. A keep-alive after that segment makes the client acknowledge all.
    fn announce_old_way(&self, slot: u32, s: &Session) {
        let (agent, created_ns) = (self.agent.clone(), s.created_ns);
        let say = move || {
            let s = agent.session(slot);
            if s.created_ns != created_ns || s.view() != View::Tracked {
                return;
            }
            for seq in [s.snd_max, s.rcv_ack.wrapping_sub(1)] {
                let to = s.key.remote();
                if let Err(error) = send(&packets::own_ack(&s, seq), to) {
                    tracing::warn!(%to, %error, "cannot show firewalls how far replies are");
                }
            }
        };
        say();
        tokio::spawn(async move {
            for wait in ANNOUNCE_AGAIN {
                tokio::time::sleep(wait).await;
                say();
            }
        });
    }
}

/// Returns the segment that the client has received before, and answers.
fn segment(
    s: &Session,
    path: &Subsession,
    probe: &Probe,
    translation: Option<Translation>,
) -> Vec<u8> {
    let from = probe.end.wrapping_sub(u32::from(probe.len));
    let mut tcp = TcpHeader::new(path.right.port(), path.left.port(), from, 1024);
    tcp.ack = true;
    tcp.acknowledgment_number = probe.ack;
    // If the client knows this host's own clock, that clock is more recent than the last value that
    // the relaying host has seen.
    let own = translation.map(|t| {
        (
            s.tsval_out.wrapping_add(t.ts_out),
            s.tsval_in.wrapping_sub(t.ts_in),
        )
    });
    if let Some(clock) = probe.clock {
        let (tsval, tsecr) = own.unwrap_or(clock);
        // Twelve bytes of forty.
        let _ = tcp.set_options(&[
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(tsval, tsecr),
        ]);
    }
    let key = FlowKey::new(path.right, path.left);
    packet_of(&key, tcp, &vec![0; usize::from(probe.len)])
}
