//! Posted writes: writes without a reply. The rules keep a posted write indistinguishable, where it
//! matters, from one that was waited for.
//!
//! | observable after `write(2)` | how a posted write preserves it |
//! |---|---|
//! | the bytes, by any call of any process | calls start after the writes posted before them |
//! | the order of writes | each has a ticket; the service executes them in ticket order |
//! | `ENOSPC` | blocks are reserved in advance ([`RESERVED_BLOCKS`](crate::RESERVED_BLOCKS)); otherwise the write is a call |
//! | `EBADF`, `EISDIR`, `EFBIG`, durability with `O_SYNC` | the first write of an open file is a call, whose reply says whether later ones may be posted |
//! | the bytes in a shared mapping | nothing is posted while one exists ([`MMAP_ACTIVE`](crate::MMAP_ACTIVE)) |
//! | `EIO` | reported by the next sync of the open file, as for Linux's page cache |
//! | the bytes after a crash | not guaranteed before a sync in either case; if the program dies, the service has the memory |
//!
//! If a posted write races with the first shared mapping, the program makes a call before it
//! continues ([`slot_protocol::is_mmap_active`](crate::slot_protocol::is_mmap_active)); the write
//! is executed by then.
//!
//! **Posted syncs.** A program that speculates acknowledges syncs itself
//! ([`slot_protocol::post_sync`](crate::slot_protocol::post_sync)). Every posted write has the number
//! of syncs acknowledged before it. Before the service executes a write or starts a call, it issues a
//! barrier for the syncs before. A sync is a call while shared mappings exist, as the service has to
//! copy their changes, and after a posted write has failed, so that it can report the error.

use crate::{DATA_BYTES, SLOTS};

/// Added to the reply of a write: later ones of the open file may be posted.
pub const MAY_POST: i64 = 1 << 32;
/// Maximum number of posted writes of a session; the next one is a call. The remaining slots are
/// for calls.
pub const POSTED_WRITE_MAX: u32 = 24;
/// The client rings the doorbell once per this many posted writes.
pub const POSTED_WRITES_PER_DOORBELL: u32 = 12;
/// A posted write must end before this offset, which is far below the maximum file size.
pub const POSTED_END_MAX: u64 = 1 << 40;
/// Bytes of a block.
const BLOCK: usize = 4096;
/// Blocks that all slots of a session can touch.
pub const RESERVATION_MAX: u64 = SLOTS as u64 * blocks_touched_max(DATA_BYTES);

/// Returns the maximum number of blocks that a write touches: those of its range, and the previous
/// last block.
pub const fn blocks_touched_max(len: usize) -> u64 {
    (len / BLOCK) as u64 + 3
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_write_has_its_blocks() {
        for (len, offset) in
            [(1, 0), (1, 4095), (2, 4095), (4096, 1), (8191, 4095), (DATA_BYTES, 4095)]
        {
            let touched = (offset + len).div_ceil(BLOCK) - offset / BLOCK + 1;
            assert!(touched as u64 <= blocks_touched_max(len), "{len} from {offset} on");
        }
        assert!(
            POSTED_WRITE_MAX < SLOTS as u32
                && POSTED_WRITE_MAX.is_multiple_of(POSTED_WRITES_PER_DOORBELL)
        );
    }
}
