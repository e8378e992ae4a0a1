//! The command register of configuration space (PCI section 7.5.1.1.3).

/// Offset of the register.
pub(super) const COMMAND: u64 = 4;
/// Memory-mapped registers are enabled.
pub(super) const MEMORY_SPACE: u16 = 1 << 1;
/// The function may access memory.
pub(super) const BUS_MASTER: u16 = 1 << 2;
/// The function's interrupt line is disabled.
pub(super) const INTX_DISABLED: u16 = 1 << 10;
