//! Frame information structures (FIS): the packets of the SATA link [SATA3.2 §10.5].

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ata::{self, command};

/// Offsets in the area where the controller stores received FISes, at PxFB [AHCI1.3 §4.2.1].
pub mod received {
    /// PSFIS: PIO Setup.
    pub const PIO_SETUP: usize = 0x20;
    /// RFIS: Register Device to Host.
    pub const REGISTER: usize = 0x40;
    /// SDBFIS: Set Device Bits.
    pub const SET_DEVICE_BITS: usize = 0x58;
    /// Size and alignment of the area in bytes.
    pub const BYTES: usize = 256;
}

/// Register Host to Device FIS: a command [SATA3.2 §10.5.5].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RegisterH2d {
    /// Byte 0: FIS type, 27h.
    pub kind: u8,
    /// Byte 1: C, this is a command, in bit 7; port multiplier port in 3:0.
    pub flags: u8,
    /// Byte 2: the command.
    pub command: u8,
    /// Byte 3: features 7:0; of a queued command, sector count 7:0.
    pub features_low: u8,
    /// Bytes 4 to 6: LBA 23:0.
    pub lba_low: [u8; 3],
    /// Byte 7: device; bit 6 is set for an LBA, bit 7 is FUA of a queued write.
    pub device: u8,
    /// Bytes 8 to 10: LBA 47:24.
    pub lba_high: [u8; 3],
    /// Byte 11: features 15:8; of a queued command, sector count 15:8.
    pub features_high: u8,
    /// Bytes 12 and 13: count; of a queued command, the tag in 7:3.
    pub count: U16,
    /// Byte 14: isochronous command completion.
    pub icc: u8,
    /// Byte 15: control.
    pub control: u8,
    /// Bytes 16 to 19: auxiliary.
    pub auxiliary: U32,
}

impl RegisterH2d {
    /// Bytes of the FIS.
    pub const BYTES: usize = 20;
    /// FIS type.
    pub const KIND: u8 = 0x27;
    /// C, in [`flags`](RegisterH2d::flags): the FIS is a command, not a write to device control.
    pub const COMMAND: u8 = 0x80;
    /// LBA mode, in [`device`](RegisterH2d::device).
    const LBA_MODE: u8 = 0x40;
    /// Force unit access of a queued write, in [`device`](RegisterH2d::device).
    const FUA: u8 = 0x80;

    fn for_command(command: u8) -> RegisterH2d {
        RegisterH2d {
            kind: RegisterH2d::KIND,
            flags: RegisterH2d::COMMAND,
            command,
            ..RegisterH2d::default()
        }
    }

    fn with_lba(mut self, lba: u64) -> RegisterH2d {
        let [a, b, c, d, e, f, ..] = lba.to_le_bytes();
        (self.lba_low, self.lba_high) = ([a, b, c], [d, e, f]);
        self.device |= RegisterH2d::LBA_MODE;
        self
    }

    fn queued(command: u8, lba: u64, sectors: u32, tag: u8) -> RegisterH2d {
        // A count of 0 means 65,536.
        let [low, high, ..] = sectors.to_le_bytes();
        let fis = RegisterH2d::for_command(command).with_lba(lba);
        let count = (u16::from(tag) << 3).into();
        RegisterH2d { features_low: low, features_high: high, count, ..fis }
    }

    /// Returns READ FPDMA QUEUED of 1 to 65,536 sectors with `tag`.
    pub fn read_queued(lba: u64, sectors: u32, tag: u8) -> RegisterH2d {
        RegisterH2d::queued(command::READ_FPDMA_QUEUED, lba, sectors, tag)
    }

    /// Returns WRITE FPDMA QUEUED of 1 to 65,536 sectors with `tag`.
    pub fn write_queued(lba: u64, sectors: u32, tag: u8, fua: bool) -> RegisterH2d {
        let fis = RegisterH2d::queued(command::WRITE_FPDMA_QUEUED, lba, sectors, tag);
        let fua = if fua { RegisterH2d::FUA } else { 0 };
        RegisterH2d { device: fis.device | fua, ..fis }
    }

    /// Returns FLUSH CACHE EXT.
    pub fn flush() -> RegisterH2d {
        RegisterH2d::for_command(command::FLUSH_CACHE_EXT).with_lba(0)
    }

    /// Returns DATA SET MANAGEMENT with TRIM, for `blocks` blocks of 512 bytes of ranges.
    pub fn trim(blocks: u16) -> RegisterH2d {
        let fis = RegisterH2d::for_command(command::DATA_SET_MANAGEMENT).with_lba(0);
        RegisterH2d { features_low: ata::FEATURE_TRIM, count: blocks.into(), ..fis }
    }

    /// Returns IDENTIFY DEVICE, for 512 bytes of data.
    pub fn identify() -> RegisterH2d {
        RegisterH2d::for_command(command::IDENTIFY_DEVICE)
    }

    /// Returns READ LOG EXT of one 512-byte page of log `log`.
    pub fn read_log(log: u8) -> RegisterH2d {
        let fis = RegisterH2d::for_command(command::READ_LOG_EXT).with_lba(u64::from(log));
        RegisterH2d { count: 1.into(), ..fis }
    }

    /// Returns the LBA.
    pub fn lba(&self) -> u64 {
        let ([a, b, c], [d, e, f]) = (self.lba_low, self.lba_high);
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Returns the sectors of a queued command: 1 to 65,536.
    pub fn queued_sectors(&self) -> u32 {
        match u16::from_le_bytes([self.features_low, self.features_high]) {
            0 => 65_536,
            n => n.into(),
        }
    }

    /// Returns the tag of a queued command: 0 to 31.
    pub fn queued_tag(&self) -> u8 {
        (self.count.get() >> 3 & 0x1f) as u8
    }

    /// Whether a queued write has FUA set.
    pub fn fua(&self) -> bool {
        self.device & RegisterH2d::FUA != 0
    }
}

/// Register Device to Host FIS: the result of a non-queued command [SATA3.2 §10.5.6].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RegisterD2h {
    /// Byte 0: FIS type, 34h.
    pub kind: u8,
    /// Byte 1: I, interrupt, in bit 6.
    pub flags: u8,
    /// Byte 2: status.
    pub status: u8,
    /// Byte 3: error.
    pub error: u8,
    /// Bytes 4 to 6: LBA 23:0.
    pub lba_low: [u8; 3],
    /// Byte 7: device.
    pub device: u8,
    /// Bytes 8 to 10: LBA 47:24.
    pub lba_high: [u8; 3],
    /// Byte 11, reserved.
    pub reserved: u8,
    /// Bytes 12 and 13: count.
    pub count: U16,
    /// Bytes 14 to 19, reserved.
    pub reserved_2: [u8; 6],
}

impl RegisterD2h {
    /// Bytes of the FIS.
    pub const BYTES: usize = 20;

    /// Returns a FIS that completes a command with `status` and `error`, and interrupts the host.
    pub fn new(status: u8, error: u8) -> RegisterD2h {
        RegisterD2h { kind: 0x34, flags: INTERRUPT, status, error, ..RegisterD2h::default() }
    }
}

/// Set Device Bits FIS: the completion of queued commands [SATA3.2 §10.5.7].
///
/// The controller clears the bits of [`sactive`](SetDeviceBits::sactive) in PxSACT, and copies the
/// status (without BSY and DRQ) and the error to PxTFD. If I is set, it sets PxIS.SDBS. If the
/// status has ERR, it sets PxIS.TFES and stops [AHCI1.3 §5.3, §6.2.2].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct SetDeviceBits {
    /// Byte 0: FIS type, A1h.
    pub kind: u8,
    /// Byte 1: I, interrupt, in bit 6.
    pub flags: u8,
    /// Byte 2: status bits 6:4 and 2:0.
    pub status: u8,
    /// Byte 3: error.
    pub error: u8,
    /// Bytes 4 to 7: tags of the completed commands.
    pub sactive: U32,
}

impl SetDeviceBits {
    /// Bytes of the FIS.
    pub const BYTES: usize = 8;

    /// Returns a FIS that completes the commands of `sactive`.
    pub fn new(status: u8, error: u8, sactive: u32) -> SetDeviceBits {
        // BSY and DRQ are not part of the FIS.
        let status = status & 0x77;
        SetDeviceBits { kind: 0xa1, flags: INTERRUPT, status, error, sactive: sactive.into() }
    }
}

/// PIO Setup FIS: a block of data follows [SATA3.2 §10.5.11].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct PioSetup {
    /// Byte 0: FIS type, 5Fh.
    pub kind: u8,
    /// Byte 1: I, interrupt, in bit 6; D, to the host, in bit 5.
    pub flags: u8,
    /// Byte 2: status before the data.
    pub status: u8,
    /// Byte 3: error.
    pub error: u8,
    /// Bytes 4 to 14: LBA, device, count.
    pub registers: [u8; 11],
    /// Byte 15: E_Status, status after the data.
    pub end_status: u8,
    /// Bytes 16 and 17: transfer count in bytes.
    pub bytes: U16,
    /// Bytes 18 and 19, reserved.
    pub reserved: U16,
}

impl PioSetup {
    /// Bytes of the FIS.
    pub const BYTES: usize = 20;

    /// Returns a FIS for `bytes` bytes to the host, after which the command is complete.
    pub fn to_host(bytes: u16) -> PioSetup {
        PioSetup {
            kind: 0x5f,
            flags: INTERRUPT | 0x20,
            status: ata::status::DRDY | ata::status::DRQ,
            end_status: ata::status::DRDY,
            bytes: bytes.into(),
            ..PioSetup::default()
        }
    }
}

/// I, in byte 1 of a FIS to the host.
const INTERRUPT: u8 = 0x40;

const _: () = assert!(size_of::<RegisterH2d>() == RegisterH2d::BYTES);
const _: () = assert!(size_of::<RegisterD2h>() == RegisterD2h::BYTES);
const _: () = assert!(size_of::<SetDeviceBits>() == SetDeviceBits::BYTES);
const _: () = assert!(size_of::<PioSetup>() == PioSetup::BYTES);
const _: () = assert!(received::PIO_SETUP + PioSetup::BYTES <= received::REGISTER);
const _: () = assert!(received::REGISTER + RegisterD2h::BYTES <= received::SET_DEVICE_BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_read_is_laid_out_as_the_command_set_says() {
        let fis = RegisterH2d::read_queued(0x0605_0403_0201, 0x0807, 31);
        let expected =
            [0x27, 0x80, 0x60, 7, 1, 2, 3, 0x40, 4, 5, 6, 8, 31 << 3, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(fis.as_bytes(), expected);
        assert_eq!(
            (fis.lba(), fis.queued_sectors(), fis.queued_tag()),
            (0x0605_0403_0201, 0x807, 31)
        );
        assert_eq!(RegisterH2d::read_queued(0, 65_536, 0).queued_sectors(), 65_536);
    }

    #[test]
    fn the_other_commands() {
        let write = RegisterH2d::write_queued(9, 1, 2, true);
        assert_eq!((write.command, write.device, write.fua()), (0x61, 0xc0, true));
        assert!(!RegisterH2d::write_queued(9, 1, 2, false).fua());
        assert_eq!(RegisterH2d::flush().command, 0xea);
        let trim = RegisterH2d::trim(8);
        assert_eq!((trim.command, trim.features_low, trim.count.get()), (0x06, 1, 8));
        assert_eq!(RegisterH2d::identify().command, 0xec);
        let log = RegisterH2d::read_log(0x10);
        assert_eq!((log.command, log.lba_low[0], log.count.get()), (0x2f, 0x10, 1));
    }

    #[test]
    fn what_comes_back() {
        assert_eq!(
            SetDeviceBits::new(0xc1, 0x40, 1 << 31).as_bytes(),
            [0xa1, 0x40, 0x41, 0x40, 0, 0, 0, 0x80],
            "BSY does not travel"
        );
        assert_eq!(RegisterD2h::new(0x50, 0).as_bytes()[..4], [0x34, 0x40, 0x50, 0]);
        let setup = PioSetup::to_host(512);
        assert_eq!(setup.as_bytes()[..4], [0x5f, 0x60, 0x48, 0]);
        assert_eq!(setup.as_bytes()[15..18], [0x40, 0, 2]);
    }
}
