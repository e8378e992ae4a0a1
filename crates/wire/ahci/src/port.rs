//! The registers of a port [AHCI1.3 §3.3]. Offsets are in bytes from the start of the port's
//! registers ([`crate::hba::port`]). Section numbers are those of AHCI 1.3.1.

/// PxCLB and PxCLBU: address of the command list, 1 KB aligned (sections 3.3.1, 3.3.2).
pub const CLB: usize = 0x00;
/// Upper half of [`CLB`].
pub const CLBU: usize = 0x04;
/// PxFB and PxFBU: address of the received FIS area, 256-byte aligned (sections 3.3.3, 3.3.4).
pub const FB: usize = 0x08;
/// Upper half of [`FB`].
pub const FBU: usize = 0x0c;
/// PxIS: interrupt status, write 1 to clear (section 3.3.5).
pub const IS: usize = 0x10;
/// PxIE: interrupt enable, the bits of [`IS`] (section 3.3.6).
pub const IE: usize = 0x14;
/// PxCMD: command and status (section 3.3.7).
pub const CMD: usize = 0x18;
/// PxTFD: task file data, the drive's status in bits 7:0, its error in bits 15:8 (section 3.3.8).
pub const TFD: usize = 0x20;
/// PxSIG: signature of the drive (section 3.3.9).
pub const SIG: usize = 0x24;
/// PxSSTS: SATA status (section 3.3.10).
pub const SSTS: usize = 0x28;
/// PxSCTL: SATA control (section 3.3.11).
pub const SCTL: usize = 0x2c;
/// PxSERR: SATA error, write 1 to clear (section 3.3.12).
pub const SERR: usize = 0x30;
/// PxSACT: tags of outstanding queued commands. The host sets the bits; Set Device Bits FISes clear
/// them, and so does a change of PxCMD.ST from 1 to 0 (section 3.3.13).
pub const SACT: usize = 0x34;
/// PxCI: issued command slots. The host sets the bits. They are cleared when the drive accepts a
/// queued command or completes another one, and when PxCMD.ST changes from 1 to 0 (section 3.3.14).
pub const CI: usize = 0x38;

/// Bits of PxIS and PxIE (sections 3.3.5, 3.3.6).
pub mod is {
    /// DHRS: a Register Device to Host FIS with its I bit set was received.
    pub const DHRS: u32 = 1 << 0;
    /// PSS: a PIO Setup FIS with its I bit set was received and its data transferred.
    pub const PSS: u32 = 1 << 1;
    /// DSS: a DMA Setup FIS with its I bit set was received.
    pub const DSS: u32 = 1 << 2;
    /// SDBS: a Set Device Bits FIS with its I bit set was received.
    pub const SDBS: u32 = 1 << 3;
    /// DPS: a physical region with its I bit set was transferred.
    pub const DPS: u32 = 1 << 5;
    /// PCS: connect change; the state of PxSERR.DIAG.X.
    pub const PCS: u32 = 1 << 6;
    /// PRCS: PhyRdy change; the state of PxSERR.DIAG.N.
    pub const PRCS: u32 = 1 << 22;
    /// OFS: the drive sent more data than the physical regions hold.
    pub const OFS: u32 = 1 << 24;
    /// INFS: non-fatal interface error, which does not stop the port.
    pub const INFS: u32 = 1 << 26;
    /// IFS: fatal interface error, which stops the port.
    pub const IFS: u32 = 1 << 27;
    /// HBDS: host bus data error, such as a parity error in memory.
    pub const HBDS: u32 = 1 << 28;
    /// HBFS: host bus fatal error, such as an invalid address.
    pub const HBFS: u32 = 1 << 29;
    /// TFES: the drive set ERR in its status.
    pub const TFES: u32 = 1 << 30;

    /// The errors that stop the port until the host clears PxCMD.ST (section 6.2.2).
    pub const FATAL: u32 = IFS | HBDS | HBFS | TFES;
    /// All bits except those of a normal completion.
    pub const ERRORS: u32 = FATAL | OFS | INFS | PCS | PRCS;
}

/// Bits of PxCMD (section 3.3.7).
pub mod cmd {
    /// ST: the controller processes the command list.
    pub const ST: u32 = 1 << 0;
    /// SUD: spin the drive up.
    pub const SUD: u32 = 1 << 1;
    /// POD: power on.
    pub const POD: u32 = 1 << 2;
    /// CLO: clears BSY and DRQ in PxTFD; the controller clears the bit when done.
    pub const CLO: u32 = 1 << 3;
    /// FRE: enables the storing of received FISes.
    pub const FRE: u32 = 1 << 4;
    /// FR: the controller stores received FISes (read only).
    pub const FR: u32 = 1 << 14;
    /// CR: the command list is running (read only).
    pub const CR: u32 = 1 << 15;

    /// Returns CCS, the slot being processed.
    pub const fn ccs(cmd: u32) -> u32 {
        cmd >> 8 & 0x1f
    }

    /// The bits of CCS.
    pub const CCS: u32 = 0x1f << 8;
}

/// Fields of PxSSTS (section 3.3.10).
pub mod ssts {
    /// DET: a drive is present and the link is up.
    pub const DET_UP: u32 = 3;
    /// DET: a drive is present and the link is down.
    pub const DET_PRESENT: u32 = 1;
    /// SPD generation 3, IPM active.
    pub const GEN3_ACTIVE: u32 = 3 << 4 | 1 << 8;

    /// Returns DET, device detection.
    pub const fn det(ssts: u32) -> u32 {
        ssts & 0xf
    }
}

/// Fields of PxSCTL (section 3.3.11).
pub mod sctl {
    /// DET: while it is 1, the port sends COMRESET.
    pub const DET_COMRESET: u32 = 1;

    /// Returns DET, device detection initialization.
    pub const fn det(sctl: u32) -> u32 {
        sctl & 0xf
    }
}

/// Bits of PxSERR (section 3.3.12).
pub mod serr {
    /// ERR.T: a data integrity error that was not recovered.
    pub const ERR_T: u32 = 1 << 8;
    /// ERR.E: internal error of the adapter.
    pub const ERR_E: u32 = 1 << 11;
    /// DIAG.N: PhyRdy changed.
    pub const DIAG_N: u32 = 1 << 16;
    /// DIAG.X: a drive was inserted, or sent COMINIT.
    pub const DIAG_X: u32 = 1 << 26;
}

/// The PxSIG value of an ATA drive (section 3.3.9).
pub const SIGNATURE_ATA: u32 = 0x0000_0101;
