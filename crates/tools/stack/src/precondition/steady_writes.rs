//! [`SteadyWrites`]: the writes that leave a drive in the steady state of random overwrites, without
//! the overwrites that would lead to it.
//!
//! [`SteadyLines`] draws which lines the FTL has in steady state, from the oldest to the youngest, and
//! how many of their blocks are valid. The writes are the contents of these lines, in this order: a
//! valid block of a line is not written again later, any other block of it is. They fit the drive
//! without garbage collection, and take the same path through the drive as all writes. At the end the
//! job overwrites a small share of the drive by its own distribution, so that garbage collection and
//! the rate limiter are at work.

use ftl::{CapacityPlan, FtlConfig, SteadyLine, SteadyLines, WriteClass};
use rng::{Permutation, Rng, Zipf};
use workload::{Distribution, JobSpec};

/// Share of the blocks that the job overwrites after the drawn state, and the minimum in lines.
const OVERWRITTEN_SHARE: f64 = 1.0 / 64.0;
const OVERWRITTEN_LINES: u64 = 2;

/// The ranks of the blocks to write, in order. A rank numbers the blocks of a job from the most to the
/// least popular one.
#[derive(Clone, Debug)]
pub(super) struct SteadyWrites {
    lines: SteadyLines,
    /// Share of a line that the host writes; the rest are map pages of the FTL.
    host_share: f64,
    classes: Vec<ClassRanks>,
    /// Index of the next line.
    next_line: usize,
    /// Contents of the present line: a class of valid blocks, or [`OBSOLETE`]; and the next of these.
    contents: Vec<u8>,
    next: usize,
    rng: Rng,
}

/// Marks a block of a line that is not valid.
const OBSOLETE: u8 = u8::MAX;

/// The ranks of a class.
#[derive(Clone, Debug)]
struct ClassRanks {
    first: u64,
    order: Permutation,
    /// Number of blocks that are not written again.
    settled: u64,
    /// The probability that an overwrite is to this class, or to one before it.
    cumulative: f64,
}

impl SteadyWrites {
    /// Draws the steady state of an FTL under the random writes of `job`, which are of
    /// `block_sectors` sectors. `blocks` is the number of blocks of the drive. Returns the writes,
    /// and the number of blocks that the job writes, its own included.
    ///
    /// # Errors
    /// A description of a job or a drive without such a state.
    pub(super) fn draw(
        config: &FtlConfig,
        plan: &CapacityPlan,
        job: &JobSpec,
        blocks: u64,
        block_sectors: u32,
        rng: &Rng,
    ) -> Result<(SteadyWrites, u64), String> {
        let (bounds, classes) = classes(&job.pattern.distribution, blocks)?;
        let lines = SteadyLines::draw(config, plan, block_sectors, &classes, rng.fork(1));
        let lines = lines.ok_or("`steady = \"sampled\"` needs spare space for whole blocks")?;
        // The FTL writes a map page per so many blocks of the host.
        let pages = f64::from(plan.map_pages) / plan.checkpoint_sectors.max(1) as f64;
        let host_share = 1.0 / (1.0 + pages);
        let (mut order, mut cumulative) = (rng.fork(2), 0.0);
        let classes = classes.iter().zip(&bounds).map(|(class, first)| {
            cumulative += class.share;
            let order = Permutation::new(class.blocks, &mut order);
            ClassRanks { first: *first, order, settled: 0, cumulative }
        });
        let of_lines = OVERWRITTEN_LINES * u64::from(plan.line_sectors / block_sectors.max(1));
        let own = ((blocks as f64 * OVERWRITTEN_SHARE) as u64).max(of_lines);
        let obsolete: f64 = lines.iter().map(|line| obsolete_blocks(line, host_share)).sum();
        let total = blocks + obsolete as u64 + own;
        let writes = SteadyWrites {
            lines,
            host_share,
            classes: classes.collect(),
            next_line: 0,
            contents: Vec::new(),
            next: 0,
            rng: rng.fork(3),
        };
        Ok((writes, total))
    }

    /// Draws the order of the next line's contents. Returns `false` after the last line.
    fn begin_line(&mut self) -> bool {
        let Some(line) = self.lines.iter().nth(self.next_line) else { return false };
        self.next_line += 1;
        self.next = 0;
        self.contents.clear();
        for (class, count) in line.valid.iter().enumerate() {
            self.contents.resize(self.contents.len() + *count as usize, class as u8);
        }
        let obsolete = obsolete_blocks(line, self.host_share);
        let obsolete = obsolete as usize + usize::from(self.rng.chance(obsolete.fract()));
        self.contents.resize(self.contents.len() + obsolete, OBSOLETE);
        self.rng.shuffle(&mut self.contents);
        true
    }

    /// Returns a block that is written again later; `None` if there is none.
    fn obsolete(&mut self) -> Option<u64> {
        let is_left = |class: &ClassRanks| class.settled < class.order.len();
        let draw = self.rng.f64();
        let from = self.classes.iter().position(|class| draw < class.cumulative).unwrap_or(0);
        let (before, after) = self.classes.split_at(from);
        let class = after.iter().find(|class| is_left(class));
        let class = class.or_else(|| before.iter().rev().find(|class| is_left(class)))?;
        let left = class.order.len() - class.settled;
        Some(class.first + class.order.at(class.settled + self.rng.below(left)))
    }
}

impl Iterator for SteadyWrites {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            let Some(what) = self.contents.get(self.next) else {
                if !self.begin_line() {
                    return None;
                }
                continue;
            };
            self.next += 1;
            if *what != OBSOLETE {
                let class = &mut self.classes[usize::from(*what)];
                class.settled += 1;
                return Some(class.first + class.order.at(class.settled - 1));
            }
            if let Some(rank) = self.obsolete() {
                return Some(rank);
            }
        }
    }
}

/// Returns the number of blocks of a line that are written again later. A line whose valid blocks
/// leave too little space for map pages has none, and is continued on the next one.
fn obsolete_blocks(line: SteadyLine<'_>, host_share: f64) -> f64 {
    let valid: u64 = line.valid.iter().sum();
    (line.blocks as f64 * host_share - valid as f64).max(0.0)
}

/// Returns the classes of a distribution over `blocks` blocks, and the first rank of each. Blocks of a
/// class are taken as equally popular: two classes per power of two, so that they differ by a third
/// of the exponent at most.
fn classes(
    distribution: &Distribution,
    blocks: u64,
) -> Result<(Vec<u64>, Vec<WriteClass>), String> {
    let theta = match distribution {
        Distribution::Uniform => return Ok((vec![0], vec![WriteClass { blocks, share: 1.0 }])),
        Distribution::Zipf(theta) => *theta,
        Distribution::Pareto(_) | Distribution::Zoned(_) => {
            return Err("`steady = \"sampled\"` knows uniform and zipf overwrites".to_owned());
        }
    };
    let zipf = Zipf::new(blocks, theta).ok_or("zipf takes a theta of 0 to 100")?;
    let all = zipf.weight(0..blocks);
    let mut bounds = vec![0];
    while let Some(last) = bounds.last().copied().filter(|last| *last < blocks) {
        let step = if last < 4 { 1 } else { (1 << last.ilog2()) / 2 };
        bounds.push((last + step).min(blocks));
    }
    let classes = bounds.windows(2).map(|ranks| WriteClass {
        blocks: ranks[1] - ranks[0],
        share: zipf.weight(ranks[0]..ranks[1]) / all,
    });
    let classes = classes.collect();
    bounds.pop();
    Ok((bounds, classes))
}
