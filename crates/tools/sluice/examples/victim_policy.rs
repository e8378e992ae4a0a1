//! A custom victim policy, compared with those of Sluice, on a log of lines in memory.
//!
//! `cargo run -p sluice-ssd --example victim_policy`

use std::collections::VecDeque;
use std::error::Error;

use sluice::ftl::{Fifo, Greedy, LineId, VictimPolicy};

// ANCHOR: policy
/// Selects the line with the fewest valid sectors among those closed longest ago. Close to greedy
/// with little state; it avoids lines whose data is still being overwritten.
#[derive(Clone, Debug)]
struct Windowed {
    /// Closed lines with their valid sectors, oldest first.
    closed: VecDeque<(LineId, u32)>,
    /// Number of the oldest lines that are compared.
    window: usize,
}

impl VictimPolicy for Windowed {
    fn on_closed(&mut self, line: LineId, valid: u32, _sectors: u32, _at: u64) {
        self.closed.push_back((line, valid));
    }

    fn on_invalidate(&mut self, line: LineId, valid: u32) {
        if let Some(entry) = self.closed.iter_mut().find(|entry| entry.0 == line) {
            entry.1 = valid;
        }
    }

    fn take(&mut self, _now: u64) -> Option<LineId> {
        let oldest = self.closed.iter().take(self.window).enumerate();
        let (index, _) = oldest.min_by_key(|(_, entry)| entry.1)?;
        self.closed.remove(index).map(|entry| entry.0)
    }

    fn remove(&mut self, line: LineId) {
        self.closed.retain(|entry| entry.0 != line);
    }
}
// ANCHOR_END: policy

const LINES: usize = 128;
const LINE_SECTORS: usize = 64;
/// Four fifths of the sectors hold data: 25 % over-provisioning.
const LOGICAL: usize = LINES * LINE_SECTORS * 4 / 5;

// ANCHOR: log
/// A log-structured store without data, which counts the sectors that a policy relocates.
struct Log {
    policy: Box<dyn VictimPolicy>,
    /// Line and index of each logical sector.
    l2p: Vec<Option<(LineId, usize)>>,
    /// Logical sectors of each line, by index.
    p2l: Vec<Vec<usize>>,
    valid: Vec<u32>,
    is_closed: Vec<bool>,
    free: Vec<LineId>,
    open: LineId,
    written: u64,
}

impl Log {
    fn new(policy: Box<dyn VictimPolicy>) -> Log {
        Log {
            policy,
            l2p: vec![None; LOGICAL],
            p2l: vec![Vec::new(); LINES],
            valid: vec![0; LINES],
            is_closed: vec![false; LINES],
            free: (1..LINES).map(LineId::from_index).collect(),
            open: LineId::from_index(0),
            written: 0,
        }
    }

    /// Appends a sector to the open line, and invalidates its previous copy.
    fn append(&mut self, lba: usize) {
        if let Some((line, _)) = self.l2p[lba] {
            let index = line.index();
            self.valid[index] -= 1;
            if self.is_closed[index] {
                self.policy.on_invalidate(line, self.valid[index]);
            }
        }
        let open = self.open.index();
        self.l2p[lba] = Some((self.open, self.p2l[open].len()));
        self.p2l[open].push(lba);
        self.valid[open] += 1;
        self.written += 1;
        if self.p2l[open].len() == LINE_SECTORS {
            self.is_closed[open] = true;
            self.policy.on_closed(self.open, self.valid[open], LINE_SECTORS as u32, self.written);
            self.open = self.free.pop().expect("collection keeps a line free");
        }
    }

    /// Writes a sector of the host; relocates valid sectors of victims first, while fewer than
    /// three lines are free.
    fn write(&mut self, lba: usize) {
        while self.free.len() < 3 {
            let victim = self.policy.take(self.written).expect("a closed line");
            let index = victim.index();
            self.is_closed[index] = false;
            for (place, moved) in std::mem::take(&mut self.p2l[index]).into_iter().enumerate() {
                if self.l2p[moved] == Some((victim, place)) {
                    self.append(moved);
                }
            }
            self.free.push(victim);
        }
        self.append(lba);
    }
}
// ANCHOR_END: log

/// Returns the write amplification in steady state, under uniform random writes.
fn write_amplification(policy: Box<dyn VictimPolicy>) -> f64 {
    let mut log = Log::new(policy);
    (0..LOGICAL).for_each(|lba| log.write(lba));
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut overwrite = |log: &mut Log, writes: usize| {
        for _ in 0..writes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            log.write((random % LOGICAL as u64) as usize);
        }
    };
    overwrite(&mut log, 4 * LOGICAL);
    log.written = 0;
    overwrite(&mut log, 4 * LOGICAL);
    log.written as f64 / (4 * LOGICAL) as f64
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let greedy = write_amplification(Box::<Greedy>::default());
    let windowed =
        write_amplification(Box::new(Windowed { closed: VecDeque::new(), window: LINES / 4 }));
    let fifo = write_amplification(Box::<Fifo>::default());
    println!("write amplification: greedy {greedy:.2}, windowed {windowed:.2}, fifo {fifo:.2}");
    assert!((windowed / greedy - 1.0).abs() < 0.02, "the policy must be within 2 % of greedy");
    assert!(windowed < fifo);
    Ok(())
}
