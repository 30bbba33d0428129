//! Services of the packet plane in sessions: eBPF programs run them, and no handler.
//!
//! The records that the programs read are all there is to know, so that a restart of this process
//! changes nothing.

mod words;

use dysco_api::{Rate, ServiceReport, ServiceRow, ServiceSpec, ServiceState};
use dysco_common::packet_services::{Lane, PacketServices, service};
use dysco_common::{Session, View};
use dysco_explain::{Cause, Explain};
use dysco_runner::{rate_missing, rates};
use serde_json::{Value, json};

use super::report::report;
use super::words::{has_others, is_in};
use crate::engine::Plane;
use crate::engine::tuning::end::no_socket;
pub(super) use words::{Wanted, wanted};

/// Returns the services of a session in words.
pub(super) fn services(s: &Session, record: &PacketServices) -> Vec<ServiceSpec> {
    Wanted::of(record, s.life.opened_here != 0).services()
}

/// Returns all reasons for which a session cannot have services of the packet plane, the decisive
/// one first.
pub(super) fn obstacles(plane: &Plane, s: &Session, wanted: &Wanted) -> Vec<Cause> {
    let mut all: Vec<Cause> = no_socket(s).into_iter().collect();
    let addresses = &plane.config.host.addresses;
    if !addresses.contains(&s.key.local().ip()) {
        all.push(
            Cause::new("its end is not on this host").hint("ask on the host of one of its ends"),
        );
    }
    if addresses.contains(&s.key.remote().ip()) {
        all.push("both of its ends are on this host, so that its packets take no interface".into());
    }
    match s.view() {
        View::Opening => {
            all.push(Cause::new("it is not open yet").hint("ask again once it is open"));
        }
        View::Detoured | View::Held => all.push(has_others()),
        _ if s.detours_before_path() => all.push(has_others()),
        _ => {}
    }
    if wanted.delay.is_some() && !plane.agent.sends_on_time() {
        let cause = Cause::new("an interface of dyscod cannot delay packets: its qdisc is not fq");
        all.push(cause.hint("'tc qdisc replace dev INTERFACE root fq', or leave plane=packet out"));
    }
    all
}

/// Gives a session services.
///
/// # Errors
/// If the kernel does not take them.
pub(super) fn put(plane: &Plane, s: &Session, wanted: &Wanted) -> Result<(), Cause> {
    // The five-tuple may be that of a session that has ended.
    plane.agent.unserve(&s.key);
    let record = PacketServices {
        key: s.key,
        created_ns: s.created_ns,
        timed: u32::from(plane.agent.sends_on_time()),
        ..wanted.record(s.life.opened_here != 0)
    };
    let served = plane.agent.serve(&record);
    served.map_err(|error| error.explain().cause())
}

/// Changes the services of a session that has some.
pub(super) fn change(plane: &Plane, s: &Session, wanted: &Wanted) {
    plane.agent.change_packet_services(&PacketServices {
        key: s.key,
        ..wanted.record(s.life.opened_here != 0)
    });
}

/// Takes a session's services out. Returns the report.
pub(super) fn take(plane: &Plane, slot: u32, record: &PacketServices) -> ServiceReport {
    let s = plane.agent.session(slot);
    plane.agent.unserve(&s.key);
    ServiceReport {
        services: services(&s, record),
        millis: Some(0),
        ..report(plane, slot, dysco_api::ServiceOutcome::Taken, Vec::new())
    }
}

/// Describes a session in a listing.
pub(super) fn row(plane: &Plane, slot: u32, s: &Session, record: &PacketServices) -> ServiceRow {
    ServiceRow {
        session: plane.session_id(slot, s),
        local: s.key.local(),
        remote: s.key.remote(),
        services: services(s, record),
        state: ServiceState::In,
        handler: None,
        peer: None,
        read: [0; 2],
        written: [0; 2],
        delta: [0; 2],
    }
}

/// Returns the slots of the sessions with services of the packet plane.
pub(super) fn slots(plane: &Plane) -> Vec<u32> {
    let all = plane.agent.all_packet_services().into_iter();
    let found = all.filter_map(|record| {
        let slot = plane.agent.find(&record.key)?;
        let lives = plane.agent.session(slot).created_ns == record.created_ns;
        lives.then_some(slot)
    });
    found.collect()
}

/// Answers a call of a session's service.
///
/// # Errors
/// If the session has no such service, or the service no such operation.
pub(super) fn call(
    plane: &Plane,
    s: &Session,
    record: &PacketServices,
    (name, verb, argument): (&str, &str, Option<&Value>),
) -> Result<Value, Cause> {
    let has = Wanted::of(record, s.life.opened_here != 0);
    if !has.services().iter().any(|service| service.name == name) {
        let cause = Cause::new(format!("no service {name} is in the session"));
        return Err(cause.hint("look with 'dyscoctl service list'"));
    }
    let opened_here = s.life.opened_here != 0;
    match (name, verb, argument) {
        (_, "read", None) => {}
        ("shape", "rate", Some(argument)) => {
            let mut rates = rates(&argument.to_string())?.map(|rate| rate.map(bits));
            if !opened_here {
                rates.reverse();
            }
            plane.agent.limit_packets(&s.key, rates);
        }
        ("shape", "rate", None) => return Err(rate_missing()),
        _ => {
            let cause = Cause::new(format!("{name} has no operation '{verb}'"));
            return Err(match name {
                "shape" => cause.hint("use read, or rate with a JSON value such as '\"5M\"'"),
                _ => cause.hint("use read"),
            });
        }
    }
    let record = plane.agent.packet_services(s);
    let record = record.ok_or_else(|| Cause::new("it has ended"))?;
    let [up, down] = in_words(&record, opened_here);
    Ok(json!({"up": up, "down": down, "drops": record.timed == 0}))
}

/// Returns the counts of the direction to the server, and of that to the client.
fn in_words(record: &PacketServices, opened_here: bool) -> [Value; 2] {
    let words = |lane: &Lane| {
        json!({
            "packets": lane.packets, "bytes": lane.bytes, "dropped": lane.dropped,
            "rate": words::rate(lane.rate).to_string(),
        })
    };
    let mut both = [&record.out, &record.back].map(words);
    if !opened_here {
        both.reverse();
    }
    both
}

/// Returns a rate as a record has it.
fn bits(rate: Rate) -> u64 {
    rate.0.unwrap_or(0)
}

/// Takes the services of sessions out that have ended, and follows the interfaces, which may send
/// packets at departure times from now on, or no longer.
pub(super) fn sweep(plane: &Plane) {
    let all = plane.agent.all_packet_services();
    if all.is_empty() {
        return;
    }
    let timed = plane.agent.sends_on_time();
    for record in all {
        let slot = plane.agent.find(&record.key);
        let lives = slot.is_some_and(|slot| {
            let s = plane.agent.session(slot);
            s.created_ns == record.created_ns && !s.has_ended()
        });
        if !lives {
            plane.agent.unserve(&record.key);
        } else if (record.timed != 0) != timed {
            if record.services & service::LATENCY != 0 && !timed {
                tracing::warn!(session = ?record.key, "no interface delays its packets any longer");
            }
            plane.agent.set_timed(&record.key, timed);
        }
    }
}
