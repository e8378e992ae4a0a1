//! Fetches commands from host memory [AHCI1.3 §5.3] and executes them on the drive.

use ahci::ata::{self, QueuedErrorLog, TrimRange, command, error, status};
use ahci::port::{self, cmd, is};
use ahci::{CommandHeader, CommandTable, RegisterH2d};
use time::Nanos;
use transport::PciFunction;
use zerocopy::{FromZeros, IntoBytes};

use super::port::SataPort;
use super::prd_table::PrdTable;

/// The operation of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CommandKind {
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

/// A command that a drive executes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FetchedCommand {
    pub(super) kind: CommandKind,
    pub(super) lba: u64,
    pub(super) sectors: u32,
    /// First byte on the drive, and number of bytes.
    pub(super) start_byte: u64,
    pub(super) bytes: u64,
    pub(super) prd_table: PrdTable,
}

/// The next step of a fetched command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandReadiness {
    /// Its data is ready, or it completes, at this time.
    ReadyAt(Nanos),
    /// Its data must first pass the uplink.
    NeedsUplink,
}

impl SataPort {
    /// Fetches the command in slot `slot`. Returns `None` if the command failed at once.
    #[inline]
    pub(super) fn fetch_command(
        &mut self,
        function: &PciFunction,
        now: Nanos,
        slot: u8,
    ) -> Option<CommandReadiness> {
        match self.read_command(function, slot) {
            Ok((header, fis, regions)) => {
                if header.flags.get() & CommandHeader::ATAPI != 0 {
                    self.abort_command(function);
                    return None;
                }
                if command::is_queued(fis.command) {
                    self.fetch_queued(function, now, slot, &header, &fis, regions)
                } else {
                    self.fetch_non_queued(function, now, slot, &fis, regions)
                }
            }
            Err(bits) => {
                self.fatal_error(function, bits);
                None
            }
        }
    }

    /// Reads the command header and the FIS.
    ///
    /// # Errors
    /// The bits of PxIS to set. HBFS for memory that is not registered. IFS for a FIS that is not a
    /// command FIS, which a drive would not acknowledge.
    #[inline]
    fn read_command(
        &self,
        function: &PciFunction,
        slot: u8,
    ) -> Result<(CommandHeader, RegisterH2d, PrdTable), u32> {
        let memory = function.memory();
        let list = self.read_address(function, port::CLB, CommandHeader::LIST_ALIGN);
        let mut header = CommandHeader::new_zeroed();
        let at = list.offset(u64::from(slot) * CommandHeader::BYTES as u64);
        memory.read(at, header.as_mut_bytes()).map_err(|_| is::HBFS)?;
        let table = mem::Iova(header.ctba.get() & !(CommandTable::ALIGN - 1));
        let mut fis = RegisterH2d::new_zeroed();
        memory.read(table, fis.as_mut_bytes()).map_err(|_| is::HBFS)?;
        let dwords = usize::from(header.fis_dwords());
        let is_command = fis.kind == RegisterH2d::KIND && fis.flags & RegisterH2d::COMMAND != 0;
        if dwords * 4 < RegisterH2d::BYTES || dwords > 16 || !is_command {
            return Err(is::IFS);
        }
        Ok((header, fis, PrdTable { command_table: table, count: header.prdtl.get() }))
    }

    #[inline]
    fn fetch_queued(
        &mut self,
        function: &PciFunction,
        now: Nanos,
        slot: u8,
        header: &CommandHeader,
        fis: &RegisterH2d,
        regions: PrdTable,
    ) -> Option<CommandReadiness> {
        let write = fis.command == command::WRITE_FPDMA_QUEUED;
        let tag = fis.queued_tag();
        let (lba, sectors) = (fis.lba(), fis.queued_sectors());
        let bit = 1u32 << tag;
        let ci = self.at(port::CI);
        let disk = self.disk.as_mut()?;
        // The tag equals the slot [AHCI1.3 §5.5.1]. Whether the host has set it in PxSACT is not
        // checked: without it, the host cannot see the completion.
        let odd = tag != slot
            || u32::from(tag) >= disk.config.queue_depth
            || self.queued & bit != 0
            || write != header.is_write();
        if odd || disk.queued_error.is_some() {
            self.abort_command(function);
            return None;
        }
        function.clear_bits(ci, bit);
        let Some(range) = disk.byte_range(lba, sectors) else {
            self.fail_queued(function, tag, 0, error::IDNF, lba);
            return None;
        };
        let kind =
            if write { CommandKind::Write { durable: fis.fua() } } else { CommandKind::Read };
        let (start, bytes) = (range.start, range.end - range.start);
        let taken =
            FetchedCommand { kind, lba, sectors, start_byte: start, bytes, prd_table: regions };
        let next = if write {
            CommandReadiness::NeedsUplink
        } else {
            CommandReadiness::ReadyAt(disk.read_ready(now, range))
        };
        self.commands[usize::from(tag)] = taken;
        self.queued |= bit;
        Some(next)
    }

    fn fetch_non_queued(
        &mut self,
        function: &PciFunction,
        now: Nanos,
        slot: u8,
        fis: &RegisterH2d,
        regions: PrdTable,
    ) -> Option<CommandReadiness> {
        let disk = self.disk.as_mut()?;
        let log = fis.lba() as u8;
        let asks_error_log = log == QueuedErrorLog::LOG && fis.count.get() == 1;
        let trims = fis.features_low & ata::FEATURE_TRIM != 0;
        let known = match fis.command {
            command::FLUSH_CACHE_EXT => Some((CommandKind::Flush, disk.flush_ready(now))),
            command::DATA_SET_MANAGEMENT if trims && (1..=8).contains(&fis.count.get()) => {
                let kind = CommandKind::Trim { blocks: fis.count.get() };
                Some((kind, disk.ready_after(now, disk.config.trim_time)))
            }
            command::IDENTIFY_DEVICE => {
                Some((CommandKind::Identify, disk.ready_after(now, disk.config.inquiry_time)))
            }
            command::READ_LOG_EXT if asks_error_log => {
                Some((CommandKind::ErrorLog, disk.ready_after(now, disk.config.inquiry_time)))
            }
            _ => None,
        };
        // A drive with queued commands refuses non-queued ones; after an error it accepts only the
        // log read.
        let refused = self.queued != 0
            || disk.queued_error.is_some() && !matches!(known, Some((CommandKind::ErrorLog, _)));
        let Some((kind, at)) = known.filter(|_| !refused) else {
            self.abort_command(function);
            return None;
        };
        self.commands[usize::from(slot)] =
            FetchedCommand { kind, prd_table: regions, ..FetchedCommand::default() };
        self.non_queued_slot = Some(slot);
        function.set_bits(self.at(port::TFD), status::BSY.into());
        function.clear_bits(self.at(port::CMD), cmd::CCS);
        function.set_bits(self.at(port::CMD), u32::from(slot) << 8);
        Some(CommandReadiness::ReadyAt(at))
    }

    /// Fails a queued command if its sectors have injected errors; returns whether it failed.
    pub(super) fn fail_if_injected(&mut self, function: &PciFunction, slot: u8) -> bool {
        let FetchedCommand { kind, lba, sectors, .. } = self.commands[usize::from(slot)];
        let write = matches!(kind, CommandKind::Write { .. });
        let Some(at) =
            self.disk.as_ref().and_then(|disk| disk.first_injected_error(lba, sectors, write))
        else {
            return false;
        };
        // A failed write is a device fault; a failed read is uncorrectable data.
        let (flags, error) = if write { (status::DF, error::ABRT) } else { (0, error::UNC) };
        self.fail_queued(function, slot, flags, error, at);
        true
    }

    /// Stores the data of a write after its arrival. Returns the completion time of the write.
    #[inline]
    pub(super) fn store_data(
        &mut self,
        function: &PciFunction,
        at: Nanos,
        slot: u8,
    ) -> Option<Nanos> {
        if self.fail_if_injected(function, slot) {
            return None;
        }
        let FetchedCommand { kind, start_byte: start, bytes, prd_table: regions, .. } =
            self.commands[usize::from(slot)];
        let disk = self.disk.as_mut()?;
        let sectors = &mut disk.sectors;
        let copied =
            regions.for_each(function.memory(), bytes, false, |region, offset, done, n| {
                sectors.write(region, offset, start + done, n);
            });
        if let Err(bits) = copied {
            self.fatal_error(function, bits);
            return None;
        }
        Some(disk.write_ready(at, bytes, kind == CommandKind::Write { durable: true }))
    }

    /// Completes a command whose time has elapsed.
    #[inline]
    pub(super) fn finish_command(&mut self, function: &PciFunction, slot: u8) {
        let FetchedCommand { kind, start_byte: start, bytes, prd_table: regions, .. } =
            self.commands[usize::from(slot)];
        let memory = function.memory();
        let Some(disk) = &mut self.disk else { return };
        let outcome = match kind {
            CommandKind::Read => {
                let sectors = &disk.sectors;
                regions.for_each(memory, bytes, true, |region, offset, done, n| {
                    sectors.read(start + done, region, offset, n);
                })
            }
            CommandKind::Write { .. } | CommandKind::Flush => Ok(()),
            CommandKind::Identify => regions.write(memory, &disk.identify().to_bytes()),
            CommandKind::ErrorLog => {
                let none = QueuedErrorLog { not_queued: true, tag: 0, status: 0, error: 0, lba: 0 };
                regions.write(memory, &disk.queued_error.take().unwrap_or(none).to_bytes())
            }
            CommandKind::Trim { blocks } => {
                let mut ranges = [0; 8 * 512];
                let ranges = &mut ranges[..usize::from(blocks) * 512];
                match regions.read(memory, ranges) {
                    Ok(()) if !trim_ranges(disk, ranges) => {
                        self.fail_non_queued(function, 0, error::ABRT | error::IDNF);
                        return;
                    }
                    outcome => outcome,
                }
            }
        };
        if let Err(bits) = outcome {
            self.fatal_error(function, bits);
            return;
        }
        let stats = &mut disk.stats;
        match kind {
            CommandKind::Read => {
                (stats.reads, stats.bytes_read) = (stats.reads + 1, stats.bytes_read + bytes)
            }
            CommandKind::Write { .. } => {
                (stats.writes, stats.bytes_written) =
                    (stats.writes + 1, stats.bytes_written + bytes);
            }
            _ => stats.others += 1,
        }
        match kind {
            CommandKind::Read | CommandKind::Write { .. } => self.complete_queued(function, slot),
            CommandKind::Flush | CommandKind::Trim { .. } => {
                self.complete_non_queued(function, slot)
            }
            CommandKind::Identify | CommandKind::ErrorLog => {
                self.count_bytes(function, slot, 512);
                self.complete_pio(function, slot, 512);
            }
        }
    }

    /// Sets PRDBC of a non-queued command [AHCI1.3 §4.2.2, DW 1].
    fn count_bytes(&self, function: &PciFunction, slot: u8, bytes: u32) {
        let list = self.read_address(function, port::CLB, CommandHeader::LIST_ALIGN);
        let at = list.offset(u64::from(slot) * CommandHeader::BYTES as u64 + 4);
        // The address was valid at the fetch; if the host has changed it since, the count is lost.
        let _ = function.memory().write(at, &bytes.to_le_bytes());
    }
}

/// Trims the ranges of a block; returns whether all were valid and succeeded.
fn trim_ranges(disk: &mut super::disk::SataDisk, ranges: &[u8]) -> bool {
    let ranges = ranges.as_chunks::<{ TrimRange::BYTES }>().0;
    let mut wanted = ranges.iter().map(|bytes| TrimRange::from_bytes(*bytes));
    wanted.all(|TrimRange { lba, sectors }| {
        if sectors == 0 {
            return true;
        }
        let Some(bytes) = disk.byte_range(lba, sectors.into()) else { return false };
        disk.sectors.trim(bytes.start, bytes.end - bytes.start).is_ok()
    })
}
