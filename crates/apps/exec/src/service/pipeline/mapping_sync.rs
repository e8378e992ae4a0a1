//! [`MappingSync`]: copies a mapped file between the volume and its memory file, chunk by chunk. It fills ranges
//! before they are mapped, and writes changes made through mappings back to the volume.
//!
//! Changes are found by comparing memory file and volume block by block, over everything that was
//! ever mapped. A write-back scan reads both completely and writes what differs. It runs when the
//! file is synced, and when its last mapping is removed.
//!
//! One job runs at a time. While it processes a file, no call changes that file's bytes.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use block::BlockDevice;
use exec_proto::Call;
use mem::{Iova, SharedRegion};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use volume::{BLOCK, Error, Ino, OpResult, RequestBuffer, VolumeOp, VolumeRequest};

use crate::Service;
use crate::invariants::{ServicePart, ServiceViolation, require_eq};
use crate::open_files::{OpenFile, flags as f};
use crate::service::pipeline::calls::negative_errno;
use crate::service::pipeline::completion::OnComplete;
use crate::service::{CallId, StartResult};
use crate::shared_mappings::{FileRange, MappedFile};

/// Bytes processed at a time.
const SYNC_CHUNK_BYTES: usize = exec_proto::DATA_BYTES;
/// Id of a job's volume operation.
pub(crate) const SYNC_REQUEST_ID: u64 = u64::MAX - 1;
/// All bytes of a file.
const ALL: FileRange = FileRange { begin: 0, end: u64::MAX };

/// Purpose of a job.
#[derive(Clone, Copy, Debug)]
enum SyncPurpose {
    /// Fills a range of the memory file; then the numbered socket represents a mapping.
    Map { from: CallId, range: FileRange, writes: bool, number: u64, flags: u64 },
    /// Writes back changes in a range, and makes the file durable.
    Sync { from: CallId, range: FileRange, data_only: bool },
    /// Writes back all changes.
    WriteBack,
    /// Writes back all changes, then removes the memory file unless the file is mapped again.
    Release,
    /// Makes the whole volume durable; refers to no file.
    SyncAll { from: CallId },
}

#[derive(Clone, Copy, Debug)]
struct SyncJob {
    ino: Ino,
    purpose: SyncPurpose,
}

/// Next step of the first job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncStep {
    /// Waits until no operation changes the file.
    Begin,
    /// Reads the chunk at this offset.
    Read(u64),
    /// Waits for the read of the chunk.
    AwaitRead(u64),
    /// Compares from a byte of the chunk (offset of the chunk, position, length).
    Compare(u64, usize, usize),
    /// Waits for a write of this many bytes, up to this position.
    AwaitWrite(u64, usize, usize, u32),
    /// Finished, completely or with an error.
    Done(Result<(), i64>),
}

/// All jobs, in order.
#[derive(Debug)]
pub(crate) struct MappingSync {
    jobs: VecDeque<SyncJob>,
    step: SyncStep,
    /// Remaining ranges of the first job.
    ranges: [Option<FileRange>; 2],
    /// Registered memory for the volume's reads and writes.
    memory: Option<(Arc<SharedRegion>, Iova)>,
    volume_bytes: Vec<u8>,
    mapped_bytes: Vec<u8>,
}

impl Default for MappingSync {
    fn default() -> MappingSync {
        let (jobs, ranges) = (VecDeque::new(), [None; 2]);
        let (store, image) = (Vec::new(), Vec::new());
        MappingSync {
            jobs,
            step: SyncStep::Begin,
            ranges,
            memory: None,
            volume_bytes: store,
            mapped_bytes: image,
        }
    }
}

impl MappingSync {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the calls that jobs will answer.
    pub(crate) fn callers(&self) -> impl Iterator<Item = CallId> + '_ {
        self.jobs.iter().filter_map(|job| match job.purpose {
            SyncPurpose::Map { from, .. }
            | SyncPurpose::Sync { from, .. }
            | SyncPurpose::SyncAll { from } => Some(from),
            SyncPurpose::WriteBack | SyncPurpose::Release => None,
        })
    }

    pub(crate) fn check_invariants(&self) -> Result<(), ServiceViolation> {
        let (part, invariant) = (ServicePart::MappingSync, "without a job no step is in progress");
        let step = if self.jobs.is_empty() { SyncStep::Begin } else { self.step };
        require_eq(part, invariant, "the next step", step, self.step)
    }

    /// Returns whether a job processes a file, or is about to: operations that change it must wait.
    pub(crate) fn is_syncing(&self, ino: Ino) -> bool {
        self.jobs.front().is_some_and(|job| job.ino == ino)
    }

    /// Returns the step that starts the next range.
    fn next_range(&mut self) -> SyncStep {
        self.ranges[0].map_or(SyncStep::Done(Ok(())), |range| SyncStep::Read(range.begin))
    }

    fn next_chunk(&mut self, at: u64) -> SyncStep {
        match self.ranges[0] {
            Some(range) if at < range.end => SyncStep::Read(at),
            _ => {
                self.ranges.rotate_left(1);
                self.ranges[1] = None;
                self.next_range()
            }
        }
    }

    /// Returns the next range of a chunk that mappings have changed, in whole blocks where the file
    /// has them.
    fn next_change(&self, from: usize) -> Option<(usize, usize)> {
        let len = self.mapped_bytes.len();
        let (store, image) = (&self.volume_bytes[..len], &self.mapped_bytes[..]);
        let differs = |at: &usize| {
            let end = (at + BLOCK).min(len);
            store[*at..end] != image[*at..end]
        };
        let begin = (from..len).step_by(BLOCK).find(differs)?;
        let end = (begin..len).step_by(BLOCK).find(|at| !differs(at)).unwrap_or(len);
        Some((begin, end))
    }
}

fn op_errno(error: Error) -> i64 {
    -i64::from(error.errno())
}

/// Maps a failed system call of the service to an error number for the program.
fn io_errno(error: &std::io::Error) -> i64 {
    match error.raw_os_error() {
        // The memory file is out of space.
        None | Some(28) => negative_errno(Errno::NOMEM),
        Some(errno) => -i64::from(errno),
    }
}

impl<D: BlockDevice> Service<D> {
    /// Starts an [`exec_proto::CallOp::Mmap`] call.
    pub(crate) fn map(&mut self, from: CallId, call: &Call) -> Result<StartResult, i64> {
        let number = call.args[3];
        let begun = self.map_inner(from, call);
        if begun.is_err() {
            self.connections.drop_socket(number);
        }
        begun
    }

    fn map_inner(&mut self, from: CallId, call: &Call) -> Result<StartResult, i64> {
        let Call { handle, args: [offset, len, writes, number], .. } = *call;
        let writes = writes != 0;
        let file = self.files.get(&handle).ok_or(negative_errno(Errno::BADF))?;
        if file.directory {
            return Err(negative_errno(Errno::NODEV));
        }
        if !file.readable() || writes && !file.writable() {
            return Err(negative_errno(Errno::ACCESS));
        }
        let block = BLOCK as u64;
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(block));
        let end = end.filter(|end| i64::try_from(*end).is_ok() && len > 0);
        let end = end.ok_or(negative_errno(Errno::INVAL))?;
        let range = FileRange::new(offset / block * block, end);
        let what = SyncPurpose::Map { from, range, writes, number, flags: file.flags & !f::SYNC };
        let job = SyncJob { ino: file.ino, purpose: what };
        if !self.disable_posting() {
            return Ok(StartResult::Retry);
        }
        // Opened for the mapping, whatever the program closes meanwhile.
        self.volume.open(job.ino).map_err(op_errno)?;
        self.mapping_sync.jobs.push_back(job);
        Ok(StartResult::Pending)
    }

    /// Returns whether mappings may have changed a file.
    pub(crate) fn is_written_by_mappings(&self, ino: Ino) -> bool {
        // Includes a queued first writable mapping, because it precedes the caller's operation.
        self.shared_mappings.get(ino).is_some_and(|image| image.has_writers)
            || self.mapping_sync.jobs.iter().any(|job| job.ino == ino)
    }

    /// Makes a file durable, including changes by mappings in `len` bytes (0 for all).
    pub(crate) fn sync_mapped(
        &mut self,
        from: CallId,
        ino: Ino,
        data_only: bool,
        offset: u64,
        len: u64,
    ) -> StartResult {
        let end = offset.saturating_add(len);
        let range = if len == 0 { ALL } else { FileRange::new(offset, end) };
        let what = SyncPurpose::Sync { from, range, data_only };
        self.mapping_sync.jobs.push_back(SyncJob { ino, purpose: what });
        StartResult::Pending
    }

    /// Makes the volume durable, including all changes by mappings.
    pub(crate) fn sync_all_mapped(&mut self, from: CallId) -> StartResult {
        let back = self
            .shared_mappings
            .inodes()
            .map(|ino| SyncJob { ino, purpose: SyncPurpose::WriteBack });
        self.mapping_sync.jobs.extend(back);
        self.mapping_sync
            .jobs
            .push_back(SyncJob { ino: Ino(u64::MAX), purpose: SyncPurpose::SyncAll { from } });
        StartResult::Pending
    }

    /// Returns whether a file, or any file, is mapped.
    pub(crate) fn is_mapped(&self, ino: Option<Ino>) -> bool {
        self.files.values().any(|file| file.is_mapping && ino.is_none_or(|ino| ino == file.ino))
    }

    /// Handles the removal of a mapping.
    pub(crate) fn on_unmapped(&mut self, ino: Ino) {
        if !self.is_mapped(Some(ino)) {
            self.mapping_sync.jobs.push_back(SyncJob { ino, purpose: SyncPurpose::Release });
        }
    }

    /// Advances the jobs. Returns whether it made progress.
    pub(crate) fn step_mapping_sync(&mut self) -> bool {
        let mut moved = false;
        while let Some(job) = self.mapping_sync.jobs.front().copied() {
            if !self.step_job(job) {
                break;
            }
            moved = true;
        }
        moved
    }

    fn step_job(&mut self, job: SyncJob) -> bool {
        let step = match self.mapping_sync.step {
            SyncStep::Begin if self.calls.pending.is_changing(job.ino) => return false,
            SyncStep::Begin => match self.begin_job(job) {
                Ok(()) => self.mapping_sync.next_range(),
                Err(answer) => SyncStep::Done(Err(answer)),
            },
            SyncStep::Read(at) => {
                let range = self.mapping_sync.ranges[0].unwrap_or(FileRange::new(at, at));
                // Skip holes of the memory file: untouched bytes have not changed.
                let at = match job.purpose {
                    SyncPurpose::Map { .. } => at,
                    _ => self
                        .shared_mappings
                        .get(job.ino)
                        .map_or(range.end, |image| image.next_data(at)),
                };
                if at >= range.end {
                    self.mapping_sync.step = self.mapping_sync.next_chunk(range.end);
                    return true;
                }
                let len = (range.end - at).min(SYNC_CHUNK_BYTES as u64) as usize;
                let Some((_, memory)) = self.mapping_sync.memory else { return false };
                let data = RequestBuffer { iova: memory, len: len as u32 };
                if !self.submit_sync_op(VolumeOp::Read { ino: job.ino, offset: at, data }) {
                    return false;
                }
                SyncStep::AwaitRead(at)
            }
            SyncStep::AwaitRead(_) | SyncStep::AwaitWrite(..) => return false,
            SyncStep::Compare(at, from, len) => match self.mapping_sync.next_change(from) {
                None => self.mapping_sync.next_chunk(at + len as u64),
                Some((begin, end)) => {
                    let Some((_, memory)) = self.mapping_sync.memory else { return false };
                    let bytes = (end - begin) as u32;
                    let data = RequestBuffer { iova: memory.offset(begin as u64), len: bytes };
                    let offset = at + begin as u64;
                    if !self.submit_sync_op(VolumeOp::Write { ino: job.ino, offset, data }) {
                        return false;
                    }
                    SyncStep::AwaitWrite(at, end, len, bytes)
                }
            },
            SyncStep::Done(result) => {
                if !self.finish_job(job, result) {
                    return false;
                }
                self.mapping_sync.jobs.pop_front();
                SyncStep::Begin
            }
        };
        self.mapping_sync.step = step;
        true
    }

    fn submit_sync_op(&mut self, op: VolumeOp) -> bool {
        self.volume
            .submit(
                self.clock.now,
                VolumeRequest { id: SYNC_REQUEST_ID, op, time: self.clock.time },
            )
            .is_ok()
    }

    /// Determines the ranges of a job.
    fn begin_job(&mut self, job: SyncJob) -> Result<(), i64> {
        self.mapping_sync.ranges = [None; 2];
        let ino = job.ino;
        let written = |image: &&MappedFile| image.has_writers;
        match job.purpose {
            SyncPurpose::SyncAll { .. } => return Ok(()),
            SyncPurpose::Map { range, .. } => self.begin_map(ino, range)?,
            SyncPurpose::Sync { range, .. } => {
                let image = self.shared_mappings.get(ino).filter(written);
                self.mapping_sync.ranges[0] =
                    image.and_then(|image| image.range.intersection(range));
            }
            SyncPurpose::Release if self.is_mapped(Some(ino)) => {}
            SyncPurpose::WriteBack | SyncPurpose::Release => {
                // A file without a name and without descriptors needs no write-back.
                let named = self.volume.stat(ino).is_ok_and(|stat| stat.links > 0);
                let wanted = named || self.files.values().any(|file| file.ino == ino);
                let image = self.shared_mappings.get(ino).filter(written);
                self.mapping_sync.ranges[0] = image.filter(|_| wanted).map(|image| image.range);
            }
        }
        if self.mapping_sync.ranges[0].is_none() {
            return Ok(());
        }
        let size = self.volume.stat(ino).map_err(op_errno)?.size;
        let [first, second] = self.mapping_sync.ranges;
        let file = FileRange::new(0, size);
        let within = |range: Option<FileRange>| range.and_then(|range| range.intersection(file));
        self.mapping_sync.ranges = match (within(first), within(second)) {
            (None, second) => [second, None],
            ranges => ranges.into(),
        };
        if self.mapping_sync.memory.is_none() {
            let memory = SharedRegion::memfd(SYNC_CHUNK_BYTES).map_err(|error| io_errno(&error))?;
            let at =
                self.volume.memory().register(&memory).map_err(|_| negative_errno(Errno::NOMEM))?;
            self.mapping_sync.memory = Some((memory, at));
        }
        Ok(())
    }

    /// Determines what must be filled for a range to be mapped; creates the memory file if there is
    /// none.
    fn begin_map(&mut self, ino: Ino, range: FileRange) -> Result<(), i64> {
        let stat = self.volume.stat(ino).map_err(op_errno)?;
        let had = self.shared_mappings.get(ino).map(|image| image.range).filter(|had| had.end > 0);
        let had = had.unwrap_or(FileRange::new(range.begin, range.begin));
        let ranges = [
            FileRange::new(range.begin.min(had.begin), had.begin).non_empty(),
            FileRange::new(had.end, range.end.max(had.end)).non_empty(),
        ];
        let file = FileRange::new(0, stat.size);
        // Counts holes of the file as well, because the volume does not report them.
        let within = ranges.iter().flatten().filter_map(|range| range.intersection(file));
        let bytes: u64 = within.map(FileRange::bytes).sum();
        if bytes > 0 && available_memory().is_some_and(|available| bytes > available) {
            return Err(negative_errno(Errno::NOMEM));
        }
        if self.shared_mappings.get(ino).is_none() {
            let image = MappedFile::new(stat.size).map_err(|error| io_errno(&error))?;
            self.volume.open(ino).map_err(op_errno)?;
            self.shared_mappings.insert(ino, image);
        }
        self.mapping_sync.ranges = match ranges {
            [None, second] => [second, None],
            ranges => ranges,
        };
        Ok(())
    }

    /// Handles the completion of a job's volume operation.
    pub(crate) fn on_sync_op_complete(&mut self, result: Result<OpResult, Error>) {
        let job = self.mapping_sync.jobs.front().copied();
        let job = job.expect("mapping sync: an operation completes, and no job is active");
        let got = match result {
            Ok(OpResult::Bytes { len, .. }) => Ok(len),
            Ok(_) => Ok(0),
            Err(error) => Err(op_errno(error)),
        };
        self.mapping_sync.step = match (self.mapping_sync.step, got) {
            (_, Err(answer)) => SyncStep::Done(Err(answer)),
            (SyncStep::AwaitRead(at), Ok(len)) => match self.on_chunk_read(job, at, len as usize) {
                Ok(step) => step,
                Err(error) => SyncStep::Done(Err(io_errno(&error))),
            },
            // A short write: the volume is out of space.
            (SyncStep::AwaitWrite(_, _, _, wanted), Ok(len)) if len < wanted => {
                SyncStep::Done(Err(negative_errno(Errno::NOSPC)))
            }
            (SyncStep::AwaitWrite(at, from, len, _), Ok(bytes)) => {
                self.count_written_back(bytes);
                SyncStep::Compare(at, from, len)
            }
            (step, Ok(_)) => step,
        };
    }

    /// Handles a chunk read from the volume.
    fn on_chunk_read(&mut self, job: SyncJob, at: u64, len: usize) -> std::io::Result<SyncStep> {
        let passes = &mut self.mapping_sync;
        let (Some((memory, _)), Some(image)) = (&passes.memory, self.shared_mappings.get(job.ino))
        else {
            return Ok(SyncStep::Done(Ok(())));
        };
        passes.volume_bytes.resize(len, 0);
        memory.read(0, &mut passes.volume_bytes);
        if let SyncPurpose::Map { .. } = job.purpose {
            // The memory file is zero already.
            for (i, block) in passes.volume_bytes.chunks(BLOCK).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    image.write(at + (i * BLOCK) as u64, block)?;
                }
            }
            // The file cannot have become shorter: no operation changes it.
            return Ok(if len == 0 {
                SyncStep::Done(Ok(()))
            } else {
                passes.next_chunk(at + len as u64)
            });
        }
        passes.mapped_bytes.resize(len, 0);
        let got = image.read(at, &mut passes.mapped_bytes)?;
        // If a process has shortened the memory file, use only what remains.
        memory.write(0, &passes.mapped_bytes[..got]);
        passes.mapped_bytes.truncate(got);
        Ok(if len == 0 { SyncStep::Done(Ok(())) } else { SyncStep::Compare(at, 0, len) })
    }

    /// Finishes a job. Returns `false` if the volume is busy.
    fn finish_job(&mut self, job: SyncJob, result: Result<(), i64>) -> bool {
        let ino = job.ino;
        match (job.purpose, result) {
            (SyncPurpose::Map { from, .. }, result) => {
                let mapped = result.and_then(|()| self.complete_map(job));
                if let (SyncPurpose::Map { number, .. }, Err(_)) = (job.purpose, mapped) {
                    self.connections.drop_socket(number);
                    let _ = self.volume.close(ino);
                    if let Some(image) = self.shared_mappings.get(ino) {
                        // Discard what was filled: the file may change before the next mapping.
                        let _ = image.punch_outside();
                    }
                    self.on_unmapped(ino);
                }
                self.complete_call(from, mapped.unwrap_or_else(|answer| answer));
            }
            (SyncPurpose::Sync { from, .. }, Err(answer)) => self.complete_call(from, answer),
            (SyncPurpose::Sync { from, data_only, .. }, Ok(())) => {
                let sync = VolumeOp::Sync { ino, data_only };
                return self.submit_op(from, sync, OnComplete::Answer) != StartResult::Retry;
            }
            (SyncPurpose::SyncAll { from }, _) => {
                return self.submit_op(from, VolumeOp::SyncAll, OnComplete::Answer)
                    != StartResult::Retry;
            }
            (SyncPurpose::WriteBack, _) => {}
            (SyncPurpose::Release, result) => {
                if result.is_err() {
                    self.count_writeback_failure();
                }
                if !self.is_mapped(Some(ino)) && self.shared_mappings.remove(ino) {
                    // The memory file held the file open; a failed volume cannot close it.
                    let _ = self.volume.close(ino);
                }
            }
        }
        true
    }

    /// Makes a socket represent the mapping and sends the memory file's descriptor. Returns the
    /// reply.
    fn complete_map(&mut self, job: SyncJob) -> Result<i64, i64> {
        let SyncPurpose::Map { range, writes, number, flags, .. } = job.purpose else {
            return Err(negative_errno(Errno::INVAL));
        };
        let ino = job.ino;
        let image = self.shared_mappings.get_mut(ino).ok_or(negative_errno(Errno::IO))?;
        image.range = match image.range {
            FileRange { end: 0, .. } => range,
            had => FileRange::new(had.begin.min(range.begin), had.end.max(range.end)),
        };
        let memory = image.descriptor(writes).map_err(|error| io_errno(&error))?;
        let end = self.connections.take_socket(number).map_err(negative_errno)?;
        send_descriptor(&end, &memory).map_err(negative_errno)?;
        image.has_writers |= writes;
        if let Some(before) = self.files.remove(&number) {
            self.close_file(number, &before);
        }
        let mapping = OpenFile { is_mapping: true, ..OpenFile::new(ino, flags, end) };
        self.files.insert(number, mapping);
        self.count_mapped();
        self.close_if_unused(number);
        Ok(ino.0 as i64)
    }
}

/// Sends a process the descriptor of a memory file.
fn send_descriptor(end: &UnixStream, memory: &std::os::fd::OwnedFd) -> Result<(), Errno> {
    let descriptors = [memory.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(end, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    end.shutdown(std::net::Shutdown::Read).map_err(|_| Errno::INVAL)
}

/// Returns the available bytes of memory, as the kernel reports them.
fn available_memory() -> Option<u64> {
    let all = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_a_job_is_reported() {
        let mut sync = MappingSync::default();
        sync.check_invariants().expect("nothing is broken yet");
        sync.step = SyncStep::Read(4096);
        let found = sync.check_invariants().expect_err("a step without a job");
        let broken = (ServicePart::MappingSync, "without a job no step is in progress");
        assert_eq!((found.part, found.invariant), broken, "{found}");
    }
}
