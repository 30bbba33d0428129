//! `dyscoctl reload`.

use dysco_api::{Exit, ReloadReport, Reply, Request, ValueChange};

use super::context::Context;
use super::exit::CliError;
use super::output::{or_dash, rendered, table};

/// Arguments of `reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print what would change; change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Makes dyscod read its configuration, keys and policy again. Values that need a restart stay
/// unchanged, and the exit code reports them.
pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, CliError> {
    let dry_run = args.dry_run;
    let mut client = context.ask(&Request::Reload { dry_run })?;
    let Reply::Reloaded(report) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    context.print(&report, text)?;
    Ok(match report.needs_restart.is_empty() {
        true => Exit::Done,
        false => Exit::Refused,
    })
}

fn text(report: &ReloadReport) -> String {
    let ReloadReport {
        dry_run,
        changed,
        files,
        needs_restart,
    } = report;
    let mut lines = Vec::new();
    if changed.is_empty() && files.is_empty() {
        lines.push("nothing has changed that is taken up without a restart".to_owned());
    }
    if !changed.is_empty() {
        lines.push(values(changed));
    }
    if !files.is_empty() {
        let would = if *dry_run { "would be read" } else { "read" };
        lines.push(format!("{would} anew: {}", files.join(", ")));
    }
    if !needs_restart.is_empty() {
        let keys: Vec<_> = needs_restart.iter().map(|c| c.key.as_str()).collect();
        lines.push(format!("needs a restart: {}", keys.join(", ")));
        lines.push(values(needs_restart));
    }
    if *dry_run {
        lines.push("dry run: nothing was changed".to_owned());
    }
    lines.join("\n")
}

fn values(changes: &[ValueChange]) -> String {
    let mut rows = table(["KEY", "BEFORE", "AFTER"]);
    for change in changes {
        let [before, after] = [&change.before, &change.after].map(|v| or_dash(v.clone()));
        rows.add_row([change.key.clone(), before, after]);
    }
    rendered(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_restart_is_named() {
        let change = |key: &str| ValueChange {
            key: key.into(),
            before: Some("1".into()),
            after: None,
        };
        let reported = text(&ReloadReport {
            dry_run: false,
            changed: vec![change("removal.automatic")],
            files: vec!["certificate".into(), "policy".into()],
            needs_restart: vec![change("control.port"), change("shim.socket")],
        });
        assert!(
            reported.contains("read anew: certificate, policy\n"),
            "{reported}"
        );
        let restart = "needs a restart: control.port, shim.socket\n";
        assert!(reported.contains(restart), "{reported}");
        assert!(reported.contains("removal.automatic"), "{reported}");
        let reported = text(&ReloadReport {
            dry_run: true,
            ..ReloadReport::default()
        });
        assert!(reported.starts_with("nothing has changed"), "{reported}");
        assert!(
            reported.ends_with("dry run: nothing was changed"),
            "{reported}"
        );
    }
}
