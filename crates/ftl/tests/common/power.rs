//! [`TestFlash`] when power goes, and the recovery when it comes back.

use ftl::{Found, Ftl, FtlConfig, Job, JobDone, Oob, Recovery, Work};
use nvme::Status;

use super::{Cell, Content, Op, TestFlash};

/// A job of a recovery that has ended.
#[derive(Clone, Debug)]
enum JobEnd {
    Padded { id: u32, status: Status },
    Read { id: u32, failed: u64, oob: Vec<[u8; Oob::BYTES]>, data: Vec<u8> },
}

impl JobEnd {
    fn report(&self, recovery: &mut Recovery) {
        match self {
            JobEnd::Padded { id, status } => recovery.done(*id, JobDone::Padded(*status)),
            JobEnd::Read { id, failed, oob, data } => {
                recovery.done(*id, JobDone::Read { failed: *failed, oob, data });
            }
        }
    }
}

impl TestFlash {
    /// Cuts power, and recovers the layer. `again` cuts the recovery's own padding short that often first.
    pub fn power_cut(&mut self, config: FtlConfig) -> Ftl {
        self.cut();
        self.recover(config)
    }

    /// Cuts power: programs under way may leave a torn unit, everything else is forgotten.
    pub fn cut(&mut self) {
        self.cuts += 1;
        // What has ended is on the media, whoever has heard of it.
        self.ends.iter_mut().for_each(Vec::clear);
        self.reported.fill(0);
        self.failures.fill(false);
        for pu in 0..self.queues.len() {
            // Only what a parallel unit was to do next can have begun.
            match std::mem::take(&mut self.queues[pu]).into_iter().next() {
                Some(Op::Program { chunk, sector, .. })
                    if self.written[chunk as usize] == sector
                        && !self.failing[chunk as usize]
                        && !self.dead[chunk as usize]
                        && self.rng.chance(0.5) =>
                {
                    let first = (chunk * self.shape.sectors + sector) as usize;
                    for cell in &mut self.cells[first..first + self.shape.unit as usize] {
                        *cell = Some(Cell::Torn);
                    }
                    self.written[chunk as usize] += self.shape.unit;
                }
                Some(Op::Erase { chunk, .. })
                    if self.rng.chance(0.5) && !self.dead[chunk as usize] =>
                {
                    // An erase that was interrupted: nothing in the chunk can be read.
                    let first = (chunk * self.shape.sectors) as usize;
                    for cell in &mut self.cells[first..first + self.shape.sectors as usize] {
                        *cell = Some(Cell::Torn);
                    }
                    self.written[chunk as usize] = self.shape.sectors;
                }
                _ => {}
            }
        }
    }

    pub fn found(&self, chunk: u32) -> Found {
        let written = self.written[chunk as usize];
        if self.bad[chunk as usize] || self.dead[chunk as usize] {
            Found::Bad
        } else if self.failing[chunk as usize] {
            Found::Failing(written)
        } else if written == self.shape.sectors {
            Found::Closed(written)
        } else if written == 0 {
            Found::Free
        } else {
            Found::Open(written)
        }
    }

    /// Recovers the layer; a recovery may be cut a few times first.
    pub fn recover(&mut self, config: FtlConfig) -> Ftl {
        loop {
            let jobs = if self.rng.chance(0.3) { self.rng.below(40) } else { u64::MAX };
            if let Some(ftl) = self.try_recovery(config, jobs) {
                return ftl;
            }
        }
    }

    fn try_recovery(&mut self, config: FtlConfig, mut limit: u64) -> Option<Ftl> {
        let shape = self.shape;
        let total = shape.total_chunks();
        let found: Vec<Found> = (0..total).map(|c| self.found(c)).collect();
        if found.iter().all(|f| matches!(f, Found::Free | Found::Bad))
            && !found.contains(&Found::Bad)
        {
            return Some(Ftl::new(shape, config, |c| found[c as usize]).unwrap());
        }
        let mut recovery = Recovery::new(shape, config, found, total).unwrap();
        loop {
            let jobs = recovery.jobs();
            if jobs.is_empty() {
                break;
            }
            let mut ends = Vec::new();
            for job in jobs {
                if limit == 0 {
                    self.cuts += 1;
                    return None;
                }
                limit -= 1;
                ends.push(self.carry_out(&job));
                if self.order.is_none() {
                    ends.drain(..).for_each(|end| end.report(&mut recovery));
                }
            }
            if let Some(order) = &mut self.order {
                order.shuffle(&mut ends);
            }
            ends.iter().for_each(|end| end.report(&mut recovery));
        }
        let stats = recovery.stats();
        assert_eq!(stats.contradictions, 0, "the map's pages and the media: {stats:?}");
        let whole = !self.dead.contains(&true);
        assert!(stats.lost == 0 || !whole, "nothing was lost: {stats:?}");
        self.recoveries.push(stats);
        Some(recovery.finish().unwrap())
    }

    /// Does everything that a recovery wants, and ends it.
    pub fn carry_out_all(&mut self, mut recovery: Recovery) -> Result<Ftl, ftl::RecoveryError> {
        loop {
            let jobs = recovery.jobs();
            if jobs.is_empty() {
                return recovery.finish();
            }
            for job in jobs {
                self.carry_out(&job).report(&mut recovery);
            }
        }
    }

    fn carry_out(&mut self, job: &Job) -> JobEnd {
        let shape = self.shape;
        let size = shape.sector_bytes as usize;
        match &job.what {
            // Only of what reports in any order a recovery's programs fail: older seeds mean what they meant.
            Work::Pad { chunk, .. }
                if self.failing[*chunk as usize]
                    || self.order.as_mut().is_some_and(|o| o.chance(self.program_fail)) =>
            {
                self.failing[*chunk as usize] = true;
                JobEnd::Padded { id: job.id, status: Status::WRITE_FAULT }
            }
            Work::Pad { chunk, sector, bytes } => {
                assert_eq!(self.written[*chunk as usize], *sector, "padding goes to the pointer");
                let mut bytes = bytes.clone();
                bytes.resize(job.count as usize * size, 0);
                for (i, sector_bytes) in (*sector..).zip(bytes.chunks(size)) {
                    let psn = (chunk * shape.sectors + i) as usize;
                    let content = Content::Bytes(sector_bytes.to_vec());
                    self.cells[psn] = Some(Cell::Written(Job::PADDING, content));
                }
                self.written[*chunk as usize] += job.count;
                JobEnd::Padded { id: job.id, status: Status::SUCCESS }
            }
            Work::ReadOob { psn } | Work::ReadData { psn } => {
                let (mut failed, mut oob, mut data) = (0, Vec::new(), Vec::new());
                for i in 0..job.count {
                    let lost = self.lost_metadata > 0.0 && self.rng.chance(self.lost_metadata);
                    match &self.cells[(psn + i) as usize] {
                        Some(Cell::Written(o, content)) if self.readable(psn + i) && !lost => {
                            oob.push(o.encode());
                            match content {
                                Content::Bytes(bytes) => data.extend(bytes),
                                Content::Value(v) => data.extend(v.to_le_bytes()),
                            }
                        }
                        _ => {
                            failed |= 1 << i;
                            oob.push([0; Oob::BYTES]);
                        }
                    }
                    data.resize((i as usize + 1) * size, 0);
                }
                JobEnd::Read { id: job.id, failed, oob, data }
            }
        }
    }
}
