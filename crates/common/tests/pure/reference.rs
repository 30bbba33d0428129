//! A slow and obvious rewrite of a TCP header: it decodes the options into a list, changes the
//! list, and encodes it again. It shares no code with the tested rewrite, and has no shortcuts.

use dysco_common::tcp::{ACK, Edit, Header, edit};

/// One option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Opt {
    Nop,
    Sack(Vec<(u32, u32)>),
    Timestamps(u32, u32),
    /// Any other kind, or a length that its kind does not have.
    Other(u8, Vec<u8>),
    /// End of the list, and the bytes after it.
    End(Vec<u8>),
}

/// Decodes option bytes, or returns `None` if they are malformed.
pub(crate) fn parse(mut b: &[u8]) -> Option<Vec<Opt>> {
    let mut list = Vec::new();
    while let Some((&kind, rest)) = b.split_first() {
        match kind {
            0 => {
                list.push(Opt::End(rest.to_vec()));
                return Some(list);
            }
            1 => {
                list.push(Opt::Nop);
                b = rest;
                continue;
            }
            _ => {}
        }
        let len = usize::from(*rest.first()?);
        if len < 2 || len > b.len() {
            return None;
        }
        let body = &b[2..len];
        list.push(match (kind, body.len()) {
            (5, 8 | 16 | 24 | 32) => {
                Opt::Sack(body.chunks(8).map(|c| (be(&c[..4]), be(&c[4..]))).collect())
            }
            (8, 8) => Opt::Timestamps(be(&body[..4]), be(&body[4..])),
            _ => Opt::Other(kind, body.to_vec()),
        });
        b = &b[len..];
    }
    Some(list)
}

/// Encodes the options again.
pub(crate) fn serialize(list: &[Opt]) -> Vec<u8> {
    let mut out = Vec::new();
    for o in list {
        match o {
            Opt::Nop => out.push(1),
            Opt::Sack(blocks) => {
                out.extend([5, 2 + 8 * blocks.len() as u8]);
                for (l, r) in blocks {
                    out.extend(l.to_be_bytes());
                    out.extend(r.to_be_bytes());
                }
            }
            Opt::Timestamps(val, ecr) => {
                out.extend([8, 10]);
                out.extend(val.to_be_bytes());
                out.extend(ecr.to_be_bytes());
            }
            Opt::Other(kind, body) => {
                out.extend([*kind, 2 + body.len() as u8]);
                out.extend(body);
            }
            Opt::End(rest) => {
                out.push(0);
                out.extend(rest);
            }
        }
    }
    out
}

fn be(b: &[u8]) -> u32 {
    b.iter().fold(0, |v, b| v << 8 | u32::from(*b))
}

fn edge(v: u32, e: &Edit) -> u32 {
    let moved = v.wrapping_add(e.sack_add);
    let beyond = (moved.wrapping_sub(e.sack_limit) as i32) > 0;
    if e.strip & edit::LIMIT_SACK != 0 && beyond {
        e.sack_limit
    } else {
        moved
    }
}

fn changed(o: Opt, e: &Edit) -> Vec<Opt> {
    match o {
        Opt::Sack(blocks) if e.strip & edit::SACK != 0 => vec![Opt::Nop; 2 + 8 * blocks.len()],
        Opt::Sack(blocks) => vec![Opt::Sack(
            blocks
                .into_iter()
                .map(|(l, r)| (edge(l, e), edge(r, e)))
                .collect(),
        )],
        Opt::Timestamps(..) if e.strip & edit::TIMESTAMPS != 0 => vec![Opt::Nop; 10],
        Opt::Timestamps(val, ecr) => {
            let ecr = if e.flags & ACK != 0 {
                ecr.wrapping_add(e.tsecr_add)
            } else {
                ecr
            };
            vec![Opt::Timestamps(val.wrapping_add(e.tsval_add), ecr)]
        }
        Opt::Other(3, body) if body.len() == 1 && e.wscale > 0 => {
            vec![Opt::Other(3, vec![e.wscale as u8 - 1])]
        }
        other => vec![other],
    }
}

/// Returns the header after the edit, or `None` if its options are malformed.
pub(crate) fn rewrite(header: &[u8], e: &Edit) -> Option<Vec<u8>> {
    let options: Vec<Opt> = parse(&header[20..])?
        .into_iter()
        .flat_map(|o| changed(o, e))
        .collect();
    let mut out = Vec::new();
    out.extend(e.sport.to_ne_bytes());
    out.extend(e.dport.to_ne_bytes());
    out.extend(e.seq.to_be_bytes());
    if e.flags & ACK != 0 {
        out.extend(e.ack.to_be_bytes());
    } else {
        out.extend(&header[8..12]);
    }
    out.extend([header[12], e.flags]);
    out.extend(e.window.to_be_bytes());
    out.extend(&header[16..20]);
    out.extend(serialize(&options));
    Some(out)
}

/// Returns the Internet checksum's sum, folded (RFC 1071), in the obvious way.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut s = 0u32;
    for c in bytes.chunks(2) {
        s += u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0));
        s = (s & 0xffff) + (s >> 16);
    }
    s as u16
}

/// Returns the bytes in the buffer that the tested code uses.
pub(crate) fn buffer(bytes: &[u8]) -> Header {
    let mut h = Header::zeroed();
    h.0[..bytes.len()].copy_from_slice(bytes);
    h
}
