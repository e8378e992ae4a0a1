//! [`Controller`]: bring-up over a port, admin commands, making and deleting queue pairs.
//!
//! NVMe section 7.6.1 (initialization), as far as it concerns what goes through queues.

use std::sync::Arc;

use nvme::feature::{self, QueueCounts};
use nvme::{
    AdminCommand, ChunkDescriptor, FeatureSelect, GeometryPage, HealthLog, IdentifyController,
    IdentifyNamespace, NamespaceList, QueuePriority, Status, cns, log_page,
};
use ring::{Iova, MAX_QUEUES, Port};

use crate::admin::{AdminQueue, Pump};
use crate::memory::QueueMemory;
use crate::{Completed, DriveInfo, DriverError, QueuePair};

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
    /// By queue identifier minus one: the memory of the queue, if it exists.
    queues: Vec<Option<QueueMemory>>,
    /// Memory of deleted queues.
    spare: Vec<QueueMemory>,
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
        let queues = vec![None; usize::from(info.io_queues)];
        Ok(Controller { port, admin, info, queues, spare: Vec::new() })
    }

    /// What the drive says about itself.
    pub fn info(&self) -> &DriveInfo {
        &self.info
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
        let slot = self.queues.iter_mut().position(|q| q.is_none());
        let slot = slot.ok_or(DriverError::NoQueueLeft { granted })?;
        let qid = slot as u16 + 1;
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
        let nsid = if lid == log_page::CHUNK_INFORMATION { self.info.nsid } else { ALL_NAMESPACES };
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
