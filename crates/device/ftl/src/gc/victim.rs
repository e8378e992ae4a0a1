//! [`VictimPolicy`]: the choice of the next victim among the closed lines.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use collections::MinTree;
use serde::{Deserialize, Serialize};

use crate::VictimPolicyKind;
use crate::ids::LineId;

/// Chooses victims among the closed lines. It is notified of every change, so that a choice need
/// not inspect every line.
pub trait VictimPolicy: std::fmt::Debug + Send {
    /// Reports that a line was closed. `at` counts closings, and `valid` of its `sectors` sectors
    /// are valid.
    fn on_closed(&mut self, line: LineId, valid: u32, sectors: u32, at: u64);

    /// Reports that a closed line has fewer valid sectors than before.
    fn on_invalidate(&mut self, line: LineId, valid: u32);

    /// Removes and returns the next victim; `None` if no closed line would free space. `now` is on
    /// the scale of `at`.
    fn take(&mut self, now: u64) -> Option<LineId>;

    /// Removes a line that is reclaimed for another reason.
    fn remove(&mut self, line: LineId);

    /// Reports the mean number of erases of a line's chunks, before the line is closed and whenever
    /// it is updated. Most policies ignore it.
    fn on_wear(&mut self, line: LineId, erases: u32) {
        let _ = (line, erases);
    }

    /// Sets whether the host waits until space is reclaimed; then only space counts. Called before
    /// each choice.
    fn set_critical(&mut self, scarce: bool) {
        let _ = scarce;
    }
}

impl VictimPolicyKind {
    pub(crate) fn build(self) -> AnyVictimPolicy {
        match self {
            VictimPolicyKind::Greedy => AnyVictimPolicy::Greedy(Greedy::default()),
            VictimPolicyKind::CostBenefit => AnyVictimPolicy::CostBenefit(CostBenefit::default()),
            VictimPolicyKind::Fifo => AnyVictimPolicy::Fifo(Fifo::default()),
            VictimPolicyKind::CostWear => AnyVictimPolicy::CostWear(CostWear::default()),
        }
    }
}

/// A policy with its state, which can be copied and saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum AnyVictimPolicy {
    Greedy(Greedy),
    CostBenefit(CostBenefit),
    Fifo(Fifo),
    CostWear(CostWear),
}

impl Deref for AnyVictimPolicy {
    type Target = dyn VictimPolicy;

    #[inline]
    fn deref(&self) -> &(dyn VictimPolicy + 'static) {
        match self {
            AnyVictimPolicy::Greedy(policy) => policy,
            AnyVictimPolicy::CostBenefit(policy) => policy,
            AnyVictimPolicy::Fifo(policy) => policy,
            AnyVictimPolicy::CostWear(policy) => policy,
        }
    }
}

impl DerefMut for AnyVictimPolicy {
    #[inline]
    fn deref_mut(&mut self) -> &mut (dyn VictimPolicy + 'static) {
        match self {
            AnyVictimPolicy::Greedy(policy) => policy,
            AnyVictimPolicy::CostBenefit(policy) => policy,
            AnyVictimPolicy::Fifo(policy) => policy,
            AnyVictimPolicy::CostWear(policy) => policy,
        }
    }
}

/// The line with the smallest share of valid sectors; among equals the lowest number. Among lines of
/// one size, as they all are but for bad chunks and power cuts, that is the fewest valid sectors.
///
/// An invalidation goes up the tree of all lines only as far as it changes a winner, which under
/// random writes is two levels on average; a choice reads the root.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Greedy {
    tree: MinTree<u32>,
    /// By line, the weight of a valid sector, chosen so that full lines of any size weigh about the
    /// same, and the weight of the full line.
    weights: Vec<(u32, u32)>,
}

const NOT_A_CANDIDATE: u32 = u32::MAX;

impl Default for Greedy {
    fn default() -> Greedy {
        Greedy { tree: MinTree::new(NOT_A_CANDIDATE), weights: Vec::new() }
    }
}

impl VictimPolicy for Greedy {
    fn on_closed(&mut self, line: LineId, valid: u32, sectors: u32, _at: u64) {
        self.tree.grow(line.index() + 1);
        if self.weights.len() < self.tree.len() {
            self.weights.resize(self.tree.len(), (0, 0));
        }
        let weight = (NOT_A_CANDIDATE - 1) / sectors.max(1);
        self.weights[line.index()] = (weight, weight * sectors);
        self.tree.set(line.index(), valid * weight);
    }

    #[inline]
    fn on_invalidate(&mut self, line: LineId, valid: u32) {
        self.tree.set(line.index(), valid * self.weights[line.index()].0);
    }

    fn take(&mut self, _now: u64) -> Option<LineId> {
        let line = self.tree.first_min()?;
        if self.tree.min() >= self.weights[line].1 {
            // This line is full, and so is every other one.
            return None;
        }
        self.tree.remove(line);
        Some(LineId::from_index(line))
    }

    fn remove(&mut self, line: LineId) {
        self.tree.remove(line.index());
    }
}

/// The line with the largest `(1 - u) / 2u * age`, where `u` is its share of valid sectors
/// (Rosenblum and Ousterhout, "The design and implementation of a log-structured file system",
/// section 3.6). Looks at every closed line per choice.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CostBenefit {
    lines: Vec<Option<Candidate>>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Candidate {
    valid: u32,
    sectors: u32,
    closed_at: u64,
}

impl VictimPolicy for CostBenefit {
    fn on_closed(&mut self, line: LineId, valid: u32, sectors: u32, at: u64) {
        if self.lines.len() <= line.index() {
            self.lines.resize(line.index() + 1, None);
        }
        self.lines[line.index()] = Some(Candidate { valid, sectors, closed_at: at });
    }

    #[inline]
    fn on_invalidate(&mut self, line: LineId, valid: u32) {
        if let Some(c) = &mut self.lines[line.index()] {
            c.valid = valid;
        }
    }

    fn take(&mut self, now: u64) -> Option<LineId> {
        let mut best: Option<(f64, usize)> = None;
        for (i, line) in self.lines.iter().enumerate() {
            let Some(c) = line else { continue };
            if c.valid >= c.sectors {
                continue;
            }
            let age = (now.saturating_sub(c.closed_at) + 1) as f64;
            let score = if c.valid == 0 {
                f64::MAX
            } else {
                f64::from(c.sectors - c.valid) / (2.0 * f64::from(c.valid)) * age
            };
            if best.is_none_or(|(s, _)| score > s) {
                best = Some((score, i));
            }
        }
        let (_, line) = best?;
        self.lines[line] = None;
        Some(LineId::from_index(line))
    }

    fn remove(&mut self, line: LineId) {
        if let Some(slot) = self.lines.get_mut(line.index()) {
            *slot = None;
        }
    }
}

/// The line that was closed longest ago, as long as any line would free space.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fifo {
    order: VecDeque<LineId>,
    lines: Vec<(u32, u32)>,
    invalid: u64,
}

impl VictimPolicy for Fifo {
    fn on_closed(&mut self, line: LineId, valid: u32, sectors: u32, _at: u64) {
        if self.lines.len() <= line.index() {
            self.lines.resize(line.index() + 1, (0, 0));
        }
        self.lines[line.index()] = (valid, sectors);
        self.invalid += u64::from(sectors - valid);
        self.order.push_back(line);
    }

    #[inline]
    fn on_invalidate(&mut self, line: LineId, valid: u32) {
        let entry = &mut self.lines[line.index()];
        self.invalid += u64::from(entry.0 - valid);
        entry.0 = valid;
    }

    fn take(&mut self, _now: u64) -> Option<LineId> {
        if self.invalid == 0 {
            return None;
        }
        let line = self.order.pop_front()?;
        let (valid, sectors) = self.lines[line.index()];
        self.invalid -= u64::from(sectors - valid);
        Some(line)
    }

    fn remove(&mut self, line: LineId) {
        if let Some(at) = self.order.iter().position(|l| *l == line) {
            self.order.remove(at);
            let (valid, sectors) = self.lines[line.index()];
            self.invalid -= u64::from(sectors - valid);
        }
    }
}

/// The line with the least cost, from its share of valid sectors and its wear above the mean of all
/// closed lines: [`CostWear::SPREAD`] erases weigh as much as a line full of valid sectors
/// [Thesis15 ch. 6 §4.3]. A line with little wear is reclaimed although it is nearly full, so that
/// its chunks take their share of the writes. Its cold data goes to other chunks, which are then
/// rarely erased.
///
/// While space is [critical](VictimPolicy::set_critical) wear does not count: a series of victims
/// with almost no free space would lose more in padding than it gains.
///
/// Ties go to the lowest line. Each choice inspects every closed line.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CostWear {
    critical: bool,
    lines: Vec<Option<Candidate>>,
    wear: Vec<u32>,
}

impl CostWear {
    /// Erases above the mean that cost as much as moving a full line.
    pub const SPREAD: u32 = 16;

    fn wear(&self, line: usize) -> u32 {
        self.wear.get(line).copied().unwrap_or(0)
    }
}

impl VictimPolicy for CostWear {
    fn on_closed(&mut self, line: LineId, valid: u32, sectors: u32, at: u64) {
        if self.lines.len() <= line.index() {
            self.lines.resize(line.index() + 1, None);
        }
        self.lines[line.index()] = Some(Candidate { valid, sectors, closed_at: at });
    }

    #[inline]
    fn on_invalidate(&mut self, line: LineId, valid: u32) {
        if let Some(c) = &mut self.lines[line.index()] {
            c.valid = valid;
        }
    }

    fn take(&mut self, _now: u64) -> Option<LineId> {
        let closed = || (0..).zip(&self.lines).filter_map(|(i, c)| Some((i, (*c)?)));
        let (sum, count) = closed()
            .fold((0u64, 0u64), |(sum, count), (i, _)| (sum + u64::from(self.wear(i)), count + 1));
        let mean = sum as f64 / count.max(1) as f64;
        let mut best: Option<(f64, usize)> = None;
        for (i, c) in closed().filter(|(_, c)| c.valid < c.sectors) {
            let share = f64::from(c.valid) / f64::from(c.sectors);
            let above = (f64::from(self.wear(i)) - mean) / f64::from(CostWear::SPREAD);
            let cost = if self.critical { share } else { share + above };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, i));
            }
        }
        let (_, line) = best?;
        self.lines[line] = None;
        Some(LineId::from_index(line))
    }

    fn remove(&mut self, line: LineId) {
        if let Some(slot) = self.lines.get_mut(line.index()) {
            *slot = None;
        }
    }

    fn on_wear(&mut self, line: LineId, erases: u32) {
        if self.wear.len() <= line.index() {
            self.wear.resize(line.index() + 1, 0);
        }
        self.wear[line.index()] = erases;
    }

    fn set_critical(&mut self, scarce: bool) {
        self.critical = scarce;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ToIndex;

    fn fill(policy: &mut dyn VictimPolicy) {
        policy.on_closed(LineId::new(3), 10, 16, 1);
        policy.on_closed(LineId::new(0), 4, 16, 50);
        policy.on_closed(LineId::new(200), 16, 16, 0);
    }

    #[test]
    fn greedy_takes_the_emptiest_and_never_a_full_line() {
        let mut p = Greedy::default();
        assert_eq!(p.take(0), None);
        fill(&mut p);
        assert_eq!(p.take(100), Some(LineId::new(0)));
        assert_eq!(p.take(100), Some(LineId::new(3)));
        assert_eq!(p.take(100), None, "line 200 is fully valid");
        p.on_invalidate(LineId::new(200), 15);
        assert_eq!(p.take(100), Some(LineId::new(200)));
        assert_eq!(p.take(100), None);
    }

    #[test]
    fn greedy_agrees_with_a_scan() {
        let mut p = Greedy::default();
        let mut valid: Vec<Option<u32>> = vec![None; 500];
        let mut x = 9u64;
        let mut draw = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) % n
        };
        for _ in 0..20_000 {
            let line = draw(500).index();
            match valid[line] {
                None => {
                    valid[line] = Some(64);
                    p.on_closed(LineId::from_index(line), 64, 64, 0);
                }
                Some(0) => {}
                Some(v) => {
                    valid[line] = Some(v - 1);
                    p.on_invalidate(LineId::from_index(line), v - 1);
                }
            }
            if draw(7) == 0 {
                let best = (0..500).filter(|i| valid[*i].is_some_and(|v| v < 64));
                let best = best.min_by_key(|i| (valid[*i], *i));
                assert_eq!(p.take(0), best.map(LineId::from_index));
                if let Some(b) = best {
                    valid[b] = None;
                }
            }
        }
    }

    #[test]
    fn cost_benefit_prefers_old_lines() {
        let mut p = CostBenefit::default();
        fill(&mut p);
        // 6/20 * 100 = 30 beats 12/8 * 51 = 76? No: the emptier one still wins at this age.
        assert_eq!(p.take(100), Some(LineId::new(0)));
        p.on_closed(LineId::new(0), 4, 16, 99);
        // 0.3 * 100 against 1.5 * 2: now the old line wins.
        assert_eq!(p.take(100), Some(LineId::new(3)));
        assert_eq!(p.take(100), Some(LineId::new(0)));
        assert_eq!(p.take(100), None);
    }

    #[test]
    fn fifo_goes_by_age_alone_but_stops_when_nothing_is_to_gain() {
        let mut p = Fifo::default();
        fill(&mut p);
        assert_eq!(p.take(100), Some(LineId::new(3)));
        assert_eq!(p.take(100), Some(LineId::new(0)));
        assert_eq!(p.take(100), None);
        p.on_invalidate(LineId::new(200), 15);
        assert_eq!(p.take(100), Some(LineId::new(200)));
    }

    #[test]
    fn cost_weighs_valid_sectors_against_wear() {
        let mut p = CostWear::default();
        assert_eq!(p.take(0), None);
        fill(&mut p);
        assert_eq!(p.take(100), Some(LineId::new(0)), "without wear the emptiest");
        p.on_closed(LineId::new(0), 4, 16, 60);
        // 0.25 + (60 - 20) / 16 against 0.625 - 20 / 16.
        p.on_wear(LineId::new(0), 60);
        let mut short = p.clone();
        short.set_critical(true);
        assert_eq!(short.take(100), Some(LineId::new(0)), "wear does not count");
        assert_eq!(p.take(100), Some(LineId::new(3)), "the little worn one, although it is fuller");
        assert_eq!(p.take(100), Some(LineId::new(0)));
        assert_eq!(p.take(100), None, "line 200 is fully valid, however fresh");
    }

    #[test]
    fn removed_lines_are_not_taken() {
        for kind in [
            VictimPolicyKind::Greedy,
            VictimPolicyKind::CostBenefit,
            VictimPolicyKind::Fifo,
            VictimPolicyKind::CostWear,
        ] {
            let mut p = kind.build();
            fill(&mut *p);
            p.remove(LineId::new(0));
            p.remove(LineId::new(77));
            assert_eq!(p.take(100), Some(LineId::new(3)), "{kind:?}");
            assert_eq!(p.take(100), None, "{kind:?}");
        }
    }
}
