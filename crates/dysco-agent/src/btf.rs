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
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FWD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// Greatest depth of typedefs of typedefs, and of arrays of arrays.
const DEPTH: usize = 16;

/// The type information of a kernel.
pub(crate) struct Btf<'a> {
    bytes: &'a [u8],
    strings: Range<usize>,
    /// Offset of each type's description, by the type's number less one.
    types: Vec<usize>,
    /// Structures by name.
    structs: HashMap<&'a str, u32>,
}

/// A function or tracepoint of the running kernel that a program attaches to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Number of its type; 0 if the kernel does not have it.
    number: u32,
    kind: u32,
    name: &'static str,
}

/// A member, in bits from the structure's beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
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
pub(crate) fn of_kernel() -> io::Result<Vec<u8>> {
    std::fs::read(KERNEL)
}

impl Point {
    /// Returns type information in which only this type has a name. aya asks for the kernel's to
    /// find the number, and takes longer to read it than the kernel takes to verify a program.
    pub(crate) fn described(self) -> aya::Btf {
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
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
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
    pub(crate) fn iterator(&self, name: &'static str) -> Point {
        self.point(kind::FUNC, name)
    }

    /// Returns the tracepoint that this typedef stands for.
    pub(crate) fn tracepoint(&self, name: &'static str) -> Point {
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
    pub(crate) fn size(&self, structure: &str) -> Option<u32> {
        Some(self.get(*self.structs.get(structure)?)?.size_or_type)
    }

    /// Returns a member, or a member of a member, by their names.
    pub(crate) fn member(&self, structure: &str, path: &[&str]) -> Option<Member> {
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
mod tests;
