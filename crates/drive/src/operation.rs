//! [`Op`]: what an owner asked the flash for and hears of once; and the [`Part`]s that reads are
//! split into, one per page and parallel unit.

/// Who asked for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The drive's translation layer, for itself.
    Ftl(ftl::OpId),
    /// The translation layer, for this command's data.
    User(ftl::OpId, u32),
    /// A host's command.
    Command(u32),
    /// The drive's patrol, which only wants to know whether it can be read.
    Patrol,
}

/// An operation has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpDone {
    pub(crate) owner: Owner,
    /// The operation, for [`FlashArray::addresses`]; valid until the next call.
    pub(crate) op: u32,
    pub(crate) what: What,
    /// What [`FlashArray::note_unit`] said of the operation.
    pub(crate) unit: u32,
    /// Bit `i` stands for the `i`-th address.
    pub(crate) failed: u64,
    /// The first failure.
    pub(crate) status: nvme::Status,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Read,
    Program,
    Erase,
}

impl From<What> for tracepoint::ArrayOp {
    fn from(what: What) -> tracepoint::ArrayOp {
        match what {
            What::Read => tracepoint::ArrayOp::Read,
            What::Program => tracepoint::ArrayOp::Program,
            What::Erase => tracepoint::ArrayOp::Erase,
        }
    }
}

/// An operation under way.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) owner: Owner,
    pub(crate) what: What,
    pub(crate) unit: u32,
    pub(crate) parts: u32,
    pub(crate) failed: u64,
    pub(crate) status: nvme::Status,
    /// Physical sectors, and their places in the owner's memory.
    pub(crate) addresses: Addresses,
}

/// Up to 64 addresses: few enough in place, so that the operations under way stay in the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) count: u8,
    few: [(u32, u32); FEW],
    many: Vec<(u32, u32)>,
}

const FEW: usize = 4;

impl Addresses {
    #[inline]
    pub(crate) fn set(&mut self, addresses: &[(u32, u32)]) {
        self.count = addresses.len() as u8;
        if let Some(few) = self.few.get_mut(..addresses.len()) {
            few.copy_from_slice(addresses);
        } else {
            self.many.clear();
            self.many.extend_from_slice(addresses);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> &[(u32, u32)] {
        self.few.get(..usize::from(self.count)).unwrap_or(&self.many)
    }
}

// Parts under way are looked at all the time: two to a cache line.
const _: () = assert!(size_of::<Part>() == 32);

/// The piece of an operation that one parallel unit executes at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) op: u32,
    pub(crate) what: What,
    pub(crate) chunk: u32,
    /// Page for reads, write unit for programs.
    pub(crate) page: u32,
    pub(crate) planes: u64,
    pub(crate) first: u8,
    pub(crate) count: u8,
    pub(crate) hints: nvme::Hints,
    /// Array operations that it still takes, the one under way included.
    pub(crate) rounds: u8,
    /// Repetitions of a read that have been, or are being, made.
    pub(crate) retries: u16,
    /// How often it has been suspended.
    pub(crate) suspended: u16,
}
