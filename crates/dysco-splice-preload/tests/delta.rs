//! Tests of `dysco_delta` with the example program, and an API that answers. Needs a C compiler.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;

use common::{called, linked};

#[test]
fn it_asks_the_local_api() {
    let dir = tempfile::tempdir().unwrap();
    let program = linked(dir.path(), "examples/delta.c");
    let socket = dir.path().join("api.sock");
    let v4 = ["10.1.0.5", "40000", "10.2.0.7", "443", "20", "-7"];
    let v6 = ["fd01::5", "40000", "fd02::7", "443", "0", "1"];
    assert_eq!(
        called(Command::new(&program).args(v4), &socket),
        format!("errno {}", libc::ENOTCONN)
    );
    let api = UnixListener::bind(&socket).unwrap();
    let failure = |code| format!(r#"{{"reply":"error","code":"{code}","what":"","why":""}}"#);
    let done = r#"{"reply":"delta","session":"1","to_server":20,"to_client":-7}"#;
    let of_v4 = r#"{"request":"delta","session":"10.1.0.5:40000>10.2.0.7:443","to_server":20,"to_client":-7}"#;
    let of_v6 = r#"{"request":"delta","session":"[fd01::5]:40000>[fd02::7]:443","to_server":0,"to_client":1}"#;
    for (words, asked, answer, said) in [
        (v4, of_v4, done.to_owned(), "told".to_owned()),
        (v6, of_v6, done.to_owned(), "told".to_owned()),
        (
            v4,
            of_v4,
            failure("refused"),
            format!("errno {}", libc::ERANGE),
        ),
        (
            v4,
            of_v4,
            failure("not_found"),
            format!("errno {}", libc::ENOENT),
        ),
        (
            v4,
            of_v4,
            failure("not_allowed"),
            format!("errno {}", libc::EACCES),
        ),
        (v4, of_v4, String::new(), format!("errno {}", libc::EPROTO)),
    ] {
        let heard = std::thread::scope(|scope| {
            let call = scope.spawn(|| called(Command::new(&program).args(words), &socket));
            let (mut stream, _) = api.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            assert_eq!(line.trim(), asked);
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
            call.join().unwrap()
        });
        assert_eq!(heard, said);
    }
    let nobody = ["nobody", "1", "10.2.0.7", "443", "0", "1"];
    assert_eq!(
        called(Command::new(&program).args(nobody), &socket),
        format!("errno {}", libc::EAFNOSUPPORT)
    );
}
