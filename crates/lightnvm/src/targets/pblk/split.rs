//! [`Splits`]: reads that take several commands.
//!
//! A read of the translation layer is one command, unless its slots wrap around the end of their
//! ring (one metadata pointer cannot do that) or it is longer than the drive transfers at once.

use ftl::OpId;

#[derive(Clone, Copy, Debug)]
struct Split {
    op: OpId,
    /// What the caller knows it by beside.
    wait: u32,
    parts: u32,
    failed: u64,
}

/// The split reads that are outstanding.
#[derive(Debug, Default)]
pub(crate) struct Splits {
    all: Vec<Split>,
    free: Vec<u32>,
}

impl Splits {
    /// A read that takes `parts` commands.
    pub(crate) fn begin(&mut self, op: OpId, wait: u32, parts: u32) -> u32 {
        let split = Split { op, wait, parts, failed: 0 };
        match self.free.pop() {
            Some(id) => {
                self.all[id as usize] = split;
                id
            }
            None => {
                self.all.push(split);
                (self.all.len() - 1) as u32
            }
        }
    }

    /// A part has ended, with these failed addresses of the whole read. Returns the read with all
    /// of them if it was the last part.
    pub(crate) fn end(&mut self, id: u32, failed: u64) -> Option<(OpId, u32, u64)> {
        let split = &mut self.all[id as usize];
        split.failed |= failed;
        split.parts -= 1;
        if split.parts > 0 {
            return None;
        }
        self.free.push(id);
        Some((split.op, split.wait, split.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_ends_with_its_last_part() {
        let mut splits = Splits::default();
        let (a, b) = (splits.begin(OpId(7), 70, 3), splits.begin(OpId(8), 80, 1));
        assert_eq!(splits.end(a, 0b1), None);
        assert_eq!(splits.end(b, 0), Some((OpId(8), 80, 0)));
        assert_eq!(splits.begin(OpId(9), 0, 1), b, "used again");
        assert_eq!(splits.end(a, 0), None);
        assert_eq!(splits.end(a, 0b100), Some((OpId(7), 70, 0b101)));
    }
}
