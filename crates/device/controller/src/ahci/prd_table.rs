//! The location of a command's data in host memory [AHCI1.3 §4.2.3.3]: the physical regions, read
//! and checked as they are used.

use ahci::port::is;
use ahci::{CommandTable, PrdtEntry};
use mem::{AddressSpace, Iova, SharedRegion};
use zerocopy::{FromZeros, IntoBytes};

/// The physical regions of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrdTable {
    /// Address of the command table.
    pub(super) command_table: Iova,
    /// Number of regions.
    pub(super) count: u16,
}

impl Default for PrdTable {
    /// Returns an empty table.
    fn default() -> PrdTable {
        PrdTable { command_table: Iova(0), count: 0 }
    }
}

impl PrdTable {
    /// Calls `f` for each segment of the first `bytes` bytes: region, offset in the region, offset
    /// in the data, and length.
    ///
    /// # Errors
    /// The bits of PxIS to set. The host may change its memory at any time, so an error may occur
    /// after segments were passed to `f`.
    ///
    /// * HBFS: the table or a region is not registered, or a region has an odd address or length.
    /// * IFS: the regions are shorter than the data. AHCI sets OFS for excess data and does not
    ///   define the result of the command; here the command fails.
    #[inline]
    pub(super) fn for_each(
        self,
        memory: &AddressSpace,
        bytes: u64,
        to_host: bool,
        mut f: impl FnMut(&SharedRegion, usize, u64, usize),
    ) -> Result<(), u32> {
        let length = u64::from(self.count) * PrdtEntry::BYTES as u64;
        let table = self.command_table.offset(CommandTable::PRDT as u64);
        let table = memory.find(table, length).map_err(|_| is::HBFS)?;
        let mut done = 0;
        for i in 0..usize::from(self.count) {
            if done == bytes {
                break;
            }
            let mut entry = PrdtEntry::new_zeroed();
            table.region.read(table.offset + i * PrdtEntry::BYTES, entry.as_mut_bytes());
            let n = u64::from(entry.bytes()).min(bytes - done);
            if !entry.is_legal() {
                return Err(is::HBFS);
            }
            let found = memory.find(Iova(entry.dba.get()), n).map_err(|_| is::HBFS)?;
            f(found.region, found.offset, done, n as usize);
            done += n;
        }
        match done == bytes {
            true => Ok(()),
            false if to_host => Err(is::OFS | is::IFS),
            false => Err(is::IFS),
        }
    }

    /// Copies bytes to the host.
    pub(super) fn write(self, memory: &AddressSpace, bytes: &[u8]) -> Result<(), u32> {
        self.for_each(memory, bytes.len() as u64, true, |region, offset, from, n| {
            region.write(offset, &bytes[from as usize..from as usize + n]);
        })
    }

    /// Copies bytes from the host.
    pub(super) fn read(self, memory: &AddressSpace, bytes: &mut [u8]) -> Result<(), u32> {
        self.for_each(memory, bytes.len() as u64, false, |region, offset, from, n| {
            region.read(offset, &mut bytes[from as usize..from as usize + n]);
        })
    }
}
