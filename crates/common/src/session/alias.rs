//! Other five-tuples of a session. The constants are bits of [`Alias::flags`].

use crate::flow::{Addr, FlowKey};

/// The address is that of this host's end, not of the other end.
pub const LOCAL: u32 = 1;
/// A NAT caused the difference. It leaves sequence numbers unchanged.
pub const NAT: u32 = 2;

/// Another five-tuple of a session. It differs from the session's own in the address of at most one
/// end. Ports in network byte order, zeros for none.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Alias {
    /// Address of one end. The other end's address is that of the session's own five-tuple.
    pub address: Addr,
    /// Port of this host's end.
    pub local_port: u16,
    /// Port of the other end.
    pub remote_port: u16,
    /// [`LOCAL`] and [`NAT`].
    pub flags: u32,
}

impl Alias {
    /// Returns the alias of a session that a middlebox has left. Its five-tuple here has the same
    /// local address.
    #[inline(always)]
    pub const fn of(name: &FlowKey) -> Alias {
        Alias {
            address: name.remote,
            local_port: name.local_port,
            remote_port: name.remote_port,
            flags: 0,
        }
    }

    /// Returns the alias of a session that has passed a NAT. None if the name is the same here, or
    /// if both addresses were changed.
    #[inline(always)]
    pub fn behind_nat(key: &FlowKey, name: &FlowKey) -> Alias {
        let (near, peer) = (key.local == name.local, key.remote == name.remote);
        let same = near && peer;
        let ports = key.local_port == name.local_port && key.remote_port == name.remote_port;
        if same && ports || !near && !peer {
            return Alias::default();
        }
        Alias {
            address: if near { name.remote } else { name.local },
            local_port: name.local_port,
            remote_port: name.remote_port,
            flags: if near { NAT } else { NAT | LOCAL },
        }
    }

    /// Returns the alias from the other end's side.
    #[inline(always)]
    pub const fn mirrored(self) -> Alias {
        Alias {
            local_port: self.remote_port,
            remote_port: self.local_port,
            flags: if self.is_none() {
                0
            } else {
                self.flags ^ LOCAL
            },
            ..self
        }
    }

    /// Returns the whole five-tuple. `key` is the session's own.
    #[inline(always)]
    pub const fn whole(&self, key: &FlowKey) -> FlowKey {
        let (local, remote) = if self.flags & LOCAL != 0 {
            (self.address, key.remote)
        } else {
            (key.local, self.address)
        };
        FlowKey {
            local,
            remote,
            local_port: self.local_port,
            remote_port: self.remote_port,
        }
    }

    /// Returns true if there is no alias. No port is 0.
    #[inline(always)]
    pub const fn is_none(&self) -> bool {
        self.local_port == 0
    }
}
