//! Connections between the handlers of two hosts. They lose nothing and keep the order.

use super::config::Configuration;
use super::daemon::Stage;
use super::handler::Handler;
use super::network::Side;
use super::tcp::Byte;
use super::world::{START, World};

impl World {
    /// Connects the hosts for a pair.
    pub fn connect(&mut self, pair: u8) {
        self.tunnels.push([Side::Pending(pair); 2]);
    }

    /// Delivers the connection of this number to the daemon of a host.
    pub fn came(&mut self, config: &Configuration, host: usize, tunnel: u8) -> bool {
        let sides = &mut self.tunnels[usize::from(tunnel)];
        let Side::Pending(pair) = sides[host] else {
            return false;
        };
        let daemon = &self.hosts[host].daemon;
        let waits = daemon.stage == Stage::Invited && daemon.pair.is_some_and(|p| p.id == pair);
        if !waits {
            sides[host] = Side::Closed;
            return true;
        }
        sides[host] = Side::Held;
        let mut handler = Handler::new(START, Default::default(), false);
        handler.tunnel = Some(tunnel);
        self.hosts[host].handler = Some(handler);
        self.hosts[host].daemon.stage = Stage::Accepted;
        self.accepted(config, host);
        true
    }

    /// Sends bytes, and perhaps the last frame, to the other handler.
    pub(crate) fn through_tunnel(&mut self, host: usize, tunnel: u8, bytes: Vec<Byte>, end: bool) {
        let other = self.hosts[1 - host].handler.as_mut();
        if let Some(other) = other.filter(|other| other.tunnel == Some(tunnel)) {
            other.came.extend(bytes);
            other.came_end |= end;
            other.decrypt();
        }
    }

    /// Closes the side of a host's handler.
    pub(crate) fn close_tunnel(&mut self, host: usize) {
        let handler = self.hosts[host].handler.as_mut();
        if let Some(tunnel) = handler.and_then(|handler| handler.tunnel.take()) {
            self.tunnels[usize::from(tunnel)][host] = Side::Closed;
        }
    }

    /// True if the connection of a handler was closed by the other host.
    pub(crate) fn is_cut_off(&self, host: usize) -> bool {
        let handler = self.hosts[host].handler.as_ref();
        let tunnel = handler.and_then(|handler| handler.tunnel);
        tunnel.is_some_and(|tunnel| self.tunnels[usize::from(tunnel)][1 - host] == Side::Closed)
    }
}
