//! [`NamespaceAction`]: a change of the namespaces of a drive; [`NamespaceEntry`]: a namespace.

use collections::{PutBytes, Reader, SliceWriter};

use crate::codec::PutField;

/// A change of the namespaces of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceAction {
    /// Creates a namespace, which is not attached.
    Create {
        /// Size in bytes; `None` for the whole unallocated capacity.
        bytes: Option<u64>,
    },
    /// Deletes a namespace; all of them for `None`.
    Delete(Option<u32>),
    /// Attaches a namespace.
    Attach(u32),
    /// Detaches a namespace.
    Detach(u32),
}

/// A namespace of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceEntry {
    /// Namespace identifier.
    pub nsid: u32,
    /// Whether it is attached.
    pub is_attached: bool,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Number of mapped blocks.
    pub used_blocks: u64,
    /// Capacity in bytes that is allocated to it.
    pub allocated_bytes: u64,
    /// Globally unique identifier.
    pub nguid: [u8; 16],
}

/// The identifier of all namespaces.
const ALL: u32 = u32::MAX;

impl NamespaceAction {
    /// Bytes in a message.
    pub(crate) const WIRE_BYTES: usize = 16;

    pub(crate) fn encode(self, w: &mut SliceWriter<'_>) {
        let (action, nsid) = match self {
            NamespaceAction::Create { .. } => (1, 0),
            NamespaceAction::Delete(nsid) => (2, nsid.unwrap_or(ALL)),
            NamespaceAction::Attach(nsid) => (3, nsid),
            NamespaceAction::Detach(nsid) => (4, nsid),
        };
        w.put_u32(action).put_u32(nsid);
        match self {
            NamespaceAction::Create { bytes } => w.put_option(bytes),
            _ => w.put_u64(0),
        };
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<NamespaceAction> {
        let (action, nsid, size) = (r.u32()?, r.u32()?, r.u64()?);
        match (action, nsid, size) {
            (1, 0, u64::MAX) => Some(NamespaceAction::Create { bytes: None }),
            (1, 0, bytes) => Some(NamespaceAction::Create { bytes: Some(bytes) }),
            (2, ALL, 0) => Some(NamespaceAction::Delete(None)),
            (2, nsid, 0) => Some(NamespaceAction::Delete(Some(nsid))),
            (3, nsid, 0) => Some(NamespaceAction::Attach(nsid)),
            (4, nsid, 0) => Some(NamespaceAction::Detach(nsid)),
            _ => None,
        }
    }
}

impl NamespaceEntry {
    /// Bytes in a message.
    pub(crate) const WIRE_BYTES: usize = 4 * 4 + 3 * 8 + 16;

    pub(crate) fn encode(&self, w: &mut SliceWriter<'_>) {
        w.put_u32(self.nsid).put_flag(self.is_attached).put_zeros(3);
        w.put_u32(self.block_bytes).put_zeros(4);
        w.put_u64(self.blocks).put_u64(self.used_blocks).put_u64(self.allocated_bytes);
        w.put(&self.nguid);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<NamespaceEntry> {
        let (nsid, is_attached) = (r.u32()?, r.flag()?);
        r.zeros::<3>()?;
        let block_bytes = r.u32()?;
        r.zeros::<4>()?;
        Some(NamespaceEntry {
            nsid,
            is_attached,
            block_bytes,
            blocks: r.u64()?,
            used_blocks: r.u64()?,
            allocated_bytes: r.u64()?,
            nguid: r.array()?,
        })
    }
}
