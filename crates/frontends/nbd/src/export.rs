//! [`Export`]: properties reported to clients, computed once from the device and the configuration.

use block::Limits;

use crate::NbdConfig;
use crate::protocol::wire::{PAYLOAD_BYTES_MAX, transmission_flag as flag};

/// An option must fit into the receive buffer.
const OPTION_BYTES_LIMIT: u32 = 60 << 10;

/// Properties of the device as reported to clients (NBD "Transmission flags", "Block size
/// constraints").
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub(super) name: String,
    pub(super) description: String,
    /// Bytes of the device.
    pub(super) bytes: u64,
    /// Smallest length and alignment: the device's sector.
    pub(super) block_min: u32,
    /// Smallest efficient length and alignment, a power of two.
    pub(super) block_preferred: u32,
    /// Longest read or write of a client that asked for block sizes.
    pub(super) block_max: u32,
    /// Longest read or write of any client.
    pub(super) payload_max: u32,
    pub(super) read_only: bool,
    pub(super) option_bytes_max: u32,
    /// A `GO` must ask for block sizes.
    pub(super) sizes_required: bool,
}

impl Export {
    /// Computes the export; `payload_max` is the longest request that fits into the pool.
    pub(super) fn new(limits: &Limits, config: &NbdConfig, payload_max: u32) -> Export {
        let payload_max = payload_max.min(PAYLOAD_BYTES_MAX);
        let sector = limits.sector_bytes;
        let bytes_of = |sectors: u32| u64::from(sectors) * u64::from(sector);
        let preferred = bytes_of(limits.optimal_sectors.max(1)).next_power_of_two();
        let preferred = (preferred as u32).clamp(sector.max(512), payload_max);
        // "SHOULD be at least 2^20", "at least as large as the preferred block size". Requests
        // beyond the device's limit are split, so the larger number is supported.
        let block_max = bytes_of(limits.max_sectors)
            .clamp(1 << 20, u64::from(payload_max))
            .max(u64::from(preferred)) as u32;
        Export {
            name: config.name.clone(),
            description: config.description.clone(),
            bytes: limits.bytes(),
            block_min: sector,
            block_preferred: preferred,
            block_max: block_max - block_max % sector,
            payload_max,
            read_only: config.read_only,
            option_bytes_max: config.option_bytes_max.min(OPTION_BYTES_LIMIT),
            sizes_required: sector > 512 && !config.admit_unsized,
        }
    }

    /// Returns whether a name selects this export: its own name, or the empty default name.
    pub(super) fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Returns the transmission flags. `SEND_DF` requires structured replies.
    pub(super) fn flags(&self, structured: bool) -> u16 {
        // A flush on one connection covers every write answered before on another, although they may
        // have different queues of the device (`NbdServer::group`): an answered write had completed
        // in the device, and the device receives the flush afterwards.
        // - Queue pairs of a drive (`raw`, `sq`, `mq`): one controller executes the commands of all
        //   of them, and a flush covers its whole write buffer.
        // - A target beneath `sq` or `mq`: one write buffer, under the lock of its dispatch queue.
        // - Shards, with or without `mq` and several hardware queues: every flush has a fragment on
        //   every shard, which the shard's owner executes after the writes that it has completed.
        // - `sq` and `mq` serve a flush by none that was at the device before it.
        // Verified by `crates/tools/stack/tests/suite/flush_of_all_cores.rs`.
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            // Zeroing with unmap moves no data, so it is faster than writing zeros. Fast zeroing
            // without unmap is refused.
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(sector: u32, optimal: u32, max: u32) -> Export {
        let limits = Limits {
            sector_bytes: sector,
            sectors: 1 << 20,
            max_sectors: max,
            optimal_sectors: optimal,
            queue_depth: 64,
            volatile_cache: true,
        };
        Export::new(&limits, &NbdConfig::default(), 32 << 20)
    }

    #[test]
    fn block_sizes_follow_the_device_within_the_specification() {
        let e = export(4096, 24, 64);
        assert_eq!(e.block_min, 4096);
        assert_eq!(e.block_preferred, 128 << 10, "a power of two at least the optimum");
        assert_eq!(e.block_max, 1 << 20, "never below 1 MiB");
        assert!(e.sizes_required);
        let e = export(512, 1, 1024 * 1024);
        assert_eq!((e.block_min, e.block_preferred, e.block_max), (512, 512, 32 << 20));
        assert!(!e.sizes_required);
        let e = export(4096, 8, 1024);
        assert_eq!(e.block_max, 4 << 20);
    }
}
