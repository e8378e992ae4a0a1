//! Write amplification with a stream for data that is overwritten often, in virtual time.
//!
//! `demo/rules/temperature.rules` counts the writes of each region, halves the counts every 10 s, and
//! places the writes of hot regions in the stream `hot`. It is compared with the same program without
//! that: all writes go to `host`. Nine of ten writes go to the first tenth of the drive. All of the drive
//! is in use. The rate of the job is such that a cold region has one write in 10 s, and a hot one has 90.
//!
//! Two things bound what the stream saves. The demo collects the line with the fewest valid sectors, so
//! that lines of both streams are collected when they have the same share of valid sectors: hot data gets
//! no more spare space than its size, and the write amplification is that of uniform writes. So the
//! programs are compared with a rule that weighs the age, too. And what is collected from lines of
//! `hot` shares the lines of `gc` with cold data.

use std::fmt::Write as _;

use sim::SimOutcome;

use super::collection::write_amplification;
use super::{BENCH, drive, outcome, scenario};
use crate::{BenchError, Measurement, RunLength, Sink};

const DEMO: &str = include_str!("../../../../../demo/rules/temperature.rules");

/// The declarations that make the temperature.
const TEMPERATURE: [&str; 4] = ["table heat:", "rule warm ", "rule hot ", "rule cool "];

/// Sectors of a region.
const REGION: u32 = 1024;

/// The score of the demo, which collects the line with the fewest valid sectors, and one that weighs
/// the age: cost and benefit [LFS92].
const GREEDY: &str = "line.sectors - line.valid where";
const AGED: &str = "(line.sectors - line.valid) * line.age / (line.sectors + line.valid) where";

/// Largest share of the write amplification of the same program without temperature.
const SHARE: f64 = 0.99;

/// Largest shares of that of the greedy program without temperature.
const GREEDY_SHARE: f64 = 0.99;
const AGED_SHARE: f64 = 0.8;

const DRIVE: &str = "preset = \"femu-default\"\ndata = \"none\"\nwrite_buffer.size = \"1M\"\n\
    rules.hot_stream = true\ngeometry = { channels = 2, pus = 2, chunks = 128, pages = 512 }\n";

/// Returns the rules and tables of the demo, behind the application and its map.
fn program(has_temperature: bool, score: &str) -> String {
    let (mut program, mut is_kept) = (String::new(), true);
    for line in DEMO.lines().skip_while(|line| !line.starts_with("table heat:")) {
        // Lines that begin with a blank continue a declaration.
        if !line.starts_with(' ') {
            let is_temperature = TEMPERATURE.iter().any(|start| line.starts_with(start));
            is_kept = has_temperature || !is_temperature;
        }
        if is_kept {
            let _ = writeln!(program, "{line}");
        }
    }
    program.replace(GREEDY, score)
}

/// Measures skewed overwrites with and without temperature.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut greedy = None;
    for (name, score, share) in
        [("greedy", GREEDY, GREEDY_SHARE), ("weighing the age", AGED, AGED_SHARE)]
    {
        let one = skewed_writes(&program(false, score), length)?;
        let two = skewed_writes(&program(true, score), length)?;
        let (of_one, of_two) = (write_amplification(&one)?, write_amplification(&two)?);
        let of_greedy = *greedy.get_or_insert(of_one);
        let case = |kind: &str| format!("4 KB overwrites, 90 % of them to 10 %, {kind}, {name}");
        let row = |kind: &str, value| {
            Measurement::new(BENCH, case(kind), "write_amplification", value, "")
        };
        sink.push(row("one stream", of_one))?;
        let measured = row("with temperature", of_two).with_reference("one stream", of_one);
        sink.push(match length {
            RunLength::Full => measured.at_most(SHARE * of_one),
            RunLength::Quick => measured,
        })?;
        let of_demo = 100.0 * of_two / of_greedy;
        let measured =
            Measurement::new(BENCH, case("with temperature"), "share_of_greedy", of_demo, "%");
        sink.push(match length {
            RunLength::Full => measured.at_most(100.0 * share),
            RunLength::Quick => measured,
        })?;
        let hot = Measurement::new(
            BENCH,
            case("with temperature"),
            "share_of_hot",
            100.0 * hot_share(&two),
            "%",
        );
        sink.push(hot.within(0.02, 90.0))?;
    }
    Ok(())
}

/// Overwrites a drive that is full.
fn skewed_writes(program: &str, length: RunLength) -> Result<SimOutcome, BenchError> {
    let drive = drive(DRIVE, Some(program));
    let filled = "[precondition]\nfill = \"sequential\"\n";
    let job = |rate: u64| {
        format!(
            "[[job]]\nname = \"writes\"\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 8\n\
             norandommap = true\nrandom_distribution = \"zoned:90/10:10/90\"\n\
             rate_iops = {rate}\nio_size = \"{}%\"\n",
            length.choose(700, 100)
        )
    };
    let any = scenario(&format!("{drive}{filled}{}", job(1)), Some(program))?;
    let sectors = any.drives[0].capacity.map_or(0, |capacity| capacity.logical_bytes() / 4096);
    let rate = sectors.div_ceil(u64::from(REGION));
    outcome(&format!("{drive}{filled}{}", job(rate)), Some(program))
}

/// Returns the share of written sectors that rules placed in `hot`.
fn hot_share(outcome: &SimOutcome) -> f64 {
    let hot = outcome.drives[0].drive.rules.as_ref().map_or(0, |rules| rules.hot_sectors);
    let written = outcome.paths.first().and_then(|path| path.ftl).map_or(1, |ftl| ftl.host_writes);
    hot as f64 / written.max(1) as f64
}
