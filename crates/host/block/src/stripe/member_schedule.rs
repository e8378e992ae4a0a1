//! [`MemberSchedule`]: which members of a stripe must be polled in a simulation.
//!
//! Without it a stripe polls all its members, because it cannot know which of them has a completion.
//! A program that simulates the drives knows which drive posted something, and which members it has
//! to tell. With a schedule the cost of a step depends on the members that have work, and on the
//! logarithm of their number.
//!
//! A member is *due* after it took a request, after its own progress, after its drive posted
//! something, and at its deadline. Members over one device may share state of its host (a controller
//! of several ports, a drive with several targets or shards); progress of one of them therefore makes
//! all members over that device due, in every queue of the set. A poll of another member would find
//! nothing. The members that are due are polled in the order of the members.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collections::{BitSet, MinTree};
use time::Nanos;

/// Which members of a stripe are due, and which devices their polls may have reached. Clones refer
/// to one state. It is inactive until [`activate`](MemberSchedule::activate).
#[derive(Clone, Debug)]
pub struct MemberSchedule {
    state: Arc<Mutex<ScheduleState>>,
}

#[derive(Debug)]
pub(super) struct ScheduleState {
    is_active: bool,
    /// By member: its device.
    devices: Box<[usize]>,
    /// By device: its members.
    members: Vec<Vec<usize>>,
    /// By queue of the set: the members that are due.
    due: Vec<BitSet>,
    /// The devices whose members were polled, reaped or given requests.
    touched: BitSet,
}

impl MemberSchedule {
    /// Returns the schedule of a set with `queues` stripes over the same members. `devices` has an
    /// identifier of each member's device; identifiers are small numbers.
    pub fn new(devices: &[usize], queues: usize) -> MemberSchedule {
        let count = devices.iter().max().map_or(0, |most| most + 1);
        let mut members = vec![Vec::new(); count];
        for (member, device) in devices.iter().enumerate() {
            members[*device].push(member);
        }
        let state = ScheduleState {
            is_active: false,
            devices: devices.into(),
            members,
            due: vec![BitSet::new(devices.len()); queues],
            touched: BitSet::new(count),
        };
        MemberSchedule { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes the stripes poll only members that are due; at first all are. From now on the caller
    /// tells which devices posted something ([`wake_device`](MemberSchedule::wake_device)), and polls
    /// the devices that were touched ([`drain_touched`](MemberSchedule::drain_touched)).
    pub fn activate(&self) {
        self.lock().is_active = true;
        self.wake_all();
    }

    /// Makes the stripes poll all members at each poll.
    pub fn deactivate(&self) {
        self.lock().is_active = false;
    }

    /// Makes the members over a device due: it has posted something.
    pub fn wake_device(&self, device: usize) {
        self.lock().wake_device(device);
    }

    /// Makes all members due, after a change from outside of the simulation.
    pub fn wake_all(&self) {
        let state = &mut *self.lock();
        for member in 0..state.devices.len() {
            state.touch(member);
        }
    }

    /// Calls `visit` with each device that members may have given work to since the last call.
    pub fn drain_touched(&self, mut visit: impl FnMut(usize)) {
        let touched = &mut self.lock().touched;
        let mut from = 0;
        while let Some(device) = touched.next_at(from) {
            touched.remove(device);
            visit(device);
            from = device + 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ScheduleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScheduleState {
    fn wake_device(&mut self, device: usize) {
        for member in self.members.get(device).into_iter().flatten() {
            for due in &mut self.due {
                due.insert(*member);
            }
        }
    }

    /// Records progress of a member: its device may have work, and so may all members over that.
    pub(super) fn touch(&mut self, member: usize) {
        let device = self.devices[member];
        self.touched.insert(device);
        self.wake_device(device);
    }
}

/// The schedule of one stripe of a set.
#[derive(Debug)]
pub(super) struct QueueSchedule {
    shared: MemberSchedule,
    /// Index of the stripe among those of the set.
    queue: usize,
    /// By member: its deadline after its last poll.
    deadlines: MinTree<Nanos>,
    /// The members of the present poll.
    polled: BitSet,
}

impl QueueSchedule {
    pub(super) fn new(shared: MemberSchedule, queue: usize, members: usize) -> QueueSchedule {
        let deadlines = MinTree::with_len(members, Nanos::MAX);
        QueueSchedule { shared, queue, deadlines, polled: BitSet::new(members) }
    }

    /// Records that a member took a request.
    pub(super) fn touch(&self, member: usize) {
        self.shared.lock().touch(member);
    }

    /// Calls `poll` with each member that is due, in order, and then `finish` with each of these. Both
    /// return whether the member made progress, and `finish` its deadline. Returns whether any
    /// member made progress; `None` if the schedule is not active.
    pub(super) fn poll_due<M>(
        &mut self,
        now: Nanos,
        members: &mut M,
        mut poll: impl FnMut(&mut M, usize) -> bool,
        mut finish: impl FnMut(&mut M, usize) -> (bool, Nanos),
    ) -> Option<bool> {
        let QueueSchedule { shared, queue, deadlines, polled } = self;
        let state = &mut *shared.lock();
        if !state.is_active {
            return None;
        }
        let (count, mut from, mut any) = (state.devices.len(), 0, false);
        while let Some(member) = deadlines.first_at_most(from, count, now) {
            state.due[*queue].insert(member);
            from = member + 1;
        }
        from = 0;
        while let Some(member) = state.due[*queue].next_at(from) {
            state.due[*queue].remove(member);
            polled.insert(member);
            if poll(members, member) {
                state.touch(member);
                any = true;
            }
            from = member + 1;
        }
        from = 0;
        while let Some(member) = polled.next_at(from) {
            polled.remove(member);
            let (moved, deadline) = finish(members, member);
            deadlines.set(member, deadline);
            if moved {
                state.touch(member);
                any = true;
            }
            from = member + 1;
        }
        Some(any)
    }

    /// Returns the earliest deadline of all members; `None` if the schedule is not active. `deadline`
    /// returns that of a member.
    pub(super) fn deadline(&self, deadline: impl Fn(usize) -> Nanos) -> Option<Nanos> {
        let state = self.shared.lock();
        let due = || state.due[self.queue].iter().map(deadline).min();
        state.is_active.then(|| self.deadlines.min().min(due().unwrap_or(Nanos::MAX)))
    }
}
