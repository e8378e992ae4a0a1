//! Compressed traces of millions of requests are read in constant memory.

// guarantee: B-39

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress};
use sluice_workload::{ReplayOptions, TraceReader};

/// The lines of a trace of MQSim's format, made while they are read.
struct Lines {
    next: u64,
    count: u64,
    line: Vec<u8>,
}

impl Lines {
    fn new(count: u64) -> Lines {
        Lines { next: 0, count, line: Vec::new() }
    }
}

impl Read for Lines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.line.len() < into.len() && self.next < self.count {
            let (i, sector) = (self.next, self.next * 2_654_435_761 % 1_000_000 * 8);
            writeln!(self.line, "{} 0 {sector} 8 {}", i * 1_000, i % 2)?;
            self.next += 1;
        }
        let count = self.line.len().min(into.len());
        into[..count].copy_from_slice(&self.line[..count]);
        self.line.drain(..count);
        Ok(count)
    }
}

/// Reads a trace of `count` requests; returns the largest number of bytes that were allocated at a
/// time.
fn peak_bytes(path: &Path, count: u64) -> u64 {
    let replay = ReplayOptions::new(path.to_path_buf());
    let allocated = allocation_counter::measure(|| {
        let mut reader = TraceReader::open(&replay, 4096, 1_000_000).unwrap();
        let (mut requests, mut half) = (0, 0.0);
        while reader.next_op().unwrap().is_some() {
            requests += 1;
            if requests == count / 2 {
                half = reader.progress();
            }
        }
        assert_eq!((requests, reader.progress()), (count, 1.0));
        assert!((0.3..0.9).contains(&half), "{half} after half of the requests");
    });
    allocated.bytes_max
}

#[test]
fn memory_does_not_grow_with_the_length_of_a_trace() {
    const FEW: u64 = 100_000;
    const MANY: u64 = 2_000_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let write_gzip = |count| {
        let file = File::create(&path).unwrap();
        let mut encoder = GzEncoder::new(file, flate2::Compression::fast());
        io::copy(&mut Lines::new(count), &mut encoder).unwrap();
        encoder.finish().unwrap();
    };
    let of_gzip = [FEW, MANY].map(|count| {
        write_gzip(count);
        peak_bytes(&path, count)
    });
    let write_zstd = |count| {
        let file = File::create(&path).unwrap();
        compress(Lines::new(count), file, CompressionLevel::Fastest);
    };
    let of_zstd = [FEW, MANY].map(|count| {
        write_zstd(count);
        peak_bytes(&path, count)
    });
    let text_bytes = io::copy(&mut Lines::new(MANY), &mut io::sink()).unwrap();
    assert!(text_bytes > 40 << 20);
    for (name, [few, many], bound) in [("gzip", of_gzip, 256 << 10), ("zstd", of_zstd, 4 << 20)] {
        assert!(many <= few + (64 << 10), "{name}: {few} and {many} bytes");
        assert!(many <= bound, "{name}: {many} bytes");
    }
}
