//! [`WriteLogOpening`]: the opening of a log, as a polled state machine.
//!
//! It reads the device's label, checks that device and log belong together, replays the log, and
//! begins a generation: first in the log's header, which is marked as *opening*, then in the label,
//! then in the header without the mark. A crash in between leaves a state that the next opening
//! accepts. No record is stored before.

use std::sync::Arc;

use block::{BlockDevice, Completion, Op, Payload, Request};
use mem::{Iova, SharedRegion};
use nvme::Status;
use time::Nanos;

use crate::format::{
    DeviceLabel, HEADER_BYTES, LINE_BYTES, LabelState, LogHeader, LogRecord, LogRecordKind,
};
use crate::index::SectorIndex;
use crate::log::WriteLog;
use crate::ring::LogRing;
use crate::{LogMemory, WriteLogConfig, WriteLogError};

/// The last sector of the device, and a registered buffer for it.
#[derive(Debug)]
pub(crate) struct LabelSector {
    lba: u64,
    region: Arc<SharedRegion>,
    at: Iova,
}

impl LabelSector {
    fn new<D: BlockDevice>(device: &D) -> Result<LabelSector, WriteLogError> {
        let limits = device.limits();
        let bytes = limits.sector_bytes as usize;
        let (region, at) = device.memory().allocate_registered(bytes)?;
        Ok(LabelSector { lba: limits.sectors - 1, region, at })
    }

    /// Fills the buffer with a label, and returns the request that writes it.
    pub(crate) fn write_request(&self, label: DeviceLabel, tag: u64) -> Request {
        self.region.fill(0, self.region.len(), 0);
        self.region.write(0, &label.encode());
        let write = Request::write(self.lba, 1, Payload::Contiguous(self.at), tag);
        Request { fua: true, ..write }
    }

    fn read_request(&self, tag: u64) -> Request {
        Request::read(self.lba, 1, Payload::Contiguous(self.at), tag)
    }

    fn contents(&self) -> Vec<u8> {
        let mut sector = vec![0; self.region.len()];
        self.region.read(0, &mut sector);
        sector
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    ReadLabel,
    WriteLabel,
    FlushLabel,
    Ready,
}

/// The opening of a [`WriteLog`]. The caller polls it until it is ready, and then takes the log.
#[derive(Debug)]
pub struct WriteLogOpening<D, M> {
    device: D,
    config: WriteLogConfig,
    label: LabelSector,
    step: Step,
    /// Whether the device has the step's request.
    is_submitted: bool,
    ring: LogRing<M>,
    /// The header that the memory has.
    found: Option<LogHeader>,
    index: SectorIndex,
    replayed: u64,
}

impl<D: BlockDevice, M: LogMemory> WriteLogOpening<D, M> {
    /// Begins to open the log in `memory` for `device`. A new log is created if neither has one. No
    /// request may be outstanding on the device.
    ///
    /// # Errors
    /// [`WriteLogError`], without a change of the memory or the device.
    pub fn new(
        device: D,
        memory: M,
        config: WriteLogConfig,
    ) -> Result<WriteLogOpening<D, M>, WriteLogError> {
        let limits = *device.limits();
        let WriteLogConfig { bytes, write_bytes_max, .. } = config;
        if bytes == 0 || bytes > memory.len() || !bytes.is_multiple_of(LINE_BYTES) {
            return Err(WriteLogError::Size { bytes, memory: memory.len() });
        }
        let sector_bytes = limits.sector_bytes;
        let is_whole = sector_bytes > 0 && (sector_bytes as usize).is_multiple_of(LINE_BYTES);
        if limits.sectors < 2 || !is_whole {
            let sectors = limits.sectors;
            return Err(WriteLogError::Device { sectors, sector_bytes });
        }
        let sectors_max = write_bytes_max.min(limits.max_sectors.saturating_mul(sector_bytes));
        let sectors_max = (sectors_max / sector_bytes).max(1);
        // While a half is destaged, the other one takes the largest write.
        let record =
            LogRecord::total_bytes(LogRecordKind::Data, sectors_max, sector_bytes) as usize;
        let minimum = HEADER_BYTES + 2 * record;
        let lines = u32::try_from((bytes.saturating_sub(HEADER_BYTES)) / LINE_BYTES);
        let Some(lines) = lines.ok().filter(|_| bytes >= minimum) else {
            return Err(WriteLogError::TooSmall { bytes, write_bytes_max, minimum });
        };
        let found = LogRing::read_header(&memory)?;
        if let Some(LogHeader { lines: found_lines, sector_bytes: found_sector_bytes, .. }) = found
            && (found_lines, found_sector_bytes) != (lines, sector_bytes)
        {
            let ring_bytes = |lines| u64::from(lines) * LINE_BYTES as u64 + HEADER_BYTES as u64;
            return Err(WriteLogError::OtherGeometry {
                found_bytes: ring_bytes(found_lines),
                found_sector_bytes,
                expected_bytes: ring_bytes(lines),
                expected_sector_bytes: sector_bytes,
            });
        }
        let new = LogHeader {
            is_opening: false,
            sector_bytes,
            identity: config.identity,
            generation: 0,
            head: 0,
            previous: 0,
            lines,
        };
        let capacity = limits.sectors - 1;
        let mut ring = LogRing::new(memory, found.unwrap_or(new), capacity, record - LINE_BYTES);
        let mut index = SectorIndex::new(lines as usize * LINE_BYTES / sector_bytes as usize);
        let replayed = if found.is_some() { ring.replay(&mut index)? } else { 0 };
        Ok(WriteLogOpening {
            label: LabelSector::new(&device)?,
            device,
            config: WriteLogConfig { write_bytes_max: sectors_max * sector_bytes, ..config },
            step: Step::ReadLabel,
            is_submitted: false,
            ring,
            found,
            index,
            replayed,
        })
    }

    /// Continues the opening. Returns whether the log is ready.
    ///
    /// # Errors
    /// [`WriteLogError`]. The memory and the device are unchanged if they do not belong together.
    pub fn poll(&mut self, now: Nanos) -> Result<bool, WriteLogError> {
        let request = match self.step {
            Step::ReadLabel => self.label.read_request(0),
            Step::WriteLabel => {
                let LogHeader { identity, generation, .. } = *self.ring.header();
                let label = DeviceLabel { state: LabelState::Attached, identity, generation };
                self.label.write_request(label, 0)
            }
            Step::FlushLabel => Request::flush(0),
            Step::Ready => return Ok(true),
        };
        let Some(status) = self.execute(now, request) else { return Ok(false) };
        if !status.is_success() {
            let operation = match request.op {
                Op::Read => "read",
                Op::Flush => "flush",
                _ => "write",
            };
            return Err(WriteLogError::Label { operation, status });
        }
        self.step = match self.step {
            Step::ReadLabel => {
                self.begin_generation()?;
                Step::WriteLabel
            }
            Step::WriteLabel => Step::FlushLabel,
            Step::FlushLabel | Step::Ready => {
                self.ring.end_opening();
                Step::Ready
            }
        };
        Ok(self.step == Step::Ready)
    }

    /// Returns when the opening must be polled next, if the device does not call its waker.
    pub fn deadline(&self) -> Nanos {
        if self.is_submitted { self.device.deadline() } else { Nanos::ZERO }
    }

    /// Submits the request once, and returns its status after its completion.
    fn execute(&mut self, now: Nanos, request: Request) -> Option<Status> {
        if !self.is_submitted {
            self.is_submitted = self.device.submit(now, request).is_ok();
        }
        self.device.poll(now);
        let Completion { status, .. } = self.device.reap()?;
        self.is_submitted = false;
        Some(status)
    }

    /// Checks that the device's label and the log belong together, and stores the header of the next
    /// generation.
    fn begin_generation(&mut self) -> Result<(), WriteLogError> {
        let sector = self.label.contents();
        let label = DeviceLabel::decode(&sector)?;
        let identity = match label {
            Some(label) => {
                self.check_label(label)?;
                label.identity
            }
            None => {
                self.check_new(&sector)?;
                self.config.identity
            }
        };
        let of_label = label.map_or(0, |label| label.generation);
        let generation = match self.found {
            // No record has the generation of an opening that did not end.
            Some(header) if header.is_opening && header.generation > of_label => header.generation,
            Some(header) => header.generation.max(of_label) + 1,
            None => of_label + 1,
        };
        match self.found {
            Some(_) => self.ring.repair_header(),
            None => self.ring.erase(),
        }
        self.ring.begin_opening(identity, generation);
        Ok(())
    }

    /// Checks that a log can be created for a device without a label.
    fn check_new(&self, sector: &[u8]) -> Result<(), WriteLogError> {
        match self.found {
            Some(header) if self.replayed > 0 => {
                Err(WriteLogError::OtherDevice { log: header.identity, device: None })
            }
            _ if sector.iter().any(|byte| *byte != 0) && !self.config.overwrite_last_sector => {
                Err(WriteLogError::LastSectorInUse { lba: self.label.lba })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the log in memory is the one of the label. A log without records belongs to any
    /// device whose log has none.
    fn check_label(&self, label: DeviceLabel) -> Result<(), WriteLogError> {
        let DeviceLabel { state, identity, generation: device } = label;
        let is_clean = state == LabelState::Clean;
        let Some(header) = self.found else { return label.check_without_log() };
        if is_clean && self.replayed == 0 {
            return Ok(());
        }
        let log = header.generation;
        if header.identity != identity {
            let (log, device) = (header.identity, Some(identity));
            return Err(WriteLogError::OtherDevice { log, device });
        }
        let is_newer = log > device && !(header.is_opening && log == device + 1);
        match () {
            () if log < device || is_clean && log == device => {
                Err(WriteLogError::OldLog { log, device })
            }
            () if is_newer || is_clean => Err(WriteLogError::OldDevice { log, device }),
            () => Ok(()),
        }
    }

    /// Returns the log.
    ///
    /// # Errors
    /// If buffers cannot be registered with the device.
    ///
    /// # Panics
    /// If it is not ready.
    pub fn into_log(self) -> Result<WriteLog<D, M>, WriteLogError> {
        assert!(self.step == Step::Ready, "the log is being opened: {:?}", self.step);
        let WriteLogOpening { device, config, label, ring, index, replayed, .. } = self;
        WriteLog::new(device, config, label, LogContents { ring, index, replayed })
    }

    /// Returns the device and the memory.
    pub fn into_parts(self) -> (D, M) {
        (self.device, self.ring.into_memory())
    }
}

/// The replayed log.
#[derive(Debug)]
pub(crate) struct LogContents<M> {
    pub(crate) ring: LogRing<M>,
    pub(crate) index: SectorIndex,
    /// Number of records.
    pub(crate) replayed: u64,
}
