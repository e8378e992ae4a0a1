//! Power cuts of a [`TestFlash`], and the recovery after them.

use ftl::{
    ChunkReport, Ftl, FtlConfig, Oob, Recovery, RecoveryOp, RecoveryOpKind, RecoveryOpResult,
};
use nvme::Status;

use super::{Cell, CellOob, Content, Op, TestFlash};

/// The completion of a recovery operation.
#[derive(Clone, Debug)]
enum RecoveryOpEnd {
    Padded { id: u32, status: Status },
    Read { id: u32, failed: u64, oob: Vec<[u8; Oob::BYTES]>, data: Vec<u8> },
}

impl RecoveryOpEnd {
    fn report(&self, recovery: &mut Recovery) {
        match self {
            RecoveryOpEnd::Padded { id, status } => {
                recovery.complete(*id, RecoveryOpResult::Padded(*status))
            }
            RecoveryOpEnd::Read { id, failed, oob, data } => {
                recovery.complete(*id, RecoveryOpResult::Read { failed: *failed, oob, data });
            }
        }
    }
}

impl TestFlash {
    /// Cuts power and recovers the FTL.
    pub fn power_cut(&mut self, config: FtlConfig) -> Ftl {
        self.cut();
        let ftl = self.recover(config);
        super::check(&ftl);
        ftl
    }

    /// Cuts power: a program in flight may leave a torn unit; all other operations in flight are
    /// dropped.
    pub fn cut(&mut self) {
        self.cuts += 1;
        // Executed operations are on the media, even if their completions were not reported.
        self.completions.iter_mut().for_each(Vec::clear);
        self.reported.fill(0);
        self.failures.fill(false);
        for pu in 0..self.queues.len() {
            // Only the first operation in the queue of a parallel unit can have started.
            match std::mem::take(&mut self.queues[pu]).into_iter().next() {
                Some(Op::Program { chunk, sector, .. })
                    if self.written[chunk as usize] == sector
                        && !self.failing[chunk as usize]
                        && !self.dead[chunk as usize]
                        && self.rng.chance(0.5) =>
                {
                    let first = (chunk * self.geometry.sectors_per_chunk + sector) as usize;
                    for cell in &mut self.cells[first..first + self.geometry.ws_opt as usize] {
                        *cell = Some(Cell::Torn);
                    }
                    self.written[chunk as usize] += self.geometry.ws_opt;
                }
                Some(Op::Erase { chunk, .. })
                    if self.rng.chance(0.5) && !self.dead[chunk as usize] =>
                {
                    // An interrupted erase: the whole chunk is unreadable.
                    let first = (chunk * self.geometry.sectors_per_chunk) as usize;
                    for cell in
                        &mut self.cells[first..first + self.geometry.sectors_per_chunk as usize]
                    {
                        *cell = Some(Cell::Torn);
                    }
                    self.written[chunk as usize] = self.geometry.sectors_per_chunk;
                }
                _ => {}
            }
        }
    }

    pub fn chunk_report(&self, chunk: u32) -> ChunkReport {
        let written = self.written[chunk as usize];
        if self.bad[chunk as usize] || self.dead[chunk as usize] {
            ChunkReport::Bad
        } else if self.failing[chunk as usize] {
            ChunkReport::ProgramFailed(written)
        } else if written == self.geometry.sectors_per_chunk {
            ChunkReport::Closed(written)
        } else if written == 0 {
            ChunkReport::Free
        } else {
            ChunkReport::Open(written)
        }
    }

    /// Recovers the FTL. Power may be cut a few times during the recovery.
    pub fn recover(&mut self, config: FtlConfig) -> Ftl {
        loop {
            let jobs = if self.rng.chance(0.3) { self.rng.below(40) } else { u64::MAX };
            if let Some(ftl) = self.try_recovery(config, jobs) {
                return ftl;
            }
        }
    }

    fn try_recovery(&mut self, config: FtlConfig, mut limit: u64) -> Option<Ftl> {
        let shape = self.geometry;
        let total = shape.total_chunks();
        let found: Vec<ChunkReport> = (0..total).map(|c| self.chunk_report(c)).collect();
        if found.iter().all(|f| matches!(f, ChunkReport::Free | ChunkReport::Bad))
            && !found.contains(&ChunkReport::Bad)
        {
            return Some(Ftl::new(shape, config, |c| found[c.index()]).unwrap());
        }
        let mut recovery = Recovery::new(shape, config, found, total).unwrap();
        loop {
            let jobs = recovery.next_ops();
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
                ends.push(self.execute(&job));
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
        assert_eq!(stats.map_mismatches, 0, "map pages differ from the media: {stats:?}");
        let whole = !self.dead.contains(&true);
        assert!(
            stats.uncorrectable_sectors == 0 || !whole,
            "uncorrectable sectors although no chunk is offline: {stats:?}"
        );
        self.recoveries.push(stats);
        Some(recovery.finish().unwrap())
    }

    /// Executes every operation that a recovery requests, and finishes the recovery.
    pub fn execute_all(&mut self, mut recovery: Recovery) -> Result<Ftl, ftl::RecoveryError> {
        loop {
            let jobs = recovery.next_ops();
            if jobs.is_empty() {
                return recovery.finish();
            }
            for job in jobs {
                self.execute(&job).report(&mut recovery);
            }
        }
    }

    fn execute(&mut self, job: &RecoveryOp) -> RecoveryOpEnd {
        let shape = self.geometry;
        let size = shape.sector_bytes as usize;
        match &job.action {
            // Programs of a recovery fail only if completions are reordered, so that older seeds
            // keep their meaning.
            RecoveryOpKind::Pad { chunk, .. }
                if self.failing[chunk.index()]
                    || self.order.as_mut().is_some_and(|o| o.chance(self.program_fail)) =>
            {
                self.failing[chunk.index()] = true;
                RecoveryOpEnd::Padded { id: job.id, status: Status::WRITE_FAULT }
            }
            RecoveryOpKind::Pad { chunk, sector, bytes } => {
                assert_eq!(
                    self.written[chunk.index()],
                    *sector,
                    "padding must start at the write pointer"
                );
                let mut bytes = bytes.clone();
                bytes.resize(job.count as usize * size, 0);
                for (i, sector_bytes) in (*sector..).zip(bytes.chunks(size)) {
                    let phys = (shape.first_sector_of(*chunk) + i).index();
                    let content = Content::Bytes(sector_bytes.to_vec());
                    self.cells[phys] =
                        Some(Cell::Written(CellOob::new(RecoveryOp::PADDING.encode()), content));
                }
                self.written[chunk.index()] += job.count;
                RecoveryOpEnd::Padded { id: job.id, status: Status::SUCCESS }
            }
            RecoveryOpKind::ReadOob { phys } | RecoveryOpKind::ReadData { phys } => {
                let (mut failed, mut oob, mut data) = (0, Vec::new(), Vec::new());
                for i in 0..job.count {
                    let lost = self.lost_metadata > 0.0 && self.rng.chance(self.lost_metadata);
                    match &self.cells[(*phys + i).index()] {
                        Some(Cell::Written(o, content))
                            if self.readable((*phys + i).get()) && !lost =>
                        {
                            oob.push(o.bytes);
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
                RecoveryOpEnd::Read { id: job.id, failed, oob, data }
            }
        }
    }
}
