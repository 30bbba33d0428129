//! Positions of the members of a structure in the running kernel, from its type information
//! (BTF). Supports only as much of the format as needed: <https://docs.kernel.org/bpf/btf.html>.

use std::collections::HashMap;
use std::io;
use std::iter::repeat_n;
use std::ops::Range;

/// File with the running kernel's type information.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;

mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// Greatest depth of typedefs of typedefs, and of arrays of arrays.
const DEPTH: usize = 16;

/// The type information of a kernel.
pub struct Btf<'a> {
    bytes: &'a [u8],
    strings: Range<usize>,
    /// Offset of each type's description, by the type's number less one.
    types: Vec<usize>,
    /// Structures by name.
    structs: HashMap<&'a str, u32>,
}

/// A function or tracepoint of the running kernel that a program attaches to.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Number of its type; 0 if the kernel does not have it.
    number: u32,
    kind: u32,
    name: &'static str,
}

/// A member, in bits from the structure's beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Offset of its first bit.
    pub offset: u32,
    /// Number of bits.
    pub bits: u32,
}

/// A type's description.
#[derive(Clone, Copy)]
struct Type {
    at: usize,
    name: u32,
    kind: u32,
    count: u32,
    /// True if the members' offsets contain the sizes of bit fields.
    fields: bool,
    size_or_type: u32,
}

/// Reads the running kernel's type information.
pub fn of_kernel() -> io::Result<Vec<u8>> {
    std::fs::read(KERNEL)
}

impl Point {
    /// Returns type information in which only this type has a name. aya asks for the kernel's to
    /// find the number, and takes longer to read it than the kernel takes to verify a program.
    pub fn described(self) -> aya::Btf {
        if self.number == 0 {
            // aya reports that the kernel does not have it.
            return aya::Btf::new();
        }
        let unnamed = [0, kind::FWD << 24, 0];
        let before = repeat_n(unnamed, self.number as usize - 1);
        let types = before.chain([[1, self.kind << 24, 0]]).flatten();
        let strings = [b"\0", self.name.as_bytes(), b"\0"].concat();
        let length = self.number * 12;
        let header = [24, 0, length, length, strings.len() as u32];
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend(header.into_iter().chain(types).flat_map(u32::to_ne_bytes));
        bytes.extend(strings);
        aya::Btf::parse(&bytes, aya::Endianness::default()).unwrap_or_else(|_| aya::Btf::new())
    }
}

impl<'a> Btf<'a> {
    /// Reads the index of all types. Returns `None` unless the bytes are BTF of this byte order.
    pub fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
        let word = |at| word(bytes, at);
        let magic = bytes.get(..2)?;
        if u16::from_ne_bytes([magic[0], magic[1]]) != MAGIC {
            return None;
        }
        let header = word(4)? as usize;
        let section = |offset, length| -> Option<Range<usize>> {
            let start = header.checked_add(word(offset)? as usize)?;
            let end = start.checked_add(word(length)? as usize)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let (all, strings) = (section(8, 12)?, section(16, 20)?);
        let mut btf = Btf {
            bytes,
            strings,
            types: Vec::new(),
            structs: HashMap::new(),
        };
        let mut at = all.start;
        while at < all.end {
            let this = btf.described(at)?;
            btf.types.push(at);
            if this.kind == kind::STRUCT {
                let number = btf.types.len() as u32;
                btf.structs.insert(btf.string(this.name)?, number);
            }
            at = at.checked_add(12 + this.extra())?;
        }
        Some(btf)
    }

    /// Returns the iterator that this function stands for.
    pub fn iterator(&self, name: &'static str) -> Point {
        self.point(kind::FUNC, name)
    }

    /// Returns the tracepoint that this typedef stands for.
    pub fn tracepoint(&self, name: &'static str) -> Point {
        self.point(kind::TYPEDEF, name)
    }

    fn point(&self, kind: u32, name: &'static str) -> Point {
        let is_it = |at: &usize| {
            let of = self.described(*at).filter(|of| of.kind == kind);
            of.and_then(|of| self.string(of.name)) == Some(name)
        };
        let index = self.types.iter().position(is_it);
        let number = index.map_or(0, |index| index as u32 + 1);
        Point { number, kind, name }
    }

    /// Returns the size of a structure in bytes.
    pub fn size(&self, structure: &str) -> Option<u32> {
        Some(self.get(*self.structs.get(structure)?)?.size_or_type)
    }

    /// Returns a member, or a member of a member, by their names.
    pub fn member(&self, structure: &str, path: &[&str]) -> Option<Member> {
        let mut number = *self.structs.get(structure)?;
        let mut found = Member { offset: 0, bits: 0 };
        for name in path {
            let (inner, member) = self.find(number, name, 0)?;
            found = Member {
                offset: found.offset.checked_add(member.offset)?,
                bits: member.bits,
            };
            number = inner;
        }
        Some(found)
    }

    fn find(&self, number: u32, name: &str, depth: usize) -> Option<(u32, Member)> {
        let of = self.plain(number)?;
        if depth > DEPTH || !matches!(of.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        for i in 0..of.count as usize {
            let at = of.at + 12 + 12 * i;
            let [named, inner, packed] = [at, at + 4, at + 8].map(|at| word(self.bytes, at));
            let (named, inner, packed) = (named?, inner?, packed?);
            let (offset, bits) = match of.fields {
                true => (packed & 0x00ff_ffff, packed >> 24),
                false => (packed, 0),
            };
            if named == 0 {
                // The members of a nameless member belong to the outer structure.
                if let Some((inner, m)) = self.find(inner, name, depth + 1) {
                    let offset = offset.checked_add(m.offset)?;
                    return Some((inner, Member { offset, ..m }));
                }
            } else if self.string(named)? == name {
                let bits = match bits {
                    0 => self.bytes_of(inner, 0)?.checked_mul(8)?,
                    bits => bits,
                };
                return Some((inner, Member { offset, bits }));
            }
        }
        None
    }

    fn bytes_of(&self, number: u32, depth: usize) -> Option<u32> {
        let of = self.plain(number)?;
        match of.kind {
            kind::PTR => Some(8),
            kind::ARRAY if depth < DEPTH => {
                let inner = word(self.bytes, of.at + 12)?;
                let count = word(self.bytes, of.at + 20)?;
                self.bytes_of(inner, depth + 1)?.checked_mul(count)
            }
            kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::FLOAT | kind::ENUM64 => {
                Some(of.size_or_type)
            }
            _ => None,
        }
    }

    /// Returns the type behind typedefs and qualifiers.
    fn plain(&self, number: u32) -> Option<Type> {
        let mut of = self.get(number)?;
        for _ in 0..DEPTH {
            match of.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    of = self.get(of.size_or_type)?
                }
                _ => return Some(of),
            }
        }
        None
    }

    fn get(&self, number: u32) -> Option<Type> {
        let index = (number as usize).checked_sub(1)?;
        self.described(*self.types.get(index)?)
    }

    fn described(&self, at: usize) -> Option<Type> {
        let info = word(self.bytes, at + 4)?;
        Some(Type {
            at,
            name: word(self.bytes, at)?,
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            fields: info >> 31 != 0,
            size_or_type: word(self.bytes, at + 8)?,
        })
    }

    fn string(&self, offset: u32) -> Option<&'a str> {
        let start = self.strings.start.checked_add(offset as usize)?;
        let rest = self.bytes.get(start..self.strings.end)?;
        let end = rest.iter().position(|b| *b == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

impl Type {
    /// Returns the number of bytes that follow the description.
    fn extra(&self) -> usize {
        let count = self.count as usize;
        match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
            kind::ENUM | kind::FUNC_PROTO => 8 * count,
            _ => 0,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

#[cfg(test)]
mod tests {
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
}
