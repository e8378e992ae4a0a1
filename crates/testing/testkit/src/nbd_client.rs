//! [`NbdClient`]: an NBD client with valid and invalid behavior. It is written from the specification and shares no
//! code with the server.
#![allow(missing_docs, reason = "names and values are those of the NBD protocol")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;

pub const ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const ERR_UNSUP: u32 = (1 << 31) + 1;
pub const ERR_INVALID: u32 = (1 << 31) + 3;
pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub const ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) + 8;
pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;

/// One reply of any form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple { error: u32, cookie: u64 },
    Chunk { flags: u16, kind: u16, cookie: u64, payload: Vec<u8> },
}

pub struct NbdClient {
    pub socket: UnixStream,
    pub structured: bool,
    cookie: u64,
}

pub fn be16(b: &[u8]) -> u16 {
    u16::from_be_bytes(b[..2].try_into().unwrap())
}
pub fn be32(b: &[u8]) -> u32 {
    u32::from_be_bytes(b[..4].try_into().unwrap())
}
pub fn be64(b: &[u8]) -> u64 {
    u64::from_be_bytes(b[..8].try_into().unwrap())
}

pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub fn info_data(name: &str, asked: &[u16]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&(asked.len() as u16).to_be_bytes());
    for kind in asked {
        out.extend_from_slice(&kind.to_be_bytes());
    }
    out
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        out.extend_from_slice(&(query.len() as u32).to_be_bytes());
        out.extend_from_slice(query.as_bytes());
    }
    out
}

impl NbdClient {
    /// Connects and sends nothing.
    pub fn connect(path: &Path) -> NbdClient {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        NbdClient { socket, structured: false, cookie: 1 }
    }

    /// Connects and receives the greeting.
    pub fn greeted(path: &Path) -> NbdClient {
        let mut client = NbdClient::connect(path);
        let hello = client.take(18).unwrap();
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(be16(&hello[16..]), 3, "FIXED_NEWSTYLE and NO_ZEROES");
        client.give(&3u32.to_be_bytes());
        client
    }

    /// Negotiates structured replies, `base:allocation`, block sizes, and the default export.
    pub fn transmission(path: &Path) -> NbdClient {
        let mut client = NbdClient::greeted(path);
        assert_eq!(client.option(8, &[]), [(ACK, vec![])]);
        client.structured = true;
        let contexts = client.option(10, &meta_data("", &["base:allocation"]));
        assert_eq!(contexts.last(), Some(&(ACK, vec![])));
        let go = client.option(7, &info_data("", &[3]));
        assert_eq!(go.last(), Some(&(ACK, vec![])));
        client
    }

    /// Negotiates simple replies only.
    pub fn simple(path: &Path) -> NbdClient {
        NbdClient::named(path, "")
    }

    /// Negotiates simple replies and the export of this name.
    pub fn named(path: &Path, name: &str) -> NbdClient {
        let mut client = NbdClient::greeted(path);
        let go = client.option(7, &info_data(name, &[3]));
        assert_eq!(go.last(), Some(&(ACK, vec![])));
        client
    }

    pub fn give(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns whether the server has closed the connection.
    pub fn is_dropped(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    pub fn send_option(&mut self, kind: u32, length: u32, data: &[u8]) {
        let mut out = b"IHAVEOPT".to_vec();
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(data);
        self.give(&out);
    }

    /// Sends an option and receives all its replies.
    pub fn option(&mut self, kind: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(kind, data.len() as u32, data);
        self.option_replies(kind)
    }

    pub fn option_replies(&mut self, kind: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let head = self.take(20).unwrap();
            assert_eq!(be64(&head), 0x0003_e889_0455_65a9);
            assert_eq!(be32(&head[8..]), kind);
            let reply = be32(&head[12..]);
            let data = self.take(be32(&head[16..]) as usize).unwrap();
            replies.push((reply, data));
            if reply == ACK || reply >> 31 == 1 {
                return replies;
            }
        }
    }

    /// A reply; `read` is the length of a read that a simple reply would carry.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let head = self.take(16)?;
        match be32(&head) {
            0x6744_6698 => Ok(Reply::Simple { error: be32(&head[4..]), cookie: be64(&head[8..]) }),
            0x668e_33ef => {
                let length = be32(&self.take(4)?) as usize;
                Ok(Reply::Chunk {
                    flags: be16(&head[4..]),
                    kind: be16(&head[6..]),
                    cookie: be64(&head[8..]),
                    payload: self.take(length)?,
                })
            }
            other => panic!("a reply that starts with {other:#x}"),
        }
    }

    pub fn request(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> u64 {
        self.cookie += 1;
        let cookie = self.cookie;
        self.give(&request(kind, flags, cookie, offset, length));
        cookie
    }

    /// Waits for the only reply to the only request in flight.
    pub fn result(&mut self, cookie: u64) -> Result<Vec<u8>, u32> {
        match self.reply().unwrap() {
            Reply::Simple { error, cookie: named } => {
                assert_eq!(named, cookie);
                if error == 0 { Ok(Vec::new()) } else { Err(error) }
            }
            Reply::Chunk { flags, kind, cookie: named, payload } => {
                assert!(self.structured, "a chunk only when negotiated");
                assert_eq!((named, flags), (cookie, 1), "one chunk, the last");
                if kind >> 15 == 0 {
                    return Ok(payload);
                }
                let text = usize::from(be16(&payload[4..]));
                assert_eq!(payload.len(), 6 + text);
                assert!(std::str::from_utf8(&payload[6..]).is_ok_and(|t| !t.is_empty()));
                Err(be32(&payload))
            }
        }
    }

    /// Executes a request without payload in either direction.
    pub fn command(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> Result<(), u32> {
        let cookie = self.request(kind, flags, offset, length);
        self.result(cookie).map(drop)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        let cookie = self.request(READ, 0, offset, length);
        let got = self.result(cookie)?;
        if !self.structured {
            return Ok(self.take(length as usize).unwrap());
        }
        assert_eq!(be64(&got), offset);
        assert_eq!(got.len(), 8 + length as usize);
        Ok(got[8..].to_vec())
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.write_with(0, offset, data)
    }

    pub fn write_with(&mut self, flags: u16, offset: u64, data: &[u8]) -> Result<(), u32> {
        let cookie = self.request(WRITE, flags, offset, data.len() as u32);
        self.give(data);
        self.result(cookie).map(drop)
    }

    pub fn flush(&mut self) -> Result<(), u32> {
        self.command(FLUSH, 0, 0, 0)
    }

    /// Returns the length and state of each extent.
    pub fn block_status(
        &mut self,
        flags: u16,
        offset: u64,
        length: u32,
    ) -> Result<Vec<(u32, u32)>, u32> {
        let cookie = self.request(BLOCK_STATUS, flags, offset, length);
        let got = self.result(cookie)?;
        assert_eq!((got.len() - 4) % 8, 0);
        Ok(got[4..].chunks(8).map(|d| (be32(d), be32(&d[4..]))).collect())
    }

    pub fn disconnect(mut self) {
        self.request(DISC, 0, 0, 0);
        assert!(self.is_dropped(), "the server closes after NBD_CMD_DISC");
    }
}
