//! [`SharedQueue`]: one queue that several handles use, each from a [`Seat`] (NVMeDirect figure 1,
//! threads C and D).
//!
//! The same queue behind a lock (rule R4), or a queue behind a scheduler that tells the seats apart by
//! their groups. Whoever holds the lock takes everything that has come and puts it where its owner
//! looks: completions of others are not left for them to find. Who is woken wants the lock, and perhaps the
//! core: it is woken once, after the lock was given back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Busy, Completion, Device, Group, Limits, Request};
use clock::{Component, Nanos, Waker};
use ring::AddressSpace;

use crate::Queue;
use crate::pace::Pace;
use crate::scheduled::Grouped;

/// A queue that several handles use. Clones are the same queue; it is destroyed with the last clone and
/// the last seat.
#[derive(Debug)]
pub struct SharedQueue<D = Queue> {
    inner: Arc<Inner<D>>,
}

impl<D> Clone for SharedQueue<D> {
    fn clone(&self) -> SharedQueue<D> {
        SharedQueue { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
struct Inner<D> {
    state: Mutex<State<D>>,
    limits: Limits,
    memory: AddressSpace,
}

#[derive(Debug)]
struct State<D> {
    device: D,
    /// Whose each request on its way is.
    slots: Vec<Slot>,
    free: Vec<u32>,
    seats: Vec<Option<Mail>>,
    /// A thread that looks for everybody.
    watcher: Option<Waker>,
    /// How often somebody has looked.
    turns: u64,
    /// What it needs to know of the future: with it, requests in order of arrival, and how fast they end.
    flights: VecDeque<(u32, Nanos)>,
    pace: Pace,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    seat: u32,
    tag: u64,
    since: Nanos,
    busy: bool,
}

/// What has come for a seat.
#[derive(Debug, Default)]
struct Mail {
    done: VecDeque<Completion>,
    waker: Option<Waker>,
    /// The turn that has last called it.
    called: u64,
    /// Requests on their way.
    outstanding: u32,
    /// Nobody sits there any more: the place is free when nothing is outstanding.
    left: bool,
}

/// Seats that one turn calls without the lock.
const CALLS: usize = 8;

/// Whom a turn has found something for, to be woken without the lock.
#[derive(Debug, Default)]
struct Calls {
    wakers: [Option<Waker>; CALLS],
    count: usize,
    found: usize,
}

impl Calls {
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
    fn make(self) -> usize {
        for waker in self.wakers.iter().take(self.count).flatten() {
            waker.wake();
        }
        self.found
    }
}

/// A place at a shared queue: a device of one handle's own.
#[derive(Debug)]
pub struct Seat<D: Grouped = Queue> {
    inner: Arc<Inner<D>>,
    seat: u32,
    group: Group,
    /// Taken from the mail, to be reaped.
    ready: VecDeque<Completion>,
}

impl<D: Grouped> SharedQueue<D> {
    /// Shares a queue, or a queue behind a [`Scheduled`](crate::Scheduled), on which nothing is outstanding
    /// ([`share`](Device::share)).
    pub fn new(mut device: D) -> SharedQueue<D> {
        device.share();
        let (limits, memory) = (*device.limits(), device.memory().clone());
        let state = State {
            device,
            slots: Vec::new(),
            free: Vec::new(),
            seats: Vec::new(),
            watcher: None,
            turns: 0,
            flights: VecDeque::new(),
            pace: Pace::default(),
        };
        SharedQueue { inner: Arc::new(Inner { state: Mutex::new(state), limits, memory }) }
    }

    /// Takes a seat, in group 0.
    pub fn seat(&self) -> Seat<D> {
        self.seat_in(Group(0))
    }

    /// Takes a seat whose requests are `group`'s, for a scheduler that tells groups apart.
    pub fn seat_in(&self, group: Group) -> Seat<D> {
        let mut state = self.inner.lock();
        let seat = match state.seats.iter().position(Option::is_none) {
            Some(seat) => seat,
            None => {
                state.seats.push(None);
                state.seats.len() - 1
            }
        };
        state.seats[seat] = Some(Mail::default());
        drop(state);
        let inner = self.inner.clone();
        Seat { inner, seat: seat as u32, group, ready: VecDeque::new() }
    }

    /// Seats that are taken, or whose requests are still on their way.
    pub fn seats(&self) -> usize {
        self.inner.lock().seats.iter().flatten().count()
    }

    /// Requests on their way.
    pub fn outstanding(&self) -> u32 {
        self.inner.lock().outstanding()
    }

    /// Moves everything on, for all seats, and wakes those for which something has come: what a thread
    /// does that looks for completions on others' behalf. Returns how many there were.
    pub fn turn(&self, now: Nanos) -> usize {
        let calls = self.inner.lock().turn(now, None);
        calls.make()
    }

    /// When a watcher should look, if anything is on its way: when enough should have ended, or the oldest
    /// has taken as long as the `hint` says, if there is one.
    pub(crate) fn due(&self, hint: Nanos) -> Option<Nanos> {
        self.inner.lock().due(hint)
    }

    /// What tells one queue from another.
    pub(crate) fn address(&self) -> *const () {
        Arc::as_ptr(&self.inner).cast()
    }

    /// Says who looks for everybody: woken when there is something to look for. From now on what
    /// requests take is learnt.
    pub(crate) fn watch(&self, watcher: Option<Waker>) {
        let mut state = self.inner.lock();
        state.flights.clear();
        state.pace = Pace::default();
        state.watcher = watcher;
    }
}

impl<D> Inner<D> {
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Device> State<D> {
    /// Rings for what was submitted and sorts what has come. Returns how much that was and who is to be
    /// woken for it: not the seat `own`, whose thread is here.
    fn turn(&mut self, now: Nanos, own: Option<u32>) -> Calls {
        self.device.poll(now);
        self.turns += 1;
        let mut calls = Calls::default();
        let mut count = 0;
        while let Some(completion) = self.device.reap() {
            count += 1;
            // The device returns what it was given: places in the table.
            let slot = &mut self.slots[completion.tag as usize];
            slot.busy = false;
            let Slot { seat, tag, .. } = *slot;
            self.free.push(completion.tag as u32);
            let place = &mut self.seats[seat as usize];
            let Some(mail) = place else { continue };
            mail.outstanding -= 1;
            if mail.left {
                if mail.outstanding == 0 {
                    *place = None;
                }
                continue;
            }
            mail.done.push_back(Completion { tag, ..completion });
            let first = std::mem::replace(&mut mail.called, self.turns) != self.turns;
            if let Some(waker) = &mail.waker
                && first
                && own != Some(seat)
            {
                calls.add(waker);
            }
        }
        if self.watcher.is_some() {
            self.pace.looked(now, count as u64, self.outstanding());
        }
        calls.found = count;
        calls
    }

    /// The device has taken a seat's request.
    fn submitted(&mut self, now: Nanos, seat: u32, name: u32) {
        if let Some(mail) = &mut self.seats[seat as usize] {
            mail.outstanding += 1;
        }
        if let Some(watcher) = &self.watcher {
            self.flights.push_back((name, now));
            if self.slots.len() - self.free.len() == 1 {
                self.pace.begins(now);
            }
            watcher.wake();
        }
    }

    fn outstanding(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// The oldest request on its way: when it was submitted.
    fn oldest(&mut self) -> Option<Nanos> {
        while let Some(&(slot, since)) = self.flights.front() {
            let Slot { since: began, busy, .. } = self.slots[slot as usize];
            if busy && began == since {
                return Some(since);
            }
            self.flights.pop_front();
        }
        None
    }

    fn due(&mut self, hint: Nanos) -> Option<Nanos> {
        let oldest = self.oldest()?;
        Some(match hint {
            Nanos::ZERO => self.pace.due(self.outstanding()),
            hint => oldest + hint,
        })
    }
}

impl<D: Grouped> Seat<D> {
    /// Asks the device that everybody shares: nobody moves it on meanwhile.
    pub fn look<T>(&self, what: impl FnOnce(&D) -> T) -> T {
        what(&self.inner.lock().device)
    }
}

impl<D: Grouped> Device for Seat<D> {
    fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        let mut calls = None;
        let mut guard = self.inner.lock();
        let state = &mut *guard;
        let slot = Slot { seat: self.seat, tag: request.tag, since: now, busy: true };
        let name = state.free.pop().unwrap_or(state.slots.len() as u32);
        match state.slots.get_mut(name as usize) {
            Some(place) => *place = slot,
            None => state.slots.push(slot),
        }
        let named = Request { tag: name.into(), ..request };
        let mut submitted = state.device.submit_for(now, self.group, named);
        if submitted.is_err() {
            let turn = calls.insert(state.turn(now, Some(self.seat)));
            if turn.found > 0 {
                // It was full of what has ended, for others perhaps.
                submitted = state.device.submit_for(now, self.group, named);
            }
        }
        if submitted.is_err() {
            state.slots[name as usize].busy = false;
            state.free.push(name);
        } else {
            state.submitted(now, self.seat, name);
        }
        drop(guard);
        calls.map(Calls::make);
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
        if let Some(mail) = &mut state.seats[self.seat as usize] {
            mail.waker = Some(waker);
        }
    }

    /// A thread that looks for everybody does, or the device.
    fn wakes(&self) -> bool {
        let state = self.inner.lock();
        state.watcher.is_some() || state.device.wakes()
    }
}

impl<D: Grouped> Component for Seat<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut state = self.inner.lock();
        let calls = state.turn(now, Some(self.seat));
        if let Some(mail) = &mut state.seats[self.seat as usize] {
            self.ready.append(&mut mail.done);
        }
        drop(state);
        calls.make() > 0 || !self.ready.is_empty()
    }

    fn deadline(&self) -> Nanos {
        self.inner.lock().device.deadline()
    }
}

impl<D: Grouped> Drop for Seat<D> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        let place = &mut state.seats[self.seat as usize];
        match place {
            Some(mail) if mail.outstanding > 0 => {
                (mail.left, mail.waker) = (true, None);
                mail.done.clear();
            }
            _ => *place = None,
        }
    }
}
