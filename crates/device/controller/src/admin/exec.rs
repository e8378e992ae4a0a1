//! Admin commands that need more than [`AdminState`](crate::admin::AdminState): returning data to
//! the host, and creating and deleting queues.

use mem::Iova;
use nvme::{
    AdminCommand, AsyncEvent, ChunkDescriptor, ChunkNotification, DeviceL2pLog, ErrorEntry,
    FeatureSelect, LatencyMonitorFeature, LbaStatusDescriptor, SecureErase, Sqe, Status, cns,
    feature, log_page,
};
use time::Nanos;
use transport::{CqProducer, ShadowDoorbells, ShadowPages, SqConsumer};

use crate::admin::async_events::EventClass;
use crate::admin::effects;
use crate::admin::health::health_counters;
use crate::admin::{DeviceL2pSource, FailedCommand, HealthCounters, LogPageId, log_page_range};
use crate::command::data_buffer::DataBuffer;
use crate::controller::{Controller, Personality};
use crate::host_interface::access::AccessCheck;
use crate::host_interface::hosts::HostPort;
use crate::host_interface::queues::QueueTeardown;
use crate::host_interface::registers;
use crate::namespaces::{identify, management, translation};
use crate::personality::format::{self, FormatCommand, FormatTask, RunRequester};
use crate::personality::logical_blocks::BlockRange;
use crate::personality::rules::{admin as rule_admin, installation};
use crate::personality::sanitize::{self, SanitizeReport};
use crate::personality::spaces::ONLY_APP;

/// Whether a structure of Identify is one of a command set.
fn has_command_set(structure: u8) -> bool {
    matches!(
        structure,
        cns::COMMAND_SET_NAMESPACE
            | cns::COMMAND_SET_CONTROLLER
            | cns::COMMAND_SET_ACTIVE_NAMESPACES
            | cns::COMMAND_SET_ALLOCATED_NAMESPACES
            | cns::COMMAND_SET_ALLOCATED_NAMESPACE
    )
}

/// Protection information of type 1 in a Format NVM, without other metadata settings.
const FORMAT_TYPE_1: u8 = 1 << 1;

/// Whether each host has a value of its own that it may change.
fn is_own_feature(fid: u8) -> bool {
    matches!(fid, feature::NUMBER_OF_QUEUES | feature::KEEP_ALIVE_TIMER)
}

impl Controller {
    /// Executes the admin command of an entry, and completes it unless it completes later.
    pub(crate) fn handle_admin(&mut self, now: Nanos, queue: usize, sqe: &Sqe) {
        let cid = sqe.cid.get();
        let command = AdminCommand::parse(sqe).map_err(|status| {
            match effects::has_admin_command(self.admin_for_queue(queue).identity(), sqe.opcode) {
                true => status,
                // The drive does not know the fields of the command.
                false => Status::INVALID_OPCODE,
            }
        });
        let port = self.queues.submissions[queue].as_ref().map(|q| q.port);
        let state = port.map(|p| &mut self.queues.ports[p]);
        if let Some(HostPort { access: Some(rights), stats, .. }) = state {
            stats.commands += 1;
            let bytes = match command {
                Ok(AdminCommand::GetLogPage { bytes, .. }) => bytes,
                Ok(AdminCommand::GetLbaStatus { bytes, .. }) => bytes,
                _ => 0,
            };
            rights.consume_admin_tokens(now, bytes);
        }
        let executed = command.and_then(|command| {
            sanitize::check_admin(self, &command)?;
            self.execute_admin(now, queue, cid, command, sqe)
        });
        match executed {
            Ok(Some(result)) => self.queues.post(queue, cid, Status::SUCCESS, result),
            Ok(None) => {}
            Err(status) => {
                let mut failed = FailedCommand::admin(cid, sqe.nsid.get());
                if status.is(Status::NAMESPACE_CAPACITY) {
                    failed.detail = management::required_bytes(self, port.unwrap_or(0), sqe);
                }
                self.log_admin_error(queue, failed, status);
                self.queues.post(queue, cid, status, 0);
            }
        }
    }

    /// Appends a failed admin command to the error log of its host.
    pub(crate) fn log_admin_error(&mut self, queue: usize, failed: FailedCommand, status: Status) {
        self.admin_for_queue(queue).log_error(status, &failed);
    }

    /// Executes an admin command. Returns `Ok(None)` if it completes later.
    pub(crate) fn execute_admin(
        &mut self,
        now: Nanos,
        queue: usize,
        cid: u16,
        command: AdminCommand,
        sqe: &Sqe,
    ) -> Result<Option<u64>, Status> {
        let port = self.queues.submissions[queue].as_ref().map_or(0, |q| q.port);
        match command {
            AdminCommand::Identify { cns, nsid } => {
                let (controller, command_set) =
                    ((sqe.cdw10.get() >> 16) as u16, (sqe.cdw11.get() >> 24) as u8);
                if command_set != 0 && has_command_set(cns) {
                    return Err(Status::INVALID_FIELD);
                }
                let rights = self.queues.ports[port].access.as_deref();
                let answer = match (&self.personality, rights) {
                    (Personality::Block(drive), None) => {
                        identify::identify(&self.admin, drive, cns, nsid, controller)?
                    }
                    (Personality::Block(drive), Some(rights)) => {
                        let of_app = |app| drive.mapped_blocks_of(app);
                        let mapped = rights.app().map_or_else(|| drive.mapped_blocks(), of_app);
                        rights.admin.identify(cns, nsid, mapped)?
                    }
                    (_, rights) => {
                        let admin = rights.map_or(&self.admin, |rights| &rights.admin);
                        admin.identify(cns, nsid, self.sectors())?
                    }
                };
                self.return_data(port, sqe, answer.as_slice(), answer.len() as u64)
            }
            AdminCommand::Geometry { nsid } => {
                let answer = self.admin_for_queue(queue).geometry(nsid)?;
                self.return_data(port, sqe, answer.as_slice(), answer.len() as u64)
            }
            AdminCommand::GetLogPage {
                lid: log_page::CHUNK_NOTIFICATION,
                nsid,
                bytes,
                offset,
                retain,
            } if matches!(self.personality, Personality::OpenChannel(_)) => {
                if self.queues.ports[port].access.is_some() {
                    return Err(Status::INVALID_LOG_PAGE);
                }
                if !matches!(nsid, 1 | u32::MAX) {
                    return Err(Status::INVALID_NAMESPACE);
                }
                // Check the host's memory first: an event must not count as reported if its data
                // cannot be returned.
                DataBuffer::from_sqe(sqe, bytes, self.queues.ports[port].port.memory())?;
                let page = self.async_events.read_log_page(port, offset, bytes, retain)?;
                let answer = self.return_data(port, sqe, &page, bytes);
                self.complete_event_requests();
                answer
            }
            AdminCommand::GetLogPage {
                lid:
                    lid @ (log_page::CHANGED_NAMESPACES | log_page::SANITIZE | log_page::RULE_MISSES),
                nsid,
                bytes,
                offset,
                retain,
            } => {
                let optional = self.admin_for_queue(queue).identity().optional;
                let page: Vec<u8> = match lid {
                    log_page::SANITIZE if optional.sanitize => {
                        sanitize::log(self)?.to_bytes().into()
                    }
                    log_page::RULE_MISSES if optional.rules => rule_admin::log(self, port)?,
                    log_page::CHANGED_NAMESPACES if optional.namespace_notices => {
                        self.async_events.changed_namespaces(port).to_bytes().into()
                    }
                    _ => return Err(Status::INVALID_LOG_PAGE),
                };
                // The pages are not those of a namespace.
                if !matches!(nsid, 0 | u32::MAX) {
                    return Err(Status::INVALID_FIELD);
                }
                let (from, to) = log_page_range(page.len() as u64, offset, bytes)?;
                let answer = self.return_data(port, sqe, &page[from as usize..to as usize], bytes);
                if answer.is_ok() && !retain {
                    self.async_events.acknowledge(port, lid);
                    self.complete_event_requests();
                }
                answer
            }
            AdminCommand::GetLogPage {
                lid: lid @ (log_page::RULE_EVENTS | log_page::FOUND_NAMES),
                nsid,
                bytes,
                offset,
                retain,
            } => {
                let (page, is_end) = rule_admin::event_log(self, port, lid, offset, bytes)?;
                if !matches!(nsid, 0 | u32::MAX) {
                    return Err(Status::INVALID_FIELD);
                }
                let answer = self.return_data(port, sqe, &page, bytes);
                if answer.is_ok() && !retain {
                    self.async_events.acknowledge(port, lid);
                    if is_end {
                        rule_admin::remove_read(self, port, lid);
                    }
                    self.complete_event_requests();
                }
                answer
            }
            AdminCommand::GetLogPage { lid, nsid, bytes, offset, retain } => {
                let now = self.time.now;
                let health = HealthCounters {
                    latency: Some(self.admin.latency_log(now)),
                    ..health_counters(self)
                };
                let personality = &self.personality;
                let rights = self.queues.ports[port].access.as_deref();
                let mut chunk = |n| match (personality, rights) {
                    (Personality::OpenChannel(d), Some(rights))
                        if !rights.pus.contains(&d.pu_of_chunk(n)) =>
                    {
                        rights.mask_foreign_chunk(d.descriptor(n))
                    }
                    (Personality::OpenChannel(d), _) => d.descriptor(n),
                    _ => ChunkDescriptor::default(),
                };
                let mut map = |n: u64| match personality {
                    Personality::OpenChannel(d) => d.l2p_entry(n as u32),
                    _ => log_page::UNMAPPED,
                };
                let totals = || match personality {
                    Personality::OpenChannel(d) => d.l2p_totals(),
                    _ => DeviceL2pLog::default(),
                };
                let page = rights.map_or(&self.admin, |r| &r.admin).log_page(
                    LogPageId { lid, nsid },
                    offset,
                    bytes,
                    &health,
                    &mut chunk,
                    DeviceL2pSource { entry: &mut map, totals: &totals },
                )?;
                let answer = self.return_data(port, sqe, &page, bytes)?;
                if !retain {
                    self.async_events.acknowledge(port, lid);
                    self.complete_event_requests();
                }
                Ok(answer)
            }
            AdminCommand::GetFeatures { fid, select, member } => {
                if fid == feature::LATENCY_MONITOR && select != FeatureSelect::Capabilities {
                    let mut data = vec![0; LatencyMonitorFeature::DATA_BYTES];
                    let settings = self.admin.latency_feature(select).to_bytes();
                    data[..settings.len()].copy_from_slice(&settings);
                    self.return_data(port, sqe, &data, data.len() as u64)?;
                }
                // Queue counts, vectors and timers belong to each host; all other features belong to
                // the drive.
                let own = is_own_feature(fid) || fid == feature::INTERRUPT_VECTOR;
                let admin = if own { self.admin_for_queue(queue) } else { &mut self.admin };
                admin.get_feature(fid, select, member).map(|v| Some(v.into()))
            }
            AdminCommand::SetFeatures { fid, save, value } => {
                let exist = self.queues.has_io_queues(port);
                if self.queues.ports[port].access.is_some() && !is_own_feature(fid) {
                    // The other features are shared by all hosts.
                    self.admin.get_feature(fid, FeatureSelect::Capabilities, value)?;
                    return Err(Status::FEATURE_NOT_CHANGEABLE);
                }
                let result = self.admin_for_queue(queue).set_feature(fid, save, value, exist)?;
                if fid == feature::ARBITRATION {
                    self.update_arbitration();
                }
                if matches!(fid, feature::TEMPERATURE_THRESHOLD | feature::ASYNC_EVENT) {
                    self.check_health();
                }
                if fid == feature::KEEP_ALIVE_TIMER {
                    registers::restart_keep_alive(self, port, now);
                }
                if fid == feature::LATENCY_MONITOR {
                    let memory = self.queues.ports[port].port.memory();
                    let bytes = LatencyMonitorFeature::DATA_BYTES as u64;
                    let mut settings = [0; LatencyMonitorFeature::BYTES];
                    DataBuffer::from_sqe(sqe, bytes, memory)?.read(memory, 0, &mut settings);
                    let settings = LatencyMonitorFeature::from_bytes(settings);
                    self.admin.set_latency_monitor(self.time.now, settings)?;
                }
                Ok(Some(result.into()))
            }
            AdminCommand::CreateCq { qid, entries, at, vector } => {
                self.admin_for_queue(queue).check_create_cq(qid, entries, vector)?;
                if vector.is_some_and(|v| v >= self.queues.ports[port].port.vectors()) {
                    return Err(Status::INVALID_VECTOR);
                }
                if self.queues.find_completion(port, qid).is_some() {
                    return Err(Status::INVALID_QID);
                }
                let depth = u16::try_from(entries).map_err(|_| Status::INVALID_QUEUE_SIZE)?;
                let host = &self.queues.ports[port].port;
                let mut ring = CqProducer::open(host, qid, Iova(at), depth, vector)
                    .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                if let Some(shadows) = &self.queues.ports[port].shadow_doorbells {
                    ring.enable_shadow(shadows);
                }
                self.queues.add_completion(ring, port, qid);
                Ok(Some(0))
            }
            AdminCommand::CreateSq { qid, entries, at, cqid, priority } => {
                self.admin_for_queue(queue).check_create_sq(qid, entries, cqid)?;
                if self.queues.find_submission(port, qid).is_some() {
                    return Err(Status::INVALID_QID);
                }
                let completion =
                    self.queues.find_completion(port, cqid).ok_or(Status::INVALID_CQ)?;
                let depth = u16::try_from(entries).map_err(|_| Status::INVALID_QUEUE_SIZE)?;
                let host = &self.queues.ports[port].port;
                let mut ring = SqConsumer::open(host, qid, Iova(at), depth)
                    .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                if let Some(shadows) = &self.queues.ports[port].shadow_doorbells {
                    ring.enable_shadow(shadows);
                }
                self.queues.add_submission(ring, port, completion, priority);
                Ok(Some(0))
            }
            AdminCommand::DoorbellBufferConfig { values, events } => {
                if !self.admin_for_queue(queue).identity().optional.doorbell_buffer {
                    return Err(Status::INVALID_OPCODE);
                }
                let host = &self.queues.ports[port].port;
                let pages = ShadowPages { values: Iova(values), events: Iova(events) };
                let shadows = ShadowDoorbells::open(host.memory(), pages, host.shadow_stride())
                    .map_err(|_| Status::INVALID_FIELD)?;
                self.queues.set_shadow_doorbells(port, shadows);
                Ok(Some(0))
            }
            AdminCommand::KeepAlive => {
                if !self.admin_for_queue(queue).identity().optional.keep_alive {
                    return Err(Status::INVALID_OPCODE);
                }
                registers::restart_keep_alive(self, port, now);
                Ok(Some(0))
            }
            AdminCommand::DeleteSq { qid } => self.delete_submission(port, qid, (queue, cid)),
            AdminCommand::DeleteCq { qid } => {
                let at = self.queues.find_completion(port, qid).filter(|_| qid > 0);
                let at = at.ok_or(Status::INVALID_QID)?;
                if self.queues.submissions.iter().flatten().any(|q| q.completion == at) {
                    return Err(Status::INVALID_QUEUE_DELETION);
                }
                self.queues.remove_completion(at);
                Ok(Some(0))
            }
            // Commands start when they are fetched, so only event requests can be aborted, and
            // commands that no rule matched. Bit 0 of the result says that no command was aborted
            // [NVMe1.4 §5.1].
            AdminCommand::Abort { sqid: 0, cid } => {
                let request = self.async_events.abort_request(port, cid);
                let Some((queue, cid)) = request else { return Ok(Some(1)) };
                self.queues.post(queue, cid, Status::ABORTED, 0);
                Ok(Some(0))
            }
            AdminCommand::Abort { sqid, cid } => {
                let queue = self.queues.find_submission(port, sqid);
                let was_aborted = queue.is_some_and(|at| installation::abort(self, at as u32, cid));
                Ok(Some((!was_aborted).into()))
            }
            AdminCommand::AsyncEventRequest => {
                self.async_events.request(port, queue, cid)?;
                self.check_health();
                self.complete_event_requests();
                Ok(None)
            }
            AdminCommand::RuleDownload { offset, bytes } => {
                rule_admin::download(self, port, sqe, offset, bytes).map(Some)
            }
            AdminCommand::RuleInstall => rule_admin::install(self, port, now).map(Some),
            AdminCommand::RuleReject { op } => rule_admin::reject(self, port, op).map(Some),
            AdminCommand::RuleTableEdit { .. } | AdminCommand::RuleTableRead { .. } => {
                rule_admin::access_table(self, port, sqe, &command).map(Some)
            }
            AdminCommand::FormatNvm { nsid, lba_format, protection, erase } => {
                if !self.admin_for_queue(queue).identity().optional.format {
                    return Err(Status::INVALID_OPCODE);
                }
                let Personality::Block(drive) = &self.personality else {
                    return Err(Status::INVALID_OPCODE);
                };
                if nsid != u32::MAX && drive.namespaces.active(nsid).is_none() {
                    return Err(translation::missing(self, port, nsid));
                }
                // MSET, PI and PIL, in bits 0, 3:1 and 4: the settings do not change.
                let present = self.config.protection.map_or(0, |_| FORMAT_TYPE_1);
                if (lba_format, protection) != (0, present) {
                    return Err(Status::INVALID_FORMAT.do_not_retry());
                }
                let erases = match erase {
                    SecureErase::None => false,
                    SecureErase::UserData => true,
                    // The drive does not encrypt: there is no key to delete.
                    SecureErase::Cryptographic => return Err(Status::INVALID_FIELD.do_not_retry()),
                };
                let formatted = (nsid != u32::MAX).then_some(nsid);
                let task = FormatTask::Format { nsid: formatted, erases };
                let command = FormatCommand { port, queue, cid, nsid };
                format::request(self, task, Some(RunRequester::Host(command)))?;
                Ok(None)
            }
            AdminCommand::NamespaceManagement { change, nsid } => {
                let command = FormatCommand { port, queue, cid, nsid };
                management::manage(self, command, change, sqe)?;
                Ok(None)
            }
            AdminCommand::NamespaceAttachment { nsid, attach } => {
                let command = FormatCommand { port, queue, cid, nsid };
                management::attach(self, command, attach, sqe)?;
                Ok(Some(0))
            }
            AdminCommand::Sanitize(command) => {
                if !self.admin_for_queue(queue).identity().optional.sanitize {
                    return Err(Status::INVALID_OPCODE);
                }
                sanitize::request(self, command, SanitizeReport::Host(port))?;
                Ok(Some(0))
            }
            AdminCommand::GetLbaStatus { nsid, slba, nlb, bytes } => {
                self.lba_status((port, nsid), sqe, slba, nlb, bytes)
            }
        }
    }

    /// Logs new media events and notifies hosts with outstanding event requests.
    pub(crate) fn log_media_events(&mut self) {
        let Personality::OpenChannel(drive) = &mut self.personality else { return };
        for notice in drive.array.media_events.drain_pending() {
            let address = drive.ppa(notice.phys).0;
            self.async_events.log_notification(ChunkNotification::new(
                0,
                address,
                1,
                notice.scope,
                notice.kind,
            ));
        }
        self.complete_event_requests();
    }

    /// Tells hosts of new critical warnings of the health log, if their events are enabled.
    pub(crate) fn check_health(&mut self) {
        let enabled = self.admin.warning_events();
        if enabled != 0 {
            let warnings = self.admin.health(&health_counters(self)).critical_warning;
            self.async_events.update_warnings(warnings, enabled);
            self.complete_event_requests();
        }
    }

    /// Tells all hosts that the attributes of a namespace, or the list of namespaces, have changed: the
    /// namespace enters their changed namespace lists, and hosts that have enabled the notice get it
    /// [NVMe1.4 §5.2].
    ///
    /// Attachments, detachments and deletions of namespaces do so. Format NVM keeps the one LBA format,
    /// and a changed utilization is no change.
    pub fn namespace_changed(&mut self, nsid: u32) {
        let is_enabled = self.admin.has_namespace_notices();
        self.async_events.add_changed_namespace(nsid, is_enabled);
        self.complete_event_requests();
    }

    /// Tells all hosts that the drive has failed in a way that no command explains.
    pub(crate) fn report_internal_error(&mut self) {
        let none = ErrorEntry::NONE;
        let error =
            FailedCommand { sqid: none, cid: none, location: none, lba: 0, nsid: 0, detail: 0 };
        self.admin.log_error(Status::INTERNAL, &error);
        let info = AsyncEvent::PERSISTENT_INTERNAL_ERROR;
        self.async_events.raise_all(EventClass::Error, info);
        self.complete_event_requests();
    }

    /// Completes the event requests that are due.
    pub(crate) fn complete_event_requests(&mut self) {
        while let Some((queue, cid, result)) = self.async_events.pop_due() {
            self.queues.post(queue, cid, Status::SUCCESS, result);
        }
    }

    /// Copies up to `bytes` bytes of returned data to the memory that the command describes.
    fn return_data(
        &self,
        port: usize,
        sqe: &Sqe,
        answer: &[u8],
        bytes: u64,
    ) -> Result<Option<u64>, Status> {
        let memory = self.queues.ports[port].port.memory();
        let payload = DataBuffer::from_sqe(sqe, bytes, memory)?;
        let fits = answer.len().min(bytes as usize);
        payload.write(memory, 0, &answer[..fits]);
        Ok(Some(0))
    }

    /// Executes Get LBA Status [NVMe1.4 §5.27]: an eight-byte header, then descriptors.
    fn lba_status(
        &self,
        (port, nsid): (usize, u32),
        sqe: &Sqe,
        slba: u64,
        nlb: u16,
        bytes: u64,
    ) -> Result<Option<u64>, Status> {
        let Personality::Block(drive) = &self.personality else {
            return Err(Status::INVALID_OPCODE);
        };
        let rights = self.queues.ports[port].access.as_deref();
        let is_own = rights.is_none_or(|rights| rights.nsid() == nsid);
        let Some(namespace) = drive.namespaces.active(nsid).filter(|_| is_own) else {
            return Err(translation::missing(self, port, nsid));
        };
        let sectors = rights.and_then(AccessCheck::sector_count).unwrap_or(namespace.blocks);
        let first = rights.map_or(0, AccessCheck::first_sector);
        let app = rights.and_then(AccessCheck::app).unwrap_or(ONLY_APP);
        let (space, base) = (drive.spaces.space_of(app), drive.spaces.base_of(app));
        if slba >= sectors || bytes < 8 {
            return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        let asked = if nlb == 0 { sectors - slba } else { u64::from(nlb) };
        let end = (slba + asked).min(sectors);
        let most = ((bytes - 8) / LbaStatusDescriptor::BYTES as u64) as usize;
        let (mut at, mut list) = (slba, Vec::new());
        while at < end && list.len() < most {
            let left = u32::try_from(end - at).unwrap_or(u32::MAX);
            let range = BlockRange { slba: first + at, nlb: left };
            // A host's part of a namespace that was created again may be larger than it.
            let part = namespace.parts(drive.unit_blocks(), range).next();
            let Some(part) = part.filter(|_| namespace.contains(BlockRange { nlb: 1, ..range }))
            else {
                return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
            };
            let (mapped, n) = drive.extent(space, base + part.slba, part.nlb);
            list.push(LbaStatusDescriptor::new(at, n, mapped));
            at += u64::from(n);
        }
        let mut answer = vec![0; 8];
        answer[..4].copy_from_slice(&(list.len() as u32).to_le_bytes());
        // Completion condition: 1 if the list is truncated, 2 if the range is exhausted.
        answer[4] = if at < end { 1 } else { 2 };
        for descriptor in list {
            answer.extend(descriptor.to_bytes());
        }
        self.return_data(port, sqe, &answer, bytes)
    }

    /// Deletes a submission queue. The controller fetches nothing more from it, and completes the
    /// command when the queue's commands in flight have completed [NVMe1.4 §5.6].
    fn delete_submission(
        &mut self,
        port: usize,
        qid: u16,
        by: (usize, u16),
    ) -> Result<Option<u64>, Status> {
        // Admin queues cannot be deleted by command, and a queue only once [NVMe1.4 §5.6].
        let at = self.queues.find_submission(port, qid).filter(|_| qid > 0);
        let at = at.ok_or(Status::INVALID_QID)?;
        let Some(queue) = self.queues.submissions[at].as_mut().filter(|q| q.teardown.is_none())
        else {
            return Err(Status::INVALID_QID);
        };
        if queue.outstanding > 0 {
            queue.teardown = Some(QueueTeardown::Deleted(by.0, by.1));
            installation::abort_queue(self, at as u32);
            return Ok(None);
        }
        self.queues.remove_submission(at);
        Ok(Some(0))
    }

    pub(crate) fn update_arbitration(&mut self) {
        let value = self.admin.arbitration();
        // 7 means no limit.
        let burst = if value.burst_log2 >= 7 { u16::MAX } else { 1 << value.burst_log2 };
        let arbitration = match self.config.controller.arbitration {
            crate::ArbitrationConfig::RoundRobin { .. } => {
                crate::ArbitrationConfig::RoundRobin { burst }
            }
            crate::ArbitrationConfig::Weighted { .. } => crate::ArbitrationConfig::Weighted {
                burst,
                high: value.high,
                medium: value.medium,
                low: value.low,
            },
        };
        self.queues.set_arbitration(arbitration);
    }
}
