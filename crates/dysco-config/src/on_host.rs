//! Checks that this host has what its configuration names. `dyscod --check` and `dyscoctl doctor`
//! run them.

use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use dysco_explain::Cause;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::{ConfigError, Control, Listener};

/// Returns an error if `dir` is not on a BPF file system. Nothing can be pinned elsewhere, and
/// the kernel's own error comes late and is less clear.
pub fn can_pin(dir: &Path) -> Result<(), ConfigError> {
    let there = dir.ancestors().find(|path| path.exists());
    let kind = there.and_then(|path| statfs(path).ok());
    match kind.map(|kind| kind.filesystem_type()) {
        Some(kind) if kind != BPF_FS_MAGIC => Err(ConfigError::NoPins(dir.into())),
        _ => Ok(()),
    }
}

/// Returns a warning if the listener's HAProxy socket does not exist or is no socket. This is not
/// an error, because HAProxy creates the socket when it starts; more often the path is wrong.
pub fn missing_socket(listener: &Listener) -> Option<Cause> {
    let socket = listener.haproxy_socket.as_ref()?;
    let what = match socket.metadata() {
        Ok(found) if found.file_type().is_socket() => return None,
        Ok(_) => "is no socket",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "is not there",
        Err(_) => "cannot be looked at",
    };
    let (address, socket) = (listener.address, socket.display());
    let why = format!("haproxy_socket of the listener {address}: {socket} {what}");
    Some(
        Cause::new(why)
            .hint("see 'stats socket' of haproxy.cfg, unless HAProxy is to be started yet"),
    )
}

/// Returns an error if an address to listen on does not exist here. Such an address may belong to
/// another host, or to this host only at times.
pub fn can_listen(control: &Control) -> Result<(), ConfigError> {
    for ip in &control.listen {
        // Any port will do, because a running dyscod occupies its own.
        let Err(source) = UdpSocket::bind((*ip, 0)) else {
            continue;
        };
        // If the host lacks the protocol, dyscod runs without the address or reports an error at
        // its start.
        if source.kind() == io::ErrorKind::AddrNotAvailable {
            let address = (*ip, control.port).into();
            return Err(ConfigError::Listen { address, source });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PkiPaths;

    #[test]
    fn a_directory_for_pins_is_on_a_bpf_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let error = can_pin(&dir.path().join("not/there")).unwrap_err();
        assert!(error.to_string().contains("pin_dir"), "{error}");
    }

    #[test]
    fn a_socket_of_haproxys_may_still_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let reported = |name: &str| {
            missing_socket(&Listener {
                address: ":8080".parse().unwrap(),
                transparent: None,
                haproxy_socket: Some(dir.path().join(name)),
            })
        };
        std::fs::write(dir.path().join("file"), "").unwrap();
        let _there = std::os::unix::net::UnixListener::bind(dir.path().join("there")).unwrap();
        let none = reported("none").unwrap();
        assert!(
            none.why.ends_with("none is not there") && none.hint.is_some(),
            "{none}"
        );
        assert!(reported("file").unwrap().why.contains("is no socket"));
        assert_eq!(reported("there"), None);
    }

    #[test]
    fn an_address_to_listen_on_is_this_hosts() {
        let listening = |address: [u8; 4]| Control {
            listen: vec![address.into()],
            port: 7474,
            peers: Vec::new(),
            pki: PkiPaths::in_dir(Path::new("/none")),
        };
        assert!(can_listen(&listening([127, 0, 0, 1])).is_ok());
        // An address for documentation (RFC 5737).
        let error = can_listen(&listening([192, 0, 2, 1])).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1:7474"), "{error}");
    }
}
