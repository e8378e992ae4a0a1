//! Initialization and shutdown of a controller by its registers ([NVMe1.4 §3.1], [NVMe1.4 §7.6.1],
//! [NVMe1.4 §7.6.2]): a real controller, or an emulated drive with registers.
//!
//! The driver disables the controller, sets the addresses of its admin queues, and enables it. It
//! shuts the controller down before it releases it.
//!
//! Guarantees: every wait ends within the time that the controller reports (CAP.TO). The driver
//! distinguishes a slow controller from one that has failed (CSTS.CFS) and from one that has been
//! removed. A removed controller reads as ones in all registers; if the bus reports the removal,
//! the driver does not read registers.

use mem::NotRegistered;
use nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, admin_queue_sizes};
use nvme::{Cap, Cc, Csts, Sqe};
use time::Nanos;
use transport::{ControllerOwnership, Port};

use crate::DriverError;
use crate::controller::admin::ProgressFn;

/// Size of a completion queue entry, in bytes.
const CQE_BYTES: usize = 16;
/// Maximum time of a shutdown: the largest value of CAP.TO.
const SHUTDOWN_TIMEOUT: Nanos = Nanos::from_millis(127_500);
/// Minimum time allowed for becoming ready, because some controllers report 0.
const READY_TIMEOUT_MIN: Nanos = Nanos::from_millis(500);

/// Reads a 64-bit register.
fn read64(port: &Port, offset: usize) -> u64 {
    let low = u64::from(port.register(offset));
    low | u64::from(port.register(offset + 4)) << 32
}

fn write64(port: &Port, offset: usize, value: u64) {
    port.set_register(offset, value as u32);
    port.set_register(offset + 4, (value >> 32) as u32);
}

/// Writes the controller configuration. An emulated drive that sleeps wakes up and reads it.
fn set_configuration(port: &Port, configuration: Cc) {
    port.set_register(CC, configuration.to_value());
    port.wake_drive();
}

/// Reads the controller status.
///
/// # Errors
/// [`DriverError::Removed`].
fn status(port: &Port) -> Result<Csts, DriverError> {
    match port.ownership() {
        ControllerOwnership::Lost => None,
        ControllerOwnership::Owned | ControllerOwnership::ReleaseRequested => {
            Csts::from_value(port.register(CSTS))
        }
    }
    .ok_or(DriverError::Removed)
}

/// Returns whether a controller with registers has been removed.
pub(crate) fn is_removed(port: &Port) -> bool {
    port.has_registers() && status(port).is_err()
}

/// Returns whether a controller with registers reports a fatal status, after which it executes no
/// command until it is reset.
pub(crate) fn has_failed(port: &Port) -> bool {
    port.has_registers() && status(port).is_ok_and(|status| status.fatal)
}

/// How long a wait of a known time lasts, in calls of `progress`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProgressPace {
    /// Each call takes at least this time.
    Interval(Nanos),
    /// Time is not known: every wait has this number of calls.
    Calls(u64),
}

impl ProgressPace {
    fn calls(self, timeout: Nanos) -> u64 {
        match self {
            ProgressPace::Interval(interval) => timeout.0 / interval.0.max(1),
            ProgressPace::Calls(calls) => calls,
        }
    }
}

/// Calls `progress` until `done`, for at most `timeout` as `pace` counts it.
pub(crate) fn wait_until(
    port: &Port,
    step: &'static str,
    timeout: Nanos,
    progress: ProgressFn<'_>,
    pace: ProgressPace,
    mut done: impl FnMut(Csts) -> Result<bool, DriverError>,
) -> Result<(), DriverError> {
    for _ in 0..=pace.calls(timeout) {
        if done(status(port)?)? {
            return Ok(());
        }
        progress();
    }
    Err(DriverError::InitTimeout { step, waited: timeout })
}

/// Returns the time that the controller may take to become ready or to stop.
fn ready_timeout(capabilities: &Cap) -> Nanos {
    READY_TIMEOUT_MIN.max(Nanos::from_millis(500 * u64::from(capabilities.timeout_500ms)))
}

/// Reads the controller's capabilities and checks that they suffice.
///
/// # Errors
/// [`DriverError::Removed`], [`DriverError::Unsupported`].
pub(crate) fn capabilities(port: &Port) -> Result<Cap, DriverError> {
    status(port)?;
    let capabilities = Cap::from_value(read64(port, CAP));
    if !capabilities.nvm_commands {
        return Err(DriverError::Unsupported { what: "NVM command set" });
    }
    // The driver uses pages of 4096 bytes.
    if capabilities.page_min > 0 {
        return Err(DriverError::Unsupported { what: "memory pages of 4096 bytes" });
    }
    if capabilities.max_entries < 2 {
        return Err(DriverError::Implausible { what: "that queues have 1 entry".into() });
    }
    Ok(capabilities)
}

/// Progress of a controller that was disabled or enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitState {
    Stopped,
    Ready,
    Failed,
}

/// Returns the progress of the controller.
///
/// # Errors
/// [`DriverError::Removed`].
pub(crate) fn init_state(port: &Port) -> Result<InitState, DriverError> {
    let status = status(port)?;
    Ok(match (status.ready, status.fatal) {
        (true, _) => InitState::Ready,
        (false, true) => InitState::Failed,
        (false, false) => InitState::Stopped,
    })
}

/// Disables the controller. Returns the time that this may take.
///
/// # Errors
/// [`DriverError::Removed`].
pub(crate) fn begin_stop(port: &Port) -> Result<Nanos, DriverError> {
    let limit = ready_timeout(&capabilities(port)?);
    set_configuration(port, Cc::default());
    Ok(limit)
}

/// Clears the port's admin queues and enables the disabled controller on them. Returns the time
/// that this may take.
///
/// # Errors
/// [`DriverError::Removed`]; [`DriverError::Ring`] for queues that are not registered.
pub(crate) fn begin_start(port: &Port) -> Result<Nanos, DriverError> {
    let capabilities = capabilities(port)?;
    let limit = ready_timeout(&capabilities);
    let ((submission, entries), (completion, _)) =
        (port.admin_submission(), port.admin_completion());
    for (at, entry_bytes) in [(submission, size_of::<Sqe>()), (completion, CQE_BYTES)] {
        let bytes = usize::from(entries) * entry_bytes;
        let found = port.memory().find(at, bytes as u64)?;
        found.region.fill(found.offset, bytes, 0);
    }
    let wire = |at, entry_bytes: usize| {
        let len = u64::from(entries) * entry_bytes as u64;
        port.memory().contiguous_bus_address(at, len).ok_or(NotRegistered { iova: at, len })
    };
    let (submission, completion) =
        (wire(submission, size_of::<Sqe>())?, wire(completion, CQE_BYTES)?);
    port.set_register(AQA, admin_queue_sizes(entries));
    write64(port, ASQ, submission);
    write64(port, ACQ, completion);
    // Queues have priorities where the controller supports that.
    let weighted_arbitration = capabilities.weighted_arbitration;
    set_configuration(port, Cc { enabled: true, weighted_arbitration, shut_down: false });
    Ok(limit)
}

/// Disables the controller and waits until it has stopped. The controller forgets its queues and
/// all outstanding commands.
///
/// # Errors
/// [`DriverError::InitTimeout`], [`DriverError::Removed`].
pub(crate) fn stop(
    port: &Port,
    progress: ProgressFn<'_>,
    pace: ProgressPace,
) -> Result<(), DriverError> {
    let limit = ready_timeout(&capabilities(port)?);
    let enabled = Cc::from_value(port.register(CC)).enabled;
    // A controller that is becoming ready must not be disabled before it is ready ([NVMe1.4
    // §3.1.5]). After a timeout it is disabled nevertheless.
    if enabled {
        let ready = |s: Csts| Ok(s.ready || s.fatal);
        match wait_until(port, "become ready", limit, progress, pace, ready) {
            Ok(()) | Err(DriverError::InitTimeout { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    begin_stop(port)?;
    wait_until(port, "stop", limit, progress, pace, |s| Ok(!s.ready))
}

/// Enables a disabled controller on the port's admin queues, and waits until it is ready.
///
/// # Errors
/// [`DriverError::InitTimeout`], [`DriverError::Failed`], [`DriverError::Removed`].
pub(crate) fn start(
    port: &Port,
    progress: ProgressFn<'_>,
    pace: ProgressPace,
) -> Result<(), DriverError> {
    let limit = begin_start(port)?;
    wait_until(port, "become ready", limit, progress, pace, |s| {
        if s.fatal { Err(DriverError::Failed) } else { Ok(s.ready) }
    })
}

/// Notifies the controller of a normal shutdown, waits until the shutdown is complete, and disables
/// the controller.
///
/// # Errors
/// [`DriverError::InitTimeout`], [`DriverError::Removed`].
pub(crate) fn shut_down(
    port: &Port,
    progress: ProgressFn<'_>,
    pace: ProgressPace,
) -> Result<(), DriverError> {
    status(port)?;
    let running = Cc::from_value(port.register(CC));
    if !running.enabled {
        return Ok(());
    }
    set_configuration(port, Cc { shut_down: true, ..running });
    let told = wait_until(port, "shut down", SHUTDOWN_TIMEOUT, progress, pace, |s| {
        Ok(s.shut_down || s.fatal)
    });
    let stopped = stop(port, progress, pace);
    told.and(stopped)
}
