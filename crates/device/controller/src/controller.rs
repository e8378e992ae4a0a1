//! [`Controller`]: the drive itself. It owns the queues, stages and personality that commands pass
//! through ([`crate::command::path`]); this module covers power-on, inspection, shutdown and power
//! cuts.

use std::io;
use std::sync::Arc;

use ftl::Ftl;
use media::{DataStore, MediaConfig, Nand, Pcm};
use nvme::Status;
use rules::{RuleLimits, TableId};
use serde::{Deserialize, Serialize};
use time::{Component, Nanos};
use transport::{DrivePolls, Port};

use crate::admin::AdminState;
use crate::admin::async_events::AsyncEventQueue;
use crate::check::{DrivePart, DriveViolation};
use crate::command::stage::CommandStages;
use crate::command::table::Commands;
use crate::doorbell_wait::DoorbellRecord;
use crate::error::DriveError;
use crate::faults::injection;
use crate::faults::state::FaultState;
use crate::host_interface::device_memory::{DeviceMemory, KeptDeviceMemory};
use crate::host_interface::pmr::{self, DevicePmr};
use crate::host_interface::queues::Queues;
use crate::host_interface::registers;
use crate::lateness::{GapLog, LatenessRecord};
use crate::namespaces::{identify, management};
use crate::nand_array::{ArrayCounters, NandArray};
use crate::persistence::nonvolatile::NonVolatile;
use crate::persistence::power::KeptMemory;
use crate::personality::block::BlockDrive;
use crate::personality::device_l2p::DeviceL2pTable;

use crate::personality::null::NullDrive;
use crate::personality::open_channel::OpenChannelDrive;
use crate::personality::pcm::PcmDrive;
use crate::personality::rules::DriveRules;
use crate::personality::rules::installation;
use crate::personality::rules::{durable, named};
use crate::personality::sanitize;
use crate::stats::CommandTimes;
use crate::{
    BlockCommandStats, DriveConfig, DriveRulesError, DriveStats, Fault, FaultError, FaultRecord,
    NamespaceError, NamespaceInfo, NamespaceReply, NamespaceRequest, PersonalityKind,
    ProtectionErrors, PuBusy, ReadModifyWriteStats, RuleTableEdit, RuleTableInfo, WriteBuffer,
};

/// The interface of the drive, with the media below it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Personality {
    Null(Box<NullDrive>),
    Block(Box<BlockDrive>),
    Pcm(Box<PcmDrive>),
    OpenChannel(Box<OpenChannelDrive>),
}

/// An emulated drive. The caller polls it (ARCHITECTURE.md, R2); hosts connect with
/// [`Controller::attach`].
#[derive(Debug)]
pub struct Controller {
    pub(crate) config: DriveConfig,
    pub(crate) personality: Personality,
    pub(crate) commands: Commands,
    pub(crate) queues: Queues,
    pub(crate) admin: AdminState,
    pub(crate) async_events: AsyncEventQueue,
    /// The memory that hosts access directly.
    pub(crate) memory: DeviceMemory,
    pub(crate) stages: CommandStages,
    pub(crate) zero_latency: bool,
    pub(crate) lateness: LatenessRecord,
    pub(crate) gaps: GapLog,
    /// Command times, if recording is enabled.
    pub(crate) command_times: Option<Box<CommandTimes>>,
    pub(crate) stats: DriveStats,
    pub(crate) time: DriveTime,
    pub(crate) faults: FaultState,
}

/// Times of the drive.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DriveTime {
    pub(crate) powered_at: Option<Nanos>,
    /// Time of the last poll.
    pub(crate) now: Nanos,
    /// The instant that the drive has reached: the time of the last poll, or an earlier one while a
    /// late poll catches up.
    pub(crate) at: Nanos,
    /// Time with at least one command outstanding, up to `busy_since`.
    busy: Nanos,
    /// When the first of the outstanding commands was fetched.
    busy_since: Option<Nanos>,
}

impl DriveTime {
    /// Records that the first command is outstanding.
    #[inline]
    pub(crate) fn begin_busy(&mut self, now: Nanos) {
        self.busy_since = Some(now);
    }

    /// Records that no command is outstanding any more.
    #[inline]
    pub(crate) fn end_busy(&mut self, at: Nanos) {
        if let Some(since) = self.busy_since.take() {
            self.busy += at.since(since);
        }
    }

    /// Returns the time with at least one command outstanding.
    pub(crate) fn busy(&self) -> Nanos {
        self.busy + self.busy_since.map_or(Nanos::ZERO, |since| self.now.since(since))
    }

    /// Advances to an instant at which something happened.
    #[inline]
    pub(crate) fn reach(&mut self, at: Nanos) {
        self.at = self.at.max(at);
        self.now = self.now.max(at);
    }
}

impl Controller {
    /// Powers a drive on. Creates the image if the configuration names one that does not exist;
    /// recovers the data of an existing image.
    ///
    /// # Errors
    /// [`DriveError`] for an invalid configuration, or an image that cannot be opened.
    pub fn new(config: DriveConfig) -> Result<Controller, DriveError> {
        config.check()?;
        let personality = match (&config.media, config.personality) {
            (MediaConfig::Nand(nand), kind) => {
                let array = NandArray::new(Nand::open_or_create(nand.clone())?, &config);
                Controller::nand_personality(array, kind, &config, KeptMemory::default())?
            }
            (MediaConfig::Pcm(pcm), _) => {
                Personality::Pcm(Box::new(PcmDrive::new(Pcm::open_or_create(pcm.clone())?)))
            }
            (MediaConfig::Null { bytes, .. }, _) => {
                let lba_bytes = config.lba_bytes();
                Personality::Null(Box::new(NullDrive::new(config.null, *bytes, lba_bytes)))
            }
        };
        let memory = DeviceMemory::power_on(&config, KeptDeviceMemory::default())?;
        Controller::with_personality(config, personality, memory)
    }

    /// Creates the personality of a NAND drive, from its medium and what its controller has kept.
    pub(crate) fn nand_personality(
        array: NandArray,
        kind: PersonalityKind,
        config: &DriveConfig,
        kept: KeptMemory,
    ) -> Result<Personality, DriveError> {
        Ok(match kind {
            PersonalityKind::OpenChannel => {
                let map = match kept.device_l2p {
                    Some(mut map) => {
                        map.reconcile(&array.nand);
                        Some(map)
                    }
                    None if config.open_channel.device_l2p => {
                        Some(DeviceL2pTable::open(&array.nand)?)
                    }
                    None => None,
                };
                Personality::OpenChannel(Box::new(OpenChannelDrive::new(array, map)?))
            }
            _ => {
                let settings = match kept.settings {
                    Some(settings) => settings,
                    None => NonVolatile::open(&array.nand)?,
                };
                let drive = BlockDrive::new(array, config, settings)?;
                Personality::Block(Box::new(drive))
            }
        })
    }

    pub(crate) fn with_personality(
        config: DriveConfig,
        personality: Personality,
        memory: DeviceMemory,
    ) -> Result<Controller, DriveError> {
        let facts =
            crate::admin::drive_identity::controller_identity(&config, &personality, &memory);
        let nobody = Port::new().map_err(DriveError::Memory)?;
        let mut admin = AdminState::new(facts)?;
        if let Some(thresholds) = &config.controller.latency_monitor {
            admin.enable_latency_monitor(thresholds);
        }
        let rules = DriveRules::install(&config, &personality)?;
        let mut controller = Controller {
            queues: Queues::new(config.controller.arbitration, nobody),
            admin,
            commands: Commands::with_rules(rules),
            async_events: AsyncEventQueue::default(),
            memory,
            stages: CommandStages::new(),
            zero_latency: false,
            lateness: LatenessRecord::new(),
            gaps: GapLog::default(),
            command_times: None,
            stats: DriveStats::default(),
            time: DriveTime::default(),
            faults: FaultState::new(),
            personality,
            config,
        };
        management::update_checks(&mut controller);
        sanitize::restore(&mut controller);
        durable::restore(&mut controller);
        // Periodic rules are due without a command.
        injection::update_interrupt(&mut controller);
        Ok(controller)
    }

    /// Makes the drive one that executes no command, because it has too little flash.
    pub(crate) fn make_unavailable(&mut self) {
        let lba_bytes = self.config.lba_bytes();
        self.personality = Personality::Null(Box::new(NullDrive::unavailable(lba_bytes)));
    }

    /// Returns the configuration.
    pub fn config(&self) -> &DriveConfig {
        &self.config
    }

    /// Returns the capacity in logical blocks that a host sees; all of the medium for an open-channel
    /// drive.
    pub fn sectors(&self) -> u64 {
        match &self.personality {
            Personality::Null(d) => d.sectors,
            Personality::Block(d) => d.capacity_blocks(),
            Personality::Pcm(d) => d.sectors,
            Personality::OpenChannel(d) => d.geometry.total_sectors(),
        }
    }

    /// Returns the namespaces, in the order of their identifiers.
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        identify::namespaces(self)
    }

    /// Records that a host has newer blocks of a namespace in the persistent memory region, as a log. Until
    /// the drive is powered off, Format NVM and the deletion of the namespace end with
    /// [`Status::OPERATION_DENIED`]: the host would bring old blocks back.
    pub fn set_logged_namespace(&mut self, nsid: u32) {
        self.memory.logged_namespace = Some(nsid);
    }

    /// Returns the capacity in bytes that no namespace has.
    pub fn unallocated_bytes(&self) -> u64 {
        identify::unallocated_bytes(self)
    }

    /// Changes the namespaces as Namespace Management and Namespace Attachment of a host do, at
    /// `now` in nanoseconds of the clock that polls the drive. Hosts are told as after the commands.
    /// The drive must be polled afterwards, until the reply has the result.
    ///
    /// # Errors
    /// The reason for which the drive refuses the request; nothing has changed.
    pub fn change_namespaces(
        &mut self,
        now: Nanos,
        request: NamespaceRequest,
    ) -> Result<NamespaceReply, NamespaceError> {
        management::change(self, now, request)
    }

    /// Returns the FTL, if the drive manages its own flash; that of the first application, if there are
    /// several.
    pub fn ftl(&self) -> Option<&Ftl> {
        match &self.personality {
            Personality::Block(d) => Some(&d.spaces.first),
            _ => None,
        }
    }

    /// Changes a setting of the drive's FTL, or of those of all applications of its rules. The drive must be polled afterwards.
    ///
    /// # Errors
    /// [`ftl::ControlError`]; nothing changes.
    pub fn apply_change(&mut self, change: &ftl::ControlChange) -> Result<(), ftl::ControlError> {
        match &mut self.personality {
            Personality::Block(d) => d.apply_change(change),
            _ => Err(ftl::ControlError::NoFtl),
        }
    }

    pub(crate) fn array(&self) -> Option<&NandArray> {
        match &self.personality {
            Personality::Block(d) => Some(&d.array),
            Personality::OpenChannel(d) => Some(&d.array),
            Personality::Null(_) | Personality::Pcm(_) => None,
        }
    }

    pub(crate) fn array_mut(&mut self) -> Option<&mut NandArray> {
        match &mut self.personality {
            Personality::Block(d) => Some(&mut d.array),
            Personality::OpenChannel(d) => Some(&mut d.array),
            Personality::Null(_) | Personality::Pcm(_) => None,
        }
    }

    /// Checks that the drive can have a fault, as far as that does not depend on the data that it
    /// has when the fault is injected.
    ///
    /// # Errors
    /// The reason for which it cannot.
    pub fn check_fault(&self, fault: &Fault) -> Result<(), FaultError> {
        injection::check(self, fault)
    }

    /// Injects a fault at `now`, in nanoseconds of the clock that polls the drive. The drive must be
    /// polled afterwards.
    ///
    /// # Errors
    /// The reason for which the drive cannot have the fault; nothing has changed.
    pub fn inject_fault(&mut self, now: Nanos, fault: Fault) -> Result<(), FaultError> {
        injection::inject(self, now, fault)
    }

    /// Returns the faults that were injected into the drive, oldest first.
    pub fn faults(&self) -> Vec<FaultRecord> {
        injection::records(self)
    }

    /// Returns the NAND medium, for inspection and fault injection.
    pub fn nand_mut(&mut self) -> Option<&mut Nand> {
        self.array_mut().map(|a| &mut a.nand)
    }

    /// Switches all latencies off, to precondition a drive quickly, or on again. Operations in
    /// flight complete at the times already set; commands that come later do not overtake theirs.
    pub fn set_zero_latency(&mut self, instant: bool) {
        self.zero_latency = instant;
        match &mut self.personality {
            Personality::Block(d) => d.array.zero_latency = instant,
            Personality::OpenChannel(d) => d.array.zero_latency = instant,
            Personality::Pcm(d) => d.zero_latency = instant,
            Personality::Null(_) => {}
        }
    }

    /// Returns the number of completions posted so far. While it does not change, no host has new
    /// information.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.queues.posts()
    }

    /// Returns what rule programs of the drive may use.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`].
    pub fn rule_limits(&self) -> Result<RuleLimits, DriveRulesError> {
        installation::limits(self)
    }

    /// Replaces the rule program, which is in its encoded form (`docs/format/rule-program.md`). Inputs
    /// from now on run with it, and parked commands are matched with its rules in the order of their
    /// misses. Its tables have zeros, or no keys. Returns the number of commands that are still parked.
    ///
    /// # Errors
    /// [`DriveRulesError`]; nothing has changed.
    pub fn install_rules(&mut self, now: Nanos, program: &[u8]) -> Result<u64, DriveRulesError> {
        installation::install(self, now, program.to_vec())
    }

    /// Adds a part of a rule program from byte `offset` on; the first one is at 0. A part may be sent
    /// again.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`], [`DriveRulesError::Upload`].
    pub fn upload_rules(&mut self, offset: u64, part: &[u8]) -> Result<(), DriveRulesError> {
        installation::upload(self, offset, part)
    }

    /// Installs the parts that were uploaded, as [`install_rules`](Controller::install_rules) does. The
    /// parts are removed, also on failure.
    ///
    /// # Errors
    /// [`DriveRulesError`]; nothing else has changed.
    pub fn install_uploaded_rules(&mut self, now: Nanos) -> Result<u64, DriveRulesError> {
        installation::install_uploaded(self, now)
    }

    /// Ends the parked commands that no rule matched with [`Status::RULE_MISS`]; only those of an
    /// operation if one is named (`read`, `write` …). Returns their number.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`].
    pub fn reject_rule_misses(&mut self, op: Option<&str>) -> Result<u64, DriveRulesError> {
        installation::reject(self, op)
    }

    /// Returns the number of a table of the rule program.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`], [`DriveRulesError::Table`].
    pub fn rule_table(&self, name: &str) -> Result<TableId, DriveRulesError> {
        self.commands.rules.as_ref().ok_or(DriveRulesError::NoRules)?.table(name)
    }

    /// Returns the tables of the rule program, in the order of their numbers.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`].
    pub fn rule_tables(&self) -> Result<Vec<RuleTableInfo>, DriveRulesError> {
        Ok(self.commands.rules.as_ref().ok_or(DriveRulesError::NoRules)?.tables())
    }

    /// Returns an element of an array, or the value of a key of a map: 0 if it is absent. For a key of
    /// a set, it is 1 if the set has it.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`], [`DriveRulesError::Table`].
    pub fn rule_table_value(&self, table: TableId, key: u64) -> Result<u64, DriveRulesError> {
        self.commands.rules.as_ref().ok_or(DriveRulesError::NoRules)?.table_value(table, key)
    }

    /// Changes a table of the rule program: one entry after the other, all of them between two inputs.
    /// A power cut removes what was stored in a volatile table, and what was stored in a durable one since
    /// the last flush; an installation removes both.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`]; [`DriveRulesError::Table`] with the first entry that the table does not
    /// take. Those before it are stored.
    pub fn edit_rule_table(
        &mut self,
        table: TableId,
        edits: &[RuleTableEdit],
    ) -> Result<(), DriveRulesError> {
        let rules = self.commands.rules.as_mut().ok_or(DriveRulesError::NoRules)?;
        let edited = rules.edit_table(table, edits);
        rules.events.retry();
        durable::record(self);
        named::follow_rules(self, self.time.now);
        edited
    }

    /// Whether no command and no flash operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.commands.outstanding() == 0
            && !self.commands.is_formatting
            && self.commands.refused_with != Some(Status::SANITIZE_IN_PROGRESS)
            && self.array().is_none_or(NandArray::is_idle)
    }

    /// Checks the invariants of the commands, the queues, the array and the translation layer. May be called
    /// between any two polls. Takes time proportional to the size of the flash; for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), DriveViolation> {
        self.check_command_invariants()?;
        let ftls = match &self.personality {
            Personality::Block(d) => d.spaces.all().try_for_each(Ftl::check_invariants),
            _ => Ok(()),
        };
        ftls.map_err(|e| DriveViolation {
            part: DrivePart::Ftl,
            invariant: e.invariant,
            subject: "ftl",
            index: 0,
            expected: e.expected.clone(),
            found: e.to_string(),
        })
    }

    /// Checks the invariants of the commands, the queues and the array, as
    /// [`check_invariants`](Controller::check_invariants) does. Takes time proportional to the
    /// number of parallel units and of operations in flight.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_command_invariants(&self) -> Result<(), DriveViolation> {
        self.commands.check_invariants()?;
        self.queues.check_invariants()?;
        if let Personality::Block(d) = &self.personality {
            d.changes.check_invariants()?;
            d.namespaces.check_invariants()?;
            d.spaces.check_invariants()?;
        }
        self.array().map_or(Ok(()), |array| array.check_invariants())
    }

    /// Returns the number of I/O commands that are fetched and not completed.
    pub fn outstanding(&self) -> usize {
        self.commands.outstanding()
    }

    /// Records that the machine did not run the drive's thread from `from` to `to`. It divides the
    /// lateness of the completions that were due before `to`. In real time, the thread calls this
    /// before the poll that follows the gap.
    pub fn record_thread_gap(&mut self, from: Nanos, to: Nanos) {
        self.gaps.add(from, to);
    }

    /// Returns the distribution of completion lateness, from which intervals can be derived.
    pub fn lateness(&self) -> &LatenessRecord {
        &self.lateness
    }

    /// Measures the waits of doorbells from now on: requests stamps from all present and future
    /// hosts. The drive must be polled with
    /// [`poll_in_real_time`](Controller::poll_in_real_time), in the time of `polls`.
    pub fn measure_doorbells(&mut self, polls: Arc<DrivePolls>) {
        self.queues.measure_doorbells(polls);
    }

    /// Polls the drive as [`poll`](Component::poll) does, and records the waits of doorbells, if they
    /// are [measured](Controller::measure_doorbells). `poll_ended` returns the time after the poll.
    #[inline]
    pub fn poll_in_real_time(&mut self, now: Nanos, poll_ended: impl Fn() -> Nanos) -> bool {
        let Some(meter) = &self.queues.doorbells else { return self.poll(now) };
        meter.polls.begin(now);
        let moved = self.poll(now);
        self.queues.record_doorbells(&self.gaps, poll_ended);
        moved
    }

    /// Returns the waits of doorbells, if they are [measured](Controller::measure_doorbells).
    pub fn doorbell_waits(&self) -> Option<&DoorbellRecord> {
        self.queues.doorbells.as_ref().map(|meter| &meter.record)
    }

    /// Starts to record command times.
    pub fn record_command_times(&mut self) {
        self.command_times.get_or_insert_with(|| Box::new(CommandTimes::new()));
    }

    /// Starts to record command times, and counts completions that are over `late_max` late as late
    /// from now on ([`CommandTimes::on_time`]).
    pub fn record_on_time_commands(&mut self, late_max: Nanos) {
        self.record_command_times();
        if let Some(times) = &mut self.command_times {
            times.on_time.late_max = late_max;
        }
    }

    /// Returns the command times, if [`record_command_times`](Controller::record_command_times) was
    /// called.
    pub fn command_times(&self) -> Option<&CommandTimes> {
        self.command_times.as_deref()
    }

    /// Returns the counters.
    pub fn stats(&self) -> DriveStats {
        let mut stats = self.stats.clone();
        stats.late = self.lateness.read();
        stats.doorbell_to_fetch = self.doorbell_waits().map(|r| r.read()).unwrap_or_default();
        stats.invalid_doorbells = self.queues.invalid_doorbells;
        if let Some(array) = self.array() {
            stats.media = Some(array.nand.stats());
            stats.host_flush = array.nand.host_flush_stats();
            let busy = |b: &[Nanos; 3]| PuBusy { read: b[0], program: b[1], erase: b[2] };
            stats.pus = array.pus.iter().map(|p| busy(&p.busy)).collect();
            stats.channels = array.channels.iter().map(|c| c.busy).collect();
            stats.register_hits = array.pus.iter().map(|p| p.register_hits).sum();
            stats.suspensions = array.counters.suspensions;
            stats.read_retries = array.counters.read_retries_made;
            stats.hints.retries_forgone = array.counters.retries_forgone;
        }
        stats.latency_monitor = self.admin.latency_monitor.as_ref().map(|m| m.stats());
        stats.registers = self.queues.has_registers.then_some(self.queues.register_stats);
        stats.notifications = self.async_events.stats;
        stats.pmr = self.memory.pmr.as_ref().map(DevicePmr::stats);
        stats.rules = self.commands.rules.as_ref().map(|rules| rules.stats());
        match &self.personality {
            Personality::OpenChannel(d) => {
                stats.device_l2p = d.device_l2p.as_ref().map(|m| m.stats)
            }
            Personality::Block(d) => {
                stats.scrub = d.media_event_handler.stats;
                stats.ftl = Some(d.spaces.stats());
                stats.free_lines = Some(d.spaces.all().map(Ftl::free_lines).sum());
                stats.read_modify_write = d.has_partial_units().then_some(d.changes.stats);
                stats.block_commands = d.command_stats;
                stats.protection_errors = d.protection.as_ref().map(|p| p.errors);
            }
            Personality::Pcm(d) => {
                let busy = |b: &[Nanos; 3]| PuBusy { read: b[0], program: b[1], erase: b[2] };
                stats.pus = d.busy.iter().map(busy).collect();
                stats.host_flush = d.pcm.host_flush_stats();
            }
            _ => {}
        }
        stats
    }

    /// Resets the counters of commands, busy times, lateness and waits of doorbells. The counters of the FTL and of the
    /// medium continue.
    pub fn reset_stats(&mut self) {
        self.stats = DriveStats::default();
        self.lateness.reset();
        if let Some(meter) = &mut self.queues.doorbells {
            meter.record = DoorbellRecord::default();
        }
        if let Some(pmr) = &mut self.memory.pmr {
            pmr.reset_stats();
        }
        if let Some(rules) = &mut self.commands.rules {
            rules.reset_stats();
        }
        if let Some(array) = self.array_mut() {
            for pu in &mut array.pus {
                pu.busy = [Nanos::ZERO; 3];
                pu.register_hits = 0;
            }
            for channel in &mut array.channels {
                channel.busy = Nanos::ZERO;
            }
            array.counters = ArrayCounters::default();
        }
        match &mut self.personality {
            Personality::Pcm(d) => d.busy.fill([Nanos::ZERO; 3]),
            Personality::Block(d) => {
                d.changes.stats = ReadModifyWriteStats::default();
                d.command_stats = BlockCommandStats::default();
                if let Some(protection) = &mut d.protection {
                    protection.errors = ProtectionErrors::default();
                }
            }
            Personality::Null(_) | Personality::OpenChannel(_) => {}
        }
    }

    /// Shuts the drive down in order: persists what hosts have stored to the persistent memory region,
    /// which they cannot access any more, writes all buffered data to the media, and the image to its
    /// file.
    ///
    /// # Errors
    /// The error that `fsync(2)` on the image returns.
    pub fn shut_down(mut self) -> io::Result<()> {
        let now = self.time.now;
        self.queues.ports.iter().for_each(|host| pmr::remove(&host.port));
        self.memory.shut_down()?;
        match &mut self.personality {
            Personality::Block(d) => {
                d.shut_down(now, &mut self.commands);
                d.array.nand.close()
            }
            Personality::OpenChannel(d) => {
                d.array.nand.close()?;
                d.device_l2p.as_ref().map_or(Ok(()), DeviceL2pTable::sync)
            }
            Personality::Pcm(d) => d.pcm.sync(),
            Personality::Null(_) => Ok(()),
        }
    }

    /// Cuts the power: all volatile state is lost, unless the write buffer has capacitors. Returns
    /// the drive without power, which can be powered on again. The ports of its hosts do not work
    /// any more.
    pub fn power_cut(mut self) -> crate::PoweredOffController {
        if let Personality::Block(d) = &mut self.personality
            && matches!(self.config.write_buffer, WriteBuffer::PowerLossProtected { .. })
        {
            d.drain(self.time.now, &mut self.commands);
        }
        for host in &self.queues.ports {
            registers::remove(&host.port);
            pmr::remove(&host.port);
        }
        self.commands.clear();
        self.stages.clear();
        match &mut self.personality {
            Personality::Block(d) => d.array.power_cut(),
            Personality::OpenChannel(d) => d.power_cut(),
            Personality::Pcm(d) => d.power_cut(),
            Personality::Null(_) => {}
        }
        let memory = self.memory.power_cut();
        crate::PoweredOffController::new(self.config, self.personality, memory)
    }

    /// Whether the media store data.
    pub fn stores_data(&self) -> bool {
        match &self.config.media {
            MediaConfig::Nand(n) => n.data != DataStore::None,
            MediaConfig::Pcm(p) => p.data != DataStore::None,
            MediaConfig::Null { .. } => false,
        }
    }
}
