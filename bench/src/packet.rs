//! What a packet costs in the programs: nanoseconds a run, by
//! BPF_PROG_TEST_RUN, the path through the stack left out.

use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader, Pod};
use dysco_common::{FlowKey, FlowRef, Path, Session, ShortKey, State, Translation};
use dysco_netns::idle;
use serde::Serialize;

use crate::instructions::Instructions;

/// Runs of a case at a time, and how often; the quickest time counts.
const REPEAT: u32 = 200_000;
const TIMES: u32 = 5;

/// One case.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// What was done with the packet.
    pub name: &'static str,
    /// Nanoseconds a packet.
    pub ns: f64,
    /// Instructions a packet, where the processor counts them.
    pub instructions: Option<f64>,
}

/// A value of a map.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Plain<T>(pub T);
// SAFETY: integers in `repr(C)`.
unsafe impl Pod for Plain<ShortKey> {}
// SAFETY: as above.
unsafe impl Pod for Plain<FlowRef> {}
// SAFETY: as above.
unsafe impl Pod for Plain<Session> {}

/// A translation that changes all there is.
pub const TRANSLATION: Translation = Translation {
    seq_out: 0x1234_5678,
    seq_in: 0x8765_4321,
    ts_out: 1000,
    ts_in: 2000,
    wscale_local: 7,
    wscale_local_far: 7,
    wscale_remote_far: 7,
    wscale_remote: 7,
    flags: 0,
};

/// Options of a packet as nearly all have them.
pub const TIMESTAMPS: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
/// What a program says of a packet that leaves by another way.
pub const REDIRECT: u32 = 7;
const SACK: &[u8] = &[
    1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 1, 0, 0, 0, 2, 0,
];

/// A program that does nothing: what the run takes by itself.
pub const EMPTY: &str = "empty";

/// All cases, one after the other.
pub fn measure() -> Result<Vec<Case>> {
    let identity = Translation::default();
    let (tracked, new) = (State::Tracked, State::NewPath);
    let usual = frame(TIMESTAMPS, 6, 0);
    let nothing = timed(|| Ok(idle::run(&usual, REPEAT)?));
    let (ns, instructions) = nothing.context("failed to measure a program that does nothing")?;
    let empty = Case {
        name: EMPTY,
        ns,
        instructions,
    };
    let ours = [
        ("not_tcp", None, tracked, identity, TIMESTAMPS, 17, 0),
        ("untracked", None, tracked, identity, TIMESTAMPS, 6, 0),
        (
            "tracked",
            Some(Path::Old),
            tracked,
            identity,
            TIMESTAMPS,
            6,
            0,
        ),
        (
            "translated_in",
            Some(Path::New),
            new,
            TRANSLATION,
            TIMESTAMPS,
            6,
            0,
        ),
        (
            "translated_in_1400_bytes",
            Some(Path::New),
            new,
            TRANSLATION,
            TIMESTAMPS,
            6,
            1400,
        ),
        (
            "translated_in_sack",
            Some(Path::New),
            new,
            TRANSLATION,
            SACK,
            6,
            0,
        ),
        (
            "identity_in",
            Some(Path::New),
            new,
            identity,
            TIMESTAMPS,
            6,
            0,
        ),
        (
            "identity_in_sack",
            Some(Path::New),
            new,
            identity,
            SACK,
            6,
            0,
        ),
    ]
    .into_iter()
    .map(
        |(name, path, state, translation, options, protocol, payload)| {
            let frame = frame(options, protocol, payload);
            let (ns, instructions) = run(path, state, translation, &frame)
                .with_context(|| format!("failed to measure {name}"))?;
            Ok(Case {
                name,
                ns,
                instructions,
            })
        },
    );
    std::iter::once(Ok(empty)).chain(ours).collect()
}

/// Each run sees the packet as the last one left it, so the session's two
/// five-tuples are the same: what is translated belongs to it again.
fn run(
    path: Option<Path>,
    state: State,
    translation: Translation,
    frame: &[u8],
) -> Result<(f64, Option<f64>)> {
    let mut ebpf = EbpfLoader::new()
        .map_max_entries("FLOWS", 16)
        .map_max_entries("SESSIONS", 16)
        .map_max_entries("FREE", 16)
        .load(dysco_agent::object())?;
    let key = key();
    if let Some(path) = path {
        let mut flows: HashMap<_, Plain<ShortKey>, Plain<FlowRef>> =
            ebpf.map_mut("FLOWS").context("no flow map")?.try_into()?;
        let value = FlowRef::new(&key, 1, path);
        flows.insert(Plain(key.short()), Plain(value), 0)?;
    }
    let mut sessions: Array<_, Plain<Session>> = ebpf
        .map_mut("SESSIONS")
        .context("no session map")?
        .try_into()?;
    let session = Session {
        state: state as u32,
        key,
        path: key,
        short: key.short(),
        short_path: key.short(),
        ifindex: 1,
        translation,
        ..Session::default()
    };
    sessions.set(1, Plain(session), 0)?;
    let program = ingress(&mut ebpf)?;
    program.load()?;
    timed(|| {
        let options = TestRunOptions {
            data_in: Some(frame),
            repeat: REPEAT,
            ..TestRunOptions::default()
        };
        Ok(program.test_run(options)?.duration)
    })
}

/// Nanoseconds of a run, and its instructions; `runs` makes [`REPEAT`] of them and
/// says how long one took.
fn timed(mut runs: impl FnMut() -> Result<Duration>) -> Result<(f64, Option<f64>)> {
    let mut best = Duration::MAX;
    let counter = Instructions::begin().ok();
    let count = || counter.as_ref().and_then(|counter| counter.so_far().ok());
    let mut fewest: Option<u64> = None;
    for _ in 0..TIMES {
        let before = count();
        best = best.min(runs()?);
        if let Some((from, to)) = before.zip(count()) {
            fewest = Some(fewest.map_or(to - from, |fewest| fewest.min(to - from)));
        }
    }
    let each = fewest.map(|all| all as f64 / f64::from(REPEAT));
    Ok((best.as_nanos() as f64, each))
}

fn ingress(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier> {
    Ok(ebpf
        .program_mut("dysco_ingress")
        .context("no program")?
        .try_into()?)
}

/// A frame from 10.0.0.2:80 to 10.0.0.1:4000.
fn frame(options: &[u8], protocol: u8, payload: usize) -> Vec<u8> {
    frame_of(&key(), options, protocol, payload)
}

fn key() -> FlowKey {
    FlowKey::new(([10, 0, 0, 1], 4000).into(), ([10, 0, 0, 2], 80).into())
}

/// A frame from the remote end of an IPv4 five-tuple to the local one. Its
/// checksums are nobody's business: the programs only change them.
pub fn frame_of(key: &FlowKey, options: &[u8], protocol: u8, payload: usize) -> Vec<u8> {
    let tcp = 20 + options.len();
    let len = (20 + tcp + payload) as u16;
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    f.extend(len.to_be_bytes());
    f.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    let (from, to) = (key.remote(), key.local());
    for end in [from, to] {
        if let std::net::IpAddr::V4(ip) = end.ip() {
            f.extend(ip.octets());
        }
    }
    f.extend(from.port().to_be_bytes());
    f.extend(to.port().to_be_bytes());
    f.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    f.extend([(tcp as u8 / 4) << 4, 16, 1, 0, 0, 0, 0, 0]);
    f.extend(options);
    f.resize(f.len() + payload, 0);
    f
}
