//! [`SataPort`]: the state of a port, and its registers [AHCI1.3 §3.3].

use ahci::ata::{QueuedErrorLog, error, status};
use ahci::port::{self, cmd, is, serr, ssts};
use ahci::{COMMAND_SLOTS_MAX, PioSetup, RegisterD2h, SetDeviceBits, hba, received};
use mem::Iova;
use time::Nanos;
use transport::PciFunction;
use zerocopy::IntoBytes;

use super::disk::SataDisk;
use super::fetch::FetchedCommand;

#[derive(Debug)]
pub(super) struct SataPort {
    pub(super) index: u8,
    pub(super) disk: Option<SataDisk>,
    /// The link is up.
    pub(super) link_is_up: bool,
    /// PxSCTL.DET was nonzero when it was last read.
    pub(super) comreset: bool,
    /// PxCMD.CR.
    pub(super) running: bool,
    /// An error stopped the port until PxCMD.ST is cleared.
    pub(super) stopped_on_error: bool,
    /// Tags of queued commands in flight.
    pub(super) queued: u32,
    /// Slot of the non-queued command in flight.
    pub(super) non_queued_slot: Option<u8>,
    pub(super) commands: [FetchedCommand; COMMAND_SLOTS_MAX],
    /// Events of commands from an earlier epoch are stale.
    pub(super) epoch: u32,
    /// Events of the link from an earlier epoch are stale.
    pub(super) link_epoch: u32,
    /// An enabled bit of PxIS was set after none had been set.
    pub(super) edge: bool,
}

/// Status register of an idle drive.
const READY: u8 = status::DRDY;

impl SataPort {
    pub(super) fn new(index: u8, disk: Option<SataDisk>) -> SataPort {
        SataPort {
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

    /// Reads an address from two registers, with the alignment bits cleared.
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

    /// Stores a received FIS in the host's receive area.
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

    /// Drops the drive's commands.
    fn drop_commands(&mut self) {
        let dropped = self.queued.count_ones() + u32::from(self.non_queued_slot.is_some());
        if let Some(disk) = &mut self.disk {
            disk.stats.dropped += u64::from(dropped);
        }
        (self.queued, self.non_queued_slot) = (0, None);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Completes a queued command with success.
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

    /// Fails a queued command; the drive drops all queued commands (\[ACS3\], NCQ feature set).
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

    /// Completes a non-queued command with success.
    pub(super) fn complete_non_queued(&mut self, function: &PciFunction, slot: u8) {
        let fis = RegisterD2h::new(READY, 0);
        self.store_fis(function, received::REGISTER, fis.as_bytes());
        self.clear_slot(function, slot, is::DHRS);
    }

    /// Completes a non-queued command with success after a PIO transfer of `bytes` bytes to the
    /// host.
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

    /// Fails a command with a Register FIS: it is not queued, or the drive does not accept it now.
    /// Queued commands in flight fail as well; the log then states that no queued command was the
    /// cause.
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

    /// Aborts a command that the drive does not support, or does not accept now.
    pub(super) fn abort_command(&mut self, function: &PciFunction) {
        self.fail_non_queued(function, 0, error::ABRT);
    }

    /// Reports an error after which the controller cannot continue [AHCI1.3 §6.1].
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

    /// Handles the host's clearing of PxCMD.ST [AHCI1.3 §3.3.7]. The drive drops its commands; a
    /// drive that was executing a non-queued command stays busy until it is reset.
    pub(super) fn on_stop(&mut self, function: &PciFunction) {
        self.drop_commands();
        (self.running, self.stopped_on_error) = (false, false);
        function.write(self.at(port::SACT), 0);
        function.write(self.at(port::CI), 0);
        function.clear_bits(self.at(port::CMD), cmd::CR | cmd::CCS);
    }

    /// Takes the link down, for an unplugged drive or a reset.
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

    /// Takes the link up, and stores the drive's signature. PxSSTS, which the host watches, is
    /// written last.
    pub(super) fn link_up(&mut self, function: &PciFunction, inserted: bool) {
        self.link_is_up = true;
        self.on_phy_change(function, inserted);
        function.write(self.at(port::SIG), port::SIGNATURE_ATA);
        self.write_task_file(function, READY, 0);
        self.store_fis(function, received::REGISTER, RegisterD2h::new(READY, 0).as_bytes());
        function.write(self.at(port::SSTS), ssts::DET_UP | ssts::GEN3_ACTIVE);
    }

    /// Records a change of PhyRdy; `inserted` if a drive was plugged in.
    pub(super) fn on_phy_change(&mut self, function: &PciFunction, inserted: bool) {
        let (diagnosis, bits) = match inserted {
            true => (serr::DIAG_N | serr::DIAG_X, is::PRCS | is::PCS),
            false => (serr::DIAG_N, is::PRCS),
        };
        function.set_bits(self.at(port::SERR), diagnosis);
        self.set_interrupt_bits(function, bits);
    }

    /// Sets every register of the port to its power-on value, at a controller reset.
    pub(super) fn clear_registers(&mut self, function: &PciFunction) {
        for register in (0..hba::PORT_BYTES).step_by(4).filter(|r| *r != port::SSTS) {
            function.write(self.at(register), 0);
        }
        (self.running, self.stopped_on_error, self.comreset, self.edge) =
            (false, false, false, false);
    }
}
