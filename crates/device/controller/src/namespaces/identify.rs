//! Identify data of a drive with several namespaces, for its hosts with all rights.

use nvme::{
    CommandSetList, ControllerList, IDENTIFY_BYTES, IdentifyController, IndependentNamespace,
    NamespaceGranularities, NamespaceList, Status, cns, namespace_descriptors,
};

use crate::admin::{AdminState, ControllerIdentity, IdentifyData, NamespaceIdentity};
use crate::controller::{Controller, Personality};
use crate::namespaces::layout::NamespaceInfo;
use crate::namespaces::table::DriveNamespace;
use crate::namespaces::translation::{ALL_NAMESPACES, is_valid};
use crate::personality::block::BlockDrive;

/// Identifier of the only controller.
pub(crate) const CONTROLLER: u16 = 0;

fn zeros() -> IdentifyData {
    Box::new([0; IDENTIFY_BYTES])
}

/// Returns the identity of a drive, with one of its namespaces.
fn identity_of(
    identity: &ControllerIdentity,
    drive: &BlockDrive,
    namespace: &DriveNamespace,
) -> ControllerIdentity {
    let mut identity = identity.clone();
    let atomic = &mut identity.namespace.atomic;
    if namespace.extents.len() > 1 && atomic.sectors > 1 && atomic.boundary == 0 {
        // Extents may end at each granule; both numbers are powers of two.
        let granule = drive.namespaces.granule_units() * u64::from(drive.unit_blocks());
        atomic.boundary = granule.min(1 << 16) as u32;
    }
    identity.namespace = NamespaceIdentity {
        nsid: namespace.nsid,
        generation: namespace.generation,
        sectors: namespace.blocks,
        ..identity.namespace
    };
    identity
}

/// Returns the identity of a drive as a host with one namespace sees it; `None` if the namespace is
/// not attached.
pub(crate) fn host_identity(controller: &Controller, nsid: u32) -> Option<ControllerIdentity> {
    let identity = controller.admin.identity();
    match &controller.personality {
        Personality::Block(drive) => {
            drive.namespaces.active(nsid).map(|namespace| identity_of(identity, drive, namespace))
        }
        _ => (nsid == 1).then(|| identity.clone()),
    }
}

/// Returns the number of mapped blocks of a namespace.
fn mapped_blocks(drive: &BlockDrive, namespace: &DriveNamespace) -> u64 {
    if drive.namespaces.is_direct() {
        return drive.mapped_blocks();
    }
    let mut mapped = 0;
    for extent in &namespace.extents {
        let (mut unit, end) = (extent.first, extent.first + extent.units);
        while unit < end {
            let left = u32::try_from(end - unit).unwrap_or(u32::MAX);
            let (is_mapped, count) = drive.spaces.first.extent(unit, left);
            mapped += if is_mapped { u64::from(count) } else { 0 };
            unit += u64::from(count);
        }
    }
    (mapped * u64::from(drive.unit_blocks())).min(namespace.blocks)
}

/// Returns the bytes of units of a drive.
fn bytes(admin: &AdminState, drive: &BlockDrive, units: u64) -> u64 {
    let block_bytes = u64::from(admin.identity().namespace.sector_bytes);
    units * u64::from(drive.unit_blocks()) * block_bytes
}

fn namespace_data(
    admin: &AdminState,
    drive: &BlockDrive,
    namespace: &DriveNamespace,
) -> IdentifyData {
    let identity = identity_of(admin.identity(), drive, namespace);
    let mut data = identity.identify_namespace(mapped_blocks(drive, namespace));
    data.nvmcap = u128::from(bytes(admin, drive, namespace.allocated_units())).into();
    Box::new(data.to_bytes())
}

/// Returns the capabilities that all namespaces have in common.
fn common_data(admin: &AdminState) -> IdentifyData {
    let mut data = admin.identity().identify_namespace(0);
    (data.nsze, data.ncap, data.nvmcap) = (0.into(), 0.into(), 0.into());
    data.nguid = [0; 16];
    Box::new(data.to_bytes())
}

/// Returns the data of Identify for a host with all rights. `controller` is the first identifier of
/// lists of controllers.
///
/// # Errors
/// The status with which the command is to complete.
pub(crate) fn identify(
    admin: &AdminState,
    drive: &BlockDrive,
    cns: u8,
    nsid: u32,
    controller: u16,
) -> Result<IdentifyData, Status> {
    let table = &drive.namespaces;
    let controllers = |list: &[u16]| -> Result<IdentifyData, Status> {
        let from = list.iter().copied().filter(|id| *id >= controller).collect::<Vec<_>>();
        Ok(Box::new(ControllerList::of(&from).to_bytes()))
    };
    let is_all = nsid == ALL_NAMESPACES;
    match cns {
        cns::CONTROLLER => {
            let mut data = IdentifyController::from_bytes(*admin.identify(cns, nsid, 0)?);
            let unallocated = bytes(admin, drive, table.unallocated_units());
            data.unvmcap = u128::from(unallocated).into();
            return Ok(Box::new(data.to_bytes()));
        }
        cns::COMMAND_SET_CONTROLLER => return Ok(zeros()),
        cns::COMMAND_SETS => return Ok(Box::new(CommandSetList::nvm_only())),
        cns::CONTROLLERS => return controllers(&[CONTROLLER]),
        cns::NAMESPACE_GRANULARITIES => {
            let granule = bytes(admin, drive, table.granule_units());
            return Ok(Box::new(NamespaceGranularities::of(granule).to_bytes()));
        }
        // Identifiers of FFFFFFFEh and FFFFFFFFh are invalid here [NVMe1.4 §5.15.2.3].
        cns::ACTIVE_NAMESPACES
        | cns::ALLOCATED_NAMESPACES
        | cns::COMMAND_SET_ACTIVE_NAMESPACES
        | cns::COMMAND_SET_ALLOCATED_NAMESPACES
            if nsid < ALL_NAMESPACES - 1 =>
        {
            let allocated =
                matches!(cns, cns::ALLOCATED_NAMESPACES | cns::COMMAND_SET_ALLOCATED_NAMESPACES);
            let listed = table.iter().filter(|n| allocated || n.is_attached).map(|n| n.nsid);
            let list = NamespaceList::above(nsid, &listed.collect::<Vec<_>>());
            return Ok(Box::new(list.to_bytes()));
        }
        cns::NAMESPACE if is_all => return Ok(common_data(admin)),
        cns::COMMAND_SET_NAMESPACE if is_all => return Ok(zeros()),
        cns::INDEPENDENT_NAMESPACE if is_all => {
            return Ok(Box::new(IndependentNamespace::ready(false).to_bytes()));
        }
        cns::ATTACHED_CONTROLLERS if is_all => return Err(Status::INVALID_FIELD),
        cns::NAMESPACE
        | cns::ACTIVE_NAMESPACES
        | cns::NAMESPACE_DESCRIPTORS
        | cns::COMMAND_SET_NAMESPACE
        | cns::COMMAND_SET_ACTIVE_NAMESPACES
        | cns::INDEPENDENT_NAMESPACE
        | cns::ALLOCATED_NAMESPACES
        | cns::ALLOCATED_NAMESPACE
        | cns::ATTACHED_CONTROLLERS
        | cns::COMMAND_SET_ALLOCATED_NAMESPACES
        | cns::COMMAND_SET_ALLOCATED_NAMESPACE
            if !is_valid(nsid) =>
        {
            return Err(Status::INVALID_NAMESPACE);
        }
        _ => {}
    }
    // An identifier without the namespace has a structure of zeros.
    let data = |namespace: Option<&DriveNamespace>| {
        Ok(namespace.map_or_else(zeros, |found| namespace_data(admin, drive, found)))
    };
    match cns {
        cns::NAMESPACE => data(table.active(nsid)),
        cns::ALLOCATED_NAMESPACE => data(table.get(nsid)),
        cns::NAMESPACE_DESCRIPTORS => {
            let namespace = table.active(nsid).ok_or(Status::INVALID_NAMESPACE)?;
            let identity = identity_of(admin.identity(), drive, namespace);
            Ok(Box::new(namespace_descriptors(identity.nguid())))
        }
        cns::INDEPENDENT_NAMESPACE if table.active(nsid).is_some() => {
            Ok(Box::new(IndependentNamespace::ready(false).to_bytes()))
        }
        cns::INDEPENDENT_NAMESPACE
        | cns::COMMAND_SET_NAMESPACE
        | cns::COMMAND_SET_ALLOCATED_NAMESPACE => Ok(zeros()),
        cns::ATTACHED_CONTROLLERS => match table.get(nsid) {
            Some(namespace) if namespace.is_attached => controllers(&[CONTROLLER]),
            Some(_) => controllers(&[]),
            None => Err(Status::INVALID_FIELD),
        },
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Returns the namespaces of a drive.
pub(crate) fn namespaces(controller: &Controller) -> Vec<NamespaceInfo> {
    let admin = &controller.admin;
    let Personality::Block(drive) = &controller.personality else {
        let (blocks, block_bytes) = (controller.sectors(), controller.config.lba_bytes());
        return vec![NamespaceInfo {
            nsid: 1,
            blocks,
            block_bytes,
            used_blocks: blocks,
            allocated_bytes: blocks * u64::from(block_bytes),
            is_attached: true,
            nguid: admin.identity().nguid(),
        }];
    };
    let info = |namespace: &DriveNamespace| NamespaceInfo {
        nsid: namespace.nsid,
        blocks: namespace.blocks,
        block_bytes: controller.config.lba_bytes(),
        used_blocks: mapped_blocks(drive, namespace),
        allocated_bytes: bytes(admin, drive, namespace.allocated_units()),
        is_attached: namespace.is_attached,
        nguid: identity_of(admin.identity(), drive, namespace).nguid(),
    };
    drive.namespaces.iter().map(info).collect()
}

/// Returns the capacity in bytes that no namespace has.
pub(crate) fn unallocated_bytes(controller: &Controller) -> u64 {
    match &controller.personality {
        Personality::Block(drive) => {
            bytes(&controller.admin, drive, drive.namespaces.unallocated_units())
        }
        _ => 0,
    }
}
