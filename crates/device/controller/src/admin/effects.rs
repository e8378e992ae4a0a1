//! The commands supported and effects log page [NVMe1.4 §5.14.1.5].
//!
//! A command is supported if its opcode can be parsed, and the drive does not refuse it because of
//! its personality or configuration.

use nvme::opcode::{admin, io};
use nvme::{
    AdminCommand, CommandEffects, IdentifyController, IoCommand, RuleCommandKind, Sqe, Status,
    VendorExtensions,
};

use super::ControllerIdentity;
use crate::PersonalityKind;

/// Opcodes from this one on are vendor specific.
const VENDOR_OPCODES: u8 = 0x80;

/// I/O commands that change logical blocks, also those of drives that do not support them.
const CHANGES_BLOCKS: [u8; 11] = [
    io::WRITE,
    io::WRITE_UNCORRECTABLE,
    io::WRITE_ZEROES,
    io::DATASET_MANAGEMENT,
    io::COPY,
    io::VECTOR_RESET,
    io::VECTOR_WRITE,
    io::VECTOR_COPY,
    io::DEVICE_TRIM,
    io::NAMED_WRITE,
    io::NAMED_FREE,
];

/// Returns the page.
pub(super) fn page(identity: &ControllerIdentity) -> CommandEffects {
    let mut page = CommandEffects::none();
    for opcode in 0..=u8::MAX {
        let sqe = Sqe::new(opcode, identity.namespace.nsid);
        let is_known = AdminCommand::parse(&sqe) != Err(Status::INVALID_OPCODE);
        if is_known && has_admin_command(identity, opcode) {
            let changes = match opcode {
                admin::FORMAT_NVM | admin::SANITIZE => CommandEffects::CHANGES_BLOCKS,
                admin::NAMESPACE_MANAGEMENT => {
                    CommandEffects::CHANGES_BLOCKS | CommandEffects::CHANGES_INVENTORY
                }
                admin::NAMESPACE_ATTACHMENT => CommandEffects::CHANGES_INVENTORY,
                _ => 0,
            };
            page.set_admin(opcode, CommandEffects::SUPPORTED | changes);
        }
        let is_known = IoCommand::parse(&sqe) != Err(Status::INVALID_OPCODE);
        if is_known && has_io_command(identity, opcode) {
            let changes = match CHANGES_BLOCKS.contains(&opcode) {
                true => CommandEffects::CHANGES_BLOCKS,
                false => 0,
            };
            page.set_io(opcode, CommandEffects::SUPPORTED | changes);
        }
    }
    page
}

/// Whether a drive has an admin command, if any drive has it.
pub(super) fn has_admin_command(identity: &ControllerIdentity, opcode: u8) -> bool {
    match opcode {
        admin::DOORBELL_BUFFER_CONFIG => identity.optional.doorbell_buffer,
        admin::KEEP_ALIVE => identity.optional.keep_alive,
        admin::GEOMETRY => identity.geometry.is_some(),
        admin::GET_LBA_STATUS => identity.optional.get_lba_status,
        admin::FORMAT_NVM => identity.optional.format,
        admin::NAMESPACE_MANAGEMENT | admin::NAMESPACE_ATTACHMENT => identity.optional.namespaces,
        admin::SANITIZE => identity.optional.sanitize,
        admin::RULE_DOWNLOAD
        | admin::RULE_INSTALL
        | admin::RULE_TABLE_EDIT
        | admin::RULE_TABLE_READ
        | admin::RULE_REJECT => identity.optional.rules,
        _ => true,
    }
}

fn has_io_command(identity: &ControllerIdentity, opcode: u8) -> bool {
    let is_open_channel = identity.personality == PersonalityKind::OpenChannel;
    let has = |command| identity.namespace.block_commands & command != 0;
    match opcode {
        io::COMPARE => has(IdentifyController::ONCS_COMPARE),
        io::WRITE_UNCORRECTABLE => has(IdentifyController::ONCS_WRITE_UNCORRECTABLE),
        io::VERIFY => has(IdentifyController::ONCS_VERIFY),
        io::COPY => has(IdentifyController::ONCS_COPY),
        io::FLUSH | io::WRITE | io::READ | io::DATASET_MANAGEMENT => true,
        io::LBA_STATUS => identity.optional.lba_status,
        io::DEVICE_TRIM => identity.extensions.has(VendorExtensions::DEVICE_L2P),
        io::NAMED_WRITE | io::NAMED_READ | io::NAMED_FREE => identity.optional.names,
        _ if RuleCommandKind::from_opcode(opcode).is_some() => identity.optional.rules,
        VENDOR_OPCODES.. => is_open_channel,
        _ => !is_open_channel,
    }
}
