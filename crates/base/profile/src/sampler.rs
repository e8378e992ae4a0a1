//! [`ThreadSampler`]: counts the instructions at which a thread is interrupted.
//!
//! The handler runs on the sampled thread, between any two instructions. It is async-signal-safe: it
//! takes no lock, allocates nothing, and touches only the counts, which are atomics. A signal that
//! was sent before its timer was deleted may arrive later, so that counts are never freed: a sampler
//! that ends gives them to the next one.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Number of different addresses that are counted; a power of two.
const SLOTS: usize = 1 << 16;
/// Number of slots that are tried for an address.
const PROBES: usize = 64;

/// The counts of one thread.
struct AddressCounts {
    slots: Box<[(AtomicU64, AtomicU32)]>,
    /// ThreadSamples that found no slot.
    lost: AtomicU64,
}

/// Counts without a sampler.
static IDLE: Mutex<Vec<&'static AddressCounts>> = Mutex::new(Vec::new());

/// Reasons why a thread cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The interrupted instruction is not known on this processor.
    #[error("programs for this processor cannot be sampled")]
    Unsupported,
    /// The kernel refuses the timer or the signal.
    #[error("sampling a thread: {0}")]
    System(#[from] io::Error),
}

/// An address and how often the thread was interrupted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledAddress {
    /// The address of the instruction.
    pub address: u64,
    /// Number of samples.
    pub count: u32,
}

/// The samples of a thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadSamples {
    /// In no particular order.
    pub addresses: Vec<SampledAddress>,
    /// ThreadSamples whose addresses were not counted, because there were too many different ones.
    pub lost: u64,
}

impl AddressCounts {
    fn new() -> AddressCounts {
        let slots = (0..SLOTS).map(|_| (AtomicU64::new(0), AtomicU32::new(0))).collect();
        AddressCounts { slots, lost: AtomicU64::new(0) }
    }

    /// Counts an address, which is not 0.
    fn count(&self, address: u64) {
        let hash = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize;
        for probe in 0..PROBES {
            let (found, count) = &self.slots[(hash + probe) % SLOTS];
            let free = found.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
            if free.is_ok() || free == Err(address) {
                count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts and sets them to zero.
    fn take(&self) -> ThreadSamples {
        let mut samples =
            ThreadSamples { addresses: Vec::new(), lost: self.lost.swap(0, Ordering::Relaxed) };
        for (address, count) in &self.slots {
            let address = address.swap(0, Ordering::Relaxed);
            let count = count.swap(0, Ordering::Relaxed);
            if address != 0 && count != 0 {
                samples.addresses.push(SampledAddress { address, count });
            }
        }
        samples
    }
}

/// Returns the address of the instruction that a signal interrupted.
#[cfg(target_arch = "x86_64")]
fn interrupted_at(context: &libc::ucontext_t) -> Option<u64> {
    Some(context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64)
}

/// Returns the address of the instruction that a signal interrupted.
#[cfg(target_arch = "aarch64")]
fn interrupted_at(context: &libc::ucontext_t) -> Option<u64> {
    Some(context.uc_mcontext.pc)
}

/// Returns the address of the instruction that a signal interrupted.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn interrupted_at(_: &libc::ucontext_t) -> Option<u64> {
    None
}

/// Handles `SIGPROF`.
extern "C" fn on_signal(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to a handler with SA_SIGINFO. Reading the code and
    // the value of a signal has no other condition.
    let (code, value, context) =
        unsafe { ((*info).si_code, (*info).si_value(), &*context.cast::<libc::ucontext_t>()) };
    // A signal of another origin, such as kill(2), has no counts.
    if code != libc::SI_TIMER || value.sival_ptr.is_null() {
        return;
    }
    // SAFETY: the timers of this process that send SIGPROF are those of `ThreadSampler::start`,
    // which point to counts that are never freed.
    let counts = unsafe { &*value.sival_ptr.cast::<AddressCounts>() };
    if let Some(address) = interrupted_at(context).filter(|address| *address != 0) {
        counts.count(address);
    }
}

/// ThreadSamples the thread that started it, until it is stopped or dropped.
pub struct ThreadSampler {
    timer: libc::timer_t,
    counts: &'static AddressCounts,
}

impl std::fmt::Debug for ThreadSampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadSampler").finish_non_exhaustive()
    }
}

impl ThreadSampler {
    /// ThreadSamples the calling thread at intervals of its processor time. The kernel may lengthen them
    /// to its own tick. `SIGPROF` of this process then belongs to samplers.
    ///
    /// # Errors
    /// [`SampleError`].
    pub fn start(interval: Duration) -> Result<ThreadSampler, SampleError> {
        if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            return Err(SampleError::Unsupported);
        }
        let check = |result: libc::c_int| match result {
            0 => Ok(()),
            _ => Err(SampleError::System(io::Error::last_os_error())),
        };
        // SAFETY: all-zero bytes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: the handler is async-signal-safe, and both pointers are valid.
        check(unsafe { libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut()) })?;
        let idle = IDLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let counts = idle.unwrap_or_else(|| Box::leak(Box::new(AddressCounts::new())));
        counts.take();
        // SAFETY: all-zero bytes are a valid sigevent.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        event.sigev_value.sival_ptr = std::ptr::from_ref(counts).cast_mut().cast();
        // SAFETY: the call has no conditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = std::ptr::null_mut();
        // SAFETY: both pointers are valid; the value of the signal points to counts that are never
        // freed.
        check(unsafe {
            libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &mut event, &mut timer)
        })?;
        let sampler = ThreadSampler { timer, counts };
        let interval = libc::timespec {
            tv_sec: interval.as_secs() as libc::time_t,
            tv_nsec: interval.subsec_nanos().max(1).into(),
        };
        let times = libc::itimerspec { it_interval: interval, it_value: interval };
        // SAFETY: the timer exists, and both pointers are valid or null.
        check(unsafe { libc::timer_settime(timer, 0, &times, std::ptr::null_mut()) })?;
        Ok(sampler)
    }

    /// Returns the samples since the start or the last call.
    pub fn take(&self) -> ThreadSamples {
        self.counts.take()
    }
}

impl Drop for ThreadSampler {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is not used afterwards.
        unsafe { libc::timer_delete(self.timer) };
        IDLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(self.counts);
    }
}

#[cfg(test)]
mod tests {
    // guarantee: B-49

    use super::*;

    #[test]
    fn a_busy_thread_is_sampled_and_an_idle_one_is_not() {
        let sampler = ThreadSampler::start(Duration::from_millis(1)).unwrap();
        let mut value = 1u64;
        let mut samples = 0;
        // Until 20 samples: the kernel's tick may be longer than the interval.
        while samples < 20 {
            for i in 0..1_000_000u64 {
                value = std::hint::black_box(value.wrapping_mul(31) ^ i);
            }
            samples += sampler.take().addresses.iter().map(|sampled| sampled.count).sum::<u32>();
        }
        sampler.take();
        std::thread::sleep(Duration::from_millis(100));
        let idle: u32 = sampler.take().addresses.iter().map(|sampled| sampled.count).sum();
        assert!(idle < 20, "{idle} samples of a thread that sleeps");
        // A signal of another origin is ignored.
        // SAFETY: the sampler has set a handler, which returns.
        assert_eq!(unsafe { libc::raise(libc::SIGPROF) }, 0);
    }

    #[test]
    fn samplers_of_two_threads_have_counts_of_their_own_and_counts_are_used_again() {
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| drop(ThreadSampler::start(Duration::from_micros(100)).unwrap()));
                }
            });
        }
        assert!(IDLE.lock().unwrap().len() <= 6);
    }

    #[test]
    fn more_addresses_than_slots_are_lost_and_counted() {
        let counts = AddressCounts::new();
        let total = 2 * SLOTS as u64;
        (1..=total).for_each(|address| counts.count(address << 4));
        let samples = counts.take();
        let counted: u64 = samples.addresses.iter().map(|sampled| u64::from(sampled.count)).sum();
        assert_eq!(counted + samples.lost, total);
        assert!(samples.lost > 0 && samples.addresses.len() > SLOTS / 2);
        assert!(counts.take().addresses.is_empty());
    }
}
