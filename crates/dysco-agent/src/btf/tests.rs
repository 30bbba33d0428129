#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use super::*;

/// Types that are added one by one.
#[derive(Default)]
struct Made {
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Made {
    fn name(&mut self, name: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if name.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(name.bytes().chain([0]));
        at
    }

    fn add(&mut self, name: &str, info: u32, size: u32, extra: &[u32]) {
        let name = self.name(name);
        let words = [name, info, size];
        let words = words.iter().chain(extra).flat_map(|w| w.to_ne_bytes());
        self.types.extend(words);
    }

    fn members(&mut self, all: &[(&str, u32, u32)]) -> Vec<u32> {
        let word = |(name, of, at): &(&str, u32, u32)| [self.name(name), *of, *at];
        all.iter().flat_map(word).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut all = MAGIC.to_ne_bytes().to_vec();
        all.extend([1, 0]);
        let header = [24, 0, types, types, strings];
        all.extend(header.iter().flat_map(|w: &u32| w.to_ne_bytes()));
        all.extend(&self.types);
        all.extend(&self.strings);
        all
    }
}

/// 1: u32, 2: inner { u32 a; union { u32 b; struct { u16 lo:4; } } },
/// 3: the union, 4: bit fields, 5: typedef of 2, 6: outer { u32 x; inner_t y; u32 z[3] }.
fn made() -> Vec<u8> {
    let mut m = Made::default();
    m.add("u32", kind::INT << 24, 4, &[32]);
    let inner = m.members(&[("a", 1, 0), ("", 3, 32)]);
    m.add("inner", kind::STRUCT << 24 | 2, 8, &inner);
    let union = m.members(&[("b", 1, 0), ("", 4, 0)]);
    m.add("", kind::UNION << 24 | 2, 4, &union);
    let fields = m.members(&[("lo", 1, 4 << 24 | 3), ("hi", 1, 9 << 24 | 7)]);
    m.add("", 1 << 31 | kind::STRUCT << 24 | 2, 4, &fields);
    m.add("inner_t", kind::TYPEDEF << 24, 2, &[]);
    let outer = m.members(&[("x", 1, 0), ("y", 5, 32), ("z", 7, 96)]);
    m.add("outer", kind::STRUCT << 24 | 3, 24, &outer);
    m.add("", kind::ARRAY << 24, 0, &[1, 1, 3]);
    m.bytes()
}

#[test]
fn members_are_found_through_names_and_nameless_ones() {
    let bytes = made();
    let btf = Btf::parse(&bytes).unwrap();
    let at = |path: &[&str]| btf.member("outer", path).map(|m| (m.offset, m.bits));
    assert_eq!(btf.size("outer"), Some(24));
    assert_eq!(at(&["x"]), Some((0, 32)));
    assert_eq!(at(&["y", "a"]), Some((32, 32)));
    assert_eq!(at(&["y", "b"]), Some((64, 32)));
    assert_eq!(at(&["y", "lo"]), Some((67, 4)));
    assert_eq!(at(&["y", "hi"]), Some((71, 9)));
    assert_eq!(at(&["z"]), Some((96, 96)));
    for missing in [&["w"][..], &["x", "a"], &["y", "c"]] {
        assert_eq!(at(missing), None, "{missing:?}");
    }
    assert_eq!(btf.member("none", &["x"]), None);
}

#[test]
fn what_is_cut_off_or_points_outside_is_no_panic() {
    let bytes = made();
    for length in 0..bytes.len() {
        let cut = &bytes[..length];
        assert!(Btf::parse(cut).is_none(), "{length}");
    }
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff] {
            let mut spoilt = bytes.clone();
            spoilt[at] = value;
            if let Some(btf) = Btf::parse(&spoilt) {
                btf.member("outer", &["y", "hi"]);
                btf.member("outer", &["z"]);
            }
        }
    }
}

#[test]
fn aya_finds_a_point_under_its_number_alone() {
    let mut m = Made::default();
    m.add("u32", kind::INT << 24, 4, &[32]);
    m.add("bpf_iter_tcp", kind::TYPEDEF << 24, 1, &[]);
    m.add("bpf_iter_tcp", kind::FUNC << 24, 0, &[]);
    m.add("btf_trace_it", kind::TYPEDEF << 24, 1, &[]);
    let bytes = m.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    let found = |point: Point, kind| point.described().id_by_type_name_kind(point.name, kind);
    let [function, typedef] = [aya_obj::btf::BtfKind::Func, aya_obj::btf::BtfKind::Typedef];
    assert_eq!(found(btf.iterator("bpf_iter_tcp"), function).unwrap(), 3);
    assert_eq!(found(btf.tracepoint("btf_trace_it"), typedef).unwrap(), 4);
    assert!(found(btf.tracepoint("btf_trace_other"), typedef).is_err());
}

#[test]
fn this_kernels_own() {
    let bytes = of_kernel().unwrap();
    let btf = Btf::parse(&bytes).unwrap();
    let port = ["inet_conn", "icsk_inet", "sk", "__sk_common", "skc_dport"];
    assert_eq!(btf.member("tcp_sock", &port).unwrap().bits, 16);
    assert_eq!(btf.member("tcp_sock", &["snd_una"]).unwrap().bits, 32);
    let scale = btf.member("tcp_sock", &["rx_opt", "snd_wscale"]);
    assert_eq!(scale.unwrap().bits, 4);
}
