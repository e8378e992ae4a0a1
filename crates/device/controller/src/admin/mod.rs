//! [`AdminState`]: the drive's answers to admin commands.
//!
//! This module moves no data and knows no queues. The controller parses the command, obtains the
//! answer here and copies it to the host's memory. The controller owns the queues; this module only
//! checks the parameters of a new queue. It owns the feature values and the error log.
//!
//! Invariants: every answer is the one that [NVMe1.4 §5] ([OC20 §3] for chunks and geometry)
//! requires. A request allocates at most one page of the log that it reads.

pub(crate) mod async_events;
pub(crate) mod drive_identity;
mod effects;
pub(crate) mod exec;
mod health;
pub(crate) mod latency_monitor;

use std::collections::VecDeque;

use nvme::feature::{self, ErrorRecovery, NumberOfQueues, capability};
use nvme::{
    CLOUD_HEALTH, ChunkDescriptor, CommandSetList, DeviceL2pLog, ErrorEntry, FeatureSelect,
    FirmwareLog, GeometryError, GeometryPage, HealthLog, IDENTIFY_BYTES, IdentifyController,
    IndependentNamespace, LATENCY_MONITOR, LatencyMonitorFeature, LatencyMonitorLog, NamespaceList,
    Status, VendorExtensions, cns, log_page, namespace_descriptors,
};
use time::Nanos;

mod identity;

use latency_monitor::LatencyMonitor;

pub(crate) use identity::{
    AtomicUnit, ControllerIdentity, HealthCounters, NamespaceIdentity, OptionalCommands,
};

/// The broadcast namespace identifier [NVMe1.4 §6.1.2].
const ALL_NAMESPACES: u32 = u32::MAX;
const FIRMWARE: [u8; 8] = *b"1.0     ";
/// Capacity of the error log in entries.
const ERROR_LOG_ENTRIES: usize = 64;
/// Maximum number of outstanding asynchronous event requests per host.
pub(crate) const EVENT_REQUESTS_MAX: usize = 4;
/// Capacity of the chunk notification log in entries.
pub(crate) const NOTIFICATION_LOG_ENTRIES: usize = 64;
/// The reported version: NVMe 1.4.
pub(crate) const VERSION: u32 = 0x0001_0400;
/// Temperatures in kelvins: the fixed composite temperature, the warning and the critical
/// threshold.
const TEMPERATURE: u16 = 313;
const TEMPERATURE_WARNING: u16 = 343;
const TEMPERATURE_CRITICAL: u16 = 353;

/// Granularity of the keep alive timer, KAS = 1.
const KEEP_ALIVE_UNIT_MS: u32 = 100;

/// Spare capacity threshold in percent, below which the health log warns.
const SPARE_THRESHOLD: u8 = 10;

/// A command that failed, as the error log reports it [NVMe1.4 §5.14.1.1].
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedCommand {
    /// Submission queue.
    pub(crate) sqid: u16,
    /// Identifier in the queue.
    pub(crate) cid: u16,
    /// Position of the error in the entry; [`ErrorEntry::NONE`] if the error is not in the entry.
    pub(crate) location: u16,
    /// First logical block in error; 0 for a command without logical blocks.
    pub(crate) lba: u64,
    /// The namespace of the command.
    pub(crate) nsid: u32,
    /// Command specific information.
    pub(crate) detail: u64,
}

impl FailedCommand {
    /// Returns an admin command without logical blocks.
    pub(crate) fn admin(cid: u16, nsid: u32) -> FailedCommand {
        FailedCommand { sqid: 0, cid, location: ErrorEntry::NONE, lba: 0, nsid, detail: 0 }
    }
}

/// The admin state of a drive, as one host sees it.
#[derive(Debug)]
pub(crate) struct AdminState {
    identity: ControllerIdentity,
    geometry: Option<GeometryPage>,
    arbitration: u32,
    error_recovery: u32,
    cache_enabled: bool,
    queues: NumberOfQueues,
    temperature_threshold: u32,
    write_atomicity: u32,
    async_events: u32,
    /// Timeout of the keep alive timer in milliseconds; 0 without a timer.
    keep_alive_ms: u32,
    /// The error log, newest first.
    errors: VecDeque<ErrorEntry>,
    /// Number of errors since power-on.
    error_count: u64,
    /// The latency monitor, if it is enabled.
    pub(crate) latency_monitor: Option<Box<LatencyMonitor>>,
    /// Its settings while it is disabled.
    latency_settings: LatencyMonitorFeature,
    /// Sanitize config: whether Sanitize deallocates blocks that were to stay allocated.
    sanitize_config: u32,
}

/// The data that Identify or Geometry returns.
pub(crate) type IdentifyData = Box<[u8; IDENTIFY_BYTES]>;

/// A log page of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPageId {
    /// Log identifier.
    pub(crate) lid: u8,
    pub(crate) nsid: u32,
}

/// Access to the device L2P.
pub(crate) struct DeviceL2pSource<'a> {
    /// Returns the location of the n-th logical address.
    pub(crate) entry: &'a mut dyn FnMut(u64) -> u64,
    /// Returns the counters.
    pub(crate) totals: &'a dyn Fn() -> DeviceL2pLog,
}

impl AdminState {
    /// Creates the state that applies after a controller reset.
    ///
    /// # Errors
    /// The part of the geometry that the Geometry command cannot represent.
    pub(crate) fn new(facts: ControllerIdentity) -> Result<AdminState, GeometryError> {
        let geometry = match &facts.geometry {
            None => None,
            Some(geometry) => {
                let mut page = GeometryPage::new(geometry, &facts.timing)?;
                page.mccap = GeometryPage::MCCAP_COPY.into();
                facts.extensions.write_to(&mut page.vendor);
                (page.maxoc, page.maxocpu) =
                    (facts.max_open_chunks.0.into(), facts.max_open_chunks.1.into());
                Some(page)
            }
        };
        Ok(AdminState {
            geometry,
            arbitration: facts.arbitration.to_value(),
            error_recovery: 0,
            cache_enabled: facts.volatile_cache,
            queues: NumberOfQueues { submission: facts.io_queues, completion: facts.io_queues },
            temperature_threshold: TEMPERATURE_WARNING.into(),
            write_atomicity: 0,
            async_events: 0,
            keep_alive_ms: 0,
            errors: VecDeque::with_capacity(ERROR_LOG_ENTRIES),
            error_count: 0,
            latency_monitor: None,
            latency_settings: LatencyMonitorFeature::DEFAULT,
            sanitize_config: 0,
            identity: facts,
        })
    }

    /// Returns all features to their values after power-on, as a controller reset does. The error
    /// log and the latency monitor remain.
    pub(crate) fn reset_features(&mut self) {
        let identity = &self.identity;
        self.arbitration = identity.arbitration.to_value();
        self.error_recovery = 0;
        self.cache_enabled = identity.volatile_cache;
        self.queues =
            NumberOfQueues { submission: identity.io_queues, completion: identity.io_queues };
        self.temperature_threshold = TEMPERATURE_WARNING.into();
        (self.write_atomicity, self.async_events, self.keep_alive_ms) = (0, 0, 0);
        self.sanitize_config = 0;
    }

    /// Returns the timeout of the keep alive timer, if there is one.
    pub(crate) fn keep_alive(&self) -> Option<Nanos> {
        let timeout = Nanos::from_millis(self.keep_alive_ms.into());
        (timeout > Nanos::ZERO).then_some(timeout)
    }

    /// Returns the identity of the drive.
    pub(crate) fn identity(&self) -> &ControllerIdentity {
        &self.identity
    }

    /// Whether the volatile write cache is enabled. If it is disabled, writes complete when they
    /// are durable.
    pub(crate) fn cache_enabled(&self) -> bool {
        self.cache_enabled
    }

    /// Returns the arbitration settings in force.
    pub(crate) fn arbitration(&self) -> feature::Arbitration {
        feature::Arbitration::from_value(self.arbitration)
    }

    /// Returns the data of Identify. `mapped` is the number of mapped sectors.
    pub(crate) fn identify(&self, cns: u8, nsid: u32, mapped: u64) -> Result<IdentifyData, Status> {
        let own = self.identity.namespace.nsid;
        match cns {
            cns::CONTROLLER => {
                let burst = self.arbitration().burst_log2;
                Ok(Box::new(self.identity.identify_controller(burst).to_bytes()))
            }
            cns::NAMESPACE if nsid == own => {
                Ok(Box::new(self.identity.identify_namespace(mapped).to_bytes()))
            }
            // Identifiers of FFFFFFFEh and FFFFFFFFh are invalid here [NVMe1.4 §5.15.2.3].
            cns::ACTIVE_NAMESPACES | cns::COMMAND_SET_ACTIVE_NAMESPACES
                if nsid < ALL_NAMESPACES - 1 =>
            {
                Ok(Box::new(NamespaceList::above(nsid, &[own]).to_bytes()))
            }
            cns::NAMESPACE_DESCRIPTORS if nsid == own => {
                Ok(Box::new(namespace_descriptors(self.identity.nguid())))
            }
            // Structures of NVMe 2.0 for the NVM command set, whose fields are all 0 here.
            cns::COMMAND_SET_NAMESPACE if nsid == own => Ok(Box::new([0; IDENTIFY_BYTES])),
            cns::COMMAND_SET_CONTROLLER => Ok(Box::new([0; IDENTIFY_BYTES])),
            cns::INDEPENDENT_NAMESPACE if nsid == own => {
                let is_protected = self.identity.namespace.write_protected;
                Ok(Box::new(IndependentNamespace::ready(is_protected).to_bytes()))
            }
            cns::COMMAND_SETS => Ok(Box::new(CommandSetList::nvm_only())),
            cns::NAMESPACE
            | cns::ACTIVE_NAMESPACES
            | cns::NAMESPACE_DESCRIPTORS
            | cns::COMMAND_SET_NAMESPACE
            | cns::COMMAND_SET_ACTIVE_NAMESPACES
            | cns::INDEPENDENT_NAMESPACE => Err(Status::INVALID_NAMESPACE),
            // Other structures need optional features.
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Returns the data of Geometry.
    pub(crate) fn geometry(&self, nsid: u32) -> Result<IdentifyData, Status> {
        match self.geometry {
            // Drives of other personalities do not implement the command.
            None => Err(Status::INVALID_OPCODE),
            Some(page) if nsid == self.identity.namespace.nsid => Ok(Box::new(page.to_bytes())),
            Some(_) => Err(Status::INVALID_NAMESPACE),
        }
    }

    /// Returns up to `bytes` bytes of a log page from `offset`, fewer at the end of the page.
    ///
    /// `chunk` describes the n-th chunk of an open-channel drive, in address order.
    pub(crate) fn log_page(
        &self,
        page: LogPageId,
        offset: u64,
        bytes: u64,
        health: &HealthCounters,
        chunk: &mut dyn FnMut(u64) -> ChunkDescriptor,
        map: DeviceL2pSource<'_>,
    ) -> Result<Vec<u8>, Status> {
        let LogPageId { lid, nsid } = page;
        let own = self.identity.namespace.nsid;
        let page = match lid {
            log_page::ERROR => self.error_log(),
            log_page::HEALTH if matches!(nsid, 0 | ALL_NAMESPACES) || nsid == own => {
                self.health(health).to_bytes().into()
            }
            CLOUD_HEALTH if matches!(nsid, 0 | ALL_NAMESPACES) => {
                health.cloud.ok_or(Status::INVALID_LOG_PAGE)?.to_bytes().into()
            }
            LATENCY_MONITOR if matches!(nsid, 0 | ALL_NAMESPACES) => {
                health.latency.ok_or(Status::INVALID_LOG_PAGE)?.to_bytes().into()
            }
            log_page::HEALTH | CLOUD_HEALTH | LATENCY_MONITOR => {
                return Err(Status::INVALID_NAMESPACE);
            }
            log_page::EFFECTS => effects::page(&self.identity).as_bytes().to_vec(),
            log_page::FIRMWARE => FirmwareLog::one_slot(FIRMWARE).to_bytes().into(),
            log_page::CHUNK_INFORMATION => {
                let Some(geometry) = &self.identity.geometry else {
                    return Err(Status::INVALID_LOG_PAGE);
                };
                if nsid != own {
                    return Err(Status::INVALID_NAMESPACE);
                }
                let mut entry = |n| chunk(n).to_bytes();
                return log_page_entries(geometry.total_chunks(), offset, bytes, &mut entry);
            }
            log_page::DEVICE_L2P if self.identity.extensions.has(VendorExtensions::DEVICE_L2P) => {
                if nsid != own {
                    return Err(Status::INVALID_NAMESPACE);
                }
                let addresses = self.identity.extensions.l2p_entries.get();
                return log_page_entries(addresses, offset, bytes, &mut |n| {
                    (map.entry)(n).to_le_bytes()
                });
            }
            log_page::DEVICE_L2P_TOTALS
                if self.identity.extensions.has(VendorExtensions::DEVICE_L2P) =>
            {
                if nsid != own {
                    return Err(Status::INVALID_NAMESPACE);
                }
                (map.totals)().to_bytes().into()
            }
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        let (from, to) = log_page_range(page.len() as u64, offset, bytes)?;
        Ok(page[from as usize..to as usize].to_vec())
    }

    fn error_log(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self.errors.iter().flat_map(|e| e.to_bytes()).collect();
        page.resize(ERROR_LOG_ENTRIES * ErrorEntry::BYTES, 0);
        page
    }

    /// Returns the critical warnings that are events, if any is: bits of the asynchronous event
    /// configuration.
    pub(crate) fn warning_events(&self) -> u8 {
        self.async_events as u8
    }

    /// Whether Sanitize may deallocate blocks that are to stay allocated, instead of being refused.
    pub(crate) fn deallocates_after_sanitize(&self) -> bool {
        self.sanitize_config & 1 != 0
    }

    /// Removes the logical blocks from the error log.
    pub(crate) fn forget_lbas(&mut self) {
        self.errors.iter_mut().for_each(|entry| entry.lba = 0.into());
    }

    /// Whether the notice of changed namespaces is enabled.
    pub(crate) fn has_namespace_notices(&self) -> bool {
        self.async_events & IdentifyController::OAES_NAMESPACE_ATTRIBUTES != 0
    }

    pub(crate) fn health(&self, counters: &HealthCounters) -> HealthLog {
        let count = |n: u64| u128::from(n).into();
        let minutes = |t: Nanos| count(t.0 / 60_000_000_000);
        let mut log = HealthLog::zeroed();
        let low = counters.spare_percent < SPARE_THRESHOLD;
        let worn = counters.used_percent >= 100;
        let hot = u32::from(TEMPERATURE) >= self.temperature_threshold;
        log.critical_warning = u8::from(low)
            | u8::from(hot) << 1
            | u8::from(worn) << 2
            | u8::from(counters.read_only) << 3;
        log.temperature = TEMPERATURE.into();
        log.available_spare = counters.spare_percent.min(100);
        log.spare_threshold = SPARE_THRESHOLD;
        log.percentage_used = counters.used_percent;
        log.data_units_read = HealthLog::data_units(counters.bytes_read);
        log.data_units_written = HealthLog::data_units(counters.bytes_written);
        log.host_reads = count(counters.reads);
        log.host_writes = count(counters.writes);
        log.busy_minutes = minutes(counters.busy);
        log.power_cycles = count(counters.power_cycles);
        log.power_on_hours = count(counters.powered.0 / 3_600_000_000_000);
        log.unsafe_shutdowns = count(counters.power_cuts);
        log.media_errors = count(counters.media_errors);
        log.error_entries = count(self.error_count);
        log
    }

    /// Appends a failed command to the error log.
    pub(crate) fn log_error(&mut self, status: Status, failed: &FailedCommand) {
        self.error_count += 1;
        self.errors.truncate(ERROR_LOG_ENTRIES - 1);
        let FailedCommand { sqid, cid, location, lba, nsid, detail } = *failed;
        let entry =
            ErrorEntry::new(self.error_count, sqid, cid, status, nsid, lba).with_location(location);
        let entry = ErrorEntry { command_specific: detail.into(), ..entry };
        self.errors.push_front(entry);
    }

    /// Returns the result of Get Features.
    pub(crate) fn get_feature(
        &self,
        fid: u8,
        select: FeatureSelect,
        member: u32,
    ) -> Result<u32, Status> {
        let changeable = capability::CHANGEABLE;
        let queues = self.identity.io_queues;
        // Current value, default value and capabilities.
        let (current, default, can) = match fid {
            feature::ARBITRATION => {
                (self.arbitration, self.identity.arbitration.to_value(), changeable)
            }
            feature::POWER_MANAGEMENT => (0, 0, 0),
            feature::TEMPERATURE_THRESHOLD => {
                (self.temperature_threshold, TEMPERATURE_WARNING.into(), changeable)
            }
            feature::ERROR_RECOVERY => (self.error_recovery, 0, changeable),
            feature::VOLATILE_WRITE_CACHE if self.identity.volatile_cache => {
                (self.cache_enabled.into(), 1, changeable)
            }
            feature::NUMBER_OF_QUEUES => {
                let all = NumberOfQueues { submission: queues, completion: queues };
                (self.queues.to_value(), all.to_value(), changeable)
            }
            feature::INTERRUPT_COALESCING => (0, 0, 0),
            feature::INTERRUPT_VECTOR => {
                if self.check_vector(member as u16).is_err() {
                    return Err(Status::INVALID_FIELD);
                }
                // Coalescing is always disabled (CD is set).
                let value = u32::from(member as u16) | 1 << 16;
                (value, value, 0)
            }
            feature::WRITE_ATOMICITY => (self.write_atomicity, 0, changeable),
            feature::ASYNC_EVENT => (self.async_events, 0, changeable),
            feature::KEEP_ALIVE_TIMER if self.identity.optional.keep_alive => {
                (self.keep_alive_ms, 0, changeable)
            }
            feature::SANITIZE_CONFIG if self.identity.optional.sanitize => {
                (self.sanitize_config, 0, changeable)
            }
            // The result is whether the monitor is enabled; the settings are data.
            feature::LATENCY_MONITOR => (self.latency_monitor.is_some().into(), 0, changeable),
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(match select {
            FeatureSelect::Current => current,
            // No feature is saveable, so the saved value is the default.
            FeatureSelect::Default | FeatureSelect::Saved => default,
            FeatureSelect::Capabilities => can,
        })
    }

    /// Executes Set Features and returns the result for the completion. `queues_exist` says whether
    /// the host has already created I/O queues.
    pub(crate) fn set_feature(
        &mut self,
        fid: u8,
        save: bool,
        value: u32,
        queues_exist: bool,
    ) -> Result<u32, Status> {
        let can = self.get_feature(fid, FeatureSelect::Capabilities, value)?;
        if save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        if can & capability::CHANGEABLE == 0 {
            return Err(Status::FEATURE_NOT_CHANGEABLE);
        }
        match fid {
            feature::ARBITRATION => {
                self.arbitration = feature::Arbitration::from_value(value).to_value();
            }
            feature::TEMPERATURE_THRESHOLD => {
                // Only the over-temperature threshold of the composite temperature is supported.
                if value > 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                self.temperature_threshold = value;
            }
            feature::ERROR_RECOVERY => {
                let recovery = ErrorRecovery::from_value(value);
                if recovery.unwritten_is_error {
                    return Err(Status::INVALID_FIELD);
                }
                self.error_recovery = recovery.to_value();
            }
            feature::VOLATILE_WRITE_CACHE => self.cache_enabled = value & 1 != 0,
            feature::NUMBER_OF_QUEUES => {
                if queues_exist {
                    return Err(Status::COMMAND_SEQUENCE);
                }
                let asked = NumberOfQueues::from_value(value).ok_or(Status::INVALID_FIELD)?;
                let all = self.identity.io_queues;
                self.queues = NumberOfQueues {
                    submission: asked.submission.min(all),
                    completion: asked.completion.min(all),
                };
                return Ok(self.queues.to_value());
            }
            feature::WRITE_ATOMICITY => self.write_atomicity = value & 1,
            feature::ASYNC_EVENT => {
                let enabled = feature::ASYNC_EVENT_WARNINGS | self.identity.optional_events();
                if value & !enabled != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                self.async_events = value;
            }
            // Rounded up to the granularity.
            feature::KEEP_ALIVE_TIMER => {
                self.keep_alive_ms = value.div_ceil(KEEP_ALIVE_UNIT_MS) * KEEP_ALIVE_UNIT_MS;
            }
            feature::SANITIZE_CONFIG => {
                if value > 1 {
                    return Err(Status::INVALID_FIELD);
                }
                self.sanitize_config = value;
            }
            // The settings are data: `set_latency_monitor`.
            feature::LATENCY_MONITOR => {}
            _ => return Err(Status::FEATURE_NOT_CHANGEABLE),
        }
        Ok(0)
    }

    /// Returns the data of Get Features for the latency monitor.
    pub(crate) fn latency_feature(&self, select: FeatureSelect) -> LatencyMonitorFeature {
        match (select, &self.latency_monitor) {
            (FeatureSelect::Current, Some(monitor)) => *monitor.settings(),
            (FeatureSelect::Current, None) => self.latency_settings,
            _ => LatencyMonitorFeature::DEFAULT,
        }
    }

    /// Sets the latency monitor, after [`set_feature`](AdminState::set_feature). It starts to count
    /// anew.
    ///
    /// # Errors
    /// The status of settings that the monitor cannot have.
    pub(crate) fn set_latency_monitor(
        &mut self,
        now: Nanos,
        settings: LatencyMonitorFeature,
    ) -> Result<(), Status> {
        latency_monitor::check(&settings)?;
        // There is no debug log to discard.
        self.latency_settings = LatencyMonitorFeature { discard_debug_log: 0, ..settings };
        let settings = self.latency_settings;
        self.latency_monitor =
            (settings.enable == 1).then(|| Box::new(LatencyMonitor::new(settings, now)));
        Ok(())
    }

    /// Enables the latency monitor at power-on.
    pub(crate) fn enable_latency_monitor(&mut self, thresholds: &[Nanos; 4]) {
        let settings = latency_monitor::settings_of(thresholds);
        self.latency_settings = settings;
        self.latency_monitor = Some(Box::new(LatencyMonitor::new(settings, Nanos::ZERO)));
    }

    /// Returns the log page of the latency monitor.
    pub(crate) fn latency_log(&mut self, now: Nanos) -> LatencyMonitorLog {
        match &mut self.latency_monitor {
            Some(monitor) => monitor.log(now),
            None => latency_monitor::page_of(&self.latency_settings),
        }
    }

    /// Checks the parameters of a new completion queue. The controller checks that the identifier
    /// is free.
    pub(crate) fn check_create_cq(
        &self,
        qid: u16,
        entries: u32,
        vector: Option<u16>,
    ) -> Result<(), Status> {
        check_queue(qid, self.queues.completion, entries, self.identity.queue_depth)?;
        vector.map_or(Ok(()), |v| self.check_vector(v))
    }

    /// Checks the parameters of a new submission queue. The controller checks that the identifier
    /// is free and that the completion queue exists ([`Status::INVALID_CQ`]).
    pub(crate) fn check_create_sq(&self, qid: u16, entries: u32, cqid: u16) -> Result<(), Status> {
        check_queue(qid, self.queues.submission, entries, self.identity.queue_depth)?;
        if cqid == 0 || cqid > self.queues.completion {
            // An identifier out of range has another status than a missing queue [NVMe1.4 §5.4].
            return Err(Status::INVALID_QID);
        }
        Ok(())
    }

    /// Checks an interrupt vector: there is one for each I/O queue and one for the admin queue.
    fn check_vector(&self, vector: u16) -> Result<(), Status> {
        if vector > self.identity.io_queues { Err(Status::INVALID_VECTOR) } else { Ok(()) }
    }
}

fn check_queue(qid: u16, queues: u16, entries: u32, depth: u16) -> Result<(), Status> {
    if qid == 0 || qid > queues {
        Err(Status::INVALID_QID)
    } else if entries < 2 || entries > depth.into() {
        Err(Status::INVALID_QUEUE_SIZE)
    } else {
        Ok(())
    }
}

/// Returns the byte range that a read of `bytes` from `offset` returns of a log page of `len`
/// bytes.
pub(crate) fn log_page_range(len: u64, offset: u64, bytes: u64) -> Result<(u64, u64), Status> {
    if offset > len {
        return Err(Status::INVALID_FIELD);
    }
    Ok((offset, offset.saturating_add(bytes).min(len)))
}

/// Returns a part of a log page of `count` entries of equal size.
pub(crate) fn log_page_entries<const BYTES: usize>(
    count: u64,
    offset: u64,
    bytes: u64,
    entry: &mut dyn FnMut(u64) -> [u8; BYTES],
) -> Result<Vec<u8>, Status> {
    let size = BYTES as u64;
    let (from, to) = log_page_range(count.saturating_mul(size), offset, bytes)?;
    let mut answer = Vec::with_capacity((to - from) as usize);
    for n in from / size..to.div_ceil(size) {
        let raw = entry(n);
        let first = from.saturating_sub(n * size) as usize;
        let end = (to - n * size).min(size) as usize;
        answer.extend_from_slice(&raw[first..end]);
    }
    Ok(answer)
}

#[cfg(test)]
pub(crate) mod tests;
