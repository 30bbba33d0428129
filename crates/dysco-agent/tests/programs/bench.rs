//! Loads the programs without attaching them, and runs them.

use std::os::unix::fs::MetadataExt;
use std::sync::RwLock;

use aya::maps::{Array, HashMap, PerCpuArray, Queue, RingBuf};
use aya::programs::{Program, SchedClassifier, TestRun, TestRunOptions, Xdp};
use aya::{Btf, Ebpf, EbpfLoader, Pod};
use dysco_common::chain::{Hop, MAGIC, PAYLOAD, Payload, Shared, Token};
use dysco_common::fresh::{Clock, ticks};
use dysco_common::packet_services::PacketServices;
use dysco_common::policy::{InForce, PolicyRule};
use dysco_common::rule::{Rule, Rules};
use dysco_common::session::Life;
use dysco_common::siphash::Key;
use dysco_common::{
    Addr, Counter, EventKind, FlowKey, FlowRef, Path, Session, ShortKey, State, Translation, mark,
};

use nix::time::{ClockId, clock_gettime};

use crate::chain::KEY;
use crate::frame::{Frame, Net, WINDOW};

/// Number of sessions in these maps.
pub(crate) const SESSIONS: u32 = 32;
/// The slot of the session that [`Programs::with`] makes.
pub(crate) const SLOT: u32 = 3;

/// Verdicts of traffic control.
pub(crate) const OK: u32 = 0;
pub(crate) const DROP: u32 = 2;
/// The TC action that continues with the programs after this one, attached by TCX or by clsact.
pub(crate) const PASS: u32 = -1_i32 as u32;
pub(crate) const REDIRECT: u32 = 7;
/// Verdicts of XDP.
pub(crate) const XDP_PASS: u32 = 2;
pub(crate) const XDP_TX: u32 = 3;

/// Expected frame, with the time of sending that its payload states: now, or a moment ago.
pub(crate) fn stamped(want: &Frame, got: &[u8]) -> Frame {
    let mut want = want.clone();
    if let Some(bytes) = want.payload.last_chunk_mut() {
        stamp(bytes, got);
    }
    want
}

/// Copies the time of sending from the payload at the end of another frame.
pub(crate) fn stamp(bytes: &mut [u8; PAYLOAD], got: &[u8]) {
    let Some(made) = got.last_chunk() else {
        return;
    };
    let (mut payload, made) = (Payload::from_bytes(bytes), Payload::from_bytes(made));
    if payload.magic == MAGIC && payload.mac == payload.proof(KEY) && payload.sent != made.sent {
        let late = now().wrapping_sub(u32::from_be(made.sent));
        assert!(late <= 1, "sent {late} ticks ago");
        payload.sent = made.sent;
        payload.mac = payload.proof(KEY);
        *bytes = payload.to_bytes();
    }
}

/// Returns the present tick of this host's clock.
pub(crate) fn now() -> u32 {
    let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
    ticks(std::time::Duration::from(boot).as_nanos() as u64)
}

/// The program to run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Out,
    In,
    /// The packet plane's services, before [`Way::Out`].
    ServedOut,
    /// The packet plane's services, before [`Way::In`].
    ServedIn,
}

#[repr(transparent)]
#[derive(Clone, Copy)]
struct Plain<T>(T);
// SAFETY: only for the types of the maps: integers in `repr(C)`.
unsafe impl Pod for Plain<ShortKey> {}
// SAFETY: as above.
unsafe impl Pod for Plain<FlowRef> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Session> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Rules> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Addr> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Hop> {}
// SAFETY: as above.
unsafe impl Pod for Plain<PolicyRule> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Shared> {}
// SAFETY: as above.
unsafe impl Pod for Plain<PacketServices> {}

/// The programs and their maps, for one test alone. A program is loaded when it first runs: most
/// tests need one program, and the kernel needs time to verify each.
pub(crate) struct Programs {
    ebpf: RwLock<Ebpf>,
}

impl Programs {
    /// Loads with one hint: each lookup of another five-tuple finds a wrong one.
    pub(crate) fn load() -> Programs {
        Programs::with_hints(1)
    }

    /// Loads with this number of hints, a power of two.
    pub(crate) fn with_hints(hints: u32) -> Programs {
        let ebpf = EbpfLoader::new()
            .map_max_entries("HINTS", hints.div_ceil(ShortKey::HINTS))
            .override_global("HINT_MASK", &(hints - 1), true)
            .map_max_entries("FLOWS", 2 * SESSIONS)
            .map_max_entries("SESSIONS", SESSIONS)
            .map_max_entries("FREE", SESSIONS)
            .map_max_entries("EDGES", SESSIONS)
            .override_global("XDP", &1_u32, true)
            .load(dysco_agent::object())
            .expect("the object loads; this test needs root");
        let ebpf = RwLock::new(ebpf);
        let mut p = Programs { ebpf };
        p.watch_openings(true);
        p
    }

    /// Makes the kernel verify every program.
    pub(crate) fn load_all(&mut self) {
        let kernel = Btf::from_sys_fs().expect("a kernel with BTF");
        for (name, program) in self.ebpf.get_mut().unwrap().programs_mut() {
            let loaded = match program {
                Program::SchedClassifier(p) => p.load(),
                Program::Xdp(p) => p.load(),
                Program::Iter(p) => p.load("tcp", &kernel),
                Program::BtfTracePoint(p) => p.load("sock_recv_length", &kernel),
                _ => panic!("{name} is of a kind that this test does not know"),
            };
            if let Err(e) = loaded {
                panic!("{name}: {e:?}");
            }
        }
    }

    /// Sets whether there is a receiver for sessions that open.
    pub(crate) fn watch_openings(&mut self, watch: bool) {
        let map = self.ebpf.get_mut().unwrap().map_mut("WATCHED").unwrap();
        let mut watched = Array::<_, u32>::try_from(map).unwrap();
        watched.set(0, u32::from(watch), 0).unwrap();
    }

    /// Loads with one session in a state, with both of its five-tuples in the map.
    pub(crate) fn with(net: &Net, state: State, translation: Translation) -> Programs {
        let mut p = Programs::load();
        p.put(
            SLOT,
            &Session {
                state: state as u32,
                key: net.key(),
                path: net.path(),
                ifindex: 1,
                translation,
                ..Session::default()
            },
        );
        p.flow(net.key(), SLOT, Path::Old);
        p.flow(net.path(), SLOT, Path::New);
        p
    }

    /// Runs a program. Returns its verdict and the packet after it.
    pub(crate) fn run(&self, way: Way, frame: &[u8]) -> (u32, Vec<u8>) {
        self.run_marked(way, frame, &[0; 17])
    }

    /// Runs a program on a packet with a mark.
    pub(crate) fn run_with_mark(&mut self, way: Way, frame: &[u8], mark: u32) -> (u32, Vec<u8>) {
        let mut context = [0; 17];
        context[2] = mark;
        self.run_marked(way, frame, &context)
    }

    /// Runs a program on a super-packet.
    pub(crate) fn run_super(&mut self, way: Way, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut context = [0; 45];
        context[44] = 1000;
        self.run_marked(way, frame, &context)
    }

    /// Runs the XDP program on a frame that came by the loopback interface.
    pub(crate) fn run_xdp(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut out = vec![0; frame.len() + 512];
        let program = self
            .ebpf
            .get_mut()
            .unwrap()
            .program_mut("dysco_xdp")
            .unwrap();
        let program: &mut Xdp = program.try_into().unwrap();
        if program.fd().is_err()
            && let Err(e) = program.load()
        {
            panic!("dysco_xdp: {e:?}");
        }
        let result = program
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ..TestRunOptions::default()
            })
            .expect("the kernel runs the program");
        out.truncate(result.data_size_out as usize);
        (result.return_value, out)
    }

    /// Runs the second pass of a header-only copy.
    pub(crate) fn run_copy(
        &mut self,
        frame: &[u8],
        seq: u32,
        ack: u32,
        path: Path,
        flags: u8,
    ) -> (u32, Vec<u8>) {
        let mut context = [0; 17];
        context[2] = mark::COPY;
        let rest = u32::from(WINDOW) << 16 | u32::from(flags);
        context[12..16].copy_from_slice(&[seq, ack, path as u32, rest]);
        self.run_marked(Way::Out, frame, &context)
    }

    /// Runs a program. `context` is the start of `struct __sk_buff`.
    fn run_marked(&self, way: Way, frame: &[u8], context: &[u32]) -> (u32, Vec<u8>) {
        self.run_in(way, frame, context, None)
    }

    /// The same, with room for the context after the run.
    fn run_in(
        &self,
        way: Way,
        frame: &[u8],
        context: &[u32],
        after: Option<&mut [u8]>,
    ) -> (u32, Vec<u8>) {
        let context: Vec<u8> = context.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut out = vec![0; frame.len() + 512];
        let name = match way {
            Way::Out => "dysco_egress",
            Way::In => "dysco_ingress",
            Way::ServedOut => "dysco_serve_out",
            Way::ServedIn => "dysco_serve_in",
        };
        self.load_first(name);
        let result = classifier(&self.ebpf.read().unwrap(), name)
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                ctx_out: after,
                ..TestRunOptions::default()
            })
            .expect("the kernel runs the program");
        out.truncate(result.data_size_out as usize);
        (result.return_value, out)
    }

    /// Loads a program that has not run yet.
    fn load_first(&self, name: &str) {
        if classifier(&self.ebpf.read().unwrap(), name).fd().is_ok() {
            return;
        }
        let mut ebpf = self.ebpf.write().unwrap();
        let p: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
        // Another thread may have been first.
        if p.fd().is_err()
            && let Err(e) = p.load()
        {
            panic!("{name}: {e:?}");
        }
    }

    /// Runs a program, and expects this verdict and this packet.
    #[track_caller]
    pub(crate) fn becomes(&mut self, way: Way, frame: &Frame, verdict: u32, want: &Frame) {
        let got = self.run(way, &frame.bytes());
        let want = stamped(want, &got.1);
        assert_eq!(
            got,
            (verdict, want.bytes()),
            "{way:?} {frame:?}\nwanted {want:?}"
        );
    }

    /// Runs a program, and expects the packet unchanged.
    #[track_caller]
    pub(crate) fn passes(&mut self, way: Way, frame: &Frame) {
        self.becomes(way, frame, PASS, frame);
    }

    /// Runs a program, and expects the packet dropped for a reason.
    #[track_caller]
    pub(crate) fn drops(&mut self, way: Way, frame: &Frame, why: Counter) {
        let before = self.count(why);
        assert_eq!(self.run(way, &frame.bytes()).0, DROP, "{way:?} {frame:?}");
        assert_eq!(self.count(why), before + 1, "not counted as {}", why.name());
    }

    pub(crate) fn session(&self, slot: u32) -> Session {
        let ebpf = self.ebpf.read().unwrap();
        let map = ebpf.map("SESSIONS").unwrap();
        let map: Array<_, Plain<Session>> = map.try_into().unwrap();
        map.get(&slot, 0).unwrap().0
    }

    pub(crate) fn put(&mut self, slot: u32, s: &Session) {
        let s = &Session {
            short: s.key.short(),
            short_path: s.path.short(),
            life: Life {
                v6: s.key.is_v6().into(),
                ..s.life
            },
            ..*s
        };
        let map = self.ebpf.get_mut().unwrap().map_mut("SESSIONS").unwrap();
        let mut map: Array<_, Plain<Session>> = map.try_into().unwrap();
        map.set(slot, Plain(*s), 0).unwrap();
    }

    /// Returns the right window edge that is kept for the remote end of a slot.
    pub(crate) fn edge(&mut self, slot: u32) -> u32 {
        let map = self.ebpf.get_mut().unwrap().map_mut("EDGES").unwrap();
        let map: Array<_, u32> = map.try_into().unwrap();
        map.get(&slot, 0).unwrap()
    }

    pub(crate) fn set_edge(&mut self, slot: u32, edge: u32) {
        let map = self.ebpf.get_mut().unwrap().map_mut("EDGES").unwrap();
        let mut map: Array<_, u32> = map.try_into().unwrap();
        map.set(slot, edge, 0).unwrap();
    }

    /// Gives a session services of the packet plane, in the record with this index.
    pub(crate) fn serve(&mut self, index: u32, record: &PacketServices) {
        let ebpf = self.ebpf.get_mut().unwrap();
        let map = ebpf.map_mut("PACKET_SERVICES").unwrap();
        let mut map: Array<_, Plain<PacketServices>> = map.try_into().unwrap();
        map.set(index, Plain(*record), 0).unwrap();
        let map = ebpf.map_mut("PACKET_SERVED").unwrap();
        let mut map: HashMap<_, Plain<ShortKey>, u32> = map.try_into().unwrap();
        map.insert(Plain(record.key.short()), index, 0).unwrap();
    }

    /// Returns a record of services of the packet plane.
    pub(crate) fn served(&self, index: u32) -> PacketServices {
        let ebpf = self.ebpf.read().unwrap();
        let map = ebpf.map("PACKET_SERVICES").unwrap();
        let map: Array<_, Plain<PacketServices>> = map.try_into().unwrap();
        map.get(&index, 0).unwrap().0
    }

    /// Runs a program on a packet that the stack divides into this number later. Returns its
    /// verdict, and the packet's departure time after it.
    pub(crate) fn run_divided(&self, way: Way, frame: &[u8], packets: u32) -> (u32, u64) {
        let mut context = [0; 42];
        context[41] = packets;
        let mut after = [0; 192];
        let verdict = self.run_in(way, frame, &context, Some(&mut after)).0;
        // `tstamp` of `struct __sk_buff` (linux/bpf.h), which the kernel writes as a whole.
        let departs = after[152..160].try_into().unwrap();
        (verdict, u64::from_ne_bytes(departs))
    }

    /// Changes the session of [`SLOT`].
    pub(crate) fn change(&mut self, f: impl FnOnce(&mut Session)) {
        let mut s = self.session(SLOT);
        f(&mut s);
        self.put(SLOT, &s);
    }

    pub(crate) fn flow(&mut self, key: FlowKey, slot: u32, path: Path) {
        self.flow_as(key, FlowRef::new(&key, slot, path));
    }

    pub(crate) fn flow_as(&mut self, key: FlowKey, value: FlowRef) {
        let map = self.ebpf.get_mut().unwrap().map_mut("FLOWS").unwrap();
        let mut map: HashMap<_, Plain<ShortKey>, Plain<FlowRef>> = map.try_into().unwrap();
        map.insert(Plain(key.short()), Plain(value), 0).unwrap();
    }

    pub(crate) fn find(&self, key: &FlowKey) -> Option<FlowRef> {
        let ebpf = self.ebpf.read().unwrap();
        let map = ebpf.map("FLOWS").unwrap();
        let map: HashMap<_, Plain<ShortKey>, Plain<FlowRef>> = map.try_into().unwrap();
        map.get(&Plain(key.short()), 0).ok().map(|v| v.0)
    }

    pub(crate) fn free(&mut self, slots: impl IntoIterator<Item = u32>) {
        let map = self.ebpf.get_mut().unwrap().map_mut("FREE").unwrap();
        let mut map: Queue<_, u32> = map.try_into().unwrap();
        for slot in slots {
            map.push(slot, 0).unwrap();
        }
    }

    pub(crate) fn rules(&mut self, rules: &[Rule]) {
        let mut all = Rules {
            len: rules.len() as u32,
            rules: Default::default(),
        };
        all.rules[..rules.len()].copy_from_slice(rules);
        let map = self.ebpf.get_mut().unwrap().map_mut("RULES").unwrap();
        let mut map: Array<_, Plain<Rules>> = map.try_into().unwrap();
        map.set(0, Plain(all), 0).unwrap();
    }

    /// Puts these rules in force, from this index on.
    pub(crate) fn policy(&mut self, first: u32, rules: &[PolicyRule]) {
        let generation = 7;
        let map = self.ebpf.get_mut().unwrap().map_mut("POLICY").unwrap();
        let mut map: Array<_, Plain<PolicyRule>> = map.try_into().unwrap();
        for (at, rule) in (first..).zip(rules) {
            let rule = PolicyRule {
                generation,
                ..*rule
            };
            map.set(at, Plain(rule), 0).unwrap();
        }
        let map = self.ebpf.get_mut().unwrap().map_mut("IN_FORCE").unwrap();
        let mut map: Array<_, u64> = map.try_into().unwrap();
        map.set(0, InForce { generation, first }.word(), 0).unwrap();
    }

    /// Gives the sessions of this process services: those of the run with this name. The kernel sends
    /// the packets of a test by a socket of the process that runs it.
    pub(crate) fn begin_run(&mut self, name: u32) {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let root = dysco_agent::groups::mounted().unwrap().unwrap();
        let folder = root.join(own.unwrap());
        let group = std::fs::metadata(folder).unwrap().ino();
        let map = self.ebpf.get_mut().unwrap().map_mut("RUNS").unwrap();
        let mut map: HashMap<_, u64, u32> = map.try_into().unwrap();
        map.insert(group, name, 0).unwrap();
    }

    /// Sets the number of SYNs that have been remembered before.
    pub(crate) fn syns_seen(&mut self, seen: u32) {
        let map = self.ebpf.get_mut().unwrap().map_mut("SYNS_SEEN").unwrap();
        let mut map: Array<_, u32> = map.try_into().unwrap();
        map.set(0, seen, 0).unwrap();
    }

    pub(crate) fn hop(&mut self, host: Addr, hop: &Hop) {
        let map = self.ebpf.get_mut().unwrap().map_mut("HOPS").unwrap();
        let mut map: HashMap<_, Plain<Addr>, Plain<Hop>> = map.try_into().unwrap();
        map.insert(Plain(host), Plain(*hop), 0).unwrap();
    }

    pub(crate) fn key(&mut self, id: u64, key: Key) {
        let map = self.ebpf.get_mut().unwrap().map_mut("KEYS").unwrap();
        let mut map: HashMap<_, u64, Plain<Shared>> = map.try_into().unwrap();
        let clock = Clock::default();
        map.insert(id, Plain(Shared { key, clock }), 0).unwrap();
    }

    /// Lets the entry of a slot await a SYN with this secret.
    pub(crate) fn awaits(&mut self, token: Token, slot: u32) {
        let map = self.ebpf.get_mut().unwrap().map_mut("JOINS").unwrap();
        let mut map: HashMap<_, Token, u32> = map.try_into().unwrap();
        map.insert(token, slot, 0).unwrap();
    }

    /// Adds an address of the host.
    pub(crate) fn own(&mut self, address: Addr) {
        let map = self.ebpf.get_mut().unwrap().map_mut("OWN").unwrap();
        let mut map: HashMap<_, Plain<Addr>, u8> = map.try_into().unwrap();
        map.insert(Plain(address), 1, 0).unwrap();
    }

    pub(crate) fn count(&self, c: Counter) -> u64 {
        let ebpf = self.ebpf.read().unwrap();
        let map = ebpf.map("COUNTERS").unwrap();
        let map: PerCpuArray<_, u64> = map.try_into().unwrap();
        map.get(&(c as u32), 0).unwrap().iter().sum()
    }

    /// Events since the last call.
    pub(crate) fn events(&mut self) -> Vec<(EventKind, u32)> {
        let map = self.ebpf.get_mut().unwrap().map_mut("EVENTS").unwrap();
        let mut ring: RingBuf<_> = map.try_into().unwrap();
        let mut all = Vec::new();
        while let Some(item) = ring.next() {
            let word = |i: usize| u32::from_ne_bytes(item[i..i + 4].try_into().unwrap());
            all.push((EventKind::from_word(word(0)).unwrap(), word(4)));
        }
        all
    }
}

fn classifier<'a>(ebpf: &'a Ebpf, name: &str) -> &'a SchedClassifier {
    ebpf.program(name).unwrap().try_into().unwrap()
}
