//! [`Lane`]: a handle's place at a queue, and [`Home`], where the queue is when no handle has it.
//!
//! A queue that is not shared is moved into the one handle that is bound to it and comes home with it
//! (rule R4: no lock on its path); one that is shared gives out seats.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Busy, Completion, Device, Group, Limits, Request, Rest};
use clock::{Component, Nanos, Waker};
use direct::{Grouped, QueueStats, Seat, SharedQueue};
use ring::AddressSpace;

use crate::error::CallError;
use crate::floor::Floor;
use crate::owner::Owner;

/// Where a queue is.
#[derive(Debug)]
pub(crate) enum Place {
    /// No handle has it.
    Here(Box<Floor>),
    /// One has.
    Out,
    /// All that want it have a seat.
    Shared(SharedQueue<Floor>),
}

/// A queue as its owner sees it.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) device: direct::Device,
    pub(crate) owner: Arc<Owner>,
    /// Whether it has a scheduler, which tells groups apart.
    pub(crate) groups: bool,
    /// Whether the device wakes who waits.
    pub(crate) interrupts: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) place: Place,
    /// Handles bound to it.
    pub(crate) handles: u32,
    /// The poller that watches it, by its address.
    pub(crate) watched: Option<usize>,
}

impl Home {
    pub(crate) fn new(
        device: direct::Device,
        owner: Arc<Owner>,
        floor: Floor,
        shared: bool,
    ) -> Home {
        let (groups, interrupts) = (matches!(floor, Floor::Scheduled(_)), floor.interrupts());
        let place = match shared {
            true => Place::Shared(SharedQueue::new(floor)),
            false => Place::Here(Box::new(floor)),
        };
        let state = Mutex::new(State { place, handles: 0, watched: None });
        Home { device, owner, groups, interrupts, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody would wake a handle that sleeps for its completions.
    pub(crate) fn wakes(&self) -> bool {
        self.interrupts || self.state().watched.is_some()
    }
}

#[derive(Debug)]
enum Way {
    Own(Box<Floor>),
    Seat(Seat<Floor>),
    /// The queue has gone home.
    Left,
}

/// A handle's place at a queue.
#[derive(Debug)]
pub(crate) struct Lane {
    way: Way,
    home: Arc<Home>,
    group: Group,
    /// Requests that the queue has of this handle; written by the handle's thread only.
    outstanding: Arc<AtomicU32>,
}

impl Lane {
    /// Takes the queue, or a seat at it.
    pub(crate) fn take(home: &Arc<Home>, group: Group) -> Result<Lane, CallError> {
        if group != Group(0) && !home.groups {
            let allowed =
                "0, or a queue that was created with a scheduler, which tells groups apart";
            let value = group.0.into();
            return Err(CallError::Value { what: "group", value, allowed });
        }
        let mut state = home.state();
        let way = match std::mem::replace(&mut state.place, Place::Out) {
            Place::Here(floor) => Way::Own(floor),
            Place::Shared(queue) => {
                let seat = queue.seat_in(group);
                state.place = Place::Shared(queue);
                Way::Seat(seat)
            }
            Place::Out => {
                return Err(CallError::InUse(
                    "the queue is bound to a handle: create it with SLUICE_QUEUE_SHARED for several",
                ));
            }
        };
        state.handles += 1;
        Ok(Lane { way, home: home.clone(), group, outstanding: Arc::default() })
    }

    /// Requests that the queue has of this handle.
    /// What its queue did beside sending commands; a shared one for all who have a seat.
    pub(crate) fn stats(&self) -> QueueStats {
        match &self.way {
            Way::Own(floor) => floor.stats(),
            Way::Seat(seat) => seat.look(Floor::stats),
            Way::Left => QueueStats::default(),
        }
    }

    pub(crate) fn outstanding(&self) -> &Arc<AtomicU32> {
        &self.outstanding
    }

    #[inline]
    fn count(&self, change: i32) {
        let now = self.outstanding.load(Ordering::Relaxed);
        self.outstanding.store(now.wrapping_add_signed(change), Ordering::Relaxed);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.home.state();
        state.handles -= 1;
        match std::mem::replace(&mut self.way, Way::Left) {
            Way::Own(floor) => state.place = Place::Here(floor),
            // The seat locks its queue, which nobody does who then wants this lock.
            Way::Seat(seat) => drop(seat),
            Way::Left => {}
        }
    }
}

impl Component for Lane {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        match &mut self.way {
            Way::Own(floor) => floor.poll(now),
            Way::Seat(seat) => seat.poll(now),
            Way::Left => false,
        }
    }

    fn deadline(&self) -> Nanos {
        match &self.way {
            Way::Own(floor) => floor.deadline(),
            Way::Seat(seat) => seat.deadline(),
            Way::Left => Nanos::MAX,
        }
    }
}

impl Device for Lane {
    #[inline]
    fn limits(&self) -> &Limits {
        match &self.way {
            Way::Own(floor) => floor.limits(),
            Way::Seat(seat) => seat.limits(),
            Way::Left => self.home.device.limits(),
        }
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        match &mut self.way {
            Way::Own(floor) => floor.submit_for(now, self.group, request)?,
            Way::Seat(seat) => seat.submit(now, request)?,
            Way::Left => return Err(Busy),
        }
        self.count(1);
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let completion = match &mut self.way {
            Way::Own(floor) => floor.reap(),
            Way::Seat(seat) => seat.reap(),
            Way::Left => None,
        }?;
        self.count(-1);
        Some(completion)
    }

    fn memory(&self) -> &AddressSpace {
        self.home.device.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        match &mut self.way {
            Way::Own(floor) => floor.set_waker(waker),
            Way::Seat(seat) => seat.set_waker(waker),
            Way::Left => {}
        }
    }

    fn rests(&self) -> bool {
        match &self.way {
            Way::Own(floor) => floor.rests(),
            Way::Seat(seat) => seat.rests(),
            Way::Left => false,
        }
    }

    #[inline]
    fn rest(&mut self, now: Nanos, until: Nanos) -> Rest {
        match &mut self.way {
            Way::Own(floor) => floor.rest(now, until),
            Way::Seat(seat) => seat.rest(now, until),
            Way::Left => Rest::Unable,
        }
    }
}
