//! The rights that `dyscod` needs: capabilities (capabilities(7), linux/capability.h).

use dysco_explain::Cause;

/// A capability, and what `dyscod` cannot do without it.
struct Right {
    bit: u32,
    name: &'static str,
    cost: &'static str,
}

const RIGHTS: [Right; 5] = [
    Right {
        bit: 12,
        name: "CAP_NET_ADMIN",
        cost: "it cannot attach its programs",
    },
    Right {
        bit: 13,
        name: "CAP_NET_RAW",
        cost: "it cannot send test segments on a new path, so that bypasses and chains are refused",
    },
    Right {
        bit: 19,
        name: "CAP_SYS_PTRACE",
        cost: "it finds no socket of a process of another user, so that proxies without the shim \
               stay",
    },
    Right {
        bit: 38,
        name: "CAP_PERFMON",
        cost: "the kernel refuses its programs",
    },
    Right {
        bit: 39,
        name: "CAP_BPF",
        cost: "the kernel refuses its programs",
    },
];
const CAP_SYS_ADMIN: u32 = 21;
/// Capabilities that CAP_SYS_ADMIN includes.
const INCLUDED: [u32; 2] = [38, 39];

/// Effective capabilities of a process.
#[derive(Clone, Copy)]
pub struct Rights(u64);

impl Rights {
    /// Reads those of this process; none if /proc does not show them.
    pub fn own() -> Rights {
        Rights::of(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Reads those of a process, given its `/proc/PID/status`.
    pub fn of(status: &str) -> Rights {
        let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
        let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        Rights(effective.unwrap_or_default())
    }

    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// True if the process may enter network namespaces.
    pub(crate) fn may_enter(self) -> bool {
        self.has(CAP_SYS_ADMIN)
    }

    fn lacking(self) -> impl Iterator<Item = &'static Right> {
        let granted =
            move |bit| self.has(bit) || INCLUDED.contains(&bit) && self.has(CAP_SYS_ADMIN);
        RIGHTS.iter().filter(move |right| !granted(right.bit))
    }

    /// Returns the names of the capabilities that are missing.
    pub fn missing(self) -> Vec<&'static str> {
        self.lacking().map(|right| right.name).collect()
    }

    /// Returns what `dyscod` cannot do, for each capability that is missing.
    pub fn costs(self) -> Vec<Cause> {
        let cost = |right: &Right| {
            let (name, cost) = (right.name, right.cost);
            let cause = Cause::new(format!("dyscod lacks {name}: {cost}"));
            cause.hint(format!(
                "give it {name}, as CapabilityBoundingSet of dyscod.service does"
            ))
        };
        self.lacking().map(cost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bits: u64) -> Rights {
        Rights::of(&format!("Name:\tx\nCapEff:\t{bits:016x}\n"))
    }

    #[test]
    fn what_is_missing_is_named_with_its_cost() {
        let all = 0x0000_01ff_ffff_ffff_u64;
        assert!(of(all).missing().is_empty() && of(all).costs().is_empty());
        // CAP_SYS_ADMIN includes CAP_BPF.
        assert!(of(all & !(1 << 39)).missing().is_empty());
        let without = of(all & !(1 << 39) & !(1 << CAP_SYS_ADMIN));
        assert_eq!(without.missing(), ["CAP_BPF"]);
        let raw = of(all & !(1 << 13));
        let costs = raw.costs();
        assert_eq!(costs.len(), 1);
        assert!(costs[0].why.starts_with("dyscod lacks CAP_NET_RAW: "));
        assert_eq!(of(0).missing().len(), RIGHTS.len());
        assert_eq!(Rights::of("").missing().len(), RIGHTS.len());
    }

    #[test]
    fn namespaces_need_one_capability() {
        assert!(of(0x0000_01ff_ffff_ffff).may_enter());
        assert!(of(1 << CAP_SYS_ADMIN).may_enter());
        assert!(!of(0x0000_01ff_ffff_ffff & !(1 << CAP_SYS_ADMIN)).may_enter());
        assert!(!Rights::of("").may_enter());
    }
}
