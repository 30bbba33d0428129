//! `dyscoctl monitor`.

use dysco_api::{Exit, MonitorEvent, Reply, Request};
use dysco_explain::tame;

use super::context::{Context, print_line};
use super::exit::CliError;
use super::output::Format;

/// Prints events as they occur, with reasons.
pub(crate) fn run(context: &Context) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Monitor)?;
    client.set_patience(None)?;
    loop {
        match client.reply()? {
            Reply::Event(event) => print_line(&match context.format {
                Format::Json => serde_json::to_string(&event)?,
                Format::Table => line(&event),
            })?,
            Reply::Done { .. } => return Ok(Exit::Done),
            _ => return Err(CliError::Unexpected),
        }
    }
}

/// Returns one line: time of day (UTC), kind, session, text.
pub(crate) fn line(event: &MonitorEvent) -> String {
    let (ms, s) = (event.at_ms % 1000, event.at_ms / 1000);
    let (hour, minute, second) = (s / 3600 % 24, s / 60 % 60, s % 60);
    let time = format!("{hour:02}:{minute:02}:{second:02}.{ms:03}Z");
    let session = event.session.map_or(String::new(), |id| format!(" {id}"));
    let change = event.change_id.as_ref();
    let change = change.map_or(String::new(), |id| format!(" change={id}"));
    tame(&format!(
        "{time} {}{session}: {}{change}",
        event.kind, event.text
    ))
}

#[cfg(test)]
mod tests {
    use dysco_api::SessionId;

    use super::*;

    #[test]
    fn a_line_has_the_time_of_day() {
        let event = MonitorEvent {
            at_ms: 1_700_000_000_123,
            kind: "removed".into(),
            session: Some(SessionId(0x2a)),
            change_id: None,
            text: "in 1 ms".into(),
        };
        let clears = MonitorEvent {
            text: "\u{1b}[2J\n".into(),
            ..event.clone()
        };
        assert!(line(&clears).ends_with(r"2a: \u{1b}[2J\n"));
        assert_eq!(line(&event), "22:13:20.123Z removed 2a: in 1 ms");
        let part = MonitorEvent {
            change_id: Some("01ab".into()),
            ..event
        };
        let reported = "22:13:20.123Z removed 2a: in 1 ms change=01ab";
        assert_eq!(line(&part), reported);
    }
}
