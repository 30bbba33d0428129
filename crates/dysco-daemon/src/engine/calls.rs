//! Calls of the local API.

use dysco_api::{Counters, Failure, FailureCode, MetricsReport, Reply, Request};

use super::Engine;
use super::listing::no_such_session;
use super::outside::{look_at, watch};
use super::removal::Said;
use crate::api::Call;
use crate::metrics::Format;

impl Engine {
    pub(super) fn take_call(&mut self, call: Call) {
        let Call {
            request,
            caller,
            replies,
        } = call;
        let core = &mut self.core;
        let reply = match request {
            Request::Status => Reply::Status(Box::new(self.status())),
            Request::Counters => Reply::Counters(Counters {
                counters: self.snapshot().listed(),
            }),
            Request::Metrics => match self.snapshot().page().write(Format::OpenMetrics) {
                Ok(openmetrics) => Reply::Metrics(MetricsReport { openmetrics }),
                Err(error) => Reply::Error(internal("write the metrics", &error)),
            },
            Request::Namespaces => Reply::Namespaces {
                namespaces: self.namespaces.reports(),
            },
            Request::Adopt => return self.adopting.begin(&core.host.plane, Some(replies)),
            Request::Reload { dry_run } => {
                let answers = &core.host.plane.answers;
                return self.reload.begin(answers, dry_run, Some(replies));
            }
            Request::Policy => core.host.chains.policy_report(&core.host.plane),
            Request::PolicyApply { text } => {
                let (chains, plane) = (&mut core.host.chains, &mut core.host.plane);
                let reply = chains.policy_apply(plane, text.as_deref());
                core.host.tell_store();
                reply
            }
            Request::PolicyPublish { text } => return core.host.publish(text, replies),
            Request::PolicyExplain {
                source,
                destination,
            } => core
                .host
                .chains
                .policy_explain(&core.host.plane, source, destination),
            Request::Monitor => {
                let plane = &mut core.host.plane;
                return plane.monitors.add(&plane.agent, replies);
            }
            Request::Remove(remove) if remove.process.is_some() => {
                return watch(&core.host.plane, remove, &caller, replies);
            }
            Request::Remove(remove) => {
                let said = Said::of(&remove, &caller);
                return self.removals.remove(core, remove, said, replies);
            }
            Request::Tune(request) => {
                return self.tuner.tune(&core.host.plane, request, caller, replies);
            }
            Request::Service(request) => {
                let (services, plane) = (&mut core.host.services, &mut core.host.plane);
                return services.request(plane, request, caller, replies);
            }
            Request::Run(request) => {
                let (services, plane) = (&mut core.host.services, &core.host.plane);
                services.begin_run(plane, &request, &caller)
            }
            Request::Services(listing) => {
                return core.host.services.list(&core.host.plane, &listing, replies);
            }
            Request::CallService(call) => {
                let (services, plane) = (&mut core.host.services, &core.host.plane);
                return services.call(plane, call, &caller, replies);
            }
            Request::Delta(request) => core.host.plane.tell_delta(&request),
            Request::ExportState(about) => {
                return core.host.plane.export_state(&about, replies);
            }
            Request::InstallState(install) => {
                return core.host.plane.install_state(install, replies);
            }
            Request::MoveState(request) => {
                return core
                    .host
                    .moves
                    .move_state(&mut core.host.plane, request, replies);
            }
            Request::RemoveState(about) => {
                return core.host.plane.remove_state(&about, replies);
            }
            Request::Reconfigure(request) => {
                return self.chain_requests.reconfigure(core, &request, &replies);
            }
            Request::Proxy { process } => {
                return look_at(&core.host.plane, process, &caller, replies);
            }
            Request::Sessions(listing) => return self.pages.begin(listing, replies),
            Request::Session { session } => match core.host.plane.slot_named(&session) {
                Some(slot) => {
                    let report = core
                        .host
                        .plane
                        .report_of(slot, &core.host.plane.agent.session(slot));
                    let _ = replies.try_send(Reply::Session(Box::new(report)));
                    Reply::Done { summary: None }
                }
                None => Reply::Error(no_such_session(&session)),
            },
        };
        // The client's channel is fresh and has room, or the client has left.
        let _ = replies.try_send(reply);
    }
}

fn internal(what: &str, error: &dyn std::error::Error) -> Failure {
    Failure {
        code: FailureCode::Internal,
        what: what.into(),
        why: error.to_string(),
        hint: "see the log of dyscod".into(),
    }
}
