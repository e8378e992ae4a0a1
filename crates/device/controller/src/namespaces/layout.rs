//! [`NamespaceLayout`]: the namespaces that a drive has when it is new; [`NamespaceInfo`]: a namespace
//! as it is.

use std::fmt;

/// Maximum number of namespaces of a drive.
pub const NAMESPACES_MAX: usize = 32;

/// Sizes of the namespaces that a drive has when it is new, in the order of their identifiers, which
/// start at 1. Only a drive that manages its own flash can have several.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NamespaceLayout {
    count: u8,
    /// Sizes in bytes; [`REST`] for the capacity that is left.
    sizes: [u64; NAMESPACES_MAX],
}

/// The size of the namespace that has the capacity that is left.
const REST: u64 = u64::MAX;

/// The reason for which sizes of namespaces are no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceLayoutError {
    /// More than 32 namespaces.
    #[error("{count} namespaces, but a drive has up to {NAMESPACES_MAX}")]
    Count {
        /// Their number.
        count: usize,
    },
    /// A namespace without blocks.
    #[error("namespace {nsid} has no bytes")]
    Empty {
        /// The namespace.
        nsid: usize,
    },
    /// Two namespaces that have the capacity that is left.
    #[error("namespace {nsid} is the second one that has the rest of the capacity")]
    TwoRests {
        /// The second one.
        nsid: usize,
    },
}

impl NamespaceLayout {
    /// Returns a layout of namespaces of these sizes in bytes; `None` for the capacity that the
    /// others leave. Without sizes a drive has one namespace of its whole capacity.
    ///
    /// # Errors
    /// [`NamespaceLayoutError`].
    pub fn of_sizes(sizes: &[Option<u64>]) -> Result<NamespaceLayout, NamespaceLayoutError> {
        let mut layout = NamespaceLayout::default();
        if sizes.len() > NAMESPACES_MAX {
            return Err(NamespaceLayoutError::Count { count: sizes.len() });
        }
        layout.count = sizes.len() as u8;
        let mut has_rest = false;
        for ((nsid, size), to) in (1..).zip(sizes).zip(&mut layout.sizes) {
            match size {
                Some(0) => return Err(NamespaceLayoutError::Empty { nsid }),
                None if has_rest => return Err(NamespaceLayoutError::TwoRests { nsid }),
                _ => {}
            }
            has_rest |= size.is_none();
            *to = size.unwrap_or(REST);
        }
        Ok(layout)
    }

    /// Whether the drive has one namespace of its whole capacity.
    pub fn is_default(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of namespaces.
    pub fn count(&self) -> u32 {
        u32::from(self.count).max(1)
    }

    /// Returns the sizes in bytes; `None` for the capacity that is left.
    pub fn sizes(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        let sizes = self.sizes.iter().take(self.count.into());
        sizes.map(|size| (*size != REST).then_some(*size))
    }
}

impl fmt::Debug for NamespaceLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.sizes()).finish()
    }
}

/// A namespace of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Number of mapped blocks; of a drive without its own FTL, all of them.
    pub used_blocks: u64,
    /// Capacity in bytes that is allocated to it.
    pub allocated_bytes: u64,
    /// Whether it is attached to the controller, so that commands can address it.
    pub is_attached: bool,
    /// Globally unique identifier.
    pub nguid: [u8; 16],
}
