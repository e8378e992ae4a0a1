//! Steps of the initialization of a [`ControllerHandle`](super::ControllerHandle): the part of
//! [NVMe1.4 §7.6.1] that uses queues.

use mem::{NotRegistered, PAGE_BYTES};
use nvme::feature::{self, NumberOfQueues};
use nvme::{AdminCommand, IdentifyController, NamespaceList, cns};
use time::Nanos;
use transport::{Port, ShadowDoorbells, ShadowPages};

use crate::controller::admin::{AdminQueue, ProgressFn};
use crate::{DataPointers, DriverError};

/// Time that a real controller may leave an admin command unanswered.
pub(super) const ADMIN_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Maximum number of entries of a queue, if no register reports a smaller one.
pub(super) const QUEUE_ENTRIES_MAX: u32 = 1 << 16;

/// Sets up doorbells in memory: the page of event indices follows the page of values. If a drive
/// reports support but rejects the command, its registers are used.
pub(super) fn set_up_shadow_doorbells(
    port: &Port,
    admin: &mut AdminQueue,
    progress: ProgressFn<'_>,
) -> Result<Option<(ShadowDoorbells, AdminCommand)>, DriverError> {
    let (_, at) = port.memory().allocate_registered(2 * PAGE_BYTES)?;
    let pages = ShadowPages { values: at, events: at.offset(PAGE_BYTES as u64) };
    let shadows = ShadowDoorbells::open(port.memory(), pages, port.shadow_stride())?;
    let wire = |at| {
        port.memory().bus_address(at).ok_or(NotRegistered { iova: at, len: PAGE_BYTES as u64 })
    };
    let (values, events) = (wire(pages.values)?, wire(pages.events)?);
    let command = AdminCommand::DoorbellBufferConfig { values, events };
    match admin.run(command, 0, progress) {
        Ok(_) => Ok(Some((shadows, command))),
        Err(DriverError::Command { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Chooses the kind of data pointers: the requested one, if the drive supports it. Memory that the
/// drive reaches page by page needs PRPs.
pub(super) fn choose_data_pointers(
    controller: &IdentifyController,
    asked: Option<DataPointers>,
    by_pages: bool,
) -> Result<DataPointers, DriverError> {
    let best = match (controller.supports_sgls(), controller.supports_sgl_bit_bucket()) {
        _ if by_pages => DataPointers::Prp,
        (_, true) => DataPointers::Sgl,
        (true, false) => DataPointers::SglAndPrp,
        (false, false) => DataPointers::Prp,
    };
    let data = asked.unwrap_or(best);
    match (data, best) {
        (DataPointers::Sgl, DataPointers::SglAndPrp | DataPointers::Prp) => {
            Err(DriverError::Unsupported { what: "SGLs with bit buckets" })
        }
        (DataPointers::SglAndPrp, DataPointers::Prp) => {
            Err(DriverError::Unsupported { what: "SGLs at any alignment" })
        }
        _ => Ok(data),
    }
}

/// Returns the requested namespace if it is active; without a request, the first active one.
pub(super) fn choose_namespace(
    admin: &mut AdminQueue,
    asked: Option<u32>,
    progress: ProgressFn<'_>,
) -> Result<u32, DriverError> {
    // The first active namespace after the one before it is the requested one, if it is active.
    let above = asked.map_or(0, |nsid| nsid.saturating_sub(1));
    let command = AdminCommand::Identify { cns: cns::ACTIVE_NAMESPACES, nsid: above };
    let first = NamespaceList::from_bytes(admin.identify(command, progress)?).iter().next();
    match (asked, first) {
        (None, Some(first)) => Ok(first),
        (Some(nsid), Some(first)) if nsid == first => Ok(nsid),
        (Some(nsid), _) => Err(DriverError::NoSuchNamespace { nsid }),
        (None, None) => Err(DriverError::NoNamespace),
    }
}

/// Requests `most` I/O queue pairs. Returns how many the drive grants.
pub(super) fn negotiate_queue_count(
    admin: &mut AdminQueue,
    most: u16,
    progress: ProgressFn<'_>,
) -> Result<u16, DriverError> {
    let value = NumberOfQueues { submission: most, completion: most }.to_value();
    let command = AdminCommand::SetFeatures { fid: feature::NUMBER_OF_QUEUES, save: false, value };
    let granted = admin.run(command, 0, progress)? as u32;
    match NumberOfQueues::from_value(granted) {
        // A drive may grant more than requested ([NVMe1.4 §5.21.1.7]).
        Some(counts) => Ok(counts.submission.min(counts.completion).min(most)),
        None => Err(DriverError::Implausible {
            what: format!("that it granted queues {granted:#010x}"),
        }),
    }
}
