//! Requests to put services into sessions, and to take them out.

use std::time::{Duration, Instant};

use dysco_api::{
    Reply, ServiceAction, ServiceOutcome, ServiceReport, ServiceRequest, ServiceSpec, SessionName,
};
use dysco_common::Session;
use dysco_common::view::{Change, View};
use dysco_explain::Cause;
use dysco_proxy::diag;
use dysco_runner::Ends;
use tokio::sync::mpsc;

use super::choice::{self, Judged, judge};
use super::report::report;
use super::{Serviced, Services, packets, words};
use crate::api::Caller;
use crate::engine::Plane;

/// Time for which a session's path before may be in the way of services.
const SETTLES: Duration = Duration::from_secs(2);

/// A session whose chain has just changed. It gets its services once its path before is forgotten.
pub(super) struct Settling {
    job: u64,
    request: ServiceRequest,
    until: Instant,
    /// Its report, should it end meanwhile.
    ended: ServiceReport,
}

/// A request that is carried out.
pub(super) struct Job {
    out: mpsc::UnboundedSender<Reply>,
    /// Sessions without a result.
    pub open: usize,
    /// The end of the client's patience; the beginning of a change suffices without one.
    pub until: Option<Instant>,
    /// The caller, in the words of a session's history.
    pub by: String,
    /// The caller, by number.
    user: u32,
}

impl Job {
    /// Begins to send replies at the client's pace.
    fn new(replies: mpsc::Sender<Reply>, wait: Option<Duration>, caller: &Caller) -> Job {
        let (out, mut queue) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(reply) = queue.recv().await {
                if replies.send(reply).await.is_err() {
                    return;
                }
            }
        });
        Job {
            out,
            open: 0,
            until: wait.map(|wait| Instant::now() + wait),
            by: caller.words(),
            user: caller.uid,
        }
    }

    /// Sends a reply. A client that has left needs none.
    pub(super) fn send(&self, reply: Reply) {
        let _ = self.out.send(reply);
    }
}

impl Services {
    /// Takes a request.
    pub(crate) fn request(
        &mut self,
        plane: &mut Plane,
        request: ServiceRequest,
        caller: Caller,
        replies: mpsc::Sender<Reply>,
    ) {
        let slots = match choice::slots(plane, self, &request) {
            Ok(slots) => slots,
            Err(failure) => {
                // The client's channel is fresh and has room, or the client has left.
                let _ = replies.try_send(Reply::Error(failure));
                return;
            }
        };
        let wait = request.wait_ms.map(Duration::from_millis);
        let job = Job::new(replies, wait, &caller);
        job.send(Reply::Accepted {
            sessions: slots.len(),
            left: Vec::new(),
        });
        let id = self.next_job;
        self.next_job += 1;
        self.jobs.insert(
            id,
            Job {
                open: slots.len(),
                ..job
            },
        );
        for slot in slots {
            self.begin_or_wait(plane, id, slot, &request);
        }
        self.close_job(id);
    }

    /// Begins the change of one session at once, or soon if its chain has just changed.
    fn begin_or_wait(&mut self, plane: &mut Plane, job: u64, slot: u32, request: &ServiceRequest) {
        let s = plane.agent.session(slot);
        let comes = matches!(request.action, ServiceAction::Put { .. });
        if !comes || !settles(&s) {
            return self.begin(plane, job, slot, request);
        }
        self.settling.push(Settling {
            job,
            request: request.clone(),
            until: Instant::now() + SETTLES,
            ended: report(
                plane,
                slot,
                ServiceOutcome::Refused,
                vec!["it has ended".into()],
            ),
        });
    }

    /// Begins the changes of sessions whose paths before are forgotten.
    pub(super) fn settle_paths(&mut self, plane: &mut Plane) {
        for one in std::mem::take(&mut self.settling) {
            // It may have another slot now.
            let Some(slot) = plane.slot_named(&SessionName::Id(one.ended.session)) else {
                self.settle_job(one.job, one.ended);
                continue;
            };
            let waits = settles(&plane.agent.session(slot)) && Instant::now() < one.until;
            match waits {
                true => self.settling.push(one),
                false => self.begin(plane, one.job, slot, &one.request),
            }
        }
    }

    /// Begins the change of one session, or reports why it is none.
    fn begin(&mut self, plane: &mut Plane, job: u64, slot: u32, request: &ServiceRequest) {
        let services = match &request.action {
            ServiceAction::Put { services, .. } => services.clone(),
            ServiceAction::Take => self.services_of(plane, slot),
            ServiceAction::Part { services } => named(self.services_of(plane, slot), services),
            ServiceAction::Replace { new, .. } => vec![new.clone()],
        };
        let user = self.jobs.get(&job).map_or(0, |job| job.user);
        let judged = match not_own(plane, Some(slot), user) {
            Some(cause) => Judged::Refused(vec![cause]),
            None => judge(plane, self, slot, &request.action),
        };
        let (outcome, reasons) = match judged {
            Judged::Refused(reasons) => (ServiceOutcome::Refused, reasons),
            Judged::Unchanged => (ServiceOutcome::Unchanged, Vec::new()),
            Judged::Possible if request.dry_run => {
                let outcome = match request.action {
                    ServiceAction::Put { .. } | ServiceAction::Replace { .. } => {
                        ServiceOutcome::Put
                    }
                    ServiceAction::Take | ServiceAction::Part { .. } => ServiceOutcome::Taken,
                };
                (outcome, Vec::new())
            }
            Judged::Possible => {
                if let Some(report) = self.end_rest(plane, slot, &request.action) {
                    return self.settle_job(job, report);
                }
                if let Some(report) = in_packets(plane, slot, &request.action) {
                    let by = self.jobs.get(&job).map(|job| job.by.clone());
                    remember(plane, by, &report);
                    return self.settle_job(job, report);
                }
                return self.carry_out(plane, job, slot, &request.action, services);
            }
        };
        let report = ServiceReport {
            services,
            ..report(plane, slot, outcome, reasons)
        };
        self.settle_job(job, report);
    }

    /// Begins a change that is possible, by a handler.
    fn carry_out(
        &mut self,
        plane: &mut Plane,
        job: u64,
        slot: u32,
        action: &ServiceAction,
        services: Vec<ServiceSpec>,
    ) {
        match action {
            ServiceAction::Put { .. } if self.has(plane, slot) => {
                self.add(plane, job, slot, services, None);
            }
            ServiceAction::Put { .. } => self.put(plane, job, slot, services),
            ServiceAction::Replace { old, .. } => self.add(plane, job, slot, services, Some(old)),
            ServiceAction::Part { .. } if services.len() < self.number(slot) => {
                self.part(plane, job, slot, services);
            }
            ServiceAction::Take | ServiceAction::Part { .. } => self.take_out(plane, job, slot),
        }
    }

    fn services_of(&self, plane: &Plane, slot: u32) -> Vec<ServiceSpec> {
        let s = plane.agent.session(slot);
        if let Some(record) = plane.agent.packet_services(&s) {
            return packets::services(&s, &record);
        }
        if let Some(rests) = self.rests_in(slot, &s) {
            return rests.services.clone();
        }
        let serviced = self.sessions.get(&slot);
        serviced.map_or_else(Vec::new, |one| one.services.clone())
    }

    /// Begins to put services into a session.
    fn put(&mut self, plane: &mut Plane, job: u64, slot: u32, services: Vec<ServiceSpec>) {
        let s = plane.agent.session(slot);
        let ends = choice::check(&services, &s);
        let delta = self.sessions.get(&slot).map_or([0; 2], |one| one.delta);
        let mut one = Serviced::new(plane, slot, &s, services);
        one.job = Some(job);
        if ends == Ok(Ends::Pair) {
            return self.invite(plane, slot, one);
        }
        one.delta = delta;
        self.sessions.insert(slot, one);
        self.waiting.push(slot);
        self.go_on(plane);
    }

    /// Reports the result of one session of a request.
    pub(super) fn settle_job(&mut self, job: u64, report: ServiceReport) {
        if let Some(one) = self.jobs.get_mut(&job) {
            one.send(Reply::Service(report));
            one.open -= 1;
        }
        self.close_job(job);
    }

    fn close_job(&mut self, job: u64) {
        if self.jobs.get(&job).is_some_and(|one| one.open == 0)
            && let Some(one) = self.jobs.remove(&job)
        {
            one.send(Reply::Done { summary: None });
        }
    }
}

/// True if the path before of a session is about to be forgotten.
fn settles(s: &Session) -> bool {
    let switching = matches!(s.view(), View::Changing(Change::Switching(_)));
    switching && !s.has_ended()
}

/// Returns those of these services that have one of the names.
pub(super) fn named(mut services: Vec<ServiceSpec>, names: &[String]) -> Vec<ServiceSpec> {
    services.retain(|service| names.contains(&service.name));
    services
}

/// Returns the reason for which a user may not ask about a session: only root may, and the user of its
/// socket. A session that does not exist is none of the user either: a user learns nothing of others.
pub(super) fn not_own(plane: &Plane, slot: Option<u32>, user: u32) -> Option<Cause> {
    let key = slot.map(|slot| plane.agent.session(slot).key);
    let own = || key.is_some_and(|key| diag::owner(&key).is_ok_and(|owner| owner == user));
    (user != 0 && !own()).then(|| {
        Cause::new(format!("the session is none of user {user}"))
            .hint("run as root, or as the user of the program")
    })
}

/// Reports the change of a session's services of the packet plane.
fn remember(plane: &mut Plane, by: Option<String>, done: &ServiceReport) {
    let kind = match done.outcome {
        ServiceOutcome::Put => "services-put",
        ServiceOutcome::Taken => "services-taken",
        _ => return,
    };
    plane.report_by(by, kind, Some(done.session), words::of(&done.services));
}

/// Puts services of the packet plane into a session, or takes them out. Returns the report; nothing
/// if the action is about other services.
fn in_packets(plane: &Plane, slot: u32, action: &ServiceAction) -> Option<ServiceReport> {
    let s = plane.agent.session(slot);
    let record = plane.agent.packet_services(&s);
    let had = record.map(|record| packets::Wanted::of(&record, s.life.opened_here != 0));
    // A request whose services are wrong does not come here.
    let (outcome, services, result) = match action {
        ServiceAction::Put { services, .. } => {
            let wanted = packets::wanted(services).ok()??;
            let result = match had {
                Some(had) => had.and(&wanted).map(|all| packets::change(plane, &s, &all)),
                None => packets::put(plane, &s, &wanted),
            };
            (ServiceOutcome::Put, wanted.services(), result)
        }
        ServiceAction::Replace { old, new } => {
            let wanted = packets::wanted(std::slice::from_ref(new)).ok()??;
            let left = had?.without(std::slice::from_ref(old));
            let result = left
                .and(&wanted)
                .map(|all| packets::change(plane, &s, &all));
            (ServiceOutcome::Put, wanted.services(), result)
        }
        ServiceAction::Part { services } => {
            let had = had?;
            let left = had.without(services);
            if left == packets::Wanted::default() {
                return Some(packets::take(plane, slot, &record?));
            }
            packets::change(plane, &s, &left);
            let gone = named(had.services(), services);
            (ServiceOutcome::Taken, gone, Ok(()))
        }
        ServiceAction::Take => return Some(packets::take(plane, slot, &record?)),
    };
    let (outcome, reasons) = match result {
        Ok(()) => (outcome, Vec::new()),
        Err(cause) => (ServiceOutcome::Refused, vec![cause]),
    };
    Some(ServiceReport {
        services,
        millis: (outcome != ServiceOutcome::Refused).then_some(0),
        ..report(plane, slot, outcome, reasons)
    })
}
