//! Proxies that are named by their process: the sockets that they hold, and their sessions, watched
//! from outside where no shim reports.

pub(super) mod seen;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use dysco_api::{
    Failure, FailureCode, HeldReport, HostName, ProcessName, ProcessReport, ProxyReport, Removable,
    Remove, Reply,
};
use dysco_common::FlowKey;
use dysco_explain::Cause;
use dysco_proto::Reason;
use dysco_proxy::outside::{Ask, Found, ProxySockets};
use dysco_proxy::{ProcessError, Tracked};
use tokio::sync::mpsc;

use super::core::Core;
use super::listing::{named, shows};
use super::removal::found::Candidates;
use super::removal::left::{left_untracked, unknown};
use super::removal::task::{Said, Task};
use super::removal::{Removals, sort, task_of};
use super::{Answer, Plane};
use crate::api::Caller;
use seen::{Seen, What};

impl Removals {
    /// Handles the result of a task.
    pub(super) fn seen(&mut self, core: &mut Core, seen: Seen) {
        let replies = seen.replies;
        match seen.what {
            What::Looked(Ok(proxy_sockets)) => {
                let report = Reply::Proxy(Box::new(proxy_report(&core.host.plane, &proxy_sockets)));
                let _ = replies.try_send(report);
            }
            What::Looked(Err(error)) => {
                let _ = replies.try_send(Reply::Error(failure(&error)));
            }
            What::Watched {
                request,
                said,
                found,
            } => {
                let found = match found {
                    Ok(found) => Ok(watched(&core.host.plane, &request, &said, found)),
                    Err(error) => Err(failure(&error)),
                };
                self.remove_found(core, found, &request, &replies);
            }
        }
    }
}

/// Begins to look which sessions a proxy holds.
pub(super) fn look_at(
    here: &Plane,
    name: ProcessName,
    caller: &Caller,
    replies: mpsc::Sender<Reply>,
) {
    let (uid, proxy) = (caller.user(), here.proxy.clone());
    let answers = here.answers.clone();
    tokio::spawn(async move {
        let what = What::Looked(proxy.look(name, uid).await);
        let _ = answers.send(Answer::Seen(Box::new(Seen { what, replies })));
    });
}

/// Begins to watch the sockets of a proxy, to remove it from its sessions.
pub(super) fn watch(here: &Plane, request: Remove, caller: &Caller, replies: mpsc::Sender<Reply>) {
    let ask = match ask(here, &request, caller) {
        Ok(ask) => ask,
        Err(failure) => {
            let _ = replies.try_send(Reply::Error(failure));
            return;
        }
    };
    let said = Said::of(&request, caller);
    let (proxy, answers) = (here.proxy.clone(), here.answers.clone());
    tokio::spawn(async move {
        let found = proxy.watch(ask).await;
        let what = What::Watched {
            request,
            said,
            found,
        };
        let _ = answers.send(Answer::Seen(Box::new(Seen { what, replies })));
    });
}

fn ask(here: &Plane, request: &Remove, caller: &Caller) -> Result<Ask, Failure> {
    let Some(name) = request.process.clone() else {
        return Err(bad_request("no process is named", "name one"));
    };
    if request.host != HostName::This && here.resolve(&request.host)?.is_some() {
        return Err(bad_request(
            "a process is seen on its own host only",
            "run it there, with 'self' as the host",
        ));
    }
    let only = match (request.all, request.filter.is_empty()) {
        (true, true) => None,
        (true, false) => Some(
            here.agent
                .sessions()
                .into_iter()
                .map(|(slot, _)| slot)
                .collect(),
        ),
        (false, _) => Some(named(here, &request.sessions)?),
    };
    let meant = |slots: Vec<u32>| {
        let some = slots
            .into_iter()
            .filter(|slot| shows(here, *slot, &request.filter));
        some.map(|slot| here.agent.session(slot).key).collect()
    };
    let only = only.map(meant);
    Ok(Ask {
        name,
        uid: caller.user(),
        tracked: tracked(here),
        only,
        all: request.all && request.filter.is_empty(),
    })
}

/// Returns the sessions that could be changed, as far as the data plane knows.
fn tracked(here: &Plane) -> HashMap<FlowKey, Tracked> {
    let all = here.agent.sessions_in(0..here.agent.capacity());
    let could = all.filter(|(_, s)| could_change(s));
    could
        .map(|(_, s)| {
            let known = Tracked {
                opened_here: s.life.opened_here != 0,
                // The start time of an adopted session is not known.
                born: (!s.is_adopted()).then_some(s.created_ns),
            };
            (s.key, known)
        })
        .collect()
}

fn watched(here: &Plane, request: &Remove, said: &Said, watched: Found) -> Candidates {
    let timeout = request.timeout_ms.map_or(
        here.config.removal.timeout,
        std::time::Duration::from_millis,
    );
    let mode = request.mode.unwrap_or(here.config.removal.mode);
    let task_of = |slot| -> Task {
        let mut task = task_of(here, slot, None, timeout, mode, said);
        (task.dry, task.by_name) = (request.dry_run, request.mode.is_some());
        task
    };
    let mut found = Candidates {
        left: left_untracked(here, &watched.untracked),
        ..Candidates::default()
    };
    let mut met = HashSet::new();
    for (key, basis) in watched.sessions {
        // The session may have ended while it was watched.
        let Some(slot) = here.agent.find(&key) else {
            continue;
        };
        met.insert(slot);
        let task = task_of(slot);
        match basis {
            Ok(_) => sort(here, task, &mut found),
            Err(cause) => {
                let reported = cause.clone();
                let reported = reported.after("the session is not proven byte-transparent");
                let report = task.refused(reported);
                found.refused.push((report, Reason::NotTransparent(cause)));
            }
        }
    }
    let named = named(here, &request.sessions).unwrap_or_default();
    for slot in named.into_iter().filter(|slot| !met.contains(slot)) {
        let task = task_of(slot);
        let why = Cause::new("the named process has not accepted it");
        let report = task.refused(why.clone());
        found.refused.push((report, Reason::NotTransparent(why)));
    }
    found
}

fn proxy_report(here: &Plane, proxy_sockets: &ProxySockets) -> ProxyReport {
    let processes = proxy_sockets.processes.values().map(|p| ProcessReport {
        pid: p.pid,
        name: p.comm.clone(),
    });
    let held = |socket: &dysco_proxy::outside::Socket| {
        let slot = here.agent.find(&socket.key);
        let known = slot.map(|slot| here.agent.session(slot));
        let accepted = known
            .as_ref()
            .map_or(socket.accepted, |s| s.life.opened_here == 0);
        let pair = here.proxy.find(&socket.key);
        accepted.then(|| HeldReport {
            pid: socket.holder.pid,
            local: socket.key.local(),
            remote: socket.key.remote(),
            session: slot.zip(known).map(|(slot, s)| here.session_id(slot, &s)),
            removable: match &known {
                Some(s) => here.removable(s, pair.as_ref()),
                None => Removable::no(vec![unknown(here, &socket.key)]),
            },
            label: here.proxy.label(socket.holder.pid, &socket.key),
        })
    };
    ProxyReport {
        processes: processes.collect(),
        sessions: proxy_sockets.sockets.iter().filter_map(held).collect(),
    }
}

impl Plane {
    /// Returns true if an end with this address is on this host, loopback included.
    pub(super) fn is_on_host(&self, ip: &IpAddr) -> bool {
        ip.is_loopback() || self.config.host.addresses.contains(ip)
    }
}

/// Returns true if the session's state allows a change.
fn could_change(s: &dysco_common::Session) -> bool {
    s.view().is_unchanged()
}

fn bad_request(why: &str, hint: &str) -> Failure {
    let cause = Cause::new(why).hint(hint);
    Failure::new(FailureCode::BadRequest, cause.of("watch a process"))
}

fn failure(error: &ProcessError) -> Failure {
    let code = match error {
        ProcessError::None(_) => FailureCode::NotFound,
        ProcessError::Elsewhere(_) | ProcessError::Ambiguous { .. } => FailureCode::Refused,
        ProcessError::NotAllowed { .. } => FailureCode::NotAllowed,
        ProcessError::System { .. } => FailureCode::Internal,
    };
    Failure::new(code, error.cause().of("find the proxy"))
}
