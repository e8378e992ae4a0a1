//! Options of a handle: wait mode, queue selection, and block cache.

use std::ffi::c_void;

use block::Request;
use time::Nanos;
use user_io::{CacheConfig, EvictionPolicy, HybridPolling, QueueSelector, WaitMode, WritePolicy};

use crate::error::CallError;
use crate::options::ExtensibleStruct;
use crate::request::op_code;

/// Busy-poll for completions: lowest latency, occupies a core. A new handle over a target of a
/// scenario that sets `path.completion` waits as that says instead.
pub const SLUICE_WAIT_POLL: u32 = 0;
/// Sleep until the device, or the poller that watches the queue, wakes the handle.
pub const SLUICE_WAIT_EVENT: u32 = 1;
/// Sleep for a part of the expected latency, then busy-poll. The expected latency is the recent
/// mean of requests of the same operation and size.
pub const SLUICE_WAIT_HYBRID: u32 = 2;

/// Use the queues in rotation.
pub const SLUICE_SELECT_ROUND_ROBIN: u32 = 0;
/// Use the first queue for reads, and the second for all other requests.
pub const SLUICE_SELECT_BY_DIRECTION: u32 = 1;
/// Use the second queue for reads and writes of more than `select_sectors` sectors, and the first
/// for all other requests.
pub const SLUICE_SELECT_BY_SIZE: u32 = 2;
/// Call `select` for each request.
pub const SLUICE_SELECT_CALLBACK: u32 = 3;

/// A write completes after the device has completed it. Without this flag, a write completes in the
/// cache and is durable after a flush.
pub const SLUICE_CACHE_WRITE_THROUGH: u32 = 1;
/// Evict by the CLOCK algorithm, which approximates LRU at less cost per access. Without this flag,
/// evict the least recently used block.
pub const SLUICE_CACHE_CLOCK: u32 = 2;
/// Disable read-ahead.
pub const SLUICE_CACHE_NO_READ_AHEAD: u32 = 4;

/// Callback that returns the index of a request's queue, 0 to `queues - 1`; larger values wrap
/// around (modulo `queues`). The library calls it on the submitting thread before it submits the
/// request. The callback must not call functions on the handle, throw an exception, or call
/// `longjmp(3)`.
pub type sluice_select = Option<
    unsafe extern "C" fn(arg: *mut c_void, op: u32, lba: u64, sectors: u32, queues: usize) -> usize,
>;

/// Options of a handle. Set `size` to `sizeof(struct sluice_handle_options)`. A member that is 0
/// selects its default: busy-polling, no cache.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_handle_options {
    /// `sizeof(struct sluice_handle_options)`.
    pub size: usize,
    /// Wait mode: `SLUICE_WAIT_POLL`, `SLUICE_WAIT_EVENT` or `SLUICE_WAIT_HYBRID`.
    pub wait: u32,
    /// Percent of the expected latency after which busy-polling begins, 1 to 99; 0 for 50. With
    /// `SLUICE_WAIT_HYBRID` only.
    pub hybrid_percent: u32,
    /// Wakeup latency of this machine in nanoseconds; 0 for 60,000. Busy-polling begins that much
    /// earlier. With `SLUICE_WAIT_HYBRID` only.
    pub hybrid_late_ns: u64,
    /// Group of the handle's requests, 0 to 65535. Other values than 0 need a queue with a
    /// scheduler.
    pub group: u32,
    /// Selection among several queues: `SLUICE_SELECT_ROUND_ROBIN`, `SLUICE_SELECT_BY_DIRECTION`,
    /// `SLUICE_SELECT_BY_SIZE` or `SLUICE_SELECT_CALLBACK`.
    pub selector: u32,
    /// With `SLUICE_SELECT_BY_SIZE`: maximum number of sectors of a request on the first queue, at
    /// least 1.
    pub select_sectors: u32,
    /// With a cache: bitwise OR of `SLUICE_CACHE_WRITE_THROUGH`, `SLUICE_CACHE_CLOCK` and
    /// `SLUICE_CACHE_NO_READ_AHEAD`.
    pub cache_flags: u32,
    /// With `SLUICE_SELECT_CALLBACK`: the callback.
    pub select: sluice_select,
    /// Passed to `select` as `arg`.
    pub select_arg: *mut c_void,
    /// Size of the block cache in bytes, at least 64 blocks; 0 for no cache. A block is 4096 bytes,
    /// or one sector if that is larger.
    pub cache_bytes: u64,
    /// Maximum number of blocks that are read ahead of a sequential reader, at most a quarter of
    /// the cache; 0 for 32, or a quarter of the cache if that is less.
    pub cache_read_ahead: u32,
    /// Maximum number of outstanding requests with a cache; 0 for 1024.
    pub cache_depth: u32,
    /// Maximum percent of the cache that may be dirty, 1 to 90; 0 for 40. Writes beyond it wait.
    /// Not with `SLUICE_CACHE_WRITE_THROUGH`.
    pub cache_dirty_percent: u32,
    /// Percent of dirty blocks at which background writeback starts, 1 to `cache_dirty_percent`; 0
    /// for 10, or `cache_dirty_percent` if that is less. Not with `SLUICE_CACHE_WRITE_THROUGH`.
    pub cache_background_percent: u32,
}

// SAFETY: begins with its size; numbers and pointers in places of their own size, no padding; pointers,
// the function's too, may be NULL.
unsafe impl ExtensibleStruct for sluice_handle_options {
    const NAME: &'static str = "struct sluice_handle_options";
}

pub(crate) fn value_error(
    what: &'static str,
    value: impl Into<u64>,
    allowed: &'static str,
) -> CallError {
    CallError::Value { what, value: value.into(), allowed }
}

/// Parses the wait mode.
pub(crate) fn parse_wait(wait: u32, percent: u32, late_ns: u64) -> Result<WaitMode, CallError> {
    let hybrid = HybridPolling::default();
    let waits = match wait {
        SLUICE_WAIT_POLL => WaitMode::Poll,
        SLUICE_WAIT_EVENT => WaitMode::Interrupt,
        SLUICE_WAIT_HYBRID => {
            let sleep_percent = match percent {
                0 => hybrid.sleep_percent,
                1..=99 => percent as u8,
                _ => return Err(value_error("hybrid_percent", percent, "1 to 99, or 0 for 50")),
            };
            let late = if late_ns == 0 { hybrid.wakeup_latency } else { Nanos(late_ns) };
            return Ok(WaitMode::Hybrid(HybridPolling { sleep_percent, wakeup_latency: late }));
        }
        _ => return Err(value_error("wait", wait, "SLUICE_WAIT_POLL, _EVENT or _HYBRID")),
    };
    if percent != 0 || late_ns != 0 {
        let said = if percent != 0 { percent.into() } else { late_ns };
        return Err(value_error(
            "hybrid_percent and hybrid_late_ns",
            said,
            "0 without SLUICE_WAIT_HYBRID",
        ));
    }
    Ok(waits)
}

/// A caller's callback and its argument.
struct Callback {
    select: unsafe extern "C" fn(*mut c_void, u32, u64, u32, usize) -> usize,
    arg: *mut c_void,
}

// SAFETY: only the thread inside the handle calls it, as the header says; the caller is responsible
// for the function's own demands on threads.
unsafe impl Send for Callback {}

impl Callback {
    fn call(&self, request: &Request, queues: usize) -> usize {
        let Request { op, lba, sectors, .. } = *request;
        // SAFETY: the header demands a function that can be called with these arguments, and that
        // returns.
        unsafe { (self.select)(self.arg, op_code(op), lba, sectors, queues) }
    }
}

pub(crate) fn parse_selector(options: &sluice_handle_options) -> Result<QueueSelector, CallError> {
    let &sluice_handle_options { selector, select, select_arg, select_sectors, .. } = options;
    if selector != SLUICE_SELECT_CALLBACK && (select.is_some() || !select_arg.is_null()) {
        return Err(value_error("selector", selector, "SLUICE_SELECT_CALLBACK with `select`"));
    }
    if selector != SLUICE_SELECT_BY_SIZE && select_sectors != 0 {
        return Err(value_error(
            "select_sectors",
            select_sectors,
            "0 without SLUICE_SELECT_BY_SIZE",
        ));
    }
    match selector {
        SLUICE_SELECT_ROUND_ROBIN => Ok(QueueSelector::RoundRobin),
        SLUICE_SELECT_BY_DIRECTION => Ok(QueueSelector::ByDirection),
        SLUICE_SELECT_BY_SIZE if select_sectors > 0 => Ok(QueueSelector::BySize(select_sectors)),
        SLUICE_SELECT_BY_SIZE => Err(value_error("select_sectors", 0u32, "1 or more")),
        SLUICE_SELECT_CALLBACK => {
            let select = select.ok_or(CallError::Null("select"))?;
            let callback = Callback { select, arg: select_arg };
            Ok(QueueSelector::Function(Box::new(move |request, lanes| {
                callback.call(request, lanes)
            })))
        }
        _ => Err(value_error(
            "selector",
            selector,
            "SLUICE_SELECT_ROUND_ROBIN, _BY_DIRECTION, _BY_SIZE or _CALLBACK",
        )),
    }
}

pub(crate) fn parse_cache(
    options: &sluice_handle_options,
) -> Result<Option<CacheConfig>, CallError> {
    let &sluice_handle_options {
        cache_flags,
        cache_bytes,
        cache_read_ahead,
        cache_depth,
        cache_dirty_percent: dirty,
        cache_background_percent: background,
        ..
    } = options;
    let all = SLUICE_CACHE_WRITE_THROUGH | SLUICE_CACHE_CLOCK | SLUICE_CACHE_NO_READ_AHEAD;
    if cache_flags & !all != 0 {
        let allowed = "SLUICE_CACHE_WRITE_THROUGH, _CLOCK and _NO_READ_AHEAD together";
        return Err(value_error("cache_flags", cache_flags, allowed));
    }
    if cache_bytes == 0 {
        let said = [cache_flags, cache_read_ahead, cache_depth, dirty, background];
        return match said.into_iter().find(|n| *n > 0) {
            None => Ok(None),
            Some(n) => Err(value_error("cache_*", n, "0 without `cache_bytes`")),
        };
    }
    let default = CacheConfig::default();
    let through = cache_flags & SLUICE_CACHE_WRITE_THROUGH != 0;
    let percent = |what, n: u32| u8::try_from(n).map_err(|_| value_error(what, n, "1 to 90"));
    let write = match (through, default.write_policy) {
        (true, _) | (_, WritePolicy::WriteThrough) => {
            if dirty > 0 || background > 0 {
                let said = dirty.max(background);
                return Err(value_error(
                    "cache_dirty_percent",
                    said,
                    "0 with SLUICE_CACHE_WRITE_THROUGH",
                ));
            }
            WritePolicy::WriteThrough
        }
        (false, WritePolicy::WriteBack { dirty_percent, background_percent }) => {
            let most =
                if dirty == 0 { dirty_percent } else { percent("cache_dirty_percent", dirty)? };
            let from = match background {
                0 => background_percent.min(most),
                n => percent("cache_background_percent", n)?,
            };
            WritePolicy::WriteBack { dirty_percent: most, background_percent: from }
        }
    };
    let no_ahead = cache_flags & SLUICE_CACHE_NO_READ_AHEAD != 0;
    let read_ahead = match (no_ahead, cache_read_ahead) {
        (true, 0) => 0,
        (true, n) => {
            return Err(value_error("cache_read_ahead", n, "0 with SLUICE_CACHE_NO_READ_AHEAD"));
        }
        // Clamped to the cache's maximum; explicit values are checked instead.
        (false, 0) => {
            let frames = cache_bytes / u64::from(CacheConfig::BLOCK_BYTES);
            default.read_ahead.min((frames / 4).min(u32::MAX.into()) as u32)
        }
        (false, n) => n,
    };
    let clock = cache_flags & SLUICE_CACHE_CLOCK != 0;
    Ok(Some(CacheConfig {
        bytes: cache_bytes,
        eviction: if clock { EvictionPolicy::Clock } else { EvictionPolicy::Lru },
        write_policy: write,
        read_ahead,
        depth: if cache_depth == 0 { default.depth } else { cache_depth },
    }))
}
