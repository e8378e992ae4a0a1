//! [`merge_extents`]: combines the extents of several shards into those of the device.
//! [`ExtentQuery`]: a query in progress.
//!
//! A core runs one query at a time. Every shard lists its extents in a page of the querying core's
//! registered memory; when all lists are complete, they are merged. The shards answer at different
//! times, so a concurrent change may or may not be included.

use block::{Extent, Request};

use super::config::SHARDS_MAX;
use super::stripes::{ShardLba, StripedSector, Stripes};

/// A query for extents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentQuery {
    /// Index of the request.
    pub(crate) slot: u32,
    pub(crate) request: Request,
    /// Whether the query was sent to the shards.
    pub(crate) is_sent: bool,
    /// Number of extents that each shard has listed.
    pub(crate) counts: [u16; SHARDS_MAX as usize],
}

fn extent_end(extent: &Extent) -> u64 {
    extent.lba + u64::from(extent.sectors)
}

/// Merges the lists of the shards into the extents of the device. `get(shard, i)` returns the
/// `i`-th extent of a shard; `put(i, extent)` receives the result, at most `capacity` extents, and
/// none beyond the end of a truncated list.
///
/// Returns the number of extents. Takes at most `capacity * shards` steps of `shards` lookups.
pub(crate) fn merge_extents(
    stripes: &Stripes,
    query: &ExtentQuery,
    capacity: usize,
    get: impl Fn(u32, u16) -> Extent,
    mut put: impl FnMut(usize, Extent),
) -> usize {
    let (first, last) = (query.request.lba, query.request.lba + u64::from(query.request.sectors));
    let mut next = [0u16; SHARDS_MAX as usize];
    // Returns the extent of a shard that contains its sector `own`, for ascending `own`.
    let mut find = |shard: u32, own: ShardLba| {
        let (next, count) = (&mut next[shard as usize], query.counts[shard as usize]);
        while *next < count {
            let extent = get(shard, *next);
            if extent_end(&extent) > own.get() {
                return Some(extent);
            }
            *next += 1;
        }
        None
    };
    let (mut at, mut count) = (first, 0);
    let mut open: Option<Extent> = None;
    while at < last {
        let StripedSector { shard, lba: own, left: in_stripe } = stripes.locate(at);
        let Some(here) = find(shard, own) else { break };
        // If all shards are in the same state, the extent ends where the first shard changes;
        // otherwise it ends with this stripe.
        let mut until = last;
        for other in 0..stripes.shards() {
            let Some(part) = stripes.fragment(other, at, (last - at) as u32) else { continue };
            match find(other, part.lba) {
                None => until = until.min(stripes.device_lba(other, part.lba)),
                Some(e) if e.state != here.state => {
                    let run = u64::from(in_stripe).min(extent_end(&here) - own.get());
                    until = until.min(at + run);
                }
                Some(e) if extent_end(&e) < part.lba.get() + u64::from(part.sectors) => {
                    until = until.min(stripes.device_lba(other, ShardLba(extent_end(&e))));
                }
                Some(_) => {}
            }
        }
        let sectors = (until - at) as u32;
        match &mut open {
            Some(extent) if extent.state == here.state => extent.sectors += sectors,
            _ => {
                if let Some(whole) = open.replace(Extent { lba: at, sectors, state: here.state }) {
                    put(count, whole);
                    count += 1;
                    if count == capacity {
                        return count;
                    }
                }
            }
        }
        at = until;
    }
    if let Some(whole) = open {
        put(count, whole);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ExtentState;
    use mem::Iova;
    use rng::Rng;

    fn list(mapped: &[bool], first: u64, capacity: usize) -> Vec<Extent> {
        let mut out: Vec<Extent> = Vec::new();
        for (lba, mapped) in (first..).zip(mapped) {
            let state = if *mapped { ExtentState::Mapped } else { ExtentState::Unmapped };
            match out.last_mut() {
                Some(e) if e.state == state => e.sectors += 1,
                _ => out.push(Extent { lba, sectors: 1, state }),
            }
        }
        out.truncate(capacity);
        out
    }

    #[test]
    fn the_merged_list_is_that_of_the_whole_device() {
        let mut rng = Rng::new(5);
        for _ in 0..4_000 {
            let stripes = Stripes::new(1 + rng.below(6) as u32, rng.below(4) as u8);
            let rows = 1 + rng.below(12) as u32;
            let size = (rows * stripes.shards() * stripes.sectors()) as usize;
            let mut device = vec![false; size];
            let mut at = 0;
            while at < size {
                let run = 1 + rng.below(40) as usize;
                let end = (at + run).min(size);
                device[at..end].fill(rng.chance(0.5));
                at = end;
            }
            let lba = rng.below(size as u64);
            let sectors = 1 + rng.below(size as u64 - lba) as u32;
            let capacity = 1 + rng.below(12) as usize;
            let mut counts = [0; SHARDS_MAX as usize];
            let lists: Vec<Vec<Extent>> = (0..stripes.shards())
                .map(|shard| {
                    let Some(part) = stripes.fragment(shard, lba, sectors) else {
                        return Vec::new();
                    };
                    let of = |i: u64| device[stripes.device_lba(shard, part.lba + i) as usize];
                    let mapped: Vec<bool> = (0..part.sectors.into()).map(of).collect();
                    list(&mapped, part.lba.get(), capacity)
                })
                .collect();
            for (count, list) in counts.iter_mut().zip(&lists) {
                *count = list.len() as u16;
            }
            let request = Request::extents(lba, sectors, Iova(0), 0);
            let mut merged = Vec::new();
            let count = merge_extents(
                &stripes,
                &ExtentQuery { slot: 0, request, is_sent: true, counts },
                capacity,
                |shard, i| lists[shard as usize][usize::from(i)],
                |i, extent| {
                    assert_eq!(i, merged.len());
                    merged.push(extent);
                },
            );
            assert_eq!(count, merged.len());
            let range = &device[lba as usize..][..sectors as usize];
            let whole = list(range, lba, usize::MAX);
            let complete = lists.iter().all(|l| l.len() < capacity);
            if complete {
                assert_eq!(merged, whole[..whole.len().min(capacity)]);
            } else {
                // Truncated lists give a shorter result, not a wrong one.
                assert!(count > 0);
                assert_eq!(merged[..count - 1], whole[..count - 1]);
                let (cut, all) = (merged[count - 1], whole[count - 1]);
                assert_eq!((cut.lba, cut.state), (all.lba, all.state));
                assert!(cut.sectors <= all.sectors);
            }
        }
    }
}
