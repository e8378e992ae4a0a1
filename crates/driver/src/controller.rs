//! [`Controller`]: bring-up over a port, admin commands, making and deleting queue pairs.
//!
//! NVMe section 7.6.1 (initialization), as far as it concerns what goes through queues.

use std::sync::Arc;

use clock::Nanos;
use nvme::feature::{self, QueueCounts};
use nvme::{
    Address, AdminCommand, AsyncEvent, ChunkDescriptor, Extensions, FeatureSelect, GeometryPage,
    HealthLog, IdentifyController, IdentifyNamespace, MapLog, NamespaceList, Ppa, QueuePriority,
    Status, cns, log_page,
};
use ring::{Iova, PAGE, Port, ShadowDoorbells, Unregistered};

use crate::admin::{AdminQueue, Pump};
use crate::bring_up;
use crate::data::PrpLists;
use crate::events::EventWatch;
use crate::memory::{QueueMemory, RangeMemory};
use crate::recovery::{Lives, Recovery};
use crate::{
    Cmb, Completed, DataPointers, DriveInfo, DriverError, Event, MediaEvent, OpenChannel, QueuePair,
};

/// How long a real controller may leave an admin command unanswered.
const ADMIN_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// Entries of a queue at most, where no register says less.
const MAX_ENTRIES: u32 = 1 << 16;

/// All namespaces.
const ALL_NAMESPACES: u32 = u32::MAX;

/// What of a drive is used, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// The namespace; `None` for the drive's first.
    pub nsid: Option<u32>,
    /// How commands say where their data is; `None` for SGLs where the drive takes them, else PRPs.
    pub data: Option<DataPointers>,
    /// I/O queue pairs to ask for; `None` for as many as the connection has doorbells and
    /// interrupt vectors for.
    pub queues: Option<u16>,
    /// Where its queues have their doorbells.
    pub doorbells: DoorbellUse,
}

/// Where the doorbells of a drive's I/O queues are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellUse {
    /// In memory, if the drive offers that (NVMe section 5.7); else as `Registers`.
    #[default]
    Memory,
    /// In the drive's registers.
    Registers,
}

/// A drive that has been brought up. It owns the admin queue of its port: one controller per port.
///
/// Calls that talk to the drive take a `pump`, called between two looks at the completion queue,
/// and fail with [`DriverError::Timeout`] after as many of them as [`attach`](Controller::attach)
/// was told. After a timeout every further call fails until the late answer has come; queue pairs
/// that exist go on, and what a late answer was about is put in order by
/// [`reclaim`](Controller::reclaim).
#[derive(Debug)]
pub struct Controller {
    port: Arc<Port>,
    admin: AdminQueue,
    info: DriveInfo,
    cmb: Option<Cmb>,
    watch: Option<EventWatch>,
    /// A request for an event is outstanding that is not the watch's.
    awaiting_event: bool,
    /// By queue identifier minus one: the memory of the queue, if it exists.
    queues: Vec<Option<QueueMemory>>,
    /// Memory of deleted queues.
    spare: Vec<QueueMemory>,
    /// Queues that the drive may know or not, since it did not answer in time.
    unsure: Vec<u16>,
    spare_ranges: Vec<RangeMemory>,
    spare_lists: Vec<PrpLists>,
    /// Doorbells in memory, if they are used, and the command that tells the drive of their two pages.
    shadows: Option<(ShadowDoorbells, AdminCommand)>,
    /// Entries of a queue at most.
    max_entries: u32,
    /// A reset under way.
    pub(crate) recovery: Option<Recovery>,
    /// The controller has agreed on its queues since it was started last.
    pub(crate) agreed: bool,
    /// It is gone, or has not come back from a reset.
    pub(crate) dead: bool,
    pub(crate) lives: Lives,
    pub(crate) resets: u64,
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
        Controller::attach_with(port, AttachOptions::default(), pump, timeout_polls)
    }

    /// As [`attach`](Controller::attach), for one of several namespaces, or with less than the
    /// drive has.
    ///
    /// # Errors
    /// As there; also [`DriverError::NoSuchNamespace`], and [`DriverError::Lacks`] for SGLs of a
    /// drive that takes none.
    pub fn attach_with(
        port: Arc<Port>,
        options: AttachOptions,
        pump: &mut dyn FnMut(),
        timeout_polls: u64,
    ) -> Result<Controller, DriverError> {
        let mut admin = AdminQueue::open(&port, timeout_polls)?;
        let identify = |cns, nsid| AdminCommand::Identify { cns, nsid };
        let controller =
            IdentifyController::from_bytes(admin.describe(identify(cns::CONTROLLER, 0), pump)?);
        let data = choose_data_pointers(&controller, options.data, port.memory().is_by_pages())?;
        let nsid = choose_namespace(&mut admin, options.nsid, pump)?;
        let namespace =
            IdentifyNamespace::from_bytes(admin.describe(identify(cns::NAMESPACE, nsid), pump)?);
        if namespace.is_open_channel() && port.memory().is_by_pages() {
            return Err(DriverError::Lacks { what: "IOMMU before it, which vector commands need" });
        }
        let geometry = if namespace.is_open_channel() {
            let page = admin.describe(AdminCommand::Geometry { nsid }, pump)?;
            Some(GeometryPage::from_bytes(page))
        } else {
            None
        };
        let most = port.most_queues().min(options.queues.unwrap_or(u16::MAX));
        let io_queues = agree_on_queues(&mut admin, most, pump)?;
        let offered = controller.oacs.get() & IdentifyController::OACS_DOORBELL_BUFFER != 0;
        let shadows = match options.doorbells {
            DoorbellUse::Memory if offered => set_up_shadows(&port, &mut admin, pump)?,
            DoorbellUse::Memory | DoorbellUse::Registers => None,
        };
        let how = (data, !port.is_device());
        let info =
            DriveInfo::new(&controller, nsid, &namespace, geometry.as_ref(), io_queues, how)?;
        let cmb = Cmb::of(&port, &controller)?;
        let queues = vec![None; usize::from(info.io_queues)];
        Ok(Controller {
            port,
            admin,
            info,
            cmb,
            watch: None,
            awaiting_event: false,
            queues,
            spare: Vec::new(),
            unsure: Vec::new(),
            spare_ranges: Vec::new(),
            spare_lists: Vec::new(),
            shadows,
            max_entries: MAX_ENTRIES,
            recovery: None,
            agreed: true,
            dead: false,
            lives: Lives::default(),
            resets: 0,
        })
    }

    /// Brings a real controller up: stops it, tells it where the admin queues of `port` are, starts
    /// it, and then as [`attach_with`](Controller::attach_with). `pump` takes `pump_time` at least;
    /// the controller is given the time that it says it may take, and ten seconds for each
    /// admin command.
    ///
    /// # Errors
    /// As there; also [`DriverError::BringUp`], [`DriverError::Failed`], [`DriverError::Gone`] and
    /// [`DriverError::Metadata`].
    pub fn attach_device(
        port: Arc<Port>,
        options: AttachOptions,
        pump: &mut dyn FnMut(),
        pump_time: Nanos,
    ) -> Result<Controller, DriverError> {
        let capabilities = bring_up::capabilities(&port)?;
        bring_up::stop(&port, pump, pump_time)?;
        bring_up::start(&port, pump, pump_time)?;
        let polls = ADMIN_PATIENCE.0 / pump_time.0.max(1);
        let mut controller = Controller::attach_with(port, options, pump, polls)?;
        let DriveInfo { nsid, oob_bytes: bytes, open_channel, .. } = controller.info;
        if bytes > 0 && open_channel.is_none() {
            return Err(DriverError::Metadata { nsid, bytes });
        }
        controller.max_entries = capabilities.max_entries;
        Ok(controller)
    }

    /// Entries of a queue at most.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// What the drive says about itself.
    pub fn info(&self) -> &DriveInfo {
        &self.info
    }

    /// Memory of the drive that the host reaches into, if it has some.
    pub fn cmb(&self) -> Option<Cmb> {
        self.cmb.clone()
    }

    /// Whether its I/O queues have their doorbells in memory.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadows.is_some()
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
        if u32::from(depth) > self.max_entries {
            let allowed = "more than the controller's queues can have (CAP.MQES)";
            return Err(DriverError::Depth { depth, allowed });
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
        if let Some((shadows, _)) = &self.shadows {
            shadows.clear_queue(qid);
        }
        let made = self.announce(qid, &memory, vector, pump);
        if let Err(error) = made {
            match error.is_unresponsive() {
                false => self.spare.push(memory),
                // It may still write there, and know the queue.
                true => {
                    self.queues[slot] = Some(memory);
                    self.unsure.push(qid);
                }
            }
            return Err(error);
        }
        let rings = (memory.submission(), memory.completion());
        let mut pair = QueuePair::open(&self.port, qid, rings, depth, vector)?;
        if let Some((shadows, _)) = &self.shadows {
            pair.shadow(shadows);
        }
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

    /// Memory for lists of pages of a queue with `tags` tags, if the drive needs them.
    pub(crate) fn take_lists(&mut self, tags: u16) -> Result<Option<Box<PrpLists>>, DriverError> {
        let most = self.info.max_transfer_bytes();
        match self.info.data {
            DataPointers::Sgl => Ok(None),
            DataPointers::Prp | DataPointers::SglAndPrp => {
                match self.spare_lists.iter().position(|l| l.suits(tags, most)) {
                    Some(i) => {
                        let mut lists = self.spare_lists.swap_remove(i);
                        lists.renew();
                        Ok(Some(lists.into()))
                    }
                    None => PrpLists::new(&self.port, tags, most).map(|lists| Some(lists.into())),
                }
            }
        }
    }

    /// The same, of a queue that the drive has let go of.
    pub(crate) fn put_lists(&mut self, lists: Option<Box<PrpLists>>) {
        self.spare_lists.extend(lists.map(|lists| *lists));
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

    /// Zeroes the rings of queue `qid`, and its doorbells in memory, and returns where they are.
    pub(crate) fn cleared(&self, qid: u16) -> Option<(Iova, Iova)> {
        let memory = self.memory_of(qid)?;
        if let Some((shadows, _)) = &self.shadows {
            shadows.clear_queue(qid);
        }
        memory.zero();
        Some((memory.submission(), memory.completion()))
    }

    /// The admin queue, for who cannot wait.
    pub(crate) fn admin(&mut self) -> &mut AdminQueue {
        &mut self.admin
    }

    /// The commands that make queue `qid` again on a controller that has forgotten it, in order.
    pub(crate) fn making(&self, qid: u16, vector: Option<u16>) -> Option<[AdminCommand; 2]> {
        Some(creation(qid, self.memory_of(qid)?, vector))
    }

    /// The admin queue begins anew, on a controller that has been stopped.
    pub(crate) fn renew_admin(&mut self) -> Result<(), DriverError> {
        self.admin.renew(&self.port)
    }

    /// The command by which a controller that was reset has its doorbells in memory again, if it had.
    /// Each queue clears its own when it is made.
    pub(crate) fn shadowing(&self) -> Option<AdminCommand> {
        self.shadows.as_ref().map(|(_, command)| *command)
    }

    /// What was asked to be told of before a reset is asked again.
    pub(crate) fn listen_again(&mut self) -> Result<(), DriverError> {
        if self.awaiting_event || self.watch.is_some() {
            self.admin.listen()?;
        }
        Ok(())
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
    /// identifier is not used again, or only after [`reclaim`](Controller::reclaim) if the drive did
    /// not answer.
    pub fn delete_queue_pair(
        &mut self,
        pair: QueuePair,
        back: &mut dyn FnMut(Completed),
        pump: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        self.delete_watched(pair, &mut |_| {}, back, pump)
    }

    /// The same; `ended` sees the drive's answers before they are given back.
    pub(crate) fn delete_watched(
        &mut self,
        mut pair: QueuePair,
        ended: &mut dyn FnMut(&Event),
        back: &mut dyn FnMut(Completed),
        pump: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        let qid = pair.qid();
        let slot = usize::from(qid).wrapping_sub(1);
        let known = self.queues.get(slot).is_some_and(Option::is_some);
        let deleted = if known {
            self.delete(AdminCommand::DeleteSq { qid }, qid, pump)
        } else {
            Err(DriverError::ForeignQueue { queue: qid })
        };
        while let Some(event) = pair.fetch() {
            ended(&event);
            pair.taken_back(event).map(&mut *back);
        }
        while let Some(completed) = pair.abandon(Status::ABORTED_SQ_DELETED) {
            back(completed);
        }
        let deleted = deleted.and_then(|()| self.delete(AdminCommand::DeleteCq { qid }, qid, pump));
        match deleted {
            Ok(()) => self.spare.extend(self.queues.get_mut(slot).and_then(Option::take)),
            Err(error) => {
                if known && error.is_unresponsive() {
                    self.unsure.push(qid);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes the queues of which it is not known whether the drive has them, since it did not answer
    /// in time when they were made or deleted; their numbers and their memory can be used again then.
    /// Nothing is sent when there are none.
    ///
    /// # Errors
    /// [`DriverError`]: the drive does not answer still.
    pub fn reclaim(&mut self, pump: &mut dyn FnMut()) -> Result<(), DriverError> {
        while let Some(qid) = self.unsure.last().copied() {
            for delete in [AdminCommand::DeleteSq { qid }, AdminCommand::DeleteCq { qid }] {
                match self.admin.run(delete, qid, pump) {
                    // One that the drive does not have is gone as well.
                    Ok(_) | Err(DriverError::Command { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            self.unsure.pop();
            let slot = usize::from(qid).wrapping_sub(1);
            self.spare.extend(self.queues.get_mut(slot).and_then(Option::take));
        }
        Ok(())
    }

    /// Deletes one of a pair's queues, if the controller has not forgotten it in a reset.
    fn delete(
        &mut self,
        command: AdminCommand,
        qid: u16,
        pump: Pump<'_>,
    ) -> Result<(), DriverError> {
        match self.admin.run(command, qid, pump) {
            Err(DriverError::Command { status, .. })
                if self.resets > 0 && status.is(Status::INVALID_QID) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
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
        if self.awaiting_event {
            return Err(DriverError::Lacks { what: "request for events left" });
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

    /// Asks to be told of the next event ([`poll_event`](Controller::poll_event)): of the drive's
    /// health, of its errors, of changes. Nothing to do if that was asked already.
    ///
    /// # Errors
    /// [`DriverError::Lacks`] on a drive whose media events are watched: those are all its events.
    pub fn await_event(&mut self) -> Result<(), DriverError> {
        if self.watch.is_some() {
            return Err(DriverError::Lacks { what: "events beside those of its media" });
        }
        if !self.awaiting_event {
            self.admin.listen()?;
            self.awaiting_event = true;
        }
        Ok(())
    }

    /// The event that was [awaited](Controller::await_event), once there is one; then the next is
    /// to be asked for. Does not wait. Whoever reads the log page that the event names clears it.
    ///
    /// # Errors
    /// [`DriverError::NotWatching`]; the drive's refusal of the request.
    pub fn poll_event(&mut self) -> Result<Option<AsyncEvent>, DriverError> {
        if !self.awaiting_event {
            return Err(DriverError::NotWatching);
        }
        let Some((dword, status)) = self.admin.event() else { return Ok(None) };
        self.awaiting_event = false;
        if status.is_success() {
            return Ok(Some(AsyncEvent::from_dword(dword as u32)));
        }
        let command = AdminCommand::AsyncEventRequest.name();
        Err(DriverError::Command { command, queue: 0, status })
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
    let (at, cq_at) = memory.wire();
    [
        AdminCommand::CreateCq { qid, entries, at: cq_at, vector },
        AdminCommand::CreateSq { qid, entries, at, cqid: qid, priority },
    ]
}

/// Sets up doorbells in memory: the page of event indices follows that of values. A drive that offers them and then refuses goes without.
fn set_up_shadows(
    port: &Port,
    admin: &mut AdminQueue,
    pump: Pump<'_>,
) -> Result<Option<(ShadowDoorbells, AdminCommand)>, DriverError> {
    let (_, at) = port.memory().provide(2 * PAGE)?;
    let pages = (at, at.offset(PAGE as u64));
    let shadows = ShadowDoorbells::open(port.memory(), pages, port.shadow_stride())?;
    let wire = |at| port.memory().wire(at).ok_or(Unregistered { iova: at, len: PAGE as u64 });
    let command = AdminCommand::DoorbellBuffer { values: wire(pages.0)?, events: wire(pages.1)? };
    match admin.run(command, 0, pump) {
        Ok(_) => Ok(Some((shadows, command))),
        Err(DriverError::Command { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How commands say where their data is: as was asked for, if the drive understands that. What is reached
/// by pages is named by pages.
fn choose_data_pointers(
    controller: &IdentifyController,
    asked: Option<DataPointers>,
    by_pages: bool,
) -> Result<DataPointers, DriverError> {
    let best = match (controller.takes_sgls(), controller.takes_bit_buckets()) {
        _ if by_pages => DataPointers::Prp,
        (_, true) => DataPointers::Sgl,
        (true, false) => DataPointers::SglAndPrp,
        (false, false) => DataPointers::Prp,
    };
    let data = asked.unwrap_or(best);
    match (data, best) {
        (DataPointers::Sgl, DataPointers::SglAndPrp | DataPointers::Prp) => {
            Err(DriverError::Lacks { what: "SGLs with bit buckets" })
        }
        (DataPointers::SglAndPrp, DataPointers::Prp) => {
            Err(DriverError::Lacks { what: "SGLs at any alignment" })
        }
        _ => Ok(data),
    }
}

/// The namespace that was asked for, if it is active; the first, if none was.
fn choose_namespace(
    admin: &mut AdminQueue,
    asked: Option<u32>,
    pump: Pump<'_>,
) -> Result<u32, DriverError> {
    // What follows the one before it is itself, if it is there.
    let above = asked.map_or(0, |nsid| nsid.saturating_sub(1));
    let command = AdminCommand::Identify { cns: cns::ACTIVE_NAMESPACES, nsid: above };
    let first = NamespaceList::from_bytes(admin.describe(command, pump)?).iter().next();
    match (asked, first) {
        (None, Some(first)) => Ok(first),
        (Some(nsid), Some(first)) if nsid == first => Ok(nsid),
        (Some(nsid), _) => Err(DriverError::NoSuchNamespace { nsid }),
        (None, None) => Err(DriverError::NoNamespace),
    }
}

/// Asks for `most` I/O queue pairs; returns how many the drive grants.
fn agree_on_queues(admin: &mut AdminQueue, most: u16, pump: Pump<'_>) -> Result<u16, DriverError> {
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
