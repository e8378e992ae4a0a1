//! Command opcodes: the first byte of a submission queue entry.

/// Admin commands ([NVMe1.4 fig. 139]; [OC20 §3]).
pub mod admin {
    /// Delete I/O Submission Queue.
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O Submission Queue.
    pub const CREATE_SQ: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue.
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O Completion Queue.
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Namespace Management.
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;
    /// Format NVM.
    pub const FORMAT_NVM: u8 = 0x80;
    /// Sanitize.
    pub const SANITIZE: u8 = 0x84;
    /// Get LBA Status.
    pub const GET_LBA_STATUS: u8 = 0x86;
    /// Rule Program Download (vendor specific): a part of a rule program.
    pub const RULE_DOWNLOAD: u8 = 0xc1;
    /// Rule Program Install (vendor specific): installs the parts.
    pub const RULE_INSTALL: u8 = 0xc4;
    /// Rule Table Edit (vendor specific): changes entries of a table of the rules.
    pub const RULE_TABLE_EDIT: u8 = 0xc5;
    /// Rule Table Read (vendor specific): returns elements of a table of the rules.
    pub const RULE_TABLE_READ: u8 = 0xc6;
    /// Rule Miss Reject (vendor specific): ends commands that no rule matches.
    pub const RULE_REJECT: u8 = 0xc8;
    /// Geometry [OC20 §3.1].
    pub const GEOMETRY: u8 = 0xe2;
}

/// NVM command set commands ([NVMe1.4 fig. 346]; Copy: [NVMe2.0, NVM command set §3.2.2]; [OC20 §4]).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management (deallocate; on an open-channel drive: chunk reset).
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Copy.
    pub const COPY: u8 = 0x19;
    /// LBA status on an I/O queue (vendor specific; as the admin command Get LBA Status).
    pub const LBA_STATUS: u8 = 0x86;
    /// Vector Chunk Reset.
    pub const VECTOR_RESET: u8 = 0x90;
    /// Vector Chunk Write.
    pub const VECTOR_WRITE: u8 = 0x91;
    /// Vector Chunk Read.
    pub const VECTOR_READ: u8 = 0x92;
    /// Vector Chunk Copy.
    pub const VECTOR_COPY: u8 = 0x93;
    /// Device trim (vendor specific): unmaps logical addresses in the device L2P.
    pub const DEVICE_TRIM: u8 = 0x95;
    /// A lookup of a key by the rules of a drive (vendor specific).
    pub const RULE_GET: u8 = 0xc6;
    /// A scan of a range by the rules of a drive (vendor specific).
    pub const RULE_SCAN: u8 = 0xc2;
    /// An acknowledgment to the rules of a drive (vendor specific).
    pub const RULE_ACK: u8 = 0xc8;
    /// An operation that rules define, with data for the host (vendor specific).
    pub const RULE_USER0: u8 = 0xca;
    /// An operation that rules define, with data for the host (vendor specific).
    pub const RULE_USER1: u8 = 0xce;
    /// An operation that rules define, without data (vendor specific).
    pub const RULE_USER2: u8 = 0xcc;
    /// An operation that rules define, without data (vendor specific).
    pub const RULE_USER3: u8 = 0xd0;
    /// A write of a sector that gets a name (vendor specific).
    pub const NAMED_WRITE: u8 = 0xd5;
    /// A read of a sector with a name (vendor specific).
    pub const NAMED_READ: u8 = 0xd6;
    /// Frees a sector with a name (vendor specific).
    pub const NAMED_FREE: u8 = 0xd4;
}
