//! [`NbdStats`]: what an export did. The server's thread is the only writer, so a count is a load
//! and a store, never a locked instruction (rule R9); anyone may read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the server was made, and two levels of now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct NbdStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Count,)*
        }

        impl Counters {
            fn read(&self) -> NbdStats {
                NbdStats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

stats! {
    /// Connections accepted.
    connections,
    /// Connections closed at once because there were too many.
    connections_refused,
    /// Connections open now.
    connections_open,
    /// Clients dropped: they broke the protocol, or took too long.
    clients_dropped,
    /// Clients that went without saying so (no `NBD_CMD_DISC`, no `NBD_OPT_ABORT`).
    clients_vanished,
    /// Reads that reached the device.
    reads,
    /// Writes that reached the device.
    writes,
    /// Flushes that reached the device.
    flushes,
    /// Trims that reached the device.
    trims,
    /// Write-zeroes requests that reached the device.
    write_zeroes,
    /// Block-status requests that reached the device.
    block_statuses,
    /// Bytes that successful reads returned.
    bytes_read,
    /// Bytes that successful writes brought.
    bytes_written,
    /// Bytes of successful trims.
    bytes_trimmed,
    /// Bytes of successful write-zeroes requests.
    bytes_zeroed,
    /// Requests refused before they reached the device: range, alignment, flags, read-only.
    errors_refused,
    /// Requests that the device failed.
    errors_device,
    /// Requests whose client was gone when they completed.
    replies_discarded,
    /// Times a client waited for payload memory.
    memory_waits,
    /// Bytes of payload memory in use now.
    memory_bytes,
}

/// One counter, written by one thread.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.set(self.0.load(Ordering::Relaxed).wrapping_add(n));
    }

    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

/// Reads a running server's counts from any thread.
#[derive(Clone, Debug)]
pub struct NbdStatsReader {
    counters: Arc<Counters>,
}

impl NbdStatsReader {
    pub(super) fn new(counters: &Arc<Counters>) -> NbdStatsReader {
        NbdStatsReader { counters: counters.clone() }
    }

    /// A snapshot. Counts are read one by one: of two that move together, one may be ahead.
    pub fn snapshot(&self) -> NbdStats {
        self.counters.read()
    }
}
