//! [`PortDescriptor`]: what a port is made of whose host is in another process, on the way there.
//!
//! | descriptor | what it is |
//! |---|---|
//! | 0 | memory that the drive shows: controller registers; whether the drive's runner sleeps |
//! | 1 | memory of the doorbells, and flags of the host's runners behind them |
//! | 2 | memory of the admin queues, registration 0 |
//! | 3 | socket that wakes the drive's runner |
//! | 4 … | a socket for each interrupt vector, which wakes the host's |
//!
//! Before them goes a header of [`PortDescriptor::HEADER_BYTES`] bytes: four of magic, the version and the
//! number of vectors, two bytes each, little endian.

use std::io;
use std::os::fd::OwnedFd;

use crate::{PortLimits, SharedMemoryError};

const MAGIC: [u8; 4] = *b"SLPT";
const VERSION: u16 = 1;
/// Descriptors before those of the vectors.
const FIRST_VECTOR: usize = 4;

/// What [`Port::take_descriptor`](crate::Port::take_descriptor) gives out and [`Port::join`](crate::Port::join) puts
/// together.
#[derive(Debug)]
pub struct PortDescriptor {
    pub(crate) published: OwnedFd,
    pub(crate) doorbells: OwnedFd,
    pub(crate) queues: OwnedFd,
    pub(crate) drive: OwnedFd,
    pub(crate) vectors: Vec<OwnedFd>,
}

/// Why a port cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The other side is of another version, or no port.
    #[error("these are not the parts of a port of version {VERSION}: {header:02x?}")]
    Header {
        /// What came.
        header: [u8; PortDescriptor::HEADER_BYTES],
    },
    /// Something is missing, or is more than there should be.
    #[error("a port with {vectors} interrupt vectors has {expected} descriptors, not {found}")]
    Descriptors {
        /// Interrupt vectors that the header names.
        vectors: u16,
        /// Descriptors that go with them.
        expected: usize,
        /// Descriptors that came.
        found: usize,
    },
    /// A part's memory cannot be mapped.
    #[error("the {what} of the port: {source}")]
    Memory {
        /// Which part.
        what: &'static str,
        /// Why.
        source: SharedMemoryError,
    },
    /// A part's memory is too short for what it is.
    #[error("the {what} of the port are {bytes} bytes, less than {least}")]
    Short {
        /// Which part.
        what: &'static str,
        /// Bytes.
        bytes: usize,
        /// Bytes that it should have at least.
        least: usize,
    },
}

impl PortDescriptor {
    /// Bytes of the header.
    pub const HEADER_BYTES: usize = 8;
    /// Descriptors at most.
    pub const MAX_DESCRIPTORS: usize = FIRST_VECTOR + PortLimits::MAX_VECTORS as usize;

    /// Header and descriptors, to be sent in this order.
    pub fn into_message(self) -> ([u8; PortDescriptor::HEADER_BYTES], Vec<OwnedFd>) {
        let mut header = [0; PortDescriptor::HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        header[6..].copy_from_slice(&(self.vectors.len() as u16).to_le_bytes());
        let mut descriptors = vec![self.published, self.doorbells, self.queues, self.drive];
        descriptors.extend(self.vectors);
        (header, descriptors)
    }

    /// What was received.
    ///
    /// # Errors
    /// [`JoinError::Header`], [`JoinError::Descriptors`].
    pub fn from_message(
        header: [u8; PortDescriptor::HEADER_BYTES],
        descriptors: Vec<OwnedFd>,
    ) -> Result<PortDescriptor, JoinError> {
        let [m0, m1, m2, m3, v0, v1, n0, n1] = header;
        let vectors = u16::from_le_bytes([n0, n1]);
        if [m0, m1, m2, m3] != MAGIC
            || u16::from_le_bytes([v0, v1]) != VERSION
            || vectors > PortLimits::MAX_VECTORS
        {
            return Err(JoinError::Header { header });
        }
        let (expected, found) = (FIRST_VECTOR + usize::from(vectors), descriptors.len());
        let wrong = JoinError::Descriptors { vectors, expected, found };
        if found != expected {
            return Err(wrong);
        }
        let mut all = descriptors.into_iter();
        match (all.next(), all.next(), all.next(), all.next()) {
            (Some(shown), Some(doorbells), Some(queues), Some(drive)) => Ok(PortDescriptor {
                published: shown,
                doorbells,
                queues,
                drive,
                vectors: all.collect(),
            }),
            _ => Err(wrong),
        }
    }
}

pub(crate) fn clone_fd(region: &crate::SharedRegion) -> io::Result<OwnedFd> {
    let file = region.backing().ok_or(io::ErrorKind::Unsupported)?;
    Ok(file.try_clone()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_no_port_are_refused() {
        let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let fds = |n: usize| (0..n).map(|_| fd()).collect::<Vec<_>>();
        let parts = PortDescriptor {
            published: fd(),
            doorbells: fd(),
            queues: fd(),
            drive: fd(),
            vectors: fds(3),
        };
        let (header, all) = parts.into_message();
        assert_eq!((&header, all.len()), (b"SLPT\x01\0\x03\0", 7));
        assert_eq!(PortDescriptor::from_message(header, all).unwrap().vectors.len(), 3);
        for found in [0, 3, 6, 8] {
            let error = PortDescriptor::from_message(header, fds(found)).unwrap_err();
            assert!(matches!(error, JoinError::Descriptors { expected: 7, .. }), "{error}");
        }
        for (at, byte) in [(0, b'T'), (4, 2), (5, 1), (7, 1)] {
            let mut other = header;
            other[at] = byte;
            let error = PortDescriptor::from_message(other, fds(7)).unwrap_err();
            assert!(matches!(error, JoinError::Header { .. }), "{error}");
        }
    }
}
