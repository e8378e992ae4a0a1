//! [`Bench`]: a drive and a host that sends single commands.

use controller::{Controller, DriveConfig};
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, Cqe, ErrorEntry, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, Sqe,
    Status, cns, log_page,
};
use time::{Component, Nanos};

use crate::hostile::host::{Host, MEMORY, block_config};

/// Page of the host's memory that admin commands return data to.
const ADMIN_PAGE: u64 = 62;
/// Page with the source ranges of a Copy.
pub(crate) const RANGES_PAGE: u64 = 60;

pub(crate) struct Bench {
    pub(crate) drive: Controller,
    pub(crate) host: Host,
}

/// A drive that stores data, whose blocks are its sectors.
pub(crate) fn config() -> DriveConfig {
    block_config()
}

impl Bench {
    pub(crate) fn new(config: DriveConfig) -> Bench {
        let mut drive = Controller::new(config).unwrap();
        let host = Host::with_queue(&mut drive);
        Bench { drive, host }
    }

    /// Executes a command, with `bytes` bytes of data from the first page of the host's memory on.
    pub(crate) fn io(&mut self, mut sqe: Sqe, bytes: usize) -> Cqe {
        assert!(bytes <= MEMORY);
        sqe.set_sgl(self.host.block(0, bytes as u32));
        self.host.io(&mut self.drive, sqe)
    }

    /// Executes a command, and returns its status and the time that it took.
    pub(crate) fn timed(&mut self, mut sqe: Sqe, bytes: usize) -> (Status, Nanos) {
        sqe.set_sgl(self.host.block(0, bytes as u32));
        let from = self.host.now;
        self.host.submit(sqe);
        loop {
            while self.drive.poll(self.host.now) {}
            if let Some(cqe) = self.host.reap() {
                return (cqe.status, self.host.now.since(from));
            }
            self.host.now = self.drive.deadline();
        }
    }

    /// Fills the host's memory with a value per block of `block_bytes` bytes: `value`, `value + 1`.
    pub(crate) fn fill(&mut self, blocks: usize, block_bytes: usize, value: u8) {
        for block in 0..blocks {
            self.host.memory.fill(block * block_bytes, block_bytes, value + block as u8);
        }
    }

    /// Writes blocks from `lba` on, each with one value more than the one before.
    pub(crate) fn write(&mut self, lba: u64, blocks: u32, block_bytes: usize, value: u8) {
        self.fill(blocks as usize, block_bytes, value);
        let status = self.io(Sqe::write(1, lba, blocks, false), blocks as usize * block_bytes);
        assert_eq!(status.status, Status::SUCCESS);
    }

    /// Reads blocks. Returns the values of their bytes, or the status.
    pub(crate) fn read(
        &mut self,
        lba: u64,
        blocks: u32,
        block_bytes: usize,
    ) -> Result<Vec<u8>, Status> {
        let bytes = blocks as usize * block_bytes;
        self.host.memory.fill(0, bytes, 0xee);
        match self.io(Sqe::read(1, lba, blocks), bytes).status {
            Status::SUCCESS => {}
            status => return Err(status),
        }
        let mut data = vec![0; bytes];
        self.host.memory.read(0, &mut data);
        let value = |block: &[u8]| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block has two values");
            block[0]
        };
        Ok(data.chunks(block_bytes).map(value).collect())
    }

    pub(crate) fn flush(&mut self) {
        assert_eq!(self.io(Sqe::flush(1), 0).status, Status::SUCCESS);
    }

    /// Flushes, and cuts the power.
    pub(crate) fn restart(self) -> Bench {
        let drive = self.drive.power_cut().power_on().unwrap();
        let mut next = Bench { drive, host: self.host };
        next.host = Host::with_queue(&mut next.drive);
        next
    }

    fn admin(&mut self, command: AdminCommand, bytes: usize) -> Vec<u8> {
        let mut sqe = command.to_sqe();
        sqe.set_sgl(self.host.block(ADMIN_PAGE, bytes as u32));
        assert_eq!(self.host.admin(&mut self.drive, sqe).status, Status::SUCCESS);
        let mut data = vec![0; bytes];
        self.host.memory.read(ADMIN_PAGE as usize * PAGE_BYTES, &mut data);
        data
    }

    /// Returns the status and the logical block of the newest entry of the error log.
    pub(crate) fn newest_error(&mut self) -> (Status, u64) {
        let (lid, nsid, bytes) = (log_page::ERROR, u32::MAX, 64);
        let command = AdminCommand::GetLogPage { lid, nsid, bytes, offset: 0, retain: false };
        let entry = ErrorEntry::from_bytes(*self.admin(command, 64).first_chunk().unwrap());
        (entry.status(), entry.lba.get())
    }

    pub(crate) fn identify(&mut self) -> (IdentifyController, IdentifyNamespace) {
        let mut data = |cns| -> [u8; IDENTIFY_BYTES] {
            let command = AdminCommand::Identify { cns, nsid: 1 };
            self.admin(command, IDENTIFY_BYTES).try_into().unwrap()
        };
        (
            IdentifyController::from_bytes(data(cns::CONTROLLER)),
            IdentifyNamespace::from_bytes(data(cns::NAMESPACE)),
        )
    }
}
