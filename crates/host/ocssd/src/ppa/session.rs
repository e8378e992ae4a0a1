//! [`Session`]: an exclusive queue for vectors of any length [LightNVM17 §3.3].
//!
//! A session is driven by polls (ARCHITECTURE.md, R2) and has one owner (R4).
//!
//! Invariants: every accepted vector completes exactly once, with a status per address. Vectors,
//! and the commands of a vector, are submitted in order. A buffer in use by a command has no other
//! user until its vector completes, and is never reused if it does not. Vectors that fit one
//! command allocate nothing.

use mem::Iova;
use nvme::{MAX_VECTOR_ADDRESSES, Ppa, Status};
use time::{Component, Nanos};

use super::requests::{VectorRequest, VectorRequestTable};
use super::{
    ADDRESSES_MAX, BlockingSession, PpaError, PpaSpace, RejectReason, Rejected, RequestCompletion,
    RequestId, SessionConfig, SessionStats, VectorBuffer, VectorBufferPool, VectorKind,
    VectorOptions,
};
use crate::OpenChannelSsd;
use crate::vector::{DataSegments, VectorQueue};

/// An exclusive queue for vectors.
#[derive(Debug)]
pub struct Session {
    /// `None` once the session is closed.
    queue: Option<VectorQueue>,
    requests: VectorRequestTable,
    id: u32,
    space: PpaSpace,
    buffers: VectorBufferPool,
    can_copy: bool,
    max_open_chunks: u32,
    poll_limit: u64,
    max_sectors: u32,
    /// Whether a vector was submitted since the last poll.
    submitted: bool,
    stats: SessionStats,
}

impl Session {
    /// Creates a queue on the drive and a session on it.
    ///
    /// # Errors
    /// [`PpaError::Config`], [`PpaError::WriteUnit`], [`PpaError::Ssd`].
    pub fn open(
        ssd: &mut OpenChannelSsd,
        config: SessionConfig,
        progress: &mut dyn FnMut(),
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
        let queue = ssd.create_queue(queue_depth, interrupt, progress)?;
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

    /// Waits for outstanding commands, deletes the queue, and returns the vectors that were not
    /// reaped. Vectors that did not complete have [`Status::ABORTED_SQ_DELETED`], and their buffers
    /// are not reused.
    ///
    /// # Errors
    /// [`PpaError::Ssd`] if the drive does not respond, or `ssd` is another drive.
    pub fn close(
        mut self,
        ssd: &mut OpenChannelSsd,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<RequestCompletion>, PpaError> {
        let mut in_vain = 0;
        while self.commands_in_flight() > 0 && in_vain < self.poll_limit {
            in_vain = if self.poll_once() { 0 } else { in_vain + 1 };
            progress();
        }
        self.requests.abort_waiting(Status::ABORTED_SQ_DELETED);
        if let Some(queue) = self.queue.take() {
            self.requests.buffers_in_use().for_each(VectorBuffer::abandon);
            let requests = &mut self.requests;
            let mut back = |ended: crate::vector::VectorCompletion| {
                requests.on_command_complete(
                    (ended.user_data >> 32) as u32,
                    ended.user_data as u32,
                    &ended,
                );
            };
            ssd.delete_queue(queue, &mut back, progress)?;
        }
        Ok(std::iter::from_fn(|| self.reap()).collect())
    }

    /// Returns a synchronous interface; `progress` lets an in-process drive run, or yields to a drive
    /// elsewhere.
    pub fn blocking<'a>(&'a mut self, progress: &'a mut dyn FnMut()) -> BlockingSession<'a> {
        BlockingSession::new(self, progress)
    }

    /// Returns the drive's address space.
    pub fn space(&self) -> &PpaSpace {
        &self.space
    }

    /// Returns the pool of the session's buffers.
    pub fn buffers(&self) -> &VectorBufferPool {
        &self.buffers
    }

    /// Returns whether sectors are copied within the drive.
    pub fn can_copy(&self) -> bool {
        self.can_copy
    }

    /// Returns the maximum number of open chunks; 0 if unlimited.
    pub(crate) fn max_open_chunks(&self) -> u32 {
        self.max_open_chunks
    }

    /// Returns the number of polls without a completion after which a vector times out.
    pub fn poll_limit(&self) -> u64 {
        self.poll_limit
    }

    /// Returns the counters.
    pub fn stats(&self) -> &SessionStats {
        &self.stats
    }

    /// Returns the number of vectors accepted and not reaped.
    pub fn outstanding(&self) -> usize {
        self.requests.outstanding()
    }

    /// Returns the number of completions that matched no command of the queue, which are faults of
    /// the drive.
    pub fn spurious_completions(&self) -> u64 {
        self.queue.as_ref().map_or(0, |q| q.queue().spurious_completions())
    }

    /// Returns the number of outstanding commands.
    fn commands_in_flight(&self) -> u16 {
        self.queue.as_ref().map_or(0, VectorQueue::outstanding)
    }

    /// Reads sectors at any addresses, in any order.
    ///
    /// # Errors
    /// [`Rejected`], with the buffer; nothing was submitted.
    pub fn read(
        &mut self,
        ppas: &[Ppa],
        into: VectorBuffer,
        options: VectorOptions,
    ) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Read, ppas, &[], Some(into), options)
    }

    /// Checks whether sectors are readable, without transfer.
    ///
    /// # Errors
    /// [`Rejected`]; nothing was submitted.
    pub fn check(&mut self, ppas: &[Ppa]) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Check, ppas, &[], None, VectorOptions::default())
    }

    /// Writes sectors: whole units of `ws_min`, each at the write pointer of its chunk once the
    /// preceding ones are written. A unit that fails closes its chunk; later units of the same
    /// chunk fail as well.
    ///
    /// # Errors
    /// [`Rejected`], with the buffer; nothing was submitted.
    pub fn write(
        &mut self,
        ppas: &[Ppa],
        from: VectorBuffer,
        options: VectorOptions,
    ) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Write, ppas, &[], Some(from), options)
    }

    /// Erases the chunks of the addresses, each in another chunk.
    ///
    /// # Errors
    /// [`Rejected`]; nothing was submitted.
    pub fn reset(&mut self, ppas: &[Ppa]) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Reset, ppas, &[], None, VectorOptions::default())
    }

    /// Copies sectors within the drive, out-of-band bytes included; for destinations see
    /// [`write`](Session::write). The drive programs after it has read, so the commands of a longer
    /// copy run one after the other. A chunk that is a destination takes no other write until the
    /// copy completes.
    ///
    /// # Errors
    /// [`Rejected`]; nothing was submitted.
    pub fn copy(&mut self, from: &[Ppa], to: &[Ppa]) -> Result<RequestId, Rejected> {
        self.submit(VectorKind::Copy, from, to, None, VectorOptions::default())
    }

    /// Returns the reason to reject a vector, if any.
    fn reject_reason(
        &self,
        kind: VectorKind,
        ppas: &[Ppa],
        targets: &[Ppa],
        buffer: Option<&VectorBuffer>,
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
        buffer: Option<VectorBuffer>,
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

    /// Returns the maximum number of addresses of a command.
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

    /// Submits commands until the queue is full.
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

    /// Reaps completed commands and submits further ones. Returns whether any completed.
    fn reap_commands(&mut self) -> bool {
        let Some(queue) = self.queue.as_mut() else { return false };
        let mut reaped = false;
        // Limits the loop, so that a drive that completes commands faster than the loop reaps them
        // cannot keep the thread here.
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

    /// Polls once. Returns whether any command completed.
    pub(crate) fn poll_once(&mut self) -> bool {
        let reaped = self.reap_commands();
        if let Some(queue) = self.queue.as_mut() {
            queue.ring(reaped);
        }
        self.submitted = false;
        reaped
    }

    /// Reaps the next completed vector.
    pub fn reap(&mut self) -> Option<RequestCompletion> {
        self.pop_completed(None)
    }

    /// Reaps a vector if it has completed.
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

    /// Returns the operation of a vector that was not reaped.
    pub(crate) fn kind_of(&self, ticket: RequestId) -> Option<VectorKind> {
        if ticket.session != self.id {
            return None;
        }
        self.requests.kind_of(ticket.seq)
    }
}

/// Submits the next `count` addresses of a vector. Returns whether the queue accepted them.
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
        VectorKind::Copy => queue.copy(ppas, request.targets[from..to].iter().copied(), None, user),
    };
    taken.is_ok()
}

impl Component for Session {
    /// Reaps completed commands, submits waiting ones, and rings the doorbell once for all.
    fn poll(&mut self, _now: Nanos) -> bool {
        let submitted = self.submitted;
        self.poll_once() | submitted
    }

    /// Returns zero while the doorbell was not rung for submitted commands; otherwise never.
    fn deadline(&self) -> Nanos {
        if self.submitted { Nanos::ZERO } else { Nanos::MAX }
    }
}

impl Drop for Session {
    /// Abandons memory that the drive may still access.
    fn drop(&mut self) {
        if self.commands_in_flight() > 0 {
            self.requests.buffers_in_use().for_each(VectorBuffer::abandon);
        }
    }
}
