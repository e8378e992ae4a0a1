//! [`SharedQueue`]: one queue that several handles use, each from a [`QueueHandle`] (NVMeDirect figure 1,
//! threads C and D).
//!
//! The same queue behind a lock (rule R4), or a queue behind a scheduler that tells the seats apart by
//! their groups. Whoever holds the lock takes everything that has come and puts it where its owner
//! looks: completions of others are not left for them to find. Who is woken wants the lock, and perhaps the
//! core: it is woken once, after the lock was given back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{BlockDevice, Completion, Group, Limits, QueueFull, Request};
use clock::{Component, Nanos, Waker};
use ring::AddressSpace;

use crate::Queue;
use crate::adaptive_period::AdaptivePeriod;
use crate::scheduled::GroupedSubmit;

/// A queue that several handles use. Clones are the same queue; it is destroyed with the last clone and
/// the last seat.
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
    /// Whose each request on its way is.
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    mailboxes: Vec<Option<Mailbox>>,
    /// A thread that looks for everybody.
    watcher: Option<Waker>,
    /// How often somebody has looked.
    poll_count: u64,
    /// What it needs to know of the future: with it, requests in order of arrival, and how fast they end.
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

/// What has come for a seat.
#[derive(Debug, Default)]
struct Mailbox {
    completions: VecDeque<Completion>,
    waker: Option<Waker>,
    /// The turn that has last called it.
    last_wake: u64,
    /// Requests on their way.
    outstanding: u32,
    /// Nobody sits there any more: the place is free when nothing is outstanding.
    detached: bool,
}

/// Seats that one turn calls without the lock.
const WAKES_MAX: usize = 8;

/// Whom a turn has found something for, to be woken without the lock.
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
            // More than there are places: with the lock, then.
            None => waker.wake(),
        }
    }

    /// Wakes everybody. Returns how many completions there were.
    #[inline]
    fn wake_all(self) -> usize {
        for waker in self.wakers.iter().take(self.count).flatten() {
            waker.wake();
        }
        self.found
    }
}

/// A place at a shared queue: a device of one handle's own.
#[derive(Debug)]
pub struct QueueHandle<D: GroupedSubmit = Queue> {
    inner: Arc<SharedQueueInner<D>>,
    index: u32,
    group: Group,
    /// Taken from the mail, to be reaped.
    ready: VecDeque<Completion>,
}

impl<D: GroupedSubmit> SharedQueue<D> {
    /// Shares a queue, or a queue behind a [`Scheduled`](crate::Scheduled), on which nothing is outstanding
    /// ([`share`](BlockDevice::enable_sharing)).
    pub fn new(mut device: D) -> SharedQueue<D> {
        device.enable_sharing();
        let (limits, memory) = (*device.limits(), device.memory().clone());
        let state = SharedQueueState {
            device,
            slots: Vec::new(),
            free: Vec::new(),
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

    /// Takes a seat, in group 0.
    pub fn attach(&self) -> QueueHandle<D> {
        self.attach_group(Group(0))
    }

    /// Takes a seat whose requests are `group`'s, for a scheduler that tells groups apart.
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

    /// Seats that are taken, or whose requests are still on their way.
    pub fn handle_count(&self) -> usize {
        self.inner.lock().mailboxes.iter().flatten().count()
    }

    /// Requests on their way.
    pub fn outstanding(&self) -> u32 {
        self.inner.lock().outstanding()
    }

    /// Moves everything on, for all seats, and wakes those for which something has come: what a thread
    /// does that looks for completions on others' behalf. Returns how many there were.
    pub fn poll_all(&self, now: Nanos) -> usize {
        let calls = self.inner.lock().poll_all(now, None);
        calls.wake_all()
    }

    /// When a watcher should look, if anything is on its way: when enough should have ended, or the oldest
    /// has taken as long as the `hint` says, if there is one.
    pub(crate) fn next_poll(&self, hint: Nanos) -> Option<Nanos> {
        self.inner.lock().next_poll(hint)
    }

    /// What tells one queue from another.
    pub(crate) fn as_ptr(&self) -> *const () {
        Arc::as_ptr(&self.inner).cast()
    }

    /// Says who looks for everybody: woken when there is something to look for. From now on what
    /// requests take is learnt.
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
    /// Rings for what was submitted and sorts what has come. Returns how much that was and who is to be
    /// woken for it: not the seat `own`, whose thread is here.
    fn poll_all(&mut self, now: Nanos, own: Option<u32>) -> WakeList {
        self.device.poll(now);
        self.poll_count += 1;
        let mut calls = WakeList::default();
        let mut count = 0;
        while let Some(completion) = self.device.reap() {
            count += 1;
            // The device returns what it was given: places in the table.
            let slot = &mut self.slots[completion.tag as usize];
            slot.busy = false;
            let RequestSlot { handle: seat, tag, .. } = *slot;
            self.free.push(completion.tag as u32);
            let place = &mut self.mailboxes[seat as usize];
            let Some(mail) = place else { continue };
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

    /// The device has taken a seat's request.
    fn on_submit(&mut self, now: Nanos, seat: u32, name: u32) {
        if let Some(mail) = &mut self.mailboxes[seat as usize] {
            mail.outstanding += 1;
        }
        if let Some(watcher) = &self.watcher {
            self.arrivals.push_back((name, now));
            if self.slots.len() - self.free.len() == 1 {
                self.adaptive_period.on_first_submit(now);
            }
            watcher.wake();
        }
    }

    fn outstanding(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// The oldest request on its way: when it was submitted.
    fn oldest_submit(&mut self) -> Option<Nanos> {
        while let Some(&(slot, since)) = self.arrivals.front() {
            let RequestSlot { submitted_at: began, busy, .. } = self.slots[slot as usize];
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
    /// Asks the device that everybody shares: nobody moves it on meanwhile.
    pub fn with_device<T>(&self, what: impl FnOnce(&D) -> T) -> T {
        what(&self.inner.lock().device)
    }
}

impl<D: GroupedSubmit> BlockDevice for QueueHandle<D> {
    fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let mut calls = None;
        let mut guard = self.inner.lock();
        let state = &mut *guard;
        let slot =
            RequestSlot { handle: self.index, tag: request.tag, submitted_at: now, busy: true };
        let name = state.free.pop().unwrap_or(state.slots.len() as u32);
        match state.slots.get_mut(name as usize) {
            Some(place) => *place = slot,
            None => state.slots.push(slot),
        }
        let named = Request { tag: name.into(), ..request };
        let mut submitted = state.device.submit_for(now, self.group, named);
        if submitted.is_err() {
            let turn = calls.insert(state.poll_all(now, Some(self.index)));
            if turn.found > 0 {
                // It was full of what has ended, for others perhaps.
                submitted = state.device.submit_for(now, self.group, named);
            }
        }
        if submitted.is_err() {
            state.slots[name as usize].busy = false;
            state.free.push(name);
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

    /// Whom another thread wakes that finds this seat's completions, or, where no thread looks for
    /// everybody, the device: it wakes the seat that asked last, and that finds everybody's.
    fn set_waker(&mut self, waker: Waker) {
        let mut state = self.inner.lock();
        if state.watcher.is_none() {
            state.device.set_waker(waker.clone());
        }
        if let Some(mail) = &mut state.mailboxes[self.index as usize] {
            mail.waker = Some(waker);
        }
    }

    /// A thread that looks for everybody does, or the device.
    fn can_wake(&self) -> bool {
        let state = self.inner.lock();
        state.watcher.is_some() || state.device.can_wake()
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
