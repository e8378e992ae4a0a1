//! [`Ring`]: one io_uring instance, and the memory that the kernel uses through it.
//!
//! An entry contains memory addresses, which the kernel accesses until it has completed the entry.
//! The `unsafe` code for this is in `entry`. It is sound because of these invariants, whatever the
//! rest of the driver does:
//!
//! 1. Every address of an entry is in a region of `memory` or in `bit_bucket`, or is the vector of
//!    the entry's tag. Only [`set_contiguous`](Ring::set_contiguous) and its siblings create
//!    addresses, from checked ranges.
//! 2. None of them is freed while the kernel has an entry. A registration lasts as long as the
//!    [`AddressSpace`], which the ring owns, and [`Drop`] waits for the kernel or leaks.
//! 3. The data location and the vector of a tag do not change while the kernel has it
//!    (`in_kernel`).
//!
//! The [`UringBackend`] defines the contents and sizes of entries.

mod address;
pub(super) use address::SegmentTable;
#[allow(unsafe_code, reason = "entries of io_uring name memory by address")]
mod entry;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, cqueue, squeue, types};
use mem::{AddressSpace, SharedRegion};
use rustix::io::Errno;
use time::Nanos;

use super::backend::UringBackend;
use super::{SubmissionThread, UringConfig, UringStats};
use crate::Tag;
use crate::hal::WaitResult;

/// The user data of a cancellation; commands have their tag.
const CANCEL_USER_DATA: u64 = u64::MAX;
/// Index of the bit bucket's fixed buffer, after those of the registrations.
const BIT_BUCKET_BUFFER: usize = AddressSpace::CAPACITY;
/// The index for memory that is not a fixed buffer.
const NO_FIXED_BUFFER: u16 = u16::MAX;
/// Maximum size that the kernel pins as one buffer.
const PIN_BYTES_MAX: usize = 1 << 30;
/// Maximum time that dropping a ring waits for the kernel.
const DROP_TIMEOUT: Duration = Duration::from_secs(30);

/// Parameters of a new ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingSetup {
    pub(super) depth: u16,
    pub(super) polled: bool,
    /// Whether all operations but transfers use a second ring, which a polled ring needs.
    pub(super) split: bool,
    pub(super) submission_thread: Option<SubmissionThread>,
    pub(super) deferred: bool,
    pub(super) cooperative: bool,
    pub(super) registered_file: bool,
    pub(super) registered_buffers: bool,
    pub(super) segments: u16,
    pub(super) memory_align: u32,
    /// Required alignment of transfers with a fixed buffer, a power of two; others do not use the
    /// fixed buffer.
    pub(super) fixed_align: u32,
    pub(super) bit_bucket_bytes: u32,
    /// Number of bytes per tag that a command may carry besides payloads, such as the range of a
    /// discard.
    pub(super) command_table_bytes: u32,
    /// Maximum number of commands per system call.
    pub(super) submit_batch: u16,
}

/// `struct iovec`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct IoVec {
    address: usize,
    bytes: usize,
}

/// The location of the data of a tag's command.
#[derive(Clone, Copy, Debug, Default)]
struct DataLocation {
    /// Contiguous data: address, length and fixed buffer.
    address: usize,
    bytes: u32,
    buffer: u16,
    /// Scattered data: number of entries of the tag's vector, and the first entry; 0 for contiguous
    /// data.
    iovec_count: u16,
    first_iovec: u16,
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

/// A result of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CqeResult {
    pub(super) tag: Tag,
    pub(super) result: i32,
}

/// An io_uring instance.
pub struct Ring<W: UringBackend> {
    transfer_ring: IoUring<W::Submission, W::Completion>,
    /// The ring for all operations but transfers, if the first one is polled.
    aux_ring: Option<IoUring<W::Submission, W::Completion>>,
    setup: RingSetup,
    /// Whether the ring takes entries: a deferred ring is enabled when its thread is known.
    enabled: bool,
    fd: types::Fd,
    fd_flags: squeue::Flags,
    memory: AddressSpace,
    /// Three parts: dropped data is read into the first, the second has zeros for writes, and the
    /// third has the command tables.
    bit_bucket: Arc<SharedRegion>,
    pins: Box<[Pin]>,
    locations: Box<[DataLocation]>,
    /// Vectors of `segments` entries per tag.
    iovecs: Box<[IoVec]>,
    in_kernel: u32,
    cancellations: u32,
    has_event_fd: bool,
    stats: UringStats,
}

impl<W: UringBackend> fmt::Debug for Ring<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Ring");
        shown.field("setup", &self.setup).field("in_kernel", &self.in_kernel);
        shown.field("stats", &self.stats).finish_non_exhaustive()
    }
}

fn build<W: UringBackend>(
    setup: &RingSetup,
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
    // Space for as many cancellations as commands, if the kernel allows it.
    let entries = (2 * u32::from(setup.depth)).next_power_of_two();
    builder.build(entries.min(UringConfig::DEPTH_MAX.into()))
}

impl<W: UringBackend> Ring<W> {
    /// Creates a ring for the file `fd`, which must stay open as long as the ring unless it is
    /// registered.
    pub(super) fn new(
        file: BorrowedFd<'_>,
        setup: RingSetup,
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
        let slots = BIT_BUCKET_BUFFER + 1;
        let table = setup.registered_buffers
            && data.submitter().register_buffers_sparse(slots as u32).is_ok();
        let untried = if table { Pin::Untried } else { Pin::Refused };
        let tags = usize::from(setup.depth);
        Ok(Ring {
            transfer_ring: data,
            aux_ring: side,
            setup,
            enabled: !setup.deferred,
            fd,
            fd_flags,
            memory,
            bit_bucket: SharedRegion::anonymous(
                2 * setup.bit_bucket_bytes as usize + tags * setup.command_table_bytes as usize,
            )?,
            pins: vec![untried; slots].into(),
            locations: vec![DataLocation::default(); tags].into(),
            iovecs: vec![IoVec::default(); tags * usize::from(setup.segments)].into(),
            in_kernel: 0,
            cancellations: 0,
            has_event_fd: false,
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

    /// Returns the number of commands in the kernel.
    pub(super) fn in_kernel(&self) -> u32 {
        self.in_kernel
    }

    /// Returns whether the kernel has the command of a tag.
    #[inline]
    pub(super) fn is_in_kernel(&self, tag: Tag) -> bool {
        self.locations.get(usize::from(tag.0)).is_some_and(|place| place.in_kernel)
    }

    /// Returns whether completions arrive only when the owner polls.
    pub(super) fn is_polled(&self) -> bool {
        self.setup.polled
    }

    /// Submits all entries of the ring to the kernel. Returns whether the kernel took all.
    ///
    /// # Errors
    /// Any error but a lack of memory or an interruption: the ring is not usable any more.
    #[inline]
    pub(super) fn submit(&mut self) -> io::Result<bool> {
        if !self.enabled {
            self.transfer_ring.submitter().register_enable_rings()?;
            if let Some(side) = &self.aux_ring {
                side.submitter().register_enable_rings()?;
            }
            self.enabled = true;
        }
        let mut all = submit_ring(&mut self.transfer_ring, &mut self.stats)?;
        if let Some(side) = &mut self.aux_ring {
            all &= submit_ring(side, &mut self.stats)?;
        }
        Ok(all)
    }

    /// Returns whether the kernel wakes a caller that waits in it for results.
    #[inline]
    pub(super) fn can_wake(&self) -> bool {
        self.aux_ring.is_none() && !self.setup.polled
    }

    /// Submits all entries of the ring, and waits in the kernel for a result, for at most
    /// `timeout`. Returns whether the kernel took all. Makes no system call if nothing is
    /// outstanding, or if there is a result and nothing to submit.
    ///
    /// # Errors
    /// As for [`submit`](Ring::submit).
    #[inline]
    pub(super) fn submit_and_wait(&mut self, timeout: Nanos) -> io::Result<(bool, WaitResult)> {
        if !self.enabled {
            self.submit()?;
        }
        let nothing_to_give = self.transfer_ring.submission().is_empty();
        if nothing_to_give && (self.in_kernel == 0 || !self.transfer_ring.completion().is_empty()) {
            return Ok((true, WaitResult::Ready));
        }
        // Before Linux 5.11 a wait cannot have a timeout.
        if timeout != Nanos::MAX && !self.transfer_ring.params().is_feature_ext_arg() {
            return Ok((false, WaitResult::Unsupported));
        }
        self.stats.system_calls += 1;
        let submitter = self.transfer_ring.submitter();
        let waited = match timeout {
            Nanos::MAX => submitter.submit_and_wait(1),
            limit => {
                let limit = types::Timespec::from(Duration::from_nanos(limit.0));
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&limit))
            }
        };
        if let Err(error) = waited {
            match Errno::from_io_error(&error) {
                // Timeout or signal: the entries have been submitted.
                Some(Errno::TIME | Errno::INTR) => {}
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                    return Ok((false, WaitResult::Unsupported));
                }
                _ => return Err(error),
            }
        }
        let all = self.transfer_ring.params().is_setup_sqpoll()
            || self.transfer_ring.submission().is_empty();
        Ok((all, WaitResult::Waited))
    }

    /// Removes and returns the next result of a command, without a system call.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<CqeResult> {
        loop {
            let mut next = self.transfer_ring.completion().next();
            if next.is_none() {
                next = self.aux_ring.as_mut().and_then(|side| side.completion().next());
            }
            let entry: cqueue::Entry = next?.into();
            let (name, result) = (entry.user_data(), entry.result());
            if name == CANCEL_USER_DATA {
                self.cancellations = self.cancellations.saturating_sub(1);
                continue;
            }
            self.stats.completions += 1;
            let place = usize::try_from(name).ok().and_then(|tag| self.locations.get_mut(tag));
            match place {
                Some(place) if place.in_kernel => {
                    place.in_kernel = false;
                    self.in_kernel -= 1;
                    return Some(CqeResult { tag: Tag(name as u16), result });
                }
                _ => self.stats.spurious_completions += 1,
            }
        }
    }

    /// Runs kernel work that only the owner's thread can run. Returns whether there was any.
    #[inline]
    pub(super) fn run_task_work(&mut self) -> bool {
        let polled = self.setup.polled && self.setup.submission_thread.is_none();
        if polled || self.setup.deferred || self.setup.cooperative {
            self.enter_kernel()
        } else {
            false
        }
    }

    fn enter_kernel(&mut self) -> bool {
        if self.in_kernel == 0 || !self.enabled {
            return false;
        }
        let mut ran = false;
        for ring in std::iter::once(&mut self.transfer_ring).chain(&mut self.aux_ring) {
            if ring.params().is_setup_iopoll() || ring.submission().taskrun() {
                self.stats.system_calls += 1;
                ran |= ring.submitter().submit_and_wait(0).is_ok();
            }
        }
        ran
    }

    /// Returns the ring as a descriptor that is readable while there are results; `None` if the
    /// kernel does not wake a waiter.
    pub(super) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        let wakes = !self.setup.split && !self.setup.deferred;
        wakes.then(|| self.transfer_ring.as_fd())
    }

    /// Makes the kernel write to an eventfd with every result.
    pub(super) fn register_event_fd(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        for ring in std::iter::once(&self.transfer_ring).chain(&self.aux_ring) {
            if self.has_event_fd {
                ring.submitter().unregister_eventfd()?;
            }
        }
        self.has_event_fd = false;
        for ring in std::iter::once(&self.transfer_ring).chain(&self.aux_ring) {
            ring.submitter().register_eventfd(event.as_raw_fd())?;
        }
        self.has_event_fd = true;
        Ok(())
    }

    /// Waits until the kernel has completed everything. Returns whether it has.
    fn drain(&mut self, patience: Duration) -> bool {
        const WAIT_STEP: Duration = Duration::from_millis(10);
        let mut steps = patience.as_millis() / WAIT_STEP.as_millis();
        while self.in_kernel > 0 {
            if self.submit().is_err() || steps == 0 {
                return false;
            }
            self.run_task_work();
            if self.pop().is_some() {
                while self.pop().is_some() {}
                continue;
            }
            steps -= 1;
            match self.aux_ring {
                // A caller cannot sleep in two rings, or in a polled one.
                Some(_) => std::thread::sleep(Duration::from_millis(1)),
                None => {
                    let limit = types::Timespec::from(WAIT_STEP);
                    let limit = types::SubmitArgs::new().timespec(&limit);
                    let waited = self.transfer_ring.submitter().submit_with_args(1, &limit);
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

/// Submits the entries of a ring. Returns whether the kernel took all.
#[inline]
fn submit_ring<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
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

impl<W: UringBackend> Drop for Ring<W> {
    /// The kernel writes to the memory until it has completed all commands. Dropping the ring
    /// cancels and awaits them; if some do not complete, their memory is leaked.
    fn drop(&mut self) {
        if self.in_kernel > 0 {
            self.cancel(None);
            if !self.drain(DROP_TIMEOUT) {
                std::mem::forget((self.memory.clone(), self.bit_bucket.clone()));
                std::mem::forget(std::mem::take(&mut self.iovecs));
            }
        }
        // Closing the ring releases these too, but only later: until then the file is in use and
        // the memory is locked. A ring that belongs to another thread can only be closed.
        for ring in std::iter::once(&self.transfer_ring).chain(&self.aux_ring) {
            let _ = ring.submitter().unregister_files();
            let _ = ring.submitter().unregister_buffers();
        }
    }
}
