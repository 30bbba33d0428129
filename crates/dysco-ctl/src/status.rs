//! `dyscoctl status`.

use dysco_api::{Exit, Reply, Request, StatusReport};

use super::context::Context;
use super::exit::CliError;
use super::output::{addresses, list, micros, number, or_dash, rendered, seconds, section, table};

/// Is this host all right, in one screen.
pub fn run(context: &Context) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Status)?;
    let Reply::Status(status) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&*status, text)?;
    Ok(Exit::Done)
}

fn text(status: &StatusReport) -> String {
    let sessions = &status.sessions;
    let host = list([
        (
            "host",
            format!("{} ({})", status.host, addresses(&status.addresses)),
        ),
        (
            "dyscod",
            format!("{}, up {}", status.version, seconds(status.uptime_s as f64)),
        ),
        (
            "sessions",
            format!(
                "{} tracked, {} in a chain, {} changing, {} with a middlebox removed ({} bypass, {} return, {} local); {} adopted",
                number(sessions.tracked),
                number(sessions.chained),
                number(sessions.changing),
                number(sessions.removed),
                number(sessions.bypass),
                number(sessions.returned),
                number(sessions.local),
                number(sessions.adopted)
            ),
        ),
        (
            "shim",
            format!(
                "{} processes, {} pairs",
                number(status.shim_processes),
                number(status.pairs)
            ),
        ),
    ]);
    let mut interfaces = table(["NAME", "ATTACHED", "RELAYS BY", "PROGRAMS"]);
    for interface in &status.interfaces {
        let programs = interface.programs.join(", ");
        let relays = if interface.xdp { "XDP, TC" } else { "TC" };
        let (name, attach) = (interface.name.clone(), interface.attach.clone());
        interfaces.add_row([name, attach, relays.into(), programs]);
    }
    let troubled = status.interfaces.iter().filter_map(|interface| {
        let trouble = interface.trouble.as_ref()?;
        Some(format!("! {}: {trouble}\n", interface.name))
    });
    let keys = status.keys.and_then(|keys| keys.trouble());
    let keys = keys.map(|trouble| format!("! keys: {trouble}\n"));
    let troubles: String = troubled.chain(keys).collect();
    let mut peers = table(["ADDRESS", "STATE", "ROUND TRIP"]);
    for peer in &status.peers {
        let state = if peer.up { "up" } else { "down" };
        let rtt = or_dash(peer.rtt_us.map(micros));
        peers.add_row([peer.address.to_string(), state.into(), rtt]);
    }
    let mut counters = table(["NAME", "COUNT"]);
    for (name, count) in status.counters.iter().filter(|(_, count)| **count > 0) {
        counters.add_row([name.clone(), number(*count)]);
    }
    format!(
        "{}\n{}{troubles}{}{}",
        rendered(&host),
        section("Interfaces", &interfaces),
        section("Peers", &peers),
        section("Counters", &counters)
    )
}
