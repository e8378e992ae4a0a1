//! [`IdentifyController`], [`IdentifyNamespace`] and the active namespace list: the data of the
//! Identify command, 4096 bytes each [NVMe1.4 §5.15.2].

use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// The data structures that Identify can return [NVMe1.4 §5.15.1].
pub mod cns {
    /// Identify Namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace list: up to 1024 32-bit identifiers above the given one, ascending, zero
    /// after the last.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptor list ([`namespace_descriptors`](super::namespace_descriptors)).
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Identify Namespace of a command set [NVMe2.0 §5.17.2.5].
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// Identify Controller of a command set [NVMe2.0 §5.17.2.6].
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Active namespace list of a command set [NVMe2.0 §5.17.2.7].
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// Identify Namespace without what depends on the command set
    /// ([`IndependentNamespace`](crate::IndependentNamespace)) [NVMe2.0 §5.17.2.8].
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Allocated namespace list: as [`ACTIVE_NAMESPACES`], with namespaces that are not attached.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Identify Namespace of an allocated namespace.
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers that a namespace is attached to ([`ControllerList`](crate::ControllerList)).
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    /// All controllers ([`ControllerList`](crate::ControllerList)).
    pub const CONTROLLERS: u8 = 0x13;
    /// Namespace granularities
    /// ([`NamespaceGranularities`](crate::NamespaceGranularities)).
    pub const NAMESPACE_GRANULARITIES: u8 = 0x16;
    /// Allocated namespace list of a command set [NVMe2.0 §5.17.2.16].
    pub const COMMAND_SET_ALLOCATED_NAMESPACES: u8 = 0x1a;
    /// Identify Namespace of a command set, of an allocated namespace [NVMe2.0 §5.17.2.17].
    pub const COMMAND_SET_ALLOCATED_NAMESPACE: u8 = 0x1b;
    /// Command sets ([`CommandSetList`](crate::CommandSetList)) [NVMe2.0 §5.17.2.18].
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Returns the namespace identification descriptor list of a namespace that has an NGUID
/// [NVMe1.4 §5.15.2.3]: a descriptor of type 2, and zeros.
pub fn namespace_descriptors(nguid: [u8; 16]) -> [u8; IDENTIFY_BYTES] {
    let mut list = [0; IDENTIFY_BYTES];
    (list[0], list[1]) = (2, nguid.len() as u8);
    list[4..4 + nguid.len()].copy_from_slice(&nguid);
    list
}

/// Size in bytes of the data of Identify and Geometry.
pub const IDENTIFY_BYTES: usize = 4096;

/// Encodes text in a fixed field as printable ASCII, truncated or padded with spaces [NVMe1.4 §1.5].
fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = if (0x20..0x7f).contains(&from) { from } else { b'?' };
    }
    field
}

/// Decodes the text of a field, without the padding; bytes that are not printable become `?`.
fn text(field: &[u8]) -> String {
    let len = field.iter().rposition(|b| *b != b' ' && *b != 0).map_or(0, |last| last + 1);
    field[..len]
        .iter()
        .map(|b| if (0x20..0x7f).contains(b) { char::from(*b) } else { '?' })
        .collect()
}

/// A power state, 32 bytes ([NVMe1.4 §5.15.2.2], power state descriptor).
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
pub struct PowerState {
    /// Maximum power, in centiwatts (bytes 1:0).
    pub max_power: U16,
    /// Reserved, and the flags MXPS and NOPS (bytes 3:2).
    pub flags: U16,
    /// Entry latency, in microseconds (bytes 7:4).
    pub entry_latency: U32,
    /// Exit latency, in microseconds (bytes 11:8).
    pub exit_latency: U32,
    /// Relative throughputs and latencies, idle and active power (bytes 31:12).
    pub relative: [u8; 20],
}

wire!(PowerState, 32);

/// The Identify Controller data structure [NVMe1.4 §5.15.2.2].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor, VID (bytes 1:0).
    pub vid: U16,
    /// PCI subsystem vendor, SSVID (bytes 3:2).
    pub ssvid: U16,
    /// Serial number, ASCII, SN (bytes 23:4).
    pub sn: [u8; 20],
    /// Model number, ASCII, MN (bytes 63:24).
    pub mn: [u8; 40],
    /// Firmware revision, ASCII, FR (bytes 71:64).
    pub fr: [u8; 8],
    /// Recommended arbitration burst, as a power of two, RAB (byte 72).
    pub rab: u8,
    /// IEEE OUI (bytes 75:73).
    pub ieee: [u8; 3],
    /// Multi-path and sharing capabilities, CMIC (byte 76).
    pub cmic: u8,
    /// Maximum data transfer size, in pages as a power of two; 0 for no limit; MDTS (byte 77).
    pub mdts: u8,
    /// Controller identifier, CNTLID (bytes 79:78).
    pub cntlid: U16,
    /// Version, major `[31:16]`, minor `[15:8]`, VER (bytes 83:80).
    pub ver: U32,
    /// RTD3 resume latency, µs (bytes 87:84).
    pub rtd3r: U32,
    /// RTD3 entry latency, µs (bytes 91:88).
    pub rtd3e: U32,
    /// Optional asynchronous events, OAES (bytes 95:92).
    pub oaes: U32,
    /// Controller attributes, CTRATT (bytes 99:96).
    pub ctratt: U32,
    /// Read recovery levels, RRLS (bytes 101:100).
    pub rrls: U16,
    /// Reserved (bytes 110:102).
    pub reserved102: [u8; 9],
    /// Controller type: 1 for an I/O controller, CNTRLTYPE (byte 111).
    pub cntrltype: u8,
    /// FRU globally unique identifier (bytes 127:112).
    pub fguid: [u8; 16],
    /// Command retry delay times, 100 ms each (bytes 133:128).
    pub crdt: [U16; 3],
    /// Reserved, and the management interface's bytes (bytes 255:134).
    pub reserved134: [u8; 122],
    /// Optional admin commands, OACS (bytes 257:256).
    pub oacs: U16,
    /// Maximum number of outstanding Abort commands, zero-based, ACL (byte 258).
    pub acl: u8,
    /// Maximum number of outstanding asynchronous event requests, zero-based, AERL (byte 259).
    pub aerl: u8,
    /// Firmware updates, FRMW (byte 260).
    pub frmw: u8,
    /// Log page attributes: bit 2 for extended data (offsets and lengths beyond 16 KiB), LPA (byte
    /// 261).
    pub lpa: u8,
    /// Error log entries, zero-based, ELPE (byte 262).
    pub elpe: u8,
    /// Power states, zero-based, NPSS (byte 263).
    pub npss: u8,
    /// Admin vendor-specific command format, AVSCC (byte 264).
    pub avscc: u8,
    /// Autonomous power state transitions, APSTA (byte 265).
    pub apsta: u8,
    /// Warning temperature, kelvins, WCTEMP (bytes 267:266).
    pub wctemp: U16,
    /// Critical temperature, kelvins, CCTEMP (bytes 269:268).
    pub cctemp: U16,
    /// Maximum time for firmware activation, MTFA (bytes 271:270).
    pub mtfa: U16,
    /// Host memory buffer, preferred, HMPRE (bytes 275:272).
    pub hmpre: U32,
    /// Host memory buffer, minimum, HMMIN (bytes 279:276).
    pub hmmin: U32,
    /// Total capacity, bytes, TNVMCAP (bytes 295:280).
    pub tnvmcap: U128,
    /// Unallocated capacity, bytes, UNVMCAP (bytes 311:296).
    pub unvmcap: U128,
    /// Replay-protected memory, self-test, keep-alive, thermal management, sanitize, host memory
    /// buffer limits, sets, endurance groups, asymmetric access (bytes 355:312).
    pub optional312: [u8; 44],
    /// Reserved (bytes 511:356).
    pub reserved356: [u8; 156],
    /// Submission entry sizes as powers of two: required `[3:0]`, maximum `[7:4]`, SQES (byte 512).
    pub sqes: u8,
    /// Completion entry sizes as powers of two, CQES (byte 513).
    pub cqes: u8,
    /// Maximum number of outstanding commands per queue, MAXCMD (bytes 515:514).
    pub maxcmd: U16,
    /// Namespaces, NN (bytes 519:516).
    pub nn: U32,
    /// Optional NVM commands, ONCS (bytes 521:520).
    pub oncs: U16,
    /// Fused operations, FUSES (bytes 523:522).
    pub fuses: U16,
    /// Format attributes, FNA (byte 524).
    pub fna: u8,
    /// Volatile write cache: bit 0 present; bits 2:1 = 11b if Flush supports all namespaces, VWC
    /// (byte 525).
    pub vwc: u8,
    /// Atomic write unit normal, blocks, zero-based, AWUN (bytes 527:526).
    pub awun: U16,
    /// Atomic write unit through power failure, blocks, zero-based, AWUPF (bytes 529:528).
    pub awupf: U16,
    /// I/O vendor-specific command format, NVSCC (byte 530).
    pub nvscc: u8,
    /// Namespace write protection, NWPC (byte 531).
    pub nwpc: u8,
    /// Atomic compare and write unit, ACWU (bytes 533:532).
    pub acwu: U16,
    /// Supported descriptor formats of Copy, one bit each, OCFS (bytes 535:534).
    pub ocfs: U16,
    /// SGL support: bits 1:0 = 01b without alignment, bit 16 bit bucket, SGLS (bytes 539:536).
    pub sgls: U32,
    /// Allowed namespaces, MNAN (bytes 543:540).
    pub mnan: U32,
    /// Reserved (bytes 767:544).
    pub reserved544: [u8; 224],
    /// Qualified name of the subsystem, UTF-8, zero-terminated, SUBNQN (bytes 1023:768).
    pub subnqn: [u8; 256],
    /// Reserved, and the bytes of NVMe over Fabrics (bytes 2047:1024).
    pub reserved1024: [u8; 1024],
    /// Power states (bytes 3071:2048).
    pub psd: [PowerState; 32],
    /// Vendor specific (bytes 4095:3072).
    pub vendor: [u8; 1024],
}

wire!(IdentifyController, 4096);

impl IdentifyController {
    /// Bit of `oncs`: Compare is supported.
    pub const ONCS_COMPARE: u16 = 1;
    /// Bit of `oncs`: Write Uncorrectable is supported.
    pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Bit of `oncs`: Verify is supported.
    pub const ONCS_VERIFY: u16 = 1 << 7;
    /// Bit of `oncs`: Copy is supported.
    pub const ONCS_COPY: u16 = 1 << 8;
    /// Bit of `oncs`: Dataset Management is supported.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Bit of `oncs`: Write Zeroes is supported.
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// Bit of `oacs`: Doorbell Buffer Config is supported.
    pub const OACS_DOORBELL_BUFFER_CONFIG: u16 = 1 << 8;
    /// Bit of `oacs`: Namespace Management and Namespace Attachment are supported.
    pub const OACS_NAMESPACES: u16 = 1 << 3;
    /// Bit of `ctratt`: the namespace granularity list is supported.
    pub const CTRATT_NAMESPACE_GRANULARITY: u32 = 1 << 7;
    /// Bit of `oacs`: Format NVM is supported.
    pub const OACS_FORMAT: u16 = 1 << 1;
    /// Bit of `oacs`: Get LBA Status is supported.
    pub const OACS_GET_LBA_STATUS: u16 = 1 << 9;
    /// Bit of `oaes`: the notice of changed attributes of namespaces is supported.
    pub const OAES_NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
    /// Bit of `lpa`: the commands supported and effects log page is supported.
    pub const LPA_EFFECTS: u8 = 1 << 1;
    /// Bit of `lpa`: log pages can be read in parts.
    pub const LPA_EXTENDED: u8 = 1 << 2;
    /// Value of `sgls`: SGLs are supported at any alignment.
    pub const SGLS_SUPPORTED: u32 = 1;
    /// Bit of `sgls`: the Bit Bucket descriptor is supported.
    pub const SGLS_BIT_BUCKET: u32 = 1 << 16;

    /// Offset in the bytes from 312 on of the granularity of the keep alive timer, KAS (bytes
    /// 321:320).
    const KAS: usize = 320 - 312;

    /// Offset in the bytes from 312 on of the sanitize capabilities, SANICAP (bytes 331:328).
    const SANICAP: usize = 328 - 312;

    /// Sets the sanitize capabilities, bits of [`sanicap`](crate::sanicap).
    pub fn set_sanitize_capabilities(&mut self, capabilities: u32) {
        self.optional312[IdentifyController::SANICAP..][..4]
            .copy_from_slice(&capabilities.to_le_bytes());
    }

    /// Returns the sanitize capabilities, bits of [`sanicap`](crate::sanicap).
    pub fn sanitize_capabilities(&self) -> u32 {
        let at = IdentifyController::SANICAP;
        u32::from_le_bytes([0, 1, 2, 3].map(|i| self.optional312[at + i]))
    }

    /// Sets the granularity of the keep alive timer in units of 100 ms; 0 if there is no timer.
    pub fn set_keep_alive(&mut self, granularity: u16) {
        self.optional312[IdentifyController::KAS..][..2]
            .copy_from_slice(&granularity.to_le_bytes());
    }

    /// Returns the granularity of the keep alive timer in units of 100 ms; 0 if there is no timer.
    pub fn keep_alive(&self) -> u16 {
        let [low, high] = [0, 1].map(|i| self.optional312[IdentifyController::KAS + i]);
        u16::from_le_bytes([low, high])
    }

    /// Whether an optional command, one of the `ONCS_` bits, is supported.
    pub fn supports(&self, command: u16) -> bool {
        self.oncs.get() & command != 0
    }

    /// Whether data pointers of I/O commands may be SGLs, at any alignment.
    pub fn supports_sgls(&self) -> bool {
        self.sgls.get() & 3 == IdentifyController::SGLS_SUPPORTED
    }

    /// Whether these SGLs may contain Bit Bucket descriptors.
    pub fn supports_sgl_bit_bucket(&self) -> bool {
        self.supports_sgls() && self.sgls.get() & IdentifyController::SGLS_BIT_BUCKET != 0
    }

    /// Returns a structure of zeros.
    pub fn zeroed() -> IdentifyController {
        IdentifyController::new_zeroed()
    }

    /// Sets the serial number, truncated to 20 characters.
    pub fn set_serial(&mut self, serial: &str) {
        self.sn = ascii(serial);
    }

    /// Sets the model number, truncated to 40 characters.
    pub fn set_model(&mut self, model: &str) {
        self.mn = ascii(model);
    }

    /// Sets the firmware revision, truncated to 8 characters.
    pub fn set_firmware(&mut self, revision: &str) {
        self.fr = ascii(revision);
    }

    /// Returns the serial number.
    pub fn serial(&self) -> String {
        text(&self.sn)
    }

    /// Returns the model number.
    pub fn model(&self) -> String {
        text(&self.mn)
    }

    /// Returns the firmware revision.
    pub fn firmware(&self) -> String {
        text(&self.fr)
    }

    /// Whether completed writes need a Flush to be durable.
    pub fn has_volatile_cache(&self) -> bool {
        self.vwc & 1 != 0
    }

    /// Returns the maximum transfer size in bytes, for pages of `page` bytes; `None` for no limit.
    pub fn max_transfer(&self, page: u32) -> Option<u64> {
        match self.mdts {
            0 => None,
            n => Some(u64::from(page).checked_shl(n.into()).unwrap_or(u64::MAX)),
        }
    }
}

/// An LBA format of a namespace, 4 bytes [NVMe1.4 §5.15.2.1].
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
pub struct LbaFormat {
    /// Metadata (out-of-band) bytes per block, MS (bytes 1:0).
    pub ms: U16,
    /// Bytes per block as a power of two, at least 9, LBADS (byte 2).
    pub lbads: u8,
    /// Relative performance, 0 is best, RP (byte 3).
    pub rp: u8,
}

wire!(LbaFormat, 4);

/// The Identify Namespace data structure [NVMe1.4 §5.15.2.1].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Size, blocks, NSZE (bytes 7:0).
    pub nsze: U64,
    /// Capacity, blocks that can be mapped, NCAP (bytes 15:8).
    pub ncap: U64,
    /// Utilization, blocks that are mapped, NUSE (bytes 23:16).
    pub nuse: U64,
    /// Features: bit 0 thin provisioning, bit 2 DULBE is supported, bit 4 the NPWG to NOWS fields
    /// are valid, NSFEAT (byte 24).
    pub nsfeat: u8,
    /// Number of formats, zero-based, NLBAF (byte 25).
    pub nlbaf: u8,
    /// The format in use `[3:0]`; bit 4 metadata at the end of each block, FLBAS (byte 26).
    pub flbas: u8,
    /// Metadata capabilities: bit 1 separate buffer, MC (byte 27).
    pub mc: u8,
    /// Protection capabilities, DPC (byte 28).
    pub dpc: u8,
    /// Protection settings, DPS (byte 29).
    pub dps: u8,
    /// Multi-path and sharing, NMIC (byte 30).
    pub nmic: u8,
    /// Reservations, RESCAP (byte 31).
    pub rescap: u8,
    /// Format progress, FPI (byte 32).
    pub fpi: u8,
    /// Deallocated blocks: bits 2:0 = 001b read as zeros; bit 3 Write Zeroes may deallocate, DLFEAT
    /// (byte 33).
    pub dlfeat: u8,
    /// Atomic write unit normal, zero-based, NAWUN (bytes 35:34).
    pub nawun: U16,
    /// Atomic write unit through power failure, zero-based, NAWUPF (bytes 37:36).
    pub nawupf: U16,
    /// Atomic compare and write unit, NACWU (bytes 39:38).
    pub nacwu: U16,
    /// Atomic boundary size normal, NABSN (bytes 41:40).
    pub nabsn: U16,
    /// Atomic boundary offset, NABO (bytes 43:42).
    pub nabo: U16,
    /// Atomic boundary size through power failure, NABSPF (bytes 45:44).
    pub nabspf: U16,
    /// Optimal I/O boundary, blocks, NOIOB (bytes 47:46).
    pub noiob: U16,
    /// Capacity, bytes, NVMCAP (bytes 63:48).
    pub nvmcap: U128,
    /// Preferred write granularity, blocks, zero-based, NPWG (bytes 65:64).
    pub npwg: U16,
    /// Preferred write alignment, zero-based, NPWA (bytes 67:66).
    pub npwa: U16,
    /// Preferred deallocate granularity, zero-based, NPDG (bytes 69:68).
    pub npdg: U16,
    /// Preferred deallocate alignment, zero-based, NPDA (bytes 71:70).
    pub npda: U16,
    /// Optimal write size, blocks, zero-based, NOWS (bytes 73:72).
    pub nows: U16,
    /// Maximum length of a source range of Copy, blocks, MSSRL (bytes 75:74).
    pub mssrl: U16,
    /// Maximum number of blocks of a Copy, MCL (bytes 79:76).
    pub mcl: U32,
    /// Maximum number of source ranges of a Copy, zero-based, MSRC (byte 80).
    pub msrc: u8,
    /// Reserved (bytes 91:81).
    pub reserved81: [u8; 11],
    /// Asymmetric access group (bytes 95:92).
    pub anagrpid: U32,
    /// Reserved (bytes 98:96).
    pub reserved96: [u8; 3],
    /// Attributes: bit 0 write protected, NSATTR (byte 99).
    pub nsattr: u8,
    /// NVM set (bytes 101:100).
    pub nvmsetid: U16,
    /// Endurance group (bytes 103:102).
    pub endgid: U16,
    /// Globally unique identifier, NGUID (bytes 119:104).
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier, EUI64 (bytes 127:120).
    pub eui64: [u8; 8],
    /// Formats (bytes 191:128).
    pub lbaf: [LbaFormat; 16],
    /// Reserved (bytes 383:192).
    pub reserved192: [u8; 192],
    /// Vendor specific (bytes 4095:384).
    pub vendor: [u8; 3712],
}

wire!(IdentifyNamespace, 4096);

impl IdentifyNamespace {
    /// Bit 0 of the first vendor byte (byte 384): the namespace supports the open-channel command
    /// set. Linux identifies such drives by this bit as well.
    pub const VENDOR_OPEN_CHANNEL: u8 = 1;

    /// Returns a structure of zeros.
    pub fn zeroed() -> IdentifyNamespace {
        IdentifyNamespace::new_zeroed()
    }

    /// Returns the format in use.
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.flbas & 0xf)]
    }

    /// Returns the block size in bytes; `None` if the drive reports an invalid size (under 512 B or
    /// over 1 GiB).
    pub fn block_bytes(&self) -> Option<u32> {
        let shift = self.format().lbads;
        (9..=30).contains(&shift).then(|| 1 << shift)
    }

    /// Returns the protection settings (DPS) of a new namespace in format 0: type 1, if that format has
    /// space for the information and the controller supports the type; else 0.
    pub fn protection_of_new(&self) -> u8 {
        u8::from(self.dpc & 1 != 0 && self.lbaf[0].ms.get() >= 8)
    }

    /// Whether the namespace supports the open-channel command set.
    pub fn is_open_channel(&self) -> bool {
        self.vendor[0] & IdentifyNamespace::VENDOR_OPEN_CHANNEL != 0
    }

    /// Bit of NSFEAT: the fields for atomic writes of the namespace are valid.
    pub const NSFEAT_ATOMIC: u8 = 1 << 1;

    /// Returns the maximum length of a write that a power cut does not tear, in blocks, and the blocks
    /// between two boundaries that it may not cross; 0 for no boundary. `awupf` is that of the controller.
    /// [NVMe1.4 §6.4]
    pub fn atomic_write(&self, awupf: u16) -> (u32, u32) {
        let is_own = self.nsfeat & IdentifyNamespace::NSFEAT_ATOMIC != 0;
        let blocks = 1 + u32::from(if is_own { self.nawupf.get() } else { awupf });
        match self.nabspf.get() {
            0 => (blocks, 0),
            // Boundaries that are offset are not worth their code: only single blocks are atomic.
            _ if self.nabo.get() != 0 => (1, 0),
            size => (blocks, 1 + u32::from(size)),
        }
    }

    /// Sets the maximum length of an atomic write, with and without a power cut, and its boundary, as
    /// [`atomic_write`](IdentifyNamespace::atomic_write) returns them.
    pub fn set_atomic_write(&mut self, blocks: u32, boundary: u32) {
        let zero_based = |n: u32| (n.clamp(1, 1 << 16) - 1) as u16;
        self.nsfeat |= IdentifyNamespace::NSFEAT_ATOMIC;
        (self.nawun, self.nawupf) = (zero_based(blocks).into(), zero_based(blocks).into());
        let boundary = if boundary == 0 { 0 } else { zero_based(boundary) };
        (self.nabsn, self.nabspf) = (boundary.into(), boundary.into());
    }

    /// Returns the optimal write size in blocks; 1 if the drive does not report one.
    pub fn optimal_write(&self) -> u32 {
        if self.nsfeat & 1 << 4 == 0 { 1 } else { u32::from(self.nows.get()) + 1 }
    }
}

/// Active namespaces, ascending, zero after the last [NVMe1.4 §5.15.2.3].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NamespaceList {
    /// Namespace identifiers.
    pub nsid: [U32; 1024],
}

wire!(NamespaceList, 4096);

impl NamespaceList {
    /// Returns the list of the namespaces of `all`, in ascending order, that are above `nsid`.
    pub fn above(nsid: u32, all: &[u32]) -> NamespaceList {
        let mut list = NamespaceList::new_zeroed();
        for (to, from) in list.nsid.iter_mut().zip(all.iter().filter(|n| **n > nsid)) {
            *to = (*from).into();
        }
        list
    }

    /// Maximum number of entries of the list.
    pub const ENTRIES: usize = 1024;

    /// Returns the changed namespace list of the namespaces of `changed`, in ascending order: with more
    /// than [`ENTRIES`](NamespaceList::ENTRIES), it has the broadcast identifier only
    /// [NVMe1.4 §5.14.1.4].
    pub fn of_changed(changed: &[u32]) -> NamespaceList {
        match changed.len() {
            0..=NamespaceList::ENTRIES => NamespaceList::above(0, changed),
            _ => NamespaceList::above(0, &[u32::MAX]),
        }
    }

    /// Returns the namespace identifiers.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.nsid.iter().map(|n| n.get()).take_while(|n| *n != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn controller_fields_are_where_the_specification_puts_them() {
        type C = IdentifyController;
        assert_eq!((offset_of!(C, sn), offset_of!(C, mn), offset_of!(C, fr)), (4, 24, 64));
        assert_eq!((offset_of!(C, mdts), offset_of!(C, cntlid), offset_of!(C, ver)), (77, 78, 80));
        assert_eq!((offset_of!(C, cntrltype), offset_of!(C, crdt)), (111, 128));
        assert_eq!((offset_of!(C, oacs), offset_of!(C, acl), offset_of!(C, lpa)), (256, 258, 261));
        assert_eq!((offset_of!(C, wctemp), offset_of!(C, tnvmcap)), (266, 280));
        assert_eq!((offset_of!(C, optional312), offset_of!(C, reserved356)), (312, 356));
        assert_eq!((offset_of!(C, sqes), offset_of!(C, nn), offset_of!(C, oncs)), (512, 516, 520));
        assert_eq!((offset_of!(C, vwc), offset_of!(C, awun), offset_of!(C, sgls)), (525, 526, 536));
        assert_eq!(
            (offset_of!(C, ocfs), offset_of!(C, subnqn), offset_of!(C, psd)),
            (534, 768, 2048)
        );
        assert_eq!(offset_of!(C, vendor), 3072);
    }

    #[test]
    fn namespace_fields_are_where_the_specification_puts_them() {
        type N = IdentifyNamespace;
        assert_eq!((offset_of!(N, ncap), offset_of!(N, nsfeat), offset_of!(N, flbas)), (8, 24, 26));
        assert_eq!((offset_of!(N, dlfeat), offset_of!(N, nawun)), (33, 34));
        assert_eq!((offset_of!(N, nvmcap), offset_of!(N, npwg), offset_of!(N, nows)), (48, 64, 72));
        assert_eq!((offset_of!(N, mssrl), offset_of!(N, mcl), offset_of!(N, msrc)), (74, 76, 80));
        assert_eq!((offset_of!(N, nsattr), offset_of!(N, nguid)), (99, 104));
        assert_eq!((offset_of!(N, eui64), offset_of!(N, lbaf)), (120, 128));
        assert_eq!(offset_of!(N, vendor), 384);
    }

    #[test]
    fn text_is_padded_and_cut_and_cleaned() {
        let mut c = IdentifyController::zeroed();
        assert_eq!(c.serial(), "", "zeros are no text");
        c.set_serial("sn-1");
        assert_eq!(&c.sn, b"sn-1                ");
        assert_eq!(c.serial(), "sn-1");
        c.set_firmware("0123456789");
        assert_eq!(c.firmware(), "01234567");
        c.set_model("caf\u{e9} \u{7}");
        assert!(c.mn.iter().all(|b| (0x20..0x7f).contains(b)));
    }

    #[test]
    fn transfers_and_blocks_of_impossible_size_are_no_shift_overflow() {
        let mut c = IdentifyController::zeroed();
        assert_eq!(c.max_transfer(4096), None);
        c.mdts = 5;
        assert_eq!(c.max_transfer(4096), Some(128 << 10));
        c.mdts = 255;
        assert_eq!(c.max_transfer(4096), Some(u64::MAX));
        let mut n = IdentifyNamespace::zeroed();
        for (shift, bytes) in [(0, None), (9, Some(512)), (12, Some(4096)), (31, None), (255, None)]
        {
            n.lbaf[0].lbads = shift;
            assert_eq!(n.block_bytes(), bytes);
        }
        n.flbas = 0xff;
        assert_eq!(n.block_bytes(), None, "format 15 is empty");
    }

    #[test]
    fn namespaces_above_one() {
        let list = NamespaceList::above(1, &[1, 2, 9]);
        assert_eq!(list.iter().collect::<Vec<_>>(), [2, 9]);
        assert_eq!(NamespaceList::above(9, &[1, 2, 9]).iter().count(), 0);
        let all: Vec<u32> = (1..=1024).collect();
        assert_eq!(NamespaceList::of_changed(&all).iter().collect::<Vec<_>>(), all);
        let more: Vec<u32> = (1..=1025).collect();
        assert_eq!(NamespaceList::of_changed(&more).iter().collect::<Vec<_>>(), [u32::MAX]);
    }
}
