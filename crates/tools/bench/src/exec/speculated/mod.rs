//! Part `exec` of the group `speculate`: programs that do not sync, that speculate, that wait, and
//! that wait in the kernel, interleaved within one run.
//!
//! The drive has the times of NAND and a volatile write buffer, so that a flush waits for programs.
//! It is emulated in the process of `sluice exec`, with its data in memory, and every program has an
//! empty volume. The kernel's own way is ext4 on a loop device on such a drive.
//!
//! A closed loop such as that of Redis with `appendfsync always` answers right after its sync. Its
//! one thread gains only if it can go on meanwhile: with an outbox for the answers.

use std::path::Path;

use super::harness::{BackingDevice, ExecHarness, IoPath, ProgramDir};
use super::{child_process, harness, redis, rocksdb, sqlite};
use crate::{BenchError, Measurement, RunLength, Samples, Sink, interleave};

/// Name of the group in results.
const GROUP: &str = "speculate";

/// Least share of the throughput of a program that does not sync.
const SHARE_MIN: f64 = 0.85;

/// Least throughput of a closed loop, as a multiple of that with waits.
const CLOSED_LOOP_MIN: f64 = 1.2;

/// Least share of the throughput without the option if nothing is pending.
const IDLE_SHARE_MIN: f64 = 0.98;

/// The drive of \[Spec14\], table 1, whose writes take 5 us.
const PCM: &str = "[drive]\npreset = \"pcm\"\nprealloc = \"1G\"\n";

/// Effect of a program's syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncMode {
    /// The program makes none.
    None,
    /// They return at once, and output waits.
    Speculate,
    /// They return at once, and output is copied to the outbox.
    Buffer,
    /// They wait for the drive.
    Wait,
    /// They wait for the drive, in the kernel.
    Kernel,
}

impl SyncMode {
    /// Modes of programs in batches, in the order of samples.
    const BATCHES: &[SyncMode] =
        &[SyncMode::None, SyncMode::Speculate, SyncMode::Wait, SyncMode::Kernel];
    /// Modes of a closed loop, in the order of samples.
    const CLOSED_LOOP: &[SyncMode] =
        &[SyncMode::None, SyncMode::Speculate, SyncMode::Buffer, SyncMode::Wait, SyncMode::Kernel];
    /// Modes of a closed loop on a drive that the kernel does not use.
    const CLOSED_LOOP_ALONE: &[SyncMode] =
        &[SyncMode::None, SyncMode::Speculate, SyncMode::Buffer, SyncMode::Wait];

    /// Returns the name in results.
    fn name(self) -> &'static str {
        match self {
            SyncMode::None => "not syncing",
            SyncMode::Speculate => "speculating",
            SyncMode::Buffer => "speculating with an outbox",
            SyncMode::Wait => "waiting",
            SyncMode::Kernel => "waiting in the kernel",
        }
    }

    /// Returns the operations of a sample, when the other modes have `operations`: waits take most of
    /// the time.
    fn operations(self, operations: u32) -> u32 {
        match self {
            SyncMode::Wait | SyncMode::Kernel => (operations / 100).max(10),
            _ => operations,
        }
    }
}

/// The drives of programs, and the kernel's file system on the first one.
#[derive(Debug)]
struct Drives(ExecHarness);

impl Drives {
    fn new() -> Result<Drives, BenchError> {
        ExecHarness::new(BackingDevice::NandBehindBuffer).map(Drives)
    }

    fn scratch(&self) -> &Path {
        self.0.scratch()
    }

    /// Returns an empty directory for a program, on a drive of its own. The kernel has one drive,
    /// which is `NAND`.
    fn program_dir(&self, mode: SyncMode, drive: &str) -> Result<ProgramDir, BenchError> {
        let scenario = self.scratch().join("drive.toml");
        std::fs::write(&scenario, drive)?;
        let dir = ProgramDir::on_new_volume(self.scratch().join("new-volume"), &scenario);
        Ok(match mode {
            SyncMode::None | SyncMode::Wait => dir,
            SyncMode::Speculate => dir.with_speculation("wait"),
            SyncMode::Buffer => dir.with_speculation("buffer"),
            SyncMode::Kernel => {
                let dir = self.0.dir(IoPath::Kernel).clone();
                dir.clear()?;
                dir
            }
        })
    }
}

/// Measures the part.
///
/// # Errors
/// Whatever fails in setting a drive up or in a program.
pub(crate) fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (program, package) in
        [("sqlite3", "sqlite3"), ("db_bench", "rocksdb-tools"), ("redis-server", "redis-server")]
    {
        child_process::find(program, "it is measured", package)?;
    }
    child_process::find("setpriv", "a program ends with the measurement", "util-linux")?;
    harness::remove_stale_scratch();
    let drives = Drives::new()?;
    let nand = BackingDevice::NandBehindBuffer.scenario().unwrap_or_default();
    let [_, (journal, pragma)] = sqlite::JOURNALS;
    let case = format!("sqlite, a transaction per insert, journal {journal}");
    measure(effort, sink, &case, SyncMode::BATCHES, SHARE_BOUND, |mode| {
        let synchronous = if mode == SyncMode::None { "OFF" } else { "FULL" };
        let dir = drives.program_dir(mode, &nand)?;
        let inserts = mode.operations(effort.choose(200_000, 3_000));
        Ok(sqlite::sample(&dir, "a.db", pragma, synchronous, inserts)?.rate())
    })?;
    let writes = effort.choose(300_000, 100);
    measure(effort, sink, rocksdb::SYNCED_FILL, SyncMode::BATCHES, SHARE_BOUND, |mode| {
        let load = match mode {
            SyncMode::None => rocksdb::unsynced_load(writes),
            _ => rocksdb::synced_load(mode.operations(writes)),
        };
        Ok(rocksdb::sample(&drives.program_dir(mode, &nand)?, &load)?.rate)
    })?;
    let always = format!("redis, YCSB A, {} clients, appendfsync always", redis::CLIENTS);
    for (drive, case, modes) in [
        (nand.as_str(), always.clone(), SyncMode::CLOSED_LOOP),
        (PCM, format!("{always}, drive pcm"), SyncMode::CLOSED_LOOP_ALONE),
    ] {
        measure(effort, sink, &case, modes, CLOSED_LOOP_BOUND, |mode| {
            let policy = if mode == SyncMode::None { "no" } else { "always" };
            let dir = drives.program_dir(mode, drive)?;
            Ok(redis::sample(effort, drives.scratch(), &dir, policy, 0)?.rate())
        })?;
    }
    idle(effort, sink, &drives, &nand)
}

/// Bound of one mode of a load.
#[derive(Clone, Copy, Debug)]
struct ModeBound {
    mode: SyncMode,
    /// Least throughput, as a multiple of that of another mode.
    ratio_min: f64,
    of: SyncMode,
}

const SHARE_BOUND: ModeBound =
    ModeBound { mode: SyncMode::Speculate, ratio_min: SHARE_MIN, of: SyncMode::None };
const CLOSED_LOOP_BOUND: ModeBound =
    ModeBound { mode: SyncMode::Buffer, ratio_min: CLOSED_LOOP_MIN, of: SyncMode::Wait };

fn samples(values: Vec<f64>, case: &str) -> Result<Samples, BenchError> {
    let none = || BenchError::NoValue { case: case.to_owned(), metric: "throughput" };
    Samples::new(values).ok_or_else(none)
}

/// Measures a load in some modes in turn, and writes its rows.
fn measure(
    effort: RunLength,
    sink: &mut Sink<'_>,
    case: &str,
    modes: &[SyncMode],
    bound: ModeBound,
    mut sample: impl FnMut(SyncMode) -> Result<f64, BenchError>,
) -> Result<(), BenchError> {
    let rates = interleave(effort.choose(5, 1), modes.len(), |which| sample(modes[which]))?;
    let rates: Vec<Samples> =
        rates.into_iter().map(|rates| samples(rates, case)).collect::<Result<_, _>>()?;
    let median = |of: SyncMode| {
        let found = modes.iter().zip(&rates).find(|(mode, _)| **mode == of);
        let none = || BenchError::NoValue { case: case.to_owned(), metric: "throughput" };
        found.map(|(_, rates)| rates.median()).ok_or_else(none)
    };
    let (unsynced, base) = (median(SyncMode::None)?, median(bound.of)?);
    for (mode, rates) in modes.iter().copied().zip(&rates) {
        let case = format!("{case}, {}", mode.name());
        let row = Measurement::median(GROUP, &case, "throughput", rates, "1/s");
        let row = match mode {
            SyncMode::None => row,
            _ => row.with_reference(SyncMode::None.name(), unsynced),
        };
        let is_bounded = mode == bound.mode;
        sink.push(if is_bounded { row.at_least(bound.ratio_min * base) } else { row })?;
        let spread =
            Measurement::new(GROUP, case, "throughput_spread", rates.spread() * 100.0, "%");
        sink.push(spread)?;
    }
    Ok(())
}

/// Measures what the filter and the check before an output cost a program without pending syncs.
fn idle(
    effort: RunLength,
    sink: &mut Sink<'_>,
    drives: &Drives,
    drive: &str,
) -> Result<(), BenchError> {
    let case = format!("redis, YCSB A, {} clients, appendfsync everysec", redis::CLIENTS);
    let modes = [SyncMode::Wait, SyncMode::Speculate];
    let rates = interleave(effort.choose(21, 1), modes.len(), |which| {
        let dir = drives.program_dir(modes[which], drive)?;
        Ok::<f64, BenchError>(redis::sample(effort, drives.scratch(), &dir, "everysec", 0)?.rate())
    })?;
    let mut off = None;
    for (mode, rates) in modes.into_iter().zip(rates) {
        let case = format!("{case}, {}", mode.name());
        let rates = samples(rates, &case)?;
        let row = Measurement::median(GROUP, &case, "throughput", &rates, "1/s");
        let reference = *off.get_or_insert(rates.median());
        sink.push(match mode {
            SyncMode::Speculate => row
                .with_reference(SyncMode::Wait.name(), reference)
                .at_least(IDLE_SHARE_MIN * reference),
            _ => row,
        })?;
        let spread =
            Measurement::new(GROUP, case, "throughput_spread", rates.spread() * 100.0, "%");
        sink.push(spread)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use scenario::Scenario;
    use serde_json::Value;

    use super::*;
    use crate::Format;

    #[test]
    fn the_drive_has_a_volatile_buffer() {
        let text = BackingDevice::NandBehindBuffer.scenario().unwrap();
        let parsed = Scenario::parse(Path::new("bench"), &text).unwrap();
        let buffer = &parsed.drives[0].config.write_buffer;
        assert!(matches!(buffer, controller::WriteBuffer::Volatile { .. }), "{buffer:?}");
    }

    #[test]
    fn speculation_stands_beside_not_syncing_and_has_a_bound() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        let rate = |mode| match mode {
            SyncMode::None => 100.0,
            SyncMode::Speculate => 84.0,
            SyncMode::Buffer => 13.0,
            SyncMode::Wait => 10.0,
            SyncMode::Kernel => 5.0,
        };
        for (case, modes, bound) in [
            ("a", SyncMode::BATCHES, SHARE_BOUND),
            ("b", SyncMode::CLOSED_LOOP, CLOSED_LOOP_BOUND),
            ("c", SyncMode::CLOSED_LOOP, ModeBound { ratio_min: 1.4, ..CLOSED_LOOP_BOUND }),
        ] {
            measure(RunLength::Quick, &mut sink, case, modes, bound, |mode| Ok(rate(mode)))
                .unwrap();
        }
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let row = |case: &str| {
            rows.iter().find(|row| row["case"] == case && row["metric"] == "throughput").unwrap()
        };
        assert_eq!(
            (&row("a, speculating")["ratio"], &row("a, speculating")["verdict"]),
            (&0.84.into(), &"fail".into())
        );
        assert_eq!(row("b, speculating with an outbox")["verdict"], "pass");
        assert_eq!(row("c, speculating with an outbox")["verdict"], "fail");
        assert!(row("b, speculating")["verdict"].is_null());
        assert_eq!(row("a, waiting")["ratio"], 0.1);
    }
}
