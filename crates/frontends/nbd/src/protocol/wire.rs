//! Constants (NBD "Values") and fixed-size messages of the protocol. All fields are big endian.

/// `NBDMAGIC` (NBD "Newstyle negotiation").
pub(crate) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts every option reply (NBD "Fixed newstyle negotiation").
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts every request (NBD "Request message").
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts a simple reply (NBD "Simple reply message").
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a chunk (NBD "Structured reply chunk message").
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option header: magic, option, length.
pub(crate) const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request header.
pub(crate) const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without data.
#[cfg(test)]
pub(crate) const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk's header.
#[cfg(test)]
pub(crate) const CHUNK_HEADER_BYTES: usize = 20;
/// A string is at most this long (NBD "Conventions").
pub(crate) const STRING_BYTES_MAX: usize = 4096;
/// Payloads below 2^25 bytes must be accepted (NBD "Block size constraints"): the largest payload
/// read into the pool. A client that sends more is disconnected.
pub(crate) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Handshake flags (server) and client flags, which have the same bits.
pub(crate) mod handshake_flag {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags.
pub(crate) mod transmission_flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Option types.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(crate) const ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) + 8;
    pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Information types of `NBD_REP_INFO`.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Request types.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Structured reply types, and the one reply flag.
pub(crate) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1 << 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
}

/// `base:allocation` states.
pub(crate) mod state {
    pub(crate) const HOLE: u32 = 1 << 0;
    pub(crate) const ZERO: u32 = 1 << 1;
}

/// Name of the only metadata context.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
/// Its id on every connection.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;

/// Error of a request (NBD "Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ErrorCode {
    Permission = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
}

/// A request header (NBD "Request message").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    /// The client's id for the request, which the reply repeats.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl RequestHeader {
    /// Parses a header. Returns `None` for a wrong magic: the stream is out of sync and cannot be
    /// parsed further.
    pub(crate) fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<RequestHeader> {
        let mut input = WireInput(bytes);
        if input.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(RequestHeader {
            flags: input.u16()?,
            kind: input.u16()?,
            cookie: input.u64()?,
            offset: input.u64()?,
            length: input.u32()?,
        })
    }
}

/// Reads big-endian fields from the front of a client's bytes; returns `None` at the end.
#[derive(Clone, Debug)]
pub(crate) struct WireInput<'a>(pub(crate) &'a [u8]);

impl<'a> WireInput<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a length and that many bytes.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_field_by_field() {
        let mut bytes = [0u8; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&command_flag::FUA.to_be_bytes());
        bytes[6..8].copy_from_slice(&command::WRITE.to_be_bytes());
        bytes[8..16].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
        bytes[16..24].copy_from_slice(&4096u64.to_be_bytes());
        bytes[24..].copy_from_slice(&512u32.to_be_bytes());
        let header = RequestHeader::parse(&bytes).unwrap();
        assert_eq!(
            header,
            RequestHeader {
                flags: 1,
                kind: 1,
                cookie: 0x0102_0304_0506_0708,
                offset: 4096,
                length: 512
            }
        );
        bytes[0] ^= 1;
        assert_eq!(RequestHeader::parse(&bytes), None);
    }

    #[test]
    fn input_that_ends_early_is_none() {
        let mut input = WireInput(&[0, 0, 0, 9, b'a']);
        assert_eq!(input.string(), None);
        assert_eq!(WireInput(&[1, 2, 3]).u32(), None);
        assert_eq!(WireInput(&[0, 0, 0, 1, b'a', b'b']).string(), Some(&b"a"[..]));
    }
}
