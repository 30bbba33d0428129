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
    ensure!(
        !kept || !text.contains("Socket errors"),
        "requests failed: {text}"
    );
    let mut lines = text.lines();
    let rate = lines.find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    let rate = rate.with_context(|| format!("wrk did not report the rate: {text}"))?;
    rate.trim().parse().context("wrk's rate is no number")
}
