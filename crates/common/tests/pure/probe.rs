//! Probes: the payload of opening packets shows the changes that a path makes.

use dysco_common::probe::{Change, LENGTH_PROBES, LengthProbe, PROBE, Probe, Said};
use dysco_common::session::{Offer, offer};
use dysco_common::tcp::{ACK, SYN};

const MSS: [u8; 4] = [2, 4, 5, 0xb4];
const WSCALE: [u8; 4] = [1, 3, 3, 7];
const SACK: [u8; 4] = [1, 1, 4, 2];

fn clock(tsval: u32, tsecr: u32) -> Vec<u8> {
    let numbers = [tsval, tsecr].map(u32::to_be_bytes);
    [&[1, 1, 8, 10][..], &numbers.concat()].concat()
}

fn header(seq: u32, ack: u32, flags: u8, options: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[4..8].copy_from_slice(&seq.to_be_bytes());
    header[8..12].copy_from_slice(&ack.to_be_bytes());
    header[12] = ((5 + options.len() / 4) << 4) as u8;
    header[13] = flags;
    [header, options.to_vec()].concat()
}

fn options(tsval: u32) -> Vec<u8> {
    [&MSS[..], &WSCALE, &SACK, &clock(tsval, 3)].concat()
}

/// Returns the changes of a SYN and its answer. The arguments are the options as sent, as they
/// arrived, and as they came back in the answer.
fn changes(sent: &[u8], heard: &[u8], answer: &[u8]) -> [Change; 2] {
    let mut probe = Probe::of_syn(1, sent);
    probe.heard[..heard.len()].copy_from_slice(heard);
    let seq = Said::of(heard, false).unwrap().seq;
    probe.answered = [900, seq.wrapping_add(1)].map(u32::to_be);
    let mut carried = [0; PROBE];
    carried.copy_from_slice(&probe.to_bytes());
    let probe = Probe::from_bytes(&carried).unwrap();
    probe.changes(answer, false).unwrap()
}

#[test]
fn a_path_that_does_nothing_shows_nothing() {
    let syn = header(u32::MAX, 0, SYN, &options(10));
    // With the window scale of the answering end.
    let mut its = options(10);
    its[7] = 2;
    let answer = header(900, 0, SYN | ACK, &its);
    assert_eq!(changes(&syn, &syn, &answer), [Change::default(); 2]);
}

/// A firewall that corrects the acknowledgement hides its change from a check of that number alone.
#[test]
fn other_numbers_are_found_though_the_answer_fits() {
    let syn = header(77, 0, SYN, &options(10));
    let there = header(77 + 5, 0, SYN, &options(10));
    let answer = header(900, 78, SYN | ACK, &options(10));
    let [up, down] = changes(&syn, &there, &answer);
    assert_eq!((up.seq, down.seq), (5, 0));
    assert_eq!(down.ack, 5u32.wrapping_neg());
    // A change in one direction only, then in the other.
    let answer = header(900 - 7, 78, SYN | ACK, &options(10));
    let [up, down] = changes(&syn, &syn, &answer);
    assert_eq!((up.seq, up.ack), (0, 0));
    assert_eq!((down.seq, down.ack), (7u32.wrapping_neg(), 0));
}

#[test]
fn clocks_and_options_are_found_in_either_direction() {
    let syn = header(77, 0, SYN, &options(10));
    let answer = |options: &[u8]| header(900, 78, SYN | ACK, options);
    let shifted = header(77, 0, SYN, &options(4));
    let [up, _] = changes(&syn, &shifted, &answer(&options(4)));
    assert_eq!(up.tsval, 6u32.wrapping_neg());
    let [_, down] = changes(&syn, &syn, &answer(&options(15)));
    assert_eq!((down.tsval, down.tsecr), (5, 0));

    let without = |at: std::ops::Range<usize>| {
        let mut stripped = options(10);
        stripped[at].fill(1);
        stripped
    };
    for (at, flag) in [
        (4..8, offer::WSCALE),
        (8..12, offer::SACK),
        (12..24, offer::TIMESTAMPS),
    ] {
        let stripped = without(at);
        let there = header(77, 0, SYN, &stripped);
        let [up, down] = changes(&syn, &there, &answer(&stripped));
        assert_eq!((up.options, down.options), (flag.into(), 0));
        let [up, down] = changes(&syn, &syn, &answer(&stripped));
        assert_eq!((up.options, down.options), (0, flag.into()));
    }
    let mut lowered = options(10);
    lowered[2..4].copy_from_slice(&1000u16.to_be_bytes());
    let [up, _] = changes(&syn, &header(77, 0, SYN, &lowered), &answer(&lowered));
    assert_eq!((up.mss, up.options), (1000, 0));
    // Without the option the MSS is the one that every host accepts.
    let none = header(77, 0, SYN, &without(0..4));
    let [up, _] = changes(&syn, &none, &answer(&without(0..4)));
    assert_eq!(up.mss, 536);
}

#[test]
fn what_is_no_probe_is_none() {
    assert_eq!(Probe::from_bytes(&[0; PROBE]), None);
    assert_eq!(LengthProbe::from_bytes(&[0; PROBE]), None);
    let probe = Probe::of_syn(1, &header(1, 0, SYN, &[])).to_bytes();
    assert_eq!(LengthProbe::from_bytes(&probe), None);
    // The header ends before its options do.
    assert_eq!(Said::of(&header(1, 0, SYN, &options(1))[..30], false), None);
    let cut = header(1, 0, SYN, &[8, 10, 0, 0]);
    assert_eq!(Said::of(&cut, false), None);
}

/// On another chain each end reports the changes of the other's packets.
#[test]
fn what_shows_the_length_tells_what_has_become_of_packets() {
    let seen = Change {
        seq: 3,
        mss: 1000,
        ..Change::default()
    };
    let probe = LengthProbe {
        magic: LENGTH_PROBES,
        heard: 1,
        sent: [10, 20, 30, 40],
        offered: Offer {
            mss: 1460,
            wscale: 7,
            flags: offer::WSCALE | offer::SACK | offer::TIMESTAMPS,
            ..Offer::default()
        },
        change: seen,
    };
    let mut carried = [0; PROBE];
    let bytes = probe.to_bytes();
    carried[..bytes.len()].copy_from_slice(&bytes);
    let probe = LengthProbe::from_bytes(&carried).unwrap();
    assert_eq!((probe.heard, probe.change), (1, seen));

    let came = |seq, ack, tsval| header(seq, ack, ACK, &clock(tsval, 40));
    let syn = Said::of(&header(1, 0, SYN, &options(10)), false).unwrap();
    let change = |header: &[u8], syn| probe.change(header, syn, false).unwrap();
    let none = Change::default();
    assert_eq!(change(&came(10, 20, 30), Some(&syn)), none);
    assert_eq!(change(&came(10, 20, 30), None), none);
    assert_eq!(change(&came(15, 20, 30), None).seq, 5);
    assert_eq!(change(&came(10, 19, 30), None).ack, u32::MAX);
    assert_eq!(change(&came(10, 20, 31), None).tsval, 1);
    let bare = header(10, 20, ACK, &[]);
    assert_eq!(change(&bare, None).options, u32::from(offer::TIMESTAMPS));
    let stripped = header(1, 0, SYN, &[&MSS[..], &WSCALE, &clock(10, 3)].concat());
    let stripped = Said::of(&stripped, false).unwrap();
    let options = change(&came(10, 20, 30), Some(&stripped)).options;
    assert_eq!(options, u32::from(offer::SACK));
}
