//! Tests of `dysco_service_call` with the example program, and an API that answers. Needs a C
//! compiler.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use common::{called, linked};

/// Returns the program's output about a call, the request that the API got, and the session.
fn call(program: &Path, words: &[&str], answer: Option<&str>) -> (String, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let words = [&["127.0.0.1", &port], words].concat();
    let api = answer.map(|answer| (UnixListener::bind(&socket).unwrap(), answer));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| called(Command::new(program).args(&words), &socket));
        let (_, client) = server.accept().unwrap();
        let mut line = String::new();
        if let Some((api, answer)) = api {
            let (mut stream, _) = api.accept().unwrap();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
        let session = format!("{client}>127.0.0.1:{port}");
        (call.join().unwrap(), line.trim().to_owned(), session)
    })
}

#[test]
fn it_asks_the_local_api_about_its_own_session() {
    let dir = tempfile::tempdir().unwrap();
    let program = linked(dir.path(), "examples/service.c");
    let answer = |json: &str| {
        format!(r#"{{"reply":"service_answer","session":"1","service":"crypt","answer":{json}}}"#)
    };
    let failure = |code| format!(r#"{{"reply":"error","code":"{code}","what":"","why":""}}"#);
    let long = format!("\"{}\"", "x".repeat(100));
    for (reply, said) in [
        (
            answer(r#"{"rekeyed":true}"#),
            r#"16 {"rekeyed":true}"#.to_owned(),
        ),
        (answer("7"), "1 7".to_owned()),
        (answer(&long), format!("102 {}", &long[..63])),
        (failure("not_found"), format!("errno {}", libc::ENOENT)),
        (failure("refused"), format!("errno {}", libc::EOPNOTSUPP)),
        (failure("not_allowed"), format!("errno {}", libc::EACCES)),
        (failure("bad_request"), format!("errno {}", libc::EINVAL)),
        (String::new(), format!("errno {}", libc::EPROTO)),
    ] {
        let (heard, asked, session) = call(&program, &["crypt", "rekey"], Some(&reply));
        assert_eq!(heard, said);
        assert_eq!(
            asked,
            format!(
                r#"{{"request":"call_service","session":"{session}","service":"crypt","verb":"rekey"}}"#
            )
        );
    }
    let (heard, asked, _) = call(&program, &["shape", "rate", "\"5M\""], Some(&answer("1")));
    assert_eq!(heard, "1 1");
    assert!(
        asked.ends_with(r#","verb":"rate","argument":"5M"}"#),
        "{asked}"
    );
}

#[test]
fn it_asks_nobody_what_is_no_call() {
    let dir = tempfile::tempdir().unwrap();
    let program = linked(dir.path(), "examples/service.c");
    for words in [
        &["crypt\"", "rekey"][..],
        &["crypt", ""],
        &["crypt", "rekey", "{}\n{}"],
    ] {
        let (heard, ..) = call(&program, words, None);
        assert_eq!(heard, format!("errno {}", libc::EINVAL), "{words:?}");
    }
    let (heard, ..) = call(&program, &["crypt", "rekey"], None);
    assert_eq!(heard, format!("errno {}", libc::ENOTCONN));
}
