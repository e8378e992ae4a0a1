//! [`Session`]: a queue of one's own, and vectors of any length on it (LightNVM paper section 3.3).
//!
//! Poll-driven (rule R2) and owned by one user (rule R4). Guarantees: every vector that was taken
//! ends exactly once, with a status for each of its addresses; vectors go out in the order in which
//! they were given, and the pieces of one too; a buffer that a command uses is nobody else's until
//! the vector has ended, and never used again if it does not. Vectors that fit a command allocate
//! nothing.

use clock::{Component, Nanos};
use nvme::{MAX_VECTOR_ADDRESSES, Ppa, Status};
use ring::Iova;

use super::requests::{VectorRequest, VectorRequestTable};
use super::{
    ADDRESSES_MAX, BlockingSession, Buffer, Buffers, PpaError, PpaSpace, RejectReason, Rejected,
    RequestCompletion, RequestId, SessionConfig, SessionStats, VectorKind, VectorOptions,
};
use crate::OpenChannelSsd;
use crate::vector::{DataSegments, VectorQueue};

/// A queue of one's own.
#[derive(Debug)]
pub struct Session {
    /// Until the session is closed.
    queue: Option<VectorQueue>,
    requests: VectorRequestTable,
    id: u32,
    space: PpaSpace,
    buffers: Buffers,
    can_copy: bool,
    max_open_chunks: u32,
    poll_limit: u64,
    max_sectors: u32,
    /// Something was submitted since the last poll.
    submitted: bool,
    stats: SessionStats,
}

impl Session {
    /// Makes a queue on the drive, and a session of it.
    ///
    /// # Errors
    /// [`PpaError::Config`], [`PpaError::WriteUnit`], [`PpaError::Ssd`].
    pub fn open(
        ssd: &mut OpenChannelSsd,
        config: SessionConfig,
        pump: &mut dyn FnMut(),
    ) -> Result<Session, PpaError> {
        let SessionConfig { queue_depth, vectors, interrupt, allow_drive_copy: drive_copies } =
            config;
        if queue_depth == 0 || vectors == 0 {
            return Err(PpaError::Config { queue_depth, vectors });
        }
        let limit = ssd.info().max_sectors.clamp(1, MAX_VECTOR_ADDRESSES.into());
        let unit = ssd.geometry().ws_min;
        if unit > limit {
            return Err(PpaError::WriteUnit { unit, limit });
        }
        let queue = ssd.create_queue(queue_depth, interrupt, pump)?;
        Ok(Session {
            max_sectors: queue.max_sectors(),
            queue: Some(queue),
            requests: VectorRequestTable::new(vectors),
            id: ssd.buffers().next_session_id(),
            space: ssd.space(),
            buffers: ssd.buffers().clone(),
            can_copy: drive_copies && ssd.can_copy(),
            max_open_chunks: ssd.open_channel().max_open_chunks,
            poll_limit: ssd.poll_limit(),
            submitted: false,
            stats: SessionStats::default(),
        })
    }

    /// Waits for what is outstanding, deletes the queue, and returns what had not been reaped:
    /// [`Status::ABORTED_SQ_DELETED`] for what did not end, whose buffer is not used again.
    ///
    /// # Errors
    /// [`PpaError::Ssd`] when the drive does not answer, or `ssd` is another drive.
    pub fn close(
        mut self,
        ssd: &mut OpenChannelSsd,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<RequestCompletion>, PpaError> {
        let mut in_vain = 0;
        while self.commands_in_flight() > 0 && in_vain < self.poll_limit {
            in_vain = if self.poll_once() { 0 } else { in_vain + 1 };
            pump();
        }
        self.requests.abort_waiting(Status::ABORTED_SQ_DELETED);
        if let Some(queue) = self.queue.take() {
            self.requests.buffers_in_use().for_each(Buffer::abandon);
            let requests = &mut self.requests;
            let mut back = |ended: crate::vector::VectorCompletion| {
                requests.on_command_complete(
                    (ended.user_data >> 32) as u32,
                    ended.user_data as u32,
                    &ended,
                );
            };
            ssd.delete_queue(queue, &mut back, pump)?;
        }
        Ok(std::iter::from_fn(|| self.reap()).collect())
    }

    /// A session whose caller waits: `pump` lets an in-process drive run, or yields to one elsewhere.
    pub fn blocking<'a>(&'a mut self, pump: &'a mut dyn FnMut()) -> BlockingSession<'a> {
        BlockingSession::new(self, pump)
    }

    /// The drive's address space.
    pub fn space(&self) -> &PpaSpace {
        &self.space
    }

    /// Where its buffers come from.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Whether sectors are copied inside the drive.
    pub fn can_copy(&self) -> bool {
        self.can_copy
    }

    /// Chunks that may be open at a time; 0 for no limit.
    pub(crate) fn max_open_chunks(&self) -> u32 {
        self.max_open_chunks
    }

    /// How often a pump is called in vain before a vector counts as unanswered.
    pub fn poll_limit(&self) -> u64 {
        self.poll_limit
    }

    /// What it has done.
    pub fn stats(&self) -> &SessionStats {
        &self.stats
    }

    /// Vectors taken and not reaped.
    pub fn outstanding(&self) -> usize {
        self.requests.outstanding()
    }

    /// Completions of the drive that named no command of the queue: faults of the drive.
    pub fn spurious_completions(&self) -> u64 {
        self.queue.as_ref().map_or(0, |q| q.queue().spurious_completions())
    }

    /// Commands outstanding on the drive.
    fn commands_in_flight(&self) -> u16 {
        self.queue.as_ref().map_or(0, VectorQueue::outstanding)
    }

    /// Reads sectors, any of the drive in any order.
    ///
    /// # Errors
    /// [`Refused`], with the buffer; nothing was submitted.
    pub fn read(
        &mut self,
        ppas: &[Ppa],
        into: Buffer,
        options: VectorOptions,
    ) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Read, ppas, &[], Some(into), options)
    }

    /// Asks whether sectors can be read, without transferring them.
    ///
    /// # Errors
    /// [`Refused`]; nothing was submitted.
    pub fn check(&mut self, ppas: &[Ppa]) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Check, ppas, &[], None, VectorOptions::default())
    }

    /// Writes sectors: whole units of `ws_min`, each at the write pointer of its chunk by the time
    /// that those before it are written. A unit that fails closes its chunk; what follows it in the
    /// same chunk fails, too.
    ///
    /// # Errors
    /// [`Refused`], with the buffer; nothing was submitted.
    pub fn write(
        &mut self,
        ppas: &[Ppa],
        from: Buffer,
        options: VectorOptions,
    ) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Write, ppas, &[], Some(from), options)
    }

    /// Erases the chunks that addresses are in, each in one chunk.
    ///
    /// # Errors
    /// [`Refused`]; nothing was submitted.
    pub fn reset(&mut self, ppas: &[Ppa]) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Reset, ppas, &[], None, VectorOptions::default())
    }

    /// Copies sectors inside the drive, out-of-band bytes included; the targets are as for
    /// [`write`](Session::write). The drive programs when it has read: the commands of a longer copy
    /// follow each other, and a chunk that is written by a copy takes nothing else until that has
    /// ended.
    ///
    /// # Errors
    /// [`Refused`]; nothing was submitted.
    pub fn copy(&mut self, from: &[Ppa], to: &[Ppa]) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Copy, from, to, None, VectorOptions::default())
    }

    /// Why a vector cannot be taken, if so.
    fn reject_reason(
        &self,
        kind: VectorKind,
        ppas: &[Ppa],
        targets: &[Ppa],
        buffer: Option<&Buffer>,
    ) -> Option<RejectReason> {
        let (addresses, unit) = (ppas.len(), self.space.geometry().ws_min);
        if addresses == 0 || addresses > ADDRESSES_MAX {
            return Some(RejectReason::Length { addresses, limit: ADDRESSES_MAX });
        }
        let writes = matches!(kind, VectorKind::Write | VectorKind::Copy);
        if writes && !addresses.is_multiple_of(unit as usize) {
            return Some(RejectReason::WriteUnit { addresses, unit });
        }
        if kind == VectorKind::Copy {
            if !self.can_copy {
                return Some(RejectReason::CannotCopy);
            }
            if targets.len() != addresses {
                return Some(RejectReason::CopyLengths { from: addresses, to: targets.len() });
            }
        }
        if let Some(buffer) = buffer {
            if !buffer.is_from(&self.buffers) {
                return Some(RejectReason::ForeignBuffer);
            }
            if (buffer.sectors() as usize) < addresses {
                return Some(RejectReason::Buffer { sectors: buffer.sectors(), addresses });
            }
        }
        let vectors = self.requests.capacity();
        self.requests.is_full().then_some(RejectReason::SessionFull { vectors })
    }

    fn submit(
        &mut self,
        kind: VectorKind,
        ppas: &[Ppa],
        targets: &[Ppa],
        buffer: Option<Buffer>,
        options: VectorOptions,
    ) -> Result<RequestId, Rejected> {
        if let Some(because) = self.reject_reason(kind, ppas, targets, buffer.as_ref()) {
            self.stats.rejected += 1;
            return Err(Rejected { reason: because, buffer });
        }
        let ticket = match self.requests.insert(kind, ppas, targets, buffer, options.oob) {
            Ok(number) => RequestId { session: self.id, seq: number },
            Err(buffer) => {
                let vectors = self.requests.capacity();
                return Err(Rejected { reason: RejectReason::SessionFull { vectors }, buffer });
            }
        };
        let count = ppas.len() as u64;
        self.stats.vectors += 1;
        self.stats.split += u64::from(count > u64::from(self.command_addresses_max(kind)));
        match kind {
            VectorKind::Read => self.stats.sectors_read += count,
            VectorKind::Check => self.stats.sectors_checked += count,
            VectorKind::Write => self.stats.sectors_written += count,
            VectorKind::Copy => self.stats.sectors_copied += count,
            VectorKind::Reset => self.stats.chunks_reset += count,
        }
        self.submitted = true;
        self.issue();
        Ok(ticket)
    }

    /// Addresses of one command at most.
    #[inline]
    fn command_addresses_max(&self, kind: VectorKind) -> u32 {
        let unit = self.space.geometry().ws_min;
        let most = u32::from(MAX_VECTOR_ADDRESSES);
        match kind {
            VectorKind::Read | VectorKind::Check => self.max_sectors,
            VectorKind::Write => self.max_sectors / unit * unit,
            VectorKind::Copy => most / unit * unit,
            VectorKind::Reset => most,
        }
    }

    /// Submits pieces as long as the queue takes them.
    #[inline]
    fn issue(&mut self) {
        loop {
            let Some((_, request)) = self.requests.next_to_issue() else { return };
            let kind = request.kind;
            let most = self.command_addresses_max(kind);
            let Some((slot, request)) = self.requests.next_to_issue() else { return };
            if kind == VectorKind::Copy && request.commands_in_flight > 0 {
                return;
            }
            let Some(queue) = self.queue.as_mut() else { return };
            let count = (request.ppas.len() as u32 - request.issued).min(most);
            if !send(queue, slot, request, count) {
                return;
            }
            self.requests.on_issued(count);
            self.stats.commands += 1;
        }
    }

    /// Takes what has ended, and submits what follows. Returns whether anything ended.
    fn reap_commands(&mut self) -> bool {
        let Some(queue) = self.queue.as_mut() else { return false };
        let mut reaped = false;
        // A drive that completes faster than this reaps does not keep it here.
        for _ in 0..queue.queue().capacity() {
            let Some(ended) = queue.reap() else { break };
            reaped = true;
            self.requests.on_command_complete(
                (ended.user_data >> 32) as u32,
                ended.user_data as u32,
                &ended,
            );
        }
        if reaped {
            self.issue();
        }
        reaped
    }

    /// One poll. Returns whether anything ended.
    pub(crate) fn poll_once(&mut self) -> bool {
        let reaped = self.reap_commands();
        if let Some(queue) = self.queue.as_mut() {
            queue.ring(reaped);
        }
        self.submitted = false;
        reaped
    }

    /// Takes the next vector that has ended.
    pub fn reap(&mut self) -> Option<RequestCompletion> {
        self.pop_completed(None)
    }

    /// Takes a vector if it has ended.
    pub fn reap_request(&mut self, ticket: RequestId) -> Option<RequestCompletion> {
        if ticket.session != self.id {
            return None;
        }
        self.pop_completed(Some(ticket.seq))
    }

    fn pop_completed(&mut self, ticket: Option<u64>) -> Option<RequestCompletion> {
        let r = self.requests.pop_completed(ticket)?;
        let ended = RequestCompletion {
            request: RequestId { session: self.id, seq: r.seq },
            kind: r.kind,
            status: r.status.1,
            failed: std::mem::take(&mut r.failed),
            addresses: r.ppas.len() as u32,
            buffer: r.buffer.take(),
        };
        if !ended.is_success() {
            self.stats.failed += 1;
            self.stats.failed_addresses += u64::from(ended.failed.count());
        }
        Some(ended)
    }

    /// What a vector asks for, unless it has been reaped.
    pub(crate) fn kind_of(&self, ticket: RequestId) -> Option<VectorKind> {
        if ticket.session != self.id {
            return None;
        }
        self.requests.kind_of(ticket.seq)
    }
}

/// Submits the next `count` addresses of a vector. Returns whether the queue took them.
#[inline]
fn send(queue: &mut VectorQueue, slot: u32, request: &VectorRequest, count: u32) -> bool {
    let at = request.issued;
    let (from, to) = (at as usize, (at + count) as usize);
    let ppas = request.ppas[from..to].iter().copied();
    let user = u64::from(slot) << 32 | u64::from(at);
    let (data, oob): (DataSegments<'_>, Option<Iova>) = match &request.buffer {
        Some(buffer) => {
            let oob = request.oob && buffer.oob_bytes() > 0;
            (DataSegments::Contiguous(buffer.data_at(at)), oob.then(|| buffer.oob_at(at)))
        }
        None => (DataSegments::BitBucket, None),
    };
    let taken = match request.kind {
        VectorKind::Read | VectorKind::Check => queue.read(ppas, data, oob, user),
        VectorKind::Write => queue.write(ppas, data, oob, user),
        VectorKind::Reset => queue.reset(ppas, user),
        VectorKind::Copy => queue.copy(ppas, request.targets[from..to].iter().copied(), user),
    };
    taken.is_ok()
}

impl Component for Session {
    /// Takes what has ended, submits what waits, and rings the doorbell once for all of it.
    fn poll(&mut self, _now: Nanos) -> bool {
        let submitted = self.submitted;
        self.poll_once() | submitted
    }

    /// At once while something was submitted that the drive has not been told of, else never.
    fn deadline(&self) -> Nanos {
        if self.submitted { Nanos::ZERO } else { Nanos::MAX }
    }
}

impl Drop for Session {
    /// Memory that the drive may still touch is not used again.
    fn drop(&mut self) {
        if self.commands_in_flight() > 0 {
            self.requests.buffers_in_use().for_each(Buffer::abandon);
        }
    }
}
