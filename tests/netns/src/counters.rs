//! Counters of the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use procfs::process::Process;
use procfs::ticks_per_second;

use crate::Host;

/// Counters of `/proc/net/snmp` and `/proc/net/netstat`, with names such as `Tcp.OutRsts`.
pub fn tcp(host: &Host) -> Result<BTreeMap<String, u64>> {
    let read = || {
        let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
        Ok::<_, std::io::Error>(snmp + &fs::read_to_string("/proc/thread-self/net/netstat")?)
    };
    let text = host
        .run(read)
        .context("failed to read the network counters")?;
    let mut counters = BTreeMap::new();
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let table = pair[0].split(':').next().unwrap_or_default();
        let values = pair[1].split_whitespace().skip(1);
        for (name, value) in pair[0].split_whitespace().skip(1).zip(values) {
            counters.insert(format!("{table}.{name}"), value.parse().unwrap_or(0));
        }
    }
    Ok(counters)
}

/// Number of resets that a host sent, or that ended an established session of the host.
pub fn resets(host: &Host) -> Result<u64> {
    let sent = tcp(host)?.get("Tcp.OutRsts").copied().unwrap_or(0);
    Ok(sent + sessions_reset(host)?)
}

/// Number of resets that ended an established session of the host.
pub fn sessions_reset(host: &Host) -> Result<u64> {
    Ok(tcp(host)?.get("Tcp.EstabResets").copied().unwrap_or(0))
}

/// Number of packets that a router did not send since they were too long for a route, and of which
/// it told the sender.
pub fn too_long(router: &Host) -> Result<u64> {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
    let of = |text: &str, name: &str| {
        let lines = text
            .lines()
            .filter_map(|line| line.split_once(char::is_whitespace));
        let value = { lines }.find_map(|(n, value)| (n == name).then(|| value.trim().parse().ok()));
        value.flatten().unwrap_or(0u64)
    };
    let v6 = of(&router.run(read), "Icmp6OutPktTooBigs");
    let v4 = tcp(router)?.get("Ip.FragFails").copied().unwrap_or(0);
    Ok(v4 + v6)
}

/// Processor time of a process, in user mode and in the kernel.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = Process::new(pid as i32).and_then(|process| process.stat());
    let stat = stat.with_context(|| format!("failed to read the times of process {pid}"))?;
    let ticks = stat.utime + stat.stime;
    Ok(Duration::from_millis(ticks * 1000 / ticks_per_second()))
}

/// Processes other than this one in a host's network namespace.
pub fn processes(host: &Host) -> Vec<String> {
    let Ok(ours) = fs::read_link(host.netns()) else {
        return vec![];
    };
    let Ok(entries) = fs::read_dir("/proc") else {
        return vec![];
    };
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ns == ours))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} ({pid}) on {}", name.trim(), host.name())
        })
        .collect()
}
