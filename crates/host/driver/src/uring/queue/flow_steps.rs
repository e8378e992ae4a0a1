//! The steps of commands between binding and completion. The queue issues steps to the kernel. It
//! converts results into events, further steps, or the end of a reset.

use std::io;

use nvme::Status;
use rustix::io::Errno;
use time::Nanos;

use super::{RETRY_PERIOD, Reset, RingQueue, Stage};
use crate::hal::CompletionEvent;
use crate::uring::backend::{CommandFlow, NextStep, UringBackend};
use crate::uring::ring::CqeResult;
use crate::{Tag, TagState};

impl<W: UringBackend> RingQueue<W> {
    /// Pushes the step of a tag into the ring. Returns whether the ring had space.
    #[inline]
    pub(super) fn push(&mut self, tag: Tag) -> bool {
        let flight = &mut self.commands[usize::from(tag.0)];
        let pushed = W::push(&mut self.ring, tag, &flight.flow);
        if pushed {
            flight.stage = Stage::Issued;
        }
        pushed
    }

    /// Keeps a tag, at most once, for the next issue.
    #[inline]
    pub(super) fn defer(&mut self, tag: Tag) {
        let flight = &mut self.commands[usize::from(tag.0)];
        if flight.stage != Stage::Bound {
            self.bound.push(tag);
        }
        flight.stage = Stage::Bound;
    }

    /// Submits the ring's entries to the kernel.
    #[inline]
    pub(super) fn submit(&mut self) {
        match self.ring.submit() {
            Ok(all) => self.backlog = !all,
            Err(error) => self.fail(&error),
        }
    }

    #[cold]
    pub(super) fn fail(&mut self, error: &io::Error) {
        self.backlog = false;
        self.fault = Some(Errno::from_io_error(error).unwrap_or(Errno::IO));
    }

    /// Pushes all bound commands into the ring, in order, as far as there is space. Submits all
    /// batches but the last.
    #[inline]
    pub(super) fn push_bound(&mut self) {
        let count = self.bound.take();
        let mut batch = self.config.setup.submit_batch;
        for index in 0..count {
            let tag = self.bound.taken(index);
            // The owner freed the tag before it was issued.
            if self.tags.state(tag) != Some(TagState::Bound) {
                self.commands[usize::from(tag.0)].stage = Stage::Idle;
                continue;
            }
            if self.commands[usize::from(tag.0)].aborted {
                self.complete_local(CompletionEvent { tag, status: Status::ABORTED, result: 0 });
                continue;
            }
            if batch == 0 {
                self.submit();
                batch = self.config.setup.submit_batch;
            }
            batch -= 1;
            if !self.push(tag) {
                self.bound.requeue(index..count);
                return;
            }
        }
    }

    #[cold]
    pub(super) fn complete_local(&mut self, event: CompletionEvent) {
        self.commands[usize::from(event.tag.0)].stage = Stage::Idle;
        self.local_events.push_back(event);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Evaluates a result. Returns the event, unless the command continues.
    #[inline]
    pub(super) fn complete_cqe(
        &mut self,
        CqeResult { tag, result }: CqeResult,
    ) -> Option<CompletionEvent> {
        // The ring only returns tags that were pushed into it.
        let flight = &mut self.commands[usize::from(tag.0)];
        flight.stage = Stage::Idle;
        let aborted = flight.aborted;
        let status = match flight.flow.on_cqe(result, self.config.limits.sector_bytes, aborted) {
            NextStep::Completed(status) => status,
            NextStep::DeviceRemoved => {
                self.device_removed = true;
                Status::NOT_READY
            }
            next => {
                self.apply_next_step(tag, next);
                return None;
            }
        };
        Some(CompletionEvent { tag, status, result: 0 })
    }

    #[cold]
    pub(super) fn apply_next_step(&mut self, tag: Tag, next: NextStep) {
        match next {
            NextStep::Continue(bytes) => {
                self.ring.advance(tag, bytes);
                self.ring.stats_mut().short_transfers += 1;
            }
            NextStep::Retry => self.ring.stats_mut().retries += 1,
            NextStep::Step | NextStep::Completed(_) | NextStep::DeviceRemoved => {}
        }
        // The owner has detached the tag, so the rest of the command is not needed.
        if self.tags.state(tag) != Some(TagState::Bound) {
            return;
        }
        if self.push(tag) {
            self.submit();
        } else {
            self.defer(tag);
            self.backlog = true;
        }
    }

    #[inline]
    pub(super) fn next_event(&mut self) -> Option<CompletionEvent> {
        if let Some(event) = self.local_events.pop_front() {
            return Some(event);
        }
        let mut nudged = false;
        loop {
            match self.ring.pop() {
                Some(answer) => {
                    if let Some(event) = self.complete_cqe(answer) {
                        return Some(event);
                    }
                }
                None if nudged || !self.ring.run_task_work() => return None,
                None => nudged = true,
            }
        }
    }

    /// Advances a reset. Returns whether it has finished.
    pub(super) fn step_reset(&mut self, reset: Reset, now: Nanos) -> bool {
        self.ring.run_task_work();
        while self.ring.pop().is_some() {}
        if self.ring.in_kernel() == 0 {
            for flight in &mut self.commands {
                flight.stage = Stage::Idle;
            }
            self.reset = None;
        } else if now >= reset.deadline {
            self.fault = Some(Errno::TIMEDOUT);
        } else {
            self.reset = Some(Reset { next_poll: now + RETRY_PERIOD, ..reset });
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use mem::AddressSpace;

    use super::*;
    use crate::hal::{BindError, HardwareQueue, QueueState};
    use crate::uring::file_target::FileTarget;
    use crate::uring::queue::RingQueueConfig;
    use crate::uring::ring::RingSetup;
    use crate::{Features, Limits, Payload, Request, UringConfig, UringQueue};

    fn queue(path: &Path, split: bool) -> UringQueue {
        std::fs::write(path, vec![0x5e; 65_536]).unwrap();
        let config = UringConfig { direct: false, ..UringConfig::default() };
        let target = Arc::new(FileTarget::open(path, &config).unwrap());
        let limits = Limits {
            sector_bytes: target.sector_bytes,
            sectors: target.sectors,
            max_sectors: 4,
            optimal_sectors: 1,
            queue_depth: 4,
            volatile_cache: true,
            atomic: crate::AtomicLimits::NONE,
        };
        let setup = RingSetup {
            depth: 4,
            polled: false,
            split,
            submission_thread: None,
            deferred: false,
            cooperative: false,
            registered_file: true,
            registered_buffers: true,
            segments: 4,
            memory_align: 1,
            fixed_align: 1,
            bit_bucket_bytes: 65_536,
            command_table_bytes: 0,
            submit_batch: u16::MAX,
        };
        let features = Features::default();
        let config = RingQueueConfig { limits, features, setup, reset_timeout: Nanos(1000) };
        UringQueue::new(target, AddressSpace::default(), config).unwrap()
    }

    fn issue(queue: &mut UringQueue, request: Request) -> Tag {
        let tag = queue.tags.take().unwrap();
        queue.bind_tag_cmd(tag, &request, Nanos::ZERO).unwrap();
        queue.issue_tags();
        tag
    }

    fn wait_event(queue: &mut UringQueue) -> CompletionEvent {
        let event = loop {
            if let Some(event) = queue.fetch_event() {
                break event;
            }
            std::thread::yield_now();
        };
        queue.detach_tag_cmd(event.tag).unwrap();
        queue.release_tags(&[event.tag]).unwrap();
        event
    }

    #[test]
    fn two_rings_are_one_queue() {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = queue(&dir.path().join("disk"), true);
        for round in 0..50 {
            for request in [
                Request::read(0, 1, Payload::BitBucket, 0),
                Request::flush(1),
                Request::write(1, 1, Payload::BitBucket, 2),
                Request { fua: true, ..Request::write_zeroes(2, 1, round % 2 == 0, 3) },
            ] {
                issue(&mut queue, request);
            }
            for _ in 0..4 {
                assert_eq!(wait_event(&mut queue).status, Status::SUCCESS);
            }
            assert_eq!(queue.fetch_event(), None);
        }
        assert!(queue.event_fd().is_none(), "one of two would be missed");
        issue(&mut queue, Request::flush(0));
        issue(&mut queue, Request::read(0, 4, Payload::BitBucket, 0));
        queue.reset(Nanos::ZERO);
        while queue.state() == QueueState::Resetting {
            queue.poll(Nanos::ZERO);
        }
        assert_eq!(queue.ring.in_kernel(), 0);
    }

    #[test]
    fn a_removed_device_removes_its_queue_when_everything_has_completed() {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = queue(&dir.path().join("disk"), false);
        let read = Request::read(0, 1, Payload::BitBucket, 0);
        let tags = [issue(&mut queue, read), issue(&mut queue, read)];
        let gone = -Errno::NODEV.raw_os_error();
        // Simulate a result of the kernel. Its own result follows and is an ordinary event.
        let event = queue.complete_cqe(CqeResult { tag: tags[0], result: gone }).unwrap();
        assert_eq!(event, CompletionEvent { tag: tags[0], status: Status::NOT_READY, result: 0 });
        assert_eq!(queue.state(), QueueState::Ready, "commands are still under way");
        let tag = queue.tags.take().unwrap();
        let refused = queue.bind_tag_cmd(tag, &read, Nanos::ZERO);
        assert_eq!(refused, Err(BindError::Refused(Status::NOT_READY)));
        queue.release_tags(&[tag]).unwrap();
        for _ in tags {
            wait_event(&mut queue);
        }
        assert_eq!(queue.state(), QueueState::Removed);
        assert!(!queue.issue_tags());
    }

    #[test]
    fn a_short_transfer_is_continued_where_it_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut queue = queue(&path, false);
        let region = mem::SharedRegion::anonymous(65_536).unwrap();
        let at = queue.memory().register(&region).unwrap();
        let sector = queue.config.limits.sector_bytes as usize;
        // A contiguous payload, and one of three segments, whose second is split by the partial
        // transfer.
        let table = 40_960;
        let quarter = (sector / 4) as u32;
        for (i, (offset, bytes)) in
            [(0, 3 * quarter), (8192, 2 * quarter), (16_384, 11 * quarter)].into_iter().enumerate()
        {
            let segment = crate::Segment { at: Some(at.offset(offset)), bytes };
            for (j, word) in segment.encode().into_iter().enumerate() {
                region.write(table + 16 * i + 8 * j, &word.to_le_bytes());
            }
        }
        let scattered = Payload::Scattered { table: at.offset(table as u64), segments: 3 };
        for data in [Payload::Contiguous(at), scattered] {
            region.fill(0, table, 0);
            let tag = queue.tags.take().unwrap();
            let read = Request::read(0, 4, data, 0);
            queue.bind_tag_cmd(tag, &read, Nanos::ZERO).unwrap();
            queue.bound.take();
            // Simulate a kernel that has read one sector.
            let answer = CqeResult { tag, result: sector as i32 };
            assert_eq!(queue.complete_cqe(answer), None);
            assert_eq!(wait_event(&mut queue).status, Status::SUCCESS);
            let mut bytes = vec![0; table];
            region.read(0, &mut bytes);
            let read = bytes.iter().filter(|b| **b == 0x5e).count();
            assert_eq!(read, 3 * sector, "the rest, and nothing twice");
            let skipped = match data {
                Payload::Contiguous(_) => &bytes[..sector],
                _ => &bytes[8192..8192 + sector / 4],
            };
            assert!(skipped.iter().all(|b| *b == 0), "what the kernel had read already");
        }
        assert_eq!(queue.stats().short_transfers, 2);
    }
}
