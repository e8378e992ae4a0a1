//! The log of a path in the persistent memory region of its drive.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use block::{BlockDevice, Payload, Request};
use controller::Controller;
use driver::PersistentRegion;
use event::RealClock;
use rng::Rng;
use scenario::DriveSpec;
use time::{Component, Nanos};
use transport::RegionCosts;
use write_log::{
    DeviceLabel, LogIdentity, WriteLog, WriteLogConfig, WriteLogError, WriteLogOpening,
    WriteLogStats,
};

use super::device::DevicePort;
use crate::precondition::marker::image;
use crate::{CoreQueue, CoreQueues, Notification, StackError};

impl CoreQueue for WriteLog<CoreQueues, PersistentRegion> {}

/// A path's log, and the drive that it is on.
pub(crate) struct LogPlan<'a> {
    pub(crate) plan: &'a DriveSpec,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Whether the contents of the last sector are those of preconditioning.
    pub(crate) is_preconditioned: bool,
}

/// Opens the log of a path over `device` without advancing time.
///
/// # Errors
/// [`StackError::Log`], [`StackError::NoRegion`].
pub(crate) fn open_log(
    device: CoreQueues,
    port: &DevicePort,
    drive: &mut Controller,
    log: &LogPlan<'_>,
    now: Nanos,
    notification: Notification,
) -> Result<CoreQueues, StackError> {
    let name = || log.plan.config.name.clone();
    let no_region = || StackError::NoRegion { name: name() };
    let mut region = port.persistent_region().ok_or_else(no_region)?;
    let mut costs = region.costs();
    if let Notification::Real(_) = notification {
        // The thread that submits spins for them.
        region = region.in_real_time(RealClock::starting_at(now));
        costs = RegionCosts::default();
    }
    let bytes = usize::try_from(log.bytes).unwrap_or(usize::MAX);
    let config = WriteLogConfig {
        store: costs.store,
        persist: costs.persist,
        overwrite_last_sector: log.is_preconditioned || image(log.plan).is_none(),
        ..WriteLogConfig::new(bytes, identity(log.plan))
    };
    let features = WriteLog::<CoreQueues, PersistentRegion>::features(device.features());
    // The log would return formatted blocks.
    let attached = drive.namespaces().into_iter().find(|namespace| namespace.is_attached);
    let first = attached.map(|namespace| namespace.nsid);
    log.plan.namespace.or(first).into_iter().for_each(|nsid| drive.set_logged_namespace(nsid));
    drive.set_zero_latency(true);
    let opened = WriteLogOpening::new(device, region, config).and_then(|mut opening| {
        while !opening.poll(now)? {
            drive.poll(now);
        }
        opening.into_log()
    });
    drive.set_zero_latency(false);
    drive.reset_stats();
    let opened = opened.map_err(|source| StackError::Log { name: name(), source })?;
    // Completions of the drive are noticed as the path says; the log has its own at once. Opening
    // takes no time.
    let noticed = opened.with_device(|device| device.with_notification(notification));
    Ok(CoreQueues::single(noticed, features))
}

/// Returns the identity of a new log: random for a drive with an image, else a function of the
/// drive, so that runs are repeatable.
fn identity(plan: &DriveSpec) -> LogIdentity {
    let mut bytes = [0; 16];
    let mut rng = match image(plan) {
        Some(_) => Rng::new(RandomState::new().hash_one(&plan.config.name)),
        None => {
            let digest = |sum: u64, byte: u8| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
            Rng::new(plan.config.name.bytes().fold(0, digest))
        }
    };
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = rng.next_u64().to_le_bytes();
    }
    LogIdentity(bytes)
}

/// Checks that no log may have data of a device that is opened without a log. Takes no time. A drive
/// that was new has no log.
///
/// # Errors
/// [`StackError::Log`].
pub(crate) fn check_without_log(
    device: &mut CoreQueues,
    drive: &mut Controller,
    plan: &DriveSpec,
    now: Nanos,
) -> Result<(), StackError> {
    let log_error = |source| StackError::Log { name: plan.config.name.clone(), source };
    let limits = *device.limits();
    if limits.sectors == 0 {
        return Ok(());
    }
    let bytes = limits.sector_bytes as usize;
    let allocated = device.memory().allocate_registered(bytes);
    let (region, at) = allocated.map_err(|error| log_error(WriteLogError::Register(error)))?;
    let read = Request::read(limits.sectors - 1, 1, Payload::Contiguous(at), 0);
    drive.set_zero_latency(true);
    let mut is_submitted = false;
    let completion = loop {
        is_submitted = is_submitted || device.submit(now, read).is_ok();
        device.poll(now);
        drive.poll(now);
        if let Some(completion) = device.reap() {
            break completion;
        }
    };
    drive.set_zero_latency(false);
    drive.reset_stats();
    if !completion.status.is_success() {
        // A sector that cannot be read has no label: a log is opened with its label only.
        return Ok(());
    }
    let mut sector = vec![0; bytes];
    region.read(0, &mut sector);
    match DeviceLabel::decode(&sector).map_err(log_error)? {
        Some(label) => label.check_without_log().map_err(log_error),
        None => Ok(()),
    }
}

/// Returns the counts of the log of a device; `None` without one.
pub fn log_stats(device: &mut impl BlockDevice) -> Option<WriteLogStats> {
    let mut found = None;
    device.visit_layers(&mut |layer| {
        found = found.or(layer.downcast_ref::<WriteLogStats>().copied());
    });
    found
}
