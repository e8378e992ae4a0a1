//! Traces with arbitrary content, plain and compressed: the reader reports errors by line, and
//! accesses are within the device.

use std::io::Write;

use super::workload::{
    ReplayOptions, TraceAction, TraceAdjustments, TraceError, TraceFormat, TraceReader,
};
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use testkit::choices::{Choices, mangled};

/// Maximum number of requests to read: a few bytes can decompress to many.
const REQUESTS_MAX: u64 = 100_000;

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

/// Reads the file of a trace for a device of `sectors` sectors; returns the number of its requests,
/// or `None` if the trace is refused.
fn read(bytes: &[u8], mut replay: ReplayOptions, sector_bytes: u32, sectors: u64) -> Option<u64> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("the trace is written");
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
        if requests == REQUESTS_MAX {
            break;
        }
    }
    let TraceAdjustments { aligned_requests, wrapped, .. } = reader.adjustments();
    assert!(aligned_requests <= requests && wrapped <= requests);
    assert!((0.0..=1.0).contains(&reader.progress()));
    Some(requests)
}

fn read_on_a_device(bytes: &[u8], choices: &mut Choices) -> Option<u64> {
    let replay = replay(choices);
    let sector_bytes = [512, 4096][choices.below(2) as usize];
    let sectors = [1, 7, 1024, 1 << 40][choices.below(4) as usize];
    read(bytes, replay, sector_bytes, sectors)
}

/// Reads a trace with a few changes.
pub(crate) fn changed(choices: &mut Choices) -> Option<u64> {
    let text = mangled(choices, &SAMPLES);
    let seed = choices.next_u64();
    let found = read_on_a_device(text.as_bytes(), &mut Choices::seeded(seed));
    assert!(found.is_none_or(|requests| requests <= text.lines().count() as u64));
    let mut compressed = compressed(text.as_bytes(), choices);
    let same = read_on_a_device(&compressed, &mut Choices::seeded(seed));
    assert_eq!(same, found, "the compressed trace differs from the plain one");
    for _ in 0..=choices.below(3) {
        let at = choices.below(compressed.len() as u64) as usize;
        match choices.below(3) {
            0 => compressed[at] = choices.next_u64() as u8,
            1 => compressed[at] ^= 1 << choices.below(8),
            _ => compressed.truncate(at.max(1)),
        }
    }
    read_on_a_device(&compressed, &mut Choices::seeded(seed));
    found
}

/// Compresses the file of a trace, in one part or two.
fn compressed(bytes: &[u8], choices: &mut Choices) -> Vec<u8> {
    let is_gzip = choices.chance(0.5);
    let compress = |part: &[u8]| {
        if !is_gzip {
            return compress_to_vec(part, CompressionLevel::Fastest);
        }
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(part).and_then(|()| encoder.finish()).expect("memory")
    };
    let (first, second) = bytes.split_at(choices.below(bytes.len() as u64 + 1) as usize);
    [compress(first), compress(second)].concat()
}

/// Reads a fuzzer's bytes as they are and as text, and a trace that they change.
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut choices = Choices::of(bytes);
    changed(&mut choices);
    read_on_a_device(bytes, &mut Choices::of(bytes));
    read_on_a_device(String::from_utf8_lossy(bytes).as_bytes(), &mut Choices::of(bytes));
}
