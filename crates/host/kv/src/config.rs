//! [`KvConfig`]: the configuration; [`KvLayout`]: the sizes that follow from it and the flash.

use nvme::FlashGeometry;

use super::error::KvOpenError;
use super::format::record::{FIXED_HEADER_BYTES, header_bytes};

/// Configuration of a key-value target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvConfig {
    /// Number of chunks open for small values, on different parallel units; 0: one per parallel
    /// unit, at most 8.
    pub active_pus: u32,
    /// Ratio of usable to fillable chunks, minus 1: 0.05 to 100. Usable chunks exclude the
    /// overhead.
    pub over_provisioning: f64,
    /// Number of chunks compacted at a time; 0: half the number open for small values.
    pub compactors: u32,
    /// Maximum number of outstanding requests, 1 to 65,536.
    pub queue_depth: u32,
    /// Number of whole chunks written at a time; 0: two per parallel unit, at most 256.
    pub large_value_writes: u32,
    /// Whether whole chunks have a CRC-32C, which costs the host a pass over the value. Packed
    /// values always have one.
    pub checksum_large_values: bool,
}

impl Default for KvConfig {
    fn default() -> KvConfig {
        KvConfig {
            active_pus: 0,
            over_provisioning: 0.15,
            compactors: 0,
            queue_depth: 1024,
            large_value_writes: 0,
            checksum_large_values: true,
        }
    }
}

/// Maximum number of sectors of a small read.
const SMALL_READ_SECTORS: u32 = 4;

/// Maximum number of sectors of a header that starts at the first byte of a sector.
pub(crate) const HEADER_SECTORS: u32 = 24;

/// Sizes that follow from the flash and the configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvLayout {
    /// Bytes per sector.
    pub sector_bytes: u32,
    /// Bytes per write unit.
    pub unit_bytes: u32,
    /// Bytes per chunk. A value has one whole chunk per so many bytes; the remainder is packed.
    pub chunk_bytes: u32,
    /// Write units per chunk.
    pub units: u32,
    /// Number of write units after which a unit of a chunk becomes readable.
    pub pair_units: u32,
    /// Maximum size of a record in bytes; longer values take several records.
    pub record_bytes: u32,
    /// Maximum size of all records of a batch in bytes.
    pub batch_bytes: u32,
    /// Maximum number of whole chunks of a value.
    pub value_chunks_max: u32,
    /// Minimum of live bytes that a packed chunk holds after compaction: it may waste a record's
    /// length at its end, and a write unit of padding.
    pub compacted_bytes_min: u32,
    /// Numbers of chunks written at a time.
    pub concurrency: WriteConcurrency,
    /// The use of the target's chunks.
    pub budget: ChunkBudget,
}

/// Numbers of chunks that are written at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteConcurrency {
    /// Number of chunks open for host records.
    pub active_chunks: u32,
    /// Number of chunks open for relocated records, and of chunks compacted at a time.
    pub compactors: u32,
    /// Maximum number of chunks that are open for records, or being written to their ends.
    pub streams_max: u32,
    /// Number of whole chunks written at a time.
    pub large_value_writes: u32,
}

/// The use of a target's chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkBudget {
    /// Number of chunks of this target, without factory bad ones.
    pub chunks: u32,
    /// Number of chunks that values may fill.
    pub capacity: u32,
    /// Number of free chunks reserved for compaction.
    pub reserve_chunks: u32,
    /// Compaction starts when fewer chunks are free.
    pub compact_below: u32,
    /// Number of chunks that values cannot fill: open ones, and the reserve.
    pub overhead_chunks: u32,
}

/// The chunks of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkSupply {
    /// Number of chunks, without factory bad ones.
    pub(crate) chunks: u32,
    /// Number of parallel units with chunks.
    pub(crate) pus: u32,
    /// Maximum number of open chunks that the drive allows; 0: no limit.
    pub(crate) open_chunks_max: u32,
}

impl KvLayout {
    /// Computes the layout.
    ///
    /// # Errors
    /// [`KvOpenError::Shape`], [`KvOpenError::Config`], [`KvOpenError::TooSmall`].
    pub(crate) fn new(
        shape: &FlashGeometry,
        config: &KvConfig,
        supply: ChunkSupply,
    ) -> Result<KvLayout, KvOpenError> {
        let ChunkSupply { chunks, pus, open_chunks_max: max_open } = supply;
        let wrong = |what, value: f64, allowed: &str| {
            Err(KvOpenError::Config { what, value, allowed: allowed.to_owned() })
        };
        if !(0.05..=100.0).contains(&config.over_provisioning) {
            return wrong("over_provisioning", config.over_provisioning, "0.05 to 100");
        }
        if config.active_pus > pus {
            let allowed = format!("at most the parallel units, {pus}");
            return wrong("active_pus", config.active_pus.into(), &allowed);
        }
        if config.queue_depth == 0 || config.queue_depth > 1 << 16 {
            return wrong("queue_depth", config.queue_depth.into(), "1 to 65,536");
        }
        if config.compactors > 64 {
            return wrong("compactors", config.compactors.into(), "0 to 64");
        }
        if config.large_value_writes > 4096 {
            return wrong("large_value_writes", config.large_value_writes.into(), "0 to 4,096");
        }
        let chunk = u64::from(shape.sectors_per_chunk) * u64::from(shape.sector_bytes);
        let units = shape.sectors_per_chunk / shape.ws_opt;
        let refused = |what, value: u64, allowed: &str| {
            Err(KvOpenError::Shape { what, value, allowed: allowed.to_owned() })
        };
        if !(8 << 10..1 << 31).contains(&chunk) {
            return refused("bytes of a chunk", chunk, "8 KiB to 2 GiB");
        }
        if units < 4 {
            return refused("write units of a chunk", units.into(), "at least 4");
        }
        if shape.mw_cunits >= shape.sectors_per_chunk {
            let allowed = "less than the sectors of a chunk";
            return refused("mw_cunits", shape.mw_cunits.into(), allowed);
        }
        let chunk = chunk as u32;
        let unit = shape.ws_opt * shape.sector_bytes;
        let record = (chunk / 8).clamp(1024, 256 << 10) & !7;
        let active = if config.active_pus == 0 { pus.min(8) } else { config.active_pus };
        let compactors =
            if config.compactors == 0 { active.div_ceil(2) } else { config.compactors };
        let (mut active, mut compactors) = (active.max(1), compactors);
        // One open chunk is left for a large value.
        while max_open > 0 && 2 * (active + compactors) + 1 > max_open {
            if active == 1 && compactors == 1 {
                return refused("open chunks allowed", max_open.into(), "at least 5");
            }
            active = (active / 2).max(1);
            compactors = (compactors / 2).max(1);
        }
        let streams = 2 * (active + compactors);
        let mut whole = if config.large_value_writes == 0 {
            (2 * pus).clamp(4, 256)
        } else {
            config.large_value_writes
        };
        if max_open > 0 {
            whole = whole.min(max_open - streams);
        }
        // Twice the number of chunks that compaction fills at a time, so that padding them to make
        // them durable costs less than compaction gains.
        let reserve = (2 * compactors).max(3);
        let held = streams + reserve + 2;
        let usable = chunks.saturating_sub(held);
        let capacity = (f64::from(usable) / (1.0 + config.over_provisioning)) as u32;
        if capacity == 0 {
            return Err(KvOpenError::TooSmall { chunks, overhead: held });
        }
        // A header is read with one command at power-on.
        let header = record.min(16 << 10).min(HEADER_SECTORS * shape.sector_bytes);
        let parts = (header - header_bytes(255, 0)) / 8;
        Ok(KvLayout {
            sector_bytes: shape.sector_bytes,
            unit_bytes: unit,
            chunk_bytes: chunk,
            units,
            pair_units: shape.mw_cunits.div_ceil(shape.ws_opt),
            record_bytes: record,
            batch_bytes: (chunk / 2).min(1 << 20) & !7,
            value_chunks_max: parts.min(u32::from(u16::MAX)),
            compacted_bytes_min: (chunk - record).saturating_sub(unit).max(record),
            concurrency: WriteConcurrency {
                active_chunks: active,
                compactors,
                streams_max: streams,
                large_value_writes: whole.max(1),
            },
            budget: ChunkBudget {
                chunks,
                capacity,
                reserve_chunks: reserve,
                compact_below: reserve + active + compactors,
                overhead_chunks: held,
            },
        })
    }

    /// Returns the maximum size of a value in bytes.
    pub fn value_bytes(&self) -> u64 {
        let parts = self.value_chunks_max.min(self.budget.capacity);
        u64::from(parts) * u64::from(self.chunk_bytes) + u64::from(self.chunk_bytes) - 1
    }

    /// Splits a value into whole chunks and inline bytes.
    #[inline]
    pub(crate) fn split(&self, bytes: u64) -> (u32, u32) {
        let chunk = u64::from(self.chunk_bytes);
        ((bytes / chunk) as u32, (bytes % chunk) as u32)
    }

    /// Returns the maximum number of inline bytes of a record.
    #[inline]
    pub(crate) fn inline_bytes_max(&self, key: u8, parts: usize) -> u32 {
        self.record_bytes - header_bytes(key, parts)
    }

    /// Returns the number of records for `inline` bytes.
    #[inline]
    pub(crate) fn record_count(&self, key: u8, parts: u32, inline: u32) -> u32 {
        let first = self.inline_bytes_max(key, parts as usize);
        1 + inline.saturating_sub(first).div_ceil(self.inline_bytes_max(key, 0))
    }

    /// Returns the bytes of all records of a value.
    pub(crate) fn packed_bytes(&self, key: u8, parts: u32, inline: u32) -> u64 {
        let pieces = u64::from(self.record_count(key, parts, inline));
        // Every record but the last is full.
        pieces * u64::from(header_bytes(key, 0)) + 8 * u64::from(parts) + u64::from(inline) + 7
    }

    /// Returns the buffer sizes, in sectors, of a small read, a read of any record, and compaction.
    pub(crate) fn read_buffer_sectors(&self) -> [u32; 3] {
        let any = self.record_bytes.div_ceil(self.sector_bytes) + 1;
        let least = (FIXED_HEADER_BYTES + 256).div_ceil(self.sector_bytes) + 1;
        // Compaction reads a batch as a whole.
        let batch = self.batch_bytes.div_ceil(self.sector_bytes) + 1;
        [SMALL_READ_SECTORS.max(least).min(any), any, batch.max(2 * any)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::Geometry;

    fn geometry() -> Geometry {
        Geometry {
            groups: 4,
            pus: 4,
            chunks: 32,
            sectors: 256,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 16,
            ws_opt: 16,
            mw_cunits: 16,
        }
    }

    fn supply(chunks: u32, open_chunks_max: u32) -> ChunkSupply {
        ChunkSupply { chunks, pus: 16, open_chunks_max }
    }

    #[test]
    fn values_that_fill_their_chunks_leave_nothing_to_pack() {
        let shape = FlashGeometry::from_geometry(&geometry());
        let layout = KvLayout::new(&shape, &KvConfig::default(), supply(512, 0)).unwrap();
        assert_eq!(layout.chunk_bytes, 1 << 20);
        assert_eq!(layout.split(1 << 20), (1, 0));
        assert_eq!(layout.split((3 << 20) + 5), (3, 5));
        assert_eq!(layout.split(1000), (0, 1000));
        assert_eq!(layout.record_count(16, 1, 0), 1);
        let room = layout.inline_bytes_max(16, 0);
        assert_eq!(
            (layout.record_count(16, 0, room), layout.record_count(16, 0, room + 1)),
            (1, 2)
        );
        assert_eq!(
            layout.record_count(16, 0, (1 << 20) - 1),
            9,
            "an eighth of a chunk each, and a bit"
        );
        assert!(layout.value_bytes() > 100 << 20);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        let shape = FlashGeometry::from_geometry(&geometry());
        let refuse = |config: KvConfig, chunks, open| {
            KvLayout::new(&shape, &config, supply(chunks, open)).unwrap_err().to_string()
        };
        let ok = KvConfig::default();
        for (config, says) in [
            (KvConfig { over_provisioning: 0.01, ..ok }, "over_provisioning is 0.01"),
            (KvConfig { over_provisioning: f64::NAN, ..ok }, "over_provisioning is NaN"),
            (KvConfig { active_pus: 17, ..ok }, "at most the parallel units, 16"),
            (KvConfig { queue_depth: 0, ..ok }, "queue_depth is 0"),
            (KvConfig { compactors: 65, ..ok }, "compactors is 65"),
            (KvConfig { large_value_writes: 5000, ..ok }, "large_value_writes is 5000"),
        ] {
            let message = refuse(config, 512, 0);
            assert!(message.contains(says), "{message}");
        }
        assert!(refuse(ok, 30, 0).contains("30 good chunks"));
        assert!(refuse(ok, 512, 4).contains("at least 5"));
        let layout = KvLayout::new(&shape, &ok, supply(512, 9)).unwrap();
        assert!(layout.concurrency.streams_max + layout.concurrency.large_value_writes <= 9);
        let small = Geometry { sectors: 8, ws_min: 4, ws_opt: 4, sector_bytes: 512, ..geometry() };
        let refused =
            KvLayout::new(&FlashGeometry::from_geometry(&small), &ok, supply(512, 0)).unwrap_err();
        assert!(refused.to_string().contains("bytes of a chunk is 4096"), "{refused}");
    }
}
