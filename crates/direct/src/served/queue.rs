//! [`ServedQueue`]: a hardware queue of a drive in another process, whose requests end when that
//! process does.
//!
//! Guarantee: every request that was taken ends exactly once: with the drive's answer, or, when the
//! server is gone, with [`Status::HOST_PATH_ERROR`]. A write that ended so may have been carried out
//! or not.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{Busy, Completion, Device as BlockDevice, Limits, Raw, Request};
use clock::{Component, Nanos, Waker};
use driver::EmulatedQueue;
use nvme::Status;

use super::life::Life;

/// A hardware queue of a served drive.
pub(crate) struct ServedQueue {
    /// None when the server is gone.
    raw: Option<Raw<EmulatedQueue>>,
    limits: Limits,
    life: Arc<Life>,
    number: u64,
    /// What ends without the drive.
    lost: VecDeque<Completion>,
}

impl ServedQueue {
    pub(crate) fn new(queue: EmulatedQueue, life: Arc<Life>) -> ServedQueue {
        let limits = queue.limits();
        let (raw, number) = (Raw::new(queue, limits), life.number());
        let lost = VecDeque::with_capacity(2 * limits.queue_depth as usize);
        ServedQueue { limits: *raw.limits(), raw: Some(raw), life, number, lost }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The queue, as long as the server is there.
    #[inline]
    fn raw(&mut self) -> Option<&mut Raw<EmulatedQueue>> {
        if self.life.is_over() {
            self.lose();
        }
        self.raw.as_mut()
    }

    /// The server is gone: what is outstanding ends.
    #[cold]
    fn lose(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        let (queue, ended) = raw.into_queue();
        self.lost.extend(ended);
        let mut pair = queue.into_pair();
        // What was answered before the end is answered.
        while let Some(done) = pair.reap() {
            let result = done.result.min(Request::extent_capacity() as u64);
            self.lost.push_back(Completion { tag: done.user, status: done.status, result });
        }
        while let Some(done) = pair.abandon(Status::HOST_PATH_ERROR) {
            self.lost.push_back(Completion { tag: done.user, status: done.status, result: 0 });
        }
    }

    #[inline]
    /// The queue itself, as long as there is a server.
    pub(crate) fn queue(&self) -> Option<&EmulatedQueue> {
        self.raw.as_ref().map(Raw::queue)
    }

    pub(crate) fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        if let Some(raw) = self.raw() {
            return raw.submit(now, request);
        }
        if self.lost.len() >= 2 * self.limits.queue_depth as usize {
            return Err(Busy);
        }
        let status = Status::HOST_PATH_ERROR;
        self.lost.push_back(Completion { tag: request.tag, status, result: 0 });
        Ok(())
    }

    #[inline]
    pub(crate) fn reap(&mut self) -> Option<Completion> {
        match self.raw() {
            Some(raw) => raw.reap(),
            None => self.lost.pop_front(),
        }
    }

    #[inline]
    pub(crate) fn poll(&mut self, now: Nanos) -> bool {
        match self.raw() {
            Some(raw) => raw.poll(now),
            None => !self.lost.is_empty(),
        }
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.raw.as_ref().map_or(Nanos::MAX, Component::deadline)
    }

    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.life.set_sleeper(self.number, Some(waker.clone()));
        if let Some(raw) = self.raw() {
            raw.set_waker(waker);
        }
    }

    /// Deletes the queue, if the server is there.
    pub(crate) fn close(&mut self, pump: &mut dyn FnMut()) {
        self.life.set_sleeper(self.number, None);
        if self.life.is_over() {
            return;
        }
        if let Some(raw) = self.raw.take() {
            // A drive that does not answer keeps the queue's number and its memory.
            let _ = raw.into_queue().0.close(&mut |_| {}, pump);
        }
    }
}
