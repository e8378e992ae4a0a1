//! [`BlktraceReader`]: reads the trace file of one core, record by record.
//!
//! The reader does not trust the file: it checks every length, and the largest possible payload
//! (65,535 bytes) bounds its memory. After an error it returns no more records.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::record::{BlktraceHeader, ByteOrder};
use super::{BlktraceRecord, MAGIC, RECORD_BYTES, VERSION};

/// The reason why a file cannot be read further. `at` is the offset of the record.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the trace at byte {at}")]
    Io {
        /// Offset in the file, in bytes.
        at: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// There is no record where one must begin.
    #[error(
        "no blktrace record at byte {at}: it begins with {found:#010x}, not with {MAGIC:#010x} \
         and a version"
    )]
    Magic {
        /// Offset in the file, in bytes.
        at: u64,
        /// The word found there, in the byte order of the file; for the first record, little
        /// endian.
        found: u32,
    },
    /// The version is not supported.
    #[error("the blktrace record at byte {at} has version {found}; only {VERSION} is known")]
    Version {
        /// Offset in the file, in bytes.
        at: u64,
        /// The version.
        found: u8,
    },
    /// The file ends inside a record.
    #[error("the trace ends inside the record at byte {at}: {missing} bytes are missing")]
    Truncated {
        /// Offset in the file, in bytes.
        at: u64,
        /// Number of missing bytes of the record.
        missing: usize,
    },
    /// The payload of a record does not match its action.
    #[error(
        "the blktrace record at byte {at} has {bytes} bytes of payload, which does not fit its action"
    )]
    Payload {
        /// Offset in the file, in bytes.
        at: u64,
        /// Length of the payload.
        bytes: usize,
    },
}

/// Reads records of either byte order, in file order.
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
    /// [`ReadError::Io`] if the file cannot be opened. Its contents are checked while they are
    /// read.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        match File::open(path) {
            Ok(file) => Ok(BlktraceReader::new(BufReader::new(file))),
            Err(source) => Err(ReadError::Io { at: 0, source }),
        }
    }
}

impl<R: Read> BlktraceReader<R> {
    /// Creates a reader of `input`. It reads in small pieces: wrap a file in a `BufReader`.
    pub fn new(input: R) -> BlktraceReader<R> {
        BlktraceReader { input, at: 0, order: None, payload: Vec::new(), is_finished: false }
    }

    fn record(&mut self) -> Result<Option<BlktraceRecord>, ReadError> {
        let at = self.at;
        let mut bytes = [0; RECORD_BYTES];
        let got = self.fill(&mut bytes)?;
        if got == 0 {
            return Ok(None);
        }
        // A wrong magic number is a better diagnosis than the length of the missing part.
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
        let head = BlktraceHeader::decode(&bytes, order);
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

    /// Reads until `bytes` is full or the file ends. Returns the number of bytes read.
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
    type Item = Result<BlktraceRecord, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished {
            return None;
        }
        let record = self.record().transpose();
        self.is_finished = !matches!(record, Some(Ok(_)));
        record
    }
}
