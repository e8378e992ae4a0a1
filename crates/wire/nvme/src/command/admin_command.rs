//! [`AdminCommand`]: a typed command of the admin queue, parsed from a submission queue entry.
//!
//! As in [`IoCommand`](crate::IoCommand), counts are not zero-based, and reserved values are
//! refused. Parsing accesses no memory. The data pointer stays in the entry, except for the memory
//! of queues. [NVMe1.4 §5], [OC20 §3].

use crate::command::io_command::flags_invalid;
use crate::command::rule_table;
use crate::opcode::admin;
use crate::{RuleTableAction, SanitizeCommand, Sqe, Status};

/// Priority of a submission queue under weighted arbitration ([NVMe1.4 §5.4], QPRIO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueuePriority {
    /// Urgent: served before all other classes.
    Urgent,
    /// High priority: served by weight.
    High,
    /// Medium priority: served by weight.
    #[default]
    Medium,
    /// Low priority: served by weight.
    Low,
}

impl QueuePriority {
    fn from_bits(bits: u32) -> QueuePriority {
        match bits & 3 {
            0 => QueuePriority::Urgent,
            1 => QueuePriority::High,
            2 => QueuePriority::Medium,
            _ => QueuePriority::Low,
        }
    }
}

/// The requested value of a feature ([NVMe1.4 §5.13], SEL).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FeatureSelect {
    /// The value in force.
    #[default]
    Current,
    /// The default value.
    Default,
    /// The saved value, which a reset restores.
    Saved,
    /// The capabilities of the feature.
    Capabilities,
}

/// The erasure that a Format NVM requests ([NVMe1.4 §5.23], SES).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SecureErase {
    /// None: the blocks read as if they were never written.
    #[default]
    None,
    /// User data erase: the flash is erased.
    UserData,
    /// Cryptographic erase: the key of the data is deleted.
    Cryptographic,
}

/// The operation of a Namespace Management ([NVMe1.4 §5.20], SEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NamespaceChange {
    /// Create a namespace, as the data of the command describes it.
    Create,
    /// Delete a namespace, or all of them.
    Delete,
}

/// A typed command of the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// Delete I/O Submission Queue [NVMe1.4 §5.6].
    DeleteSq {
        /// Queue identifier, at least 1.
        qid: u16,
    },
    /// Create I/O Submission Queue [NVMe1.4 §5.4].
    CreateSq {
        /// Queue identifier, at least 1.
        qid: u16,
        /// Depth in entries, 2 to 65,536.
        entries: u32,
        /// I/O virtual address of the ring, which is contiguous and page aligned.
        at: u64,
        /// Identifier of the completion queue, at least 1.
        cqid: u16,
        /// The queue's priority.
        priority: QueuePriority,
    },
    /// Delete I/O Completion Queue [NVMe1.4 §5.5].
    DeleteCq {
        /// Queue identifier, at least 1.
        qid: u16,
    },
    /// Create I/O Completion Queue [NVMe1.4 §5.3].
    CreateCq {
        /// Queue identifier, at least 1.
        qid: u16,
        /// Depth in entries, 2 to 65,536.
        entries: u32,
        /// I/O virtual address of the ring, which is contiguous and page aligned.
        at: u64,
        /// Interrupt vector, if interrupts are enabled.
        vector: Option<u16>,
    },
    /// Get Log Page [NVMe1.4 §5.14].
    GetLogPage {
        /// Log page identifier, one of [`log_page`](crate::log_page).
        lid: u8,
        /// Namespace identifier; `0xffff_ffff` for all namespaces, 0 for the controller.
        nsid: u32,
        /// Number of bytes to return: a multiple of 4, at least 4.
        bytes: u64,
        /// Offset in the log page: a multiple of 4.
        offset: u64,
        /// Retain Asynchronous Event: do not clear the event of this page.
        retain: bool,
    },
    /// Identify [NVMe1.4 §5.15].
    Identify {
        /// Data structure to return, one of [`cns`](crate::cns).
        cns: u8,
        /// Namespace identifier, where used.
        nsid: u32,
    },
    /// Abort [NVMe1.4 §5.1].
    Abort {
        /// Submission queue of the command to abort.
        sqid: u16,
        /// Identifier of the command to abort.
        cid: u16,
    },
    /// Set Features [NVMe1.4 §5.21].
    SetFeatures {
        /// Feature identifier, one of [`feature`](crate::feature).
        fid: u8,
        /// Save the value, so that it persists through a reset.
        save: bool,
        /// The value, command dword 11.
        value: u32,
    },
    /// Get Features [NVMe1.4 §5.13].
    GetFeatures {
        /// Feature identifier, one of [`feature`](crate::feature).
        fid: u8,
        /// The requested value.
        select: FeatureSelect,
        /// Selector for features with several values; command dword 11.
        member: u32,
    },
    /// Asynchronous Event Request [NVMe1.4 §5.2].
    AsyncEventRequest,
    /// Namespace Management [NVMe1.4 §5.20].
    NamespaceManagement {
        /// The operation.
        change: NamespaceChange,
        /// The namespace to delete, `0xffff_ffff` for all namespaces; 0 for a new one.
        nsid: u32,
    },
    /// Namespace Attachment [NVMe1.4 §5.19].
    NamespaceAttachment {
        /// The namespace.
        nsid: u32,
        /// Whether it is attached to the controllers of the list, or detached from them.
        attach: bool,
    },
    /// Get LBA Status [NVMe1.4 §5.27], whose list has a header.
    GetLbaStatus {
        /// The namespace.
        nsid: u32,
        /// First logical block.
        slba: u64,
        /// Number of logical blocks; 0 for all that follow.
        nlb: u16,
        /// Size of the buffer in bytes, a multiple of 4.
        bytes: u64,
    },
    /// Format NVM [NVMe1.4 §5.23].
    FormatNvm {
        /// The namespace; `0xffff_ffff` for all namespaces.
        nsid: u32,
        /// LBA format (LBAF), below 16.
        lba_format: u8,
        /// Metadata settings and protection information, bits 8:4 of CDW10 (MSET, PI, PIL), below 32.
        protection: u8,
        /// Secure erase settings.
        erase: SecureErase,
    },
    /// Sanitize [NVMe1.4 §5.24].
    Sanitize(SanitizeCommand),
    /// Keep Alive [NVMe1.4 §5.18]: restarts the keep alive timer.
    KeepAlive,
    /// Doorbell Buffer Config [NVMe1.4 §5.7]: enables the doorbell buffer until the next reset.
    DoorbellBufferConfig {
        /// I/O virtual address of the page with the doorbell values.
        values: u64,
        /// I/O virtual address of the page with the event indexes.
        events: u64,
    },
    /// Rule Program Download (vendor specific): sends a part of a rule program.
    RuleDownload {
        /// First byte of the part in the program.
        offset: u32,
        /// Bytes of the part, at least 1.
        bytes: u64,
    },
    /// Rule Program Install (vendor specific): installs the parts that were sent. The result is the
    /// number of commands that no rule matches, which stay parked.
    RuleInstall,
    /// Rule Miss Reject (vendor specific): ends the commands that no rule matches. The result is their
    /// number.
    RuleReject {
        /// The operation of the commands; all of them for `None`.
        op: Option<u8>,
    },
    /// Rule Table Edit (vendor specific): changes entries of a table, whose
    /// [`RuleTableEntry`](crate::RuleTableEntry)s are sent. The drive stops at the first one that the table
    /// does not take.
    RuleTableEdit {
        /// Number of the table in the program.
        table: u8,
        /// The change of each entry.
        action: RuleTableAction,
        /// Number of entries, 1 to [`RULE_TABLE_ENTRIES_MAX`](crate::RULE_TABLE_ENTRIES_MAX).
        entries: u32,
    },
    /// Rule Table Read (vendor specific): returns the values of consecutive keys, 8 bytes each.
    RuleTableRead {
        /// Number of the table in the program.
        table: u8,
        /// The first key, or index.
        first: u64,
        /// Number of keys, 1 to [`RULE_TABLE_ENTRIES_MAX`](crate::RULE_TABLE_ENTRIES_MAX).
        entries: u32,
    },
    /// Geometry of an open-channel drive [OC20 §3.1].
    Geometry {
        /// The namespace.
        nsid: u32,
    },
}

/// Parses the depth of a queue from the zero-based QSIZE in the upper half of CDW10.
fn parse_queue_size(cdw10: u32) -> Result<u32, Status> {
    match cdw10 >> 16 {
        // A ring of one entry holds no command.
        0 => Err(Status::INVALID_QUEUE_SIZE),
        n => Ok(n + 1),
    }
}

/// Parses the identifier of an I/O queue, which is not 0.
fn parse_io_qid(cdw10: u32, wrong: Status) -> Result<u16, Status> {
    match cdw10 as u16 {
        0 => Err(wrong),
        qid => Ok(qid),
    }
}

/// Parses the address of a ring, which must be contiguous (PC) and aligned.
fn parse_ring_address(sqe: &Sqe) -> Result<u64, Status> {
    if sqe.cdw11.get() & PC == 0 {
        return Err(Status::INVALID_FIELD);
    }
    let at = sqe.dptr[0].get();
    if at & 0xfff != 0 { Err(Status::PRP_OFFSET_INVALID) } else { Ok(at) }
}

/// Physically contiguous (PC), CDW11 of both Create commands.
const PC: u32 = 1;
/// Interrupts enabled (IEN), CDW11 of Create I/O Completion Queue.
const IEN: u32 = 1 << 1;
/// Retain Asynchronous Event (RAE), CDW10 of Get Log Page.
const RAE: u32 = 1 << 15;
/// Save (SV), CDW10 of Set Features.
const SV: u32 = 1 << 31;

impl AdminCommand {
    /// Parses an entry.
    ///
    /// # Errors
    /// The status with which the command is to complete.
    pub fn parse(sqe: &Sqe) -> Result<AdminCommand, Status> {
        if flags_invalid(sqe) {
            return Err(Status::INVALID_FIELD);
        }
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Ok(match sqe.opcode {
            admin::DELETE_SQ => {
                AdminCommand::DeleteSq { qid: parse_io_qid(cdw10, Status::INVALID_QID)? }
            }
            admin::DELETE_CQ => {
                AdminCommand::DeleteCq { qid: parse_io_qid(cdw10, Status::INVALID_QID)? }
            }
            admin::CREATE_SQ => AdminCommand::CreateSq {
                qid: parse_io_qid(cdw10, Status::INVALID_QID)?,
                entries: parse_queue_size(cdw10)?,
                at: parse_ring_address(sqe)?,
                cqid: parse_io_qid(cdw11 >> 16, Status::INVALID_CQ)?,
                priority: QueuePriority::from_bits(cdw11 >> 1),
            },
            admin::CREATE_CQ => AdminCommand::CreateCq {
                qid: parse_io_qid(cdw10, Status::INVALID_QID)?,
                entries: parse_queue_size(cdw10)?,
                at: parse_ring_address(sqe)?,
                vector: (cdw11 & IEN != 0).then_some((cdw11 >> 16) as u16),
            },
            admin::GET_LOG_PAGE => {
                let dwords = u64::from(cdw10 >> 16) | u64::from(cdw11 as u16) << 16;
                let offset = u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32;
                if !offset.is_multiple_of(4) {
                    return Err(Status::INVALID_FIELD);
                }
                AdminCommand::GetLogPage {
                    lid: cdw10 as u8,
                    nsid: sqe.nsid.get(),
                    bytes: (dwords + 1) * 4,
                    offset,
                    retain: cdw10 & RAE != 0,
                }
            }
            admin::IDENTIFY => AdminCommand::Identify { cns: cdw10 as u8, nsid: sqe.nsid.get() },
            admin::ABORT => AdminCommand::Abort { sqid: cdw10 as u16, cid: (cdw10 >> 16) as u16 },
            admin::SET_FEATURES => {
                AdminCommand::SetFeatures { fid: cdw10 as u8, save: cdw10 & SV != 0, value: cdw11 }
            }
            admin::GET_FEATURES => AdminCommand::GetFeatures {
                fid: cdw10 as u8,
                select: match cdw10 >> 8 & 7 {
                    0 => FeatureSelect::Current,
                    1 => FeatureSelect::Default,
                    2 => FeatureSelect::Saved,
                    3 => FeatureSelect::Capabilities,
                    _ => return Err(Status::INVALID_FIELD),
                },
                member: cdw11,
            },
            admin::ASYNC_EVENT_REQUEST => AdminCommand::AsyncEventRequest,
            admin::NAMESPACE_MANAGEMENT => AdminCommand::NamespaceManagement {
                change: match cdw10 & 0xf {
                    0 => NamespaceChange::Create,
                    1 => NamespaceChange::Delete,
                    _ => return Err(Status::INVALID_FIELD),
                },
                nsid: sqe.nsid.get(),
            },
            admin::NAMESPACE_ATTACHMENT => AdminCommand::NamespaceAttachment {
                nsid: sqe.nsid.get(),
                attach: match cdw10 & 0xf {
                    0 => true,
                    1 => false,
                    _ => return Err(Status::INVALID_FIELD),
                },
            },
            admin::GET_LBA_STATUS => AdminCommand::GetLbaStatus {
                nsid: sqe.nsid.get(),
                slba: sqe.slba(),
                nlb: sqe.cdw13.get() as u16,
                bytes: (u64::from(sqe.cdw12.get()) + 1) * 4,
            },
            admin::FORMAT_NVM if cdw10 >> 12 == 0 => AdminCommand::FormatNvm {
                nsid: sqe.nsid.get(),
                lba_format: (cdw10 & 0xf) as u8,
                protection: (cdw10 >> 4 & 0x1f) as u8,
                erase: match cdw10 >> 9 & 7 {
                    0 => SecureErase::None,
                    1 => SecureErase::UserData,
                    2 => SecureErase::Cryptographic,
                    _ => return Err(Status::INVALID_FIELD),
                },
            },
            admin::FORMAT_NVM => return Err(Status::INVALID_FIELD),
            admin::SANITIZE => AdminCommand::Sanitize(SanitizeCommand::from_dwords(cdw10, cdw11)?),
            admin::KEEP_ALIVE => AdminCommand::KeepAlive,
            admin::DOORBELL_BUFFER_CONFIG => {
                let [values, events] = sqe.dptr.map(|entry| entry.get());
                if (values | events) & 0xfff != 0 || values == 0 || events == 0 {
                    return Err(Status::INVALID_FIELD);
                }
                AdminCommand::DoorbellBufferConfig { values, events }
            }
            admin::RULE_DOWNLOAD => {
                AdminCommand::RuleDownload { offset: cdw11, bytes: u64::from(cdw10) + 1 }
            }
            admin::RULE_INSTALL => AdminCommand::RuleInstall,
            admin::RULE_REJECT => AdminCommand::RuleReject {
                op: match cdw10 {
                    u32::MAX => None,
                    op => Some(op.try_into().map_err(|_| Status::INVALID_FIELD)?),
                },
            },
            admin::RULE_TABLE_EDIT | admin::RULE_TABLE_READ => rule_table::parse(sqe)?,
            admin::GEOMETRY => AdminCommand::Geometry { nsid: sqe.nsid.get() },
            _ => return Err(Status::INVALID_OPCODE),
        })
    }

    /// Returns the entry that [`parse`](AdminCommand::parse) parses as this command. The command
    /// identifier is zero, and so is the data pointer, except for the memory of queues.
    ///
    /// Values out of range are a bug of the caller: they are asserted in debug builds, and
    /// truncated to the width of their field otherwise.
    pub fn to_sqe(self) -> Sqe {
        match self {
            AdminCommand::DeleteSq { qid } => Sqe::admin(admin::DELETE_SQ, 0, qid.into(), 0),
            AdminCommand::DeleteCq { qid } => Sqe::admin(admin::DELETE_CQ, 0, qid.into(), 0),
            AdminCommand::CreateSq { qid, entries, at, cqid, priority } => {
                let cdw11 = PC | (priority as u32) << 1 | u32::from(cqid) << 16;
                let mut sqe =
                    Sqe::admin(admin::CREATE_SQ, 0, encode_queue_dword(qid, entries), cdw11);
                sqe.set_prp(at, 0);
                sqe
            }
            AdminCommand::CreateCq { qid, entries, at, vector } => {
                let cdw11 = PC | vector.map_or(0, |v| IEN | u32::from(v) << 16);
                let mut sqe =
                    Sqe::admin(admin::CREATE_CQ, 0, encode_queue_dword(qid, entries), cdw11);
                sqe.set_prp(at, 0);
                sqe
            }
            AdminCommand::GetLogPage { lid, nsid, bytes, offset, retain } => {
                debug_assert!(bytes >= 4 && bytes.is_multiple_of(4) && bytes <= 1 << 34);
                debug_assert!(offset.is_multiple_of(4));
                let dwords = (bytes / 4).wrapping_sub(1);
                let rae = if retain { RAE } else { 0 };
                let cdw10 = u32::from(lid) | rae | (dwords as u32) << 16;
                let cdw11 = (dwords >> 16) as u32 & 0xffff;
                let mut sqe = Sqe::admin(admin::GET_LOG_PAGE, nsid, cdw10, cdw11);
                sqe.cdw12 = (offset as u32).into();
                sqe.cdw13 = ((offset >> 32) as u32).into();
                sqe
            }
            AdminCommand::Identify { cns, nsid } => {
                Sqe::admin(admin::IDENTIFY, nsid, cns.into(), 0)
            }
            AdminCommand::Abort { sqid, cid } => {
                Sqe::admin(admin::ABORT, 0, u32::from(sqid) | u32::from(cid) << 16, 0)
            }
            AdminCommand::SetFeatures { fid, save, value } => {
                let sv = if save { SV } else { 0 };
                Sqe::admin(admin::SET_FEATURES, 0, u32::from(fid) | sv, value)
            }
            AdminCommand::GetFeatures { fid, select, member } => {
                let cdw10 = u32::from(fid) | (select as u32) << 8;
                Sqe::admin(admin::GET_FEATURES, 0, cdw10, member)
            }
            AdminCommand::AsyncEventRequest => Sqe::admin(admin::ASYNC_EVENT_REQUEST, 0, 0, 0),
            AdminCommand::KeepAlive => Sqe::admin(admin::KEEP_ALIVE, 0, 0, 0),
            AdminCommand::RuleDownload { offset, bytes } => {
                debug_assert!((1..=1 << 32).contains(&bytes));
                Sqe::admin(admin::RULE_DOWNLOAD, 0, bytes.wrapping_sub(1) as u32, offset)
            }
            AdminCommand::RuleInstall => Sqe::admin(admin::RULE_INSTALL, 0, 0, 0),
            AdminCommand::RuleTableEdit { table, action, entries } => {
                let word = u32::from(table) | (action as u32) << 8;
                Sqe::admin(admin::RULE_TABLE_EDIT, 0, entries.wrapping_sub(1), word)
            }
            AdminCommand::RuleTableRead { table, first, entries } => {
                let count = entries.wrapping_sub(1);
                let mut sqe = Sqe::admin(admin::RULE_TABLE_READ, 0, count, table.into());
                sqe.cdw12 = (first as u32).into();
                sqe.cdw13 = ((first >> 32) as u32).into();
                sqe
            }
            AdminCommand::RuleReject { op } => {
                Sqe::admin(admin::RULE_REJECT, 0, op.map_or(u32::MAX, u32::from), 0)
            }
            AdminCommand::NamespaceManagement { change, nsid } => {
                Sqe::admin(admin::NAMESPACE_MANAGEMENT, nsid, change as u32, 0)
            }
            AdminCommand::NamespaceAttachment { nsid, attach } => {
                Sqe::admin(admin::NAMESPACE_ATTACHMENT, nsid, (!attach).into(), 0)
            }
            AdminCommand::GetLbaStatus { nsid, slba, nlb, bytes } => {
                debug_assert!(bytes >= 4 && bytes.is_multiple_of(4) && bytes <= 1 << 34);
                let mut sqe = Sqe::new(admin::GET_LBA_STATUS, nsid);
                sqe.set_slba(slba);
                sqe.cdw12 = ((bytes / 4).wrapping_sub(1) as u32).into();
                sqe.cdw13 = u32::from(nlb).into();
                sqe
            }
            AdminCommand::FormatNvm { nsid, lba_format, protection, erase } => {
                debug_assert!(lba_format < 16 && protection < 32);
                let settings = u32::from(lba_format & 0xf) | u32::from(protection & 0x1f) << 4;
                Sqe::admin(admin::FORMAT_NVM, nsid, settings | (erase as u32) << 9, 0)
            }
            AdminCommand::Sanitize(command) => {
                let (cdw10, cdw11) = command.to_dwords();
                Sqe::admin(admin::SANITIZE, 0, cdw10, cdw11)
            }
            AdminCommand::DoorbellBufferConfig { values, events } => {
                let mut sqe = Sqe::admin(admin::DOORBELL_BUFFER_CONFIG, 0, 0, 0);
                sqe.set_prp(values, events);
                sqe
            }
            AdminCommand::Geometry { nsid } => Sqe::admin(admin::GEOMETRY, nsid, 0, 0),
        }
    }

    /// Returns the name of the command, for messages.
    pub fn name(self) -> &'static str {
        match self {
            AdminCommand::DeleteSq { .. } => "Delete I/O Submission Queue",
            AdminCommand::CreateSq { .. } => "Create I/O Submission Queue",
            AdminCommand::DeleteCq { .. } => "Delete I/O Completion Queue",
            AdminCommand::CreateCq { .. } => "Create I/O Completion Queue",
            AdminCommand::GetLogPage { .. } => "Get Log Page",
            AdminCommand::Identify { .. } => "Identify",
            AdminCommand::Abort { .. } => "Abort",
            AdminCommand::SetFeatures { .. } => "Set Features",
            AdminCommand::GetFeatures { .. } => "Get Features",
            AdminCommand::AsyncEventRequest => "Asynchronous Event Request",
            AdminCommand::KeepAlive => "Keep Alive",
            AdminCommand::NamespaceManagement { .. } => "Namespace Management",
            AdminCommand::NamespaceAttachment { .. } => "Namespace Attachment",
            AdminCommand::GetLbaStatus { .. } => "Get LBA Status",
            AdminCommand::FormatNvm { .. } => "Format NVM",
            AdminCommand::Sanitize(_) => "Sanitize",
            AdminCommand::DoorbellBufferConfig { .. } => "Doorbell Buffer Config",
            AdminCommand::RuleDownload { .. } => "Rule Program Download",
            AdminCommand::RuleInstall => "Rule Program Install",
            AdminCommand::RuleReject { .. } => "Rule Miss Reject",
            AdminCommand::RuleTableEdit { .. } => "Rule Table Edit",
            AdminCommand::RuleTableRead { .. } => "Rule Table Read",
            AdminCommand::Geometry { .. } => "Geometry",
        }
    }
}

fn encode_queue_dword(qid: u16, entries: u32) -> u32 {
    debug_assert!((2..=1 << 16).contains(&entries), "{entries} entries");
    u32::from(qid) | (entries.wrapping_sub(1) & 0xffff) << 16
}

impl Sqe {
    fn admin(opcode: u8, nsid: u32, cdw10: u32, cdw11: u32) -> Sqe {
        let mut sqe = Sqe::new(opcode, nsid);
        sqe.cdw10 = cdw10.into();
        sqe.cdw11 = cdw11.into();
        sqe
    }
}
