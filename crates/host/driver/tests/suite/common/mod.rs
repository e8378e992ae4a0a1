//! A small mock drive. It completes commands at once, keeps its sectors in a vector, and fails on
//! request.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses another part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use mem::{Iova, PAGE_BYTES};
use nvme::feature::{self, NumberOfQueues};
use nvme::opcode::admin;
use nvme::{
    AdminCommand, ChunkDescriptor, ChunkNotification, ChunkState, Cqe, DataPointer, DsmRange,
    Geometry, GeometryPage, HealthLog, IdentifyController, IdentifyNamespace, IoCommand,
    LbaStatusDescriptor, MediaTiming, MetadataFormat, MetadataTransfer, NamespaceList,
    SglDescriptor, Sqe, Status, cns, log_page,
};
use transport::{CqProducer, Port, ShadowDoorbells, ShadowPages, SqConsumer};

pub const SECTOR: usize = 4096;

/// The faults of the drive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Does not answer admin commands with this opcode.
    pub ignore_admin: Option<u8>,
    /// Rejects admin commands with this opcode.
    pub refuse_admin: Option<(u8, Status)>,
    /// Takes I/O commands but does not complete them.
    pub hold_io: bool,
    /// Completes each I/O command this many times more.
    pub repeat: u16,
    /// Added to the command identifier of I/O completions.
    pub wrong_cid: u16,
    /// Whether I/O completions name another queue.
    pub wrong_queue: bool,
    /// Completes I/O commands with this error.
    pub fail_io: Option<Status>,
}

pub struct MockDrive {
    port: Arc<Port>,
    admin: (SqConsumer, CqProducer),
    completions: BTreeMap<u16, CqProducer>,
    submissions: BTreeMap<u16, SqConsumer>,
    pub controller: IdentifyController,
    pub namespace: IdentifyNamespace,
    pub geometry: Option<GeometryPage>,
    pub queues: u16,
    pub faults: Faults,
    pub sectors: Vec<u8>,
    pub mapped: Vec<bool>,
    /// Metadata of the sectors, in the size of the namespace's format.
    pub metadata: Vec<u8>,
    /// Dwords 12 and 14 of each transfer and Write Zeroes.
    pub marks: Vec<(u32, u32)>,
    pub flushes: u64,
    pub fua: u64,
    deferred: Vec<Cqe>,
    /// Outstanding Asynchronous Event Requests.
    pub requests: Vec<u16>,
    /// The chunk notification log.
    pub notifications: Vec<ChunkNotification>,
    features: BTreeMap<u8, u32>,
    /// Doorbells in memory, if the host has set them up.
    pub shadows: Option<ShadowDoorbells>,
}

impl MockDrive {
    pub fn new(port: &Arc<Port>, sectors: usize) -> MockDrive {
        let (sq, depth) = port.admin_submission();
        let (cq, _) = port.admin_completion();
        let mut controller = IdentifyController::zeroed();
        controller.set_serial("mock-1");
        controller.set_model("Mock");
        controller.set_firmware("1.0");
        controller.mdts = 5;
        (controller.sqes, controller.cqes) = (0x66, 0x44);
        let (trims, zeroes) =
            (IdentifyController::ONCS_DATASET_MANAGEMENT, IdentifyController::ONCS_WRITE_ZEROES);
        controller.oncs = (trims | zeroes).into();
        let (sgls, buckets) =
            (IdentifyController::SGLS_SUPPORTED, IdentifyController::SGLS_BIT_BUCKET);
        controller.sgls = (sgls | buckets).into();
        controller.vwc = 1;
        controller.maxcmd = 256.into();
        let mut namespace = IdentifyNamespace::zeroed();
        namespace.nsze = (sectors as u64).into();
        namespace.lbaf[0].lbads = 12;
        MockDrive {
            admin: (
                SqConsumer::open(port, 0, sq, depth).unwrap(),
                CqProducer::open(port, 0, cq, depth, None).unwrap(),
            ),
            port: port.clone(),
            completions: BTreeMap::new(),
            submissions: BTreeMap::new(),
            controller,
            namespace,
            geometry: None,
            queues: 4,
            faults: Faults::default(),
            sectors: vec![0; sectors * SECTOR],
            mapped: vec![false; sectors],
            metadata: Vec::new(),
            marks: Vec::new(),
            flushes: 0,
            fua: 0,
            deferred: Vec::new(),
            requests: Vec::new(),
            notifications: Vec::new(),
            features: BTreeMap::new(),
            shadows: None,
        }
    }

    /// Creates an open-channel drive with this geometry; vector commands complete without data
    /// transfer.
    pub fn open_channel(port: &Arc<Port>, geometry: &Geometry) -> MockDrive {
        let mut drive = MockDrive::new(port, 1);
        drive.namespace.vendor[0] = IdentifyNamespace::VENDOR_OPEN_CHANNEL;
        drive.namespace.lbaf[0].ms = (geometry.oob_bytes as u16).into();
        let timing = MediaTiming { read_typical: 70_000, ..MediaTiming::default() };
        drive.geometry = Some(GeometryPage::new(geometry, &timing).unwrap());
        drive
    }

    /// Executes all outstanding commands. Returns whether there were any.
    pub fn poll(&mut self) -> bool {
        let mut moved = false;
        while self.admin.0.read_tail().unwrap() > 0 {
            while let Some(sqe) = self.admin.0.fetch() {
                moved = true;
                self.admin_command(&sqe);
            }
        }
        let qids: Vec<u16> = self.submissions.keys().copied().collect();
        for qid in qids {
            while let Some(sqe) = self.next(qid) {
                moved = true;
                self.io_command(qid, &sqe);
            }
        }
        moved
    }

    /// Drops a queue, as a reset by the drive itself does.
    pub fn forget(&mut self, qid: u16) {
        self.submissions.remove(&qid);
        self.completions.remove(&qid);
    }

    /// Calls [`poll`](MockDrive::poll) and ignores its result.
    pub fn progress(&mut self) {
        self.poll();
    }

    fn next(&mut self, qid: u16) -> Option<Sqe> {
        let sq = self.submissions.get_mut(&qid).unwrap();
        if sq.waiting() == 0 && sq.read_tail().unwrap() == 0 {
            return None;
        }
        sq.fetch()
    }

    fn admin_command(&mut self, sqe: &Sqe) {
        if self.faults.ignore_admin == Some(sqe.opcode) {
            return;
        }
        let refused = self.faults.refuse_admin.is_some_and(|(opcode, _)| opcode == sqe.opcode);
        if sqe.opcode == admin::ASYNC_EVENT_REQUEST && !refused {
            return self.requests.push(sqe.cid.get());
        }
        let outcome = match self.faults.refuse_admin {
            Some((opcode, status)) if opcode == sqe.opcode => Err(status),
            _ => AdminCommand::parse(sqe).and_then(|c| self.administer(c, sqe)),
        };
        let (result, status) = match outcome {
            Ok(result) => (result, Status::SUCCESS),
            Err(status) => (0, status),
        };
        let (sq_head, cid) = (self.admin.0.head(), sqe.cid.get());
        self.admin.1.post(Cqe { result, sq_head, sq_id: 0, cid, status }).unwrap();
    }

    /// Completes an Asynchronous Event Request.
    pub fn send_event(&mut self, dword: u32) {
        let (sq_head, cid) = (self.admin.0.head(), self.requests.remove(0));
        let (result, status) = (dword.into(), Status::SUCCESS);
        self.admin.1.post(Cqe { result, sq_head, sq_id: 0, cid, status }).unwrap();
    }

    fn administer(&mut self, command: AdminCommand, sqe: &Sqe) -> Result<u64, Status> {
        match command {
            AdminCommand::Identify { cns: cns::CONTROLLER, .. } => {
                let bytes = self.controller.to_bytes();
                self.answer(sqe, &bytes)
            }
            AdminCommand::Identify { cns: cns::NAMESPACE, nsid: 1 } => {
                let bytes = self.namespace.to_bytes();
                self.answer(sqe, &bytes)
            }
            AdminCommand::Identify { cns: cns::ACTIVE_NAMESPACES, nsid } => {
                self.answer(sqe, &NamespaceList::above(nsid, &[1]).to_bytes())
            }
            AdminCommand::Geometry { nsid: 1 } => {
                let page = self.geometry.ok_or(Status::INVALID_OPCODE)?;
                self.answer(sqe, &page.to_bytes())
            }
            AdminCommand::SetFeatures { fid: feature::NUMBER_OF_QUEUES, .. } => {
                let counts = NumberOfQueues { submission: self.queues, completion: self.queues };
                Ok(counts.to_value().into())
            }
            AdminCommand::SetFeatures { fid, value, .. } => {
                self.features.insert(fid, value);
                Ok(0)
            }
            AdminCommand::GetFeatures { fid, .. } => {
                self.features.get(&fid).map(|v| u64::from(*v)).ok_or(Status::INVALID_FIELD)
            }
            AdminCommand::GetLogPage { lid: log_page::HEALTH, bytes, offset, .. } => {
                let mut log = HealthLog::zeroed();
                log.percentage_used = 7;
                let page = &log.to_bytes()[offset as usize..][..bytes as usize];
                self.answer(sqe, page)
            }
            AdminCommand::GetLogPage {
                lid: log_page::CHUNK_INFORMATION, bytes, offset, ..
            } => {
                let first = offset / ChunkDescriptor::BYTES as u64;
                let chunks: Vec<u8> = (0..bytes / ChunkDescriptor::BYTES as u64)
                    .flat_map(|i| {
                        let chunk = ChunkDescriptor {
                            state: ChunkState::Free.to_bits(),
                            wp: (first + i).into(),
                            ..ChunkDescriptor::default()
                        };
                        chunk.to_bytes()
                    })
                    .collect();
                self.answer(sqe, &chunks)
            }
            AdminCommand::GetLogPage { lid: log_page::CHUNK_NOTIFICATION, offset: 0, .. } => {
                let log: Vec<u8> = self.notifications.iter().flat_map(|n| n.to_bytes()).collect();
                self.answer(sqe, &log)
            }
            AdminCommand::GetLogPage { lid: log_page::DEVICE_L2P, bytes, .. } => {
                self.answer(sqe, &vec![0x55; bytes as usize])
            }
            AdminCommand::GetLogPage { .. } => Err(Status::INVALID_LOG_PAGE),
            AdminCommand::CreateCq { qid, entries, at, vector } => {
                let depth = entries as u16;
                let mut cq = CqProducer::open(&self.port, qid, Iova(at), depth, vector)
                    .map_err(|_| Status::INVALID_FIELD)?;
                if let Some(shadows) = &self.shadows {
                    cq.enable_shadow(shadows);
                }
                self.completions.insert(qid, cq);
                Ok(0)
            }
            AdminCommand::CreateSq { qid, entries, at, cqid, .. } => {
                assert_eq!(qid, cqid);
                let mut sq = SqConsumer::open(&self.port, qid, Iova(at), entries as u16)
                    .map_err(|_| Status::INVALID_FIELD)?;
                if let Some(shadows) = &self.shadows {
                    sq.enable_shadow(shadows);
                }
                self.submissions.insert(qid, sq);
                Ok(0)
            }
            AdminCommand::DoorbellBufferConfig { values, events } => {
                let pages = ShadowPages { values: Iova(values), events: Iova(events) };
                let stride = self.port.shadow_stride();
                let shadows = ShadowDoorbells::open(self.port.memory(), pages, stride);
                self.shadows = Some(shadows.map_err(|_| Status::INVALID_FIELD)?);
                Ok(0)
            }
            AdminCommand::DeleteSq { qid } => {
                self.submissions.remove(&qid).ok_or(Status::INVALID_QID)?;
                // Complete half of the deferred commands; the others are lost.
                let deferred =
                    self.deferred.extract_if(.., |cqe| cqe.sq_id == qid).collect::<Vec<_>>();
                for cqe in deferred.iter().take(deferred.len() / 2) {
                    let cq = self.completions.get_mut(&qid).unwrap();
                    cq.post(Cqe { status: Status::ABORTED_SQ_DELETED, ..*cqe }).unwrap();
                }
                Ok(0)
            }
            AdminCommand::DeleteCq { qid } => {
                self.completions.remove(&qid).map(|_| 0).ok_or(Status::INVALID_QID)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Writes to the memory of the two PRP entries.
    fn answer(&self, sqe: &Sqe, bytes: &[u8]) -> Result<u64, Status> {
        let DataPointer::Prp(first, second) = sqe.data() else {
            return Err(Status::INVALID_FIELD);
        };
        let (head, tail) = bytes.split_at(bytes.len().min(PAGE_BYTES));
        let memory = self.port.memory();
        memory.write(Iova(first), head).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        if !tail.is_empty() {
            memory.write(Iova(second), tail).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        }
        Ok(0)
    }

    fn io_command(&mut self, qid: u16, sqe: &Sqe) {
        let faults = self.faults;
        let outcome = match faults.fail_io {
            Some(status) => Err(status),
            None => IoCommand::parse(sqe).and_then(|c| self.execute(c, sqe)),
        };
        let (result, status) = match outcome {
            Ok(result) => (result, Status::SUCCESS),
            Err(status) => (0, status),
        };
        let cqe = Cqe {
            result,
            sq_head: self.submissions[&qid].head(),
            sq_id: qid + u16::from(faults.wrong_queue),
            cid: sqe.cid.get().wrapping_add(faults.wrong_cid),
            status,
        };
        if faults.hold_io {
            self.deferred.push(cqe);
            return;
        }
        let cq = self.completions.get_mut(&qid).unwrap();
        for _ in 0..=faults.repeat {
            cq.post(cqe).unwrap();
        }
        cq.raise_interrupt();
    }

    fn range(&self, slba: u64, nlb: u32) -> Result<std::ops::Range<usize>, Status> {
        let end = slba.checked_add(nlb.into()).ok_or(Status::LBA_OUT_OF_RANGE)?;
        let all = self.mapped.len() as u64;
        if end > all { Err(Status::LBA_OUT_OF_RANGE) } else { Ok(slba as usize..end as usize) }
    }

    fn execute(&mut self, command: IoCommand, sqe: &Sqe) -> Result<u64, Status> {
        match command {
            IoCommand::Flush => self.flushes += 1,
            IoCommand::Write { slba, nlb, fua, .. } => {
                let range = self.range(slba, nlb)?;
                self.fua += u64::from(fua);
                self.write(sqe, range.clone())?;
                self.mapped[range].fill(true);
            }
            IoCommand::Read { slba, nlb, .. } => {
                let range = self.range(slba, nlb)?;
                self.read(sqe, range)?;
            }
            IoCommand::WriteZeroes { slba, nlb, deallocate, .. } => {
                let range = self.range(slba, nlb)?;
                self.marks.push((sqe.cdw12.get(), sqe.cdw14.get()));
                self.sectors[range.start * SECTOR..range.end * SECTOR].fill(0);
                self.mapped[range].fill(!deallocate);
            }
            IoCommand::DatasetManagement { ranges: 1, deallocate: true } => {
                let segments = self.segments(sqe, DsmRange::BYTES)?;
                let (at, _) = *segments.first().ok_or(Status::INVALID_FIELD)?;
                let mut bytes = [0; DsmRange::BYTES];
                let memory = self.port.memory();
                memory.read(at, &mut bytes).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                let range = DsmRange::from_bytes(bytes);
                let range = self.range(range.slba.get(), range.nlb.get())?;
                self.sectors[range.start * SECTOR..range.end * SECTOR].fill(0);
                self.mapped[range].fill(false);
            }
            IoCommand::LbaStatus { slba, nlb, max_descriptors } => {
                let range = self.range(slba, nlb)?;
                let mut runs: Vec<LbaStatusDescriptor> = Vec::new();
                for lba in range {
                    match runs.last_mut() {
                        Some(run) if run.is_mapped() == self.mapped[lba] => run.nlb += 1,
                        _ => runs.push(LbaStatusDescriptor::new(lba as u64, 1, self.mapped[lba])),
                    }
                }
                runs.truncate(max_descriptors as usize);
                let bytes = max_descriptors as usize * LbaStatusDescriptor::BYTES;
                let at = sgl(sqe, bytes)?.ok_or(Status::INVALID_FIELD)?;
                let list: Vec<u8> = runs.iter().flat_map(|r| r.to_bytes()).collect();
                let memory = self.port.memory();
                memory.write(at, &list).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                return Ok(runs.len() as u64);
            }
            IoCommand::VectorRead { .. } | IoCommand::VectorWrite { .. } => return Ok(u64::MAX),
            _ => return Err(Status::INVALID_OPCODE),
        }
        Ok(0)
    }
}

/// Data and metadata transfers, by the data pointer and the metadata pointer.
impl MockDrive {
    /// Returns the metadata bytes per sector: interleaved with the data, and in a separate buffer.
    fn metadata_bytes(&self) -> (usize, usize) {
        let bytes = usize::from(self.namespace.lbaf[0].ms.get());
        match MetadataFormat::from_namespace(&self.namespace).map(|metadata| metadata.transfer) {
            Some(MetadataTransfer::ExtendedLba) => (bytes, 0),
            Some(MetadataTransfer::SeparateBuffer) => (0, bytes),
            Some(MetadataTransfer::ControllerOnly) | None => (0, 0),
        }
    }

    fn write(&mut self, sqe: &Sqe, range: std::ops::Range<usize>) -> Result<(), Status> {
        let (inline, apart) = self.metadata_bytes();
        let mut bytes = vec![0; range.len() * (SECTOR + inline)];
        let segments = self.segments(sqe, bytes.len())?;
        let mut at = 0;
        for (from, len) in &segments {
            let into = &mut bytes[at..at + len];
            self.port.memory().read(*from, into).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            at += len;
        }
        for (lba, bytes) in range.clone().zip(bytes.chunks(SECTOR + inline)) {
            if !segments.is_empty() {
                self.sectors[lba * SECTOR..(lba + 1) * SECTOR].copy_from_slice(&bytes[..SECTOR]);
            }
            self.metadata[lba * inline..(lba + 1) * inline].copy_from_slice(&bytes[SECTOR..]);
        }
        let into = &mut self.metadata[range.start * apart..range.end * apart];
        if apart > 0 {
            let from = Iova(sqe.mptr.get());
            self.port.memory().read(from, into).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        }
        self.marks.push((sqe.cdw12.get(), sqe.cdw14.get()));
        Ok(())
    }

    fn read(&mut self, sqe: &Sqe, range: std::ops::Range<usize>) -> Result<(), Status> {
        let (inline, apart) = self.metadata_bytes();
        let bytes: Vec<u8> = range
            .clone()
            .flat_map(|lba| {
                let sector = &self.sectors[lba * SECTOR..(lba + 1) * SECTOR];
                [sector, &self.metadata[lba * inline..(lba + 1) * inline]].concat()
            })
            .collect();
        let mut at = 0;
        for (into, len) in self.segments(sqe, bytes.len())? {
            let from = &bytes[at..at + len];
            self.port.memory().write(into, from).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            at += len;
        }
        if apart > 0 {
            let from = &self.metadata[range.start * apart..range.end * apart];
            let into = Iova(sqe.mptr.get());
            self.port.memory().write(into, from).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        }
        self.marks.push((sqe.cdw12.get(), sqe.cdw14.get()));
        Ok(())
    }

    /// Returns the memory segments of a command's data; none for a bit bucket.
    fn segments(&self, sqe: &Sqe, bytes: usize) -> Result<Vec<(Iova, usize)>, Status> {
        let DataPointer::Prp(first, second) = sqe.data() else {
            return Ok(sgl(sqe, bytes)?.map(|at| (at, bytes)).into_iter().collect());
        };
        let head = bytes.min(PAGE_BYTES - first as usize % PAGE_BYTES);
        let mut segments = vec![(Iova(first), head)];
        let (mut left, mut list) = (bytes - head, second);
        if left > 0 && left <= PAGE_BYTES {
            segments.push((Iova(second), left));
            left = 0;
        }
        while left > 0 {
            let mut word = [0; 8];
            let memory = self.port.memory();
            memory.read(Iova(list), &mut word).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let entry = u64::from_le_bytes(word);
            if list as usize % PAGE_BYTES == PAGE_BYTES - 8 && left > PAGE_BYTES {
                list = entry;
                continue;
            }
            segments.push((Iova(entry), left.min(PAGE_BYTES)));
            (left, list) = (left - left.min(PAGE_BYTES), list + 8);
        }
        Ok(segments)
    }
}

/// Returns the address of a data block of exactly `bytes`; `None` for a bit bucket.
fn sgl(sqe: &Sqe, bytes: usize) -> Result<Option<Iova>, Status> {
    match sqe.data() {
        DataPointer::Sgl(SglDescriptor::DataBlock { address, length })
            if length as usize == bytes =>
        {
            Ok(Some(Iova(address)))
        }
        DataPointer::Sgl(SglDescriptor::BitBucket { length }) if length as usize == bytes => {
            Ok(None)
        }
        _ => Err(Status::SGL_LENGTH_INVALID),
    }
}
