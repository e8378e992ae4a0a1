//! The controller registers: generic host control [AHCI1.3 §3.1].
//!
//! Offsets are in bytes from the start of the controller's memory (BAR 5, "ABAR"). Section numbers
//! are those of AHCI 1.3.1.

/// CAP, host capabilities (section 3.1.1).
pub const CAP: usize = 0x00;
/// GHC, global host control (section 3.1.2).
pub const GHC: usize = 0x04;
/// IS, interrupt status: one bit per port, write 1 to clear (section 3.1.3).
pub const IS: usize = 0x08;
/// PI, ports implemented: one bit per port (section 3.1.4).
pub const PI: usize = 0x0c;
/// VS, version (section 3.1.5).
pub const VS: usize = 0x10;
/// CAP2, host capabilities extended (section 3.1.10).
pub const CAP2: usize = 0x24;
/// Offset of the registers of port 0 (section 3, register map).
pub const PORT_BASE: usize = 0x100;
/// Size of a port's registers in bytes.
pub const PORT_BYTES: usize = 0x80;

/// Returns the size in bytes of the memory of a controller with `ports` ports.
pub const fn bytes(ports: usize) -> usize {
    PORT_BASE + ports * PORT_BYTES
}

/// Returns the offset of register `register` of port `port`.
pub const fn port(port: usize, register: usize) -> usize {
    PORT_BASE + port * PORT_BYTES + register
}

/// Bits of GHC (section 3.1.2).
pub mod ghc {
    /// HR: resets the controller, which clears the bit when the reset is complete.
    pub const HR: u32 = 1 << 0;
    /// IE: interrupts enabled.
    pub const IE: u32 = 1 << 1;
    /// AE: AHCI enabled; reads as 1 if CAP.SAM is set.
    pub const AE: u32 = 1 << 31;
}

/// Bits of CAP (section 3.1.1).
pub mod cap {
    /// SCLO: command list override.
    pub const SCLO: u32 = 1 << 24;
    /// SAM: AHCI only, no legacy interface.
    pub const SAM: u32 = 1 << 18;
    /// SNCQ: native command queuing.
    pub const SNCQ: u32 = 1 << 30;
    /// S64A: 64-bit addressing.
    pub const S64A: u32 = 1 << 31;
    /// ISS, interface speed: generation 3, 6 Gb/s.
    pub const ISS_GEN3: u32 = 3 << 20;

    /// Returns NP, the number of ports: 1 to 32.
    pub const fn ports(cap: u32) -> u32 {
        (cap & 0x1f) + 1
    }

    /// Returns NCS, the number of command slots per port: 1 to 32.
    pub const fn slots(cap: u32) -> u32 {
        (cap >> 8 & 0x1f) + 1
    }

    /// Encodes NP and NCS for `ports` ports with `slots` slots each, both 1 to 32.
    pub const fn encode_counts(ports: u32, slots: u32) -> u32 {
        ((ports - 1) & 0x1f) | ((slots - 1) & 0x1f) << 8
    }
}

/// The value of VS for AHCI 1.3.1 (section 3.1.5).
pub const VERSION_1_3_1: u32 = 0x0001_0301;

const _: () = assert!(bytes(crate::PORTS_MAX) == 0x1100);
const _: () = assert!(
    cap::ports(cap::encode_counts(6, 32)) == 6 && cap::slots(cap::encode_counts(6, 32)) == 32
);
