//! NBD clients that say anything, before the handshake, in it, and after it.

use std::io::Write;
use std::net::Shutdown;
use std::sync::OnceLock;

use testkit::choices::Choices;

use crate::common::{NbdClient, Served, request};

fn bytes(choices: &mut Choices, most: u64) -> Vec<u8> {
    (0..choices.below(most)).map(|_| choices.next_u64() as u8).collect()
}

/// A header of an option: with a magic that is mostly right, and a length that is mostly that of the data.
fn option(choices: &mut Choices) -> Vec<u8> {
    let data = bytes(choices, 64);
    let mut out = b"IHAVEOPT".to_vec();
    if choices.chance(0.1) {
        out[choices.below(8) as usize] ^= 1;
    }
    let length = if choices.chance(0.2) { choices.next_u64() as u32 } else { data.len() as u32 };
    out.extend_from_slice(&(choices.below(14) as u32).to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&data);
    out
}

/// A request of a kind that there may be, which mostly ends on the device.
fn command(choices: &mut Choices) -> Vec<u8> {
    let (kind, flags) = (choices.below(10) as u16, choices.below(32) as u16);
    let (offset, length) = match choices.below(4) {
        0 => (choices.next_u64(), choices.next_u64() as u32),
        _ => (512 * choices.below(1 << 15), 512 * choices.below(64) as u32),
    };
    let mut out = request(kind, flags, choices.next_u64(), offset, length);
    if choices.chance(0.1) {
        out[choices.below(28) as usize] ^= 1 << choices.below(8);
    }
    out.extend(bytes(choices, 600));
    out
}

/// A connection on which anything is said; afterwards a client that behaves is served.
pub fn talk(server: &Served, choices: &mut Choices) {
    let phase = choices.below(3);
    let mut client = match phase {
        0 => NbdClient::connect(&server.path),
        1 => NbdClient::greeted(&server.path),
        _ => NbdClient::transmission(&server.path),
    };
    for _ in 0..choices.below(12) {
        let said = match phase {
            _ if choices.chance(0.2) => bytes(choices, 200),
            0 | 1 => option(choices),
            _ => command(choices),
        };
        // The server may have dropped the connection.
        if client.socket.write_all(&said).is_err() {
            break;
        }
    }
    let _ = client.socket.shutdown(Shutdown::Both);
    let mut other = NbdClient::transmission(&server.path);
    assert!(other.read(0, 512).is_ok(), "a client that behaves is served");
}

/// Talks by a fuzzer's bytes, always to one server.
pub fn fuzz(bytes: &[u8]) {
    static SERVER: OnceLock<Served> = OnceLock::new();
    talk(SERVER.get_or_init(Served::small), &mut Choices::of(bytes));
}
