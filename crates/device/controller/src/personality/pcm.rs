//! The block personality over phase-change memory: writes in place, without translation or erase.
//! Sectors are striped over the parallel units. Each parallel unit executes one access at a time;
//! the parallel units of a channel share it.

use media::{DataStore, Pcm};
use nvme::{IoCommand, LbaStatusDescriptor, Status};
use serde::{Deserialize, Serialize};
use time::{Nanos, TimerQueue};
use tracepoint::{Event as Tracepoint, StageKind};

use crate::command::table::Commands;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PcmDrive {
    pub(crate) pcm: Pcm,
    /// Times at which each parallel unit, and each channel, becomes free.
    pus_free_at: Vec<Nanos>,
    channels_free_at: Vec<Nanos>,
    timers: TimerQueue<PcmEvent>,
    pub(crate) busy: Vec<[Nanos; 3]>,
    sector_bytes: u32,
    pub(crate) sectors: u64,
    stores_data: bool,
    pub(crate) zero_latency: bool,
}

/// An event of a command's sector: it waits for its parallel unit (`true`), or is done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct PcmEvent {
    command: u32,
    sector: u32,
    transferred: bool,
}

/// Reserves a resource that is free from `free` for `time`, and returns the end of the reservation.
fn reserve_resource(
    free: &mut Nanos,
    now: Nanos,
    time: Nanos,
    id: u32,
    station: StageKind,
) -> Nanos {
    let start = (*free).max(now);
    let end = start + time;
    *free = end;
    tracepoint::trace_at(now, || Tracepoint::CommandStage { id, stage: station, start, end });
    end
}

impl PcmDrive {
    pub(crate) fn new(pcm: Pcm) -> PcmDrive {
        let c = pcm.config();
        PcmDrive {
            pus_free_at: vec![Nanos::ZERO; (c.channels * c.pus) as usize],
            channels_free_at: vec![Nanos::ZERO; c.channels as usize],
            busy: vec![[Nanos::ZERO; 3]; (c.channels * c.pus) as usize],
            timers: TimerQueue::with_capacity(256),
            sector_bytes: c.sector_bytes,
            sectors: c.bytes / u64::from(c.sector_bytes),
            stores_data: c.data != DataStore::None,
            zero_latency: false,
            pcm,
        }
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.timers.next_at()
    }

    pub(crate) fn start(&mut self, now: Nanos, id: u32, commands: &mut Commands) {
        let command = commands.get_mut(id);
        let (slba, nlb) = match command.io {
            IoCommand::Read { slba, nlb, .. } | IoCommand::Write { slba, nlb, .. } => (slba, nlb),
            IoCommand::WriteZeroes { slba, nlb, .. } => (slba, nlb),
            IoCommand::LbaStatus { slba, nlb, .. } => (slba, nlb),
            IoCommand::DatasetManagement { .. } => return self.zero_ranges(id, commands),
            IoCommand::Flush => return commands.complete(id, Status::SUCCESS),
            _ => return commands.complete(id, Status::INVALID_OPCODE),
        };
        if slba.checked_add(nlb.into()).is_none_or(|end| end > self.sectors) {
            return commands.complete(id, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        if let IoCommand::LbaStatus { .. } = command.io {
            // All sectors are always mapped: there is no translation.
            let bytes = LbaStatusDescriptor::new(slba - command.first_sector, nlb, true).to_bytes();
            command.data_buffer.write(command.port.memory(), 0, &bytes);
            command.result = 1;
            return commands.complete(id, Status::SUCCESS);
        }
        command.ops_left = nlb;
        let reads = matches!(command.io, IoCommand::Read { .. });
        for sector in 0..nlb {
            let pu = self.pcm.config().pu_of(slba + u64::from(sector));
            let at =
                if reads { self.access(now, pu, true, id) } else { self.transfer(now, pu, id) };
            self.timers.push(at, PcmEvent { command: id, sector, transferred: !reads });
        }
    }

    /// Reserves a parallel unit for one access and returns its end.
    fn access(&mut self, now: Nanos, pu: u32, read: bool, id: u32) -> Nanos {
        if self.zero_latency {
            return now;
        }
        let c = self.pcm.config();
        let time = if read { c.read } else { c.write };
        self.busy[pu as usize][usize::from(!read)] += time;
        reserve_resource(&mut self.pus_free_at[pu as usize], now, time, id, StageKind::PcmArray)
    }

    fn transfer(&mut self, now: Nanos, pu: u32, id: u32) -> Nanos {
        let c = self.pcm.config();
        if self.zero_latency || c.channel_bytes_per_sec == 0 {
            return now;
        }
        let time = Nanos::transfer(self.sector_bytes.into(), c.channel_bytes_per_sec);
        reserve_resource(
            &mut self.channels_free_at[(pu / c.pus) as usize],
            now,
            time,
            id,
            StageKind::PcmChannel,
        )
    }

    /// Processes the next event that is due. Returns whether there was one.
    pub(crate) fn step(&mut self, now: Nanos, commands: &mut Commands) -> bool {
        let Some((at, event)) = self.timers.pop_due(now) else { return false };
        let PcmEvent { command: id, sector, transferred } = event;
        let command = commands.get(id);
        let (slba, reads) = match command.io {
            IoCommand::Read { slba, .. } => (slba, true),
            IoCommand::Write { slba, .. } | IoCommand::WriteZeroes { slba, .. } => (slba, false),
            _ => return true,
        };
        let lba = slba + u64::from(sector);
        let pu = self.pcm.config().pu_of(lba);
        // A read passes the cells and then the channel, a write the channel first.
        if transferred != reads {
            let next =
                if reads { self.transfer(at, pu, id) } else { self.access(at, pu, false, id) };
            self.timers.push(next, PcmEvent { transferred: reads, ..event });
            return true;
        }
        let status = self.copy(id, sector, lba, commands);
        commands.complete_op(id, status);
        true
    }

    fn copy(&mut self, id: u32, sector: u32, lba: u64, commands: &Commands) -> Status {
        let command = commands.get(id);
        let size = self.sector_bytes as usize;
        let (byte, offset) = (lba * size as u64, u64::from(sector) * size as u64);
        let memory = command.port.memory();
        let mut result = Ok(());
        match command.io {
            IoCommand::WriteZeroes { .. } => result = self.pcm.write(byte, &vec![0; size]),
            IoCommand::Read { .. } => {
                command.data_buffer.for_each_segment(
                    memory,
                    offset,
                    size,
                    |region, at, done, n| {
                        if result.is_ok() {
                            result = self.pcm.copy_out(byte + done as u64, region, at, n);
                        }
                    },
                );
            }
            _ if !self.stores_data => {}
            _ => {
                command.data_buffer.for_each_segment(memory, offset, size, |region, at, done, n| {
                    if result.is_ok() {
                        result = self.pcm.copy_in(byte + done as u64, region, at, n);
                    }
                })
            }
        }
        result.map_or_else(|e| e.status(), |()| Status::SUCCESS)
    }

    /// Zeroes the deallocated sectors.
    fn zero_ranges(&mut self, id: u32, commands: &mut Commands) {
        let zeros = vec![0; self.sector_bytes as usize];
        let mut status = Status::SUCCESS;
        for range in &commands.get(id).ranges {
            let (slba, nlb) = (range.slba.get(), u64::from(range.nlb.get()));
            if slba.checked_add(nlb).is_none_or(|end| end > self.sectors) {
                status = Status::LBA_OUT_OF_RANGE.do_not_retry();
                break;
            }
            for lba in slba..slba + nlb {
                if let Err(e) = self.pcm.write(lba * u64::from(self.sector_bytes), &zeros) {
                    status = e.status();
                }
            }
        }
        commands.complete(id, status);
    }

    pub(crate) fn power_cut(&mut self) {
        self.timers.clear();
        self.pus_free_at.fill(Nanos::ZERO);
        self.channels_free_at.fill(Nanos::ZERO);
    }
}
