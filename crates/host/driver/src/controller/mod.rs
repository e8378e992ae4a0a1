//! [`ControllerHandle`]: an initialized NVMe drive behind a port, with its queue pairs, logs,
//! events and features.

pub(crate) mod admin;
pub(crate) mod cmb;
mod connect;
pub(crate) mod events;
pub(crate) mod info;
pub(crate) mod init;
mod logs;
pub(crate) mod namespaces;
mod queue_table;
mod queues;
pub(crate) mod region;
pub(crate) mod reset;

use std::sync::Arc;

use nvme::{AdminCommand, GeometryPage, IdentifyController, IdentifyNamespace, cns};
use time::Nanos;
use transport::{Port, ShadowDoorbells};

use crate::controller::admin::AdminQueue;
use crate::controller::events::EventSubscription;
use crate::controller::info::CommandSupport;
use crate::controller::init::ProgressPace;
use crate::controller::queue_table::QueueTable;
use crate::controller::reset::ResetTracker;
use crate::{Cmb, ControllerInfo, DataPointers, DriverError, PersistentRegion};

/// Options of a connection to a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The namespace; `None` for the drive's first.
    pub nsid: Option<u32>,
    /// Kind of the commands' data pointers; `None` for SGLs if the drive supports them, else PRPs.
    pub data: Option<DataPointers>,
    /// Number of I/O queue pairs to request; `None` for as many as the port has doorbells and
    /// interrupt vectors.
    pub queues: Option<u16>,
    /// Location of the queues' doorbells.
    pub doorbells: DoorbellUse,
}

/// The location of the doorbells of a drive's I/O queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellUse {
    /// In host memory, if the drive supports that (Doorbell Buffer Config, [NVMe1.4 §5.7]); else as
    /// `Registers`.
    #[default]
    Memory,
    /// In the drive's registers.
    Registers,
}

/// An initialized drive. The handle owns the admin queue of its port, so there is one per port.
///
/// Calls that send admin commands take a `progress`, which they call between polls of the completion
/// queue. They fail with [`DriverError::Timeout`] after the number of polls passed to
/// [`connect`](ControllerHandle::connect). After a timeout every further call fails until the late
/// answer arrives. Existing queue pairs continue. [`reclaim`](ControllerHandle::reclaim) deletes
/// the queues that a late answer was about.
#[derive(Debug)]
pub struct ControllerHandle {
    port: Arc<Port>,
    admin: AdminQueue,
    info: ControllerInfo,
    cmb: Option<Cmb>,
    region: Option<PersistentRegion>,
    event_subscription: Option<EventSubscription>,
    /// Whether an Asynchronous Event Request is outstanding that is not the subscription's.
    event_requested: bool,
    queues: QueueTable,
    /// Doorbells in memory, if they are used, and the Doorbell Buffer Config command for their two
    /// pages.
    shadows: Option<(ShadowDoorbells, AdminCommand)>,
    /// Maximum number of entries of a queue.
    max_entries: u32,
    reset: ResetTracker,
}

impl ControllerHandle {
    /// Initializes the drive at the other end of `port`: identifies it and negotiates the number of
    /// queues. `timeout_polls` is the number of calls of `progress` after which an admin command counts
    /// as unanswered. A drive with registers is first stopped and started by them, each within as
    /// many calls.
    ///
    /// # Errors
    /// [`DriverError`]: the drive does not answer, returns an error, or reports impossible values;
    /// those of [`connect_pci`](ControllerHandle::connect_pci) for a drive with registers.
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
        let max_entries = match port.has_registers() {
            true => ControllerHandle::start(&port, progress, ProgressPace::Calls(timeout_polls))?,
            false => connect::QUEUE_ENTRIES_MAX,
        };
        ControllerHandle::initialize(port, options, (progress, timeout_polls), max_entries)
    }

    /// Stops and starts a controller by its registers. Returns the maximum number of entries of a
    /// queue.
    fn start(
        port: &Port,
        progress: &mut dyn FnMut(),
        pace: ProgressPace,
    ) -> Result<u32, DriverError> {
        let capabilities = init::capabilities(port)?;
        init::stop(port, progress, pace)?;
        init::start(port, progress, pace)?;
        Ok(capabilities.max_entries)
    }

    /// Identifies a drive that has its admin queues, and negotiates the number of queues.
    fn initialize(
        port: Arc<Port>,
        options: ConnectOptions,
        (progress, timeout_polls): (&mut dyn FnMut(), u64),
        max_entries: u32,
    ) -> Result<ControllerHandle, DriverError> {
        // The region is ready when the first command completes, unless the drive sanitizes it.
        region::request_enabled(&port, true);
        let mut admin = AdminQueue::open(&port, timeout_polls)?;
        let identify = |cns, nsid| AdminCommand::Identify { cns, nsid };
        let controller =
            IdentifyController::from_bytes(admin.identify(identify(cns::CONTROLLER, 0), progress)?);
        let data =
            connect::choose_data_pointers(&controller, options.data, port.memory().is_paged())?;
        let nsid = connect::choose_namespace(&mut admin, options.nsid, progress)?;
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
        let io_queues = connect::negotiate_queue_count(&mut admin, most, progress)?;
        let offered = controller.oacs.get() & IdentifyController::OACS_DOORBELL_BUFFER_CONFIG != 0;
        let shadows = match options.doorbells {
            DoorbellUse::Memory if offered => {
                connect::set_up_shadow_doorbells(&port, &mut admin, progress)?
            }
            DoorbellUse::Memory | DoorbellUse::Registers => None,
        };
        let own_commands = !port.is_real_controller();
        let how = CommandSupport { data_pointers: data, own_commands };
        let info =
            ControllerInfo::new(&controller, nsid, &namespace, geometry.as_ref(), io_queues, how)?;
        let cmb = Cmb::from_port(&port, &controller)?;
        let region = PersistentRegion::of_port(&port);
        let queues = QueueTable::new(info.io_queues);
        Ok(ControllerHandle {
            port,
            admin,
            info,
            cmb,
            region,
            event_subscription: None,
            event_requested: false,
            queues,
            shadows,
            max_entries,
            reset: ResetTracker::new(),
        })
    }

    /// Initializes a controller with registers. Disables it, sets the addresses of the admin queues of
    /// `port`, enables it, and continues as [`connect_with`](ControllerHandle::connect_with).
    ///
    /// `progress_interval` is the minimum duration of a call of `progress`. The controller gets the time that
    /// it reports, and ten seconds per admin command.
    ///
    /// # Errors
    /// As for `connect_with`; also [`DriverError::InitTimeout`], [`DriverError::Failed`] and
    /// [`DriverError::Removed`]; [`DriverError::Unsupported`] for a drive without registers.
    pub fn connect_pci(
        port: Arc<Port>,
        options: ConnectOptions,
        progress: &mut dyn FnMut(),
        progress_interval: Nanos,
    ) -> Result<ControllerHandle, DriverError> {
        if !port.has_registers() {
            return Err(DriverError::Unsupported { what: "registers" });
        }
        let pace = ProgressPace::Interval(progress_interval);
        let max_entries = ControllerHandle::start(&port, progress, pace)?;
        let polls = connect::ADMIN_TIMEOUT.0 / progress_interval.0.max(1);
        ControllerHandle::initialize(port, options, (progress, polls), max_entries)
    }

    /// Notifies a controller with registers of a normal shutdown, waits until it has written its
    /// buffered data, and disables it. It gets the longest time that a controller can report.
    ///
    /// # Errors
    /// [`DriverError::InitTimeout`], [`DriverError::Removed`]; [`DriverError::Unsupported`] for a
    /// drive without registers.
    pub fn shut_down(
        self,
        progress: &mut dyn FnMut(),
        progress_interval: Nanos,
    ) -> Result<(), DriverError> {
        if !self.port.has_registers() {
            return Err(DriverError::Unsupported { what: "registers" });
        }
        init::shut_down(&self.port, progress, ProgressPace::Interval(progress_interval))
    }

    /// Returns the maximum number of entries of a queue.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Returns the description of the drive.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// Returns the drive's controller memory buffer, if it has one.
    pub fn cmb(&self) -> Option<Cmb> {
        self.cmb.clone()
    }

    /// Returns the drive's persistent memory region, if it has one and this host has the right to it.
    /// It is enabled.
    pub fn persistent_region(&self) -> Option<PersistentRegion> {
        self.region.clone()
    }

    /// Enables or disables the persistent memory region of a controller with registers, which keeps
    /// its contents. Sanitize needs it disabled. The drive gets as many calls of `progress` as an
    /// admin command.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] without a region, or for a drive without registers, whose region
    /// is always enabled; [`DriverError::InitTimeout`], [`DriverError::Removed`].
    pub fn set_persistent_region_enabled(
        &mut self,
        enabled: bool,
        progress: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        if self.region.is_none() {
            return Err(DriverError::Unsupported { what: "persistent memory region" });
        }
        if !self.port.has_registers() {
            return Err(DriverError::Unsupported { what: "registers" });
        }
        let pace = ProgressPace::Calls(self.admin.timeout_polls());
        region::set_enabled(&self.port, enabled, progress, pace)
    }

    /// Returns whether the I/O queues have their doorbells in memory.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadows.is_some()
    }

    /// Returns the port to the drive.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Returns the admin queue, for callers that cannot wait.
    pub(crate) fn admin(&mut self) -> &mut AdminQueue {
        &mut self.admin
    }

    /// Restarts the admin queue of a controller that has been disabled.
    pub(crate) fn reinit_admin(&mut self) -> Result<(), DriverError> {
        self.admin.reinit(&self.port)
    }

    /// Returns the command that restores doorbells in memory after a reset, if they are used. Each
    /// queue clears its own doorbells when it is created.
    pub(crate) fn doorbell_buffer_config(&self) -> Option<AdminCommand> {
        self.shadows.as_ref().map(|(_, command)| *command)
    }

    /// Renews the event subscriptions that existed before a reset.
    pub(crate) fn resubscribe_events(&mut self) -> Result<(), DriverError> {
        if self.event_requested || self.event_subscription.is_some() {
            self.admin.request_event()?;
        }
        Ok(())
    }
}
