//! Registers of a persistent memory region, PMR [NVMe1.4 §3.1.13 to §3.1.19]: capabilities,
//! control, status, elasticity buffer, sustained write throughput, and memory space.
//!
//! The size of a region is that of its base address register; no register of the controller has it.

// guarantee: B-98

/// Capabilities of a region, PMRCAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmrCap {
    /// Commands may name addresses in the region for data to the host, RDS (bit 3).
    pub read_data: bool,
    /// Commands may name addresses in the region for data from the host, WDS (bit 4).
    pub write_data: bool,
    /// Base address register of the region, 2 to 5, BIR (bits 7:5).
    pub bar: u8,
    /// The unit of `timeout` is minutes instead of 500 ms, PMRTU (bits 9:8).
    pub timeout_in_minutes: bool,
    /// A read of the region ensures that earlier stores are persistent, PMRWBM (bit 10).
    pub persists_by_read: bool,
    /// A read of PMRSTS ensures that earlier stores are persistent, PMRWBM (bit 11).
    pub persists_by_status: bool,
    /// Time that a host waits for the region after it was enabled or disabled, PMRTO (bits 23:16).
    pub timeout: u8,
    /// The host selects the addresses by which commands name the region, CMSS (bit 24).
    pub memory_space: bool,
}

impl PmrCap {
    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        (self.read_data as u32) << 3
            | (self.write_data as u32) << 4
            | ((self.bar & 7) as u32) << 5
            | (self.timeout_in_minutes as u32) << 8
            | (self.persists_by_read as u32) << 10
            | (self.persists_by_status as u32) << 11
            | (self.timeout as u32) << 16
            | (self.memory_space as u32) << 24
    }

    /// Decodes the register.
    pub const fn from_value(value: u32) -> PmrCap {
        PmrCap {
            read_data: value >> 3 & 1 != 0,
            write_data: value >> 4 & 1 != 0,
            bar: (value >> 5 & 7) as u8,
            timeout_in_minutes: value >> 8 & 3 == 1,
            persists_by_read: value >> 10 & 1 != 0,
            persists_by_status: value >> 11 & 1 != 0,
            timeout: (value >> 16) as u8,
            memory_space: value >> 24 & 1 != 0,
        }
    }
}

/// Control of a region, PMRCTL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmrControl {
    /// The region is enabled, EN (bit 0).
    pub enabled: bool,
}

impl PmrControl {
    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        self.enabled as u32
    }

    /// Decodes the register.
    pub const fn from_value(value: u32) -> PmrControl {
        PmrControl { enabled: value & 1 != 0 }
    }
}

/// Health of a region, PMRSTS.HSTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PmrHealth {
    /// The region operates normally.
    #[default]
    Normal,
    /// Restore error: the contents may be those of an earlier time.
    RestoreError,
    /// The region is read-only.
    ReadOnly,
    /// The region is unreliable: reads may return other data than was written.
    Unreliable,
    /// A reserved value.
    Reserved(u8),
}

impl PmrHealth {
    const fn to_bits(self) -> u32 {
        match self {
            PmrHealth::Normal => 0,
            PmrHealth::RestoreError => 1,
            PmrHealth::ReadOnly => 2,
            PmrHealth::Unreliable => 3,
            PmrHealth::Reserved(bits) => (bits & 7) as u32,
        }
    }

    const fn from_bits(bits: u32) -> PmrHealth {
        match bits & 7 {
            0 => PmrHealth::Normal,
            1 => PmrHealth::RestoreError,
            2 => PmrHealth::ReadOnly,
            3 => PmrHealth::Unreliable,
            other => PmrHealth::Reserved(other as u8),
        }
    }
}

/// Status of a region, PMRSTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmrStatus {
    /// Vendor-specific error since the last read or store, 0 for none, ERR (bits 7:0).
    pub error: u8,
    /// The region cannot be read or written, NRDY (bit 8).
    pub not_ready: bool,
    /// Health, HSTS (bits 11:9).
    pub health: PmrHealth,
    /// The base address of the memory space is invalid, CBAI (bit 12).
    pub invalid_base: bool,
}

impl PmrStatus {
    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        self.error as u32
            | (self.not_ready as u32) << 8
            | self.health.to_bits() << 9
            | (self.invalid_base as u32) << 12
    }

    /// Decodes the register; `None` for all ones, which a removed controller returns.
    pub const fn from_value(value: u32) -> Option<PmrStatus> {
        match value {
            u32::MAX => None,
            _ => Some(PmrStatus {
                error: value as u8,
                not_ready: value >> 8 & 1 != 0,
                health: PmrHealth::from_bits(value >> 9),
                invalid_base: value >> 12 & 1 != 0,
            }),
        }
    }
}

/// Unit of [`PmrBuffer`] and [`PmrThroughput`]: 1024 to this power, 0 to 3.
const UNIT_LOG1024_MAX: u8 = 3;
/// Width of the amounts of [`PmrBuffer`] and [`PmrThroughput`] in bits.
const AMOUNT_BITS: u32 = 24;

const fn to_bytes(unit_log1024: u8, amount: u32) -> Option<u64> {
    match unit_log1024 <= UNIT_LOG1024_MAX {
        true => Some((amount as u64) << (10 * unit_log1024)),
        false => None,
    }
}

/// The elasticity buffer of a region, PMREBS: stores are buffered in it before they reach the
/// region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmrBuffer {
    /// Unit of the size: 1024 bytes to this power, 0 to 3, PMRSZU (bits 3:0).
    pub unit_log1024: u8,
    /// Reads do not wait until buffered stores have reached the region, RBB (bit 4).
    pub reads_bypass: bool,
    /// Size in units, below 2²⁴; 0 if it is not reported, PMRWBZ (bits 31:8).
    pub units: u32,
}

impl PmrBuffer {
    /// Returns the size in bytes; `None` for a reserved unit.
    pub const fn bytes(self) -> Option<u64> {
        to_bytes(self.unit_log1024, self.units)
    }

    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        (self.unit_log1024 & 0xf) as u32 | (self.reads_bypass as u32) << 4 | self.units << 8
    }

    /// Decodes the register.
    pub const fn from_value(value: u32) -> PmrBuffer {
        PmrBuffer {
            unit_log1024: (value & 0xf) as u8,
            reads_bypass: value >> 4 & 1 != 0,
            units: value >> 8,
        }
    }
}

/// The sustained write throughput of a region, PMRSWTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmrThroughput {
    /// Unit: 1024 bytes per second to this power, 0 to 3, PMRSWTU (bits 3:0).
    pub unit_log1024: u8,
    /// Throughput in units, below 2²⁴; 0 if it is not reported, PMRSWTV (bits 31:8).
    pub units: u32,
}

impl PmrThroughput {
    /// Returns the register of a throughput in the smallest unit that can represent it, rounded
    /// down; the largest throughput if there is no such unit.
    pub fn from_bytes_per_sec(bytes_per_sec: u64) -> PmrThroughput {
        let in_unit = |unit_log1024: u8| {
            let units = u32::try_from(bytes_per_sec >> (10 * unit_log1024)).ok()?;
            (units < 1 << AMOUNT_BITS).then_some(PmrThroughput { unit_log1024, units })
        };
        let largest =
            PmrThroughput { unit_log1024: UNIT_LOG1024_MAX, units: (1 << AMOUNT_BITS) - 1 };
        (0..=UNIT_LOG1024_MAX).find_map(in_unit).unwrap_or(largest)
    }

    /// Returns the throughput in bytes per second; `None` for a reserved unit.
    pub const fn bytes_per_sec(self) -> Option<u64> {
        to_bytes(self.unit_log1024, self.units)
    }

    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        (self.unit_log1024 & 0xf) as u32 | self.units << 8
    }

    /// Decodes the register.
    pub const fn from_value(value: u32) -> PmrThroughput {
        PmrThroughput { unit_log1024: (value & 0xf) as u8, units: value >> 8 }
    }
}

/// The addresses by which commands name a region, PMRMSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmrSpace {
    /// Commands may name the region by these addresses, CMSE (bit 1).
    pub enabled: bool,
    /// Address of the first byte of the region, a multiple of 4096, CBA (bits 63:12).
    pub base: u64,
}

impl PmrSpace {
    /// Encodes the register.
    pub const fn to_value(self) -> u64 {
        (self.enabled as u64) << 1 | self.base & !0xfff
    }

    /// Decodes the register.
    pub const fn from_value(value: u64) -> PmrSpace {
        PmrSpace { enabled: value >> 1 & 1 != 0, base: value & !0xfff }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let none = PmrCap::default();
        for (cap, value) in [
            (PmrCap { read_data: true, ..none }, 1 << 3),
            (PmrCap { write_data: true, ..none }, 1 << 4),
            (PmrCap { bar: 5, ..none }, 5 << 5),
            (PmrCap { timeout_in_minutes: true, ..none }, 1 << 8),
            (PmrCap { persists_by_read: true, ..none }, 1 << 10),
            (PmrCap { persists_by_status: true, ..none }, 1 << 11),
            (PmrCap { timeout: 0xab, ..none }, 0xab << 16),
            (PmrCap { memory_space: true, ..none }, 1 << 24),
        ] {
            assert_eq!((cap.to_value(), PmrCap::from_value(value)), (value, cap));
        }
        assert_eq!(PmrControl { enabled: true }.to_value(), 1);
        assert_eq!(PmrControl::from_value(!1), PmrControl::default());
        let none = PmrStatus::default();
        for (status, value) in [
            (PmrStatus { error: 7, ..none }, 7),
            (PmrStatus { not_ready: true, ..none }, 1 << 8),
            (PmrStatus { health: PmrHealth::RestoreError, ..none }, 1 << 9),
            (PmrStatus { health: PmrHealth::ReadOnly, ..none }, 2 << 9),
            (PmrStatus { health: PmrHealth::Unreliable, ..none }, 3 << 9),
            (PmrStatus { health: PmrHealth::Reserved(6), ..none }, 6 << 9),
            (PmrStatus { invalid_base: true, ..none }, 1 << 12),
        ] {
            assert_eq!((status.to_value(), PmrStatus::from_value(value)), (value, Some(status)));
        }
        assert_eq!(PmrStatus::from_value(u32::MAX), None, "a removed controller");
        let buffer = PmrBuffer { unit_log1024: 2, reads_bypass: true, units: 3 };
        assert_eq!((buffer.to_value(), PmrBuffer::from_value(0x312)), (0x312, buffer));
        assert_eq!(buffer.bytes(), Some(3 << 20));
        assert_eq!(PmrBuffer { unit_log1024: 4, ..buffer }.bytes(), None);
        let space = PmrSpace { enabled: true, base: 0x1_2345_6000 };
        assert_eq!(space.to_value(), 0x1_2345_6002);
        assert_eq!(PmrSpace::from_value(0x1_2345_6ffe), space);
    }

    #[test]
    fn throughput_is_in_the_smallest_unit_that_fits() {
        for (bytes_per_sec, unit_log1024, units, told) in [
            (0, 0, 0, 0),
            ((1 << 24) - 1, 0, (1 << 24) - 1, (1 << 24) - 1),
            (1 << 24, 1, 1 << 14, 1 << 24),
            ((32 << 30) + 1, 2, 32 << 10, 32 << 30),
            (u64::MAX, 3, (1 << 24) - 1, ((1 << 24) - 1) << 30),
        ] {
            let register = PmrThroughput::from_bytes_per_sec(bytes_per_sec);
            assert_eq!(register, PmrThroughput { unit_log1024, units });
            assert_eq!(register.bytes_per_sec(), Some(told));
            assert_eq!(PmrThroughput::from_value(register.to_value()), register);
        }
        assert_eq!(PmrThroughput { unit_log1024: 4, units: 1 }.bytes_per_sec(), None);
    }
}
