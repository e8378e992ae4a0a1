//! Nameless writes (`demo/rules/nameless.rules`) beside a map (`demo/rules/page.rules`), on drives that a program
//! opens: write amplification of uniform overwrites, and the rate with all of the host's work for names.

use std::collections::BTreeMap;

use block::{Payload, Request};
use event::RealClock;
use nvme::{NamedCommand, RuleCommand, RuleCommandKind};
use open::{DriveControl, OpenOptions, open_scenario};
use rng::Rng;
use time::Nanos;
use user_io::{Buffer, Handle, IoDevice, Queue, QueueConfig, RuleQueue, WaitMode};

use super::{BENCH, scenario_of, setup};
use crate::{BenchError, Measurement, RunLength, Sink};

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\npersonality = \"rules\"\n\
    rules = { program = \"bench.rules\", durable_memory = \"256K\" }\nftl.over_provisioning = 0.25\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 32, planes = 4 }\n\
    timing = { read = 0, program = 0, erase = 0, channel = 0 }\n";

const NAMED: &str = include_str!("../../../../../demo/rules/nameless.rules");
const MAPPED: &str = include_str!("../../../../../demo/rules/page.rules");
/// The units of the programs, and those of the drive.
const UNITS: [&str; 2] = ["units = 0-63", "units = 0-3"];

/// Sectors that are written at a time.
const BATCH: usize = 16;
/// Write amplification with names, as a multiple of that with a map.
const COST: f64 = 1.03;

/// A host that writes sectors with its own numbers.
trait SectorHost {
    /// Writes these sectors.
    fn write(&mut self, sectors: &[u64]) -> Result<(), BenchError>;
}

/// Opens the drive with a program.
fn open_drive(program: &str) -> Result<(IoDevice, DriveControl), BenchError> {
    let scenario = scenario_of(DRIVE, Some(&program.replace(UNITS[0], UNITS[1])))?;
    open_scenario(&scenario, None, &OpenOptions::default()).map_err(setup)
}

fn buffer_of(device: &IoDevice) -> Result<Buffer, BenchError> {
    device.buffer(device.limits().sector_bytes as usize).map_err(setup)
}

/// A host that keeps the names of its sectors.
struct NamingHost {
    device: IoDevice,
    queue: RuleQueue,
    buffer: Buffer,
    names: BTreeMap<u64, u64>,
    moved: u64,
}

impl NamingHost {
    fn new(device: IoDevice) -> Result<NamingHost, BenchError> {
        let config = QueueConfig { depth: 2 * BATCH as u16 + 1, interrupts: false };
        let queue = device.rule_queue(config).map_err(setup)?;
        let buffer = buffer_of(&device)?;
        Ok(NamingHost { device, queue, buffer, names: BTreeMap::new(), moved: 0 })
    }

    /// Waits for `count` commands.
    fn finish(
        &mut self,
        count: usize,
        mut ended: impl FnMut(&mut BTreeMap<u64, u64>, u64, u64),
    ) -> Result<(), BenchError> {
        for _ in 0..count {
            let Some(done) = self.queue.wait_until(Nanos::MAX) else {
                return Err(BenchError::Thread("the drive"));
            };
            if !done.status.is_success() {
                return Err(BenchError::Status(done.status));
            }
            ended(&mut self.names, done.user, done.reply.value);
        }
        Ok(())
    }

    /// Takes the new names of sectors that the drive has moved, and acknowledges them.
    fn take_moves(&mut self) -> Result<(), BenchError> {
        loop {
            let log = self.device.take_rule_events().map_err(setup)?;
            if log.events.is_empty() {
                return Ok(());
            }
            for events in log.events.chunks(BATCH) {
                for event in events {
                    let [old, new, tag] = event.values.map(|value| value.get());
                    self.names.entry(tag).and_modify(|name| *name = new);
                    let ack = RuleCommand::new(RuleCommandKind::Ack, 0, 1);
                    self.queue.submit(RuleCommand { arg0: old, ..ack }, None, 0).map_err(setup)?;
                }
                self.finish(events.len(), |_, _, _| {})?;
                self.moved += events.len() as u64;
            }
        }
    }
}

impl SectorHost for NamingHost {
    fn write(&mut self, sectors: &[u64]) -> Result<(), BenchError> {
        self.take_moves()?;
        let mut freed = 0;
        for sector in sectors {
            if let Some(name) = self.names.remove(sector) {
                self.queue.submit_named(NamedCommand::free(name), None, 0).map_err(setup)?;
                freed += 1;
            }
        }
        self.finish(freed, |_, _, _| {})?;
        for sector in sectors {
            let write = NamedCommand::write(*sector);
            self.queue.submit_named(write, Some(&self.buffer), *sector).map_err(setup)?;
        }
        self.finish(sectors.len(), |names, sector, name| _ = names.insert(sector, name))
    }
}

/// A host of a drive with a map. Its writes are durable when they complete, as those of sectors with names.
struct MappedHost {
    handle: Handle<Queue>,
    buffer: Buffer,
}

impl SectorHost for MappedHost {
    fn write(&mut self, sectors: &[u64]) -> Result<(), BenchError> {
        for sector in sectors {
            let data = Payload::Contiguous(self.buffer.iova());
            let write = Request { fua: true, ..Request::write(*sector, 1, data, 0) };
            self.handle.submit(write).map_err(setup)?;
        }
        while let Some(done) = self.handle.wait() {
            if !done.status.is_success() {
                return Err(BenchError::Status(done.status));
            }
        }
        Ok(())
    }
}

/// Fills `live` sectors, and overwrites them `rounds` times, twice as often as before the measurement. Returns
/// the write amplification, and the writes per second.
fn overwrite(
    host: &mut impl SectorHost,
    control: &DriveControl,
    live: u64,
    rounds: u64,
) -> Result<(f64, f64), BenchError> {
    let mut rng = Rng::new(1);
    let written = || {
        let ftl = control.stats().and_then(|stats| stats.ftl);
        let ftl = ftl.ok_or_else(|| setup("the drive has no FTL"))?;
        Ok::<_, BenchError>((ftl.host_writes, ftl.gc_relocations))
    };
    let sectors: Vec<u64> = (0..live).collect();
    for batch in sectors.chunks(BATCH) {
        host.write(batch)?;
    }
    let batches = live * rounds / BATCH as u64;
    let (mut before, mut clock) = (written()?, RealClock::start());
    for batch in 0..3 * batches {
        if batch == batches {
            (before, clock) = (written()?, RealClock::start());
        }
        let mut chosen = Vec::with_capacity(BATCH);
        while chosen.len() < BATCH {
            let sector = rng.below(live);
            if !chosen.contains(&sector) {
                chosen.push(sector);
            }
        }
        host.write(&chosen)?;
    }
    let time = clock.now().as_secs_f64();
    let after = written()?;
    let (host, moved) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
    Ok(((host + moved) / host, host / time))
}

/// Measures overwrites with names, and with a map.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let rounds = length.choose(4, 1);
    let (device, control) = open_drive(MAPPED)?;
    let live = device.limits().sectors * 19 / 20 / BATCH as u64 * BATCH as u64;
    let config = QueueConfig { depth: 2 * BATCH as u16 + 1, interrupts: false };
    let queue = device.create_queue(config).map_err(setup)?;
    let mut handle = Handle::new(&device, queue).map_err(setup)?;
    handle.set_wait(WaitMode::Poll).map_err(setup)?;
    let mut mapped = MappedHost { handle, buffer: buffer_of(&device)? };
    let (with_map, map_rate) = overwrite(&mut mapped, &control, live, rounds)?;
    drop((mapped, device, control));
    let (device, control) = open_drive(NAMED)?;
    let mut named = NamingHost::new(device)?;
    let (with_names, name_rate) = overwrite(&mut named, &control, live, rounds)?;
    let case = |what: &str| format!("4 KB random overwrites, {what}");
    let row =
        |what: &str, metric, value, unit| Measurement::new(BENCH, case(what), metric, value, unit);
    sink.push(row("map", "write_amplification", with_map, ""))?;
    let cost = row("names", "write_amplification", with_names, "");
    sink.push(cost.with_reference("map", with_map).at_most(COST * with_map))?;
    sink.push(row("map", "rate", map_rate, "1/s"))?;
    sink.push(row("names", "rate", name_rate, "1/s").with_reference("map", map_rate))
}
