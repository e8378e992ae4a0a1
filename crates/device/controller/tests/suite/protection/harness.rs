//! [`Bench`]: a drive with protection information, and a host that sends single commands.

use controller::{Controller, CorruptedPart, DriveConfig, Fault, FaultSector, ProtectionErrors};
use media::MediaConfig;
use mem::PAGE_BYTES;
use nvme::{AdminCommand, Cqe, ErrorEntry, ProtectionInfo, ProtectionType, Sqe, Status, log_page};

use crate::hostile::host::{Host, block_config};

/// PRACT, and the checks of PRCHK.
pub(crate) const GENERATED: u32 = 1 << 29;
pub(super) const CHECK_GUARD: u32 = 1 << 28;
pub(super) const CHECK_APPLICATION: u32 = 1 << 27;
pub(super) const CHECK_REFERENCE: u32 = 1 << 26;
/// The checks of Linux and of the driver.
pub(crate) const CHECKS: u32 = CHECK_GUARD | CHECK_REFERENCE;

/// Pages of the host's memory: protection information, ranges of a Copy or a deallocation, log page.
const INFO_PAGE: u64 = 58;
pub(super) const RANGES_PAGE: u64 = 60;
const ADMIN_PAGE: u64 = 62;

/// Sets the fields for protection information of a command whose reference tag is its address.
pub(crate) fn with_info(mut sqe: Sqe, prinfo: u32, tags: u32) -> Sqe {
    sqe.cdw12 |= prinfo;
    (sqe.cdw14, sqe.cdw15) = ((sqe.slba() as u32).into(), tags.into());
    sqe
}

/// A drive with protection information of each of its blocks of `lba_bytes`.
pub(crate) fn config(lba_bytes: u32) -> DriveConfig {
    let mut config = DriveConfig {
        lba_bytes: Some(lba_bytes),
        protection: Some(ProtectionType::Type1),
        ..block_config()
    };
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.geometry.oob_bytes = 16 + 8 * (4096 / lba_bytes);
    config
}

pub(super) struct Bench {
    pub(super) drive: Controller,
    pub(super) host: Host,
    pub(super) lba_bytes: usize,
}

impl Bench {
    pub(super) fn new(config: DriveConfig) -> Bench {
        let lba_bytes = config.lba_bytes() as usize;
        let mut drive = Controller::new(config).unwrap();
        let host = Host::with_queue(&mut drive);
        Bench { drive, host, lba_bytes }
    }

    /// Executes a command with `blocks` blocks of data from the first page of memory on, and with the
    /// protection information at its page.
    pub(super) fn io(&mut self, mut sqe: Sqe, blocks: u32) -> Cqe {
        sqe.set_sgl(self.host.block(0, blocks * self.lba_bytes as u32));
        sqe.mptr = self.host.at.offset(INFO_PAGE * PAGE_BYTES as u64).0.into();
        self.host.io(&mut self.drive, sqe)
    }

    /// Fills the blocks of the host's memory with `value`, `value + 1` and so on.
    pub(super) fn fill(&mut self, blocks: u32, value: u8) {
        for block in 0..blocks as usize {
            let value = value.wrapping_add(block as u8);
            self.host.memory.fill(block * self.lba_bytes, self.lba_bytes, value);
        }
    }

    /// Writes blocks, whose information the drive generates.
    pub(super) fn write(&mut self, lba: u64, blocks: u32, value: u8) {
        self.fill(blocks, value);
        let sqe = with_info(Sqe::write(1, lba, blocks, false), GENERATED, 0);
        assert_eq!(self.io(sqe, blocks).status, Status::SUCCESS);
    }

    /// Reads blocks with all checks of Linux. Returns the values of their bytes.
    pub(super) fn read(&mut self, lba: u64, blocks: u32) -> Result<Vec<u8>, Status> {
        self.read_as(lba, blocks, GENERATED | CHECKS, 0)
    }

    pub(super) fn read_as(
        &mut self,
        lba: u64,
        blocks: u32,
        prinfo: u32,
        tags: u32,
    ) -> Result<Vec<u8>, Status> {
        let bytes = blocks as usize * self.lba_bytes;
        self.host.memory.fill(0, bytes, 0xee);
        self.host.memory.fill(INFO_PAGE as usize * PAGE_BYTES, PAGE_BYTES, 0xee);
        match self.io(with_info(Sqe::read(1, lba, blocks), prinfo, tags), blocks).status {
            Status::SUCCESS => {}
            status => return Err(status),
        }
        let mut data = vec![0; bytes];
        self.host.memory.read(0, &mut data);
        let value = |block: &[u8]| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block has two values");
            block[0]
        };
        Ok(data.chunks(self.lba_bytes).map(value).collect())
    }

    /// Returns the protection information at an index in the host's memory.
    pub(super) fn info(&self, index: usize) -> ProtectionInfo {
        let mut bytes = [0; 8];
        self.host.memory.read(INFO_PAGE as usize * PAGE_BYTES + index * 8, &mut bytes);
        ProtectionInfo::from_bytes(bytes)
    }

    pub(super) fn set_info(&mut self, index: usize, info: ProtectionInfo) {
        let at = INFO_PAGE as usize * PAGE_BYTES + index * 8;
        self.host.memory.write(at, &info.to_bytes());
    }

    /// Returns the information of a block of this value.
    pub(super) fn info_of(&self, value: u8, tag: u16, reference_tag: u32) -> ProtectionInfo {
        ProtectionInfo::of_data(&vec![value; self.lba_bytes], tag, reference_tag)
    }

    pub(super) fn flush(&mut self) {
        assert_eq!(self.io(Sqe::flush(1), 0).status, Status::SUCCESS);
    }

    pub(super) fn corrupt(&mut self, lba: u64, part: CorruptedPart) {
        let sector = FaultSector::lba(lba);
        self.drive.inject_fault(self.host.now, Fault::CorruptedData { sector, part }).unwrap();
    }

    pub(super) fn errors(&self) -> ProtectionErrors {
        self.drive.stats().protection_errors.expect("the drive has protection information")
    }

    /// Powers the drive off in order and on again.
    pub(super) fn restart(self) -> Bench {
        let mut drive = self.drive.power_cut().power_on().unwrap();
        let host = Host::with_queue(&mut drive);
        Bench { drive, host, lba_bytes: self.lba_bytes }
    }

    /// Returns a log page.
    pub(super) fn log(&mut self, lid: u8, bytes: usize) -> Vec<u8> {
        let nsid = u32::MAX;
        let command =
            AdminCommand::GetLogPage { lid, nsid, bytes: bytes as u64, offset: 0, retain: false };
        let mut sqe = command.to_sqe();
        sqe.set_sgl(self.host.block(ADMIN_PAGE, bytes as u32));
        assert_eq!(self.host.admin(&mut self.drive, sqe).status, Status::SUCCESS);
        let mut data = vec![0; bytes];
        self.host.memory.read(ADMIN_PAGE as usize * PAGE_BYTES, &mut data);
        data
    }

    /// Returns the status and the logical block of the newest entry of the error log.
    pub(super) fn newest_error(&mut self) -> (Status, u64) {
        let entry = self.log(log_page::ERROR, 64);
        let entry = ErrorEntry::from_bytes(*entry.first_chunk().unwrap());
        (entry.status(), entry.lba.get())
    }
}
