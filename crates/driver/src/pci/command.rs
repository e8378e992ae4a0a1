//! The command register of configuration space (PCI section 7.5.1.1.3).

/// Its offset.
pub(super) const COMMAND: u64 = 4;
/// Registers that are memory can be reached.
pub(super) const MEMORY_SPACE: u16 = 1 << 1;
/// The function reaches memory.
pub(super) const BUS_MASTER: u16 = 1 << 2;
/// The function's line of interrupts is masked.
pub(super) const INTX_DISABLED: u16 = 1 << 10;
