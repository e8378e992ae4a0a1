//! [`DriveStats`]: what a drive has done (rule R10).

use clock::Nanos;
use ftl::FtlStats;
use hdrhistogram::Histogram;
use media::MediaStats;

/// How late completions were in real time (rule R6). Zeros in virtual time, where none is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Completions.
    pub count: u64,
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Largest.
    pub max: Nanos,
}

/// Records lateness. In virtual time nothing is ever late, which costs one addition.
#[derive(Debug)]
pub(crate) struct LatenessRecord {
    on_time: u64,
    max: Nanos,
    late: Histogram<u64>,
}

impl LatenessRecord {
    pub(crate) fn new() -> LatenessRecord {
        // Two digits are plenty; the bounds are valid constants.
        let late = Histogram::new_with_bounds(1, 1_000_000_000_000, 2);
        let late = late.unwrap_or_else(|_| unreachable!("constant bounds"));
        LatenessRecord { on_time: 0, max: Nanos::ZERO, late }
    }

    #[inline]
    pub(crate) fn record(&mut self, late: Nanos) {
        if late == Nanos::ZERO {
            self.on_time += 1;
        } else {
            self.max = self.max.max(late);
            self.late.saturating_record(late.0);
        }
    }

    fn quantile(&self, q: f64) -> Nanos {
        let (on_time, late) = (self.on_time as f64, self.late.len() as f64);
        let rank = q * (on_time + late) - on_time;
        if rank <= 0.0 {
            return Nanos::ZERO;
        }
        Nanos(self.late.value_at_quantile(rank / late)).min(self.max)
    }

    pub(crate) fn read(&self) -> Lateness {
        Lateness {
            count: self.on_time + self.late.len(),
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            max: self.max,
        }
    }

    pub(crate) fn reset(&mut self) {
        (self.on_time, self.max) = (0, Nanos::ZERO);
        self.late.reset();
    }
}

/// Time that a parallel unit spent reading (transfers out included), programming and erasing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PuBusy {
    /// Reading.
    pub read: Nanos,
    /// Programming.
    pub program: Nanos,
    /// Erasing.
    pub erase: Nanos,
}

/// Counters since power-on, or since [`Drive::reset_stats`](crate::Drive::reset_stats).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveStats {
    /// Read commands completed, vector reads included.
    pub reads: u64,
    /// Write commands completed, vector writes and copies included.
    pub writes: u64,
    /// Other I/O commands completed.
    pub others: u64,
    /// Commands that ended with an error.
    pub errors: u64,
    /// Bytes read by hosts.
    pub bytes_read: u64,
    /// Bytes written by hosts.
    pub bytes_written: u64,
    /// Doorbells out of range.
    pub invalid_doorbells: u64,
    /// The drive's translation layer; `None` unless it manages its own flash.
    pub ftl: Option<FtlStats>,
    /// Free lines of the translation layer.
    pub free_lines: Option<f64>,
    /// The NAND medium; `None` for others.
    pub media: Option<MediaStats>,
    /// Per parallel unit, channel by channel.
    pub pus: Vec<PuBusy>,
    /// Per channel, time spent transferring.
    pub channels: Vec<Nanos>,
    /// Reads that found their page in the page register.
    pub register_hits: u64,
    /// How late completions were.
    pub late: Lateness,
}
