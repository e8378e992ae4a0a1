//! [`Ring`]: one io_uring instance, and the memory that the kernel uses through it.
//!
//! An entry names memory by its address, which the kernel reads and writes until it has answered; the
//! `unsafe` that this takes is in `entry`. What makes it sound, whatever the rest of the driver does:
//!
//! 1. Every address of an entry is in a region of `memory` or in `bucket`, or is the vector of the
//!    entry's tag. [`aim`](Ring::aim) and its siblings alone make addresses, from checked ranges.
//! 2. None of them is freed while the kernel has an entry: a registration lasts as long as the
//!    [`AddressSpace`], which the ring keeps, and [`Drop`] waits for the kernel or leaks.
//! 3. The place and the vector of a tag do not change while the kernel has it (`in_kernel`).
//!
//! What an entry says, and how long it is, is the [`Wire`]'s.

mod aim;
#[allow(unsafe_code, reason = "entries of io_uring name memory by address")]
mod entry;

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ::ring::{AddressSpace, Region};
use clock::Nanos;
use io_uring::{IoUring, cqueue, squeue, types};
use rustix::io::Errno;

use super::wire::Wire;
use super::{SubmissionThread, UringConfig, UringStats};
use crate::Tag;
use crate::hal::Rest;

/// What a cancellation is called; commands are called by their tag.
const CANCELLATION: u64 = u64::MAX;
/// The fixed buffer of the bit bucket, after those of the registrations.
const BUCKET_SLOT: usize = AddressSpace::CAPACITY;
/// Not a fixed buffer.
const UNPINNED: u16 = u16::MAX;
/// The kernel pins no more in one piece.
const PIN_BYTES_MAX: usize = 1 << 30;
/// How long a ring that is dropped waits for the kernel.
const DROP_PATIENCE: Duration = Duration::from_secs(30);

/// How a ring is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) depth: u16,
    pub(super) polled: bool,
    /// Everything but transfers goes through a second ring, as a polled one needs.
    pub(super) split: bool,
    pub(super) submission_thread: Option<SubmissionThread>,
    pub(super) deferred: bool,
    pub(super) cooperative: bool,
    pub(super) registered_file: bool,
    pub(super) registered_buffers: bool,
    pub(super) segments: u16,
    pub(super) memory_align: u32,
    /// What the kernel transfers from and to a fixed buffer begins on a multiple of it, or it takes the
    /// pages one by one; a power of two.
    pub(super) fixed_align: u32,
    pub(super) bucket_bytes: u32,
    /// Bytes that a command of each tag may carry beside payloads, as the range of a discard.
    pub(super) note_bytes: u32,
    /// Commands given to the kernel with one system call at most.
    pub(super) submit_batch: u16,
}

/// `struct iovec`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Piece {
    address: usize,
    bytes: usize,
}

/// Where the data of a tag's command is.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// In one piece: where, how much, and in which fixed buffer.
    address: usize,
    bytes: u32,
    buffer: u16,
    /// In pieces: how many of the tag's vector, and the first of them; 0 for one piece.
    pieces: u16,
    first: u16,
    in_kernel: bool,
}

/// Whether a region is a fixed buffer of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pin {
    #[default]
    Untried,
    Pinned,
    Refused,
}

/// An answer of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) tag: Tag,
    pub(super) result: i32,
}

/// An io_uring instance.
pub struct Ring<W: Wire> {
    data: IoUring<W::Submission, W::Completion>,
    /// A polled ring carries transfers only; everything else goes through this one.
    side: Option<IoUring<W::Submission, W::Completion>>,
    setup: Setup,
    /// Whether the ring takes entries: a deferred one when its thread is known.
    enabled: bool,
    fd: types::Fd,
    fd_flags: squeue::Flags,
    memory: AddressSpace,
    /// What is thrown away goes to the first part; the second is zeros, for writes; then come notes.
    bucket: Arc<Region>,
    pins: Box<[Pin]>,
    places: Box<[Place]>,
    /// `segments` for each tag.
    pieces: Box<[Piece]>,
    in_kernel: u32,
    cancellations: u32,
    watching: bool,
    stats: UringStats,
}

impl<W: Wire> fmt::Debug for Ring<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Ring");
        shown.field("setup", &self.setup).field("in_kernel", &self.in_kernel);
        shown.field("stats", &self.stats).finish_non_exhaustive()
    }
}

fn build<W: Wire>(
    setup: &Setup,
    polled: bool,
) -> io::Result<IoUring<W::Submission, W::Completion>> {
    let mut builder = IoUring::<W::Submission, W::Completion>::builder();
    builder.dontfork().setup_submit_all();
    if polled {
        builder.setup_iopoll();
    }
    if let Some(SubmissionThread { idle_ms, cpu }) = setup.submission_thread {
        builder.setup_sqpoll(idle_ms);
        if let Some(cpu) = cpu {
            builder.setup_sqpoll_cpu(cpu);
        }
    }
    if setup.deferred {
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        builder.setup_r_disabled();
    }
    if setup.cooperative {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    // Room for as many cancellations as commands, where the kernel has it.
    let entries = (2 * u32::from(setup.depth)).next_power_of_two();
    builder.build(entries.min(UringConfig::DEPTH_MAX.into()))
}

impl<W: Wire> Ring<W> {
    /// A ring for the file `fd`, which must stay open as long as the ring unless it is registered.
    pub(super) fn new(
        file: BorrowedFd<'_>,
        setup: Setup,
        memory: AddressSpace,
    ) -> io::Result<Ring<W>> {
        let data = build::<W>(&setup, setup.polled)?;
        let side = if setup.split { Some(build::<W>(&setup, false)?) } else { None };
        let (mut fd, mut fd_flags) = (types::Fd(file.as_raw_fd()), squeue::Flags::empty());
        if setup.registered_file {
            for ring in std::iter::once(&data).chain(&side) {
                ring.submitter().register_files(&[file.as_raw_fd()])?;
            }
            (fd, fd_flags) = (types::Fd(0), squeue::Flags::FIXED_FILE);
        }
        let slots = BUCKET_SLOT + 1;
        let table = setup.registered_buffers
            && data.submitter().register_buffers_sparse(slots as u32).is_ok();
        let untried = if table { Pin::Untried } else { Pin::Refused };
        let tags = usize::from(setup.depth);
        Ok(Ring {
            data,
            side,
            setup,
            enabled: !setup.deferred,
            fd,
            fd_flags,
            memory,
            bucket: Region::anonymous(
                2 * setup.bucket_bytes as usize + tags * setup.note_bytes as usize,
            )?,
            pins: vec![untried; slots].into(),
            places: vec![Place::default(); tags].into(),
            pieces: vec![Piece::default(); tags * usize::from(setup.segments)].into(),
            in_kernel: 0,
            cancellations: 0,
            watching: false,
            stats: UringStats::default(),
        })
    }

    pub(super) fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    pub(super) fn stats(&self) -> UringStats {
        self.stats
    }

    pub(super) fn stats_mut(&mut self) -> &mut UringStats {
        &mut self.stats
    }

    /// Commands that the kernel has.
    pub(super) fn in_kernel(&self) -> u32 {
        self.in_kernel
    }

    /// Whether the kernel has the command of a tag.
    #[inline]
    pub(super) fn holds(&self, tag: Tag) -> bool {
        self.places.get(usize::from(tag.0)).is_some_and(|place| place.in_kernel)
    }

    /// Whether completions come only to who looks for them.
    pub(super) fn polled(&self) -> bool {
        self.setup.polled
    }

    /// Gives the kernel everything that has been put into the ring. Returns whether it took all.
    ///
    /// # Errors
    /// Anything but a kernel that is short of memory or interrupted: nothing will go well any more.
    #[inline]
    pub(super) fn submit(&mut self) -> io::Result<bool> {
        if !self.enabled {
            self.data.submitter().register_enable_rings()?;
            if let Some(side) = &self.side {
                side.submitter().register_enable_rings()?;
            }
            self.enabled = true;
        }
        let mut all = give(&mut self.data, &mut self.stats)?;
        if let Some(side) = &mut self.side {
            all &= give(side, &mut self.stats)?;
        }
        Ok(all)
    }

    /// Whether the kernel wakes who waits for answers in it.
    #[inline]
    pub(super) fn wakes(&self) -> bool {
        self.side.is_none() && !self.setup.polled
    }

    /// Gives the kernel everything that has been put into the ring, and waits there for an answer, for
    /// `timeout` at most. Returns whether it took all. With nothing outstanding, or an answer there and
    /// nothing to give, nobody is asked.
    ///
    /// # Errors
    /// As for [`submit`](Ring::submit).
    #[inline]
    pub(super) fn rest(&mut self, timeout: Nanos) -> io::Result<(bool, Rest)> {
        if !self.enabled {
            self.submit()?;
        }
        let nothing_to_give = self.data.submission().is_empty();
        if nothing_to_give && (self.in_kernel == 0 || !self.data.completion().is_empty()) {
            return Ok((true, Rest::Found));
        }
        // Before Linux 5.11 no wait has a limit.
        if timeout != Nanos::MAX && !self.data.params().is_feature_ext_arg() {
            return Ok((false, Rest::Unable));
        }
        self.stats.system_calls += 1;
        let submitter = self.data.submitter();
        let waited = match timeout {
            Nanos::MAX => submitter.submit_and_wait(1),
            limit => {
                let limit = types::Timespec::from(Duration::from_nanos(limit.0));
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&limit))
            }
        };
        if let Err(error) = waited {
            match Errno::from_io_error(&error) {
                // The time is over, or a signal came: what was to be given has been.
                Some(Errno::TIME | Errno::INTR) => {}
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                    return Ok((false, Rest::Unable));
                }
                _ => return Err(error),
            }
        }
        let all = self.data.params().is_setup_sqpoll() || self.data.submission().is_empty();
        Ok((all, Rest::Slept))
    }

    /// The next answer to a command, without a system call.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Answer> {
        loop {
            let mut next = self.data.completion().next();
            if next.is_none() {
                next = self.side.as_mut().and_then(|side| side.completion().next());
            }
            let entry: cqueue::Entry = next?.into();
            let (name, result) = (entry.user_data(), entry.result());
            if name == CANCELLATION {
                self.cancellations = self.cancellations.saturating_sub(1);
                continue;
            }
            self.stats.answers += 1;
            let place = usize::try_from(name).ok().and_then(|tag| self.places.get_mut(tag));
            match place {
                Some(place) if place.in_kernel => {
                    place.in_kernel = false;
                    self.in_kernel -= 1;
                    return Some(Answer { tag: Tag(name as u16), result });
                }
                _ => self.stats.stray_answers += 1,
            }
        }
    }

    /// Lets the kernel finish what only its owner's thread can finish. Returns whether that was
    /// anything.
    #[inline]
    pub(super) fn nudge(&mut self) -> bool {
        let polled = self.setup.polled && self.setup.submission_thread.is_none();
        if polled || self.setup.deferred || self.setup.cooperative {
            self.run_kernel()
        } else {
            false
        }
    }

    fn run_kernel(&mut self) -> bool {
        if self.in_kernel == 0 || !self.enabled {
            return false;
        }
        let mut ran = false;
        for ring in std::iter::once(&mut self.data).chain(&mut self.side) {
            if ring.params().is_setup_iopoll() || ring.submission().taskrun() {
                self.stats.system_calls += 1;
                ran |= ring.submitter().submit_and_wait(0).is_ok();
            }
        }
        ran
    }

    /// The ring as a descriptor, readable while there are answers; `None` where the kernel does not
    /// wake who waits for that.
    pub(super) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        let wakes = !self.setup.split && !self.setup.deferred;
        wakes.then(|| self.data.as_fd())
    }

    /// Has the kernel write to an eventfd with every answer.
    pub(super) fn watch(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        for ring in std::iter::once(&self.data).chain(&self.side) {
            if self.watching {
                ring.submitter().unregister_eventfd()?;
            }
        }
        self.watching = false;
        for ring in std::iter::once(&self.data).chain(&self.side) {
            ring.submitter().register_eventfd(event.as_raw_fd())?;
        }
        self.watching = true;
        Ok(())
    }

    /// Waits until the kernel has answered everything. Returns whether it has.
    fn settle(&mut self, patience: Duration) -> bool {
        const TURN: Duration = Duration::from_millis(10);
        let mut turns = patience.as_millis() / TURN.as_millis();
        while self.in_kernel > 0 {
            if self.submit().is_err() || turns == 0 {
                return false;
            }
            self.nudge();
            if self.pop().is_some() {
                while self.pop().is_some() {}
                continue;
            }
            turns -= 1;
            match self.side {
                // Neither of two rings, nor a polled one, may be slept in.
                Some(_) => std::thread::sleep(Duration::from_millis(1)),
                None => {
                    let limit = types::Timespec::from(TURN);
                    let limit = types::SubmitArgs::new().timespec(&limit);
                    let waited = self.data.submitter().submit_with_args(1, &limit);
                    let errno = waited.err().and_then(|e| Errno::from_io_error(&e));
                    if !matches!(
                        errno,
                        None | Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY)
                    ) {
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// Gives the kernel what is in the submission ring. Returns whether it took all.
#[inline]
fn give<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &mut IoUring<S, C>,
    stats: &mut UringStats,
) -> io::Result<bool> {
    let threaded = ring.params().is_setup_sqpoll();
    {
        let entries = ring.submission();
        if entries.is_empty() {
            return Ok(true);
        }
        stats.system_calls += u64::from(!threaded || entries.need_wakeup());
    }
    match ring.submit() {
        Ok(_) => Ok(threaded || ring.submission().is_empty()),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::NOMEM) => Ok(false),
            _ => Err(error),
        },
    }
}

impl<W: Wire> Drop for Ring<W> {
    /// The kernel writes to our memory until it has answered: everything is cancelled and waited for,
    /// and what does not come back keeps its memory for ever.
    fn drop(&mut self) {
        if self.in_kernel > 0 {
            self.cancel(None);
            if !self.settle(DROP_PATIENCE) {
                mem::forget((self.memory.clone(), self.bucket.clone()));
                mem::forget(mem::take(&mut self.pieces));
            }
        }
        // Closing the ring lets go of them too, but only later: until then the file is in use and
        // the memory is locked. A ring that belongs to another thread has no other way.
        for ring in std::iter::once(&self.data).chain(&self.side) {
            let _ = ring.submitter().unregister_files();
            let _ = ring.submitter().unregister_buffers();
        }
    }
}
