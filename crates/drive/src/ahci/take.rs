//! Taking a command out of host memory (AHCI 1.3.1 section 5.3), and what its drive does with it.

use clock::Nanos;
use ring::PciFunction;
use sata::ata::{self, QueuedErrorLog, TrimRange, command, error, status};
use sata::port::{self, cmd, is};
use sata::{CommandHeader, CommandTable, RegisterH2d};
use zerocopy::{FromZeros, IntoBytes};

use super::port::Port;
use super::regions::Regions;

/// What a drive does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Read,
    Write {
        durable: bool,
    },
    Flush,
    Trim {
        blocks: u16,
    },
    Identify,
    ErrorLog,
}

/// A command that a drive has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) kind: Kind,
    pub(super) lba: u64,
    pub(super) sectors: u32,
    /// First byte of the drive, and bytes.
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) regions: Regions,
}

/// What comes next for a command that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Its data is there, or it has ended, at this time.
    At(Nanos),
    /// Its data must come over the uplink first.
    Uplink,
}

impl Port {
    /// Takes the command in slot `slot`. `None` if it came to an end at once, which is not a good
    /// one.
    #[inline]
    pub(super) fn take(&mut self, function: &PciFunction, now: Nanos, slot: u8) -> Option<Next> {
        match self.fetch(function, slot) {
            Ok((header, fis, regions)) => {
                if header.flags.get() & CommandHeader::ATAPI != 0 {
                    self.refuse(function);
                    return None;
                }
                if command::is_queued(fis.command) {
                    self.take_queued(function, now, slot, &header, &fis, regions)
                } else {
                    self.take_alone(function, now, slot, &fis, regions)
                }
            }
            Err(bits) => {
                self.fatal(function, bits);
                None
            }
        }
    }

    /// Reads header and FIS.
    ///
    /// # Errors
    /// The bits of PxIS to set: HBFS for memory that is not registered; IFS for what is no command
    /// FIS, which a drive would not acknowledge.
    #[inline]
    fn fetch(
        &self,
        function: &PciFunction,
        slot: u8,
    ) -> Result<(CommandHeader, RegisterH2d, Regions), u32> {
        let memory = function.memory();
        let list = self.address(function, port::CLB, CommandHeader::LIST_ALIGN);
        let mut header = CommandHeader::new_zeroed();
        let at = list.offset(u64::from(slot) * CommandHeader::BYTES as u64);
        memory.read(at, header.as_mut_bytes()).map_err(|_| is::HBFS)?;
        let table = ring::Iova(header.ctba.get() & !(CommandTable::ALIGN - 1));
        let mut fis = RegisterH2d::new_zeroed();
        memory.read(table, fis.as_mut_bytes()).map_err(|_| is::HBFS)?;
        let dwords = usize::from(header.fis_dwords());
        let is_command = fis.kind == RegisterH2d::KIND && fis.flags & RegisterH2d::COMMAND != 0;
        if dwords * 4 < RegisterH2d::BYTES || dwords > 16 || !is_command {
            return Err(is::IFS);
        }
        Ok((header, fis, Regions { table, count: header.prdtl.get() }))
    }

    #[inline]
    fn take_queued(
        &mut self,
        function: &PciFunction,
        now: Nanos,
        slot: u8,
        header: &CommandHeader,
        fis: &RegisterH2d,
        regions: Regions,
    ) -> Option<Next> {
        let write = fis.command == command::WRITE_FPDMA_QUEUED;
        let tag = fis.queued_tag();
        let (lba, sectors) = (fis.lba(), fis.queued_sectors());
        let bit = 1u32 << tag;
        let ci = self.at(port::CI);
        let disk = self.disk.as_mut()?;
        // The tag is the slot (AHCI 1.3.1 section 5.5.1). Whether the host has set it in PxSACT too is
        // the host's loss: it could not see the command end.
        let odd = tag != slot
            || u32::from(tag) >= disk.config.queue_depth
            || self.queued & bit != 0
            || write != header.is_write();
        if odd || disk.failed.is_some() {
            self.refuse(function);
            return None;
        }
        function.clear(ci, bit);
        let Some(range) = disk.bytes(lba, sectors) else {
            self.fail_queued(function, tag, 0, error::IDNF, lba);
            return None;
        };
        let kind = if write { Kind::Write { durable: fis.fua() } } else { Kind::Read };
        let (start, bytes) = (range.start, range.end - range.start);
        let taken = Taken { kind, lba, sectors, start, bytes, regions };
        let next = if write { Next::Uplink } else { Next::At(disk.read_ready(now, range)) };
        self.commands[usize::from(tag)] = taken;
        self.queued |= bit;
        Some(next)
    }

    fn take_alone(
        &mut self,
        function: &PciFunction,
        now: Nanos,
        slot: u8,
        fis: &RegisterH2d,
        regions: Regions,
    ) -> Option<Next> {
        let disk = self.disk.as_mut()?;
        let log = fis.lba() as u8;
        let asks_error_log = log == QueuedErrorLog::LOG && fis.count.get() == 1;
        let trims = fis.features_low & ata::FEATURE_TRIM != 0;
        let known = match fis.command {
            command::FLUSH_CACHE_EXT => Some((Kind::Flush, disk.flush_ready(now))),
            command::DATA_SET_MANAGEMENT if trims && (1..=8).contains(&fis.count.get()) => {
                let kind = Kind::Trim { blocks: fis.count.get() };
                Some((kind, now + disk.config.trim_time))
            }
            command::IDENTIFY_DEVICE => Some((Kind::Identify, now + disk.config.inquiry_time)),
            command::READ_LOG_EXT if asks_error_log => {
                Some((Kind::ErrorLog, now + disk.config.inquiry_time))
            }
            _ => None,
        };
        // While it has queued commands a drive takes no other ones; after one failed only the log.
        let refused = self.queued != 0
            || disk.failed.is_some() && !matches!(known, Some((Kind::ErrorLog, _)));
        let Some((kind, at)) = known.filter(|_| !refused) else {
            self.refuse(function);
            return None;
        };
        self.commands[usize::from(slot)] = Taken { kind, regions, ..Taken::default() };
        self.alone = Some(slot);
        function.set(self.at(port::TFD), status::BSY.into());
        function.clear(self.at(port::CMD), cmd::CCS);
        function.set(self.at(port::CMD), u32::from(slot) << 8);
        Some(Next::At(at))
    }

    /// Whether the sectors of a queued command fail, and then how it ends.
    pub(super) fn fails(&mut self, function: &PciFunction, slot: u8) -> bool {
        let Taken { kind, lba, sectors, .. } = self.commands[usize::from(slot)];
        let write = matches!(kind, Kind::Write { .. });
        let Some(at) = self.disk.as_ref().and_then(|disk| disk.fault(lba, sectors, write)) else {
            return false;
        };
        // A write that fails is a fault of the device; a read is data that cannot be corrected.
        let (flags, error) = if write { (status::DF, error::ABRT) } else { (0, error::UNC) };
        self.fail_queued(function, slot, flags, error, at);
        true
    }

    /// The data of a write has arrived. Returns when the write has ended.
    #[inline]
    pub(super) fn store(&mut self, function: &PciFunction, at: Nanos, slot: u8) -> Option<Nanos> {
        if self.fails(function, slot) {
            return None;
        }
        let Taken { kind, start, bytes, regions, .. } = self.commands[usize::from(slot)];
        let disk = self.disk.as_mut()?;
        let sectors = &mut disk.sectors;
        let copied = regions.each(function.memory(), bytes, false, |region, offset, done, n| {
            sectors.write(region, offset, start + done, n);
        });
        if let Err(bits) = copied {
            self.fatal(function, bits);
            return None;
        }
        Some(disk.write_ready(at, bytes, kind == Kind::Write { durable: true }))
    }

    /// A command has taken its time.
    #[inline]
    pub(super) fn finish(&mut self, function: &PciFunction, slot: u8) {
        let Taken { kind, start, bytes, regions, .. } = self.commands[usize::from(slot)];
        let memory = function.memory();
        let Some(disk) = &mut self.disk else { return };
        let outcome = match kind {
            Kind::Read => {
                let sectors = &disk.sectors;
                regions.each(memory, bytes, true, |region, offset, done, n| {
                    sectors.read(start + done, region, offset, n);
                })
            }
            Kind::Write { .. } | Kind::Flush => Ok(()),
            Kind::Identify => regions.put(memory, &disk.identify().to_bytes()),
            Kind::ErrorLog => {
                let none = QueuedErrorLog { not_queued: true, tag: 0, status: 0, error: 0, lba: 0 };
                regions.put(memory, &disk.failed.take().unwrap_or(none).to_bytes())
            }
            Kind::Trim { blocks } => {
                let mut ranges = [0; 8 * 512];
                let ranges = &mut ranges[..usize::from(blocks) * 512];
                match regions.get(memory, ranges) {
                    Ok(()) if !trim(disk, ranges) => {
                        self.fail_alone(function, 0, error::ABRT | error::IDNF);
                        return;
                    }
                    outcome => outcome,
                }
            }
        };
        if let Err(bits) = outcome {
            self.fatal(function, bits);
            return;
        }
        let stats = &mut disk.stats;
        match kind {
            Kind::Read => {
                (stats.reads, stats.bytes_read) = (stats.reads + 1, stats.bytes_read + bytes)
            }
            Kind::Write { .. } => {
                (stats.writes, stats.bytes_written) =
                    (stats.writes + 1, stats.bytes_written + bytes);
            }
            _ => stats.others += 1,
        }
        match kind {
            Kind::Read | Kind::Write { .. } => self.end_queued(function, slot),
            Kind::Flush | Kind::Trim { .. } => self.end_alone(function, slot),
            Kind::Identify | Kind::ErrorLog => {
                self.count_bytes(function, slot, 512);
                self.end_pio(function, slot, 512);
            }
        }
    }

    /// PRDBC of a command that is not queued (AHCI 1.3.1 section 4.2.2, DW 1).
    fn count_bytes(&self, function: &PciFunction, slot: u8, bytes: u32) {
        let list = self.address(function, port::CLB, CommandHeader::LIST_ALIGN);
        let at = list.offset(u64::from(slot) * CommandHeader::BYTES as u64 + 4);
        // The list was there when the command was taken; if the host has moved it, nothing is lost.
        let _ = function.memory().write(at, &bytes.to_le_bytes());
    }
}

/// Trims the ranges of a block; returns whether all were the drive's and could be.
fn trim(disk: &mut super::disk::Disk, ranges: &[u8]) -> bool {
    let ranges = ranges.as_chunks::<{ TrimRange::BYTES }>().0;
    let mut wanted = ranges.iter().map(|bytes| TrimRange::from_bytes(*bytes));
    wanted.all(|TrimRange { lba, sectors }| {
        if sectors == 0 {
            return true;
        }
        let Some(bytes) = disk.bytes(lba, sectors.into()) else { return false };
        disk.sectors.trim(bytes.start, bytes.end - bytes.start).is_ok()
    })
}
