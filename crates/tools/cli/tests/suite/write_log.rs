//! A server whose path has a log: it is killed, and the next one has all durable writes.

// guarantee: B-50

use testkit::nbd_client::NbdClient;

use crate::served::{DRIVE, Server, in_file};

/// NBD_CMD_FLAG_FUA.
const FUA: u16 = 1;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

fn block(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK as usize / 8)
}

fn scenario(log: &str) -> String {
    let pmr = "[drive]\npmr = { size = \"1M\", store = \"10ns\", persist = \"1us\" }\n";
    format!("{}{log}", in_file(DRIVE).replace("[drive]\n", pmr))
}

#[test]
fn a_killed_server_leaves_durable_writes_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let with = scenario("[path]\nlog = \"1M\"\n");
    for round in 1..=3 {
        let server = Server::start(dir.path(), &with);
        let mut client = NbdClient::simple(&server.socket);
        for i in 0..BLOCKS {
            if round > 1 {
                let value = (round - 1) << 32 | i;
                assert_eq!(client.read(i * BLOCK, BLOCK as u32).unwrap(), block(value), "{i}");
            }
            let flags = if i % 2 == 0 { FUA } else { 0 };
            client.write_with(flags, i * BLOCK, &block(round << 32 | i)).unwrap();
        }
        client.flush().unwrap();
        server.kill();
    }
    // Without the log, and for clients with queue pairs of the drive, it is refused.
    let mut server = Server::launch(dir.path(), &scenario(""), &[]);
    assert!(!server.wait().success());
    assert!(server.stderr().contains("open the device with its own log"), "{}", server.stderr());
    let socket = dir.path().join("socket");
    let options = ["--socket", socket.to_str().unwrap()];
    let mut server = Server::launch(dir.path(), &with, &options);
    assert!(!server.wait().success());
    assert!(server.stderr().contains("has a log on the host"), "{}", server.stderr());
}
