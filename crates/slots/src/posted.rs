//! Writes that nobody waits for: what a program must know before it leaves one, so that none that matters differs from
//! one that was waited for.
//!
//! | what a program sees after `write(2)` | and why it does with one that is left |
//! |---|---|
//! | the bytes, by any call of any process | calls are begun after what was left before them |
//! | the order of writes | each has a ticket; the service does them in the order of these |
//! | `ENOSPC` | blocks are reserved before ([`RESERVED_BLOCKS`](crate::RESERVED_BLOCKS)); without, it is a call |
//! | `EBADF`, `EISDIR`, `EFBIG`, durable bytes with `O_SYNC` | the first write of an open file is a call, whose answer says whether later ones may be left |
//! | the bytes in a mapping that is shared | where there is one nothing is left ([`MMAP_ACTIVE`](crate::MMAP_ACTIVE)) |
//! | `EIO` | from the next sync of the open file, as Linux has it of its page cache |
//! | the bytes after a crash | neither has them before a sync; if the program dies, the service has the memory |
//!
//! Of one that races with the first shared mapping of a service, the program makes a call before it goes on
//! ([`hands::is_mmap_active`](crate::hands::is_mmap_active)): then it is done.

use crate::{DATA_BYTES, SLOTS};

/// Added to the answer of a write: later ones of the open file may be left.
pub const MAY_POST: i64 = 1 << 32;
/// Writes of a session that are left at most; the next is a call. Others find slots.
pub const POSTED_WRITE_MAX: u32 = 24;
/// Every so many the service is rung for.
pub const POSTED_WRITES_PER_DOORBELL: u32 = 12;
/// Writes that end before it may be left: far from the longest file.
pub const POSTED_END_MAX: u64 = 1 << 40;
/// Bytes of a block.
const BLOCK: usize = 4096;
/// Blocks that all slots of a session can take.
pub const RESERVATION_MAX: u64 = SLOTS as u64 * blocks_touched_max(DATA_BYTES);

/// Blocks that a write of so many bytes touches at most: those that it is in, and the one that the file ended in.
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
