//! Controller registers [NVMe1.4 §3.1]: capabilities, configuration, status, admin queues, the
//! controller memory buffer, and the persistent memory region.
//!
//! An emulated drive that hosts connect to directly has only the registers of the memory buffer and
//! of the region; the port contains all other properties of its controller. Registers of 64 bits
//! are accessed as two halves, the lower first, as [NVMe1.4 §3.1] allows.

/// Offset of [`Cap`], CAP, 64 bits.
pub const CAP: usize = 0x00;
/// Offset of the version, VS: major in bits 31:16, minor in bits 15:8.
pub const VS: usize = 0x08;
/// Offset of [`Cc`], CC.
pub const CC: usize = 0x14;
/// Offset of [`Csts`], CSTS.
pub const CSTS: usize = 0x1c;
/// Offset of the admin queues' sizes, AQA ([`admin_queue_sizes`]).
pub const AQA: usize = 0x24;
/// Offset of the admin submission queue's address, ASQ, 64 bits.
pub const ASQ: usize = 0x28;
/// Offset of the admin completion queue's address, ACQ, 64 bits.
pub const ACQ: usize = 0x30;
/// Offset of [`CmbLocation`], CMBLOC.
pub const CMBLOC: usize = 0x38;
/// Offset of [`CmbSize`], CMBSZ.
pub const CMBSZ: usize = 0x3c;
/// Offset of [`PmrCap`](crate::PmrCap), PMRCAP.
pub const PMRCAP: usize = 0xe00;
/// Offset of [`PmrControl`](crate::PmrControl), PMRCTL.
pub const PMRCTL: usize = 0xe04;
/// Offset of [`PmrStatus`](crate::PmrStatus), PMRSTS.
pub const PMRSTS: usize = 0xe08;
/// Offset of [`PmrBuffer`](crate::PmrBuffer), PMREBS.
pub const PMREBS: usize = 0xe0c;
/// Offset of [`PmrThroughput`](crate::PmrThroughput), PMRSWTP.
pub const PMRSWTP: usize = 0xe10;
/// Offset of [`PmrSpace`](crate::PmrSpace), PMRMSC, 64 bits.
pub const PMRMSC: usize = 0xe14;

/// Controller capabilities, CAP [NVMe1.4 §3.1.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Maximum depth of an I/O queue in entries, 2 to 65,536, MQES (bits 15:0, zero-based).
    pub max_entries: u32,
    /// Maximum time to become ready, or to stop, in units of 500 ms, TO (bits 31:24).
    pub timeout_500ms: u8,
    /// Weighted round robin with urgent priority class is supported, AMS (bit 17).
    pub weighted_arbitration: bool,
    /// Doorbells are `4 << stride` bytes apart, DSTRD (bits 35:32).
    pub doorbell_stride: u8,
    /// The NVM command set is supported, CSS (bit 37).
    pub nvm_commands: bool,
    /// Minimum memory page size is `4096 << page_min` bytes, MPSMIN (bits 51:48).
    pub page_min: u8,
    /// Maximum memory page size is `4096 << page_max` bytes, MPSMAX (bits 55:52).
    pub page_max: u8,
    /// The controller has a persistent memory region, PMRS (bit 56).
    pub persistent_region: bool,
}

impl Cap {
    /// Decodes the register.
    pub const fn from_value(value: u64) -> Cap {
        Cap {
            max_entries: (value & 0xffff) as u32 + 1,
            timeout_500ms: (value >> 24) as u8,
            weighted_arbitration: value >> 17 & 1 != 0,
            doorbell_stride: (value >> 32 & 0xf) as u8,
            nvm_commands: value >> 37 & 1 != 0,
            page_min: (value >> 48 & 0xf) as u8,
            page_max: (value >> 52 & 0xf) as u8,
            persistent_region: value >> 56 & 1 != 0,
        }
    }

    /// Encodes the register.
    pub const fn to_value(self) -> u64 {
        (self.max_entries.wrapping_sub(1) & 0xffff) as u64
            // Queues must be contiguous, CQR.
            | 1 << 16
            | (self.weighted_arbitration as u64) << 17
            | (self.timeout_500ms as u64) << 24
            | ((self.doorbell_stride & 0xf) as u64) << 32
            | (self.nvm_commands as u64) << 37
            | ((self.page_min & 0xf) as u64) << 48
            | ((self.page_max & 0xf) as u64) << 52
            | (self.persistent_region as u64) << 56
    }
}

/// Controller configuration, CC [NVMe1.4 §3.1.5]. Fixed settings: memory pages of 4096 bytes,
/// the NVM command set, and queue entries of 64 and 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cc {
    /// Enable, EN (bit 0).
    pub enabled: bool,
    /// Weighted round robin with urgent priority class instead of round robin, AMS (bit 11).
    pub weighted_arbitration: bool,
    /// Normal shutdown notification, SHN (bits 15:14 = 01b).
    pub shut_down: bool,
}

impl Cc {
    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        // IOSQES 2^6 and IOCQES 2^4 bytes.
        self.enabled as u32
            | (self.weighted_arbitration as u32) << 11
            | (self.shut_down as u32) << 14
            | 6 << 16
            | 4 << 20
    }

    /// Decodes the register.
    pub const fn from_value(value: u32) -> Cc {
        Cc {
            enabled: value & 1 != 0,
            weighted_arbitration: value >> 11 & 7 == 1,
            shut_down: value >> 14 & 3 == 1,
        }
    }
}

/// All fields of CC, as a controller reads them [NVMe1.4 §3.1.5].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CcSettings {
    /// Enable, EN (bit 0).
    pub enabled: bool,
    /// I/O command set, CSS (bits 6:4); 0 for the NVM command set.
    pub command_set: u8,
    /// Memory page size is `4096 << page` bytes, MPS (bits 10:7).
    pub page: u8,
    /// Arbitration mechanism, AMS (bits 13:11): 0 for round robin, 1 for weighted round robin.
    pub arbitration: u8,
    /// Shutdown notification, SHN (bits 15:14).
    pub shutdown: ShutdownRequest,
    /// Size of submission queue entries is 2 to this power, IOSQES (bits 19:16).
    pub sq_entry_log2: u8,
    /// Size of completion queue entries is 2 to this power, IOCQES (bits 23:20).
    pub cq_entry_log2: u8,
}

/// A shutdown notification, CC.SHN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShutdownRequest {
    /// No notification, also for the reserved value.
    #[default]
    None,
    /// Normal shutdown: buffered data is written to the media.
    Normal,
    /// Abrupt shutdown: no time is taken.
    Abrupt,
}

impl CcSettings {
    /// Decodes the register.
    pub const fn from_value(value: u32) -> CcSettings {
        CcSettings {
            enabled: value & 1 != 0,
            command_set: (value >> 4 & 7) as u8,
            page: (value >> 7 & 0xf) as u8,
            arbitration: (value >> 11 & 7) as u8,
            shutdown: match value >> 14 & 3 {
                1 => ShutdownRequest::Normal,
                2 => ShutdownRequest::Abrupt,
                _ => ShutdownRequest::None,
            },
            sq_entry_log2: (value >> 16 & 0xf) as u8,
            cq_entry_log2: (value >> 20 & 0xf) as u8,
        }
    }
}

/// Controller status, CSTS [NVMe1.4 §3.1.6].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Csts {
    /// Ready, RDY (bit 0).
    pub ready: bool,
    /// Fatal status: the controller must be reset, CFS (bit 1).
    pub fatal: bool,
    /// Shutdown in progress, SHST (bits 3:2 = 01b).
    pub is_shutting_down: bool,
    /// Shutdown complete, SHST (bits 3:2 = 10b).
    pub shut_down: bool,
}

impl Csts {
    /// Decodes the register; `None` for all ones, which a removed controller returns.
    pub const fn from_value(value: u32) -> Option<Csts> {
        match value {
            u32::MAX => None,
            _ => Some(Csts {
                ready: value & 1 != 0,
                fatal: value & 2 != 0,
                is_shutting_down: value >> 2 & 3 == 1,
                shut_down: value >> 2 & 3 == 2,
            }),
        }
    }

    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        self.ready as u32
            | (self.fatal as u32) << 1
            | (self.is_shutting_down as u32) << 2
            | (self.shut_down as u32) << 3
    }
}

/// Returns the value of [`AQA`] for admin queues of `entries` entries, 2 to 4096 [NVMe1.4 §3.1.8].
pub const fn admin_queue_sizes(entries: u16) -> u32 {
    let size = entries.saturating_sub(1) as u32 & 0xfff;
    size | size << 16
}

/// Returns the numbers of entries of the admin submission and completion queues from [`AQA`], 1 to
/// 4096 each. Queues have at least 2.
pub const fn admin_queue_entries(value: u32) -> (u16, u16) {
    ((value & 0xfff) as u16 + 1, (value >> 16 & 0xfff) as u16 + 1)
}

/// The location of a controller memory buffer, CMBLOC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmbLocation {
    /// Base address register that contains it, 0 or 2 to 5, BIR (bits 2:0).
    pub bar: u8,
    /// Offset in that register's range, in units of the size unit, OFST (bits 31:12).
    pub offset_units: u32,
}

impl CmbLocation {
    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        (self.bar & 7) as u32 | self.offset_units << 12
    }

    /// Decodes the register.
    pub const fn from_value(value: u32) -> CmbLocation {
        CmbLocation { bar: (value & 7) as u8, offset_units: value >> 12 }
    }
}

/// The size and supported uses of a controller memory buffer, CMBSZ. All zero: there is no buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmbSize {
    /// Submission queues are supported, SQS (bit 0).
    pub submission_queues: bool,
    /// Completion queues are supported, CQS (bit 1).
    pub completion_queues: bool,
    /// PRP and SGL lists are supported, LISTS (bit 2).
    pub lists: bool,
    /// Data of commands to the host is supported, RDS (bit 3).
    pub read_data: bool,
    /// Data of commands from the host is supported, WDS (bit 4).
    pub write_data: bool,
    /// Unit of size and offset: 4 KiB times 16 to this power, 0 to 6, SZU (bits 11:8).
    pub unit_log16: u8,
    /// Size in units, below 2²⁰, SZ (bits 31:12).
    pub units: u32,
}

/// Width of the size field in bits.
const UNITS_BITS: u32 = 20;

impl CmbSize {
    /// Returns the registers of a buffer that supports all uses, in the smallest unit that
    /// represents `bytes` exactly; `None` if there is no such unit.
    pub fn from_size_bytes(bytes: u64) -> Option<CmbSize> {
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

    /// Returns the size unit in bytes; `None` for a reserved unit.
    pub fn unit_bytes(&self) -> Option<u64> {
        (self.unit_log16 <= 6).then(|| 4096u64 << (4 * self.unit_log16))
    }

    /// Returns the size of the buffer in bytes; `None` for a reserved unit.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.unit_bytes()? * u64::from(self.units))
    }

    /// Encodes the register.
    pub const fn to_value(self) -> u32 {
        self.submission_queues as u32
            | (self.completion_queues as u32) << 1
            | (self.lists as u32) << 2
            | (self.read_data as u32) << 3
            | (self.write_data as u32) << 4
            | ((self.unit_log16 & 0xf) as u32) << 8
            | self.units << (32 - UNITS_BITS)
    }

    /// Decodes the register.
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
    fn registers_survive_the_wire() {
        // The value of QEMU's controller: 2048 entries, 7.5 s, NVM commands, pages up to 64 KiB.
        let capabilities = Cap::from_value(0x0040_0020_0f01_07ff);
        assert_eq!(capabilities.max_entries, 2048);
        assert_eq!((capabilities.timeout_500ms, capabilities.doorbell_stride), (15, 0));
        assert_eq!((capabilities.page_min, capabilities.page_max), (0, 4));
        assert!(capabilities.nvm_commands);
        assert_eq!(capabilities.to_value(), 0x0040_0020_0f01_07ff);
        let other = Cap { max_entries: 1 << 16, doorbell_stride: 4, ..capabilities };
        assert_eq!(Cap::from_value(other.to_value()), other);
        let region = Cap { persistent_region: true, ..capabilities };
        assert_eq!(region.to_value(), 0x0140_0020_0f01_07ff);
        assert_eq!(Cap::from_value(region.to_value()), region);

        let run = Cc { enabled: true, ..Cc::default() };
        assert_eq!(run.to_value(), 0x0046_0001);
        assert_eq!(Cc { shut_down: true, ..run }.to_value(), 0x0046_4001);
        assert!(Cc::from_value(0x0046_4001).shut_down);
        let weighted = Cc { weighted_arbitration: true, ..run };
        assert_eq!((weighted.to_value(), Cc::from_value(0x0046_0801)), (0x0046_0801, weighted));
        assert!(!Cc::from_value(0x0046_8001).shut_down, "abrupt");

        assert_eq!(Csts::from_value(u32::MAX), None);
        for value in [0, 1, 2, 3, 4, 5, 8, 9] {
            assert_eq!(Csts::from_value(value).unwrap().to_value(), value);
        }
        let under_way = Csts::from_value(4).unwrap();
        assert!(!under_way.shut_down && under_way.is_shutting_down);
        assert_eq!(admin_queue_sizes(64), 63 << 16 | 63);
        assert_eq!(admin_queue_entries(63 << 16 | 31), (32, 64));
        assert_eq!(admin_queue_entries(0xf000_f000), (1, 1), "reserved bits");
    }

    #[test]
    fn every_field_of_the_configuration_is_decoded() {
        let all = CcSettings::from_value(0x0046_0001);
        let plain = CcSettings {
            enabled: true,
            sq_entry_log2: 6,
            cq_entry_log2: 4,
            ..CcSettings::default()
        };
        assert_eq!(all, plain);
        for (value, shutdown) in [
            (0, ShutdownRequest::None),
            (1, ShutdownRequest::Normal),
            (2, ShutdownRequest::Abrupt),
            (3, ShutdownRequest::None),
        ] {
            assert_eq!(CcSettings::from_value(value << 14).shutdown, shutdown);
        }
        let odd = CcSettings::from_value(5 << 4 | 9 << 7 | 1 << 11);
        assert_eq!((odd.command_set, odd.page, odd.arbitration), (5, 9, 1));
        let weighted = Cap { weighted_arbitration: true, ..Cap::from_value(0x0040_0020_0f01_07ff) };
        assert_eq!(weighted.to_value(), 0x0040_0020_0f03_07ff);
    }

    #[test]
    fn sizes_are_told_exactly_or_not_at_all() {
        for (bytes, unit, units) in [
            (4096, 0, 1),
            (64 << 20, 0, 16384),
            ((1 << 32) - 4096, 0, (1 << 20) - 1),
            (1 << 32, 1, 1 << 16),
            (1 << 40, 3, 1 << 16),
        ] {
            let told = CmbSize::from_size_bytes(bytes).unwrap();
            assert_eq!((told.unit_log16, told.units), (unit, units));
            assert_eq!(told.bytes(), Some(bytes));
        }
        for bytes in [0, 1, 4095, 4097, (1 << 32) + 4096] {
            assert_eq!(CmbSize::from_size_bytes(bytes), None, "{bytes}");
        }
        assert_eq!(CmbSize { unit_log16: 7, units: 1, ..CmbSize::default() }.bytes(), None);
    }

    #[test]
    fn values_survive_the_register() {
        assert_eq!(CmbSize::from_size_bytes(64 << 20).unwrap().to_value(), 16384 << 12 | 0x1f);
        for value in [0, 0x1f, 0x0123_4607, u32::MAX] {
            assert_eq!(CmbSize::from_value(value).to_value(), value & !0xe0);
        }
        let at = CmbLocation { bar: 2, offset_units: 3 };
        assert_eq!((at.to_value(), CmbLocation::from_value(0x3002)), (0x3002, at));
    }
}
