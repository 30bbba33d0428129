//! Selection of the interfaces where XDP relays, and attachment of its program. It is attached
//! and pinned like the TC programs, but a host can do without it.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{Xdp as Program, XdpMode};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde::{Deserialize, Serialize};

use crate::attach::link;
use crate::error::{AgentError, AnyError};
use crate::links::Header;
use crate::pins::pin_path;

/// Setting of XDP: whether it sends relayed packets back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Xdp {
    /// On the interfaces whose driver is among [`DRIVERS`].
    #[default]
    Auto,
    /// On every interface, or the daemon does not start.
    On,
    /// On none.
    Off,
}

/// Drivers for which `auto` attaches the program: those of network cards that send XDP's frames
/// back from rings of their own. A wire is behind them, so that they receive single packets with
/// complete checksums. Drivers of virtual machines (`virtio_net`, `ena`, `vmxnet3`) are
/// excluded: the other side may be a guest of the same machine that left its checksums to be
/// completed. `veth` is excluded, because that is always so there, and super-packets, for which
/// TC is faster, would be lost.
const DRIVERS: [&str; 6] = ["bnxt_en", "i40e", "ice", "ixgbe", "mlx4_en", "mlx5_core"];

pub(crate) const PROGRAM: &str = "dysco_xdp";

/// Returns the interfaces that are to have the program. It reads frames with an Ethernet header.
pub(crate) fn chosen(xdp: Xdp, interfaces: &[String]) -> Vec<&str> {
    let mut names: Vec<_> = interfaces.iter().map(String::as_str).collect();
    names.retain(|interface| Header::of(interface) == Header::Ethernet);
    names.retain(|interface| {
        let driver = driver(interface).unwrap_or_else(|error| format!("unknown ({error})"));
        let listed = DRIVERS.contains(&driver.as_str());
        if xdp == Xdp::On && !listed {
            tracing::warn!(
                interface,
                driver,
                "relaying by XDP where packets may come with checksums that hardware is to complete: they would arrive broken"
            );
        }
        xdp == Xdp::On || xdp == Xdp::Auto && listed
    });
    names
}

/// Attaches the program to the chosen interfaces, and removes it from all others. Returns the
/// interfaces that have it then.
pub(crate) fn attach<'a>(
    ebpf: &mut Ebpf,
    dir: &Path,
    interfaces: &[String],
    (xdp, chosen): (Xdp, &[&'a str]),
) -> Result<Vec<&'a str>, AgentError> {
    for name in interfaces {
        if !chosen.contains(&name.as_str()) {
            // Removing the pin removes the link, and with it the program.
            let _ = fs::remove_file(pin_path(dir, name, PROGRAM));
        }
    }
    let mut has = Vec::new();
    for &interface in chosen {
        match attach_to(ebpf, dir, interface) {
            Ok(()) => has.push(interface),
            Err(source) if xdp == Xdp::On => {
                let interface = interface.to_owned();
                return Err(AgentError::Xdp { interface, source });
            }
            Err(error) => {
                tracing::warn!(interface, %error, "cannot relay by XDP: going on without");
            }
        }
    }
    Ok(has)
}

fn attach_to(ebpf: &mut Ebpf, dir: &Path, interface: &str) -> Result<(), AnyError> {
    let program: &mut Program = ebpf
        .program_mut(PROGRAM)
        .ok_or(AgentError::Missing(PROGRAM))?
        .try_into()?;
    if program.fd().is_err() {
        program.load()?;
    }
    let path = pin_path(dir, interface, PROGRAM);
    if path.exists() {
        if link::is_on(&path, interface) {
            let link: FdLink = PinnedLink::from_pin(&path)?.into();
            match program.attach_to_link(XdpLink::try_from(link)?) {
                // The pin alone keeps the link: it ends when the pin is removed.
                Ok(id) => {
                    drop(program.take_link(id)?);
                    return Ok(());
                }
                Err(e) => {
                    tracing::info!(interface, program = PROGRAM, error = %e, "attaching anew")
                }
            }
        }
        fs::remove_file(&path)?;
    }
    // Never on packets that the kernel has made already: TC is faster there.
    let id = program.attach(interface, XdpMode::Driver)?;
    let link: FdLink = program.take_link(id)?.try_into()?;
    link.pin(&path)?;
    Ok(())
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const ETHTOOL_GDRVINFO: u32 = 3;

/// Returns the name of an interface's driver. Uses an ioctl, because `/sys` may show another
/// network namespace than this one.
fn driver(interface: &str) -> io::Result<String> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut info = DriverInfo {
        cmd: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: integers, arrays and a pointer: zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: the kernel reads the request, and writes no more than a `DriverInfo` to the
    // address in it.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let text = info.driver.split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(text.unwrap_or_default()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_its_own_accord_only_where_it_is_known_to_do() {
        let all = ["lo".to_owned(), "nosuch".to_owned()];
        assert_eq!(chosen(Xdp::On, &all), ["lo", "nosuch"]);
        assert!(chosen(Xdp::Auto, &all).is_empty());
        assert!(chosen(Xdp::Off, &all).is_empty());
        assert!(DRIVERS.is_sorted());
    }
}
