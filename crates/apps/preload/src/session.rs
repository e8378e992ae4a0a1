//! The slots that this process shares with the service, and calls through them.
//!
//! Guarantees: a process never uses its parent's slots, because the session's state is on a page
//! that the kernel clears in children (`madvise(2)`, `MADV_WIPEONFORK`). A call ends with a reply,
//! or with `EIO` if the service has ended. `errno` is preserved.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use exec_proto::{AdaptiveSpin, Call, CallOp, gate as gate_words, posted, slot_protocol};
use libc::{c_int, c_void};

use crate::{Errno, gate, libc_fns, start};

/// State that the kernel clears in a forked process.
#[repr(C)]
struct ProcessState {
    /// 1 while a thread creates the session, else 0.
    making: AtomicU32,
    /// Address of the mapped slots.
    slots: AtomicPtr<u8>,
    doorbell: AtomicPtr<u8>,
}

static PROCESS_STATE: AtomicPtr<ProcessState> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// The slot that this thread used last.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// Set permanently once the service is found to have ended.
static SERVICE_GONE: AtomicBool = AtomicBool::new(false);

const PAGE: usize = 4096;
/// Wait for a reply before the service's presence is checked; one second for later checks.
const SERVICE_ALIVE_CHECK_NANOS: i64 = 50_000_000;
/// Maximum number of polls for a reply before sleeping. A call that needs no device takes a
/// microsecond or two while the service is awake.
const SPIN_POLL_LIMIT: u32 = 200;

/// Statistics of calls that need no device, to a service that is awake; and of all other calls.
static SPIN_FAST_CALL: AdaptiveSpin = AdaptiveSpin::new(SPIN_POLL_LIMIT);
static SPIN_DEVICE_CALL: AdaptiveSpin = AdaptiveSpin::new(SPIN_POLL_LIMIT);

/// Spins for a reply, and polls at least once; returns whether the reply arrived.
fn spin(statistics: &AdaptiveSpin, has_come: impl Fn() -> bool) -> bool {
    for _ in 0..statistics.budget().max(1) {
        if has_come() {
            statistics.hit();
            return true;
        }
        std::hint::spin_loop();
    }
    statistics.miss();
    false
}

/// Creates the page; called once, when the library is loaded.
pub(crate) fn prepare() -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address chosen by the kernel, and advice on it.
    unsafe {
        let page = libc_fns::mmap()(std::ptr::null_mut(), PAGE, access, flags, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) != 0 {
            return false;
        }
        PROCESS_STATE.store(page.cast(), Ordering::Release);
    }
    true
}

/// The doorbell's memory, which is never unmapped.
#[derive(Clone, Copy)]
struct Doorbell(*mut u8);

impl Doorbell {
    fn flag(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the mapping; aligned; shared words are atomics.
        unsafe { AtomicU32::from_ptr(self.0.add(at).cast()) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `flag`.
        unsafe { AtomicU64::from_ptr(self.0.add(at).cast()) }
    }

    /// Rings the doorbell; returns whether the service was sleeping.
    fn ring(&self) -> bool {
        let bell = self.flag(exec_proto::DOORBELL);
        let sleeps = slot_protocol::ring_doorbell(bell, self.flag(exec_proto::SERVICE_PARKED));
        if sleeps {
            futex(bell, libc::FUTEX_WAKE, 1, std::ptr::null());
        }
        sleeps
    }
}

/// A slot, claimed by this thread.
pub(crate) struct Slot {
    base: *mut u8,
    doorbell: Doorbell,
    index: usize,
}

impl Slot {
    /// Claims a slot.
    pub(crate) fn claim() -> Result<Slot, Errno> {
        let own = PROCESS_STATE.load(Ordering::Acquire);
        if own.is_null() || SERVICE_GONE.load(Ordering::Relaxed) {
            return Err(libc::EIO);
        }
        // SAFETY: the page is never unmapped; it has only atomics, for which zero is valid.
        let own = unsafe { &*own };
        while own.slots.load(Ordering::Acquire).is_null() {
            own.create()?;
        }
        let base = own.slots.load(Ordering::Acquire);
        let doorbell = Doorbell(own.doorbell.load(Ordering::Acquire));
        let first = LAST.with(Cell::get);
        loop {
            for i in 0..exec_proto::SLOTS {
                let slot = Slot { base, doorbell, index: (first + i) % exec_proto::SLOTS };
                if slot_protocol::claim(slot.state()) {
                    LAST.with(|last| last.set(slot.index));
                    return Ok(slot);
                }
                std::mem::forget(slot);
            }
            // SAFETY: yields the processor.
            unsafe { libc::sched_yield() };
        }
    }

    fn state(&self) -> &AtomicU32 {
        // SAFETY: within the mapping, which is never unmapped; aligned; shared words are atomics.
        unsafe { AtomicU32::from_ptr(self.base.add(exec_proto::header_offset(self.index)).cast()) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `state`.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// Returns the slot's data: [`exec_proto::DATA_BYTES`] bytes.
    pub(crate) fn data(&self) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.base.add(exec_proto::data_offset(self.index)) }
    }

    /// Copies bytes into the data at an offset.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        if at + bytes.len() > exec_proto::DATA_BYTES {
            return Err(libc::ENAMETOOLONG);
        }
        // SAFETY: within the data, which only the claiming thread uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data().add(at), bytes.len()) };
        Ok(())
    }

    /// Copies bytes of a reply.
    pub(crate) fn get(&self, at: usize, into: &mut [u8]) {
        let len = into.len().min(exec_proto::DATA_BYTES - at);
        // SAFETY: within the data.
        unsafe { std::ptr::copy_nonoverlapping(self.data().add(at), into.as_mut_ptr(), len) };
    }

    /// Makes a call and waits for its reply.
    pub(crate) fn call(
        &self,
        op: CallOp,
        handle: u64,
        args: [u64; 4],
        len: usize,
    ) -> Result<i64, Errno> {
        let header = self.write_call(&Call { op, handle, args, len });
        slot_protocol::submit(self.state(), self.word(exec_proto::SUBMITTED_BITS), self.index);
        let slept = self.doorbell.ring();
        let late = slept || matches!(op, CallOp::Sync | CallOp::SyncAll);
        self.wait(if late { &SPIN_DEVICE_CALL } else { &SPIN_FAST_CALL })?;
        let answer = self.word(header + exec_proto::REPLY_OFFSET).load(Ordering::Relaxed) as i64;
        if answer < 0 { Err((-answer) as Errno) } else { Ok(answer) }
    }

    /// Posts a write of `len` bytes in the slot, at byte `at` or at the open file's offset. Does
    /// not wait. Returns the slot if the write may not be posted ([`exec_proto::posted`]).
    pub(crate) fn post_write(self, handle: u64, at: Option<u64>, len: usize) -> Result<(), Slot> {
        let watched = self.doorbell.flag(exec_proto::MMAP_ACTIVE);
        let left = self.word(exec_proto::POSTED_WRITE_BITS);
        let ends = at.is_none_or(|at| at.saturating_add(len as u64) < posted::POSTED_END_MAX);
        if !ends
            || watched.load(Ordering::Relaxed) != 0
            || left.load(Ordering::Relaxed).count_ones() >= posted::POSTED_WRITE_MAX
            || !slot_protocol::spend_reservation(
                self.word(exec_proto::RESERVED_BLOCKS),
                posted::blocks_touched_max(len),
            )
        {
            return Err(self);
        }
        let syncs = slot_protocol::acknowledged_syncs(self.doorbell.word(gate_words::ACKNOWLEDGED));
        let ticket = self.doorbell.word(exec_proto::TICKET_COUNTER).fetch_add(1, Ordering::Relaxed);
        let (op, at) = at.map_or((CallOp::Write, 0), |at| (CallOp::WriteAt, at));
        self.write_call(&Call { op, handle, args: [at, now(), ticket, syncs], len });
        let count = slot_protocol::post_write(self.state(), left, self.index);
        if count.is_multiple_of(posted::POSTED_WRITES_PER_DOORBELL) {
            self.doorbell.ring();
        }
        let is_watched = slot_protocol::is_mmap_active(watched);
        // The service owns the slot now, and frees it.
        std::mem::forget(self);
        if is_watched {
            // The reply shows that all writes posted before have been executed. If the service has
            // ended, the failure is ignored.
            let _ = call(CallOp::Seek, handle, [0, libc::SEEK_CUR as u64, 0, 0]);
        }
        Ok(())
    }

    /// Writes the call into the header; returns the header's offset.
    fn write_call(&self, call: &Call) -> usize {
        let header = exec_proto::header_offset(self.index);
        for (i, word) in call.words().iter().enumerate() {
            self.word(header + exec_proto::CALL_OFFSET + i * 8).store(*word, Ordering::Relaxed);
        }
        header
    }

    fn wait(&self, statistics: &AdaptiveSpin) -> Result<(), Errno> {
        let state = self.state();
        if spin(statistics, || slot_protocol::is_completed(state))
            || !slot_protocol::begin_wait(state)
        {
            return Ok(());
        }
        let mut patience = libc::timespec { tv_sec: 0, tv_nsec: SERVICE_ALIVE_CHECK_NANOS };
        loop {
            futex(state, libc::FUTEX_WAIT, exec_proto::WAITING, &patience);
            if slot_protocol::is_completed(state) {
                return Ok(());
            }
            if !start::is_service_alive() {
                SERVICE_GONE.store(true, Ordering::Relaxed);
                // SAFETY: ends the process, or does nothing.
                unsafe { gate::end_unsupervised() };
                return Err(libc::EIO);
            }
            patience = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        slot_protocol::free(self.state());
    }
}

/// Acknowledges a sync of a file on the volume without a call, if the program speculates
/// ([`exec_proto::posted`]). If not, the program must make a call.
pub(crate) fn post_sync() -> bool {
    let own = PROCESS_STATE.load(Ordering::Acquire);
    if own.is_null() || SERVICE_GONE.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: the page is never unmapped; it has only atomics, for which zero is valid.
    let doorbell = Doorbell(unsafe { (*own).doorbell.load(Ordering::Acquire) });
    if doorbell.0.is_null() {
        return false;
    }
    let posted = slot_protocol::post_sync(
        doorbell.word(gate_words::ACKNOWLEDGED),
        doorbell.word(gate_words::DURABLE),
        doorbell.flag(gate_words::POSTS_SYNCS),
        doorbell.flag(exec_proto::MMAP_ACTIVE),
    );
    if posted.is_some_and(|posted| posted.needs_doorbell) {
        doorbell.ring();
    }
    posted.is_some()
}

/// Makes a call without data.
pub(crate) fn call(op: CallOp, handle: u64, args: [u64; 4]) -> Result<i64, Errno> {
    Slot::claim()?.call(op, handle, args, 0)
}

/// Returns the time in nanoseconds since 1970.
fn now() -> u64 {
    // SAFETY: a time on the stack. The clock exists, so `errno` is unchanged.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_REALTIME, &mut time);
        time
    };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Calls `futex(2)` between processes; the caller reads the result from the word. Preserves
/// `errno`.
fn futex(word: &AtomicU32, op: c_int, value: u32, timeout: *const libc::timespec) {
    // SAFETY: the word and the time outlive the call; `errno` is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            op,
            value,
            timeout,
            std::ptr::null::<u32>(),
            0,
        );
        *libc::__errno_location() = errno;
    }
}

impl ProcessState {
    /// Creates the session, or waits until another thread has. Signals are blocked meanwhile,
    /// because a handler that reads would wait for its own thread.
    fn create(&self) -> Result<(), Errno> {
        // SAFETY: signal sets on the stack; `errno` is this thread's.
        unsafe {
            let errno = *libc::__errno_location();
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            let mut made = Ok(());
            if self.making.swap(1, Ordering::AcqRel) == 0 {
                if self.slots.load(Ordering::Acquire).is_null() {
                    made = self.connect();
                }
                self.making.store(0, Ordering::Release);
            } else {
                libc::sched_yield();
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            *libc::__errno_location() = errno;
            made
        }
    }

    fn connect(&self) -> Result<(), Errno> {
        let socket = start::connect(false)?;
        // SAFETY: a descriptor of this library; buffers on the stack.
        let descriptors = unsafe {
            let token = start::token();
            let sent = gate::send(socket, token.as_ptr().cast(), token.len(), libc::MSG_NOSIGNAL);
            let sent = sent == token.len() as isize;
            let got = if sent { receive::<8, 2>(socket) } else { Err(libc::EIO) };
            gate::close(socket);
            let (greeting, descriptors) = got?;
            if u64::from_le_bytes(greeting) != exec_proto::MAGIC {
                let _ = descriptors.map(|fd| gate::close(fd));
                return Err(libc::EIO);
            }
            descriptors
        };
        let lengths = [exec_proto::SESSION_BYTES, exec_proto::DOORBELL_BYTES];
        let mut bases = [std::ptr::null_mut(); 2];
        let access = libc::PROT_READ | libc::PROT_WRITE;
        for ((fd, len), base) in descriptors.into_iter().zip(lengths).zip(&mut bases) {
            // SAFETY: a new mapping of memory that the service has sealed at that length.
            *base = unsafe {
                let mapped = gate::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0);
                gate::close(fd);
                mapped
            };
        }
        if bases.contains(&libc::MAP_FAILED) {
            return Err(libc::ENOMEM);
        }
        self.doorbell.store(bases[1].cast(), Ordering::Release);
        gate::set_doorbell(bases[1].cast());
        self.slots.store(bases[0].cast(), Ordering::Release);
        Ok(())
    }
}

/// Receives this many bytes and descriptors (at most four) from the service.
///
/// # Safety
/// `socket` is a connected socket.
pub(crate) unsafe fn receive<const BYTES: usize, const DESCRIPTORS: usize>(
    socket: c_int,
) -> Result<([u8; BYTES], [c_int; DESCRIPTORS]), Errno> {
    let mut greeting = [0u8; BYTES];
    let mut part =
        libc::iovec { iov_base: greeting.as_mut_ptr().cast::<c_void>(), iov_len: greeting.len() };
    let mut space = [0u64; 8];
    let mut message: libc::msghdr = std::mem::zeroed();
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&space) as _;
    let got = libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC);
    let head = libc::CMSG_FIRSTHDR(&message);
    if got != BYTES as isize || head.is_null() {
        return Err(libc::EIO);
    }
    let len = libc::CMSG_LEN((DESCRIPTORS * size_of::<c_int>()) as _);
    if (*head).cmsg_type != libc::SCM_RIGHTS || (*head).cmsg_len != len as _ {
        return Err(libc::EIO);
    }
    let data = libc::CMSG_DATA(head).cast::<c_int>();
    Ok((greeting, std::array::from_fn(|i| data.add(i).read_unaligned())))
}
