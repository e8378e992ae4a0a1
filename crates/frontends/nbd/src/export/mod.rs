//! [`Export`]: properties reported to clients, computed once from the device and the configuration;
//! [`ExportList`]: the exports of each listener, from which a client selects one by its name.

pub(super) mod listen;

use std::sync::Arc;

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
    pub(super) connections_max: usize,
}

/// The export of a server, those of its group, and those of each listener.
#[derive(Clone, Debug)]
pub(super) struct ExportList {
    own: Export,
    all: Arc<[Export]>,
    /// Indices of the exports of each listener; the first is the default.
    by_listener: Arc<[Vec<usize>]>,
}

impl ExportList {
    /// Returns the list for the servers of each export.
    pub(super) fn group(all: Vec<Export>, by_listener: Vec<Vec<usize>>) -> Vec<ExportList> {
        let (all, by_listener): (Arc<[Export]>, Arc<[_]>) = (all.into(), by_listener.into());
        let list = |own: &Export| {
            let (own, all, by_listener) = (own.clone(), all.clone(), by_listener.clone());
            ExportList { own, all, by_listener }
        };
        all.iter().map(list).collect()
    }

    /// Returns the export of the server.
    #[inline]
    pub(super) fn own(&self) -> &Export {
        &self.own
    }

    /// Returns the exports at a listener.
    pub(super) fn at(&self, listener: usize) -> ListenerExports<'_> {
        let at = self.by_listener.get(listener).map_or(&[][..], Vec::as_slice);
        ListenerExports { all: &self.all, at }
    }

    /// Returns the export with this index.
    pub(super) fn get(&self, index: usize) -> &Export {
        &self.all[index]
    }
}

/// The exports among which a client of one listener selects.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerExports<'a> {
    pub(super) all: &'a [Export],
    /// Indices of the exports; the first is the default.
    pub(super) at: &'a [usize],
}

impl<'a> ListenerExports<'a> {
    /// Returns the index of the export that a name selects. The empty name selects the default
    /// export (NBD "Export names").
    pub(super) fn find(self, name: &[u8]) -> Option<usize> {
        let mut indices = self.at.iter().copied();
        match name {
            [] => indices.next(),
            name => indices.find(|index| self.all[*index].name.as_bytes() == name),
        }
    }

    /// Returns the exports, the default first.
    pub(super) fn iter(self) -> impl Iterator<Item = &'a Export> {
        self.at.iter().map(move |index| &self.all[*index])
    }

    /// Returns the number of exports.
    pub(super) fn len(self) -> usize {
        self.at.len()
    }

    /// Returns the limit of an option's length, the same for all.
    pub(super) fn option_bytes_max(self) -> u32 {
        self.iter().map(|export| export.option_bytes_max).min().unwrap_or(OPTION_BYTES_LIMIT)
    }
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
            connections_max: config.connections_max,
        }
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
        // - A set: every flush has a part on every member, and each part is as above.
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
            atomic: block::AtomicLimits::NONE,
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
