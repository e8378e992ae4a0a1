//! [`AhciController`]: the AHCI controller's registers, events and interrupts.

use std::sync::Arc;

use ahci::COMMAND_SLOTS_MAX;
use ahci::ata::status;
use ahci::hba::{self, cap, ghc};
use ahci::port::{self, cmd, sctl};
use time::{Component, Nanos, TimerQueue};
use transport::PciFunction;

use super::config::{AhciConfig, AhciConfigError};
use super::disk::{InjectedSectorError, SataDisk};
use super::fetch::{CommandKind, CommandReadiness};
use super::port::SataPort;
use super::stats::AhciStats;
use crate::lateness::{GapLog, LatenessRecord};

/// The next step of a command.
#[derive(Clone, Copy, Debug)]
enum CommandStep {
    /// The data of a read reaches the drive's processor.
    Array,
    /// The data has passed the link.
    Link,
    /// The data of a write has passed the uplink.
    Uplink,
    /// The command completes.
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
/// The controller accesses only the registers of its [`PciFunction`] and the memory registered
/// there. It calls no other component: the caller that polls it installs a runner's waker with
/// [`PciFunction::set_device_waker`].
///
/// # Interrupt line
/// The controller sets a port's bit of IS when PxIS has a bit that PxIE enables. It sets the bit
/// again if the host clears it while the condition persists. If GHC.IE is set, the controller
/// raises the line in three cases, as for message signaled interrupts [AHCI1.3 §10.7]. A bit
/// appears in IS; a port gets an enabled PxIS bit after it had none; or the host has cleared some
/// bits of IS and left others. Setting GHC.IE while bits are set raises the line as well.
#[derive(Debug)]
pub struct AhciController {
    function: Arc<PciFunction>,
    ports: Vec<SataPort>,
    /// Unplugged drives, by port.
    unplugged: Vec<Option<SataDisk>>,
    link_up: Nanos,
    uplink_bytes_per_sec: u64,
    /// Time at which the uplink becomes free.
    uplink_free_at: Nanos,
    events: TimerQueue<TimedEvent>,
    /// Bits of IS for which the line was raised.
    signaled: u32,
    stats: AhciStats,
    lateness: LatenessRecord,
    gaps: GapLog,
    /// Whether commands take no time.
    zero_latency: bool,
}

impl AhciController {
    /// Creates a controller on the device side of `function`, powered on at time zero.
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
            ports.push(SataPort::new(index as u8, disk));
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
            gaps: GapLog::default(),
            zero_latency: false,
            function,
        };
        controller.reset(Nanos::ZERO);
        Ok(controller)
    }

    /// Returns the PCI function that connects to the host.
    pub fn function(&self) -> &Arc<PciFunction> {
        &self.function
    }

    /// Returns the counters.
    pub fn stats(&self) -> AhciStats {
        let drives = self.ports.iter().zip(&self.unplugged);
        let drives = drives.map(|(port, drawer)| {
            port.disk.as_ref().or(drawer.as_ref()).map_or_else(Default::default, |disk| disk.stats)
        });
        AhciStats { late: self.lateness.read(), drives: drives.collect(), ..self.stats.clone() }
    }

    /// Records that the machine did not run the controller's thread from `from` to `to`, as
    /// [`Controller::record_thread_gap`](crate::Controller::record_thread_gap) does.
    pub fn record_thread_gap(&mut self, from: Nanos, to: Nanos) {
        self.gaps.add(from, to);
    }

    /// Returns the distribution of completion lateness, from which intervals can be derived.
    pub fn lateness(&self) -> &LatenessRecord {
        &self.lateness
    }

    /// Returns the number of commands in the drives.
    pub fn outstanding(&self) -> usize {
        let commands =
            |port: &SataPort| port.queued.count_ones() + u32::from(port.non_queued_slot.is_some());
        self.ports.iter().map(commands).sum::<u32>() as usize
    }

    /// Switches the time of commands off, to precondition drives quickly, or on again. Commands in
    /// flight complete at the times already set.
    pub fn set_zero_latency(&mut self, instant: bool) {
        self.zero_latency = instant;
        for disk in self.ports.iter_mut().filter_map(|port| port.disk.as_mut()) {
            disk.zero_latency = instant;
        }
    }

    /// Resets the counters to zero.
    pub fn reset_stats(&mut self) {
        self.stats = AhciStats::default();
        self.lateness.reset();
        let drawers = self.unplugged.iter_mut().flatten();
        for disk in self.ports.iter_mut().filter_map(|port| port.disk.as_mut()).chain(drawers) {
            disk.stats = Default::default();
        }
    }

    /// Makes sectors of the drive at `port` fail from now on. Returns whether the port has a drive.
    pub fn inject_sector_error(&mut self, port: usize, fault: InjectedSectorError) -> bool {
        let disk = self.ports.get_mut(port).and_then(|port| port.disk.as_mut());
        disk.map(|disk| disk.injected_errors.push(fault)).is_some()
    }

    /// Removes all injected sector errors of the drive at `port`.
    pub fn clear_sector_errors(&mut self, port: usize) {
        if let Some(disk) = self.ports.get_mut(port).and_then(|port| port.disk.as_mut()) {
            disk.injected_errors.clear();
        }
    }

    /// Unplugs the drive at `port`, which keeps its data. Returns whether there was one.
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

    /// Plugs the unplugged drive of `port` in again. Returns whether there was one.
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

    /// Resets the whole controller [AHCI1.3 §10.4.3].
    fn reset(&mut self, now: Nanos) {
        tracing::info!(at = now.0, "AHCI controller reset");
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
        // Clear HR last: it tells the host that the reset is complete.
        self.function.write(hba::GHC, ghc::AE);
    }

    /// Reserves the uplink for `bytes` bytes and returns the end of the transfer.
    #[inline]
    fn transfer(&mut self, now: Nanos, bytes: u64) -> Nanos {
        if self.zero_latency {
            return now;
        }
        let time = Nanos::transfer(bytes, self.uplink_bytes_per_sec);
        self.stats.uplink_busy += time;
        self.uplink_free_at = self.uplink_free_at.max(now) + time;
        self.uplink_free_at
    }

    /// Handles an event at its time `at`, which is before `now` if the poll is late.
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
                self.lateness.record_completion(at, now, &self.gaps);
                None
            }
        };
        if let Some((at, step)) = next {
            self.schedule(at, index, AhciEvent::Command { slot, step });
        }
    }

    /// Handles the host's writes to the registers of a port. Returns whether there were any.
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
        // A drive that executes a non-queued command receives no other command.
        let mut issued = port.read(function, port::CI);
        while issued != 0
            && !self.ports[index].stopped_on_error
            && self.ports[index].non_queued_slot.is_none()
        {
            moved = true;
            let slot = issued.trailing_zeros() as u8;
            issued &= issued - 1;
            match self.ports[index].fetch_command(&self.function, now, slot) {
                Some(CommandReadiness::ReadyAt(at)) => {
                    let queued = self.ports[index].non_queued_slot.is_none();
                    let step = if queued { CommandStep::Array } else { CommandStep::Done };
                    self.schedule(at, index, AhciEvent::Command { slot, step });
                }
                Some(CommandReadiness::NeedsUplink) => {
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

    /// Sets the bits of IS whose conditions hold, and raises the line if necessary. Returns whether
    /// it was raised.
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
        // First handle due events at their own times, then the host's requests at the present time.
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
