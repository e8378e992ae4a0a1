//! [`Controller`]: bring-up over a port, admin commands, making and deleting queue pairs.
//!
//! NVMe section 7.6.1 (initialization), as far as it concerns what goes through queues.

use std::sync::Arc;

use nvme::feature::{self, QueueCounts};
use nvme::{
    Address, AdminCommand, ChunkDescriptor, Extensions, FeatureSelect, GeometryPage, HealthLog,
    IdentifyController, IdentifyNamespace, MapLog, NamespaceList, Ppa, QueuePriority, Status, cns,
    log_page,
};
use ring::{Iova, MAX_QUEUES, Port};

use crate::admin::{AdminQueue, Pump};
use crate::events::EventWatch;
use crate::memory::{QueueMemory, RangeMemory};
use crate::{Cmb, Completed, DriveInfo, DriverError, MediaEvent, OpenChannel, QueuePair};

/// All namespaces.
const ALL_NAMESPACES: u32 = u32::MAX;

/// A drive that has been brought up. It owns the admin queue of its port: one controller per port.
///
/// Calls that talk to the drive take a `pump`, called between two looks at the completion queue,
/// and fail with [`DriverError::Timeout`] after as many of them as [`attach`](Controller::attach)
/// was told. After a timeout every further call fails; queue pairs that exist go on.
#[derive(Debug)]
pub struct Controller {
    port: Arc<Port>,
    admin: AdminQueue,
    info: DriveInfo,
    cmb: Option<Cmb>,
    watch: Option<EventWatch>,
    /// By queue identifier minus one: the memory of the queue, if it exists.
    queues: Vec<Option<QueueMemory>>,
    /// Memory of deleted queues.
    spare: Vec<QueueMemory>,
    spare_ranges: Vec<RangeMemory>,
}

impl Controller {
    /// Brings the drive at the other end of `port` up: identifies it and agrees on a number of
    /// queues. `timeout_polls` is how often `pump` is called for one admin command before that
    /// counts as unanswered.
    ///
    /// # Errors
    /// [`DriverError`]: the drive does not answer, refuses, or says things that cannot be.
    pub fn attach(
        port: Arc<Port>,
        pump: &mut dyn FnMut(),
        timeout_polls: u64,
    ) -> Result<Controller, DriverError> {
        let mut admin = AdminQueue::open(&port, timeout_polls)?;
        let identify = |cns, nsid| AdminCommand::Identify { cns, nsid };
        let controller =
            IdentifyController::from_bytes(admin.describe(identify(cns::CONTROLLER, 0), pump)?);
        let namespaces =
            NamespaceList::from_bytes(admin.describe(identify(cns::ACTIVE_NAMESPACES, 0), pump)?);
        let nsid = namespaces.iter().next().ok_or(DriverError::NoNamespace)?;
        let namespace =
            IdentifyNamespace::from_bytes(admin.describe(identify(cns::NAMESPACE, nsid), pump)?);
        let geometry = if namespace.is_open_channel() {
            let page = admin.describe(AdminCommand::Geometry { nsid }, pump)?;
            Some(GeometryPage::from_bytes(page))
        } else {
            None
        };
        let io_queues = agree_on_queues(&mut admin, pump)?;
        let info = DriveInfo::new(&controller, nsid, &namespace, geometry.as_ref(), io_queues)?;
        let cmb = Cmb::of(&port, &controller)?;
        let queues = vec![None; usize::from(info.io_queues)];
        Ok(Controller {
            port,
            admin,
            info,
            cmb,
            watch: None,
            queues,
            spare: Vec::new(),
            spare_ranges: Vec::new(),
        })
    }

    /// What the drive says about itself.
    pub fn info(&self) -> &DriveInfo {
        &self.info
    }

    /// Memory of the drive that the host reaches into, if it has some.
    pub fn cmb(&self) -> Option<Cmb> {
        self.cmb.clone()
    }

    /// The connection to the drive.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Makes a queue pair with rings of `depth` entries (2 or more; it takes `depth - 1` commands),
    /// which raises interrupt `vector` after completions if there is one.
    ///
    /// # Errors
    /// [`DriverError`]: no queue left, a depth of less than 2, no memory, or the drive refuses;
    /// nothing is left behind then.
    pub fn create_queue_pair(
        &mut self,
        depth: u16,
        vector: Option<u16>,
        pump: &mut dyn FnMut(),
    ) -> Result<QueuePair, DriverError> {
        if depth < 2 {
            return Err(DriverError::Depth { depth, allowed: "a queue has at least 2" });
        }
        let granted = self.info.io_queues;
        let qid = self.next_queue().ok_or(DriverError::NoQueueLeft { granted })?;
        let slot = usize::from(qid) - 1;
        let memory = match self.spare.iter().position(|m| m.depth() == depth) {
            Some(i) => {
                let used = self.spare.swap_remove(i);
                used.zero();
                used
            }
            None => QueueMemory::new(&self.port, depth)?,
        };
        let made = self.announce(qid, &memory, vector, pump);
        if let Err(error) = made {
            // An unanswered drive may still write there.
            if !error.is_unresponsive() {
                self.spare.push(memory);
            }
            return Err(error);
        }
        let rings = (memory.submission(), memory.completion());
        let pair = QueuePair::open(&self.port, qid, rings, depth, vector)?;
        self.queues[slot] = Some(memory);
        Ok(pair)
    }

    /// The number of the queue pair that would be made now; `None` if none is left.
    pub fn next_queue(&self) -> Option<u16> {
        self.queues.iter().position(Option::is_none).map(|slot| slot as u16 + 1)
    }

    /// Memory for the ranges of discards of a queue with `tags` tags.
    pub(crate) fn take_ranges(&mut self, tags: u16) -> Result<RangeMemory, DriverError> {
        match self.spare_ranges.iter().position(|r| r.tags() >= tags.into()) {
            Some(i) => Ok(self.spare_ranges.swap_remove(i)),
            None => RangeMemory::new(&self.port, tags),
        }
    }

    /// The same, of a queue that the drive has let go of.
    pub(crate) fn put_ranges(&mut self, ranges: RangeMemory) {
        self.spare_ranges.push(ranges);
    }

    /// The commands that delete queue `qid` and make it again on the same memory, in order; `None`
    /// for a queue that is not one of this controller's.
    pub(crate) fn remaking(&self, qid: u16, vector: Option<u16>) -> Option<[AdminCommand; 4]> {
        let memory = self.memory_of(qid)?;
        let [create_cq, create_sq] = creation(qid, memory, vector);
        let (delete_sq, delete_cq) =
            (AdminCommand::DeleteSq { qid }, AdminCommand::DeleteCq { qid });
        Some([delete_sq, delete_cq, create_cq, create_sq])
    }

    /// Zeroes the rings of queue `qid` and returns where they are.
    pub(crate) fn cleared(&self, qid: u16) -> Option<(Iova, Iova)> {
        let memory = self.memory_of(qid)?;
        memory.zero();
        Some((memory.submission(), memory.completion()))
    }

    /// The admin queue, for who cannot wait.
    pub(crate) fn admin(&mut self) -> &mut AdminQueue {
        &mut self.admin
    }

    fn memory_of(&self, qid: u16) -> Option<&QueueMemory> {
        self.queues.get(usize::from(qid).checked_sub(1)?)?.as_ref()
    }

    /// Creates the completion queue, then the submission queue.
    fn announce(
        &mut self,
        qid: u16,
        memory: &QueueMemory,
        vector: Option<u16>,
        pump: Pump<'_>,
    ) -> Result<(), DriverError> {
        let [create_cq, create_sq] = creation(qid, memory, vector);
        self.admin.run(create_cq, qid, pump)?;
        let created = self.admin.run(create_sq, qid, pump);
        if created.as_ref().is_err_and(|error| !error.is_unresponsive()) {
            self.admin.run(AdminCommand::DeleteCq { qid }, qid, pump)?;
        }
        created.map(drop)
    }

    /// Deletes a queue pair. Commands that are outstanding come back through `back`, exactly once:
    /// with the drive's answer if it still gives one, else with [`Status::ABORTED_SQ_DELETED`].
    ///
    /// # Errors
    /// [`DriverError`]; the pair is gone and its commands have come back all the same, but its
    /// identifier is not used again.
    pub fn delete_queue_pair(
        &mut self,
        mut pair: QueuePair,
        back: &mut dyn FnMut(Completed),
        pump: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        let qid = pair.qid();
        let slot = usize::from(qid).wrapping_sub(1);
        let known = self.queues.get(slot).is_some_and(Option::is_some);
        let deleted = if known {
            self.admin.run(AdminCommand::DeleteSq { qid }, qid, pump)
        } else {
            Err(DriverError::ForeignQueue { queue: qid })
        };
        while let Some(completed) = pair.reap() {
            back(completed);
        }
        while let Some(completed) = pair.abandon(Status::ABORTED_SQ_DELETED) {
            back(completed);
        }
        deleted?;
        self.admin.run(AdminCommand::DeleteCq { qid }, qid, pump)?;
        self.spare.extend(self.queues.get_mut(slot).and_then(Option::take));
        Ok(())
    }

    /// Reads a log page from byte `offset` on. Both `offset` and the length of `into` are multiples
    /// of 4.
    ///
    /// # Errors
    /// [`DriverError::Command`] with [`Status::INVALID_LOG_PAGE`] for a page that the drive does
    /// not have, [`Status::INVALID_FIELD`] for an offset past its end, or one that is not a
    /// multiple of 4.
    pub fn log_page(
        &mut self,
        lid: u8,
        offset: u64,
        into: &mut [u8],
        pump: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        if !offset.is_multiple_of(4) || !into.len().is_multiple_of(4) {
            let command = "Get Log Page";
            return Err(DriverError::Command { command, queue: 0, status: Status::INVALID_FIELD });
        }
        let nsid = match lid {
            log_page::CHUNK_INFORMATION
            | log_page::CHUNK_NOTIFICATION
            | log_page::DUAL_MAP
            | log_page::MAP_TOTALS => self.info.nsid,
            _ => ALL_NAMESPACES,
        };
        self.admin.log_page(lid, nsid, offset, into, pump)
    }

    /// Reads the health log.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn health(&mut self, pump: &mut dyn FnMut()) -> Result<HealthLog, DriverError> {
        let mut bytes = [0; HealthLog::BYTES];
        self.log_page(log_page::HEALTH, 0, &mut bytes, pump)?;
        Ok(HealthLog::from_bytes(bytes))
    }

    /// Reads what the drive says of `count` chunks from the `first` on, in the order of their
    /// addresses (chunk within parallel unit within group).
    ///
    /// # Errors
    /// [`DriverError::NoSuchChunks`], or that of [`log_page`](Controller::log_page).
    pub fn chunks(
        &mut self,
        first: u64,
        count: u64,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<ChunkDescriptor>, DriverError> {
        let chunks = self.info.open_channel.map_or(0, |o| o.geometry.total_chunks());
        if first.checked_add(count).is_none_or(|end| end > chunks) {
            return Err(DriverError::NoSuchChunks { first, count, chunks });
        }
        let mut bytes = vec![0; count as usize * ChunkDescriptor::BYTES];
        let offset = first * ChunkDescriptor::BYTES as u64;
        self.log_page(log_page::CHUNK_INFORMATION, offset, &mut bytes, pump)?;
        let (chunks, _) = bytes.as_chunks::<{ ChunkDescriptor::BYTES }>();
        Ok(chunks.iter().map(|c| ChunkDescriptor::from_bytes(*c)).collect())
    }

    /// Reads where the drive's own map has the newest copies of `count` logical addresses from
    /// `first` on; `None` for one that has no copy.
    ///
    /// # Errors
    /// [`DriverError::Lacks`] if the drive keeps no map or the map has fewer addresses,
    /// [`DriverError::Implausible`] for copies at addresses that cannot be, or that of
    /// [`log_page`](Controller::log_page).
    pub fn dual_map(
        &mut self,
        first: u64,
        count: u64,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<Option<Address>>, DriverError> {
        let media = self.open_channel()?;
        if !media.extensions.has(Extensions::DUAL_MAP) {
            return Err(DriverError::Lacks { what: "map of its own" });
        }
        let entries = media.extensions.map_entries.get();
        if first.checked_add(count).is_none_or(|end| end > entries) {
            return Err(DriverError::Lacks { what: "map of so many addresses" });
        }
        let mut bytes = vec![0; count as usize * 8];
        self.log_page(log_page::DUAL_MAP, first * 8, &mut bytes, pump)?;
        let (words, _) = bytes.as_chunks::<8>();
        let place = |(lba, word): (u64, &[u8; 8])| match u64::from_le_bytes(*word) {
            log_page::UNMAPPED => Ok(None),
            ppa => media.geometry.address(&media.format, Ppa(ppa)).map(Some).map_err(|e| {
                DriverError::Implausible { what: format!("where logical address {lba} is: {e}") }
            }),
        };
        (first..).zip(words).map(place).collect()
    }

    /// Reads what the drive's own map holds in sum.
    ///
    /// # Errors
    /// [`DriverError::Lacks`] if the drive keeps no map, or that of
    /// [`log_page`](Controller::log_page).
    pub fn map_totals(&mut self, pump: &mut dyn FnMut()) -> Result<MapLog, DriverError> {
        if !self.open_channel()?.extensions.has(Extensions::DUAL_MAP) {
            return Err(DriverError::Lacks { what: "map of its own" });
        }
        let mut bytes = [0; MapLog::BYTES];
        self.log_page(log_page::MAP_TOTALS, 0, &mut bytes, pump)?;
        Ok(MapLog::from_bytes(bytes))
    }

    fn open_channel(&self) -> Result<OpenChannel, DriverError> {
        self.info.open_channel.ok_or(DriverError::Lacks { what: "physical addresses" })
    }

    /// Begins to watch what the drive notices about its media: chunks that go offline, data that
    /// should be moved, dies that fail. What it has noticed before, and still knows, comes first.
    /// Nothing to do if they are watched already.
    ///
    /// # Errors
    /// [`DriverError::Lacks`] for a drive that manages its own media or tells nothing; no memory, no
    /// registration.
    pub fn watch_events(&mut self) -> Result<(), DriverError> {
        let media = self.open_channel()?;
        if !media.extensions.has(Extensions::NOTIFICATIONS) {
            return Err(DriverError::Lacks { what: "chunk notifications" });
        }
        if self.watch.is_none() {
            let (memory, nsid) = (self.port.memory(), self.info.nsid);
            self.watch = Some(EventWatch::begin(&mut self.admin, memory, media, nsid)?);
        }
        Ok(())
    }

    /// The next thing that the drive noticed about its media, if there is one yet. Does not wait, and
    /// asks the drive nothing while there is nothing.
    ///
    /// # Errors
    /// [`DriverError::NotWatching`]; the drive's refusal of a request or of the log, after which
    /// events are not watched any more.
    pub fn poll_events(&mut self) -> Result<Option<MediaEvent>, DriverError> {
        let watch = self.watch.as_mut().ok_or(DriverError::NotWatching)?;
        let polled = watch.poll(&mut self.admin);
        if polled.is_err() {
            self.watch = None;
        }
        polled
    }

    /// Media events that the drive overwrote before they were read, and things that it wrote in
    /// their place that mean nothing, since they are watched.
    pub fn lost_events(&self) -> (u64, u64) {
        self.watch.as_ref().map_or((0, 0), |w| (w.lost, w.malformed))
    }

    /// The value of a feature ([`nvme::feature`]).
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn get_feature(
        &mut self,
        fid: u8,
        select: FeatureSelect,
        pump: &mut dyn FnMut(),
    ) -> Result<u32, DriverError> {
        let command = AdminCommand::GetFeatures { fid, select, member: 0 };
        self.admin.run(command, 0, pump).map(|result| result as u32)
    }

    /// Sets a feature ([`nvme::feature`]) until the next reset, and returns the drive's answer.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn set_feature(
        &mut self,
        fid: u8,
        value: u32,
        pump: &mut dyn FnMut(),
    ) -> Result<u32, DriverError> {
        let command = AdminCommand::SetFeatures { fid, save: false, value };
        self.admin.run(command, 0, pump).map(|result| result as u32)
    }
}

/// The commands that make queue `qid` on its memory: the completion queue first.
fn creation(qid: u16, memory: &QueueMemory, vector: Option<u16>) -> [AdminCommand; 2] {
    let entries = u32::from(memory.depth());
    let priority = QueuePriority::default();
    let (at, cq_at) = (memory.submission().0, memory.completion().0);
    [
        AdminCommand::CreateCq { qid, entries, at: cq_at, vector },
        AdminCommand::CreateSq { qid, entries, at, cqid: qid, priority },
    ]
}

/// Asks for as many I/O queue pairs as a port has doorbells for; returns how many the drive grants.
fn agree_on_queues(admin: &mut AdminQueue, pump: Pump<'_>) -> Result<u16, DriverError> {
    let most = MAX_QUEUES - 1;
    let value = QueueCounts { submission: most, completion: most }.to_value();
    let command = AdminCommand::SetFeatures { fid: feature::NUMBER_OF_QUEUES, save: false, value };
    let granted = admin.run(command, 0, pump)? as u32;
    match QueueCounts::from_value(granted) {
        // A drive may grant more than it was asked for (NVMe section 5.21.1.7).
        Some(counts) => Ok(counts.submission.min(counts.completion).min(most)),
        None => {
            Err(DriverError::Implausible { what: format!("that it has queues {granted:#010x}") })
        }
    }
}
