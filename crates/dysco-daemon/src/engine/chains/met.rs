//! Hosts that the chains of other hosts need here. They are named by peers, so that their number is
//! limited.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use dysco_config::is_host;
use dysco_control::Identity;

use super::HOLDS;
use super::message::MANY;

/// Maximum number of hosts that one peer has introduced. Each rule of its policy may need another.
const OF_ONE: usize = 256;

/// Hosts that other hosts' chains need here.
#[derive(Default)]
pub(super) struct Met {
    hosts: HashMap<IpAddr, Need>,
}

/// Last time at which a host was needed, and the peer that introduced it; none for a change.
struct Need {
    at: Instant,
    by: Option<Arc<Identity>>,
}

impl Met {
    /// Records the introduction of a host. Returns true if the host is to be reached: it is new, and
    /// there is room.
    pub(super) fn introduce(&mut self, host: IpAddr, by: &Arc<Identity>, now: Instant) -> bool {
        if let Some(need) = self.hosts.get_mut(&host) {
            need.at = now;
            return false;
        }
        let of_one = self.hosts.values().filter(|n| n.by.as_ref() == Some(by));
        if !is_host(host) || self.hosts.len() >= MANY || of_one.count() >= OF_ONE {
            return false;
        }
        let by = Some(Arc::clone(by));
        self.hosts.insert(host, Need { at: now, by });
        true
    }

    /// Records that a change needs a host. Returns true if the host was known.
    pub(super) fn need(&mut self, host: IpAddr, now: Instant) -> bool {
        if let Some(need) = self.hosts.get_mut(&host) {
            need.at = now;
            return true;
        }
        // Introductions leave room for changes.
        if self.hosts.len() < 2 * MANY {
            self.hosts.insert(host, Need { at: now, by: None });
        }
        false
    }

    /// Returns the hosts.
    pub(super) fn hosts(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.hosts.keys().copied()
    }

    /// Forgets the hosts that are not needed any more.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.hosts.retain(|_, need| now - need.at < HOLDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Arc<Identity> {
        let addresses = vec![IpAddr::from([10, 0, 0, last])];
        Arc::new(Identity { addresses })
    }

    fn host(i: usize) -> IpAddr {
        let [.., high, low] = i.to_be_bytes();
        [10, 1, high, low].into()
    }

    #[test]
    fn peers_introduce_a_limited_number_of_hosts() {
        let (mut met, now) = (Met::default(), Instant::now());
        // A hundred messages of sixteen hosts each.
        let reached = |met: &mut Met, by: &Arc<Identity>, range: std::ops::Range<usize>| {
            range.filter(|i| met.introduce(host(*i), by, now)).count()
        };
        let one = peer(1);
        assert_eq!(reached(&mut met, &one, 0..1600), OF_ONE);
        assert_eq!(reached(&mut met, &one, 0..1600), 0);
        assert_eq!(met.hosts().count(), OF_ONE);
        // The others have room still, and changes have room beyond that.
        for last in 2..10 {
            let first = usize::from(last) * 2000;
            reached(&mut met, &peer(last), first..first + 1600);
        }
        assert_eq!(met.hosts().count(), MANY);
        assert!(!met.need(host(60_000), now) && met.need(host(60_000), now));
        met.forget_old(now + HOLDS);
        assert_eq!(reached(&mut met, &one, 0..1), 1);
    }

    #[test]
    fn what_is_no_host_is_not_reached() {
        let (mut met, now) = (Met::default(), Instant::now());
        for address in [
            "127.0.0.1",
            "::1",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.0",
        ] {
            assert!(!met.introduce(address.parse().unwrap(), &peer(1), now));
        }
        assert_eq!(met.hosts().count(), 0);
    }
}
