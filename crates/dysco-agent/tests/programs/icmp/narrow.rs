//! Errors that this host sends about segments too long for the next link.

use dysco_common::{Counter, State};
use nix::sched::{CloneFlags, unshare};

use super::{Error, error};
use crate::bench::{PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, Options, nets};
use crate::relay::{GIVEN, SENT, from_client, joined_in};

/// Returns programs in a network namespace of their own, whose only link has this MTU.
fn narrow(mtu: u32) -> Programs {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let words = ["link", "set", "lo", "mtu", &mtu.to_string()];
    let set = std::process::Command::new("ip")
        .args(words)
        .status()
        .unwrap();
    assert!(set.success());
    Programs::load()
}

/// Runs with a packet that exceeds the MTU of the next link: its end receives an error.
#[track_caller]
fn refused(p: &Programs, net: &Net, frame: &Frame, bytes: &[u8], mtu: u32) {
    let (verdict, got) = p.run(Way::In, bytes);
    assert_eq!(verdict, REDIRECT);
    let own = Error {
        from: net.local.ip(),
        to: net.remote.ip(),
        rest: mtu.to_be_bytes(),
        limit: 64,
        id: 0,
        ..error(net, frame)
    };
    // The program may choose the quoted checksum.
    let mut quoted = bytes[14..frame.l4() + 20].to_vec();
    let check = quoted.len() - 4;
    quoted[check..check + 2].copy_from_slice(&got[got.len() - 4..got.len() - 2]);
    // The kernel makes the Ethernet header.
    assert_eq!(got[14..], own.around(&mut quoted)[14..]);
}

#[test]
fn a_relaying_host_answers_what_its_next_link_does_not_take() {
    let mut p = narrow(1000);
    for net in nets() {
        for which in [Options::Timestamps, Options::Sack] {
            let overhead = from_client(&net, SENT, GIVEN, 0, which).bytes().len() - 14;
            let fits = from_client(&net, SENT, GIVEN, 1000 - overhead, which);
            let long = from_client(&net, SENT, GIVEN, 1001 - overhead, which);
            p = joined_in(p, &net, State::Relay);
            let (before, relayed) = (p.count(Counter::IcmpTooBig), p.count(Counter::Relayed));
            assert_eq!(p.run(Way::In, &fits.bytes()).0, REDIRECT);
            assert_eq!(p.count(Counter::Relayed), relayed + 1);
            // Complete, and with a checksum that is left to a device.
            refused(&p, &net, &long, &long.bytes(), 1000);
            refused(&p, &net, &long, &long.partial_bytes(), 1000);
            assert_eq!(p.count(Counter::IcmpTooBig), before + 2);
            assert_eq!(p.count(Counter::Relayed), relayed + 1);
            // Each segment of a super-packet counts by itself: it has 1000 bytes here.
            assert_eq!(p.run_super(Way::In, &long.bytes()).0, REDIRECT);
            assert_eq!(p.count(Counter::IcmpTooBig), before + 3);
        }
    }
}

/// A packet that the stack still receives is not compared with the link's MTU.
#[test]
fn in_two_paths_only_the_new_one_is_too_narrow() {
    let mut p = narrow(1000);
    for net in nets() {
        p = joined_in(p, &net, State::RelayTwoPaths);
        let long = from_client(&net, SENT, GIVEN, 1400, Options::Timestamps);
        assert_eq!(p.run(Way::In, &long.bytes()).0, PASS);
        let mut client = p.session(SLOT);
        (client.two.cut_set, client.cut_out) = (1, SENT);
        p.put(SLOT, &client);
        refused(&p, &net, &long, &long.bytes(), 1000);
    }
}
