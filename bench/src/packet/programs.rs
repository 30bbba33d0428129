//! The programs, loaded but not attached.

use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, MapData, PerCpuArray, Queue};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, Pod};
use dysco_common::chain::{Hop, Shared};
use dysco_common::policy::PolicyRule;
use dysco_common::{Addr, Counter, FlowRef, Path, Session, ShortKey};

/// A value of a map.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Plain<T>(pub T);
// SAFETY: the type consists of integers in `repr(C)`.
unsafe impl Pod for Plain<ShortKey> {}
// SAFETY: as above.
unsafe impl Pod for Plain<FlowRef> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Session> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Addr> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Hop> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Shared> {}
// SAFETY: as above.
unsafe impl Pod for Plain<PolicyRule> {}

/// TC verdict for a packet that later programs may see.
pub(super) const PASS: u32 = u32::MAX;
/// TC verdict for a packet that was changed and continues.
pub(super) const OK: u32 = 0;
/// TC verdict for a packet that is dropped.
pub(super) const DROP: u32 = 2;
/// TC verdict for a packet that leaves by another path.
pub(crate) const REDIRECT: u32 = 7;
/// XDP verdict for a frame that returns by its interface.
pub(super) const XDP_TX: u32 = 3;

/// Program that a packet passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// A program that does nothing.
    Nothing,
    /// The TC program for packets that arrive.
    In,
    /// The TC program for packets that leave.
    Out,
    /// The XDP program.
    Xdp,
}

/// Number of hints: so many that no two sessions here share a hint.
const HINTS: u32 = 1 << 16;

/// The programs and their maps.
pub(super) struct Programs(Ebpf);

impl Programs {
    /// Loads the programs, with room for this number of sessions. With `xdp` the XDP program is
    /// loaded too, for which the TC programs find neighbours.
    pub(super) fn load(sessions: u32, xdp: bool) -> Result<Programs> {
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("HINTS", HINTS.div_ceil(ShortKey::HINTS))
            .override_global("HINT_MASK", &(HINTS - 1), true)
            .override_global("XDP", &u32::from(xdp), true)
            .map_max_entries("FLOWS", 2 * sessions)
            .map_max_entries("SESSIONS", sessions)
            .map_max_entries("FREE", sessions)
            .load(dysco_agent::object())?;
        for name in ["dysco_ingress", "dysco_egress"] {
            let program = ebpf.program_mut(name).context("no program")?;
            <&mut SchedClassifier>::try_from(program)?.load()?;
        }
        if xdp {
            let program = ebpf.program_mut("dysco_xdp").context("no program")?;
            <&mut Xdp>::try_from(program)?.load()?;
        }
        Ok(Programs(ebpf))
    }

    /// Runs a program `repeat` times on a frame. Returns its last verdict and the mean time.
    pub(super) fn run(&self, way: Way, frame: &[u8], repeat: u32) -> Result<(u32, Duration)> {
        let options = TestRunOptions {
            data_in: Some(frame),
            repeat,
            ..TestRunOptions::default()
        };
        let (verdict, took, _) = self.test(way, options)?;
        Ok((verdict, took))
    }

    /// Runs a program once on a frame with a mark. Returns the verdict, the time and the resulting
    /// frame.
    pub(super) fn pass(
        &self,
        way: Way,
        frame: &[u8],
        mark: u32,
    ) -> Result<(u32, Duration, Vec<u8>)> {
        // These are the first fields of `struct __sk_buff`.
        let mut context = [0_u32; 17];
        context[2] = mark;
        let context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut out = vec![0; frame.len() + 512];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let (verdict, took, len) = self.test(way, options)?;
        out.truncate(len);
        Ok((verdict, took, out))
    }

    fn test(&self, way: Way, options: TestRunOptions<'_>) -> Result<(u32, Duration, usize)> {
        let name = match way {
            Way::In => "dysco_ingress",
            Way::Out => "dysco_egress",
            Way::Xdp => "dysco_xdp",
            Way::Nothing => anyhow::bail!("not one of these programs"),
        };
        let program = self.0.program(name).context("no program")?;
        let run = match way {
            Way::Xdp => <&Xdp>::try_from(program)?.test_run(options)?,
            _ => <&SchedClassifier>::try_from(program)?.test_run(options)?,
        };
        Ok((run.return_value, run.duration, run.data_size_out as usize))
    }

    /// Enters a session, with the path by which its five-tuple leads to it.
    pub(super) fn enter(&mut self, slot: u32, session: &Session, path: Path) -> Result<()> {
        let session = Session {
            short: session.key.short(),
            short_path: session.path.short(),
            ..*session
        };
        self.put(slot, &session)?;
        let key = match path {
            Path::Old => session.key,
            Path::New => session.path,
        };
        let value = FlowRef::new(&key, slot, path);
        self.insert("FLOWS", Plain(key.short()), Plain(value))
    }

    /// Changes a session's entry.
    pub(super) fn put(&mut self, slot: u32, session: &Session) -> Result<()> {
        let map = self.0.map_mut("SESSIONS").context("no session map")?;
        Ok(Array::<_, Plain<Session>>::try_from(map)?.set(slot, Plain(*session), 0)?)
    }

    /// Returns a session's entry.
    pub(super) fn session(&self, slot: u32) -> Result<Session> {
        let map = self.0.map("SESSIONS").context("no session map")?;
        let map = Array::<&MapData, Plain<Session>>::try_from(map)?;
        Ok(map.get(&slot, 0)?.0)
    }

    /// Inserts an element into one of the hash maps.
    pub(super) fn insert<K: Pod, V: Pod>(&mut self, map: &str, key: K, value: V) -> Result<()> {
        let found = self
            .0
            .map_mut(map)
            .with_context(|| format!("no map {map}"))?;
        let mut found = HashMap::<_, K, V>::try_from(found)?;
        Ok(found.insert(key, value, 0)?)
    }

    /// Sets the first element of one of the arrays.
    pub(super) fn set<V: Pod>(&mut self, map: &str, value: V) -> Result<()> {
        let found = self
            .0
            .map_mut(map)
            .with_context(|| format!("no map {map}"))?;
        Ok(Array::<_, V>::try_from(found)?.set(0, value, 0)?)
    }

    /// Marks these slots as free.
    pub(super) fn free(&mut self, slots: impl Iterator<Item = u32>) -> Result<()> {
        let map = self.0.map_mut("FREE").context("no map of free slots")?;
        let mut free = Queue::<_, u32>::try_from(map)?;
        for slot in slots {
            free.push(slot, 0)?;
        }
        Ok(())
    }

    /// Returns the value of a counter of the programs.
    pub(super) fn count(&self, counter: Counter) -> Result<u64> {
        let map = self.0.map("COUNTERS").context("no counters")?;
        let map = PerCpuArray::<&MapData, u64>::try_from(map)?;
        Ok(map.get(&(counter as u32), 0)?.iter().sum())
    }
}
