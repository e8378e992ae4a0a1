//! Bring-up of a [`Controller`] over a port: NVMe section 7.6.1 (initialization), as far as it concerns what
//! goes through queues.

use std::sync::Arc;

use clock::Nanos;
use nvme::feature::{self, NumberOfQueues};
use nvme::{AdminCommand, GeometryPage, IdentifyController, IdentifyNamespace, NamespaceList, cns};
use ring::{NotRegistered, PAGE_BYTES, Port, ShadowDoorbells};

use super::{ConnectOptions, ControllerHandle, DoorbellUse};
use crate::admin::{AdminQueue, ProgressFn};
use crate::init;
use crate::reset::ControllerGeneration;
use crate::{Cmb, ControllerInfo, DataPointers, DriverError};

/// How long a real controller may leave an admin command unanswered.
const ADMIN_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Entries of a queue at most, where no register says less.
const QUEUE_ENTRIES_MAX: u32 = 1 << 16;

impl ControllerHandle {
    /// Brings the drive at the other end of `port` up: identifies it and agrees on a number of
    /// queues. `timeout_polls` is how often `pump` is called for one admin command before that
    /// counts as unanswered.
    ///
    /// # Errors
    /// [`DriverError`]: the drive does not answer, refuses, or says things that cannot be.
    pub fn connect(
        port: Arc<Port>,
        pump: &mut dyn FnMut(),
        timeout_polls: u64,
    ) -> Result<ControllerHandle, DriverError> {
        ControllerHandle::connect_with(port, ConnectOptions::default(), pump, timeout_polls)
    }

    /// As [`attach`](ControllerHandle::connect), for one of several namespaces, or with less than the
    /// drive has.
    ///
    /// # Errors
    /// As there; also [`DriverError::NoSuchNamespace`], and [`DriverError::Unsupported`] for SGLs of a
    /// drive that takes none.
    pub fn connect_with(
        port: Arc<Port>,
        options: ConnectOptions,
        pump: &mut dyn FnMut(),
        timeout_polls: u64,
    ) -> Result<ControllerHandle, DriverError> {
        let mut admin = AdminQueue::open(&port, timeout_polls)?;
        let identify = |cns, nsid| AdminCommand::Identify { cns, nsid };
        let controller =
            IdentifyController::from_bytes(admin.identify(identify(cns::CONTROLLER, 0), pump)?);
        let data = choose_data_pointers(&controller, options.data, port.memory().is_paged())?;
        let nsid = choose_namespace(&mut admin, options.nsid, pump)?;
        let namespace =
            IdentifyNamespace::from_bytes(admin.identify(identify(cns::NAMESPACE, nsid), pump)?);
        if namespace.is_open_channel() && port.memory().is_paged() {
            return Err(DriverError::Unsupported {
                what: "IOMMU before it, which vector commands need",
            });
        }
        let geometry = if namespace.is_open_channel() {
            let page = admin.identify(AdminCommand::Geometry { nsid }, pump)?;
            Some(GeometryPage::from_bytes(page))
        } else {
            None
        };
        let most = port.max_io_queues().min(options.queues.unwrap_or(u16::MAX));
        let io_queues = negotiate_queue_count(&mut admin, most, pump)?;
        let offered = controller.oacs.get() & IdentifyController::OACS_DOORBELL_BUFFER_CONFIG != 0;
        let shadows = match options.doorbells {
            DoorbellUse::Memory if offered => set_up_shadow_doorbells(&port, &mut admin, pump)?,
            DoorbellUse::Memory | DoorbellUse::Registers => None,
        };
        let how = (data, !port.is_real_controller());
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

    /// Brings a real controller up: stops it, tells it where the admin queues of `port` are, starts
    /// it, and then as [`connect_with`](ControllerHandle::connect_with). `pump` takes `pump_time` at least;
    /// the controller is given the time that it says it may take, and ten seconds for each
    /// admin command.
    ///
    /// # Errors
    /// As there; also [`DriverError::InitTimeout`], [`DriverError::Failed`] and [`DriverError::Removed`].
    pub fn connect_pci(
        port: Arc<Port>,
        options: ConnectOptions,
        pump: &mut dyn FnMut(),
        pump_time: Nanos,
    ) -> Result<ControllerHandle, DriverError> {
        let capabilities = init::capabilities(&port)?;
        init::stop(&port, pump, pump_time)?;
        init::start(&port, pump, pump_time)?;
        let polls = ADMIN_TIMEOUT.0 / pump_time.0.max(1);
        let mut controller = ControllerHandle::connect_with(port, options, pump, polls)?;
        controller.max_entries = capabilities.max_entries;
        Ok(controller)
    }
}

/// Sets up doorbells in memory: the page of event indices follows that of values. A drive that offers them and then refuses goes without.
fn set_up_shadow_doorbells(
    port: &Port,
    admin: &mut AdminQueue,
    pump: ProgressFn<'_>,
) -> Result<Option<(ShadowDoorbells, AdminCommand)>, DriverError> {
    let (_, at) = port.memory().allocate_registered(2 * PAGE_BYTES)?;
    let pages = (at, at.offset(PAGE_BYTES as u64));
    let shadows = ShadowDoorbells::open(port.memory(), pages, port.shadow_stride())?;
    let wire = |at| {
        port.memory().bus_address(at).ok_or(NotRegistered { iova: at, len: PAGE_BYTES as u64 })
    };
    let command =
        AdminCommand::DoorbellBufferConfig { values: wire(pages.0)?, events: wire(pages.1)? };
    match admin.run(command, 0, pump) {
        Ok(_) => Ok(Some((shadows, command))),
        Err(DriverError::Command { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How commands say where their data is: as was asked for, if the drive understands that. What is reached
/// by pages is named by pages.
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

/// The namespace that was asked for, if it is active; the first, if none was.
fn choose_namespace(
    admin: &mut AdminQueue,
    asked: Option<u32>,
    pump: ProgressFn<'_>,
) -> Result<u32, DriverError> {
    // What follows the one before it is itself, if it is there.
    let above = asked.map_or(0, |nsid| nsid.saturating_sub(1));
    let command = AdminCommand::Identify { cns: cns::ACTIVE_NAMESPACES, nsid: above };
    let first = NamespaceList::from_bytes(admin.identify(command, pump)?).iter().next();
    match (asked, first) {
        (None, Some(first)) => Ok(first),
        (Some(nsid), Some(first)) if nsid == first => Ok(nsid),
        (Some(nsid), _) => Err(DriverError::NoSuchNamespace { nsid }),
        (None, None) => Err(DriverError::NoNamespace),
    }
}

/// Asks for `most` I/O queue pairs; returns how many the drive grants.
fn negotiate_queue_count(
    admin: &mut AdminQueue,
    most: u16,
    pump: ProgressFn<'_>,
) -> Result<u16, DriverError> {
    let value = NumberOfQueues { submission: most, completion: most }.to_value();
    let command = AdminCommand::SetFeatures { fid: feature::NUMBER_OF_QUEUES, save: false, value };
    let granted = admin.run(command, 0, pump)? as u32;
    match NumberOfQueues::from_value(granted) {
        // A drive may grant more than it was asked for (NVMe section 5.21.1.7).
        Some(counts) => Ok(counts.submission.min(counts.completion).min(most)),
        None => {
            Err(DriverError::Implausible { what: format!("that it has queues {granted:#010x}") })
        }
    }
}
