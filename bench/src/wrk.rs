//! wrk: a generator of requests to a web server.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use dysco_netns::Host;

/// Number of sessions with simultaneous requests.
pub(crate) const SESSIONS: usize = 64;

/// A short answer of nginx.
pub(crate) const PING: &str = "ping";

/// Requests a file of nginx from a host for one second, with one outstanding request per session.
/// Returns requests per second. Sessions are kept if `kept` is true; otherwise each request has its
/// own session.
pub(crate) fn ask(
    host: &Host,
    to: SocketAddr,
    what: &str,
    sessions: usize,
    kept: bool,
) -> Result<f64> {
    let (url, count) = (format!("http://{to}/{what}"), sessions.to_string());
    let mut words = vec!["-t", "1", "-d", "1s", "-c", &count];
    if !kept {
        words.extend(["-H", "Connection: close"]);
    }
    words.push(&url);
    let text = host.output("wrk", &words)?;
    rate(&text, kept)
}

/// Reads the report of wrk. Every request must have got the file.
fn rate(text: &str, kept: bool) -> Result<f64> {
    let failed = kept && text.contains("Socket errors") || text.contains("Non-2xx");
    ensure!(!failed, "requests failed: {text}");
    let mut lines = text.lines();
    let rate = lines.find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    let rate = rate.with_context(|| format!("wrk did not report the rate: {text}"))?;
    rate.trim().parse().context("wrk's rate is no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_an_error_is_no_rate() {
        let report = "  100 requests in 1.00s, 20KB read\nRequests/sec:    100.50\n";
        assert_eq!(rate(report, true).ok(), Some(100.5));
        let errors = format!("{report}  Non-2xx or 3xx responses: 100\n");
        assert!(rate(&errors, true).is_err() && rate(&errors, false).is_err());
        // Sessions that are closed after each answer have errors of their own.
        let sockets = format!("  Socket errors: connect 0, read 100\n{report}");
        assert!(rate(&sockets, true).is_err() && rate(&sockets, false).is_ok());
        assert!(rate("", true).is_err());
    }
}
