//! `[control]`: the channel to other hosts.

use std::net::IpAddr;

use dysco_explain::Cause;
use toml::Spanned;

use super::super::error::ConfigError;
use super::super::values::Address;
use super::super::{CONTROL_PORT, Control, DEFAULT_PKI_DIR, PkiPaths, schema};
use super::Checker;

/// Maximum number of peers. Each one needs a connection and keys.
const MOST_PEERS: usize = 256;

/// Returns true if an address can be that of another host without further information, such as a
/// scope.
pub fn is_host(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_broadcast() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

impl Checker<'_> {
    /// Returns the peers on other hosts. This host's own addresses are omitted, because all hosts
    /// may share one file.
    fn peers(
        &self,
        peers: Vec<Spanned<Address>>,
        own: &[IpAddr],
    ) -> Result<Vec<IpAddr>, ConfigError> {
        let mut all = Vec::new();
        for peer in peers {
            let span = peer.span();
            if all.len() == MOST_PEERS {
                let why = Cause::new(format!("peers has more than {MOST_PEERS}"))
                    .hint("name those that changes begin with");
                return Err(self.error(span, why));
            }
            let peer = peer.into_inner().0.to_canonical();
            if !is_host(peer) {
                let why = Cause::new(format!("peers has {peer}, which is no host's"))
                    .hint("name its address");
                return Err(self.error(span, why));
            }
            if !own.contains(&peer) && !all.contains(&peer) {
                all.push(peer);
            }
        }
        Ok(all)
    }

    pub(super) fn control(
        &self,
        control: schema::Control,
        own: &[IpAddr],
    ) -> Result<Control, ConfigError> {
        let listen = match control.listen {
            Some(listen) if listen.get_ref().is_empty() => {
                let why = Cause::new("listen is empty").hint("leave it out for all addresses");
                return Err(self.error(listen.span(), why));
            }
            Some(listen) => listen.into_inner().into_iter().map(|ip| ip.0).collect(),
            None => vec![IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)],
        };
        let port = self.within("port", control.port, CONTROL_PORT, 1..=u16::MAX)?;
        let peers = self.peers(control.peers, own)?;
        let dir = control.pki_dir.unwrap_or_else(|| DEFAULT_PKI_DIR.into());
        let usual = PkiPaths::in_dir(&dir);
        Ok(Control {
            listen,
            port,
            peers,
            pki: PkiPaths {
                ca: control.ca.unwrap_or(usual.ca),
                cert: control.cert.unwrap_or(usual.cert),
                key: control.key.unwrap_or(usual.key),
                revoked: control.revoked.unwrap_or(usual.revoked),
            },
        })
    }
}
