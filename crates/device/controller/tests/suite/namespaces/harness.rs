//! [`NamespaceBench`]: a drive, and a host that manages its namespaces and sends single commands.

use controller::{Controller, DriveConfig};
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, ControllerList, ErrorEntry, IdentifyNamespace, NamespaceChange, NewNamespace,
    SecureErase, Sqe, Status, log_page,
};
use time::{Component, Nanos};

use crate::hostile::host::Host;

/// Page of the host's memory with the data of admin commands.
const ADMIN_PAGE: u64 = 62;

pub(super) struct NamespaceBench {
    pub(super) drive: Controller,
    pub(super) host: Host,
    pub(super) block_bytes: usize,
}

impl NamespaceBench {
    pub(super) fn new(config: DriveConfig) -> NamespaceBench {
        let block_bytes = config.lba_bytes() as usize;
        let mut drive = Controller::new(config).unwrap();
        let host = Host::with_queue(&mut drive);
        NamespaceBench { drive, host, block_bytes }
    }

    /// Returns the entry of an admin command with a page of data for the drive.
    pub(super) fn with_data(&mut self, command: AdminCommand, data: &[u8; 4096]) -> Sqe {
        let mut sqe = command.to_sqe();
        self.host.memory.write(ADMIN_PAGE as usize * PAGE_BYTES, data);
        sqe.set_sgl(self.host.block(ADMIN_PAGE, 4096));
        sqe
    }

    pub(super) fn create_entry(&mut self, new: NewNamespace) -> Sqe {
        let change = NamespaceChange::Create;
        self.with_data(AdminCommand::NamespaceManagement { change, nsid: 0 }, &new.to_bytes())
    }

    pub(super) fn attach_entry(&mut self, nsid: u32, attach: bool) -> Sqe {
        let list = ControllerList::of(&[0]).to_bytes();
        self.with_data(AdminCommand::NamespaceAttachment { nsid, attach }, &list)
    }

    pub(super) fn delete_entry(nsid: u32) -> Sqe {
        let change = NamespaceChange::Delete;
        AdminCommand::NamespaceManagement { change, nsid }.to_sqe()
    }

    pub(super) fn format_entry(nsid: u32, erase: SecureErase) -> Sqe {
        AdminCommand::FormatNvm { nsid, lba_format: 0, protection: 0, erase }.to_sqe()
    }

    pub(super) fn admin(&mut self, sqe: Sqe) -> Status {
        self.host.admin(&mut self.drive, sqe).status
    }

    /// Creates a namespace. Returns its identifier.
    pub(super) fn create(&mut self, blocks: u64) -> Result<u32, Status> {
        let dps = u8::from(self.drive.config().protection.is_some());
        let sqe = self.create_entry(NewNamespace { dps, ..NewNamespace::with_blocks(blocks) });
        let cqe = self.host.admin(&mut self.drive, sqe);
        if cqe.status.is_success() { Ok(cqe.result as u32) } else { Err(cqe.status) }
    }

    /// Creates a namespace and attaches it.
    pub(super) fn add(&mut self, blocks: u64) -> u32 {
        let nsid = self.create(blocks).unwrap();
        assert_eq!(self.attach(nsid, true), Status::SUCCESS);
        nsid
    }

    pub(super) fn attach(&mut self, nsid: u32, attach: bool) -> Status {
        let sqe = self.attach_entry(nsid, attach);
        self.admin(sqe)
    }

    pub(super) fn delete(&mut self, nsid: u32) -> Status {
        self.admin(NamespaceBench::delete_entry(nsid))
    }

    /// Submits an admin command without waiting for it.
    pub(super) fn send(&mut self, mut sqe: Sqe) {
        self.host.cid += 1;
        sqe.cid = self.host.cid.into();
        self.host.admin.0.push(&sqe).unwrap();
        self.host.admin.0.ring();
    }

    /// Runs the drive for up to `events` instants, and returns the completion of an admin command.
    pub(super) fn run(&mut self, events: u64) -> Option<Status> {
        for _ in 0..events {
            while self.drive.poll(self.host.now) {}
            if let Some(cqe) = self.host.admin.1.pop() {
                self.host.admin.1.release();
                self.host.admin.0.update_head(cqe.sq_head);
                return Some(cqe.status);
            }
            match self.drive.deadline() {
                Nanos::MAX => return None,
                at => self.host.now = self.host.now.max(at),
            }
        }
        None
    }

    /// Executes a command, with data from the first page of the host's memory on.
    pub(super) fn io(&mut self, nsid: u32, mut sqe: Sqe, blocks: usize) -> Status {
        sqe.nsid = nsid.into();
        sqe.set_sgl(self.host.block(0, (blocks * self.block_bytes) as u32));
        self.host.io(&mut self.drive, sqe).status
    }

    /// Fills the host's memory with a value per block.
    pub(super) fn fill(&mut self, values: &[u8]) {
        for (block, value) in values.iter().enumerate() {
            self.host.memory.fill(block * self.block_bytes, self.block_bytes, *value);
        }
    }

    pub(super) fn write(&mut self, nsid: u32, lba: u64, values: &[u8]) -> Status {
        self.fill(values);
        self.io(nsid, Sqe::write(1, lba, values.len() as u32, false), values.len())
    }

    pub(super) fn read(&mut self, nsid: u32, lba: u64, blocks: u32) -> Result<Vec<u8>, Status> {
        let bytes = blocks as usize * self.block_bytes;
        self.host.memory.fill(0, bytes, 0xee);
        match self.io(nsid, Sqe::read(1, lba, blocks), blocks as usize) {
            Status::SUCCESS => {}
            status => return Err(status),
        }
        let mut data = vec![0; bytes];
        self.host.memory.read(0, &mut data);
        let value = |block: &[u8]| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block has two values");
            block[0]
        };
        Ok(data.chunks(self.block_bytes).map(value).collect())
    }

    /// Reads a whole namespace.
    pub(super) fn read_all(&mut self, nsid: u32, blocks: u64) -> Vec<u8> {
        let mut values = Vec::new();
        while (values.len() as u64) < blocks {
            let at = values.len() as u64;
            values.extend(self.read(nsid, at, (blocks - at).min(32) as u32).unwrap());
        }
        values
    }

    pub(super) fn flush(&mut self) {
        assert_eq!(self.io(u32::MAX, Sqe::flush(1), 0), Status::SUCCESS);
    }

    /// Cuts the power.
    pub(super) fn restart(self) -> NamespaceBench {
        let mut drive = self.drive.power_cut().power_on().unwrap();
        let host = Host::with_queue(&mut drive);
        NamespaceBench { drive, host, ..self }
    }

    /// Returns the data of an Identify.
    pub(super) fn identify(&mut self, cdw10: u32, nsid: u32) -> Result<[u8; 4096], Status> {
        let mut sqe = AdminCommand::Identify { cns: cdw10 as u8, nsid }.to_sqe();
        sqe.cdw10 = cdw10.into();
        self.query(sqe)
    }

    /// Executes an admin command that returns a page.
    pub(super) fn query(&mut self, mut sqe: Sqe) -> Result<[u8; 4096], Status> {
        sqe.set_sgl(self.host.block(ADMIN_PAGE, 4096));
        let status = self.admin(sqe);
        let mut data = [0; 4096];
        self.host.memory.read(ADMIN_PAGE as usize * PAGE_BYTES, &mut data);
        if status.is_success() { Ok(data) } else { Err(status) }
    }

    pub(super) fn namespace(&mut self, nsid: u32) -> IdentifyNamespace {
        IdentifyNamespace::from_bytes(self.identify(0x11, nsid).unwrap())
    }

    /// Returns the unallocated capacity in bytes.
    pub(super) fn unallocated(&mut self) -> u64 {
        let data = self.identify(1, 0).unwrap();
        u64::from_le_bytes(data[296..304].try_into().unwrap())
    }

    /// Returns the newest entry of the error log.
    pub(super) fn newest_error(&mut self) -> ErrorEntry {
        let (lid, nsid, bytes) = (log_page::ERROR, u32::MAX, 4096);
        let command = AdminCommand::GetLogPage { lid, nsid, bytes, offset: 0, retain: false };
        let page = self.query(command.to_sqe()).unwrap();
        ErrorEntry::from_bytes(*page.first_chunk().unwrap())
    }
}
