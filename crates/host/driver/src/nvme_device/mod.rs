//! [`NvmeDevice`] and [`NvmeQueue`]: queue pairs to an NVMe drive behind a port, as a low-level
//! driver.
//!
//! One request becomes one NVMe command, and the tag is its command identifier. The drive checks
//! addresses and ranges.
//!
//! **Queue reset.** A reset deletes the queue and recreates it in the same memory ([NVMe1.4
//! §7.3.3]). All queues of a drive share its one admin queue for this. A drive that leaves admin
//! commands unanswered, or refuses to delete the queue, counts as removed. Its commands are
//! abandoned. Because such a drive may still execute them, their memory stays registered.
//!
//! **Controller reset.** A controller with registers is reset before it counts as removed (`reset`). All its
//! queues are then recreated, and a working queue enters [`QueueState::Resetting`] by itself.
//!
//! **Removal.** Every queue with outstanding commands checks twice a second whether a real
//! controller is present. If the system requests a controller back, the driver stops it first, so
//! that it accesses no memory any more.

pub(crate) mod command;
mod recreate;

use std::sync::{Arc, Mutex, PoisonError};

use event::Waker;
use mem::{AddressSpace, RegisterError};
use nvme::{AdminCommand, DsmRange, LbaStatusDescriptor, MetadataFormat, Sqe, Status};
use time::Nanos;
use transport::Port;

use self::recreate::QueueRecreate;
use crate::controller::reset::ControllerGeneration;
use crate::data::{
    BounceStats, ExtendedLbaLayout, PointerTarget, PrpLists, TransferSpec, set_sgl_pointer,
};
use crate::hal::{
    BindError, CompletionEvent, Features, HardwareQueue, Limits, LowLevelDriver, QueueState,
};
use crate::nvme_device::command::command;
use crate::queue_pair::memory::RangeMemory;
use crate::{
    Completed, ControllerHandle, ControllerInfo, DataPointers, DriverError, Extent, Op, Payload,
    QueuePair, Request, Tag, TagError, TagSet,
};

const _: () = assert!(Extent::BYTES == LbaStatusDescriptor::BYTES);

/// The reason why a drive cannot be used through block requests.
#[derive(Debug, thiserror::Error)]
pub enum NvmeDeviceError {
    /// The host must manage the drive's flash.
    #[error("drive {serial} is open-channel: its flash needs a target such as pblk")]
    OpenChannel {
        /// Serial number of the drive.
        serial: String,
    },
    /// The drive does not grant the queues, or there is no memory for them.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A drive and its queue pairs.
#[derive(Debug)]
pub struct NvmeDevice {
    info: ControllerInfo,
    port: Arc<Port>,
    depth: u16,
    queues: Vec<Option<NvmeQueue>>,
}

impl NvmeDevice {
    /// Opens `queues` queue pairs of `depth` entries (one more than tags) on the drive of
    /// `controller`. If `interrupts`, queue `i` raises interrupt vector `i`. The driver calls
    /// `progress` while it waits for the drive.
    ///
    /// # Errors
    /// [`NvmeDeviceError`].
    pub fn open(
        controller: ControllerHandle,
        queues: u16,
        depth: u16,
        interrupts: bool,
        progress: &mut dyn FnMut(),
    ) -> Result<NvmeDevice, NvmeDeviceError> {
        let (info, port) = (controller.info().clone(), controller.port().clone());
        let controller = Arc::new(Mutex::new(controller));
        let queues = (0..queues)
            .map(|i| NvmeQueue::open(&controller, depth, interrupts.then_some(i), progress))
            .map(|queue| queue.map(Some))
            .collect::<Result<_, NvmeDeviceError>>()?;
        Ok(NvmeDevice { info, port, depth, queues })
    }
}

impl LowLevelDriver for NvmeDevice {
    type Queue = NvmeQueue;

    fn limits(&self) -> Limits {
        limits(&self.info, self.depth.saturating_sub(1))
    }

    fn features(&self) -> Features {
        self.info.features
    }

    fn queues(&self) -> u16 {
        self.queues.len() as u16
    }

    fn memory(&self) -> &AddressSpace {
        self.port.memory()
    }

    fn take_queue(&mut self, index: u16) -> Option<NvmeQueue> {
        self.queues.get_mut(usize::from(index))?.take()
    }
}

fn limits(info: &ControllerInfo, tags: u16) -> Limits {
    Limits {
        sector_bytes: info.sector_bytes,
        sectors: info.sectors,
        max_sectors: info.max_sectors,
        optimal_sectors: info.optimal_sectors,
        queue_depth: tags.into(),
        volatile_cache: info.volatile_cache,
        atomic: info.features.atomic,
    }
}

/// A queue pair of a drive.
#[derive(Debug)]
pub struct NvmeQueue {
    pair: QueuePair,
    port: Arc<Port>,
    limits: Limits,
    features: Features,
    nsid: u32,
    metadata: Option<MetadataFormat>,
    ranges: RangeMemory,
    /// PRP lists, for a drive that does not support all kinds of SGL, or whose namespace has
    /// metadata.
    lists: Option<Box<PrpLists>>,
    /// Whether the drive supports SGLs.
    sgls: bool,
    /// The controller, for aborts and resets. Without it the queue can only be abandoned.
    controller: Option<Arc<Mutex<ControllerHandle>>>,
    /// Resets of the controller, and their number when this queue was created.
    generation: ControllerGeneration,
    seen_generation: u64,
    recreate: Option<QueueRecreate>,
    removed: bool,
    /// Time of the next presence check of a controller with registers; otherwise never.
    presence_check_at: Nanos,
}

/// Clamps the result of an extent query to what fits the payload; other commands have none.
#[inline]
fn clamp_result(mut event: CompletionEvent) -> CompletionEvent {
    event.result = event.result.min(Request::extent_capacity() as u64);
    event
}

impl NvmeQueue {
    /// Creates a queue on `pair`, a queue pair of the drive that `info` describes. `port` is the
    /// drive's port. No command may be outstanding.
    ///
    /// # Errors
    /// [`NvmeDeviceError`].
    pub fn new(
        info: &ControllerInfo,
        pair: QueuePair,
        port: Arc<Port>,
    ) -> Result<NvmeQueue, NvmeDeviceError> {
        if info.open_channel.is_some() {
            return Err(NvmeDeviceError::OpenChannel { serial: info.serial.clone() });
        }
        let ranges = RangeMemory::new(&port, pair.capacity())?;
        let lists = match info.needs_prp_lists() {
            false => None,
            true => Some(PrpLists::new(&port, pair.capacity(), info)?.into()),
        };
        Ok(NvmeQueue {
            limits: limits(info, pair.capacity()),
            features: info.features,
            nsid: info.nsid,
            metadata: info.metadata,
            pair,
            port,
            ranges,
            lists,
            sgls: info.data != DataPointers::Prp,
            controller: None,
            generation: ControllerGeneration::default(),
            seen_generation: 0,
            recreate: None,
            removed: false,
            presence_check_at: Nanos::MAX,
        })
    }

    /// Creates a queue of `depth` entries (one more than tags) on the drive of `controller`. The
    /// queue uses the controller to abort commands and for resets. It raises interrupt `vector` if
    /// there is one.
    ///
    /// # Errors
    /// [`NvmeDeviceError`].
    pub fn open(
        controller: &Arc<Mutex<ControllerHandle>>,
        depth: u16,
        vector: Option<u16>,
        progress: &mut dyn FnMut(),
    ) -> Result<NvmeQueue, NvmeDeviceError> {
        let mut held = controller.lock().unwrap_or_else(PoisonError::into_inner);
        let (info, port) = (held.info().clone(), held.port().clone());
        if info.open_channel.is_some() {
            return Err(NvmeDeviceError::OpenChannel { serial: info.serial });
        }
        let ranges = held.alloc_ranges(depth.saturating_sub(1))?;
        let lists = match held.alloc_prp_lists(depth.saturating_sub(1)) {
            Ok(lists) => lists,
            Err(error) => {
                held.free_ranges(ranges);
                return Err(error.into());
            }
        };
        match held.create_queue_pair(depth, vector, progress) {
            Ok(pair) => Ok(NvmeQueue {
                limits: limits(&info, pair.capacity()),
                features: info.features,
                nsid: info.nsid,
                metadata: info.metadata,
                pair,
                ranges,
                lists,
                sgls: info.data != DataPointers::Prp,
                controller: Some(controller.clone()),
                seen_generation: held.generation().generation(),
                generation: held.generation(),
                recreate: None,
                removed: false,
                presence_check_at: if port.has_registers() { Nanos::ZERO } else { Nanos::MAX },
                port,
            }),
            Err(error) => {
                held.free_ranges(ranges);
                held.free_prp_lists(lists);
                Err(error.into())
            }
        }
    }

    /// Deletes the queue. Passes outstanding commands to `back` (see
    /// [`ControllerHandle::delete_queue_pair`]).
    ///
    /// # Errors
    /// [`DriverError`]; also for a queue without a controller. The commands are passed to `back`
    /// nevertheless.
    pub fn close(
        mut self,
        back: &mut dyn FnMut(Completed),
        progress: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        let Some(controller) = self.controller.take() else {
            while let Some(completed) = self.orphan_next(Status::ABORTED_SQ_DELETED) {
                back(completed);
            }
            return Err(DriverError::ForeignQueue { queue: self.pair.qid() });
        };
        let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
        let (lists, memory) = (&mut self.lists, self.port.memory());
        let ended = &mut |event: &CompletionEvent| {
            if let Some(lists) = lists {
                lists.complete(memory, event.tag.0, event.status.is_success());
            }
        };
        controller.delete_with_observer(self.pair, ended, back, progress)?;
        // Only now can the drive read no range and no list any more.
        controller.free_ranges(self.ranges);
        controller.free_prp_lists(self.lists);
        Ok(())
    }

    /// Returns the limits of the drive; `queue_depth` is the number of this queue's tags.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the features of the driver.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the queue pair, for its counters.
    pub fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Returns the queue pair, so that its controller can delete it.
    pub fn into_pair(self) -> QueuePair {
        self.pair
    }

    /// Abandons the outstanding commands, one per call; see [`QueuePair::orphan_next`].
    pub fn orphan_next(&mut self, status: Status) -> Option<Completed> {
        self.pair.orphan_next(status)
    }

    /// Returns the counters of payloads that were copied because PRP lists could not address them.
    pub fn bounce_stats(&self) -> BounceStats {
        self.lists.as_ref().map_or(BounceStats::default(), |lists| lists.bounce_stats())
    }

    /// Returns why bounce memory could not be allocated when it was needed: no memory can be
    /// locked, or the controller reaches none. Commands that need it complete with
    /// [`Status::INTERNAL`].
    pub fn bounce_error(&self) -> Option<RegisterError> {
        self.lists.as_ref().and_then(|lists| lists.bounce_error())
    }

    /// Returns the command of a read or write without its data pointer, and the length of the data.
    #[inline]
    fn transfer(&self, request: &Request) -> Result<(Sqe, u32), Status> {
        let sqe = command(self.nsid, request)?;
        let bytes = request.sectors.checked_mul(self.limits.sector_bytes);
        Ok((sqe, bytes.ok_or(Status::INVALID_FIELD)?))
    }

    /// Returns the command of any other request without its data pointer, and the description of
    /// the data.
    fn command_without_data(
        &self,
        tag: Tag,
        request: &Request,
    ) -> Result<(Sqe, Option<TransferSpec>), Status> {
        let Request { op, lba, sectors, data, .. } = *request;
        match op {
            Op::Discard => {
                let sqe = command(self.nsid, request)?;
                let at = self.ranges.write(tag.0, &DsmRange::new(lba, sectors));
                let (data, bytes) = (Payload::Contiguous(at), DsmRange::BYTES as u32);
                let layout = ExtendedLbaLayout::NO_METADATA;
                Ok((sqe, Some(TransferSpec { data, bytes, is_read: false, layout })))
            }
            Op::Extents => {
                if !matches!(data, Payload::Contiguous(_)) {
                    return Err(Status::INVALID_FIELD);
                }
                let count = Request::extent_capacity();
                let sqe = Sqe::lba_status(self.nsid, lba, sectors, count as u32);
                let bytes = (count * LbaStatusDescriptor::BYTES) as u32;
                Ok((
                    sqe,
                    Some(TransferSpec {
                        data,
                        bytes,
                        is_read: true,
                        layout: ExtendedLbaLayout::NO_METADATA,
                    }),
                ))
            }
            _ => Ok((command(self.nsid, request)?, None)),
        }
    }

    /// Binds any request to any drive. A drive that supports all kinds of SGL takes a shorter path
    /// for reads and writes, on which the command is built in registers.
    #[inline(never)]
    fn bind_generic(&mut self, tag: Tag, request: &Request, now: Nanos) -> Result<(), BindError> {
        let Request { op, data, .. } = *request;
        let made = match op {
            Op::Read | Op::Write => self.transfer(request).map(|(sqe, bytes)| {
                let layout = ExtendedLbaLayout::new(self.metadata, self.limits.sector_bytes);
                (sqe, Some(TransferSpec { data, bytes, is_read: op == Op::Read, layout }))
            }),
            _ => self.command_without_data(tag, request),
        };
        let (mut sqe, transfer) = made.map_err(BindError::Refused)?;
        if let Some(metadata) = &self.metadata {
            metadata.set_protection_info(&mut sqe);
        }
        if let (Some(lists), Op::Read | Op::Write) = (&self.lists, op) {
            lists.set_metadata_pointer(&mut sqe, op == Op::Read);
        }
        let memory = self.port.memory();
        match (&mut self.lists, transfer) {
            (_, None) => {}
            (None, Some(TransferSpec { data, bytes, .. })) => {
                set_sgl_pointer(&mut sqe, data, bytes)
            }
            (Some(lists), Some(transfer)) => {
                let target = PointerTarget { memory, has_sgls: self.sgls };
                lists.set_data_pointer(&mut sqe, tag.0, transfer, target)?;
            }
        }
        self.pair.push(tag, sqe, request.tag, now).map_err(|_| {
            if let Some(lists) = &mut self.lists {
                lists.complete(memory, tag.0, false);
            }
            BindError::Busy
        })
    }

    /// Fetches the next event of a queue with PRP lists, and copies the data that its command has
    /// read.
    #[inline(never)]
    fn fetch_with_lists(&mut self) -> Option<CompletionEvent> {
        let event = self.pair.fetch()?;
        if let Some(lists) = &mut self.lists {
            lists.complete(self.port.memory(), event.tag.0, event.status.is_success());
        }
        Some(clamp_result(event))
    }

    /// Returns whether the queue accepts and completes commands.
    #[inline]
    fn is_ready(&self) -> bool {
        self.recreate.is_none() && !self.removed
    }
}

impl HardwareQueue for NvmeQueue {
    #[inline]
    fn tags(&self) -> &TagSet {
        self.pair.tags()
    }

    #[inline]
    fn tags_mut(&mut self) -> &mut TagSet {
        self.pair.tags_mut()
    }

    fn memory(&self) -> &AddressSpace {
        self.port.memory()
    }

    #[inline]
    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        if !self.is_ready() {
            return Err(BindError::Busy);
        }
        if self.lists.is_some() || !matches!(command.op, Op::Read | Op::Write) {
            return self.bind_generic(tag, command, now);
        }
        let (mut sqe, bytes) = self.transfer(command).map_err(BindError::Refused)?;
        set_sgl_pointer(&mut sqe, command.data, bytes);
        // Every tag has a ring entry. If the drive misreports its head, the queue is busy.
        self.pair.push(tag, sqe, command.tag, now).map_err(|_| BindError::Busy)
    }

    #[inline]
    fn issue_tags(&mut self) -> bool {
        self.is_ready() && self.pair.ring()
    }

    #[inline]
    fn check_event(&mut self) -> bool {
        self.is_ready() && self.pair.has_completion()
    }

    #[inline]
    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        if !self.is_ready() {
            return None;
        }
        if self.lists.is_some() {
            return self.fetch_with_lists();
        }
        self.pair.fetch().map(clamp_result)
    }

    fn abort_tag(&mut self, tag: Tag, _now: Nanos) -> Result<(), TagError> {
        if self.tags().state(tag) != Some(crate::TagState::Bound) {
            return self.tags_mut().detach(tag).map(drop);
        }
        if let Some(controller) = &self.controller {
            let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
            let admin = controller.admin();
            if self.is_ready() && !admin.is_busy() {
                let abort = AdminCommand::Abort { sqid: self.pair.qid(), cid: tag.0 };
                // The answer adds nothing to the command's own completion. If the drive does not
                // support Abort, the caller resets the queue.
                let _ = admin.submit_detached(abort, self.pair.qid());
            }
        }
        Ok(())
    }

    fn reset(&mut self, now: Nanos) {
        if !self.is_ready() {
            return;
        }
        let commands = self.controller.as_ref().and_then(|controller| {
            let mut controller = controller.lock().unwrap_or_else(PoisonError::into_inner);
            if controller.is_removed() {
                return None;
            }
            let answered = controller.admin().completed_count();
            Some((controller.recreate_commands(self.pair.qid(), self.pair.vector())?, answered))
        });
        match commands {
            Some((commands, answered)) => self.begin_recreate(&commands, answered, now),
            None => self.removed = true,
        }
    }

    fn state(&self) -> QueueState {
        match (&self.recreate, self.removed) {
            (_, true) => QueueState::Removed,
            (Some(_), _) => QueueState::Resetting,
            (None, _) => QueueState::Ready,
        }
    }

    fn poll(&mut self, now: Nanos) -> bool {
        if self.recreate.is_none() {
            if self.removed {
                return false;
            }
            if self.seen_generation == self.generation.generation() {
                return now >= self.presence_check_at && self.check_presence(now);
            }
            // The controller has been reset on behalf of another queue.
            self.begin_recreate(&[], 0, now);
        }
        self.step_recreate(now)
    }

    fn deadline(&self) -> Nanos {
        match &self.recreate {
            Some(remaking) => remaking.next_poll,
            None if self.removed || self.pair.tags().bound() == 0 => Nanos::MAX,
            None => self.presence_check_at,
        }
    }

    fn set_waker(&mut self, waker: Waker) {
        // Without a waker the owner would wait forever.
        if let Some(vector) = self.pair.vector()
            && self.port.set_vector(vector, waker).is_err()
        {
            self.removed = true;
        }
    }
}
