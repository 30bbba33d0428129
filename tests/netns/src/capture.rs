//! Captures, kept in the lab's folder if the test fails.

use anyhow::Result;

use crate::{Host, Process, Program};

/// Captures the beginnings of all packets on an interface of a host, until the process is dropped.
pub fn start(host: &Host, interface: &str) -> Result<Process> {
    let name = format!("{interface}.pcap");
    let file = host.dir().join(&name);
    // The capture keeps at most three files of 16 MB, with the latest packets.
    let arguments = [
        "-i", interface, "-n", "-s", "160", "-U", "-Z", "root", "-C", "16", "-W", "3", "-w",
    ];
    let program = Program::new("tcpdump").args(arguments).arg(&file);
    let mut tcpdump = host.spawn(program)?;
    let file = host.dir().join(format!("{name}0"));
    // tcpdump writes the file's header once it captures packets.
    tcpdump.wait_ready("tcpdump to listen", || {
        file.metadata().is_ok_and(|m| m.len() >= 24)
    })?;
    Ok(tcpdump)
}
