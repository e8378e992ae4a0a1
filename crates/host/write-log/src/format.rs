//! The log's header and records, and the device's label, as bytes (`docs/format/log.md`).

use std::fmt;

use collections::{PutBytes, Reader, Seal, SliceWriter};

use crate::WriteLogError;
use crate::index::SectorRange;

/// Bytes of a line, of a header and of a record header.
pub(crate) const LINE_BYTES: usize = 64;
/// Bytes before the ring: two copies of the header.
pub(crate) const HEADER_BYTES: usize = 2 * LINE_BYTES;
/// Version of the log and of the label.
const VERSION: u16 = 1;
/// The CRC-32C of a line: its last four bytes.
const SEAL: Seal = Seal::of_bytes_before(LINE_BYTES - 4);
const LOG_MAGIC: [u8; 8] = *b"SLUICLOG";
const LABEL_MAGIC: [u8; 8] = *b"SLUICLBL";

/// The identity of a log, which is drawn when it is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogIdentity(pub [u8; 16]);

impl fmt::Display for LogIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for LogIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The header of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    /// The log was being opened: the device's label may have the generation before.
    pub(crate) is_opening: bool,
    pub(crate) sector_bytes: u32,
    pub(crate) identity: LogIdentity,
    pub(crate) generation: u64,
    /// Position of the oldest record.
    pub(crate) head: u64,
    /// Position of the record before the oldest one.
    pub(crate) previous: u64,
    /// Lines of the ring.
    pub(crate) lines: u32,
}

impl LogHeader {
    pub(crate) fn encode(&self) -> [u8; LINE_BYTES] {
        let mut bytes = [0; LINE_BYTES];
        let mut w = SliceWriter::new(&mut bytes);
        w.put(&LOG_MAGIC).put_u16(VERSION).put_u16(self.is_opening.into());
        w.put_u32(self.sector_bytes).put(&self.identity.0);
        w.put_u64(self.generation).put_u64(self.head).put_u64(self.previous).put_u32(self.lines);
        SEAL.store(&mut bytes);
        bytes
    }

    /// Returns the header, or `None` for other bytes.
    ///
    /// # Errors
    /// [`WriteLogError::Version`] for an intact header of another version.
    pub(crate) fn decode(bytes: &[u8; LINE_BYTES]) -> Result<Option<LogHeader>, WriteLogError> {
        let mut r = Reader::new(bytes);
        if r.array() != Some(LOG_MAGIC) || !SEAL.is_intact(bytes) {
            return Ok(None);
        }
        check_version("log", r.u16())?;
        let mut fields = || {
            let is_opening = match r.u16()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            Some(LogHeader {
                is_opening,
                sector_bytes: r.u32()?,
                identity: LogIdentity(r.array()?),
                generation: r.u64()?,
                head: r.u64()?,
                previous: r.u64()?,
                lines: r.u32()?,
            })
        };
        Ok(fields())
    }
}

fn check_version(what: &'static str, found: Option<u16>) -> Result<(), WriteLogError> {
    match found {
        Some(VERSION) => Ok(()),
        other => {
            let (found, expected) = (other.unwrap_or(0).into(), VERSION.into());
            Err(WriteLogError::Version { what, found, expected })
        }
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRecordKind {
    /// The sectors' data follows the header.
    Data,
    /// Versions of the sectors before the position `bound` were superseded by the device's.
    Superseded {
        /// The position.
        bound: u64,
    },
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRecord {
    pub(crate) kind: LogRecordKind,
    pub(crate) range: SectorRange,
    /// Its own position.
    pub(crate) position: u64,
    pub(crate) generation: u64,
    /// Position of the record before.
    pub(crate) previous: u64,
    /// Position up to which all records were persistent when this one was stored.
    pub(crate) persisted: u64,
    /// CRC-32C of the data.
    pub(crate) data_crc: u32,
}

impl LogRecord {
    const DATA: u8 = 1;
    const SUPERSEDED: u8 = 2;

    pub(crate) fn encode(&self) -> [u8; LINE_BYTES] {
        let (kind, bound) = match self.kind {
            LogRecordKind::Data => (LogRecord::DATA, 0),
            LogRecordKind::Superseded { bound } => (LogRecord::SUPERSEDED, bound),
        };
        let mut bytes = [0; LINE_BYTES];
        let mut w = SliceWriter::new(&mut bytes);
        w.put_u8(kind).put_zeros(3).put_u32(self.range.sectors).put_u64(self.position);
        w.put_u64(self.generation).put_u64(self.range.lba).put_u64(self.previous);
        w.put_u64(self.persisted).put_u64(bound).put_u32(self.data_crc);
        SEAL.store(&mut bytes);
        bytes
    }

    /// Returns the record at `position`, or `None` for other bytes.
    pub(crate) fn decode(bytes: &[u8; LINE_BYTES], position: u64) -> Option<LogRecord> {
        let mut r = Reader::new(bytes);
        let kind = r.u8()?;
        r.zeros::<3>()?;
        let sectors = r.u32()?;
        // Before the checksum: lines that are searched have no record in most cases.
        if r.u64()? != position || !SEAL.is_intact(bytes) {
            return None;
        }
        let (generation, lba, previous) = (r.u64()?, r.u64()?, r.u64()?);
        let (persisted, bound, data_crc) = (r.u64()?, r.u64()?, r.u32()?);
        let kind = match kind {
            LogRecord::DATA => LogRecordKind::Data,
            LogRecord::SUPERSEDED => LogRecordKind::Superseded { bound },
            _ => return None,
        };
        let range = SectorRange { lba, sectors };
        Some(LogRecord { kind, range, position, generation, previous, persisted, data_crc })
    }

    /// Returns the bytes of a record with its data.
    pub(crate) fn total_bytes(kind: LogRecordKind, sectors: u32, sector_bytes: u32) -> u64 {
        let data = match kind {
            LogRecordKind::Data => u64::from(sectors) * u64::from(sector_bytes),
            LogRecordKind::Superseded { .. } => 0,
        };
        LINE_BYTES as u64 + data
    }

    /// Returns the position of the first byte of data.
    pub(crate) fn data_position(&self) -> u64 {
        self.position + LINE_BYTES as u64
    }
}

/// Whether the log of a device may have data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelState {
    /// The log may have data that is not on the device.
    Attached,
    /// All data is on the device.
    Clean,
}

/// The label in the last sector of a device with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// Whether the log may have data.
    pub state: LabelState,
    /// Identity of the log.
    pub identity: LogIdentity,
    /// Generation of the log.
    pub generation: u64,
}

impl DeviceLabel {
    /// Bytes of a label, at the start of the sector.
    pub const BYTES: usize = LINE_BYTES;

    /// Returns the label as bytes.
    pub fn encode(&self) -> [u8; DeviceLabel::BYTES] {
        let state = match self.state {
            LabelState::Attached => 1,
            LabelState::Clean => 2,
        };
        let mut bytes = [0; DeviceLabel::BYTES];
        let mut w = SliceWriter::new(&mut bytes);
        w.put(&LABEL_MAGIC).put_u16(VERSION).put_u16(state).put_u32(0);
        w.put(&self.identity.0).put_u64(self.generation);
        SEAL.store(&mut bytes);
        bytes
    }

    /// Returns the label at the start of a device's last sector; `None` if there is none.
    ///
    /// # Errors
    /// [`WriteLogError::Version`] for an intact label of another version.
    pub fn decode(sector: &[u8]) -> Result<Option<DeviceLabel>, WriteLogError> {
        let Some(bytes) = sector.first_chunk::<{ DeviceLabel::BYTES }>() else { return Ok(None) };
        let mut r = Reader::new(bytes);
        if r.array() != Some(LABEL_MAGIC) || !SEAL.is_intact(bytes) {
            return Ok(None);
        }
        check_version("label of the device", r.u16())?;
        let mut fields = || {
            let state = match r.u16()? {
                1 => LabelState::Attached,
                2 => LabelState::Clean,
                _ => return None,
            };
            r.zeros::<4>()?;
            let identity = LogIdentity(r.array()?);
            Some(DeviceLabel { state, identity, generation: r.u64()? })
        };
        Ok(fields())
    }

    /// Checks that the device may be used without its log. A program that opens a device without a
    /// log calls it with the label of the last sector.
    ///
    /// # Errors
    /// [`WriteLogError::LogMissing`] if the log may have data.
    pub fn check_without_log(&self) -> Result<(), WriteLogError> {
        let DeviceLabel { state, identity, generation } = *self;
        match state {
            LabelState::Clean => Ok(()),
            LabelState::Attached => Err(WriteLogError::LogMissing { identity, generation }),
        }
    }
}
