//! [`AhciController`]: the controller.

use std::sync::Arc;

use clock::{Component, Nanos, TimerQueue};
use ring::PciFunction;
use sata::COMMAND_SLOTS_MAX;
use sata::ata::status;
use sata::hba::{self, cap, ghc};
use sata::port::{self, cmd, sctl};

use super::config::{AhciConfig, AhciConfigError};
use super::disk::{InjectedSectorError, SataDisk};
use super::fetch::{CommandKind, NextStep};
use super::port::Port;
use super::stats::AhciStats;
use crate::stats::LatenessRecord;

/// How far a command is.
#[derive(Clone, Copy, Debug)]
enum CommandStep {
    /// A read's data is with the drive's processor.
    Array,
    /// The data has passed the link.
    Link,
    /// The data of a write has passed the uplink.
    Uplink,
    /// Everything is done.
    Done,
}

#[derive(Clone, Copy, Debug)]
enum AhciEvent {
    LinkUp { inserted: bool },
    Command { slot: u8, step: CommandStep },
}

#[derive(Clone, Copy, Debug)]
struct TimedEvent {
    port: u8,
    epoch: u32,
    event: AhciEvent,
}

/// An AHCI controller and its SATA drives.
///
/// Reads and writes registers of its [`PciFunction`] and memory registered there, and calls nobody:
/// whoever polls it gives it a runner's waker by [`PciFunction::set_device_waker`].
///
/// # The line
/// The controller sets a port's bit of IS when one of PxIS is set that PxIE enables, and sets it again
/// if the host cleared it while that is still so. If GHC.IE is set it raises the line when a bit
/// appears in IS, when a port has something new after it had nothing, and when the host has cleared
/// some bits and left others (AHCI 1.3.1 section 10.7, as for message signalled interrupts). Enabling
/// interrupts with bits set raises it too.
#[derive(Debug)]
pub struct AhciController {
    function: Arc<PciFunction>,
    ports: Vec<Port>,
    /// Drives that were unplugged, by port.
    unplugged: Vec<Option<SataDisk>>,
    link_up: Nanos,
    uplink_bytes_per_sec: u64,
    /// When the uplink is free.
    uplink_free_at: Nanos,
    events: TimerQueue<TimedEvent>,
    /// Bits of IS that the line was raised for.
    signaled: u32,
    stats: AhciStats,
    lateness: LatenessRecord,
}

impl AhciController {
    /// A controller at one end of `function`, powered on at time zero.
    ///
    /// # Errors
    /// [`AhciConfigError`].
    pub fn new(
        function: Arc<PciFunction>,
        config: &AhciConfig,
    ) -> Result<AhciController, AhciConfigError> {
        config.check()?;
        let count = config.drives.len();
        if function.register_bytes() < hba::bytes(count) {
            let bytes = function.register_bytes();
            return Err(AhciConfigError::Registers { bytes, ports: count });
        }
        let mut ports = Vec::with_capacity(count);
        for (index, drive) in config.drives.iter().enumerate() {
            let disk = drive.as_ref().map(SataDisk::new).transpose()?;
            ports.push(Port::new(index as u8, disk));
        }
        let mut controller = AhciController {
            unplugged: (0..count).map(|_| None).collect(),
            ports,
            link_up: config.link_up,
            uplink_bytes_per_sec: config.uplink_bytes_per_sec,
            uplink_free_at: Nanos::ZERO,
            events: TimerQueue::with_capacity(count * (COMMAND_SLOTS_MAX + 2)),
            signaled: 0,
            stats: AhciStats::default(),
            lateness: LatenessRecord::new(),
            function,
        };
        controller.reset(Nanos::ZERO);
        Ok(controller)
    }

    /// The connection to the host.
    pub fn function(&self) -> &Arc<PciFunction> {
        &self.function
    }

    /// What was done.
    pub fn stats(&self) -> AhciStats {
        let drives = self.ports.iter().zip(&self.unplugged);
        let drives = drives.map(|(port, drawer)| {
            port.disk.as_ref().or(drawer.as_ref()).map_or_else(Default::default, |disk| disk.stats)
        });
        AhciStats { late: self.lateness.read(), drives: drives.collect(), ..self.stats.clone() }
    }

    /// Counts from zero again.
    pub fn reset_stats(&mut self) {
        self.stats = AhciStats::default();
        self.lateness.reset();
        let drawers = self.unplugged.iter_mut().flatten();
        for disk in self.ports.iter_mut().filter_map(|port| port.disk.as_mut()).chain(drawers) {
            disk.stats = Default::default();
        }
    }

    /// Makes sectors of the drive at `port` fail from now on. Returns whether there is one.
    pub fn inject_sector_error(&mut self, port: usize, fault: InjectedSectorError) -> bool {
        let disk = self.ports.get_mut(port).and_then(|port| port.disk.as_mut());
        disk.map(|disk| disk.injected_errors.push(fault)).is_some()
    }

    /// Makes all sectors of the drive at `port` good again.
    pub fn clear_sector_errors(&mut self, port: usize) {
        if let Some(disk) = self.ports.get_mut(port).and_then(|port| port.disk.as_mut()) {
            disk.injected_errors.clear();
        }
    }

    /// Pulls the drive at `port` out; it keeps what it stores. Returns whether there was one.
    pub fn unplug(&mut self, port: usize, now: Nanos) -> bool {
        let Some(place) = self.ports.get_mut(port) else { return false };
        if place.disk.is_none() {
            return false;
        }
        place.link_down(&self.function, now);
        self.unplugged[port] = place.disk.take();
        self.function.write(place.at(port::SSTS), 0);
        place.on_phy_change(&self.function, false);
        true
    }

    /// Puts the drive that was pulled out of `port` back. Returns whether there was one.
    pub fn plug(&mut self, port: usize, now: Nanos) -> bool {
        let Some(disk) = self.unplugged.get_mut(port).and_then(Option::take) else { return false };
        let place = &mut self.ports[port];
        place.disk = Some(disk);
        place.link_down(&self.function, now);
        let event = AhciEvent::LinkUp { inserted: true };
        self.schedule(now + self.link_up, port, event);
        true
    }

    fn schedule(&mut self, at: Nanos, port: usize, event: AhciEvent) {
        let epoch = match event {
            AhciEvent::LinkUp { .. } => self.ports[port].link_epoch,
            AhciEvent::Command { .. } => self.ports[port].epoch,
        };
        self.events.push(at, TimedEvent { port: port as u8, epoch, event });
    }

    /// Reset of the whole controller (AHCI 1.3.1 section 10.4.3).
    fn reset(&mut self, now: Nanos) {
        for index in 0..self.ports.len() {
            let port = &mut self.ports[index];
            port.clear_registers(&self.function);
            port.link_down(&self.function, now);
            if port.disk.is_some() {
                self.schedule(now + self.link_up, index, AhciEvent::LinkUp { inserted: false });
            }
        }
        let count = self.ports.len() as u32;
        let implemented = u32::MAX >> (32 - count);
        let capabilities = cap::encode_counts(count, COMMAND_SLOTS_MAX as u32)
            | cap::SNCQ
            | cap::S64A
            | cap::SAM
            | cap::SCLO
            | cap::ISS_GEN3;
        self.function.write(hba::CAP, capabilities);
        self.function.write(hba::PI, implemented);
        self.function.write(hba::VS, hba::VERSION_1_3_1);
        self.function.write(hba::IS, 0);
        self.signaled = 0;
        // Last: HR, which this clears, tells the host that the rest is done.
        self.function.write(hba::GHC, ghc::AE);
    }

    /// `bytes` pass the uplink from `now` on: when they have.
    #[inline]
    fn transfer(&mut self, now: Nanos, bytes: u64) -> Nanos {
        let time = Nanos::transfer(bytes, self.uplink_bytes_per_sec);
        self.stats.uplink_busy += time;
        self.uplink_free_at = self.uplink_free_at.max(now) + time;
        self.uplink_free_at
    }

    /// Something is due at `at`, which is `now` or, when nobody polled in time, earlier.
    #[inline]
    fn handle_event(
        &mut self,
        at: Nanos,
        now: Nanos,
        TimedEvent { port: index, epoch, event }: TimedEvent,
    ) {
        let index = usize::from(index);
        let port = &mut self.ports[index];
        let (slot, step) = match event {
            AhciEvent::LinkUp { inserted } => {
                if epoch == port.link_epoch {
                    port.link_up(&self.function, inserted);
                }
                return;
            }
            AhciEvent::Command { slot, step } => (slot, step),
        };
        if epoch != port.epoch {
            return;
        }
        let command = port.commands[usize::from(slot)];
        let write = matches!(command.kind, CommandKind::Write { .. });
        let next = match step {
            CommandStep::Array if port.fail_if_injected(&self.function, slot) => None,
            CommandStep::Array | CommandStep::Uplink => {
                let disk = port.disk.as_mut();
                disk.map(|disk| (disk.transfer(at, command.bytes), CommandStep::Link))
            }
            CommandStep::Link if write => {
                port.store_data(&self.function, at, slot).map(|done| (done, CommandStep::Done))
            }
            CommandStep::Link => Some((self.transfer(at, command.bytes), CommandStep::Done)),
            CommandStep::Done => {
                port.finish_command(&self.function, slot);
                self.lateness.record(now.since(at));
                None
            }
        };
        if let Some((at, step)) = next {
            self.schedule(at, index, AhciEvent::Command { slot, step });
        }
    }

    /// Does what the host has written into a port's registers. Returns whether there was anything.
    #[inline]
    fn poll_port(&mut self, index: usize, now: Nanos) -> bool {
        let port = &mut self.ports[index];
        let function = &self.function;
        let command = port.read(function, port::CMD);
        let mut moved = false;
        let comreset = sctl::det(port.read(function, port::SCTL)) != 0;
        if comreset != port.comreset {
            port.comreset = comreset;
            moved = true;
            if comreset {
                port.link_down(function, now);
            }
            if let Some(disk) = &mut port.disk {
                disk.stats.resets += u64::from(comreset);
                if !comreset {
                    self.schedule(now + self.link_up, index, AhciEvent::LinkUp { inserted: false });
                }
            }
        }
        let port = &mut self.ports[index];
        let function = &self.function;
        if (command & cmd::FRE != 0) != (command & cmd::FR != 0) {
            moved = true;
            match command & cmd::FRE != 0 {
                true => function.set_bits(port.at(port::CMD), cmd::FR),
                false => function.clear_bits(port.at(port::CMD), cmd::FR),
            };
        }
        if command & cmd::CLO != 0 {
            moved = true;
            let busy = u32::from(status::BSY | status::DRQ);
            function.clear_bits(port.at(port::TFD), busy);
            function.clear_bits(port.at(port::CMD), cmd::CLO);
        }
        if port.running && command & cmd::ST == 0 {
            moved = true;
            port.on_stop(function);
        } else if !port.running && command & cmd::ST != 0 && port.link_is_up {
            moved = true;
            port.running = true;
            function.set_bits(port.at(port::CMD), cmd::CR);
        }
        if !port.running || !port.link_is_up {
            return moved;
        }
        // A drive that is busy with a command that is not queued is sent no other one.
        let mut issued = port.read(function, port::CI);
        while issued != 0
            && !self.ports[index].stopped_on_error
            && self.ports[index].non_queued_slot.is_none()
        {
            moved = true;
            let slot = issued.trailing_zeros() as u8;
            issued &= issued - 1;
            match self.ports[index].fetch_command(&self.function, now, slot) {
                Some(NextStep::ReadyAt(at)) => {
                    let queued = self.ports[index].non_queued_slot.is_none();
                    let step = if queued { CommandStep::Array } else { CommandStep::Done };
                    self.schedule(at, index, AhciEvent::Command { slot, step });
                }
                Some(NextStep::NeedsUplink) => {
                    let bytes = self.ports[index].commands[usize::from(slot)].bytes;
                    let at = self.transfer(now, bytes);
                    self.schedule(
                        at,
                        index,
                        AhciEvent::Command { slot, step: CommandStep::Uplink },
                    );
                }
                None => {}
            }
        }
        moved
    }

    /// Sets the bits of IS that have a reason, and raises the line if it must be. Returns whether it
    /// was.
    #[inline]
    fn update_interrupts(&mut self) -> bool {
        let (mut reasons, mut edge) = (0, false);
        for port in &mut self.ports {
            edge |= std::mem::take(&mut port.edge);
            if port.read(&self.function, port::IS) & port.read(&self.function, port::IE) != 0 {
                reasons |= 1 << port.index;
            }
        }
        let set = self.function.read(hba::IS);
        let missing = reasons & !set;
        let appeared =
            if missing == 0 { 0 } else { missing & !self.function.set_bits(hba::IS, missing) };
        let set = set | appeared;
        if self.function.read(hba::GHC) & ghc::IE == 0 {
            self.signaled = 0;
            return false;
        }
        let enabled_late = set & !self.signaled != 0;
        let some_cleared = set != 0 && self.signaled & !set != 0;
        self.signaled = set;
        let raise = appeared != 0 || edge || enabled_late || some_cleared;
        if raise {
            self.stats.interrupts += 1;
            self.function.raise_interrupt();
        }
        raise
    }
}

impl Component for AhciController {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        if self.function.read(hba::GHC) & ghc::HR != 0 {
            self.reset(now);
            moved = true;
        }
        // What was due happens when it was due; then what the host asks for, which is now.
        while let Some((at, timed)) = self.events.pop_due(now) {
            self.handle_event(at, now, timed);
            moved = true;
        }
        for index in 0..self.ports.len() {
            moved |= self.poll_port(index, now);
        }
        moved | self.update_interrupts()
    }

    fn deadline(&self) -> Nanos {
        self.events.next_at()
    }
}
