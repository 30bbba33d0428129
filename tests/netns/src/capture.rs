//! Captures, kept in the lab's folder if the test fails.

use std::path::PathBuf;

use anyhow::Result;

use crate::{Host, Process, Program};

/// Captures the beginnings of all packets on an interface of a host, until the process is dropped.
pub fn start(host: &Host, interface: &str) -> Result<Process> {
    // The capture keeps at most three files of 16 MB, with the latest packets.
    let more = ["-C", "16", "-W", "3", "-w"];
    let name = format!("{interface}.pcap");
    tcpdump(host, interface, &more, &name, &format!("{name}0"), "")
}

/// A capture of the resets that a host sends and receives, until it is dropped.
pub struct Resets {
    file: PathBuf,
    _tcpdump: Process,
}

impl Resets {
    /// Captures the packets with RST on all interfaces of a host, with this port at either end.
    pub fn start(host: &Host, port: u16) -> Result<Resets> {
        let name = "resets.pcap";
        let filter = format!("tcp port {port} and tcp[tcpflags] & tcp-rst != 0");
        let more = ["--immediate-mode", "-w"];
        Ok(Resets {
            file: host.dir().join(name),
            _tcpdump: tcpdump(host, "any", &more, name, name, &filter)?,
        })
    }

    /// Returns a line for each packet that is written by now.
    pub fn seen(&self, host: &Host) -> Result<Vec<String>> {
        let file = self.file.display().to_string();
        let text = host.output("tcpdump", &["-nr", &file])?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// Starts tcpdump with a file `name`, and returns once it writes to `first`.
fn tcpdump(
    host: &Host,
    interface: &str,
    more: &[&str],
    name: &str,
    first: &str,
    filter: &str,
) -> Result<Process> {
    let arguments = ["-i", interface, "-n", "-s", "160", "-U", "-Z", "root"];
    let program = Program::new("tcpdump").args(arguments).args(more);
    let mut tcpdump = host.spawn(program.arg(host.dir().join(name)).arg(filter))?;
    let file = host.dir().join(first);
    // tcpdump writes the file's header once it captures packets.
    tcpdump.wait_ready("tcpdump to listen", || {
        file.metadata().is_ok_and(|m| m.len() >= 24)
    })?;
    Ok(tcpdump)
}
