//! The null personality: no media, to measure everything else [Thesis15 ch. 6 §5].
//!
//! Each command takes the configured latency, and all data together the configured bandwidth. The
//! drive moves no data: a read does not change the host's memory.

use nvme::{IoCommand, Status};
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::NullConfig;
use crate::command::stage::ServiceStage;
use crate::command::table::Commands;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NullDrive {
    config: NullConfig,
    pub(crate) sectors: u64,
    pub(crate) sector_bytes: u32,
    transfer_stage: ServiceStage,
    pub(crate) latency_stage: ServiceStage,
    /// Commands end with this status.
    status: Status,
}

impl NullDrive {
    pub(crate) fn new(config: NullConfig, bytes: u64, sector_bytes: u32) -> NullDrive {
        let sectors = bytes / u64::from(sector_bytes);
        let [transfer_stage, latency_stage] =
            [(); 2].map(|()| ServiceStage::new(tracepoint::StageKind::Null));
        let status = Status::SUCCESS;
        NullDrive { config, sectors, sector_bytes, transfer_stage, latency_stage, status }
    }

    /// Creates the stand-in for a drive that does not recover: every command ends at once with
    /// [`Status::NOT_READY`] and the *do not retry* bit.
    pub(crate) fn unavailable(sector_bytes: u32) -> NullDrive {
        let config = NullConfig { latency: Nanos::ZERO, ..NullConfig::default() };
        let drive = NullDrive::new(config, 0, sector_bytes);
        NullDrive { status: Status::NOT_READY.do_not_retry(), ..drive }
    }

    /// Discards all commands, at a power cut.
    pub(crate) fn power_cut(&mut self) {
        let bytes = self.sectors * u64::from(self.sector_bytes);
        let drive = NullDrive::new(self.config, bytes, self.sector_bytes);
        *self = NullDrive { status: self.status, ..drive };
    }

    #[inline]
    pub(crate) fn start(&mut self, now: Nanos, id: u32, commands: &mut Commands) {
        let command = commands.get_mut(id);
        let (slba, nlb) = match command.io {
            IoCommand::Read { slba, nlb, .. }
            | IoCommand::Write { slba, nlb, .. }
            | IoCommand::WriteZeroes { slba, nlb, .. } => (slba, nlb),
            IoCommand::Flush | IoCommand::DatasetManagement { .. } => (0, 0),
            _ => return commands.complete(id, self.failure_status(Status::INVALID_OPCODE)),
        };
        if slba.checked_add(nlb.into()).is_none_or(|end| end > self.sectors) {
            let status = Status::LBA_OUT_OF_RANGE.do_not_retry();
            return commands.complete(id, self.failure_status(status));
        }
        let transfer = Nanos::transfer(command.bytes, self.config.bytes_per_sec);
        if transfer > Nanos::ZERO {
            self.transfer_stage.enqueue(now, transfer, id);
        } else if self.config.latency > Nanos::ZERO {
            self.latency_stage.enqueue_delay(now, self.config.latency, id);
        } else {
            commands.complete(id, self.status);
        }
    }

    /// Returns the status of a command that fails with `status`, unless all commands fail.
    #[cold]
    fn failure_status(&self, status: Status) -> Status {
        if self.status.is_success() { status } else { self.status }
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.transfer_stage.next_at().min(self.latency_stage.next_at())
    }

    /// Completes the next command that is due.
    #[inline]
    pub(crate) fn step(&mut self, now: Nanos, commands: &mut Commands) {
        if let Some((at, id)) = self.transfer_stage.dequeue(now) {
            self.latency_stage.enqueue_delay(at, self.config.latency, id);
        } else if let Some((_, id)) = self.latency_stage.dequeue(now) {
            commands.complete(id, Status::SUCCESS);
        }
    }
}
