//! Initialization of a [`ControllerHandle`] over a port: the part of [NVMe1.4 §7.6.1] that uses
//! queues.

use std::sync::Arc;

use mem::{NotRegistered, PAGE_BYTES};
use nvme::feature::{self, NumberOfQueues};
use nvme::{AdminCommand, GeometryPage, IdentifyController, IdentifyNamespace, NamespaceList, cns};
use time::Nanos;
use transport::{Port, ShadowDoorbells};

use super::{ConnectOptions, ControllerHandle, DoorbellUse};
use crate::controller::admin::{AdminQueue, ProgressFn};
use crate::controller::info::CommandSupport;
use crate::controller::init;
use crate::controller::reset::ControllerGeneration;
use crate::{Cmb, ControllerInfo, DataPointers, DriverError};

/// Time that a real controller may leave an admin command unanswered.
const ADMIN_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Maximum number of entries of a queue, if no register reports a smaller one.
const QUEUE_ENTRIES_MAX: u32 = 1 << 16;

impl ControllerHandle {
    /// Initializes the drive at the other end of `port`: identifies it and negotiates the number of
    /// queues. `timeout_polls` is the number of calls of `progress` after which an admin command counts
    /// as unanswered.
    ///
    /// # Errors
    /// [`DriverError`]: the drive does not answer, returns an error, or reports impossible values.
    pub fn connect(
        port: Arc<Port>,
        progress: &mut dyn FnMut(),
        timeout_polls: u64,
    ) -> Result<ControllerHandle, DriverError> {
        ControllerHandle::connect_with(port, ConnectOptions::default(), progress, timeout_polls)
    }

    /// Initializes the drive as [`connect`](ControllerHandle::connect) does, with options.
    ///
    /// # Errors
    /// As for `connect`; also [`DriverError::NoSuchNamespace`], and [`DriverError::Unsupported`]
    /// for SGLs with a drive that does not support them.
    pub fn connect_with(
        port: Arc<Port>,
        options: ConnectOptions,
        progress: &mut dyn FnMut(),
        timeout_polls: u64,
    ) -> Result<ControllerHandle, DriverError> {
        let mut admin = AdminQueue::open(&port, timeout_polls)?;
        let identify = |cns, nsid| AdminCommand::Identify { cns, nsid };
        let controller =
            IdentifyController::from_bytes(admin.identify(identify(cns::CONTROLLER, 0), progress)?);
        let data = choose_data_pointers(&controller, options.data, port.memory().is_paged())?;
        let nsid = choose_namespace(&mut admin, options.nsid, progress)?;
        let namespace = IdentifyNamespace::from_bytes(
            admin.identify(identify(cns::NAMESPACE, nsid), progress)?,
        );
        if namespace.is_open_channel() && port.memory().is_paged() {
            return Err(DriverError::Unsupported { what: "IOMMU, which vector commands need" });
        }
        let geometry = if namespace.is_open_channel() {
            let page = admin.identify(AdminCommand::Geometry { nsid }, progress)?;
            Some(GeometryPage::from_bytes(page))
        } else {
            None
        };
        let most = port.max_io_queues().min(options.queues.unwrap_or(u16::MAX));
        let io_queues = negotiate_queue_count(&mut admin, most, progress)?;
        let offered = controller.oacs.get() & IdentifyController::OACS_DOORBELL_BUFFER_CONFIG != 0;
        let shadows = match options.doorbells {
            DoorbellUse::Memory if offered => set_up_shadow_doorbells(&port, &mut admin, progress)?,
            DoorbellUse::Memory | DoorbellUse::Registers => None,
        };
        let own_commands = !port.is_real_controller();
        let how = CommandSupport { data_pointers: data, own_commands };
        let info =
            ControllerInfo::new(&controller, nsid, &namespace, geometry.as_ref(), io_queues, how)?;
        let cmb = Cmb::from_port(&port, &controller)?;
        let queues = vec![None; usize::from(info.io_queues)];
        Ok(ControllerHandle {
            port,
            admin,
            info,
            cmb,
            event_subscription: None,
            event_requested: false,
            queues,
            spare: Vec::new(),
            indeterminate_queues: Vec::new(),
            spare_ranges: Vec::new(),
            spare_lists: Vec::new(),
            shadows,
            max_entries: QUEUE_ENTRIES_MAX,
            reset_in_progress: None,
            queues_negotiated: true,
            generation: ControllerGeneration::default(),
            resets: 0,
        })
    }

    /// Initializes a real controller. Disables it, sets the addresses of the admin queues of
    /// `port`, enables it, and continues as [`connect_with`](ControllerHandle::connect_with).
    ///
    /// `pump_time` is the minimum duration of a call of `progress`. The controller gets the time that
    /// it reports, and ten seconds per admin command.
    ///
    /// # Errors
    /// As for `connect_with`; also [`DriverError::InitTimeout`], [`DriverError::Failed`] and
    /// [`DriverError::Removed`].
    pub fn connect_pci(
        port: Arc<Port>,
        options: ConnectOptions,
        progress: &mut dyn FnMut(),
        pump_time: Nanos,
    ) -> Result<ControllerHandle, DriverError> {
        let capabilities = init::capabilities(&port)?;
        init::stop(&port, progress, pump_time)?;
        init::start(&port, progress, pump_time)?;
        let polls = ADMIN_TIMEOUT.0 / pump_time.0.max(1);
        let mut controller = ControllerHandle::connect_with(port, options, progress, polls)?;
        controller.max_entries = capabilities.max_entries;
        Ok(controller)
    }
}

/// Sets up doorbells in memory: the page of event indices follows the page of values. If a drive
/// reports support but rejects the command, its registers are used.
fn set_up_shadow_doorbells(
    port: &Port,
    admin: &mut AdminQueue,
    progress: ProgressFn<'_>,
) -> Result<Option<(ShadowDoorbells, AdminCommand)>, DriverError> {
    let (_, at) = port.memory().allocate_registered(2 * PAGE_BYTES)?;
    let pages = (at, at.offset(PAGE_BYTES as u64));
    let shadows = ShadowDoorbells::open(port.memory(), pages, port.shadow_stride())?;
    let wire = |at| {
        port.memory().bus_address(at).ok_or(NotRegistered { iova: at, len: PAGE_BYTES as u64 })
    };
    let command =
        AdminCommand::DoorbellBufferConfig { values: wire(pages.0)?, events: wire(pages.1)? };
    match admin.run(command, 0, progress) {
        Ok(_) => Ok(Some((shadows, command))),
        Err(DriverError::Command { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Chooses the kind of data pointers: the requested one, if the drive supports it. Memory that the
/// drive reaches page by page needs PRPs.
fn choose_data_pointers(
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
fn choose_namespace(
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
fn negotiate_queue_count(
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
