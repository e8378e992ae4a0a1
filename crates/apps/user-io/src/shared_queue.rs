//! [`SharedQueue`]: one queue that several handles use, each through a [`QueueHandle`] ([NVMeDirect16 fig. 1],
//! threads C and D).
//!
//! # Concurrency
//!
//! Handles share the queue under a lock (ARCHITECTURE.md, R4). The queue may be behind a scheduler
//! that distinguishes handles by group. The lock holder reaps every available completion and stores
//! it in the owning handle's mailbox. Sleeping handles are woken once per batch, after the lock is
//! released, so that they do not contend for it.

// guarantee: A-09

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{BlockDevice, Completion, Group, Limits, QueueFull, Request};
use collections::Slab;
use event::Waker;
use mem::AddressSpace;
use time::{Component, Nanos};

use crate::Queue;
use crate::scheduled::GroupedSubmit;
use crate::wait::adaptive_period::AdaptivePeriod;

/// A queue that several handles use. Clones refer to the same queue. It is destroyed with the last
/// clone and the last handle.
#[derive(Debug)]
pub struct SharedQueue<D = Queue> {
    inner: Arc<SharedQueueInner<D>>,
}

impl<D> Clone for SharedQueue<D> {
    fn clone(&self) -> SharedQueue<D> {
        SharedQueue { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
struct SharedQueueInner<D> {
    state: Mutex<SharedQueueState<D>>,
    limits: Limits,
    memory: AddressSpace,
}

#[derive(Debug)]
struct SharedQueueState<D> {
    device: D,
    /// Owner of each request in flight.
    slots: Slab<RequestSlot>,
    mailboxes: Vec<Option<Mailbox>>,
    /// The poller thread that polls for all handles.
    watcher: Option<Waker>,
    /// Number of polls.
    poll_count: u64,
    /// For the poller: submission times of requests in order of arrival, and the estimated
    /// completion rate.
    arrivals: VecDeque<(u32, Nanos)>,
    adaptive_period: AdaptivePeriod,
}

#[derive(Clone, Copy, Debug)]
struct RequestSlot {
    handle: u32,
    tag: u64,
    submitted_at: Nanos,
    busy: bool,
}

/// Completions of one handle.
#[derive(Debug, Default)]
struct Mailbox {
    completions: VecDeque<Completion>,
    waker: Option<Waker>,
    /// The poll that woke the handle last.
    last_wake: u64,
    /// Requests in flight.
    outstanding: u32,
    /// The handle was dropped; its index is free when nothing is outstanding.
    detached: bool,
}

/// Maximum number of handles that one poll wakes without the lock.
const WAKES_MAX: usize = 8;

/// Handles with new completions, to be woken after the lock is released.
#[derive(Debug, Default)]
struct WakeList {
    wakers: [Option<Waker>; WAKES_MAX],
    count: usize,
    found: usize,
}

impl WakeList {
    #[inline]
    fn add(&mut self, waker: &Waker) {
        match self.wakers.get_mut(self.count) {
            Some(place) => {
                *place = Some(waker.clone());
                self.count += 1;
            }
            // The list is full: wake while holding the lock.
            None => waker.wake(),
        }
    }

    /// Wakes the listed handles. Returns the number of completions found.
    #[inline]
    fn wake_all(self) -> usize {
        for waker in self.wakers.iter().take(self.count).flatten() {
            waker.wake();
        }
        self.found
    }
}

/// One handle's access to a shared queue, as a device.
#[derive(Debug)]
pub struct QueueHandle<D: GroupedSubmit = Queue> {
    inner: Arc<SharedQueueInner<D>>,
    index: u32,
    group: Group,
    /// Taken from the mailbox, to be reaped.
    ready: VecDeque<Completion>,
}

impl<D: GroupedSubmit> SharedQueue<D> {
    /// Shares a queue, or a queue behind a [`Scheduled`](crate::Scheduled), without outstanding
    /// requests ([`enable_sharing`](BlockDevice::enable_sharing)).
    pub fn new(mut device: D) -> SharedQueue<D> {
        device.enable_sharing();
        let (limits, memory) = (*device.limits(), device.memory().clone());
        let state = SharedQueueState {
            device,
            slots: Slab::new(),
            mailboxes: Vec::new(),
            watcher: None,
            poll_count: 0,
            arrivals: VecDeque::new(),
            adaptive_period: AdaptivePeriod::default(),
        };
        SharedQueue {
            inner: Arc::new(SharedQueueInner { state: Mutex::new(state), limits, memory }),
        }
    }

    /// Attaches a handle in group 0.
    pub fn attach(&self) -> QueueHandle<D> {
        self.attach_group(Group(0))
    }

    /// Attaches a handle whose requests belong to `group`, for a scheduler that distinguishes
    /// groups.
    pub fn attach_group(&self, group: Group) -> QueueHandle<D> {
        let mut state = self.inner.lock();
        let seat = match state.mailboxes.iter().position(Option::is_none) {
            Some(seat) => seat,
            None => {
                state.mailboxes.push(None);
                state.mailboxes.len() - 1
            }
        };
        state.mailboxes[seat] = Some(Mailbox::default());
        drop(state);
        let inner = self.inner.clone();
        QueueHandle { inner, index: seat as u32, group, ready: VecDeque::new() }
    }

    /// Returns the number of handles, including dropped ones with requests in flight.
    pub fn handle_count(&self) -> usize {
        self.inner.lock().mailboxes.iter().flatten().count()
    }

    /// Returns the number of requests in flight.
    pub fn outstanding(&self) -> u32 {
        self.inner.lock().outstanding()
    }

    /// Polls the queue for all handles, and wakes those with new completions. For poller threads.
    /// Returns the number of completions.
    pub fn poll_all(&self, now: Nanos) -> usize {
        let calls = self.inner.lock().poll_all(now, None);
        calls.wake_all()
    }

    /// Returns when a poller should poll next, or `None` if nothing is in flight. That is when
    /// enough requests should have completed, or, with a `hint`, when the oldest is that old.
    pub(crate) fn next_poll(&self, hint: Nanos) -> Option<Nanos> {
        self.inner.lock().next_poll(hint)
    }

    /// Returns the identity of the queue.
    pub(crate) fn as_ptr(&self) -> *const () {
        Arc::as_ptr(&self.inner).cast()
    }

    /// Sets the poller to be woken when there are requests in flight, and starts to measure their
    /// rate.
    pub(crate) fn watch(&self, watcher: Option<Waker>) {
        let mut state = self.inner.lock();
        state.arrivals.clear();
        state.adaptive_period = AdaptivePeriod::default();
        state.watcher = watcher;
    }
}

impl<D> SharedQueueInner<D> {
    fn lock(&self) -> MutexGuard<'_, SharedQueueState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: BlockDevice> SharedQueueState<D> {
    /// Rings the doorbell and distributes completions. Returns the number of completions and the
    /// handles to wake, except handle `own`, which is the caller.
    fn poll_all(&mut self, now: Nanos, own: Option<u32>) -> WakeList {
        self.device.poll(now);
        self.poll_count += 1;
        let mut calls = WakeList::default();
        let mut count = 0;
        while let Some(completion) = self.device.reap() {
            count += 1;
            // The device returns the tag that it was given: an index into the table.
            let slot = &mut self.slots[completion.tag as u32];
            assert!(slot.busy, "shared queue: tag {} completes and has no request", completion.tag);
            slot.busy = false;
            let RequestSlot { handle: seat, tag, .. } = *slot;
            self.slots.release(completion.tag as u32);
            let place = &mut self.mailboxes[seat as usize];
            let Some(mail) = place else {
                panic!("shared queue: tag {} completes, and handle {seat} is gone", completion.tag)
            };
            mail.outstanding -= 1;
            if mail.detached {
                if mail.outstanding == 0 {
                    *place = None;
                }
                continue;
            }
            mail.completions.push_back(Completion { tag, ..completion });
            let first = std::mem::replace(&mut mail.last_wake, self.poll_count) != self.poll_count;
            if let Some(waker) = &mail.waker
                && first
                && own != Some(seat)
            {
                calls.add(waker);
            }
        }
        if self.watcher.is_some() {
            self.adaptive_period.on_poll(now, count as u64, self.outstanding());
        }
        calls.found = count;
        calls
    }

    /// Records that the device accepted a handle's request.
    fn on_submit(&mut self, now: Nanos, seat: u32, name: u32) {
        if let Some(mail) = &mut self.mailboxes[seat as usize] {
            mail.outstanding += 1;
        }
        if let Some(watcher) = &self.watcher {
            self.arrivals.push_back((name, now));
            if self.slots.in_use() == 1 {
                self.adaptive_period.on_first_submit(now);
            }
            watcher.wake();
        }
    }

    fn outstanding(&self) -> u32 {
        (self.slots.in_use()) as u32
    }

    /// Returns the submission time of the oldest request in flight.
    fn oldest_submit(&mut self) -> Option<Nanos> {
        while let Some(&(slot, since)) = self.arrivals.front() {
            let RequestSlot { submitted_at: began, busy, .. } = self.slots[slot];
            if busy && began == since {
                return Some(since);
            }
            self.arrivals.pop_front();
        }
        None
    }

    fn next_poll(&mut self, hint: Nanos) -> Option<Nanos> {
        let oldest = self.oldest_submit()?;
        Some(match hint {
            Nanos::ZERO => self.adaptive_period.next_poll(self.outstanding()),
            hint => oldest + hint,
        })
    }
}

impl<D: GroupedSubmit> QueueHandle<D> {
    /// Calls a function with the shared device, under the lock.
    pub fn with_device<T>(&self, what: impl FnOnce(&D) -> T) -> T {
        what(&self.inner.lock().device)
    }
}

impl<D: GroupedSubmit> BlockDevice for QueueHandle<D> {
    block::answer_block_device!(enable_sharing: {}, can_wait: false);

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        self.inner.lock().device.visit_layers(visit);
    }

    fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let mut calls = None;
        let mut guard = self.inner.lock();
        let state = &mut *guard;
        let slot =
            RequestSlot { handle: self.index, tag: request.tag, submitted_at: now, busy: true };
        let name = state.slots.insert(slot);
        let named = Request { tag: name.into(), ..request };
        let mut submitted = state.device.submit_for(now, self.group, named);
        if submitted.is_err() {
            let turn = calls.insert(state.poll_all(now, Some(self.index)));
            if turn.found > 0 {
                // The queue was full of completed requests, possibly of other handles.
                submitted = state.device.submit_for(now, self.group, named);
            }
        }
        if submitted.is_err() {
            state.slots[name].busy = false;
            state.slots.release(name);
        } else {
            state.on_submit(now, self.index, name);
        }
        drop(guard);
        calls.map(WakeList::wake_all);
        submitted
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        &self.inner.memory
    }

    /// Sets the waker used by threads that find this handle's completions. Without a poller, the
    /// device gets it too: the device wakes the handle that registered last, which then reaps for
    /// all.
    fn set_waker(&mut self, waker: Waker) {
        let mut state = self.inner.lock();
        if state.watcher.is_none() {
            state.device.set_waker(waker.clone());
        }
        if let Some(mail) = &mut state.mailboxes[self.index as usize] {
            mail.waker = Some(waker);
        }
    }

    /// Returns whether a poller or the device wakes this handle.
    fn can_wake(&self) -> bool {
        let state = self.inner.lock();
        state.watcher.is_some() || state.device.can_wake()
    }
}

impl<D: GroupedSubmit> GroupedSubmit for QueueHandle<D> {
    /// Submits a request of the handle's own group.
    fn submit_for(&mut self, now: Nanos, _: Group, request: Request) -> Result<(), QueueFull> {
        self.submit(now, request)
    }
}

impl<D: GroupedSubmit> Component for QueueHandle<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut state = self.inner.lock();
        let calls = state.poll_all(now, Some(self.index));
        if let Some(mail) = &mut state.mailboxes[self.index as usize] {
            self.ready.append(&mut mail.completions);
        }
        drop(state);
        calls.wake_all() > 0 || !self.ready.is_empty()
    }

    fn deadline(&self) -> Nanos {
        self.inner.lock().device.deadline()
    }
}

impl<D: GroupedSubmit> Drop for QueueHandle<D> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        let place = &mut state.mailboxes[self.index as usize];
        match place {
            Some(mail) if mail.outstanding > 0 => {
                (mail.detached, mail.waker) = (true, None);
                mail.completions.clear();
            }
            _ => *place = None,
        }
    }
}
