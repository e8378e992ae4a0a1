//! Counters of a handle.

use std::ffi::c_int;

use block::{Limits, Op, Request};

use crate::error::call;
use crate::handle::single_thread::{Guard, sluice_handle};
use crate::options::{ExtensibleStruct, write_struct};

/// Requests of a handle, counted at submission.
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
    /// Reads that were taken.
    pub reads: u64,
    /// Writes that were taken.
    pub writes: u64,
    /// Flushes, discards and zeroes that were taken.
    pub others: u64,
    /// Bytes that those reads asked for.
    pub read_bytes: u64,
    /// Bytes that those writes brought.
    pub written_bytes: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Requests that were not taken because the queue was full.
    pub busy: u64,
    /// Requests that are taken and not reaped.
    pub outstanding: u64,
    /// Times that it slept while it waited.
    pub sleeps: u64,
    /// How long in all.
    pub slept_ns: u64,
    /// Units of 4096 bytes, or of a sector where that is larger, that were asked for and in the cache.
    /// This and all that follows is 0 without a cache.
    pub cache_hits: u64,
    /// Units that were asked for and not there.
    pub cache_misses: u64,
    /// Units read from the device.
    pub cache_fills: u64,
    /// Units among them that were read ahead.
    pub cache_read_ahead: u64,
    /// Units written to the device.
    pub cache_written: u64,
    /// Commands that wrote them.
    pub cache_write_commands: u64,
    /// Units given up for others.
    pub cache_evictions: u64,
    /// Writes to the device that failed; what they wrote is still in the cache.
    pub cache_write_errors: u64,
    /// Times that a request waited for a place.
    pub cache_stalls: u64,
    /// Units that the device does not have.
    pub cache_dirty: u64,
    /// Commands of its queues whose data was copied, because lists of pages could not name it. This and all
    /// that follows counts a shared queue as a whole, and is 0 for what is no drive of queue pairs.
    pub queue_bounces: u64,
    /// Bytes that were copied.
    pub queue_bounced_bytes: u64,
    /// Times that such a command waited for memory to copy through.
    pub queue_bounce_stalls: u64,
    /// Commands that were refused because there was none.
    pub queue_bounce_refused: u64,
    /// Registers of doorbells in memory that were written; 0, as what follows, where doorbells are
    /// registers.
    pub queue_doorbells: u64,
    /// Doorbell writes that were saved.
    pub queue_doorbells_saved: u64,
}

// SAFETY: begins with its size; numbers of 8 bytes, no padding.
unsafe impl ExtensibleStruct for sluice_handle_stats {
    const NAME: &'static str = "struct sluice_handle_stats";
}

/// Says what a handle has done.
///
/// @param handle The handle.
/// @param stats Filled in as far as `stats->size` reaches.
///
/// # Returns
///
/// 0, or `-EINVAL`, also for a `size` that no version had, or `-EBUSY` while another call is inside of the
/// handle.
///
/// # Threads
///
/// The handle's.
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
