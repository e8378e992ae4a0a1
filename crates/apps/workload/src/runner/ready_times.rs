//! [`ReadyTimes`]: the time at which each job thread becomes ready. Ready threads are found without
//! a scan of all threads.

use time::Nanos;

/// Number of threads per block.
const BLOCK: usize = 64;

/// One instant per thread. With more than one block of threads, also the minimum of each block.
#[derive(Debug)]
pub(crate) struct ReadyTimes {
    times: Vec<Nanos>,
    /// Minimum of each block; empty if there is only one block.
    block_min: Vec<Nanos>,
}

impl ReadyTimes {
    /// Returns ready times of `count` threads that are never ready.
    pub(crate) fn new(count: usize) -> ReadyTimes {
        let blocks = if count > BLOCK { count.div_ceil(BLOCK) } else { 0 };
        ReadyTimes { times: vec![Nanos::MAX; count], block_min: vec![Nanos::MAX; blocks] }
    }

    /// Sets the ready time of thread `i`.
    #[inline]
    pub(crate) fn set(&mut self, i: usize, at: Nanos) {
        let before = std::mem::replace(&mut self.times[i], at);
        if !self.block_min.is_empty() {
            self.update(i / BLOCK, before, at);
        }
    }

    /// Updates the minimum of `block` after one of its instants changed.
    fn update(&mut self, block: usize, before: Nanos, at: Nanos) {
        if at <= self.block_min[block] {
            self.block_min[block] = at;
        } else if before == self.block_min[block] {
            let end = self.times.len().min((block + 1) * BLOCK);
            let least = self.times[block * BLOCK..end].iter().copied().min();
            self.block_min[block] = least.unwrap_or(Nanos::MAX);
        }
    }

    /// Lowers the ready time of thread `i` to `at`, if it is later.
    #[inline]
    pub(crate) fn lower(&mut self, i: usize, at: Nanos) {
        if at < self.times[i] {
            self.set(i, at);
        }
    }

    /// Returns the first thread in `from..end` that is ready by `now`.
    #[inline]
    pub(crate) fn next(&self, from: usize, end: usize, now: Nanos) -> Option<usize> {
        if self.block_min.is_empty() {
            return (from..end).find(|i| self.times[*i] <= now);
        }
        self.next_by_blocks(from, end, now)
    }

    fn next_by_blocks(&self, from: usize, end: usize, now: Nanos) -> Option<usize> {
        let mut i = from;
        while i < end {
            if i.is_multiple_of(BLOCK) && self.block_min[i / BLOCK] > now {
                i += BLOCK;
            } else if self.times[i] <= now {
                return Some(i);
            } else {
                i += 1;
            }
        }
        None
    }

    /// Returns the earliest ready time of all threads.
    #[inline]
    pub(crate) fn earliest(&self) -> Nanos {
        let all = if self.block_min.is_empty() { &self.times } else { &self.block_min };
        all.iter().fold(Nanos::MAX, |least, at| least.min(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rng::Rng;

    #[test]
    fn finds_what_a_look_at_every_worker_finds() {
        let mut rng = Rng::new(7);
        for count in [1, 2, 63, 64, 65, 200] {
            let mut times = ReadyTimes::new(count);
            let mut plain = vec![Nanos::MAX; count];
            assert_eq!(times.earliest(), Nanos::MAX);
            for _ in 0..2000 {
                let i = (rng.next_u64() % count as u64) as usize;
                let at = Nanos(rng.next_u64() % 50);
                if rng.next_u64().is_multiple_of(3) {
                    times.lower(i, at);
                    plain[i] = plain[i].min(at);
                } else {
                    times.set(i, at);
                    plain[i] = at;
                }
                let (from, now) = ((rng.next_u64() % count as u64) as usize, at);
                let found = (from..count).find(|i| plain[*i] <= now);
                assert_eq!(times.next(from, count, now), found);
                assert_eq!(times.earliest(), plain.iter().copied().min().unwrap());
            }
        }
    }
}
