//! `dyscoctl doctor`: finds faults that would keep this host from working, each with a hint.
//! The command changes nothing, and works with or without a running `dyscod`.

mod files;
mod host;
mod namespaces;
mod policy;
mod running;

use std::path::{Path, PathBuf};

use dysco_agent::AgentError;
use dysco_api::Exit;
use dysco_config::{Config, DEFAULT_CONFIG};
use dysco_explain::{Cause, Explain};
use serde::Serialize;

use super::context::Context;
use super::exit::CliError;
use super::output::{rendered, table};

/// Number of characters to keep from the beginning and from the end of a long text.
const FIRST_WORDS: usize = 100;
const LAST_WORDS: usize = 300;

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration of this host's dyscod
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// The state is correct.
    Well,
    /// Something may not work, or soon will not.
    Doubtful,
    /// The host does not work in this state.
    Ill,
}

/// A finding about one aspect of the host.
#[derive(PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    verdict: Verdict,
    about: &'static str,
    pub(super) found: String,
    /// Hint for the operator; empty if nothing is needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) hint: String,
    /// True if a certificate expires soon.
    #[serde(skip)]
    expires: bool,
}

impl Finding {
    fn well(about: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Well,
            about,
            found: found.into(),
            hint: String::new(),
            expires: false,
        }
    }

    fn doubtful(about: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Doubtful,
            about,
            found: found.into(),
            hint: hint.into(),
            expires: false,
        }
    }

    /// Returns a finding about a certificate that expires soon.
    fn expiring(about: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding {
            expires: true,
            ..Finding::doubtful(about, found, hint)
        }
    }

    fn ill(about: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding {
            verdict: Verdict::Ill,
            ..Finding::doubtful(about, found, hint)
        }
    }

    /// Returns true if the state is not correct.
    pub(super) fn is_trouble(&self) -> bool {
        self.verdict != Verdict::Well
    }

    /// Returns a finding with the same text that any command reports for the error.
    fn of(about: &'static str, error: &CliError) -> Finding {
        let reported = error.explain();
        Finding::ill(about, reported.found(), reported.hint.unwrap_or_default())
    }

    /// Returns a doubtful finding.
    fn of_cause(about: &'static str, cause: Cause) -> Finding {
        Finding::doubtful(about, cause.why, cause.hint.unwrap_or_default())
    }

    /// Returns a finding about an error of the data plane. `hint` is used if the error has none.
    fn of_agent(about: &'static str, error: &AgentError, hint: &str) -> Finding {
        let reported = error.explain();
        let hint = reported.hint.as_deref().unwrap_or(hint);
        Finding::ill(about, shortened(&reported.found()), hint)
    }
}

/// Shortens a text. The verifier reports at length what it has examined, and the reason of its
/// refusal only at the end.
fn shortened(text: &str) -> String {
    let begin = text.char_indices().map(|(at, _)| at).nth(FIRST_WORDS);
    let end = text.char_indices().rev().map(|(at, _)| at).nth(LAST_WORDS);
    match (begin, end) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{} ... {}", text[..begin].trim(), text[end..].trim())
        }
        _ => text.to_owned(),
    }
}

/// All findings.
#[derive(Serialize)]
pub(crate) struct Report {
    ill: usize,
    doubtful: usize,
    findings: Vec<Finding>,
    /// True if the user may not read the configuration, so that it is not known whether the host
    /// would work.
    #[serde(skip)]
    not_allowed: bool,
}

impl Report {
    fn of(findings: Vec<Finding>) -> Report {
        let count = |verdict| findings.iter().filter(|f| f.verdict == verdict).count();
        Report {
            ill: count(Verdict::Ill),
            doubtful: count(Verdict::Doubtful),
            findings,
            not_allowed: false,
        }
    }

    fn exit(&self) -> Exit {
        match self.ill {
            _ if self.not_allowed => Exit::NotAllowed,
            0 if self.findings.iter().any(|finding| finding.expires) => Exit::Expiring,
            0 => Exit::Done,
            _ => Exit::Ill,
        }
    }
}

/// Returns findings about a daemon's status. The daemon should be connected with all peers that
/// it has met.
pub(super) fn of_status(status: &dysco_api::StatusReport) -> Vec<Finding> {
    let met: Vec<_> = status.peers.iter().map(|peer| peer.address).collect();
    running::of_status(status, Some(&met))
}

/// Prints the faults that would keep this host from working.
pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, CliError> {
    let report = examine(context, &args.config);
    context.print(&report, text)?;
    Ok(report.exit())
}

/// Examines the host, the configuration of its dyscod, and the running daemon.
pub(crate) fn examine(context: &Context, path: &Path) -> Report {
    let config = Config::load(path).map_err(CliError::from);
    let mut findings = host::examine(config.as_ref().ok());
    findings.extend(files::examine(path, &config));
    findings.extend(running::examine(context, config.as_ref().ok()));
    let denied = |error: &CliError| error.exit() == Exit::NotAllowed;
    Report {
        not_allowed: config.as_ref().is_err_and(denied),
        ..Report::of(findings)
    }
}

fn text(report: &Report) -> String {
    let mut rows = table(["", "ABOUT", "WHAT"]);
    for finding in &report.findings {
        let sign = match finding.verdict {
            Verdict::Well => "ok",
            Verdict::Doubtful => "?",
            Verdict::Ill => "ILL",
        };
        rows.add_row([sign, finding.about, &finding.found]);
        if !finding.hint.is_empty() {
            rows.add_row(["", "", &format!("-> {}", finding.hint)]);
        }
    }
    let sum = match (report.ill, report.doubtful) {
        (0, 0) => "nothing would stop this host from working".to_owned(),
        (0, doubtful) => format!("nothing would stop this host; {doubtful} to look at (?)"),
        (ill, doubtful) => format!("{ill} to repair (ILL), {doubtful} to look at (?)"),
    };
    format!("{}\n\n{sum}", rendered(&rows))
}

#[cfg(test)]
mod tests {
    use dysco_api::ClientError;

    use super::*;

    #[test]
    fn only_what_stops_the_host_or_soon_will_is_an_error() {
        let well = || Finding::well("kernel", "Linux");
        let doubtful = || Finding::doubtful("peers", "one is away", "start it");
        let expiring = || Finding::expiring("keys", "they end soon", "issue others");
        let ill = || Finding::ill("pins", "none", "mount them");
        let exit = |findings| Report::of(findings).exit();
        assert_eq!(exit(vec![well()]), Exit::Done);
        assert_eq!(exit(vec![well(), doubtful()]), Exit::Done);
        assert_eq!(exit(vec![well(), doubtful(), expiring()]), Exit::Expiring);
        assert_eq!(exit(vec![expiring(), ill(), doubtful()]), Exit::Ill);
        let unread = Report {
            not_allowed: true,
            ..Report::of(vec![ill()])
        };
        assert_eq!(unread.exit(), Exit::NotAllowed);
        let report = Report::of(vec![well(), doubtful(), ill(), ill()]);
        assert_eq!((report.ill, report.doubtful), (2, 1));
        let reported = text(&report);
        assert!(reported.contains("-> mount them"), "{reported}");
        assert!(
            reported.ends_with("2 to repair (ILL), 1 to look at (?)"),
            "{reported}"
        );
    }

    #[test]
    fn an_error_is_reported_with_its_hint() {
        let error = CliError::Client(ClientError::NoDaemon {
            socket: "/run/s".into(),
            source: std::io::ErrorKind::NotFound.into(),
        });
        let finding = Finding::of("dyscod", &error);
        assert!(
            finding
                .found
                .starts_with("failed to reach dyscod at /run/s: ")
        );
        assert!(finding.hint.starts_with("start it"), "{}", finding.hint);
        assert_eq!(finding.verdict, Verdict::Ill);
    }

    /// The verifier reports much before its reason.
    #[test]
    fn of_what_the_verifier_says_the_last_words_are_reported() {
        let looked = "0: (bf) r6 = r1 ; R1=ctx() R6=ctx() ü\n".repeat(5_000);
        let reported = shortened(&format!("the kernel refused it: {looked}R1 is no pointer"));
        assert!(
            reported.starts_with("the kernel refused it: 0: (bf)"),
            "{reported}"
        );
        assert!(reported.ends_with("R1 is no pointer"), "{reported}");
        assert!(reported.chars().count() < FIRST_WORDS + LAST_WORDS + 10);
        assert_eq!(shortened("short ü"), "short ü");
    }

    #[test]
    fn an_error_of_the_data_plane_has_a_hint_of_its_own_or_another() {
        let layout = AgentError::Layout {
            path: "/pins/v1".into(),
        };
        let finding = Finding::of_agent("pins", &layout, "");
        assert!(
            finding.hint.contains("dyscoctl uninstall --force"),
            "{finding:?}"
        );
        assert!(!finding.found.contains("rm -r"), "{finding:?}");
        let missing = AgentError::Missing("dysco_ingress");
        let finding = Finding::of_agent("programs", &missing, "another kernel");
        assert_eq!(finding.hint, "another kernel");
    }
}
