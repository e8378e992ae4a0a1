//! [`Op`]: what an owner asked the flash for and hears of once; and the [`Part`]s that reads are
//! split into, one per page and parallel unit.

/// Who asked for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpOwner {
    /// The drive's translation layer, for itself.
    Ftl(ftl::OpToken),
    /// The translation layer, for this command's data.
    FtlForCommand(ftl::OpToken, u32),
    /// A host's command.
    Command(u32),
    /// The drive's patrol, which only wants to know whether it can be read.
    Scrub,
}

/// An operation has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpCompletion {
    pub(crate) owner: OpOwner,
    /// The operation, for [`NandArray::addresses`]; valid until the next call.
    pub(crate) op: u32,
    pub(crate) kind: NandOpKind,
    /// What [`NandArray::set_last_unit`] said of the operation.
    pub(crate) unit: u32,
    /// Bit `i` stands for the `i`-th address.
    pub(crate) failed: u64,
    /// The first failure.
    pub(crate) status: nvme::Status,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// An operation under way.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) owner: OpOwner,
    pub(crate) kind: NandOpKind,
    pub(crate) unit: u32,
    pub(crate) pu_ops_left: u32,
    pub(crate) failed: u64,
    pub(crate) status: nvme::Status,
    /// Physical sectors, and their places in the owner's memory.
    pub(crate) addresses: AddressList,
}

/// Up to 64 addresses: few enough in place, so that the operations under way stay in the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressList {
    pub(crate) count: u8,
    inline: [(u32, u32); INLINE_ADDRESSES],
    heap: Vec<(u32, u32)>,
}

const INLINE_ADDRESSES: usize = 4;

impl AddressList {
    #[inline]
    pub(crate) fn set(&mut self, addresses: &[(u32, u32)]) {
        self.count = addresses.len() as u8;
        if let Some(few) = self.inline.get_mut(..addresses.len()) {
            few.copy_from_slice(addresses);
        } else {
            self.heap.clear();
            self.heap.extend_from_slice(addresses);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> &[(u32, u32)] {
        self.inline.get(..usize::from(self.count)).unwrap_or(&self.heap)
    }
}

// Parts under way are looked at all the time: two to a cache line.
const _: () = assert!(size_of::<PuOp>() == 32);

/// The piece of an operation that one parallel unit executes at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PuOp {
    pub(crate) op: u32,
    pub(crate) kind: NandOpKind,
    pub(crate) chunk: u32,
    /// Page for reads, write unit for programs.
    pub(crate) page: u32,
    pub(crate) planes: u64,
    pub(crate) first: u8,
    pub(crate) count: u8,
    pub(crate) hints: nvme::VectorHints,
    /// Array operations that it still takes, the one under way included.
    pub(crate) array_ops_left: u8,
    /// Repetitions of a read that have been, or are being, made.
    pub(crate) retries: u16,
    /// How often it has been suspended.
    pub(crate) suspensions: u16,
}
