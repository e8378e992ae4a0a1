//! Requests that wait for a frame: for what is on its way to or from it, or for there to be one.
//!
//! Guarantee: who came first goes first; nobody waits for ever: when nothing is on its way that could make
//! room, who waits for it fails.

use block::Device;
use nvme::Status;

use super::frames::NONE;
use super::{Cache, Touched};

/// A request that waits for a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) io: u32,
    pub(super) unit: u64,
    /// For what it wrote to be at the device; else for the frame to be usable.
    pub(super) stored: bool,
    pub(super) next: u32,
}

impl<D: Device> Cache<D> {
    /// Lets a unit of a request wait for a frame.
    pub(super) fn wait(&mut self, frame: u32, io: u32, unit: u64, stored: bool) {
        let waiting = Waiting { io, unit, stored, next: NONE };
        let name = match self.free_waiting.pop() {
            Some(name) => {
                self.waiting[name as usize] = waiting;
                name
            }
            None => {
                self.waiting.push(waiting);
                (self.waiting.len() - 1) as u32
            }
        };
        // At the end, so that who came first goes first.
        let mut last = self.frames.get(frame).waiting;
        if last == NONE {
            self.frames.get_mut(frame).waiting = name;
            return;
        }
        while self.waiting[last as usize].next != NONE {
            last = self.waiting[last as usize].next;
        }
        self.waiting[last as usize].next = name;
    }

    /// Lets everybody go on who waited for a frame that is usable now, or, with a `failure`, is not
    /// there any more. What was to be stored is, or has failed with `stored`.
    pub(super) fn wake(&mut self, frame: u32, failure: Option<Status>, stored: Status) {
        let mut next = std::mem::replace(&mut self.frames.get_mut(frame).waiting, NONE);
        while next != NONE {
            let Waiting { io, unit, stored: is_stored, next: after } = self.waiting[next as usize];
            self.free_waiting.push(next);
            next = after;
            if let (false, Some(status)) = (is_stored, failure) {
                self.less(io, status);
                continue;
            }
            if is_stored {
                self.less(io, stored);
                continue;
            }
            match self.touch(io, unit) {
                Touched::Done => self.less(io, Status::SUCCESS),
                Touched::Waits => {}
                // It comes back for this unit alone.
                Touched::Stall => self.back.retry(io, unit),
            }
        }
    }

    /// Lets those go on who waited for a frame.
    pub(super) fn resume(&mut self) -> bool {
        let mut moved = false;
        while let Some((io, unit)) = self.back.next_retry() {
            match self.touch(io, unit) {
                Touched::Done => self.less(io, Status::SUCCESS),
                Touched::Waits => {}
                Touched::Stall => {
                    self.back.retry_first(io, unit);
                    break;
                }
            }
            moved = true;
        }
        while let Some(&id) = self.stalled.front() {
            if !self.advance(id) {
                break;
            }
            self.stalled.pop_front();
            moved = true;
        }
        moved | self.give_up()
    }

    /// Whether anybody waits for a frame.
    pub(super) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty() || self.back.has_retry()
    }

    /// When nothing is on its way that could make room, writes that wait for some fail.
    pub(super) fn give_up(&mut self) -> bool {
        let hopeless = self.is_stalled()
            && self.ops.busy() == 0
            && self.to_fill.is_empty()
            && !self.back.has_alone()
            && self.tree.next_dirty(0).is_none();
        let Some(status) = self.back.last_error().filter(|_| hopeless) else { return false };
        if let Some((io, _)) = self.back.next_retry() {
            self.less(io, status);
        } else if let Some(id) = self.stalled.pop_front() {
            // What has begun of it is in the cache.
            let io = &mut self.ios[id as usize];
            io.next = io.end;
            self.less(id, status);
        }
        true
    }
}
