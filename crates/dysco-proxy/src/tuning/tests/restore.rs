//! Restores that cannot put back all values, or follow an interrupted request.

use std::slice;

use super::*;

/// `net.ipv4.tcp_keepalive_time` has no limit, and the option of a socket has one.
#[test]
fn a_default_that_no_socket_can_be_set_to_is_put_back_to_the_nearest_value() {
    let connection = Connection::open();
    let (cookie, mut set) = connection.set(options());
    let idle = SocketOption::KeepaliveIdle;
    let of_idle = set.iter_mut().find(|tuned| tuned.option == idle).unwrap();
    of_idle.from = Value::Number(40_000);
    let wish = Wish::Restore { cookie, set };
    let back = connection.plan(wish.clone()).unwrap();
    let nearest = Change {
        option: idle,
        from: Value::Number(40_000),
        to: Value::Number(32_767),
    };
    assert_eq!(back.nearest, slice::from_ref(&nearest));
    done(&back);
    assert_eq!(connection.text(idle), "32767s");
    assert_eq!(connection.text(SocketOption::Rate), "off");
    // That is as far back as it can be put.
    let again = connection.plan(wish).unwrap();
    assert!(
        again.changes.is_empty() && again.own.is_empty(),
        "{again:?}"
    );
    assert_eq!(again.nearest, [nearest]);
}

#[test]
fn an_option_that_cannot_be_put_back_does_not_keep_the_others() {
    let connection = Connection::open();
    let (cookie, mut set) = connection.set(options());
    // The module of the congestion control before was removed.
    let congestion = SocketOption::Congestion;
    let of_it = set.iter_mut().find(|t| t.option == congestion).unwrap();
    of_it.from = Value::Name("nosuch".into());
    let plan = connection.plan(Wish::Restore { cookie, set }).unwrap();
    let carried = carry_out(&plan).unwrap();
    let failed: Vec<_> = carried.failed.iter().map(|(option, _)| *option).collect();
    assert_eq!(failed, [congestion]);
    assert_eq!(connection.text(SocketOption::Rate), "off");
    assert_eq!(connection.text(congestion), "reno");
}

/// A daemon may die between its record and the socket.
#[test]
fn the_value_of_the_request_before_an_interrupted_one_is_put_back() {
    let connection = Connection::open();
    let (cookie, mut set) = connection.set(options());
    for tuned in &mut set {
        if tuned.option == SocketOption::UserTimeout {
            tuned.or = Some(tuned.to.clone());
            tuned.to = Value::Number(90_000);
        }
    }
    let back = connection.plan(Wish::Restore { cookie, set }).unwrap();
    assert!(back.own.is_empty(), "{back:?}");
    done(&back);
    assert_eq!(connection.text(SocketOption::UserTimeout), "off");
}
