//! Statistics of drives, as administrators see them.

use share_proto::{Code, Message};
use user_io::remote::Admin;

use super::harness::{Server, name, table};

#[test]
fn every_connection_has_intervals_of_its_own() {
    let server = Server::start(table());
    let mut first = Admin::connect(&server.socket).unwrap();
    let reads = |admin: &mut Admin| {
        let drives = admin.stats().unwrap();
        assert_eq!(drives.len(), 1);
        assert_eq!(drives[0].0, name("d"));
        drives[0].1.requests.reads
    };
    assert_eq!(reads(&mut first), 1);
    assert_eq!(reads(&mut first), 2);
    let mut second = Admin::connect(&server.socket).unwrap();
    assert_eq!(reads(&mut second), 1);
    assert_eq!(reads(&mut first), 3);
    drop(server);
    // The server reports why it closes the connection.
    let error = second.stats().unwrap_err();
    assert_eq!(error.protocol_error().map(|r| r.code), Some(Code::Stopping), "{error}");
}

#[test]
fn statistics_are_asked_for_after_hello_and_end_with_the_drives() {
    let server = Server::start(table());
    match server.ask(&[Message::Stats { index: 0 }]) {
        Message::Disconnect(refusal) => assert_eq!(refusal.code, Code::Order),
        other => panic!("{other:?}"),
    }
    for index in [1, u32::MAX] {
        let answer = server.ask(&[Message::Hello, Message::Stats { index }]);
        assert_eq!(answer, Message::Done { count: index.into() });
    }
    let answer = server.ask(&[Message::Hello, Message::Stats { index: 0 }]);
    assert!(matches!(answer, Message::Interval { .. }), "{answer:?}");
    // A message that only servers send closes the connection.
    match server.ask(&[Message::Hello, answer]) {
        Message::Disconnect(refusal) => assert_eq!(refusal.code, Code::Order),
        other => panic!("{other:?}"),
    }
}
