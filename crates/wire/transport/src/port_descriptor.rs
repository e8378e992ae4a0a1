//! [`PortDescriptor`]: the descriptors and header by which a host in another process joins a port.
//!
//! | descriptor | contents |
//! |---|---|
//! | 0 | memory that the drive publishes: controller registers of a drive that the host does not initialize by them, the parked flag of the drive's runner, and whether the drive requests stamps, and the costs of its persistent memory region |
//! | 1 | memory that the host writes: the registers of a drive that it initializes by them, doorbells and their stamps, the parked flags of the host's runners |
//! | 2 | memory of the admin queues, registration 0 |
//! | 3 | socket that wakes the drive's runner |
//! | 4 … | one socket per interrupt vector, which wakes the host's runner |
//! | the last two | the visible and the persistent image of the persistent memory region, if the host has it |
//!
//! A header of [`PortDescriptor::HEADER_BYTES`] bytes precedes them: four bytes of magic, the version
//! in two bytes, little endian, the number of vectors, and flags: 1 if the host initializes the drive by
//! its registers, 2 if it has the persistent memory region.

use std::io;
use std::os::fd::OwnedFd;

use crate::PortLimits;
use mem::{PersistentMemoryError, SharedImages, SharedMemoryError};

const MAGIC: [u8; 4] = *b"SLPT";
const VERSION: u16 = 1;
/// Number of descriptors before those of the vectors.
const FIRST_VECTOR: usize = 4;
/// Number of descriptors of a persistent memory region.
const REGION_DESCRIPTORS: usize = 2;
/// Flags of the header.
const HAS_REGISTERS: u8 = 1;
const HAS_REGION: u8 = 2;

/// The descriptors that [`Port::take_descriptor`](crate::Port::take_descriptor) returns and
/// [`Port::join`](crate::Port::join) consumes.
#[derive(Debug)]
pub struct PortDescriptor {
    /// Whether the host initializes the drive by its registers.
    pub(crate) has_registers: bool,
    pub(crate) published: OwnedFd,
    pub(crate) doorbells: OwnedFd,
    pub(crate) queues: OwnedFd,
    pub(crate) drive: OwnedFd,
    pub(crate) vectors: Vec<OwnedFd>,
    /// The persistent memory region, if the host has it.
    pub(crate) region: Option<SharedImages>,
}

/// The reason for which a port cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The header has another version, or does not belong to a port.
    #[error("the message is not the descriptor of a port of version {VERSION}: {header:02x?}")]
    Header {
        /// The received header.
        header: [u8; PortDescriptor::HEADER_BYTES],
    },
    /// Descriptors are missing or superfluous.
    #[error("a port with {vectors} interrupt vectors has {expected} descriptors, not {found}")]
    Descriptors {
        /// Interrupt vectors according to the header.
        vectors: u16,
        /// Expected number of descriptors.
        expected: usize,
        /// Received number of descriptors.
        found: usize,
    },
    /// A part's memory cannot be mapped.
    #[error("the {what} of the port: {source}")]
    Memory {
        /// Name of the part.
        what: &'static str,
        /// The error.
        source: SharedMemoryError,
    },
    /// The persistent memory region cannot be mapped.
    #[error("the persistent memory region of the port: {0}")]
    Region(#[source] PersistentMemoryError),
    /// A part's memory is too short.
    #[error("the {what} of the port are {bytes} bytes, less than {least}")]
    Short {
        /// Name of the part.
        what: &'static str,
        /// Size in bytes.
        bytes: usize,
        /// Minimum size in bytes.
        least: usize,
    },
}

impl PortDescriptor {
    /// Size of the header in bytes.
    pub const HEADER_BYTES: usize = 8;
    /// Maximum number of descriptors.
    pub const MAX_DESCRIPTORS: usize =
        FIRST_VECTOR + PortLimits::MAX_VECTORS as usize + REGION_DESCRIPTORS;

    /// Returns header and descriptors, to be sent in this order.
    pub fn into_message(self) -> ([u8; PortDescriptor::HEADER_BYTES], Vec<OwnedFd>) {
        let mut header = [0; PortDescriptor::HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        header[6] = self.vectors.len() as u8;
        let registers = if self.has_registers { HAS_REGISTERS } else { 0 };
        header[7] = registers | if self.region.is_some() { HAS_REGION } else { 0 };
        let mut descriptors = vec![self.published, self.doorbells, self.queues, self.drive];
        descriptors.extend(self.vectors);
        descriptors.extend(self.region.into_iter().flat_map(|r| [r.visible, r.persistent]));
        (header, descriptors)
    }

    /// Parses a received message.
    ///
    /// # Errors
    /// [`JoinError::Header`], [`JoinError::Descriptors`].
    pub fn from_message(
        header: [u8; PortDescriptor::HEADER_BYTES],
        descriptors: Vec<OwnedFd>,
    ) -> Result<PortDescriptor, JoinError> {
        let [m0, m1, m2, m3, v0, v1, vectors, flags] = header;
        let vectors = u16::from(vectors);
        if [m0, m1, m2, m3] != MAGIC
            || u16::from_le_bytes([v0, v1]) != VERSION
            || vectors > PortLimits::MAX_VECTORS
            || flags & !(HAS_REGISTERS | HAS_REGION) != 0
        {
            return Err(JoinError::Header { header });
        }
        let has_region = flags & HAS_REGION != 0;
        let expected =
            FIRST_VECTOR + usize::from(vectors) + if has_region { REGION_DESCRIPTORS } else { 0 };
        let found = descriptors.len();
        let wrong = JoinError::Descriptors { vectors, expected, found };
        if found != expected {
            return Err(wrong);
        }
        let mut all = descriptors.into_iter();
        let mut from_end = || all.next_back();
        let region = match has_region {
            true => from_end().zip(from_end()),
            false => None,
        };
        let region = region.map(|(persistent, visible)| SharedImages { visible, persistent });
        match (all.next(), all.next(), all.next(), all.next()) {
            (Some(shown), Some(doorbells), Some(queues), Some(drive)) => Ok(PortDescriptor {
                has_registers: flags & HAS_REGISTERS != 0,
                published: shown,
                doorbells,
                queues,
                drive,
                vectors: all.collect(),
                region,
            }),
            _ => Err(wrong),
        }
    }
}

pub(crate) fn clone_fd(region: &mem::SharedRegion) -> io::Result<OwnedFd> {
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
            has_registers: false,
            published: fd(),
            doorbells: fd(),
            queues: fd(),
            drive: fd(),
            vectors: fds(3),
            region: None,
        };
        let (header, all) = parts.into_message();
        assert_eq!((&header, all.len()), (b"SLPT\x01\0\x03\0", 7));
        assert_eq!(PortDescriptor::from_message(header, all).unwrap().vectors.len(), 3);
        for found in [0, 3, 6, 8] {
            let error = PortDescriptor::from_message(header, fds(found)).unwrap_err();
            assert!(matches!(error, JoinError::Descriptors { expected: 7, .. }), "{error}");
        }
        for (at, byte) in [(0, b'T'), (4, 2), (5, 1), (6, 129), (7, 4)] {
            let mut other = header;
            other[at] = byte;
            let error = PortDescriptor::from_message(other, fds(7)).unwrap_err();
            assert!(matches!(error, JoinError::Header { .. }), "{error}");
        }
        // A persistent memory region has two descriptors behind those of the vectors.
        let mut with_region = header;
        with_region[7] = HAS_REGION;
        let parts = PortDescriptor::from_message(with_region, fds(9)).unwrap();
        assert!((parts.vectors.len(), parts.region.is_some()) == (3, true));
        let (again, all) = parts.into_message();
        assert_eq!((again, all.len()), (with_region, 9));
        for found in [7, 8, 10] {
            let error = PortDescriptor::from_message(with_region, fds(found)).unwrap_err();
            assert!(matches!(error, JoinError::Descriptors { expected: 9, .. }), "{error}");
        }
    }
}
