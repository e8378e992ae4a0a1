//! [`NandOp`]: an operation of the NAND array, with one completion for its owner; and [`PuOp`]: its
//! part on one parallel unit. Reads are split into one part per page and parallel unit.

use nvme::{PhysSector, PuId};
use serde::{Deserialize, Serialize};

use crate::personality::unit_changes::RequestTag;

/// The owner of an operation, which receives its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OpOwner {
    /// The FTL, for its own purposes.
    Ftl(ftl::OpToken),
    /// The FTL, for the data of this part of a command.
    FtlForCommand(ftl::OpToken, RequestTag),
    /// A host command.
    Command(u32),
    /// The media scrub, which only checks that the data is readable.
    Scrub,
    /// Sanitize, on this parallel unit.
    Sanitize(PuId),
}

/// The completion of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NandOpCompletion {
    pub(crate) owner: OpOwner,
    /// The operation, for [`NandArray::addresses`](crate::nand_array::NandArray::addresses); valid
    /// until the next call.
    pub(crate) op: u32,
    pub(crate) kind: NandOpKind,
    /// The unit set with [`NandArray::set_last_unit`](crate::nand_array::NandArray::set_last_unit).
    pub(crate) unit: u32,
    /// Failed addresses: bit `i` is set if the `i`-th address failed.
    pub(crate) failed: u64,
    /// Status of the first failure.
    pub(crate) status: nvme::Status,
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NandOpKind {
    Read,
    Program,
    Erase,
}

impl From<NandOpKind> for tracepoint::ArrayOp {
    fn from(what: NandOpKind) -> tracepoint::ArrayOp {
        match what {
            NandOpKind::Read => tracepoint::ArrayOp::Read,
            NandOpKind::Program => tracepoint::ArrayOp::Program,
            NandOpKind::Erase => tracepoint::ArrayOp::Erase,
        }
    }
}

/// An operation in flight.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NandOp {
    pub(crate) owner: OpOwner,
    pub(crate) kind: NandOpKind,
    pub(crate) unit: u32,
    pub(crate) pu_ops_left: u32,
    pub(crate) failed: u64,
    pub(crate) status: nvme::Status,
    /// Physical sectors, and their positions in the owner's memory.
    pub(crate) addresses: AddressList,
}

/// A physical sector, and its position in the memory of the operation's owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SectorAddress {
    /// Physical sector.
    pub(crate) phys: PhysSector,
    /// Position in sectors.
    pub(crate) position: u32,
}

/// Up to 64 addresses; a few are stored inline, so that the operations in flight fit the CPU cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AddressList {
    pub(crate) count: u8,
    inline: [SectorAddress; INLINE_ADDRESSES],
    heap: Vec<SectorAddress>,
}

const INLINE_ADDRESSES: usize = 4;

impl AddressList {
    #[inline]
    pub(crate) fn set(&mut self, addresses: impl ExactSizeIterator<Item = SectorAddress>) {
        self.count = addresses.len() as u8;
        if let Some(few) = self.inline.get_mut(..addresses.len()) {
            few.iter_mut().zip(addresses).for_each(|(slot, address)| *slot = address);
        } else {
            self.heap.clear();
            self.heap.extend(addresses);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> &[SectorAddress] {
        self.inline.get(..usize::from(self.count)).unwrap_or(&self.heap)
    }
}

// Parts in flight are accessed often: two fit in a cache line.
const _: () = assert!(size_of::<PuOp>() == 32);

/// A parallel-unit operation and its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PuOpId {
    pub(crate) id: u32,
    pub(crate) kind: NandOpKind,
}

/// The part of an operation that one parallel unit executes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PuOp {
    pub(crate) op: u32,
    pub(crate) kind: NandOpKind,
    pub(crate) chunk: u32,
    /// Page of a read, write unit of a program.
    pub(crate) page: u32,
    pub(crate) planes: u64,
    pub(crate) first: u8,
    pub(crate) count: u8,
    pub(crate) hints: nvme::VectorHints,
    /// Array operations remaining, the running one included.
    pub(crate) array_ops_left: u8,
    /// Read retries made or in progress.
    pub(crate) retries: u16,
    /// Number of suspensions.
    pub(crate) suspensions: u16,
}
