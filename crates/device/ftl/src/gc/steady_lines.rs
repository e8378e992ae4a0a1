//! [`SteadyLines`]: the lines of an FTL in steady state, drawn from their distribution.
//!
//! The model knows lines and the number of their valid blocks, not the blocks. Writes are random and
//! independent of each other, with one probability per class of blocks: every block of a class is as
//! likely to be overwritten as every other one. The number of a line's blocks that a write hits is
//! thus drawn from the line's share of the class. Victims are chosen by the FTL's own
//! [`VictimPolicy`](crate::VictimPolicy). What a victim still holds goes to the open line of garbage
//! collection, or to the host's without [`hot_cold`](FtlConfig::hot_cold); the space that is left
//! takes host writes, so that the occupied space stays what the rate limiter holds it at.
//!
//! It starts with the valid blocks spread evenly over all lines, and goes on until the write
//! amplification changes no more. A drive of very many lines is modelled with fewer of them, each of
//! the same size, and each result then stands for several lines.

use rng::Rng;

use super::victim::AnyVictimPolicy;
use crate::ids::{LineId, ToIndex, ToU32};
use crate::{CapacityPlan, FtlConfig, RateLimiterKind};

/// A set of blocks that are equally likely to be written next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteClass {
    /// Number of blocks.
    pub blocks: u64,
    /// The probability that the next write is to one of them.
    pub share: f64,
}

/// A line of [`SteadyLines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyLine<'a> {
    /// Number of blocks written to it.
    pub blocks: u64,
    /// Number of these that are valid, by class.
    pub valid: &'a [u64],
}

/// The lines of an FTL in steady state under random writes.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyLines {
    classes: usize,
    /// Blocks by line, oldest line first.
    blocks: Vec<u64>,
    /// Valid blocks by line and class.
    valid: Vec<u64>,
    write_amplification: f64,
}

/// Draws of a binomial distribution that the model makes at most; it bounds the number of lines.
const DRAWS: usize = 48 << 20;
/// Lines of the model at most and at least, unless the drive has fewer.
const LINES_MAX: usize = 2048;
const LINES_MIN: usize = 192;
/// Rounds at least, and at most. In a round every line is reclaimed once on average.
const ROUNDS_MIN: usize = 6;
const ROUNDS_MAX: usize = 40;
/// Relative change of the write amplification between two rounds below which the state is steady.
const STEADY_CHANGE: f64 = 0.002;

impl SteadyLines {
    /// Draws the steady state under writes of `block_sectors` sectors each. All blocks are mapped.
    /// Returns `None` if the lines have no spare space, or a block does not fit a line.
    pub fn draw(
        config: &FtlConfig,
        plan: &CapacityPlan,
        block_sectors: u32,
        classes: &[WriteClass],
        rng: Rng,
    ) -> Option<SteadyLines> {
        let block = u64::from(block_sectors.max(1));
        let line_blocks = u64::from(plan.line_sectors) / block;
        let mapped: u64 = classes.iter().map(|class| class.blocks).sum();
        let space = SpareSpace::new(config, plan, block);
        if line_blocks == 0 || mapped == 0 || space.occupied(1.0) <= mapped as f64 {
            return None;
        }
        let all = whole(space.occupied(1.0) / line_blocks as f64).index();
        let most = (DRAWS / (ROUNDS_MIN * classes.len())).isqrt();
        let lines = all.min(most.clamp(LINES_MIN, LINES_MAX)).max(1);
        let scale = lines as f64 / all.max(1) as f64;
        let mut model = LineModel::new(config, line_blocks, lines, scale, classes, rng);
        let write_amplification = model.run(&space, scale);
        Some(model.into_lines(classes, space.occupied(write_amplification), write_amplification))
    }

    /// Returns the lines, oldest first. The valid blocks of a class add up to its blocks.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SteadyLine<'_>> {
        let valid = self.valid.chunks_exact(self.classes);
        self.blocks.iter().zip(valid).map(|(blocks, valid)| SteadyLine { blocks: *blocks, valid })
    }

    /// Returns the blocks that the host writes and garbage collection relocates, per block that the
    /// host writes.
    pub fn write_amplification(&self) -> f64 {
        self.write_amplification
    }
}

/// The space that blocks occupy in steady state, valid or not, in blocks.
struct SpareSpace {
    all: f64,
    stop: f64,
    start: f64,
    limiter: RateLimiterKind,
}

impl SpareSpace {
    fn new(config: &FtlConfig, plan: &CapacityPlan, block: u64) -> SpareSpace {
        let (stop, start) = plan.limiter_watermarks(config);
        let all = u64::from(plan.lines) * u64::from(plan.line_sectors);
        let blocks = |sectors: u64| sectors as f64 / block as f64;
        SpareSpace {
            all: blocks(all.saturating_sub(plan.map_pages.into())),
            stop: blocks(stop),
            start: blocks(start),
            limiter: config.rate_limiter,
        }
    }

    /// Returns the occupied space at a write amplification. The limiter gives the host the share of
    /// the bandwidth that it has in steady state, which is one part in the write amplification.
    fn occupied(&self, write_amplification: f64) -> f64 {
        self.all
            - match self.limiter {
                RateLimiterKind::Proportional => {
                    self.stop + (self.start - self.stop) / write_amplification
                }
                RateLimiterKind::Pid { .. } => (self.stop + self.start) / 2.0,
            }
    }
}

/// Open lines, beside the closed ones.
const OPEN_LINES: usize = 2;
const HOST: usize = 0;
const GC: usize = 1;

/// The lines and their valid blocks.
struct LineModel {
    policy: AnyVictimPolicy,
    rng: Rng,
    line_blocks: u64,
    /// Blocks by class, and the share of the writes by class.
    class_blocks: Vec<u64>,
    shares: Vec<f64>,
    /// Valid blocks by class and line.
    valid: Vec<Vec<u64>>,
    lines: Vec<ModelLine>,
    unused: Vec<usize>,
    /// Open lines of the host and of garbage collection; equal if they share one.
    open: [usize; 2],
    closed: u64,
    occupied: u64,
}

#[derive(Clone, Copy, Default)]
struct ModelLine {
    blocks: u64,
    valid: u64,
    closed_at: Option<u64>,
}

impl LineModel {
    fn new(
        config: &FtlConfig,
        line_blocks: u64,
        lines: usize,
        scale: f64,
        classes: &[WriteClass],
        rng: Rng,
    ) -> LineModel {
        let scaled = |blocks: u64| whole((blocks as f64 * scale).round()).max(1);
        let class_blocks: Vec<u64> = classes
            .iter()
            .map(|class| if class.blocks == 0 { 0 } else { scaled(class.blocks) })
            .collect();
        let places = lines + OPEN_LINES;
        let mut model = LineModel {
            policy: config.victim_policy.build(),
            rng,
            line_blocks,
            shares: classes.iter().map(|class| class.share).collect(),
            valid: vec![vec![0; places]; classes.len()],
            lines: vec![ModelLine::default(); places],
            unused: (lines..places).rev().collect(),
            open: [0; 2],
            closed: 0,
            occupied: 0,
            class_blocks,
        };
        for class in 0..classes.len() {
            let (all, mut given) = (model.class_blocks[class], 0);
            for line in 0..lines {
                let until = whole(all as f64 * (line + 1) as f64 / lines as f64);
                let count = until - given;
                given = until;
                model.valid[class][line] = count;
                model.lines[line].valid += count;
            }
        }
        for line in 0..lines {
            model.lines[line].blocks = line_blocks;
            model.occupied += line_blocks;
            model.close(line);
        }
        let host = model.take_unused();
        model.open = [host; 2];
        if config.hot_cold {
            model.open[GC] = model.take_unused();
        }
        model
    }

    fn take_unused(&mut self) -> usize {
        if let Some(line) = self.unused.pop() {
            return line;
        }
        self.lines.push(ModelLine::default());
        self.valid.iter_mut().for_each(|class| class.push(0));
        self.lines.len() - 1
    }

    fn close(&mut self, line: usize) {
        self.closed += 1;
        let l = &mut self.lines[line];
        l.closed_at = Some(self.closed);
        let (valid, blocks) = (l.valid.to_u32(), l.blocks.to_u32());
        self.policy.on_closed(LineId::from_index(line), valid, blocks, self.closed);
    }

    /// Reclaims lines until the state is steady. Returns the write amplification of the last round.
    fn run(&mut self, space: &SpareSpace, scale: f64) -> f64 {
        let round = self.lines.len() - self.unused.len();
        let mut amplification = 1.0;
        let mut target = space.occupied(1.0);
        for i in 0..ROUNDS_MAX {
            let (mut host, mut relocated) = (0, 0);
            for _ in 0..round {
                let (written, moved) = self.reclaim(whole(target * scale));
                host += written;
                relocated += moved;
            }
            let now = (host + relocated) as f64 / (host as f64).max(1.0);
            let change = (now / amplification - 1.0).abs();
            amplification = now;
            target = space.occupied(amplification);
            if i + 1 >= ROUNDS_MIN && change < STEADY_CHANGE {
                break;
            }
        }
        amplification
    }

    /// Reclaims a line and lets the host write until `target` blocks are occupied. Returns the
    /// blocks that the host wrote, and those relocated.
    fn reclaim(&mut self, target: u64) -> (u64, u64) {
        let mut relocated = 0;
        if let Some(victim) = self.policy.take(self.closed) {
            let victim = victim.index();
            let gone = std::mem::take(&mut self.lines[victim]);
            let mut counts: Vec<u64> =
                self.valid.iter_mut().map(|class| std::mem::take(&mut class[victim])).collect();
            self.unused.push(victim);
            self.occupied -= gone.blocks;
            relocated = gone.valid;
            self.relocate(&mut counts, relocated);
        }
        let written = target.saturating_sub(self.occupied);
        let mut left = written;
        while left > 0 {
            let line = self.open[HOST];
            let now = left.min(self.line_blocks - self.lines[line].blocks);
            self.write(now);
            left -= now;
        }
        (written, relocated)
    }

    /// Appends `left` relocated blocks to the open line. `counts` has their number by class.
    fn relocate(&mut self, counts: &mut [u64], mut left: u64) {
        while left > 0 {
            let line = self.open[GC];
            let now = left.min(self.line_blocks - self.lines[line].blocks);
            let (mut wanted, mut among) = (now, left);
            for (class, count) in counts.iter_mut().enumerate() {
                let taken = draw_share(&mut self.rng, wanted, *count, among);
                among -= *count;
                wanted -= taken;
                *count -= taken;
                self.valid[class][line] += taken;
            }
            self.append(GC, now, now);
            left -= now;
        }
    }

    /// Writes `count` blocks of the host to its open line.
    fn write(&mut self, count: u64) {
        let (mut left, mut rest, mut valid) = (count, 1.0, 0);
        for class in 0..self.class_blocks.len() {
            let share = self.shares[class];
            let writes = self.rng.binomial(left, (share / rest).clamp(0.0, 1.0));
            rest = (rest - share).max(f64::MIN_POSITIVE);
            left -= writes;
            valid += self.overwrite(class, writes);
        }
        self.append(HOST, count, valid);
    }

    /// Moves the blocks of a class that `writes` writes hit to the host's open line. Returns the
    /// number of different blocks.
    fn overwrite(&mut self, class: usize, writes: u64) -> u64 {
        let all = self.class_blocks[class];
        if writes == 0 || all == 0 {
            return 0;
        }
        // A block that is hit twice has one valid copy.
        let hit = self.rng.distinct(all, writes);
        let (mut left, mut among) = (hit, all);
        for line in 0..self.lines.len() {
            let count = self.valid[class][line];
            if left == 0 {
                break;
            }
            if count == 0 {
                continue;
            }
            let taken = draw_share(&mut self.rng, left, count, among);
            among -= count;
            left -= taken;
            if taken == 0 {
                continue;
            }
            self.valid[class][line] -= taken;
            let l = &mut self.lines[line];
            l.valid -= taken;
            if l.closed_at.is_some() {
                self.policy.on_invalidate(LineId::from_index(line), l.valid.to_u32());
            }
        }
        self.valid[class][self.open[HOST]] += hit;
        hit
    }

    /// Accounts for `blocks` more blocks in an open line, `valid` of them valid, and opens the next
    /// line if it is full.
    fn append(&mut self, stream: usize, blocks: u64, valid: u64) {
        let line = self.open[stream];
        self.lines[line].blocks += blocks;
        self.lines[line].valid += valid;
        self.occupied += blocks;
        if self.lines[line].blocks == self.line_blocks {
            self.close(line);
            let next = self.take_unused();
            self.open.iter_mut().filter(|open| **open == line).for_each(|open| *open = next);
        }
    }

    /// Returns the lines of the drive, which occupies `occupied` blocks.
    fn into_lines(
        self,
        classes: &[WriteClass],
        occupied: f64,
        write_amplification: f64,
    ) -> SteadyLines {
        // Closed lines in the order of closing, then the open ones, with the host's last.
        let mut order: Vec<usize> =
            (0..self.lines.len()).filter(|i| self.lines[*i].blocks > 0).collect();
        order
            .sort_by_key(|i| (self.lines[*i].closed_at.unwrap_or(u64::MAX), *i == self.open[HOST]));
        let modelled: u64 = self.lines.iter().map(|line| line.blocks).sum();
        // Each line of the model stands for this many lines.
        let copies = (occupied / modelled as f64).max(1.0);
        let mut chosen = Vec::new();
        for (i, line) in order.iter().enumerate() {
            let until = whole(((i + 1) as f64 * copies).round()).index();
            chosen.resize(until.max(chosen.len()), *line);
        }
        let blocks: Vec<u64> = chosen.iter().map(|line| self.lines[*line].blocks).collect();
        let mut valid = vec![0; chosen.len() * classes.len()];
        for (class, counts) in self.valid.iter().enumerate() {
            let all: u64 = chosen.iter().map(|line| counts[*line]).sum();
            let (mut seen, mut given) = (0u64, 0u64);
            for (i, line) in chosen.iter().enumerate() {
                seen += counts[*line];
                let until = u128::from(classes[class].blocks) * u128::from(seen);
                let until = u64::try_from(until / u128::from(all.max(1))).unwrap_or(u64::MAX);
                valid[i * classes.len() + class] = until - given;
                given = until;
            }
        }
        let mut lines = SteadyLines { classes: classes.len(), blocks, valid, write_amplification };
        lines.move_excess();
        lines
    }
}

impl SteadyLines {
    /// Moves blocks from lines that rounding gave more valid blocks than they hold to their
    /// neighbours.
    fn move_excess(&mut self) {
        let (last, classes) = (self.blocks.len() - 1, self.classes);
        let mut pass = |from: usize, to: usize| {
            let line = from * classes..(from + 1) * classes;
            let valid: u64 = self.valid[line.clone()].iter().sum();
            let mut excess = valid.saturating_sub(self.blocks[from]);
            for at in line {
                let moved = excess.min(self.valid[at]);
                self.valid[at] -= moved;
                self.valid[to * classes + at % classes] += moved;
                excess -= moved;
            }
        };
        (0..last).for_each(|i| pass(i, i + 1));
        (0..last).rev().for_each(|i| pass(i + 1, i));
    }
}

/// Rounds down.
fn whole(x: f64) -> u64 {
    x as u64
}

/// Returns how many of `wanted` blocks, drawn from `among`, are in a part of `count` blocks.
fn draw_share(rng: &mut Rng, wanted: u64, count: u64, among: u64) -> u64 {
    if count >= among {
        return wanted.min(count);
    }
    let drawn = rng.binomial(wanted, count as f64 / among as f64);
    // The rest must fit the other parts.
    drawn.clamp((wanted + count).saturating_sub(among), count.min(wanted))
}
