//! This host, as the protocol machine and requests find it. Each kind of state has its owner, and
//! what concerns several owners is here.

use std::time::Instant;

use super::chain_updates::ChainUpdates;
use super::chains::Chains;
use super::dsr::Returns;
use super::held::ProxyChanges;
use super::moves::Moves;
use super::on_link::OnLink;
use super::plane::Plane;
use super::ports::Ports;
use super::services::Services;
use super::sockets::Sockets;
use super::store::Store;

/// Owners of the state by which this host carries out changes.
pub(super) struct ThisHost {
    pub plane: Plane,
    /// Changes by which a proxy leaves its sessions.
    pub proxy_changes: ProxyChanges,
    /// Changes by which sessions get another chain.
    pub chain_updates: ChainUpdates,
    pub chains: Chains,
    /// Transfers of sessions' state from host to host.
    pub moves: Moves,
    pub returns: Returns,
    pub ports: Ports,
    pub sockets: Sockets,
    pub on_link: OnLink,
    pub services: Services,
    /// Store of the fleet's policy and hosts.
    pub store: Store,
    /// Time of the last warning of a full table.
    pub no_room_reported: Option<Instant>,
}
