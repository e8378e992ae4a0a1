//! [`BlktraceReader`]: one core's file, record by record.
//!
//! Nothing in a file is trusted: every length is checked, memory is bounded by the largest payload
//! there can be (65535 bytes), and after an error there are no more records.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::record::{ByteOrder, RecordHeader};
use super::{MAGIC, RECORD_BYTES, Record, VERSION};

/// Why a file cannot be read on. `at` is where in the file the record begins.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the trace at byte {at}")]
    Io {
        /// Byte of the file.
        at: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// There is no record where one must begin.
    #[error(
        "no blktrace record at byte {at}: it begins with {found:#010x}, not with {MAGIC:#010x} \
         and a version"
    )]
    Magic {
        /// Byte of the file.
        at: u64,
        /// What is there, in the byte order of the file; of the first record, little endian.
        found: u32,
    },
    /// A version that is not known.
    #[error("the blktrace record at byte {at} has version {found}; only {VERSION} is known")]
    Version {
        /// Byte of the file.
        at: u64,
        /// The version.
        found: u8,
    },
    /// The file ends inside a record.
    #[error("the trace ends inside the record at byte {at}: {missing} bytes are missing")]
    Truncated {
        /// Byte of the file.
        at: u64,
        /// How many bytes of the record are missing.
        missing: usize,
    },
    /// The payload of a record is not what its action has.
    #[error(
        "the blktrace record at byte {at} has {bytes} bytes of payload, which its action has not"
    )]
    Payload {
        /// Byte of the file.
        at: u64,
        /// How long the payload is.
        bytes: usize,
    },
}

/// Reads records, in the order of the file, of either byte order.
#[derive(Debug)]
pub struct BlktraceReader<R: Read> {
    input: R,
    at: u64,
    order: Option<ByteOrder>,
    payload: Vec<u8>,
    is_finished: bool,
}

impl BlktraceReader<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`ReadError::Io`] if it cannot be opened; what is in it is looked at when it is read.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        match File::open(path) {
            Ok(file) => Ok(BlktraceReader::new(BufReader::new(file))),
            Err(source) => Err(ReadError::Io { at: 0, source }),
        }
    }
}

impl<R: Read> BlktraceReader<R> {
    /// Reads from `input` in small pieces: a file wants a `BufReader` around it.
    pub fn new(input: R) -> BlktraceReader<R> {
        BlktraceReader { input, at: 0, order: None, payload: Vec::new(), is_finished: false }
    }

    fn record(&mut self) -> Result<Option<Record>, ReadError> {
        let at = self.at;
        let mut bytes = [0; RECORD_BYTES];
        let got = self.fill(&mut bytes)?;
        if got == 0 {
            return Ok(None);
        }
        // What is there of the magic number says more than how much of the record is missing.
        let [a, b, c, d, ..] = bytes;
        let word = [a, b, c, d];
        let order = match self.order.or(ByteOrder::from_magic(word)) {
            Some(order) if order.u32(word) & !0xff == MAGIC => order,
            _ if got < 4 => return Err(ReadError::Truncated { at, missing: RECORD_BYTES - got }),
            order => {
                let found = order.unwrap_or(ByteOrder::Little).u32(word);
                return Err(ReadError::Magic { at, found });
            }
        };
        self.order = Some(order);
        let version = order.u32(word) as u8;
        if version != VERSION {
            return Err(ReadError::Version { at, found: version });
        }
        if got < RECORD_BYTES {
            return Err(ReadError::Truncated { at, missing: RECORD_BYTES - got });
        }
        let head = RecordHeader::decode(&bytes, order);
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(head.payload_bytes, 0);
        let got = self.fill(&mut payload)?;
        if got < payload.len() {
            return Err(ReadError::Truncated { at, missing: payload.len() - got });
        }
        let record = head.with_payload(&payload, order);
        let record = record.ok_or(ReadError::Payload { at, bytes: payload.len() })?;
        self.payload = payload;
        Ok(Some(record))
    }

    /// Reads until `bytes` is full or the file ends; how much that was.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, ReadError> {
        let mut got = 0;
        while let Some(rest) = bytes.get_mut(got..).filter(|r| !r.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Io { at: self.at + got as u64, source }),
            }
        }
        self.at += got as u64;
        Ok(got)
    }
}

impl<R: Read> Iterator for BlktraceReader<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished {
            return None;
        }
        let record = self.record().transpose();
        self.is_finished = !matches!(record, Some(Ok(_)));
        record
    }
}
