//! A chain of hosts and services: the chain changes first, and the services come in afterwards. What
//! cannot be done is found before anything changes.

use dysco_api::{
    ChainChange, ChainOutcome, ChainReport, Exit, Filter, ServiceAction, ServiceOutcome,
    ServiceRequest, ServiceSpec, SessionName, Which,
};
use dysco_explain::Cause;
use serde_json::Value;

use super::result::{self, Done};
use super::{Common, carry_out};
use crate::context::Context;
use crate::exit::CliError;
use crate::{remove, service};

/// Gives sessions a chain with services, and prints the result.
pub(super) fn ask(
    context: &Context,
    which: Which,
    change: ChainChange,
    services: &[ServiceSpec],
    common: &Common,
) -> Result<Exit, CliError> {
    let beside_hosts = !matches!(&change, ChainChange::Become(hosts) if hosts.is_empty());
    let put_into = |sessions: Vec<SessionName>, dry_run: bool| {
        let request = ServiceRequest {
            sessions,
            all: false,
            filter: Default::default(),
            action: ServiceAction::Put {
                services: services.to_vec(),
                beside_hosts,
            },
            dry_run,
            wait_ms: Some(remove::LONGEST.as_millis() as u64),
        };
        match request.sessions.is_empty() {
            // No name would stand for any session.
            true => Ok(service::Done::default()),
            false => service::carry_out(context, request),
        }
    };
    let mut changes = carry_out(context, which, change.clone(), common, true, true)?;
    let mut served = put_into(changed(&changes), true)?;
    if !common.dry_run {
        let possible = named(&served, |outcome| outcome != ServiceOutcome::Refused);
        let apart = |report: &ChainReport| report.outcome != ChainOutcome::Changed;
        changes.changes.retain(apart);
        served = refused(served);
        changes.dry_run = false;
        if !possible.is_empty() {
            let made = carry_out(
                context,
                Which::Sessions(possible),
                change,
                common,
                true,
                false,
            )?;
            let came = put_into(changed(&made), false)?;
            changes.changes.extend(made.changes);
            served.accepted += came.accepted;
            came.sessions.into_iter().for_each(|one| served.add(one));
        }
    }
    context.print(&json(&changes, &served)?, |_| text(&changes, &served))?;
    Ok(exit(&changes, &served))
}

/// Puts a service into sessions at this host's end, and prints the result.
///
/// # Errors
/// If an option is about hosts.
pub(super) fn insert(
    context: &Context,
    which: Which,
    service: ServiceSpec,
    common: &Common,
) -> Result<Exit, CliError> {
    let request = about_services(which, put(vec![service]), common)?;
    service::ask(context, request, service::NONE)
}

/// Takes a service out of sessions, and prints the result.
///
/// # Errors
/// If an option is about hosts, or the service is named with arguments.
pub(super) fn without(
    context: &Context,
    which: Which,
    service: ServiceSpec,
    common: &Common,
) -> Result<Exit, CliError> {
    let request = about_services(which, part(service)?, common)?;
    service::ask(context, request, service::NONE_TO_TAKE)
}

/// Puts a service into the place of another one, and prints the result.
///
/// # Errors
/// As [`without`].
pub(super) fn replace(
    context: &Context,
    which: Which,
    old: ServiceSpec,
    new: ServiceSpec,
    common: &Common,
) -> Result<Exit, CliError> {
    service::bare(&old).map_err(CliError::Usage)?;
    let action = ServiceAction::Replace { old: old.name, new };
    let request = about_services(which, action, common)?;
    service::ask(context, request, service::NONE_TO_TAKE)
}

fn put(services: Vec<ServiceSpec>) -> ServiceAction {
    ServiceAction::Put {
        services,
        beside_hosts: false,
    }
}

/// Returns the action by which a service leaves.
fn part(service: ServiceSpec) -> Result<ServiceAction, CliError> {
    service::part(vec![service]).map_err(CliError::Usage)
}

/// Returns the request for an action on services, of options that are about chains as well.
///
/// # Errors
/// If an option is about hosts.
fn about_services(
    which: Which,
    action: ServiceAction,
    common: &Common,
) -> Result<ServiceRequest, CliError> {
    let usage = |why, hint| Err(CliError::Usage(Cause::new(why).hint(hint)));
    if !common.state.is_empty() {
        return usage("a service takes no state from a host", "leave out --state");
    }
    if common.rate.is_some() {
        return usage("services come and leave without a rate", "leave out --rate");
    }
    let (sessions, filter) = match which {
        Which::Sessions(sessions) => (sessions, Filter::default()),
        Which::Filter(filter) => (vec![], filter),
        Which::All => (vec![], Filter::default()),
        Which::Through(_) => {
            return usage(
                "--through is about hosts, and services are at this host's end",
                "name sessions, or use --filter or --all",
            );
        }
    };
    Ok(ServiceRequest {
        all: sessions.is_empty(),
        sessions,
        filter,
        action,
        dry_run: common.dry_run,
        wait_ms: common.wait.then_some(remove::LONGEST.as_millis() as u64),
    })
}

/// Returns the names of the sessions with such an outcome.
fn named(done: &service::Done, fits: impl Fn(ServiceOutcome) -> bool) -> Vec<SessionName> {
    let all = done.sessions.iter();
    let fit = all.filter(|report| fits(report.outcome));
    fit.map(|report| SessionName::Id(report.session)).collect()
}

/// Returns the names of the sessions that have the chain, or could have it.
fn changed(done: &Done) -> Vec<SessionName> {
    let all = done.changes.iter();
    let changed = all.filter(|report| report.outcome == ChainOutcome::Changed);
    changed
        .map(|report| SessionName::Id(report.session))
        .collect()
}

/// Returns the refusals of a dry run as the result of a request: these sessions were left as they are.
fn refused(done: service::Done) -> service::Done {
    let mut refused = service::Done::default();
    let all = done.sessions.into_iter();
    for one in all.filter(|report| report.outcome == ServiceOutcome::Refused) {
        refused.accepted += 1;
        refused.add(one);
    }
    refused
}

/// Returns the worse of the two exit codes.
fn exit(changes: &Done, served: &service::Done) -> Exit {
    match result::exit(changes) {
        Exit::Done => service::exit(&served.summary, true),
        other => other,
    }
}

/// Returns the result for programs: that of the changes, with that of the services in `services`.
fn json(changes: &Done, served: &service::Done) -> Result<Value, serde_json::Error> {
    let mut value = result::json(changes)?;
    value["services"] = service::json(served)?;
    Ok(value)
}

fn text(changes: &Done, served: &service::Done) -> String {
    let changes = result::text(changes, true);
    match served.sessions.is_empty() {
        true => changes,
        false => format!("{changes}\n\n{}", service::text(served)),
    }
}
