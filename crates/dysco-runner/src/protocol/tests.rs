use std::io::ErrorKind;
use std::os::fd::AsFd;

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn messages_arrive_as_they_were_with_their_descriptors() {
    let (client, runner) = Client::pair().unwrap();
    let requests = [
        Request::Put {
            session: u64::MAX,
            opener: "[2001:db8::1]:1".parse().unwrap(),
            other: "192.0.2.1:2".parse().unwrap(),
            pair: Some(Pair {
                id: [1; 16],
                peer: [192, 0, 2, 1].into(),
                beyond: End::Opener,
                secret: [2; 32],
            }),
            services: vec!["socks=target=[::1]:2".parse().unwrap()],
        },
        Request::Open { session: 1 },
        Request::Add {
            session: 1,
            next_to: End::Other,
            behind: Some("null".into()),
            services: vec!["count".parse().unwrap()],
        },
        Request::Join {
            session: 1,
            secret: [3; 32],
            begins: true,
            services: vec!["crypt".parse().unwrap()],
            leaves: vec!["compress".into()],
        },
        Request::Part {
            session: 1,
            services: vec!["count".into()],
        },
        Request::Take { session: 1 },
        Request::Release {
            session: 1,
            reset: true,
        },
        Request::Call {
            session: 1,
            service: "count".into(),
            id: 2,
            bytes: vec![0, 255],
        },
        Request::List,
    ];
    for request in &requests {
        client.send(request, &[client.as_fd()]).unwrap();
    }
    for request in requests {
        let (received, fds) = receive::<Request>(&runner).unwrap().unwrap();
        assert_eq!(received, request);
        assert_eq!(fds.len(), 1);
    }
    let report = Report::Answer {
        id: 1,
        result: Ok(Bytes(vec![1, 2])),
    };
    send(&runner, &report, &[]).unwrap();
    let ended = Report::Ended {
        session: 1,
        reason: Reason::Reset {
            end: End::Other,
            error: "gone".into(),
        },
    };
    send(&runner, &ended, &[]).unwrap();
    assert_eq!(client.recv().unwrap(), Some(report));
    assert_eq!(client.recv().unwrap(), Some(ended));
    assert_eq!(client.recv().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(runner);
    assert_eq!(client.recv().unwrap(), None);
}

#[test]
fn a_message_that_is_none_is_refused_and_the_next_one_taken() {
    let (client, runner) = Client::pair().unwrap();
    let long = vec![b' '; LONGEST + 1];
    for bad in [&b"{"[..], b"{\"request\":\"fly\"}", &long] {
        rustix::net::send(client.as_fd(), bad, rustix::net::SendFlags::empty()).unwrap();
    }
    client.send(&Request::List, &[]).unwrap();
    for _ in 0..3 {
        let error = receive::<Request>(&runner).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }
    let (request, _) = receive::<Request>(&runner).unwrap().unwrap();
    assert_eq!(request, Request::List);
    let call = Request::Call {
        session: 1,
        service: "count".into(),
        id: 2,
        bytes: vec![0; LONGEST],
    };
    let error = client.send(&call, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}
