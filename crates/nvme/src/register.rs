//! Controller registers: where a controller memory buffer is and how large (NVMe sections 3.1.11
//! and 3.1.12).
//!
//! Only these two have a register here: everything else that a register says of a real controller
//! is part of the connection.

/// Offset of [`CmbLocation`], CMBLOC.
pub const CMBLOC: usize = 0x38;
/// Offset of [`CmbSize`], CMBSZ.
pub const CMBSZ: usize = 0x3c;

/// Where a controller memory buffer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmbLocation {
    /// The base address register whose range it is in, 0 or 2 to 5, BIR (bits 2:0).
    pub bar: u8,
    /// How far into that range, in units of the buffer's size, OFST (bits 31:12).
    pub offset_units: u32,
}

impl CmbLocation {
    /// The register's value.
    pub const fn to_value(self) -> u32 {
        (self.bar & 7) as u32 | self.offset_units << 12
    }

    /// From the register's value.
    pub const fn from_value(value: u32) -> CmbLocation {
        CmbLocation { bar: (value & 7) as u8, offset_units: value >> 12 }
    }
}

/// How large a controller memory buffer is, and what may be in it. All zero: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmbSize {
    /// Submission queues, SQS (bit 0).
    pub submission_queues: bool,
    /// Completion queues, CQS (bit 1).
    pub completion_queues: bool,
    /// PRP and SGL lists, LISTS (bit 2).
    pub lists: bool,
    /// Data that commands read, RDS (bit 3).
    pub read_data: bool,
    /// Data that commands write, WDS (bit 4).
    pub write_data: bool,
    /// The unit of size and offset: 4 KiB times 16 to this power, 0 to 6, SZU (bits 11:8).
    pub unit_log16: u8,
    /// Units, under 2²⁰, SZ (bits 31:12).
    pub units: u32,
}

/// Bits of the number of units.
const UNITS_BITS: u32 = 20;

impl CmbSize {
    /// The size of a buffer for everything, in the smallest unit that tells `bytes` exactly; `None`
    /// unless there is one.
    pub fn of(bytes: u64) -> Option<CmbSize> {
        (0..=6).find_map(|unit_log16: u8| {
            let unit = 4096u64 << (4 * unit_log16);
            let units = bytes / unit;
            let fits = bytes > 0 && bytes.is_multiple_of(unit) && units < 1 << UNITS_BITS;
            fits.then_some(CmbSize {
                submission_queues: true,
                completion_queues: true,
                lists: true,
                read_data: true,
                write_data: true,
                unit_log16,
                units: units as u32,
            })
        })
    }

    /// Bytes of one unit; `None` for a reserved unit.
    pub fn unit_bytes(&self) -> Option<u64> {
        (self.unit_log16 <= 6).then(|| 4096u64 << (4 * self.unit_log16))
    }

    /// Bytes of the buffer; `None` for a reserved unit.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.unit_bytes()? * u64::from(self.units))
    }

    /// The register's value.
    pub const fn to_value(self) -> u32 {
        self.submission_queues as u32
            | (self.completion_queues as u32) << 1
            | (self.lists as u32) << 2
            | (self.read_data as u32) << 3
            | (self.write_data as u32) << 4
            | ((self.unit_log16 & 0xf) as u32) << 8
            | self.units << (32 - UNITS_BITS)
    }

    /// From the register's value.
    pub const fn from_value(value: u32) -> CmbSize {
        CmbSize {
            submission_queues: value & 1 != 0,
            completion_queues: value & 2 != 0,
            lists: value & 4 != 0,
            read_data: value & 8 != 0,
            write_data: value & 16 != 0,
            unit_log16: (value >> 8 & 0xf) as u8,
            units: value >> (32 - UNITS_BITS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_exactly_or_not_at_all() {
        for (bytes, unit, units) in [
            (4096, 0, 1),
            (64 << 20, 0, 16384),
            ((1 << 32) - 4096, 0, (1 << 20) - 1),
            (1 << 32, 1, 1 << 16),
            (1 << 40, 3, 1 << 16),
        ] {
            let told = CmbSize::of(bytes).unwrap();
            assert_eq!((told.unit_log16, told.units), (unit, units));
            assert_eq!(told.bytes(), Some(bytes));
        }
        for bytes in [0, 1, 4095, 4097, (1 << 32) + 4096] {
            assert_eq!(CmbSize::of(bytes), None, "{bytes}");
        }
        assert_eq!(CmbSize { unit_log16: 7, units: 1, ..CmbSize::default() }.bytes(), None);
    }

    #[test]
    fn values_survive_the_register() {
        assert_eq!(CmbSize::of(64 << 20).unwrap().to_value(), 16384 << 12 | 0x1f);
        for value in [0, 0x1f, 0x0123_4607, u32::MAX] {
            assert_eq!(CmbSize::from_value(value).to_value(), value & !0xe0);
        }
        let at = CmbLocation { bar: 2, offset_units: 3 };
        assert_eq!((at.to_value(), CmbLocation::from_value(0x3002)), (0x3002, at));
    }
}
