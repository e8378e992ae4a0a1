//! [`Port`]: what is going on at a port, and how that ends in its registers (AHCI 1.3.1 section 3.3).

use clock::Nanos;
use ring::{Iova, PciFunction};
use sata::ata::{QueuedErrorLog, error, status};
use sata::port::{self, cmd, is, serr, ssts};
use sata::{COMMAND_SLOTS_MAX, PioSetup, RegisterD2h, SetDeviceBits, hba, received};
use zerocopy::IntoBytes;

use super::disk::SataDisk;
use super::fetch::FetchedCommand;

#[derive(Debug)]
pub(super) struct Port {
    pub(super) index: u8,
    pub(super) disk: Option<SataDisk>,
    /// The link is up.
    pub(super) link_is_up: bool,
    /// PxSCTL.DET was last seen different from 0.
    pub(super) comreset: bool,
    /// PxCMD.CR.
    pub(super) running: bool,
    /// An error stopped the port until PxCMD.ST is cleared.
    pub(super) stopped_on_error: bool,
    /// Tags of queued commands that the drive has.
    pub(super) queued: u32,
    /// Slot of a command that is not queued.
    pub(super) non_queued_slot: Option<u8>,
    pub(super) commands: [FetchedCommand; COMMAND_SLOTS_MAX],
    /// Events of commands that were taken in another epoch are void.
    pub(super) epoch: u32,
    /// The same for the link's.
    pub(super) link_epoch: u32,
    /// An enabled bit of PxIS was set while there was none.
    pub(super) edge: bool,
}

/// Status register of a drive that waits for commands.
const READY: u8 = status::DRDY;

impl Port {
    pub(super) fn new(index: u8, disk: Option<SataDisk>) -> Port {
        Port {
            index,
            disk,
            link_is_up: false,
            comreset: false,
            running: false,
            stopped_on_error: false,
            queued: 0,
            non_queued_slot: None,
            commands: [FetchedCommand::default(); COMMAND_SLOTS_MAX],
            epoch: 0,
            link_epoch: 0,
            edge: false,
        }
    }

    #[inline]
    pub(super) fn at(&self, register: usize) -> usize {
        hba::port(self.index.into(), register)
    }

    #[inline]
    pub(super) fn read(&self, function: &PciFunction, register: usize) -> u32 {
        function.read(self.at(register))
    }

    /// An address of two registers, with the bits zero that must be.
    #[inline]
    pub(super) fn read_address(&self, function: &PciFunction, low: usize, align: u64) -> Iova {
        let (lower, upper) = (self.read(function, low), self.read(function, low + 4));
        Iova((u64::from(upper) << 32 | u64::from(lower)) & !(align - 1))
    }

    /// Sets bits of PxIS.
    #[inline]
    pub(super) fn set_interrupt_bits(&mut self, function: &PciFunction, bits: u32) {
        let before = function.set_bits(self.at(port::IS), bits);
        let enabled = self.read(function, port::IE);
        self.edge |= before & enabled == 0 && bits & enabled != 0;
    }

    fn write_task_file(&self, function: &PciFunction, status: u8, error: u8) {
        function.write(self.at(port::TFD), u32::from(status) | u32::from(error) << 8);
    }

    /// Stores a received FIS where the host wants it.
    #[inline]
    fn store_fis(&mut self, function: &PciFunction, offset: usize, fis: &[u8]) {
        if self.read(function, port::CMD) & cmd::FRE == 0 {
            return;
        }
        let area = self.read_address(function, port::FB, received::BYTES as u64);
        if function.memory().write(area.offset(offset as u64), fis).is_err() {
            self.fatal_error(function, is::HBFS);
        }
    }

    /// The drive forgets what it was doing.
    fn drop_commands(&mut self) {
        let dropped = self.queued.count_ones() + u32::from(self.non_queued_slot.is_some());
        if let Some(disk) = &mut self.disk {
            disk.stats.dropped += u64::from(dropped);
        }
        (self.queued, self.non_queued_slot) = (0, None);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// A queued command ended well.
    #[inline]
    pub(super) fn complete_queued(&mut self, function: &PciFunction, tag: u8) {
        let bit = 1 << tag;
        let fis = SetDeviceBits::new(READY, 0, bit);
        self.store_fis(function, received::SET_DEVICE_BITS, fis.as_bytes());
        if self.stopped_on_error {
            return;
        }
        self.queued &= !bit;
        self.write_task_file(function, READY, 0);
        function.clear_bits(self.at(port::SACT), bit);
        self.set_interrupt_bits(function, is::SDBS);
    }

    /// A queued command failed: the drive drops all of them (ACS-3, the NCQ feature set).
    pub(super) fn fail_queued(
        &mut self,
        function: &PciFunction,
        tag: u8,
        flags: u8,
        error: u8,
        lba: u64,
    ) {
        let status = READY | status::ERR | flags;
        let log = QueuedErrorLog { not_queued: false, tag, status, error, lba };
        self.fail_all_commands(Some(log));
        self.drop_commands();
        let fis = SetDeviceBits::new(status, error, 0);
        self.store_fis(function, received::SET_DEVICE_BITS, fis.as_bytes());
        self.write_task_file(function, status, error);
        self.stop(function, is::SDBS | is::TFES);
    }

    fn fail_all_commands(&mut self, log: Option<QueuedErrorLog>) {
        if let Some(disk) = &mut self.disk {
            disk.stats.errors += 1;
            disk.queued_error = log.or(disk.queued_error);
        }
    }

    /// A command that is not queued ended well.
    pub(super) fn complete_non_queued(&mut self, function: &PciFunction, slot: u8) {
        let fis = RegisterD2h::new(READY, 0);
        self.store_fis(function, received::REGISTER, fis.as_bytes());
        self.clear_slot(function, slot, is::DHRS);
    }

    /// A command that is not queued ended well, after `bytes` bytes went to the host by PIO.
    pub(super) fn complete_pio(&mut self, function: &PciFunction, slot: u8, bytes: u16) {
        let fis = PioSetup::to_host(bytes);
        self.store_fis(function, received::PIO_SETUP, fis.as_bytes());
        self.clear_slot(function, slot, is::PSS);
    }

    fn clear_slot(&mut self, function: &PciFunction, slot: u8, raise: u32) {
        if self.stopped_on_error {
            return;
        }
        self.non_queued_slot = None;
        self.write_task_file(function, READY, 0);
        function.clear_bits(self.at(port::CI), 1 << slot);
        self.set_interrupt_bits(function, raise);
    }

    /// A command failed with a Register FIS: it is not queued, or not one that the drive takes now.
    /// Queued ones that it has fail with it, of which the log then says that no queued one did.
    pub(super) fn fail_non_queued(&mut self, function: &PciFunction, flags: u8, error: u8) {
        let status = READY | status::ERR | flags;
        let log = QueuedErrorLog { not_queued: true, tag: 0, status, error, lba: 0 };
        self.fail_all_commands((self.queued != 0).then_some(log));
        self.drop_commands();
        let fis = RegisterD2h::new(status, error);
        self.store_fis(function, received::REGISTER, fis.as_bytes());
        self.write_task_file(function, status, error);
        self.stop(function, is::DHRS | is::TFES);
    }

    /// The drive does not know the command, or does not take it now.
    pub(super) fn abort_command(&mut self, function: &PciFunction) {
        self.fail_non_queued(function, 0, error::ABRT);
    }

    /// The controller cannot go on (AHCI 1.3.1 section 6.1).
    pub(super) fn fatal_error(&mut self, function: &PciFunction, bits: u32) {
        if let Some(disk) = &mut self.disk {
            disk.stats.fatal_errors += 1;
        }
        self.drop_commands();
        function.set_bits(self.at(port::SERR), serr::ERR_E);
        self.stop(function, bits);
    }

    fn stop(&mut self, function: &PciFunction, bits: u32) {
        self.stopped_on_error = true;
        self.set_interrupt_bits(function, bits);
    }

    /// The host has cleared PxCMD.ST (AHCI 1.3.1 section 3.3.7). What the drive has is dropped; one
    /// that was busy with a command that is not queued stays busy until it is reset.
    pub(super) fn on_stop(&mut self, function: &PciFunction) {
        self.drop_commands();
        (self.running, self.stopped_on_error) = (false, false);
        function.write(self.at(port::SACT), 0);
        function.write(self.at(port::CI), 0);
        function.clear_bits(self.at(port::CMD), cmd::CR | cmd::CCS);
    }

    /// The link goes down: the drive was unplugged, or is being reset.
    pub(super) fn link_down(&mut self, function: &PciFunction, now: Nanos) {
        self.drop_commands();
        self.link_epoch = self.link_epoch.wrapping_add(1);
        self.link_is_up = false;
        let present = if let Some(disk) = &mut self.disk {
            disk.abort_commands(now);
            disk.queued_error = None;
            ssts::DET_PRESENT
        } else {
            0
        };
        self.write_task_file(function, status::BSY, 0);
        function.write(self.at(port::SSTS), present);
    }

    /// The link is up, and the drive says what it is. PxSSTS, which tells the host, is written
    /// last.
    pub(super) fn link_up(&mut self, function: &PciFunction, inserted: bool) {
        self.link_is_up = true;
        self.on_phy_change(function, inserted);
        function.write(self.at(port::SIG), port::SIGNATURE_ATA);
        self.write_task_file(function, READY, 0);
        self.store_fis(function, received::REGISTER, RegisterD2h::new(READY, 0).as_bytes());
        function.write(self.at(port::SSTS), ssts::DET_UP | ssts::GEN3_ACTIVE);
    }

    /// PhyRdy changed, perhaps because a drive was inserted.
    pub(super) fn on_phy_change(&mut self, function: &PciFunction, inserted: bool) {
        let (diagnosis, bits) = match inserted {
            true => (serr::DIAG_N | serr::DIAG_X, is::PRCS | is::PCS),
            false => (serr::DIAG_N, is::PRCS),
        };
        function.set_bits(self.at(port::SERR), diagnosis);
        self.set_interrupt_bits(function, bits);
    }

    /// The controller is reset: every register of the port is as after power-on.
    pub(super) fn clear_registers(&mut self, function: &PciFunction) {
        for register in (0..hba::PORT_BYTES).step_by(4).filter(|r| *r != port::SSTS) {
            function.write(self.at(register), 0);
        }
        (self.running, self.stopped_on_error, self.comreset, self.edge) =
            (false, false, false, false);
    }
}
