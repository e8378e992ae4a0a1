//! Counters of a handle.

use std::ffi::c_int;

use block::{Limits, Op, Request};

use crate::error::call;
use crate::handle::single_thread::{Guard, sluice_handle};
use crate::options::{ExtensibleStruct, write_struct};

/// Counters of a handle's requests; `reads` to `written_sectors` count at submission.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandleCounters {
    reads: u64,
    writes: u64,
    others: u64,
    read_sectors: u64,
    written_sectors: u64,
    pub(crate) errors: u64,
    pub(crate) busy: u64,
}

impl HandleCounters {
    #[inline]
    pub(crate) fn record(&mut self, request: &Request) {
        let sectors = u64::from(request.sectors);
        match request.op {
            Op::Read => {
                self.reads += 1;
                self.read_sectors += sectors;
            }
            Op::Write => {
                self.writes += 1;
                self.written_sectors += sectors;
            }
            _ => self.others += 1,
        }
    }
}

/// Counters of a handle since it was created. Set `size` to `sizeof(struct sluice_handle_stats)`
/// before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_handle_stats {
    /// `sizeof(struct sluice_handle_stats)`.
    pub size: usize,
    /// Number of reads submitted.
    pub reads: u64,
    /// Number of writes submitted.
    pub writes: u64,
    /// Number of flushes, discards and Write Zeroes submitted.
    pub others: u64,
    /// Bytes of the reads submitted.
    pub read_bytes: u64,
    /// Bytes of the writes submitted.
    pub written_bytes: u64,
    /// Number of requests that completed with an error.
    pub errors: u64,
    /// Number of submissions rejected because the queue was full.
    pub busy: u64,
    /// Number of requests submitted and not reaped.
    pub outstanding: u64,
    /// Number of sleeps while waiting for completions.
    pub sleeps: u64,
    /// Total time of these sleeps, in nanoseconds.
    pub slept_ns: u64,
    /// Number of blocks requested that were in the cache. A block is 4096 bytes, or one sector if
    /// that is larger. The `cache_*` counters are 0 without a cache.
    pub cache_hits: u64,
    /// Number of blocks requested that were absent or still being filled.
    pub cache_misses: u64,
    /// Number of blocks read from the device, including read-ahead.
    pub cache_fills: u64,
    /// Number of blocks of `cache_fills` that were read ahead.
    pub cache_read_ahead: u64,
    /// Number of blocks written to the device.
    pub cache_written: u64,
    /// Number of commands that wrote these blocks.
    pub cache_write_commands: u64,
    /// Number of blocks evicted.
    pub cache_evictions: u64,
    /// Number of blocks whose write to the device failed; their data is still in the cache.
    pub cache_write_errors: u64,
    /// Number of times that a request waited for a free block of the cache.
    pub cache_stalls: u64,
    /// Number of blocks that are newer in the cache than on the device.
    pub cache_dirty: u64,
    /// Number of commands whose data was copied, because PRP lists could not address it. The
    /// `queue_*` counters include all handles of a shared queue, and are 0 for devices without
    /// queue pairs.
    pub queue_bounces: u64,
    /// Bytes copied for these commands.
    pub queue_bounced_bytes: u64,
    /// Number of times that such a command was rejected as busy because too little bounce memory
    /// was free.
    pub queue_bounce_stalls: u64,
    /// Number of such commands that failed because bounce memory could not be allocated.
    pub queue_bounce_refused: u64,
    /// Number of doorbell registers written with shadow doorbells (a doorbell buffer in memory). 0
    /// without shadow doorbells.
    pub queue_doorbells: u64,
    /// Number of register writes that shadow doorbells saved. 0 without shadow doorbells.
    pub queue_doorbells_saved: u64,
}

// SAFETY: begins with its size; numbers of 8 bytes, no padding.
unsafe impl ExtensibleStruct for sluice_handle_stats {
    const NAME: &'static str = "struct sluice_handle_stats";
}

/// Returns the counters of a handle.
///
/// @param handle The handle.
/// @param stats Receives the counters, up to `stats->size` bytes.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is `NULL` or `stats->size` is not a size of any version, or
/// `-E2BIG` if it is larger than 4096, or `-EBUSY` if another call uses the handle.
///
/// # Threads
///
/// One thread at a time for each handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_handle_get_stats(
    handle: *const sluice_handle,
    stats: *mut sluice_handle_stats,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let inside = unsafe { Guard::enter(handle) }?;
        let Limits { sector_bytes, .. } = *inside.handle.limits();
        let (counts, bytes) = (inside.counters, |sectors: u64| sectors * u64::from(sector_bytes));
        let (sleeps, slept) = inside.handle.sleep_stats();
        let (cache, dirty) = inside.handle.device().cache().unwrap_or_default();
        let user_io::QueueStats { bounced, doorbells, .. } = inside.handle.device().queues();
        let doorbells = doorbells.unwrap_or_default();
        let value = sluice_handle_stats {
            size: 0,
            reads: counts.reads,
            writes: counts.writes,
            others: counts.others,
            read_bytes: bytes(counts.read_sectors),
            written_bytes: bytes(counts.written_sectors),
            errors: counts.errors,
            busy: counts.busy,
            outstanding: inside.handle.outstanding().into(),
            sleeps,
            slept_ns: slept.0,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            cache_fills: cache.fills,
            cache_read_ahead: cache.read_ahead,
            cache_written: cache.written,
            cache_write_commands: cache.write_commands,
            cache_evictions: cache.evictions,
            cache_write_errors: cache.write_errors,
            cache_stalls: cache.stalls,
            cache_dirty: dirty.into(),
            queue_bounces: bounced.commands,
            queue_bounced_bytes: bounced.bytes,
            queue_bounce_stalls: bounced.busy,
            queue_bounce_refused: bounced.refused,
            queue_doorbells: doorbells.register_writes + doorbells.register_rewrites,
            queue_doorbells_saved: doorbells.register_writes_saved,
        };
        // SAFETY: as above.
        unsafe { write_struct("stats", stats, &value) }?;
        Ok(0)
    })
}
