//! Operators: `dyscoctl` as people run it, and its output.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use dysco_netns::fleet::Fleet;
use dysco_netns::{Host, Program, Ran};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{Ask, Operation, PROXY_PORT, address};

/// Maximum number of seconds of a command. A change of a chain waits for another one for up to a
/// minute, and may be rolled back after that.
const LONGEST: u64 = 100;
/// Exit code of `timeout` after a time-out.
const TIMED_OUT: i32 = 124;
/// Time limit of a removal.
const REMOVAL: &str = "6s";
/// Time limit of a drain.
const DRAIN: &str = "5s";

/// Result of a command for one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reported {
    /// The end that opened the session, if it is known.
    pub local: SocketAddr,
    /// The other end of the session.
    pub remote: SocketAddr,
    /// Outcome: `removed`, `refused` and so on.
    pub outcome: String,
    /// Reason, if the command failed for this session.
    pub reason: Option<String>,
    /// Mode of the removal.
    pub mode: Option<String>,
}

/// A command that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OperationRun {
    /// The requested operation.
    pub operation: Operation,
    /// Time at which the command began, in milliseconds since the start of the sessions.
    pub began_ms: u64,
    /// Time at which the command ended.
    pub ended_ms: u64,
    /// Exit code; none if the command was killed.
    pub code: Option<i32>,
    /// Results for sessions.
    pub reported: Vec<Reported>,
    /// Remote ends of the sockets that the host had afterwards.
    pub held: Vec<SocketAddr>,
    /// Description of a fault in the way the command ended.
    pub wrong: Option<String>,
    /// End of the output, if the output was not a report.
    pub said: String,
}

impl OperationRun {
    fn begun(operation: &Operation, began_ms: u64) -> OperationRun {
        OperationRun {
            operation: operation.clone(),
            began_ms,
            ended_ms: began_ms,
            code: None,
            reported: Vec::new(),
            held: Vec::new(),
            wrong: None,
            said: String::new(),
        }
    }

    /// Sessions that the command changed.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Reported> {
        let changes =
            |t: &&Reported| matches!(t.outcome.as_str(), "removed" | "changed" | "put" | "taken");
        let dry = matches!(self.operation.ask, Ask::Remove { dry_run: true, .. });
        self.reported.iter().filter(changes).filter(move |_| !dry)
    }
}

/// Runs a command to its end.
pub(crate) fn run(
    fleet: &Fleet,
    host: &Host,
    operation: &Operation,
    start: Instant,
) -> OperationRun {
    let began_ms = start.elapsed().as_millis() as u64;
    let ran = match operation.cancel_ms {
        Some(ms) => cancelled(fleet, host, operation, ms),
        None => whole(fleet, host, operation),
    };
    let mut run = OperationRun {
        ended_ms: start.elapsed().as_millis() as u64,
        ..OperationRun::begun(operation, began_ms)
    };
    match ran {
        Err(error) => run.wrong = Some(format!("{error:#}")),
        Ok(all) => all.iter().for_each(|ran| judge(&mut run, ran)),
    }
    run
}

/// Documented exit codes for the requests of operators here.
const CODES: [i32; 7] = [0, 2, 3, 4, 5, 6, 7];

/// Judges a command of an operation. The first one that fails gives the exit code.
fn judge(run: &mut OperationRun, ran: &Ran) {
    run.code = run.code.filter(|code| *code != 0).or(ran.code);
    run.reported.extend(reported(&ran.stdout));
    if run.reported.is_empty() {
        run.said = tail(&format!("{}{}", ran.stdout, ran.stderr));
    }
    let wrong = match ran.code {
        Some(TIMED_OUT) => Some(format!("dyscoctl did not end within {LONGEST} s")),
        Some(code) if CODES.contains(&code) => None,
        code => Some(format!(
            "dyscoctl ended with {code:?}: {}",
            tail(&ran.stderr)
        )),
    };
    run.wrong = run.wrong.take().or(wrong);
}

/// Results for sessions in a report about removals, or changes of chains or services. Empty for
/// other reports.
fn reported(text: &str) -> Vec<Reported> {
    let Ok(json) = serde_json::from_str::<Value>(text) else {
        return Vec::new();
    };
    let lists = ["removals", "changes", "sessions"].into_iter();
    let all = lists.filter_map(|list| json[list].as_array()).flatten();
    let one = |report: &Value| {
        let text = |key: &str| report[key].as_str().map(str::to_owned);
        Some(Reported {
            local: report["local"].as_str()?.parse().ok()?,
            remote: report["remote"].as_str()?.parse().ok()?,
            outcome: text("outcome")?,
            reason: report["reason"]["why"].as_str().map(str::to_owned),
            mode: text("mode"),
        })
    };
    all.filter_map(one).collect()
}

fn tail(text: &str) -> String {
    let from = text.len().saturating_sub(600);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at));
    text[from.unwrap_or(text.len())..].trim().to_owned()
}

fn whole(fleet: &Fleet, host: &Host, operation: &Operation) -> Result<Vec<Ran>> {
    let run = |words: Vec<String>| {
        let longest = LONGEST.to_string();
        let program = fleet.dyscoctl_path().to_string_lossy().into_owned();
        let mut all = vec!["-k", "2", &longest, &program];
        all.extend(words.iter().map(String::as_str));
        host.ran("timeout", &all)
    };
    commands(operation).into_iter().map(run).collect()
}

/// Starts the command and kills it, as the loss of an operator's connection does.
fn cancelled(fleet: &Fleet, host: &Host, operation: &Operation, ms: u64) -> Result<Vec<Ran>> {
    for words in commands(operation) {
        let program = Program::new(fleet.dyscoctl_path()).args(words);
        let mut process = host.spawn(program.named("dyscoctl"))?;
        std::thread::sleep(Duration::from_millis(ms));
        process.kill()?;
    }
    Ok(Vec::new())
}

/// Returns the words of the commands of an operation.
fn commands(operation: &Operation) -> Vec<Vec<String>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let ip = |host: u8| address(host, false).to_string();
    let port = PROXY_PORT;
    match &operation.ask {
        Ask::Remove {
            mode,
            listen,
            dry_run,
        } => {
            let mode = mode.word();
            let mut all = words(&format!(
                "remove-middlebox self --all --wait --mode {mode} --timeout {REMOVAL} -o json"
            ));
            if *listen {
                all.extend(words(&format!("--listen :{port}")));
            }
            if *dry_run {
                all.push("--dry-run".into());
            }
            vec![all]
        }
        Ask::Drain => vec![words(&format!("drain :{port} --timeout {DRAIN} -o json"))],
        Ask::Insert { host } => {
            vec![words(&format!(
                "insert-middlebox {} --all --wait -o json",
                ip(*host)
            ))]
        }
        Ask::Reconfigure { chain } => {
            let chain: Vec<_> = chain.iter().map(|host| ip(*host)).collect();
            let mut all = words("reconfigure --all --wait -o json --chain");
            all.push(chain.join(","));
            vec![all]
        }
        Ask::Replace { old, new, state } => {
            let mut all = words(&format!(
                "replace-middlebox {} --with {} --wait -o json",
                ip(*old),
                ip(*new)
            ));
            if *state {
                all.extend(words("--state conntrack"));
            }
            vec![all]
        }
        Ask::Put { services } => vec![service("put", services)],
        Ask::Take { services } => vec![service("take", services)],
        Ask::Look => [
            "sessions -o json",
            "status -o json",
            "service list -o json",
            "sessions",
        ]
        .map(words)
        .into(),
    }
}

/// Returns a command about services of all sessions.
fn service(verb: &str, services: &[String]) -> Vec<String> {
    let words = ["service", verb, "--all", "--wait", "-o", "json"];
    let mut all: Vec<String> = words.map(String::from).into();
    all.extend(services.iter().cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let text = r#"{"dry_run":false,"accepted":2,"removals":[
            {"session":"1","local":"10.0.1.1:4000","remote":"10.0.2.1:8080","outcome":"removed","mode":"bypass"},
            {"session":"2","local":"10.0.1.1:4001","remote":"10.0.2.1:8080","outcome":"refused","reason":{"why":"no","hint":null}}]}"#;
        let all = reported(text);
        assert_eq!(all.len(), 2);
        assert_eq!(
            (all[0].outcome.as_str(), all[1].reason.as_deref()),
            ("removed", Some("no"))
        );
        assert!(reported("nothing").is_empty());
    }

    #[test]
    fn each_command_of_an_operation_is_judged() {
        let ran = |code| Ran {
            code,
            stdout: String::new(),
            stderr: "words".into(),
        };
        let look = Operation {
            at_ms: 0,
            host: 1,
            ask: Ask::Look,
            cancel_ms: None,
        };
        let of = |codes: [Option<i32>; 3]| {
            let mut run = OperationRun::begun(&look, 0);
            codes.iter().for_each(|code| judge(&mut run, &ran(*code)));
            (run.code, run.wrong.is_some())
        };
        assert_eq!(of([Some(0); 3]), (Some(0), false));
        assert_eq!(of([Some(0), Some(4), Some(0)]), (Some(4), false));
        // An exit code that is not documented, a time-out, and a signal.
        assert_eq!(of([Some(101), Some(0), Some(0)]), (Some(101), true));
        assert!(of([Some(0), Some(TIMED_OUT), Some(0)]).1);
        assert!(of([None, Some(0), Some(0)]).1);
    }

    #[test]
    fn long_words_are_cut_where_a_letter_begins() {
        assert_eq!(tail(&"é".repeat(1_000)), "é".repeat(300));
        assert_eq!(tail("short\n"), "short");
    }
}
