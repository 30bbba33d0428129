//! Positions of the required members of `struct tcp_sock` in the running kernel.

use dysco_common::adopt::Socket;
use dysco_common::{Addr, FlowKey};

use crate::btf::{Btf, Member};

const AF_INET: u64 = libc::AF_INET as u64;
const AF_INET6: u64 = libc::AF_INET6 as u64;
/// Flag `SOCK_BINDPORT_LOCK`: the program has bound the port itself.
const BOUND: u64 = 8;
/// `TCP_ECN_OK`, since 6.16 `TCP_ECN_MODE_RFC3168`.
const ECN: u64 = 1;
/// `TCP_ECN_MODE_ACCECN`, since 6.16; nothing before.
const ACCECN: u64 = 16;

const STRUCT: &str = "tcp_sock";
/// Path from a `tcp_sock` to the `inet_sock` in it. The path to the `sock_common` follows.
const INET: [&str; 2] = ["inet_conn", "icsk_inet"];
const COMMON: [&str; 4] = ["inet_conn", "icsk_inet", "sk", "__sk_common"];

macro_rules! members {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $path:expr,)* } { $($may:ident: $any:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub(super) struct $name {
            /// Bytes of the whole.
            pub size: u32,
            $($field: Member,)*
            $($may: Option<Member>,)*
        }

        impl $name {
            /// Reads the kernel's description. An error is the member that it
            /// does not have.
            pub(super) fn of(btf: &Btf<'_>) -> Result<$name, String> {
                Ok($name {
                    size: btf.size(STRUCT).ok_or(STRUCT)?,
                    $($field: member(btf, &$path.concat()).ok_or_else(|| $path.concat().join("."))?,)*
                    $($may: $any.iter().find_map(|path| member(btf, &path.concat())),)*
                })
            }
        }
    };
}

fn member(btf: &Btf<'_>, path: &[&str]) -> Option<Member> {
    btf.member(STRUCT, path)
}

members! {
    /// Position of each member. Some kernels lack members of the second kind.
    Layout {
        state: [&COMMON[..], &["skc_state"]],
        family: [&COMMON[..], &["skc_family"]],
        remote_port: [&COMMON[..], &["skc_dport"]],
        local_port: [&COMMON[..], &["skc_num"]],
        remote_v4: [&COMMON[..], &["skc_daddr"]],
        local_v4: [&COMMON[..], &["skc_rcv_saddr"]],
        userlocks: [&INET[..], &["sk", "sk_userlocks"]],
        snd_una: [&["snd_una"][..]],
        snd_nxt: [&["snd_nxt"][..]],
        write_seq: [&["write_seq"][..]],
        rcv_nxt: [&["rcv_nxt"][..]],
        rcv_wup: [&["rcv_wup"][..]],
        bytes_acked: [&["bytes_acked"][..]],
        bytes_received: [&["bytes_received"][..]],
        bytes_sent: [&["bytes_sent"][..]],
        bytes_retrans: [&["bytes_retrans"][..]],
        advmss: [&["advmss"][..]],
        mss_clamp: [&["rx_opt", "mss_clamp"][..]],
        wscale_ok: [&["rx_opt", "wscale_ok"][..]],
        snd_wscale: [&["rx_opt", "snd_wscale"][..]],
        rcv_wscale: [&["rx_opt", "rcv_wscale"][..]],
        sack_ok: [&["rx_opt", "sack_ok"][..]],
        tstamp_ok: [&["rx_opt", "tstamp_ok"][..]],
        ts_recent: [&["rx_opt", "ts_recent"][..]],
        tsoffset: [&["tsoffset"][..]],
        mstamp: [&["tcp_mstamp"][..]],
        ecn_flags: [&["ecn_flags"][..]],
        repair: [&["repair"][..]],
        syn_data_acked: [&["syn_data_acked"][..]],
    }
    {
        remote_v6: [[&COMMON[..], &["skc_v6_daddr"]]],
        local_v6: [[&COMMON[..], &["skc_v6_rcv_saddr"]]],
        // Since 6.7 a route may ask for timestamps in microseconds.
        usec: [[&["tcp_usec_ts"][..]]],
        mptcp: [[&["is_mptcp"][..]]],
        md5: [[&["md5sig_info"][..]]],
        ao: [[&["ao_info"][..]]],
        // Until 5.15 in the second position.
        ifindex_in: [[&INET[..], &["sk", "sk_rx_dst_ifindex"]], [&INET[..], &["rx_dst_ifindex"]]],
    }
}

impl Layout {
    /// Reads a copy of a socket; `None` if it is not TCP over IP.
    pub(super) fn read(&self, copy: &[u8]) -> Option<Socket> {
        let at = |m: Member| number(copy, m);
        let flag = |m: Option<Member>| m.and_then(at).is_some_and(|v| v != 0);
        let word = |m| at(m).map(|v| v as u32);
        let ecn = at(self.ecn_flags)?;
        let foreign = [self.mptcp, self.md5, self.ao].map(flag);
        Some(Socket {
            key: self.key(copy)?,
            state: at(self.state)? as u8,
            snd_una: word(self.snd_una)?,
            snd_nxt: word(self.snd_nxt)?,
            write_seq: word(self.write_seq)?,
            rcv_nxt: word(self.rcv_nxt)?,
            rcv_wup: word(self.rcv_wup)?,
            bytes_acked: at(self.bytes_acked)?,
            bytes_received: at(self.bytes_received)?,
            bytes_sent: at(self.bytes_sent)?,
            bytes_retrans: at(self.bytes_retrans)?,
            advmss: at(self.advmss)? as u16,
            mss_clamp: at(self.mss_clamp)? as u16,
            wscale_ok: at(self.wscale_ok)? != 0,
            snd_wscale: at(self.snd_wscale)? as u8,
            rcv_wscale: at(self.rcv_wscale)? as u8,
            sack_ok: at(self.sack_ok)? != 0,
            tstamp_ok: at(self.tstamp_ok)? != 0,
            ts_recent: word(self.ts_recent)?,
            ts_clock: self.clock(copy)?,
            ecn_ok: ecn & ECN != 0,
            foreign: ecn & ACCECN != 0 || foreign.contains(&true),
            repair: at(self.repair)? != 0,
            bound: at(self.userlocks)? & BOUND != 0,
            syn_data: at(self.syn_data_acked)? != 0,
            ifindex_in: self.ifindex_in.and_then(word).filter(|i| *i != 0),
        })
    }

    /// Returns the clock of the last packet's timestamp: microseconds in the kernel,
    /// milliseconds on the wire.
    fn clock(&self, copy: &[u8]) -> Option<u32> {
        let micros = number(copy, self.mstamp)?;
        let usec = self.usec.and_then(|m| number(copy, m)) == Some(1);
        let ticks = if usec { micros } else { micros / 1000 };
        let offset = number(copy, self.tsoffset)? as u32;
        Some((ticks as u32).wrapping_add(offset))
    }

    fn key(&self, copy: &[u8]) -> Option<FlowKey> {
        let v4 = |m| Some(Addr::v4(octets(copy, m)?));
        let v6 = |m: Option<Member>| Some(Addr::new(octets(copy, m?)?));
        let (local, remote) = match number(copy, self.family)? {
            AF_INET => (v4(self.local_v4)?, v4(self.remote_v4)?),
            // An IPv4-mapped address is stored like an IPv4 address.
            AF_INET6 => (v6(self.local_v6)?, v6(self.remote_v6)?),
            _ => return None,
        };
        Some(FlowKey {
            local,
            remote,
            local_port: (number(copy, self.local_port)? as u16).to_be(),
            // In memory order, which is network order.
            remote_port: number(copy, self.remote_port)? as u16,
        })
    }
}

/// Reads a number, or a bit field within eight bytes. Bits are counted from the lowest, as on
/// the little-endian kernels of this target.
fn number(copy: &[u8], at: Member) -> Option<u64> {
    let (first, shift) = (at.offset as usize / 8, at.offset % 8);
    let last = (at.offset + at.bits).div_ceil(8) as usize;
    let bytes = copy.get(first..last).filter(|b| b.len() <= 8)?;
    let mut eight = [0; 8];
    eight[..bytes.len()].copy_from_slice(bytes);
    let mask = u64::MAX.checked_shr(64_u32.checked_sub(at.bits)?)?;
    Some(u64::from_le_bytes(eight) >> shift & mask)
}

fn octets<const N: usize>(copy: &[u8], at: Member) -> Option<[u8; N]> {
    let first = at.offset as usize / 8;
    copy.get(first..first + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

    use super::*;

    #[test]
    fn bits_are_counted_from_the_lowest() {
        let bytes = [0b1010_0110, 0b0000_0011, 0xff];
        let at = |offset, bits| number(&bytes, Member { offset, bits });
        assert_eq!(at(0, 8), Some(0b1010_0110));
        assert_eq!(at(1, 2), Some(0b11));
        assert_eq!(at(5, 5), Some(0b11101));
        assert_eq!(at(0, 24), Some(0xff03a6));
        assert_eq!(at(16, 16), None);
        assert_eq!(at(0, 0), None);
    }

    #[test]
    fn this_kernel_has_all_of_it() {
        let bytes = crate::btf::of_kernel().unwrap();
        let layout = Layout::of(&Btf::parse(&bytes).unwrap()).unwrap();
        assert!(layout.ifindex_in.is_some() && layout.remote_v6.is_some());
        assert_eq!(layout.read(&[0; 16]), None);
    }
}
