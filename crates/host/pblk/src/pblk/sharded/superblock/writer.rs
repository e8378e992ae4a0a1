//! [`SuperblockWriter`]: tracks the contents of the superblock's locations and selects the next
//! command.
//!
//! It submits nothing itself: the caller gets the [next command](SuperblockWriter::next_command)
//! and reports its [outcome](SuperblockWriter::on_command_complete), one at a time.
//!
//! Invariants, provided that the media keep what was read back:
//! - A location is erased only while another one holds a superblock that was read, so that a power
//!   cut at any command leaves one. If all copies are lost, they are rewritten from memory.
//! - A copy counts once it was read back.
//! - The two copies of a generation are on different parallel units, if locations on different
//!   units are writable.
//! - Each time copies are [completed](SuperblockWriter::write_missing), a location is erased at
//!   most once. The location with the oldest copy is erased first, so that all locations wear
//!   equally. A location whose erase fails is given up; one whose program failed is used last.

// guarantee: D-29

mod invariants;

use nvme::{ChunkId, FlashGeometry, PuId};

use super::{COPIES, LOCATIONS};

/// Known content of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotContent {
    /// Erased.
    Erased,
    /// Not a superblock, or unreadable.
    Unreadable,
    /// Not a superblock, or unreadable; must be erased before the next program.
    NeedsErase,
    /// A superblock of this generation, which was read.
    Valid(u64),
    /// Cannot be erased.
    Dead,
}

/// A location of the superblock.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuperblockSlot {
    pub(super) chunk: ChunkId,
    pub(super) content: SlotContent,
    pu: PuId,
    /// Whether a write of this generation was attempted.
    attempted: bool,
}

/// A media command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuperblockCommand {
    /// Reads the first sector.
    Read { chunk: ChunkId },
    /// Erases the chunk.
    Erase { chunk: ChunkId },
    /// Programs write unit `unit` of the chunk with the superblock of this generation.
    Program { chunk: ChunkId, unit: u32, generation: u64 },
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    /// Success. A read returns the generation of the superblock, if its layout matches.
    Success(Option<u64>),
    /// Success of a read that needed much error correction; otherwise as `Success`.
    HighEcc(Option<u64>),
    /// Media error.
    MediaError,
    /// The drive rejected the command; the content is not known.
    Rejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterStep {
    Idle,
    /// Read the copy at this location next.
    Read(usize),
    Erase(usize),
    /// Program this write unit next.
    Program(usize, u32),
    Verify(usize),
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SuperblockCounts {
    pub(super) reads: u64,
    pub(super) erases: u64,
    pub(super) failures: u64,
    /// Copies of the newest generation that became unreadable.
    pub(super) copies_lost: u64,
}

/// The locations, and the current step.
#[derive(Clone, Debug)]
pub(crate) struct SuperblockWriter {
    pub(super) slots: [SuperblockSlot; LOCATIONS],
    /// The current generation.
    pub(super) generation: u64,
    /// Write units of a copy: with these written, the first one is readable from media.
    units: u32,
    step: WriterStep,
    /// Whether a copy of the newest generation was hard to read or unreadable.
    pub(super) needs_rewrite: bool,
    pub(super) counts: SuperblockCounts,
}

impl SuperblockWriter {
    /// Creates a writer for these chunks, whose contents are not known.
    pub(super) fn new(shape: &FlashGeometry, chunks: [ChunkId; LOCATIONS]) -> SuperblockWriter {
        let place = |chunk| SuperblockSlot {
            chunk,
            content: SlotContent::Unreadable,
            pu: shape.pu_of(chunk),
            attempted: false,
        };
        SuperblockWriter {
            slots: chunks.map(place),
            generation: 0,
            units: (1 + shape.mw_cunits.div_ceil(shape.ws_opt))
                .min(shape.sectors_per_chunk / shape.ws_opt),
            step: WriterStep::Idle,
            needs_rewrite: false,
            counts: SuperblockCounts::default(),
        }
    }

    /// Returns the number of write units of a copy.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Returns the number of copies of the newest generation.
    pub(super) fn copies(&self) -> usize {
        self.slots.iter().filter(|p| p.content == SlotContent::Valid(self.generation)).count()
    }

    /// Returns the generations of all copies.
    pub(super) fn generations(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().filter_map(|p| match p.content {
            SlotContent::Valid(generation) => Some(generation),
            _ => None,
        })
    }

    /// Starts to read all copies.
    pub(super) fn start_read(&mut self) {
        self.needs_rewrite = false;
        self.step = WriterStep::Read(0);
    }

    /// Starts to write the missing copies of the newest generation, if there are locations for
    /// them.
    pub(super) fn write_missing(&mut self) {
        self.slots.iter_mut().for_each(|p| p.attempted = false);
        self.step = WriterStep::Idle;
        self.select_next();
    }

    /// Starts a new generation. Returns `false` if there is no location for it.
    pub(super) fn start_generation(&mut self) -> bool {
        self.slots.iter_mut().for_each(|p| p.attempted = false);
        let Some(newest) = self.generation.checked_add(1) else { return false };
        if self.find_slot(newest).is_none() {
            return false;
        }
        self.generation = newest;
        self.write_missing();
        true
    }

    /// Returns the next command; `None` if nothing is to be done.
    pub(super) fn next_command(&self) -> Option<SuperblockCommand> {
        let chunk = |at: usize| self.slots[at].chunk;
        Some(match self.step {
            WriterStep::Idle => return None,
            WriterStep::Read(from) => {
                let at = self.next_copy(from)?;
                SuperblockCommand::Read { chunk: chunk(at) }
            }
            WriterStep::Erase(at) => SuperblockCommand::Erase { chunk: chunk(at) },
            WriterStep::Program(at, unit) => {
                SuperblockCommand::Program { chunk: chunk(at), unit, generation: self.generation }
            }
            WriterStep::Verify(at) => SuperblockCommand::Read { chunk: chunk(at) },
        })
    }

    /// Handles the outcome of the command in flight.
    pub(super) fn on_command_complete(&mut self, outcome: CommandOutcome) {
        if outcome == CommandOutcome::Rejected {
            return self.on_rejected();
        }
        let ok = outcome != CommandOutcome::MediaError;
        self.counts.failures += u64::from(!ok);
        match self.step {
            WriterStep::Idle => {}
            WriterStep::Read(from) => {
                if let Some(at) = self.next_copy(from) {
                    self.on_copy_read(at, outcome);
                    self.step = WriterStep::Read(at + 1);
                }
                if let WriterStep::Read(from) = self.step
                    && self.next_copy(from).is_none()
                {
                    self.step = WriterStep::Idle;
                }
            }
            WriterStep::Erase(at) => {
                self.counts.erases += 1;
                self.slots[at].content = if ok { SlotContent::Erased } else { SlotContent::Dead };
                self.begin_program(at, ok);
            }
            WriterStep::Program(at, unit) if ok => {
                self.slots[at].content = SlotContent::Unreadable;
                let next = unit + 1;
                let written = next >= self.units;
                self.step =
                    if written { WriterStep::Verify(at) } else { WriterStep::Program(at, next) };
            }
            WriterStep::Program(at, _) => {
                self.slots[at].content = SlotContent::NeedsErase;
                self.select_next();
            }
            WriterStep::Verify(at) => {
                self.counts.reads += 1;
                if let CommandOutcome::Success(Some(found)) | CommandOutcome::HighEcc(Some(found)) =
                    outcome
                {
                    self.slots[at].content = SlotContent::Valid(found);
                }
                self.select_next();
            }
        }
    }

    /// Stops after a rejected command: the content of the location being written is not known.
    fn on_rejected(&mut self) {
        if let WriterStep::Erase(at) | WriterStep::Program(at, _) | WriterStep::Verify(at) =
            self.step
        {
            self.slots[at].content = SlotContent::Unreadable;
        }
        self.counts.failures += 1;
        self.step = WriterStep::Idle;
    }

    /// Returns the first location at or after `from` that has a copy.
    fn next_copy(&self, from: usize) -> Option<usize> {
        (from..LOCATIONS).find(|at| matches!(self.slots[*at].content, SlotContent::Valid(_)))
    }

    fn on_copy_read(&mut self, at: usize, outcome: CommandOutcome) {
        self.counts.reads += 1;
        let place = &mut self.slots[at];
        let newest = place.content == SlotContent::Valid(self.generation);
        match outcome {
            CommandOutcome::Success(Some(found)) | CommandOutcome::HighEcc(Some(found)) => {
                place.content = SlotContent::Valid(found);
                self.needs_rewrite |= newest && matches!(outcome, CommandOutcome::HighEcc(_));
            }
            _ => {
                place.content = SlotContent::Unreadable;
                self.needs_rewrite |= newest;
                self.counts.copies_lost += u64::from(newest);
            }
        }
    }

    /// Selects the next location to write, if there are too few copies.
    fn select_next(&mut self) {
        self.step = WriterStep::Idle;
        if self.copies() >= COPIES {
            return;
        }
        let Some(at) = self.find_slot(self.generation) else { return };
        self.slots[at].attempted = true;
        if self.slots[at].content == SlotContent::Erased {
            self.step = WriterStep::Program(at, 0);
        } else {
            self.step = WriterStep::Erase(at);
        }
    }

    fn begin_program(&mut self, at: usize, erased: bool) {
        if erased {
            self.step = WriterStep::Program(at, 0);
        } else {
            self.select_next();
        }
    }

    /// Returns the location for a copy of this generation.
    fn find_slot(&self, generation: u64) -> Option<usize> {
        let is_copy = |p: &&SuperblockSlot| matches!(p.content, SlotContent::Valid(_));
        let spare = self.slots.iter().filter(is_copy).count() > 1;
        let meets = |pu: PuId| {
            self.slots.iter().any(|p| p.content == SlotContent::Valid(generation) && p.pu == pu)
        };
        let rank = |place: &SuperblockSlot| match place.content {
            SlotContent::Erased => Some((0, 0)),
            SlotContent::Unreadable => Some((1, 0)),
            SlotContent::Valid(found) if spare && found != generation => Some((2, found)),
            SlotContent::NeedsErase => Some((3, 0)),
            SlotContent::Valid(_) | SlotContent::Dead => None,
        };
        let places = self.slots.iter().enumerate().filter(|(_, p)| !p.attempted);
        let ranked = places.filter_map(|(at, p)| Some((meets(p.pu), rank(p)?, at)));
        ranked.min().map(|(_, _, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;
    use rng::Rng;

    use super::*;

    fn shape(pus: u32) -> FlashGeometry {
        FlashGeometry::from_geometry(&Geometry {
            groups: 1,
            pus,
            chunks: 8,
            sectors: 24,
            sector_bytes: 512,
            oob_bytes: 16,
            ws_min: 2,
            ws_opt: 2,
            mw_cunits: 4,
        })
    }

    /// Actual content of a chunk.
    #[derive(Clone, Copy, Debug, Default)]
    struct Media {
        /// Write units programmed.
        written: u32,
        generation: u64,
        /// Unreadable.
        lost: bool,
        /// Takes no program until it is erased.
        failing: bool,
        gone: bool,
        erases: u64,
    }

    fn readable(m: &Media, units: u32) -> bool {
        m.written >= units && !m.lost && !m.gone
    }

    /// Executes a command on the media.
    fn execute(
        media: &mut [Media],
        command: SuperblockCommand,
        units: u32,
        fail: bool,
    ) -> CommandOutcome {
        let at = |chunk: ChunkId| chunk.index();
        match command {
            SuperblockCommand::Read { chunk } => {
                let m = &media[at(chunk)];
                let found = readable(m, units).then_some(m.generation);
                found.map_or(CommandOutcome::MediaError, |g| CommandOutcome::Success(Some(g)))
            }
            SuperblockCommand::Erase { chunk } => {
                let m = &mut media[at(chunk)];
                assert!(m.written > 0 || m.failing || m.lost, "it is erased already");
                *m = Media { erases: m.erases + 1, gone: fail || m.gone, ..Media::default() };
                if m.gone { CommandOutcome::MediaError } else { CommandOutcome::Success(None) }
            }
            SuperblockCommand::Program { chunk, unit, generation } => {
                let m = &mut media[at(chunk)];
                assert_eq!((m.written, m.failing), (unit, false), "in order");
                m.failing = fail || m.gone;
                if m.failing {
                    return CommandOutcome::MediaError;
                }
                (m.written, m.generation) = (unit + 1, generation);
                CommandOutcome::Success(None)
            }
        }
    }

    /// Creates a writer and erased media, by chunk index on the first parallel units.
    fn fresh(pus: u32) -> (SuperblockWriter, Vec<Media>) {
        let shape = shape(pus);
        let mut scribe =
            SuperblockWriter::new(&shape, super::super::superblock_chunks(&shape).unwrap());
        scribe.slots.iter_mut().for_each(|p| p.content = SlotContent::Erased);
        scribe.generation = 1;
        (scribe, vec![Media::default(); (pus * 8) as usize])
    }

    #[test]
    fn slots_alternate_and_the_copies_are_on_different_units() {
        for pus in [1, 2, 3, 4, 8] {
            let (mut scribe, mut media) = fresh(pus);
            scribe.write_missing();
            for generation in 1..=40 {
                while let Some(command) = scribe.next_command() {
                    let outcome = execute(&mut media, command, scribe.units(), false);
                    scribe.on_command_complete(outcome);
                }
                assert_eq!((scribe.generation, scribe.copies()), (generation, COPIES), "{pus}");
                let newest =
                    scribe.slots.iter().filter(|p| p.content == SlotContent::Valid(generation));
                let pus_of: std::collections::BTreeSet<PuId> = newest.map(|p| p.pu).collect();
                assert_eq!(pus_of.len(), COPIES.min(pus as usize), "{pus}: {:?}", scribe.slots);
                assert!(scribe.start_generation());
            }
            // 40 generations of two copies on four locations.
            let erases: Vec<u64> =
                scribe.slots.iter().map(|p| media[p.chunk.index()].erases).collect();
            let most = erases.iter().max().unwrap() - erases.iter().min().unwrap();
            assert!(most <= 1, "{pus}: {erases:?}");
        }
    }

    #[test]
    fn there_is_a_superblock_at_every_moment_whatever_fails() {
        let seeds = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok());
        let seeds = seeds.map_or(0..2_000, |seed| seed..seed + 1);
        let (mut cuts, mut degraded) = (0, 0);
        for seed in seeds {
            let mut rng = Rng::new(seed);
            let (mut scribe, mut media) = fresh(1 + rng.below(5) as u32);
            let units = scribe.units();
            let (fails, ages) = (rng.f64() * 0.2, rng.f64() * 0.3);
            scribe.write_missing();
            while let Some(command) = scribe.next_command() {
                let outcome = execute(&mut media, command, units, false);
                scribe.on_command_complete(outcome);
            }
            for _ in 0..60 {
                // Between passes chunks age and fail, except for one copy.
                for i in 0..media.len() {
                    let rest = |m: &&Media| readable(m, units);
                    if media.iter().filter(rest).count() > 1 || !readable(&media[i], units) {
                        media[i].lost |= media[i].written > 0 && rng.chance(ages);
                        media[i].gone |= rng.chance(0.002);
                    }
                }
                scribe.start_read();
                let mut looked = false;
                loop {
                    let Some(command) = scribe.next_command() else {
                        if std::mem::replace(&mut looked, true) {
                            break;
                        }
                        if rng.chance(0.7) || scribe.needs_rewrite {
                            scribe.start_generation();
                        } else {
                            scribe.write_missing();
                        }
                        continue;
                    };
                    let outcome = execute(&mut media, command, units, rng.chance(fails));
                    // A power cut here leaves a superblock, and the newest readable one is correct.
                    cuts += 1;
                    assert!(
                        media.iter().any(|m| readable(m, units)),
                        "seed {seed}: no label after {command:?}: {media:?}"
                    );
                    scribe.on_command_complete(outcome);
                    assert_eq!(scribe.check_invariants(), Ok(()), "seed {seed}");
                }
                degraded += u64::from(scribe.copies() < COPIES);
                for place in &scribe.slots {
                    if let SlotContent::Valid(generation) = place.content {
                        let m = &media[place.chunk.index()];
                        assert!(readable(m, units) && m.generation == generation, "seed {seed}");
                    }
                }
            }
        }
        println!("{cuts} commands, {degraded} rounds that ended with one copy");
        assert!(cuts > 100 && degraded > 0);
    }

    #[test]
    fn what_was_lost_altogether_is_rewritten_and_the_last_slot_is_kept() {
        let (mut scribe, mut media) = fresh(4);
        let run = |scribe: &mut SuperblockWriter, media: &mut Vec<Media>| {
            while let Some(command) = scribe.next_command() {
                let outcome = execute(media, command, scribe.units(), false);
                scribe.on_command_complete(outcome);
            }
        };
        scribe.write_missing();
        run(&mut scribe, &mut media);
        media.iter_mut().for_each(|m| m.lost = m.written > 0);
        scribe.start_read();
        run(&mut scribe, &mut media);
        assert!(scribe.needs_rewrite && scribe.copies() == 0 && scribe.start_generation());
        run(&mut scribe, &mut media);
        assert_eq!((scribe.generation, scribe.copies()), (2, COPIES));
        // With one location left, no erase is risked.
        for place in &mut scribe.slots[1..] {
            place.content = SlotContent::Dead;
        }
        scribe.slots[0].content = SlotContent::Valid(2);
        assert!(!scribe.start_generation() && scribe.next_command().is_none());
        scribe.write_missing();
        assert_eq!((scribe.generation, scribe.next_command()), (2, None));
        // After a rejected command the writer stops.
        scribe.slots[1].content = SlotContent::Unreadable;
        scribe.write_missing();
        assert!(scribe.next_command().is_some());
        scribe.on_command_complete(CommandOutcome::Rejected);
        assert_eq!(scribe.next_command(), None);
    }

    #[test]
    fn an_erase_of_the_last_copy_is_reported() {
        let (mut scribe, _) = fresh(4);
        scribe.slots[2].content = SlotContent::Valid(1);
        assert_eq!(scribe.check_invariants(), Ok(()));
        (scribe.step, scribe.slots[2].attempted) = (WriterStep::Erase(2), true);
        let broken = scribe.check_invariants().expect_err("an erase of the last copy");
        let text = "a copy is erased while another one exists is broken for location 2";
        assert_eq!(
            broken.to_string(),
            format!("superblock: {text}: expected \"two copies\", found 1")
        );
        scribe.generation = 0;
        let broken = scribe.check_invariants().expect_err("a copy from the future");
        assert_eq!(broken.invariant, "no copy is newer than the current generation");
    }
}
