//! Loads the programs without attaching them.

use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};

/// The programs and their maps, for one test alone.
pub struct Programs {
    pub ebpf: Ebpf,
}

impl Programs {
    pub fn load() -> Programs {
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("FLOWS", 64)
            .map_max_entries("SESSIONS", 32)
            .map_max_entries("FREE", 32)
            .load(dysco_agent::object())
            .expect("the object loads; this test needs root");
        for name in ["dysco_ingress", "dysco_egress"] {
            let p: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
            if let Err(e) = p.load() {
                panic!("{name}: {e:?}");
            }
        }
        Programs { ebpf }
    }
}
