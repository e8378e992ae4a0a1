//! Traces with arbitrary content: the reader reports errors by line, and accesses are within the
//! device.

use std::io::Write;

use super::workload::{
    ReplayOptions, TraceAction, TraceAdjustments, TraceError, TraceFormat, TraceReader,
};
use testkit::choices::{Choices, mangled};

/// Valid traces of all formats.
const SAMPLES: [&str; 5] = [
    "fio version 2 iolog\nf add\nf open\nf read 4096 8192\nf wait 100\nf write 0 4096\nf sync 0 0\n\
     f trim 8192 4096\nf close\n",
    "fio version 3 iolog\n10 f add\n11 f open\n20 f read 4096 8192\n30 f write 0 4096\n40 f datasync\n\
     50 f close\n",
    "128166372003061629,hm,1,Read,4096,32768,1\n128166372003062629,hm,1,Write,0,4096,1\n\
     128166372003081629,hm,0,Read,8192,4096,1\n",
    "0 0 0 8 1\n1000 0 8 16 0\n2500 0 1024 8 1\n",
    "0 0 18446744073709551608 8 1\n18446744073709551615 1 8 4294967295 0\n",
];

/// Returns replay options with random adjustments.
fn replay(choices: &mut Choices) -> ReplayOptions {
    let mut replay = ReplayOptions::new(Default::default());
    if choices.chance(0.3) {
        replay.format = Some(TraceFormat::ALL[choices.below(3) as usize]);
    }
    replay.time_scale = [100.0, 1.0, 250.0][choices.below(3) as usize];
    replay.no_stall = choices.chance(0.2);
    replay.device = choices.chance(0.2).then(|| choices.below(3) as u32);
    replay.redirect = choices.chance(0.5);
    replay.wrap = choices.chance(0.5);
    replay.align = [0, 512, 4096, 1 << 20][choices.below(4) as usize];
    replay.scale = [1, 2, 1000][choices.below(3) as usize];
    replay
}

/// Reads a trace for a device of `sectors` sectors; returns the number of its requests, or `None`
/// if the trace is refused.
fn read(text: &str, mut replay: ReplayOptions, sector_bytes: u32, sectors: u64) -> Option<u64> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("the trace is written");
    replay.path = file.path().into();
    let refused = |error: TraceError| {
        assert!(!error.to_string().is_empty());
        None
    };
    let mut reader = match TraceReader::open(&replay, sector_bytes, sectors) {
        Ok(reader) => reader,
        Err(error) => return refused(error),
    };
    let mut requests = 0;
    loop {
        match reader.next_op() {
            Ok(Some(op)) => {
                let access = op.action != TraceAction::Flush;
                assert_eq!(access, op.sectors > 0, "{op:?}");
                let end = op.lba.checked_add(op.sectors.into());
                assert!(end.is_some_and(|end| end <= sectors), "{op:?} of {sectors} sectors");
                requests += 1;
            }
            Ok(None) => break,
            Err(error) => return refused(error),
        }
        assert!(requests <= text.lines().count() as u64, "more requests than lines");
    }
    let TraceAdjustments { aligned_requests, wrapped, .. } = reader.adjustments();
    assert!(aligned_requests <= requests && wrapped <= requests);
    assert!((0.0..=1.0).contains(&reader.progress()));
    Some(requests)
}

fn read_on_a_device(text: &str, choices: &mut Choices) -> Option<u64> {
    let replay = replay(choices);
    let sector_bytes = [512, 4096][choices.below(2) as usize];
    let sectors = [1, 7, 1024, 1 << 40][choices.below(4) as usize];
    read(text, replay, sector_bytes, sectors)
}

/// Reads a trace with a few changes.
pub(crate) fn changed(choices: &mut Choices) -> Option<u64> {
    let text = mangled(choices, &SAMPLES);
    read_on_a_device(&text, choices)
}

/// Reads a fuzzer's bytes as text, and a trace that they change.
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut choices = Choices::of(bytes);
    changed(&mut choices);
    read_on_a_device(&String::from_utf8_lossy(bytes), &mut Choices::of(bytes));
}
