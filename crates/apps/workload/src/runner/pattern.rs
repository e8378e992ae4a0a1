//! [`Pattern`]: the next block of a job, by fio's rules of order, block size and coverage.
//!
//! All values are bytes relative to the job's region. A request takes O(1) time and does not
//! allocate. Coverage of every block once uses a permutation of the block numbers, which needs no
//! memory. Only jobs that mix block sizes have a bitmap, with one bit per smallest block.

use rng::{Pareto, Permutation, Rng, Zipf};

use crate::job::{BlockSizes, Direction, Distribution, JobSpec};

/// Offset and length, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Sequence of the blocks that a job accesses.
#[derive(Debug)]
pub(crate) struct Pattern {
    rng: Rng,
    /// Smallest block size; offsets are multiples of it.
    block_bytes: u64,
    block_count: u64,
    sizes: [Sizes; 3],
    order: Order,
}

/// Distribution of block sizes, by cumulative share of 2^32.
#[derive(Debug)]
struct Sizes {
    cumulative: Vec<(u32, u64)>,
}

impl Sizes {
    fn new(split: &BlockSizes) -> Sizes {
        let mut sum = 0.0;
        let mut cumulative: Vec<(u32, u64)> = split
            .iter()
            .map(|(bytes, percent)| {
                sum += percent;
                ((sum / 100.0 * f64::from(u32::MAX)) as u32, *bytes)
            })
            .collect();
        if let Some(last) = cumulative.last_mut() {
            last.0 = u32::MAX;
        }
        Sizes { cumulative }
    }

    #[inline]
    fn next(&self, rng: &mut Rng) -> u64 {
        if let [(_, only)] = self.cumulative[..] {
            return only;
        }
        let at = (rng.next_u64() >> 32) as u32;
        self.cumulative.iter().find(|(until, _)| at <= *until).map_or(0, |(_, bytes)| *bytes)
    }
}

#[derive(Debug)]
enum Order {
    /// One position per direction, as in fio.
    Sequential {
        at: [u64; 3],
    },
    /// Uniformly random blocks; blocks may repeat.
    Uniform,
    /// Every block once per pass.
    Once {
        map: Permutation,
        next: u64,
    },
    /// Every block once per pass, in blocks of several sizes.
    OnceMixed {
        map: Permutation,
        next: u64,
        covered: Vec<u64>,
    },
    Zipf {
        ranks: Zipf,
        spread: Permutation,
    },
    Pareto {
        ranks: Pareto,
        spread: Permutation,
    },
    Zoned {
        zones: [Vec<ZoneRange>; 3],
    },
    /// Given ranks first, and then another order.
    Given {
        ranks: GivenRanks,
        then: Box<Order>,
    },
}

/// The ranks of the blocks that a job accesses first: its most popular block has rank 0. Under a
/// uniform distribution a rank is the number of a block.
pub(crate) struct GivenRanks(pub(crate) Box<dyn Iterator<Item = u64> + Send>);

impl std::fmt::Debug for GivenRanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GivenRanks").finish_non_exhaustive()
    }
}

/// A zone in blocks, by cumulative share of 2^32.
#[derive(Clone, Copy, Debug)]
struct ZoneRange {
    cumulative: u32,
    first_block: u64,
    block_count: u64,
}

impl Pattern {
    /// Returns the pattern of `spec` over a region of `region` bytes.
    ///
    /// # Errors
    /// A description of an option that does not fit the region.
    pub(crate) fn new(spec: &JobSpec, region: u64, mut rng: Rng) -> Result<Pattern, String> {
        let used = || crate::parse::options::used_directions(&spec.pattern.access);
        let used_sizes = || {
            used()
                .flat_map(|d| spec.pattern.block_sizes[d as usize].iter().map(|(bytes, _)| *bytes))
        };
        let (unit, largest) = (used_sizes().min().unwrap_or(0), used_sizes().max().unwrap_or(0));
        if unit == 0 || used_sizes().any(|b| b > region) {
            return Err(format!(
                "a block of {largest} bytes does not fit the job's region of {region} bytes"
            ));
        }
        if let Some(odd) = used_sizes().find(|b| b % unit != 0) {
            return Err(format!(
                "block size {odd} is not a multiple of the smallest block size {unit}"
            ));
        }
        let units = region / unit;
        let order = if !spec.pattern.access.random {
            Order::Sequential { at: [0; 3] }
        } else {
            match &spec.pattern.distribution {
                Distribution::Uniform if spec.pattern.norandommap => Order::Uniform,
                Distribution::Uniform if unit == largest => {
                    Order::Once { map: Permutation::new(units, &mut rng), next: 0 }
                }
                Distribution::Uniform => Order::OnceMixed {
                    map: Permutation::new(units, &mut rng),
                    next: 0,
                    covered: vec![0; units.div_ceil(64) as usize],
                },
                Distribution::Zipf(theta) => Order::Zipf {
                    ranks: Zipf::new(units, *theta).ok_or("zipf takes a theta of 0 to 100")?,
                    spread: Permutation::new(units, &mut rng),
                },
                Distribution::Pareto(h) => Order::Pareto {
                    ranks: Pareto::new(units, *h).ok_or("pareto takes a power of 0 to 1")?,
                    spread: Permutation::new(units, &mut rng),
                },
                Distribution::Zoned(zones) => Order::Zoned {
                    zones: [
                        zone_ranges(&zones[0], region, unit)?,
                        zone_ranges(&zones[1], region, unit)?,
                        zone_ranges(&zones[2], region, unit)?,
                    ],
                },
            }
        };
        let sizes = std::array::from_fn(|d| Sizes::new(&spec.pattern.block_sizes[d]));
        Ok(Pattern { rng, block_bytes: unit, block_count: units, sizes, order })
    }

    /// Accesses the blocks of `ranks` before its own. Its own are drawn by other random numbers than
    /// those of a job with the same seed that begins with its own blocks.
    ///
    /// # Panics
    /// If a rank, when it is accessed, is not below the number of blocks.
    pub(crate) fn access_first(&mut self, ranks: GivenRanks) {
        self.rng = self.rng.fork(1);
        let then = std::mem::replace(&mut self.order, Order::Uniform);
        self.order = Order::Given { ranks, then: Box::new(then) };
    }

    /// Returns the next block.
    #[inline]
    pub(crate) fn next(&mut self, direction: Direction) -> Block {
        let Pattern { rng, block_bytes: unit, block_count: units, sizes, order } = self;
        let (unit, units, d) = (*unit, *units, direction as usize);
        let bytes = sizes[d].next(rng);
        let (at, free) = match order {
            Order::Sequential { at } => {
                let start = if at[d] >= units { 0 } else { at[d] };
                at[d] = start + bytes.div_ceil(unit);
                (start, u64::MAX)
            }
            Order::Uniform => (rng.below(units), u64::MAX),
            Order::Once { map, next } => {
                if *next == units {
                    (*map, *next) = (Permutation::new(units, rng), 0);
                }
                *next += 1;
                (map.at(*next - 1), u64::MAX)
            }
            Order::OnceMixed { map, next, covered } => {
                let at = loop {
                    if *next == units {
                        (*map, *next) = (Permutation::new(units, rng), 0);
                        covered.fill(0);
                    }
                    let at = map.at(*next);
                    *next += 1;
                    if covered[(at / 64) as usize] & (1 << (at % 64)) == 0 {
                        break at;
                    }
                };
                // As in fio, a block ends where a block covered earlier begins.
                let mut free = 0;
                while free < bytes / unit && at + free < units {
                    let (word, bit) = ((at + free) / 64, (at + free) % 64);
                    if covered[word as usize] & (1 << bit) != 0 {
                        break;
                    }
                    covered[word as usize] |= 1 << bit;
                    free += 1;
                }
                (at, free)
            }
            Order::Zipf { ranks, spread } => (spread.at(ranks.sample(rng)), u64::MAX),
            Order::Pareto { ranks, spread } => (spread.at(ranks.sample(rng)), u64::MAX),
            Order::Zoned { zones } => {
                let draw = (rng.next_u64() >> 32) as u32;
                let zone = zones[d].iter().find(|z| draw <= z.cumulative);
                let at = zone.map_or(0, |z| z.first_block + rng.below(z.block_count));
                (at, u64::MAX)
            }
            Order::Given { ranks, then } => match (ranks.0.next(), &**then) {
                (Some(rank), Order::Zipf { spread, .. } | Order::Pareto { spread, .. }) => {
                    (spread.at(rank), u64::MAX)
                }
                (Some(rank), _) => {
                    assert!(rank < units, "block {rank} of {units} is accessed");
                    (rank, u64::MAX)
                }
                (None, _) => {
                    *order = std::mem::replace(then, Order::Uniform);
                    return self.next(direction);
                }
            },
        };
        let room = (units - at).min(free).saturating_mul(unit);
        Block { offset: at * unit, bytes: bytes.min(room) }
    }
}

fn zone_ranges(
    zones: &[crate::job::Zone],
    region: u64,
    unit: u64,
) -> Result<Vec<ZoneRange>, String> {
    let units = region / unit;
    let (mut first, mut share, mut out) = (0u64, 0.0, Vec::new());
    for (i, zone) in zones.iter().enumerate() {
        let last = i + 1 == zones.len();
        let end = (first + zone.length.resolve(region) / unit).min(units);
        let relative = matches!(zone.length, crate::units::Size::Percent(_));
        let end = if last && relative { units } else { end };
        share += zone.accesses;
        if end == first && zone.accesses > 0.0 {
            return Err(format!("zone {} of random_distribution has no block in it", i + 1));
        }
        let until = if last { u32::MAX } else { (share / 100.0 * f64::from(u32::MAX)) as u32 };
        if zone.accesses > 0.0 {
            out.push(ZoneRange { cumulative: until, first_block: first, block_count: end - first });
        }
        first = end;
    }
    if let Some(last) = out.last_mut() {
        last.cumulative = u32::MAX;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn pattern(region: u64, pairs: &[(&str, &str)]) -> Pattern {
        let pairs = pairs.iter().map(|(k, v)| (*k, *v, 1));
        let (spec, _) = JobSpec::from_pairs("j", Path::new("t"), pairs).unwrap();
        Pattern::new(&spec, region, Rng::new(1)).unwrap()
    }

    #[test]
    fn sequential_wraps_and_keeps_a_position_per_direction() {
        let mut p = pattern(10_000, &[("rw", "rw"), ("bs", "4k")]);
        let mut next = |d| p.next(d).offset;
        use Direction::{Read, Write};
        assert_eq!([next(Read), next(Read), next(Write), next(Read)], [0, 4096, 0, 0]);
    }

    #[test]
    fn the_random_map_covers_everything_once_per_pass() {
        let mut p = pattern(1000 * 4096, &[("rw", "randwrite"), ("bs", "4k")]);
        let mut orders = Vec::new();
        for _ in 0..3 {
            let pass: Vec<u64> = (0..1000).map(|_| p.next(Direction::Write).offset).collect();
            let mut sorted = pass.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..1000).map(|i| i * 4096).collect::<Vec<_>>());
            orders.push(pass);
        }
        assert_ne!(orders[0], orders[1]);
    }

    #[test]
    fn mixed_sizes_cover_everything_once_too() {
        let mut p = pattern(1000 * 4096, &[("rw", "randrw"), ("bssplit", "4k/20:16k/30:64k/50")]);
        let mut covered = vec![0; 1000];
        let mut left = 1000;
        let mut sizes = [0u32; 2];
        while left > 0 {
            let block = p.next(Direction::Read);
            assert_eq!(block.bytes % 4096, 0);
            sizes[usize::from(block.bytes == 65536)] += 1;
            for unit in block.offset / 4096..(block.offset + block.bytes) / 4096 {
                covered[unit as usize] += 1;
                left -= 1;
            }
        }
        assert!(covered.iter().all(|c| *c == 1));
        assert!(sizes[1] > 0);
    }

    #[test]
    fn block_sizes_come_in_their_shares() {
        let region = 1 << 30;
        let mut p =
            pattern(region, &[("rw", "randread"), ("norandommap", ""), ("bssplit", "4k/10:8k/90")]);
        let n = 100_000;
        let small = (0..n).filter(|_| p.next(Direction::Read).bytes == 4096).count();
        assert!((small as f64 / f64::from(n) - 0.1).abs() < 0.005, "{small}");
    }

    #[test]
    fn no_block_leaves_the_region() {
        for dist in
            ["random", "zipf:1.1", "pareto:0.2", "zoned:50/10:50/90", "zoned_abs:90/1m:10/2m"]
        {
            let region = (3 << 20) + 4096;
            let mut p = pattern(
                region,
                &[
                    ("rw", "randread"),
                    ("norandommap", "1"),
                    ("bssplit", "4k/50:64k/"),
                    ("random_distribution", dist),
                ],
            );
            for _ in 0..20_000 {
                let b = p.next(Direction::Read);
                assert!(b.bytes >= 4096 && b.offset + b.bytes <= region, "{dist} {b:?}");
            }
        }
    }

    #[test]
    fn zones_get_their_shares() {
        let mut p = pattern(
            100 * 4096,
            &[("rw", "randread"), ("random_distribution", "zoned:60/10:30/20:8/30:2/40")],
        );
        let mut hits = [0f64; 4];
        for _ in 0..100_000 {
            let at = p.next(Direction::Read).offset / 4096;
            hits[[10, 30, 60, 100].iter().position(|end| at < *end).unwrap()] += 1.0;
        }
        for (hit, share) in hits.iter().zip([60.0, 30.0, 8.0, 2.0]) {
            assert!((hit / 1000.0 - share).abs() < 0.6, "{hits:?}");
        }
    }

    #[test]
    fn zipf_is_hot_and_spread() {
        let mut p =
            pattern(100_000 * 4096, &[("rw", "randread"), ("random_distribution", "zipf:1.2")]);
        let mut hits = vec![0u32; 100_000];
        for _ in 0..100_000 {
            hits[(p.next(Direction::Read).offset / 4096) as usize] += 1;
        }
        let mut hottest: Vec<usize> = (0..hits.len()).collect();
        hottest.sort_by_key(|i| std::cmp::Reverse(hits[*i]));
        let share: u32 = hottest[..1000].iter().map(|i| hits[*i]).sum();
        assert!(share > 70_000, "{share}");
        let low_half = hottest[..1000].iter().filter(|i| **i < 50_000).count();
        assert!((400..600).contains(&low_half), "hot blocks are spread: {low_half}");
    }

    #[test]
    fn given_ranks_come_first() {
        for dist in ["random", "zipf:1.1"] {
            let pairs =
                |dist| [("rw", "randwrite"), ("norandommap", "1"), ("random_distribution", dist)];
            let mut given = pattern(1000 * 4096, &pairs(dist));
            given.access_first(GivenRanks(Box::new([7, 7, 0, 999].into_iter())));
            let first: Vec<u64> =
                (0..4).map(|_| given.next(Direction::Write).offset / 4096).collect();
            assert_eq!(first[0], first[1]);
            assert_eq!(first == [7, 7, 0, 999], dist == "random", "ranks are spread: {first:?}");
            // Then the job goes on, with other blocks than those with which it would have begun.
            let mut own = pattern(1000 * 4096, &pairs(dist));
            let next =
                |of: &mut Pattern| (0..100).map(|_| of.next(Direction::Write).offset).collect();
            let (after, instead): (Vec<u64>, Vec<u64>) = (next(&mut given), next(&mut own));
            let equal = after.iter().zip(&instead).filter(|(a, b)| a == b).count();
            assert!(equal < 20, "{dist}: {equal}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let pairs = [("rw", "randread", 1), ("bssplit", "4k/50:6k/50", 2)];
        let (spec, _) = JobSpec::from_pairs("j", Path::new("t"), pairs).unwrap();
        assert!(Pattern::new(&spec, 1 << 20, Rng::new(1)).unwrap_err().contains("multiple"));
        assert!(Pattern::new(&spec, 100, Rng::new(1)).unwrap_err().contains("does not fit"));
    }
}
