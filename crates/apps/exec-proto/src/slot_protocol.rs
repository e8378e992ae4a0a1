//! State transitions of a slot between a program's thread and the service, and the sleep of either.
//! Each step has the memory order that it needs. Sleeps use `futex(2)` on the named word.
//!
//! Guarantees:
//!
//! - A submitted call is taken once, and the service sees what was written before the submission.
//! - The client sees what was written before the reply.
//! - No wakeup is lost.
//! - A write posted before a call or another posted write, by any threads, is found by a scan after
//!   that call or write was found. So is one that was posted before a sync, by a scan after the
//!   number of that sync was read.
//! - A sync that a program acknowledges itself is noticed without a call, unless it makes one.
//!
//! Under `--cfg loom` the atomics are those of the model checker, which explores every interleaving
//! (`make test-loom`).

// guarantee: B-08, D-15

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::{CLAIMED, COMPLETED, FREE, POSTED_WRITE, SUBMITTED, WAITING};

/// Claims a slot for a thread, if it is free.
#[inline]
pub fn claim(state: &AtomicU32) -> bool {
    state.load(Ordering::Relaxed) == FREE
        && state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Frees a claimed slot.
#[inline]
pub fn free(state: &AtomicU32) {
    state.store(FREE, Ordering::Release);
}

/// Submits the call in a slot to the service. [`ring_doorbell`] follows.
#[inline]
pub fn submit(state: &AtomicU32, posted: &AtomicU64, slot: usize) {
    state.store(SUBMITTED, Ordering::Relaxed);
    posted.fetch_or(1 << slot, Ordering::AcqRel);
}

/// Posts the write in a slot; returns the number of posted writes of the session.
#[inline]
pub fn post_write(state: &AtomicU32, left: &AtomicU64, slot: usize) -> u32 {
    state.store(POSTED_WRITE, Ordering::Relaxed);
    left.fetch_or(1 << slot, Ordering::AcqRel).count_ones() + 1
}

/// Returns, after a post, whether a shared mapping was created that may have missed the write.
#[inline]
#[must_use]
pub fn is_mmap_active(watched: &AtomicU32) -> bool {
    // Either this load sees the flag, or the service sees the slot's bit after `set_mmap_active`.
    fence(Ordering::SeqCst);
    watched.load(Ordering::Relaxed) != 0
}

/// Disables posting. The service must scan for posted writes after this.
#[inline]
pub fn set_mmap_active(watched: &AtomicU32) {
    watched.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// A sync that a program has acknowledged itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedSync {
    /// The doorbell must be rung: no earlier sync keeps the service awake.
    pub needs_doorbell: bool,
}

/// Acknowledges a sync, so that outputs wait for it, and the service makes it durable after
/// everything posted before. Returns `None` if the program must make a call, because it may not
/// acknowledge syncs, or not any more.
#[inline]
#[must_use]
pub fn post_sync(
    acknowledged: &AtomicU64,
    durable: &AtomicU64,
    posts_syncs: &AtomicU32,
    watched: &AtomicU32,
) -> Option<PostedSync> {
    let may_post =
        || posts_syncs.load(Ordering::Relaxed) != 0 && watched.load(Ordering::Relaxed) == 0;
    if !may_post() {
        return None;
    }
    let before = acknowledged.fetch_add(1, Ordering::AcqRel);
    // Either these loads see what the service stored last, or the service, which has a fence after
    // its stores, reads the new number.
    fence(Ordering::SeqCst);
    may_post().then(|| PostedSync { needs_doorbell: durable.load(Ordering::Relaxed) >= before })
}

/// Acknowledges a sync of a call, and returns its number. The service does so before it replies.
#[inline]
pub fn acknowledge_sync(acknowledged: &AtomicU64) -> u64 {
    acknowledged.fetch_add(1, Ordering::AcqRel) + 1
}

/// Returns the number of acknowledged syncs. The service scans for posted writes after this, and
/// then makes all of these syncs durable.
#[inline]
pub fn acknowledged_syncs(acknowledged: &AtomicU64) -> u64 {
    acknowledged.load(Ordering::Acquire)
}

/// Publishes the last durable sync. The service reads the number of acknowledged ones after this,
/// before it sleeps.
#[inline]
pub fn publish_durable_sync(durable: &AtomicU64, sync: u64) {
    durable.store(sync, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Lets programs acknowledge syncs.
#[inline]
pub fn allow_posted_syncs(posts_syncs: &AtomicU32) {
    posts_syncs.store(1, Ordering::Relaxed);
}

/// Makes programs call for every sync. A program that acknowledges a sync after the service has then
/// read their number makes a call, too.
#[inline]
pub fn stop_posted_syncs(posts_syncs: &AtomicU32) {
    posts_syncs.store(0, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Takes this many blocks from the reservation; returns `false` if it has fewer.
#[inline]
#[must_use]
pub fn spend_reservation(room: &AtomicU64, blocks: u64) -> bool {
    let less = |room: u64| room.checked_sub(blocks);
    room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

/// Rings the doorbell; returns `true` if the service sleeps and must be woken.
#[inline]
#[must_use]
pub fn ring_doorbell(bell: &AtomicU32, asleep: &AtomicU32) -> bool {
    bell.fetch_add(1, Ordering::AcqRel);
    // Either this load sees the flag, or the service's `futex(2)`, which has a fence too, sees the
    // new count.
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0
}

/// Returns the doorbell's count. The service reads it before it polls, and passes it to `futex(2)`
/// to sleep.
#[inline]
pub fn read_doorbell(bell: &AtomicU32) -> u32 {
    bell.load(Ordering::Acquire)
}

/// Announces that the service is about to sleep on the doorbell.
#[inline]
pub fn park(asleep: &AtomicU32) {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Announces that the service is awake.
#[inline]
pub fn unpark(asleep: &AtomicU32) {
    asleep.store(0, Ordering::Relaxed);
}

/// Takes the submitted slots, as bits.
#[inline]
pub fn take_bits(posted: &AtomicU64) -> u64 {
    if posted.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    posted.swap(0, Ordering::AcqRel)
}

/// Completes a call; returns `true` if the thread sleeps on the slot's state and must be woken.
#[inline]
#[must_use]
pub fn complete(state: &AtomicU32) -> bool {
    state.swap(COMPLETED, Ordering::AcqRel) == WAITING
}

/// Returns whether the thread owns the slot again.
#[inline]
pub fn is_completed(state: &AtomicU32) -> bool {
    state.load(Ordering::Acquire) == COMPLETED
}

/// Announces that the thread will sleep while the state is [`WAITING`]; `false` if the reply is
/// already there.
#[inline]
#[must_use]
pub fn begin_wait(state: &AtomicU32) -> bool {
    state.compare_exchange(SUBMITTED, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_claimed_submitted_completed_and_freed() {
        let (state, posted) = (AtomicU32::new(FREE), AtomicU64::new(0));
        assert!(claim(&state) && !claim(&state), "it is one thread's");
        submit(&state, &posted, 5);
        assert!(!is_completed(&state));
        assert_eq!((take_bits(&posted), take_bits(&posted)), (1 << 5, 0), "taken once");
        assert!(begin_wait(&state) && complete(&state), "it sleeps, and is to be woken");
        assert!(is_completed(&state));
        free(&state);
        assert!(claim(&state));
        submit(&state, &posted, 5);
        assert!(!complete(&state), "nobody sleeps");
        assert!(!begin_wait(&state) && is_completed(&state));
    }

    #[test]
    fn posted_writes_are_counted_and_have_no_waiter() {
        let (state, left) = (AtomicU32::new(FREE), AtomicU64::new(0b110));
        assert!(claim(&state));
        assert_eq!(post_write(&state, &left, 7), 3);
        assert_eq!(take_bits(&left), 0b1000_0110);
        assert!(!claim(&state), "it is the service's");
        free(&state);
        assert!(claim(&state));
        let room = AtomicU64::new(5);
        assert!(
            spend_reservation(&room, 3)
                && !spend_reservation(&room, 3)
                && spend_reservation(&room, 2)
        );
        assert_eq!(room.into_inner(), 0);
        let watched = AtomicU32::new(0);
        assert!(!is_mmap_active(&watched));
        set_mmap_active(&watched);
        assert!(is_mmap_active(&watched));
    }

    #[test]
    fn a_sync_is_posted_while_that_is_allowed() {
        let [acknowledged, durable] = [(); 2].map(|()| AtomicU64::new(0));
        let [posts_syncs, watched] = [(); 2].map(|()| AtomicU32::new(0));
        let post = || post_sync(&acknowledged, &durable, &posts_syncs, &watched);
        assert_eq!(post(), None);
        allow_posted_syncs(&posts_syncs);
        assert_eq!(post(), Some(PostedSync { needs_doorbell: true }));
        assert_eq!(post(), Some(PostedSync { needs_doorbell: false }));
        assert_eq!((acknowledge_sync(&acknowledged), acknowledged_syncs(&acknowledged)), (3, 3));
        publish_durable_sync(&durable, 3);
        assert_eq!(post(), Some(PostedSync { needs_doorbell: true }));
        set_mmap_active(&watched);
        assert_eq!(post(), None);
        watched.store(0, Ordering::Relaxed);
        stop_posted_syncs(&posts_syncs);
        assert_eq!((post(), acknowledged_syncs(&acknowledged)), (None, 4));
    }

    #[test]
    fn only_the_sleeper_is_woken() {
        let (bell, asleep) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
        let before = read_doorbell(&bell);
        assert!(!ring_doorbell(&bell, &asleep));
        assert_ne!(read_doorbell(&bell), before, "it goes on behind its end");
        park(&asleep);
        assert!(ring_doorbell(&bell, &asleep));
        unpark(&asleep);
        assert!(!ring_doorbell(&bell, &asleep));
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p sluice-exec-proto --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// A model of `futex(2)`: check and sleep are atomic with respect to a waker.
    #[derive(Default)]
    struct Futex {
        waiters: Mutex<u32>,
        woken: Condvar,
    }

    impl Futex {
        fn wait(&self, word: &AtomicU32, value: u32) {
            let mut waiters = self.waiters.lock().unwrap();
            // As the kernel's check: behind a fence only.
            fence(Ordering::SeqCst);
            if word.load(Ordering::Relaxed) == value {
                *waiters += 1;
                drop(self.woken.wait(waiters).unwrap());
            }
        }

        fn wake(&self) {
            let mut waiters = self.waiters.lock().unwrap();
            if std::mem::take(&mut *waiters) > 0 {
                self.woken.notify_all();
            }
        }
    }

    #[derive(Default)]
    struct Slot {
        state: AtomicU32,
        sleeps: Futex,
        call: AtomicU64,
        answer: AtomicU64,
    }

    /// State shared by a program and the service.
    struct Shared {
        bell: AtomicU32,
        asleep: AtomicU32,
        sleeps: Futex,
        posted: AtomicU64,
        slots: Vec<Slot>,
    }

    impl Shared {
        fn new(slots: usize) -> Arc<Shared> {
            Arc::new(Shared {
                bell: AtomicU32::default(),
                asleep: AtomicU32::default(),
                sleeps: Futex::default(),
                posted: AtomicU64::default(),
                slots: (0..slots).map(|_| Slot::default()).collect(),
            })
        }

        /// Makes one call, as a thread of a program does.
        fn call(&self, what: u64) -> u64 {
            let free = || self.slots.iter().position(|slot| claim(&slot.state));
            let index = loop {
                match free() {
                    Some(index) => break index,
                    None => thread::yield_now(),
                }
            };
            let slot = &self.slots[index];
            slot.call.store(what, Ordering::Relaxed);
            submit(&slot.state, &self.posted, index);
            if ring_doorbell(&self.bell, &self.asleep) {
                self.sleeps.wake();
            }
            if !is_completed(&slot.state) && begin_wait(&slot.state) {
                while !is_completed(&slot.state) {
                    slot.sleeps.wait(&slot.state, WAITING);
                }
            }
            let answer = slot.answer.load(Ordering::Relaxed);
            super::free(&slot.state);
            answer
        }

        /// Runs the service until it has answered this many calls.
        fn serve(&self, calls: u32) -> u64 {
            let (mut answered, mut sum) = (0, 0);
            while answered < calls {
                let bell = read_doorbell(&self.bell);
                let bits = take_bits(&self.posted);
                if bits == 0 {
                    park(&self.asleep);
                    self.sleeps.wait(&self.bell, bell);
                    unpark(&self.asleep);
                }
                for (index, slot) in self.slots.iter().enumerate() {
                    if bits & 1 << index == 0 {
                        continue;
                    }
                    let call = slot.call.load(Ordering::Relaxed);
                    sum += call;
                    slot.answer.store(call * 10, Ordering::Relaxed);
                    if complete(&slot.state) {
                        slot.sleeps.wake();
                    }
                    answered += 1;
                }
            }
            sum
        }
    }

    /// Explores all interleavings with this many preemptions; one more takes minutes.
    fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    fn loom_two_threads_with_a_slot_each_are_answered_and_wake_up() {
        check(2, || {
            let shared = Shared::new(2);
            let threads = [1, 2].map(|what| {
                let shared = shared.clone();
                thread::spawn(move || assert_eq!(shared.call(what), what * 10))
            });
            assert_eq!(shared.serve(2), 3);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_a_slot_is_used_again_for_the_next_call() {
        check(3, || {
            let shared = Shared::new(1);
            let theirs = shared.clone();
            let thread = thread::spawn(move || {
                assert_eq!(theirs.call(3), 30);
                assert_eq!(theirs.call(4), 40);
            });
            assert_eq!(shared.serve(2), 7);
            thread.join().unwrap();
        });
    }

    /// A service that executes posted writes as `crates/apps/exec` does, and records them.
    struct Leaving {
        posted: AtomicU64,
        watched: AtomicU32,
        tickets: AtomicU32,
        /// Two processes with one slot each.
        left: [AtomicU64; 2],
        states: [AtomicU32; 2],
        ticket: [AtomicU32; 2],
    }

    impl Leaving {
        fn new() -> Arc<Leaving> {
            Arc::new(Leaving {
                posted: AtomicU64::new(0),
                watched: AtomicU32::new(0),
                tickets: AtomicU32::new(0),
                left: Default::default(),
                states: Default::default(),
                ticket: Default::default(),
            })
        }

        fn leave(&self, process: usize) {
            let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
            assert!(claim(&self.states[process]));
            self.ticket[process].store(ticket, Ordering::Relaxed);
            post_write(&self.states[process], &self.left[process], 0);
        }

        /// Scans every process once for posted writes.
        fn scan(&self, found: &mut Vec<(u32, usize)>) {
            for process in 0..2 {
                if take_bits(&self.left[process]) != 0 {
                    found.push((self.ticket[process].load(Ordering::Relaxed), process));
                }
            }
        }

        /// Returns the processes whose writes execute now, in order; later ones are kept.
        fn take_left(&self, found: &mut Vec<(u32, usize)>) -> Vec<usize> {
            self.scan(found);
            let Some(last) = found.iter().map(|(ticket, _)| *ticket).max() else {
                return Vec::new();
            };
            self.scan(found);
            found.sort_unstable();
            let ready = found.partition_point(|(ticket, _)| *ticket <= last);
            found.drain(..ready).map(|(_, process)| process).collect()
        }
    }

    #[test]
    fn loom_a_call_finds_what_another_process_left_before_it() {
        check(3, || {
            let shared = Leaving::new();
            let (theirs, called) = (shared.clone(), Arc::new(AtomicU32::new(0)));
            let told = called.clone();
            let first = thread::spawn({
                let shared = shared.clone();
                move || {
                    shared.leave(0);
                    // Communication outside the service, such as a pipe.
                    told.store(1, Ordering::Release);
                }
            });
            let second = thread::spawn(move || {
                if called.load(Ordering::Acquire) == 1 {
                    theirs.posted.fetch_or(1, Ordering::AcqRel);
                }
            });
            let mut found = Vec::new();
            for _ in 0..2 {
                let call = take_bits(&shared.posted) != 0;
                let done = shared.take_left(&mut found);
                assert!(!call || done == [0] || shared.states[0].load(Ordering::Relaxed) == FREE);
                done.iter().for_each(|process| free(&shared.states[*process]));
            }
            first.join().unwrap();
            second.join().unwrap();
        });
    }

    #[test]
    fn loom_what_is_left_after_something_is_done_after_it() {
        check(3, || {
            let shared = Leaving::new();
            let told = Arc::new(AtomicU32::new(0));
            let threads = [0, 1].map(|process| {
                let (shared, told) = (shared.clone(), told.clone());
                thread::spawn(move || match process {
                    // The service scans this process first, possibly before it posts.
                    0 => {
                        shared.leave(0);
                        told.store(1, Ordering::Release);
                    }
                    _ if told.load(Ordering::Acquire) == 1 => shared.leave(1),
                    _ => {}
                })
            });
            let (mut found, mut done) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                done.extend(shared.take_left(&mut found));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            while done.len() < shared.tickets.load(Ordering::Relaxed) as usize {
                done.extend(shared.take_left(&mut found));
            }
            assert!(done == [0, 1] || done == [0], "{done:?}");
        });
    }

    #[test]
    fn loom_who_sees_bytes_without_asking_misses_nothing() {
        check(3, || {
            let shared = Leaving::new();
            let theirs = shared.clone();
            let writer = thread::spawn(move || {
                theirs.leave(0);
                // Whether the program makes a call before it continues.
                is_mmap_active(&theirs.watched)
            });
            set_mmap_active(&shared.watched);
            let seen = shared.take_left(&mut Vec::new()) == [0];
            let calls = writer.join().unwrap();
            assert!(seen || calls, "left, not seen, and not waited for");
        });
    }

    /// Syncs that programs acknowledge themselves.
    #[derive(Default)]
    struct Syncs {
        bell: AtomicU32,
        asleep: AtomicU32,
        sleeps: Futex,
        acknowledged: AtomicU64,
        durable: AtomicU64,
        posts_syncs: AtomicU32,
        watched: AtomicU32,
        /// Number of the last posted write.
        written: AtomicU64,
        left: AtomicU64,
    }

    impl Syncs {
        /// Posts a write and a sync. Returns whether the sync was posted.
        fn write_and_sync(&self, number: u64) -> bool {
            self.written.store(number, Ordering::Relaxed);
            self.left.fetch_or(1, Ordering::AcqRel);
            let (posts_syncs, watched) = (&self.posts_syncs, &self.watched);
            let posted = post_sync(&self.acknowledged, &self.durable, posts_syncs, watched);
            if posted.is_some_and(|posted| posted.needs_doorbell)
                && ring_doorbell(&self.bell, &self.asleep)
            {
                self.sleeps.wake();
            }
            posted.is_some()
        }
    }

    #[test]
    fn loom_a_posted_sync_is_noticed_after_the_writes_before_it() {
        check(3, || {
            let shared = Arc::new(Syncs::default());
            allow_posted_syncs(&shared.posts_syncs);
            let theirs = shared.clone();
            let program = thread::spawn(move || {
                assert!(theirs.write_and_sync(1));
                assert!(theirs.write_and_sync(2));
            });
            let (mut durable, mut written) = (0, 0);
            while durable < 2 {
                let bell = read_doorbell(&shared.bell);
                let acknowledged = acknowledged_syncs(&shared.acknowledged);
                if take_bits(&shared.left) != 0 {
                    written = shared.written.load(Ordering::Relaxed);
                }
                assert!(written >= acknowledged, "{acknowledged} syncs, and write {written}");
                if acknowledged > durable {
                    durable = acknowledged;
                    publish_durable_sync(&shared.durable, durable);
                    continue;
                }
                park(&shared.asleep);
                shared.sleeps.wait(&shared.bell, bell);
                unpark(&shared.asleep);
            }
            program.join().unwrap();
        });
    }

    #[test]
    fn loom_a_sync_that_the_service_does_not_count_is_a_call() {
        check(3, || {
            let shared = Arc::new(Syncs::default());
            allow_posted_syncs(&shared.posts_syncs);
            let theirs = shared.clone();
            let program = thread::spawn(move || theirs.write_and_sync(1));
            stop_posted_syncs(&shared.posts_syncs);
            let counted = acknowledged_syncs(&shared.acknowledged);
            let posted = program.join().unwrap();
            assert!(!posted || counted == 1, "posted {posted}, counted {counted}");
        });
    }
}
