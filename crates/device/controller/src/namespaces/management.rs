//! Namespace Management and Namespace Attachment [NVMe1.4 §5.19, §5.20], as commands of hosts and as
//! requests of administrators without queues.
//!
//! The table in the non-volatile settings changes in one step, so that a power cut leaves the old
//! table or the new one. The contents follow from the order of the steps. A delete first changes the
//! table and then deallocates the blocks. A create first deallocates the blocks that the namespace
//! will have, and flushes that, and then changes the table. Blocks of a deleted namespace are thus
//! never blocks of a new one with their contents, also after a power cut between any two steps.

use nvme::{ControllerList, NamespaceChange, NewNamespace, ProtectionType, Sqe, Status};
use time::Nanos;

use crate::DriveConfig;
use crate::command::data_buffer::DataBuffer;
use crate::controller::{Controller, Personality};
use crate::error::DriveError;
use crate::host_interface::access::AccessCheck;
use crate::namespaces::identify::CONTROLLER;
use crate::namespaces::request::{NamespaceError, NamespaceReply, NamespaceRequest};
use crate::namespaces::settings;
use crate::namespaces::table::{NamespaceSpace, NamespaceTable};
use crate::namespaces::translation::{ALL_NAMESPACES, is_valid};
use crate::persistence::nonvolatile::NonVolatile;
use crate::personality::block::{BlockDrive, INTERNAL_TAG};
use crate::personality::format::{self, FormatCommand, FormatTask, RunRequester};
use crate::personality::logical_blocks::LogicalBlocks;
use crate::personality::spaces::Spaces;

/// Returns the table of a drive at power-on: that of its settings, or that of a new drive. Blocks
/// that no namespace has are deallocated.
///
/// # Errors
/// [`DriveError::Config`] if the namespaces do not fit the drive.
pub(crate) fn open_table(
    config: &DriveConfig,
    settings: &mut NonVolatile,
    spaces: &mut Spaces,
    blocks: LogicalBlocks,
    is_new: bool,
) -> Result<NamespaceTable, DriveError> {
    let space = NamespaceSpace { units: spaces.sectors(), unit_blocks: blocks.unit_blocks() };
    let layout = &config.controller.namespaces;
    let Some(table) = settings::load(settings, space)? else {
        if !is_new && !layout.is_default() {
            return Err(DriveError::Config {
                what: "namespaces for a drive that has one and is not new".into(),
                allowed: "create them with Namespace Management, or use a new image".into(),
            });
        }
        let block_bytes = config.lba_bytes();
        let table = NamespaceTable::new(space, layout, block_bytes).map_err(|needed| {
            let capacity = space.units * u64::from(space.unit_blocks) * u64::from(block_bytes);
            DriveError::Config {
                what: format!("the namespaces need {needed} bytes"),
                allowed: format!("the drive has a capacity of {capacity} bytes"),
            }
        })?;
        if !layout.is_default() {
            settings::save(settings, &table)?;
        }
        return Ok(table);
    };
    for extent in table.free_extents() {
        let (units, ftl) = (extent.units as u32, &mut spaces.first);
        if ftl.extent(extent.first, units) != (false, units) {
            ftl.trim(INTERNAL_TAG, extent.first, units);
        }
    }
    Ok(table)
}

impl NamespaceTable {
    /// Changes the table, and then the copy in the settings; neither on failure.
    ///
    /// # Errors
    /// *Internal error* if the settings cannot be written.
    pub(crate) fn change(
        &mut self,
        settings: &mut NonVolatile,
        change: impl FnOnce(&mut NamespaceTable),
    ) -> Result<(), Status> {
        let mut next = self.clone();
        change(&mut next);
        if let Err(error) = settings::save(settings, &next) {
            tracing::error!("the table of namespaces cannot be written: {error}");
            return Err(Status::INTERNAL);
        }
        *self = next;
        Ok(())
    }
}

/// Decides whether namespaces of new commands are checked.
pub(crate) fn update_checks(controller: &mut Controller) {
    // On a drive with several applications, each command is given that of its host.
    let is_direct = match &controller.personality {
        Personality::Block(drive) => drive.namespaces.is_direct() && !drive.spaces.are_several(),
        _ => true,
    };
    let is_other = |rights: &AccessCheck| rights.nsid() != 1;
    let mut ports = controller.queues.ports.iter();
    let has_other_hosts = ports.any(|port| port.access.as_deref().is_some_and(is_other));
    let commands = &mut controller.commands;
    let is_maintained = commands.is_formatting || commands.refused_with.is_some();
    commands.checks_namespaces = !is_direct || has_other_hosts || is_maintained;
    let has_rules_to_follow = commands.rules.as_ref().is_some_and(|rules| rules.follows_ftl());
    commands.follows_ftl = commands.checks_namespaces || has_rules_to_follow;
}

/// Returns the drive, if its namespaces can be changed by a host.
fn managed_drive(controller: &mut Controller, port: usize) -> Result<&mut BlockDrive, Status> {
    let is_restricted = controller.queues.ports[port].access.is_some();
    let has_rules = controller.commands.rules.is_some();
    match &mut controller.personality {
        Personality::Block(drive) if !is_restricted && !has_rules => Ok(drive),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Reads 4096 bytes of data of an admin command.
fn read_data(controller: &Controller, port: usize, sqe: &Sqe) -> Result<[u8; 4096], Status> {
    let mut data = [0; 4096];
    let memory = controller.queues.ports[port].port.memory();
    let buffer = DataBuffer::from_sqe(sqe, data.len() as u64, memory)?;
    if !buffer.has_data() {
        // Bit Bucket descriptors have no data for the drive [NVMe1.4 §4.4].
        return Err(Status::SGL_LENGTH_INVALID);
    }
    buffer.read(memory, 0, &mut data);
    Ok(data)
}

/// Checks the description of a new namespace, whose protection information is that of the drive.
/// Returns its number of blocks.
fn check_new(new: &NewNamespace, protection: Option<ProtectionType>) -> Result<u64, Status> {
    let reserved = [&new.reserved16[..], &new.reserved27, &new.reserved31, &new.reserved96];
    let is_reserved_zero = reserved
        .iter()
        .chain([&&new.reserved102[..]])
        .all(|bytes| bytes.iter().all(|byte| *byte == 0));
    // One controller: a namespace cannot be shared. There are no groups and sets.
    let is_private = (new.nmic, new.anagrpid.get(), new.nvmsetid.get()) == (0, 0, 0);
    let (blocks, capacity) = (new.nsze.get(), new.ncap.get());
    if !is_reserved_zero || !is_private || blocks == 0 || capacity > blocks {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let dps = protection.map_or(0, |kind| 1 + kind as u8);
    if (new.flbas, new.dps) != (0, dps) {
        return Err(Status::INVALID_FORMAT.do_not_retry());
    }
    if capacity < blocks {
        return Err(Status::THIN_PROVISIONING.do_not_retry());
    }
    Ok(blocks)
}

/// Executes Namespace Management. The command completes later.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn manage(
    controller: &mut Controller,
    command: FormatCommand,
    change: NamespaceChange,
    sqe: &Sqe,
) -> Result<(), Status> {
    let nsid = command.nsid;
    managed_drive(controller, command.port)?;
    if sqe.cdw11.get() != 0 || sqe.cdw10.get() > 0xf {
        // Other command sets, and reserved bits.
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let task = match change {
        NamespaceChange::Delete => {
            let table = &managed_drive(controller, command.port)?.namespaces;
            delete_task(table, (nsid != ALL_NAMESPACES).then_some(nsid))?
        }
        NamespaceChange::Create if nsid != 0 => return Err(Status::INVALID_FIELD.do_not_retry()),
        NamespaceChange::Create => {
            let data = read_data(controller, command.port, sqe)?;
            let protection = controller.config.protection;
            let blocks = check_new(&NewNamespace::from_bytes(data), protection)?;
            create_task(&managed_drive(controller, command.port)?.namespaces, blocks)?
        }
    };
    format::request(controller, task, Some(RunRequester::Host(command)))
}

/// Returns the status of a change of a namespace that the drive does not have.
fn unknown(nsid: u32) -> Status {
    let status = if is_valid(nsid) { Status::INVALID_FIELD } else { Status::INVALID_NAMESPACE };
    status.do_not_retry()
}

/// Returns the deletion of a namespace; of all for `None`.
fn delete_task(table: &NamespaceTable, nsid: Option<u32>) -> Result<FormatTask, Status> {
    match nsid {
        Some(nsid) if table.get(nsid).is_none() => Err(unknown(nsid)),
        _ => Ok(FormatTask::Delete { nsid }),
    }
}

/// Returns the creation of a namespace of at least one block.
fn create_task(table: &NamespaceTable, blocks: u64) -> Result<FormatTask, Status> {
    let nsid = table.free_nsid().ok_or(Status::NAMESPACE_ID_UNAVAILABLE)?;
    let extents = table.allocate(blocks).ok_or(Status::NAMESPACE_CAPACITY)?;
    Ok(FormatTask::Create { nsid, blocks, extents })
}

/// Returns the capacity in bytes that the namespace of a Namespace Management requires.
#[cold]
pub(crate) fn required_bytes(controller: &Controller, port: usize, sqe: &Sqe) -> u64 {
    let Personality::Block(drive) = &controller.personality else { return 0 };
    let Ok(data) = read_data(controller, port, sqe) else { return 0 };
    let units = drive.namespaces.needed_units(NewNamespace::from_bytes(data).nsze.get());
    units.saturating_mul(drive.blocks.unit_bytes() as u64)
}

/// Executes Namespace Attachment.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn attach(
    controller: &mut Controller,
    FormatCommand { port, nsid, .. }: FormatCommand,
    attach: bool,
    sqe: &Sqe,
) -> Result<(), Status> {
    managed_drive(controller, port)?;
    if sqe.cdw10.get() > 0xf {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let list = ControllerList::from_bytes(read_data(controller, port, sqe)?).checked();
    let drive = managed_drive(controller, port)?;
    if drive.namespaces.get(nsid).is_some() && list.as_deref() != Some(&[CONTROLLER]) {
        return Err(Status::CONTROLLER_LIST_INVALID.do_not_retry());
    }
    set_attached(controller, nsid, attach)
}

/// Attaches a namespace, or detaches it, and tells the hosts.
///
/// # Errors
/// The status with which the command of a host is to complete.
fn set_attached(controller: &mut Controller, nsid: u32, attach: bool) -> Result<(), Status> {
    let Personality::Block(drive) = &mut controller.personality else {
        return Err(Status::INVALID_OPCODE);
    };
    let namespace = drive.namespaces.get(nsid).ok_or_else(|| unknown(nsid))?;
    match (attach, namespace.is_attached) {
        (true, true) => return Err(Status::NAMESPACE_ATTACHED.do_not_retry()),
        (false, false) => return Err(Status::NAMESPACE_NOT_ATTACHED.do_not_retry()),
        _ => {}
    }
    if let Some(run) = &drive.maintenance.format {
        run.check_idle(Some(nsid))?;
    }
    let BlockDrive { namespaces, maintenance, .. } = &mut **drive;
    namespaces.change(&mut maintenance.settings, |table| table.set_attached(nsid, attach))?;
    tracing::info!(nsid, attach, "namespace attachment changed");
    update_checks(controller);
    controller.namespace_changed(nsid);
    Ok(())
}

/// Executes a request of an administrator without queues at `now`, in nanoseconds of the clock that
/// polls the drive. The drive must be polled afterwards.
///
/// # Errors
/// The reason for which the drive refuses the request; nothing has changed.
pub(crate) fn change(
    controller: &mut Controller,
    now: Nanos,
    request: NamespaceRequest,
) -> Result<NamespaceReply, NamespaceError> {
    let now = now.max(controller.time.at);
    controller.catch_up(now);
    if let Some(status) = controller.commands.refused_with {
        return Err(NamespaceError::Refused { status });
    }
    let Personality::Block(drive) = &controller.personality else {
        return Err(NamespaceError::NotManaged);
    };
    if controller.commands.rules.is_some() {
        // The application of the rules has the whole drive.
        return Err(NamespaceError::NotManaged);
    }
    let (sender, reply) = NamespaceReply::new();
    let (table, unit_blocks) = (&drive.namespaces, u64::from(drive.unit_blocks()));
    let blocks = match request {
        NamespaceRequest::Create { bytes: Some(0) } => return Err(NamespaceError::Empty),
        NamespaceRequest::Create { bytes: Some(bytes) } => {
            bytes.div_ceil(controller.config.lba_bytes().into())
        }
        // Without unallocated capacity, one block shows that there is none.
        _ => (table.unallocated_units() * unit_blocks).max(1),
    };
    let requester = RunRequester::Administrator(sender.clone());
    let changed = match request {
        NamespaceRequest::Create { .. } => create_task(table, blocks)
            .and_then(|task| format::request(controller, task, Some(requester))),
        NamespaceRequest::Delete { nsid } => delete_task(table, nsid)
            .and_then(|task| format::request(controller, task, Some(requester))),
        NamespaceRequest::Attach { nsid } => set_attached(controller, nsid, true),
        NamespaceRequest::Detach { nsid } => set_attached(controller, nsid, false),
    };
    changed.map_err(|status| error_of(controller, request, blocks, status))?;
    if let NamespaceRequest::Attach { .. } | NamespaceRequest::Detach { .. } = request {
        sender.send(Ok(0));
    }
    Ok(reply)
}

/// Returns the reason for a status, with the numbers of the drive.
fn error_of(
    controller: &Controller,
    request: NamespaceRequest,
    blocks: u64,
    status: Status,
) -> NamespaceError {
    let nsid = match request {
        NamespaceRequest::Create { .. } => 0,
        NamespaceRequest::Delete { nsid } => nsid.unwrap_or(ALL_NAMESPACES),
        NamespaceRequest::Attach { nsid } | NamespaceRequest::Detach { nsid } => nsid,
    };
    let Personality::Block(drive) = &controller.personality else {
        return NamespaceError::NotManaged;
    };
    let table = &drive.namespaces;
    let bytes = |units: u64| units.saturating_mul(drive.blocks.unit_bytes() as u64);
    if status.is(Status::NAMESPACE_CAPACITY) {
        let needed_bytes = bytes(table.needed_units(blocks));
        NamespaceError::Capacity {
            needed_bytes,
            unallocated_bytes: bytes(table.unallocated_units()),
        }
    } else if status.is(Status::NAMESPACE_ID_UNAVAILABLE) {
        NamespaceError::TooMany
    } else if status.is(Status::NAMESPACE_ATTACHED) {
        NamespaceError::Attached { nsid }
    } else if status.is(Status::NAMESPACE_NOT_ATTACHED) {
        NamespaceError::NotAttached { nsid }
    } else if status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_NAMESPACE) {
        let present: Vec<String> = table.iter().map(|n| n.nsid.to_string()).collect();
        let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
        NamespaceError::Unknown { nsid, present }
    } else {
        NamespaceError::Refused { status }
    }
}
