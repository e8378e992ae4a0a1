//! Expected results of blkparse and btt, computed from the events by the rules of these programs.

use std::collections::BTreeMap;

use block::Op;
use block::trace::{Action, TraceEvent, merge_by_time};

/// Number of requests, and KiB.
pub(crate) type Amount = (i64, i64);

/// blkparse's summary of a core, or of all: amounts by blkparse's label.
pub(crate) type Summary = BTreeMap<&'static str, Amount>;

fn is_write(op: Op) -> bool {
    !matches!(op, Op::Read | Op::Extents)
}

/// Returns blkparse's summary of events.
pub(crate) fn summary(events: &[TraceEvent], sector_bytes: u32) -> Summary {
    let mut summary = Summary::new();
    for e in events {
        let kib = i64::from(e.sectors) * i64::from(sector_bytes) / 1024;
        let mut add = |read: &'static str, write: &'static str, n: i64, kib: i64| {
            let amount = summary.entry(if is_write(e.op) { write } else { read }).or_default();
            amount.0 += n;
            amount.1 += kib;
        };
        if e.op == Op::Extents {
            match e.action {
                Action::Queued => add("PC Reads Queued", "", 1, 0),
                Action::Issued => add("PC Read Disp.", "", 1, 0),
                Action::Requeued => add("PC Reads Req.", "", 1, 0),
                Action::Completed => add("PC Reads Compl.", "", 1, 0),
                _ => {}
            }
            continue;
        }
        match e.action {
            Action::Queued => add("Reads Queued", "Writes Queued", 1, kib),
            Action::Issued => add("Read Dispatches", "Write Dispatches", 1, kib),
            Action::Requeued => {
                add("Reads Requeued", "Writes Requeued", 1, 0);
                add("Read Dispatches", "Write Dispatches", 0, -kib);
            }
            Action::Completed => add("Reads Completed", "Writes Completed", 1, kib),
            Action::BackMerge | Action::FrontMerge => add("Read Merges", "Write Merges", 1, kib),
            Action::Unplug => add("IO unplugs", "IO unplugs", 1, 0),
            _ => {}
        }
    }
    summary
}

/// Returns the number of events by letter.
pub(crate) fn letters(events: &[TraceEvent]) -> BTreeMap<char, u64> {
    let mut letters = BTreeMap::new();
    events.iter().for_each(|e| *letters.entry(e.action.letter()).or_default() += 1);
    letters
}

/// Times that btt derives from the events.
#[derive(Default)]
pub(crate) struct Timings {
    /// Nanoseconds of each request, in order of completion.
    pub(crate) q2c: Vec<u64>,
    pub(crate) d2c: Vec<u64>,
    /// In order of issue.
    pub(crate) q2d: Vec<u64>,
    pub(crate) q2g: Vec<u64>,
    pub(crate) q2m: Vec<u64>,
    /// Requests of callers plus requeued ones; commands; completed sectors of 512 bytes.
    pub(crate) queued: u64,
    pub(crate) issued: u64,
    pub(crate) blocks: u64,
}

struct Open {
    lba: u64,
    end: u64,
    queued: u64,
    issued: Option<u64>,
}

/// Follows requests as btt does: a command belongs to the open requests whose sectors are within
/// its own. btt ignores requests without sectors, and passthrough requests.
pub(crate) fn timings(cores: &[(u16, Vec<TraceEvent>)], sector_bytes: u32) -> Timings {
    let each: Vec<&[TraceEvent]> = cores.iter().map(|(_, events)| &events[..]).collect();
    let mut open: Vec<Open> = Vec::new();
    let mut t = Timings::default();
    for e in merge_by_time(&each) {
        // btt counts a requeued request as another one, including flushes.
        t.queued += u64::from(e.action == Action::Requeued && e.op != Op::Extents);
        if e.sectors == 0 || e.op == Op::Extents {
            continue;
        }
        let (at, lba, end) = (e.at.0, e.lba, e.lba + u64::from(e.sectors));
        let own = |o: &Open| o.lba <= lba && lba < o.end;
        match e.action {
            Action::Queued => {
                t.queued += 1;
                open.push(Open { lba, end, queued: at, issued: None });
            }
            Action::GotRequest => t.q2g.extend(open.iter().find(|o| own(o)).map(|o| at - o.queued)),
            Action::BackMerge | Action::FrontMerge => {
                t.q2m.extend(open.iter().find(|o| own(o)).map(|o| at - o.queued));
            }
            Action::Issued => {
                t.issued += 1;
                for o in open.iter_mut().filter(|o| lba <= o.lba && o.end <= end) {
                    o.issued = Some(at);
                    t.q2d.push(at - o.queued);
                }
            }
            Action::Completed => {
                t.blocks += u64::from(e.sectors) * u64::from(sector_bytes) / 512;
                for o in open.extract_if(.., |o| lba <= o.lba && o.end <= end) {
                    t.q2c.push(at - o.queued);
                    t.d2c.extend(o.issued.map(|issued| at - issued));
                }
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "every request completes");
    t
}
