//! Calls of the local API.

use dysco_api::{
    Counters, Failure, FailureCode, MetricsReport, Remove, Reply, Request, SessionName,
};
use tokio::sync::mpsc::Sender;

use super::Engine;
use super::chains::openers::opener;
use super::host::ThisHost;
use super::listing::no_such_session;
use super::outside::{look_at, watch};
use super::plane::Plane;
use super::removal::task::Said;
use crate::api::{Call, Caller};
use crate::metrics::Format;

impl Engine {
    pub(super) fn take_call(&mut self, call: Call) {
        let Call {
            request,
            caller,
            replies,
        } = call;
        let ThisHost {
            plane,
            chains,
            moves,
            services,
            ..
        } = &mut self.core.host;
        let reply = match request {
            Request::Status => Reply::Status(Box::new(self.status())),
            Request::Counters => self.counters_report(),
            Request::Metrics => self.metrics_report(),
            Request::Namespaces => Reply::Namespaces {
                namespaces: self.namespaces.reports(),
            },
            Request::Adopt => return self.adopting.begin(plane, Some(replies)),
            Request::Reload { dry_run } => {
                return self.reload.begin(&plane.answers, dry_run, Some(replies));
            }
            Request::Policy => chains.policy_report(plane),
            Request::PolicyApply { text } => {
                let reply = chains.policy_apply(plane, text.as_deref());
                self.core.host.tell_store();
                reply
            }
            Request::PolicyPublish { text } => return self.core.host.publish(text, replies),
            Request::PolicyExplain {
                source,
                destination,
                user,
                cgroup,
            } => chains.policy_explain(plane, source, destination, opener(user, cgroup)),
            Request::Monitor => return plane.monitors.add(&plane.agent, replies),
            Request::Remove(remove) => return self.remove(remove, &caller, replies),
            Request::Tune(request) => return self.tuner.tune(plane, request, caller, replies),
            Request::Service(request) => return services.request(plane, request, caller, replies),
            Request::Run(request) => services.begin_run(plane, &request, &caller),
            Request::Services(listing) => return services.list(plane, &listing, replies),
            Request::CallService(call) => return services.call(plane, call, &caller, replies),
            Request::Delta(request) => plane.tell_delta(&request),
            Request::ExportState(about) => return plane.export_state(&about, replies),
            Request::InstallState(install) => return plane.install_state(install, replies),
            Request::MoveState(request) => return moves.move_state(plane, request, replies),
            Request::RemoveState(about) => return plane.remove_state(&about, replies),
            Request::Reconfigure(request) => {
                let core = &mut self.core;
                return (self.chain_requests).reconfigure(core, &request, &caller, &replies);
            }
            Request::Proxy { process } => return look_at(plane, process, &caller, replies),
            Request::Sessions(listing) => return self.pages.begin(listing, replies),
            Request::Session { session } => session_report(plane, &session, &replies),
        };
        // The client's channel is fresh and has room, or the client has left.
        let _ = replies.try_send(reply);
    }

    fn remove(&mut self, request: Remove, caller: &Caller, replies: Sender<Reply>) {
        if request.process.is_some() {
            return watch(&self.core.host.plane, request, caller, replies);
        }
        let said = Said::of(&request, caller);
        self.removals.remove(&mut self.core, request, said, replies);
    }

    fn counters_report(&mut self) -> Reply {
        let counters = self.snapshot().listed();
        Reply::Counters(Counters { counters })
    }

    fn metrics_report(&mut self) -> Reply {
        match self.snapshot().page().write(Format::OpenMetrics) {
            Ok(openmetrics) => Reply::Metrics(MetricsReport { openmetrics }),
            Err(error) => Reply::Error(internal("write the metrics", &error)),
        }
    }
}

/// Sends the report of a session. Returns the last reply.
fn session_report(plane: &Plane, session: &SessionName, replies: &Sender<Reply>) -> Reply {
    let Some(slot) = plane.slot_named(session) else {
        return Reply::Error(no_such_session(session));
    };
    let report = plane.report_of(slot, &plane.agent.session(slot));
    let _ = replies.try_send(Reply::Session(Box::new(report)));
    Reply::Done { summary: None }
}

fn internal(what: &str, error: &dyn std::error::Error) -> Failure {
    Failure {
        code: FailureCode::Internal,
        what: what.into(),
        why: error.to_string(),
        hint: "see the log of dyscod".into(),
    }
}
