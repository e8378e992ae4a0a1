//! [`KvHarness`]: a drive with a key-value target, initialized without advancing time.

use std::sync::Arc;

use controller::{Controller, PersonalityKind};
use driver::ControllerHandle;
use kv::{Kv, KvConfig};
use lnvm::TargetKind;
use scenario::{DriveSpec, HostTarget};
use stack::named_target::{self, NamedError};
use time::{Component, Nanos, VirtualRunner};
use transport::Port;

use crate::BenchError;

/// Maximum number of polls of the drive for one admin command.
const ADMIN_POLL_LIMIT: u64 = 10_000_000;

/// Number of entries of the queue pair, unless the drive supports fewer.
const DEPTH: u16 = 4096;

/// A drive and a key-value target, which share only the queue pair (ARCHITECTURE.md, R1).
#[derive(Debug)]
pub struct KvHarness {
    /// The drive.
    pub drive: Controller,
    /// The target.
    pub kv: Kv,
    /// The port between drive and target, to set wakers on.
    pub port: Arc<Port>,
    /// The admin queue, which lives as long as the harness.
    pub controller: ControllerHandle,
}

/// Error of measuring a named target.
#[derive(Debug, thiserror::Error)]
pub enum NamedHarnessError {
    /// The target does not exist, or has another kind.
    #[error(transparent)]
    Named(#[from] NamedError),
    /// The target cannot be opened.
    #[error("target {target} of drive {drive}: {why}")]
    Open {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Cause of the error.
        why: String,
    },
    /// The target is not empty.
    #[error(
        "target {target} of drive {drive} holds {records} records, and the bench would mix its own with \
         them: take an empty target"
    )]
    NotEmpty {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Number of records in it.
        records: u64,
    },
}

/// Converts an error of a benchmark.
pub(crate) fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Setup(error.to_string())
}

impl KvHarness {
    /// Powers the drive on and opens the target on all of its chunks.
    ///
    /// # Errors
    /// If the drive is not open-channel or does not store data, and if drive or target cannot be
    /// initialized.
    pub fn build(plan: &DriveSpec, config: KvConfig) -> Result<KvHarness, BenchError> {
        let name = &plan.config.name;
        if plan.config.personality != PersonalityKind::OpenChannel {
            let help = "set personality = \"open-channel\"";
            return Err(setup(format!("drive {name} manages its own flash: {help}")));
        }
        let drive = Controller::new(plan.config.clone()).map_err(setup)?;
        KvHarness::on_drive(drive, config)
    }

    /// Powers the drive on and opens the target with this name in its partition table. It must be
    /// of kind `kv` and empty.
    ///
    /// # Errors
    /// [`NamedHarnessError`]; a refused open does not modify the media.
    pub fn named(
        plan: &DriveSpec,
        name: &str,
        config: KvConfig,
    ) -> Result<KvHarness, NamedHarnessError> {
        named_target::check_image(plan, name)?;
        let (of, target) = (plan.config.name.clone(), name.to_owned());
        let drive = Controller::new(plan.config.clone());
        let mut drive = drive.map_err(|source| NamedError::Drive { drive: of, target, source })?;
        let drive_name = &plan.config.name;
        let fails = |why: &dyn std::fmt::Display| NamedHarnessError::Open {
            drive: drive_name.clone(),
            target: name.into(),
            why: why.to_string(),
        };
        let port = drive.attach().map_err(|e| fails(&e))?;
        drive.set_zero_latency(true);
        let keeps_data = drive.stores_data();
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, ADMIN_POLL_LIMIT)
                .map_err(NamedError::from)?;
        let check = |entry: &lnvm::TargetEntry| {
            if let HostTarget::Named(named) = &plan.target {
                named.check_kind(drive_name, entry)?;
            }
            match entry.spec.kind {
                TargetKind::Kv => Ok(()),
                kind => Err(NamedError::Kind {
                    drive: drive_name.clone(),
                    target: name.into(),
                    kind,
                    why: "kv bench needs one of kind kv",
                }),
            }
        };
        let share = named_target::find(plan, name, None, &mut controller, &mut progress, &check)?;
        let depth = DEPTH.min(plan.config.controller.queue_depth);
        let queue =
            controller.create_queue_pair(depth, None, &mut progress).map_err(NamedError::from)?;
        let info = controller.info().clone();
        let owned = &|chunk| share.has_chunk(chunk);
        let (chunks, at) = (&share.chunks, port.clone());
        let kv = Kv::open(&info, chunks, owned, queue, at, config, &mut progress, keeps_data)
            .map_err(|e| fails(&e))?;
        let records = kv.stats().keys;
        if records > 0 {
            let (drive, target) = (drive_name.clone(), name.to_owned());
            return Err(NamedHarnessError::NotEmpty { drive, target, records });
        }
        drive.set_zero_latency(false);
        drive.reset_stats();
        Ok(KvHarness { drive, kv, port, controller })
    }

    /// Opens the target on a powered-on drive.
    ///
    /// # Errors
    /// As for [`build`](KvHarness::build).
    pub fn on_drive(mut drive: Controller, config: KvConfig) -> Result<KvHarness, BenchError> {
        let depth = DEPTH.min(drive.config().controller.queue_depth);
        let port = drive.attach()?;
        drive.set_zero_latency(true);
        let keeps_data = drive.stores_data();
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, ADMIN_POLL_LIMIT)
                .map_err(setup)?;
        let queue = controller.create_queue_pair(depth, None, &mut progress).map_err(setup)?;
        let count =
            controller.info().open_channel.as_ref().map_or(0, |oc| oc.geometry.total_chunks());
        let chunks = controller.chunks(0, count, &mut progress).map_err(setup)?;
        let info = controller.info().clone();
        let all = &|_| true;
        let kv =
            Kv::open(&info, &chunks, all, queue, port.clone(), config, &mut progress, keeps_data)
                .map_err(setup)?;
        drive.set_zero_latency(false);
        drive.reset_stats();
        Ok(KvHarness { drive, kv, port, controller })
    }
}

/// A host that uses a drive in virtual time until it has finished.
pub(crate) trait VirtualHost: Component {
    /// Returns whether the host has finished.
    fn is_done(&self) -> bool;
}

/// Co-simulates host and drive until the host has finished. Returns `false` if nothing can make
/// progress before.
pub(crate) fn run_to_end(
    runner: &mut VirtualRunner,
    host: &mut dyn VirtualHost,
    drive: &mut Controller,
) -> bool {
    loop {
        loop {
            host.poll(runner.now());
            let posted = drive.posted();
            drive.poll(runner.now());
            if drive.posted() == posted && host.deadline() > runner.now() {
                break;
            }
        }
        if host.is_done() {
            return true;
        }
        // Completions are the only input of a host from its drive: until there is one, it has
        // nothing to do.
        let (wanted, posted) = (host.deadline(), drive.posted());
        loop {
            let due = drive.deadline();
            if due >= wanted {
                if wanted == Nanos::MAX {
                    return false;
                }
                runner.advance_to(wanted);
                break;
            }
            runner.advance_to(due);
            drive.poll(runner.now());
            if drive.posted() != posted {
                break;
            }
        }
    }
}
