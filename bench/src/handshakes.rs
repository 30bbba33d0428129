//! TCP handshakes on a host's link, from a packet capture: the time of each from the SYN to the
//! SYN-ACK.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use dysco_netns::{Host, Process, Program};

/// A running capture.
pub(crate) struct Handshakes {
    capture: Process,
    log: PathBuf,
}

impl Handshakes {
    /// Begins to capture the packets on `eth0` of a host.
    pub(crate) fn watch(host: &Host) -> Result<Handshakes> {
        let words = [
            "-i", "eth0", "-n", "-tt", "-l", "-s", "128", "-B", "65536", "-Z", "root",
        ];
        let only = "tcp[tcpflags] & tcp-syn != 0";
        let program = Program::new("tcpdump").args(words).arg(only);
        let log = host.dir().join("handshakes.log");
        let mut capture = host.spawn(program.named("handshakes"))?;
        capture.wait_ready("tcpdump to listen", || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on"))
        })?;
        Ok(Handshakes { capture, log })
    }

    /// Ends the capture. Returns the milliseconds of each captured handshake.
    pub(crate) fn end(mut self) -> Result<Vec<f64>> {
        self.capture.stop()?;
        let text = fs::read_to_string(&self.log).context("failed to read the capture")?;
        Ok(times(&text))
    }
}

/// For each answered SYN: the time from its first transmission to the first answer.
fn times(text: &str) -> Vec<f64> {
    let (mut opened, mut took) = (HashMap::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [at, _ip, from, ">", to, "Flags", flags, ..] = words[..] else {
            continue;
        };
        let (Ok(at), to) = (at.parse::<f64>(), to.trim_end_matches(':')) else {
            continue;
        };
        if flags.contains('.') {
            let asked = opened.remove(&(to.to_owned(), from.to_owned()));
            took.extend(asked.map(|asked: f64| (at - asked) * 1e3));
        } else {
            opened.entry((from.to_owned(), to.to_owned())).or_insert(at);
        }
    }
    took
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_from_the_first_syn_to_its_answer() {
        let text = "listening on eth0, link-type EN10MB\n\
            100.000100 IP 10.0.1.1.4000 > 10.0.3.1.90: Flags [S], seq 1, length 0\n\
            100.000200 IP 10.0.1.1.4001 > 10.0.3.1.90: Flags [SEW], seq 1, length 0\n\
            100.001100 IP 10.0.1.1.4000 > 10.0.3.1.90: Flags [S], seq 1, length 0\n\
            100.002100 IP 10.0.3.1.90 > 10.0.1.1.4000: Flags [S.], seq 7, ack 2, length 0\n\
            100.003100 IP 10.0.3.1.90 > 10.0.1.1.4000: Flags [S.], seq 7, ack 2, length 0\n";
        let all = times(text);
        assert_eq!(all.len(), 1);
        assert!((all[0] - 2.0).abs() < 1e-3, "{all:?}");
    }
}
