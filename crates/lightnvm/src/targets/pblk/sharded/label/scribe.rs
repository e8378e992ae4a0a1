//! [`Scribe`]: what is in each of the label's places, and which command comes next.
//!
//! It submits nothing itself: whoever does asks for the [next](Scribe::next) command and says how it
//! [ended](Scribe::done), one at a time.
//!
//! Guarantees, as far as the media keep what could be read:
//! - A place is erased only while another one holds a label that was read, so that a power cut at any
//!   command leaves one. If all have been lost they are written anew from memory.
//! - A copy counts when it was read back.
//! - The two copies of a generation are on different parallel units if places on those can be written.
//! - A place is erased once each time that copies are [completed](Scribe::complete) at most, the one with
//!   the oldest copy first, so that all places wear alike; one that cannot be erased is given up, one that
//!   could not be programmed comes last.

use ftl::Shape;

use super::{COPIES, PLACES};

/// What a place is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing: it is erased.
    Nothing,
    /// Something that is no label, or cannot be read.
    Unknown,
    /// The same, and it takes no more programs before it is erased.
    Failing,
    /// A label of this generation, which was read.
    Copy(u64),
    /// It cannot be erased any more.
    Gone,
}

/// One place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) chunk: u32,
    pub(super) held: Held,
    pu: u32,
    /// It has been written, or tried, in this generation.
    tried: bool,
}

/// A command on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Read the first sector.
    Read { chunk: u32 },
    /// Erase the chunk.
    Erase { chunk: u32 },
    /// Program a write unit, counted from the chunk's first, with the label of this generation.
    Program { chunk: u32, unit: u32, generation: u64 },
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As it should; of a read, the generation of the label, if that is the right one.
    Done(Option<u64>),
    /// The same, of a read that needed much error correction.
    Hard(Option<u64>),
    /// The media failed.
    Failed,
    /// The drive does not do it: nothing was learnt.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    /// The copy at this place is next to be read.
    Look(usize),
    Erase(usize),
    /// This write unit is next to be programmed.
    Program(usize, u32),
    Check(usize),
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) reads: u64,
    pub(super) erases: u64,
    pub(super) failures: u64,
    /// Copies of the newest generation that could not be read any more.
    pub(super) lost: u64,
}

/// The places, and what is being done.
#[derive(Clone, Debug)]
pub(crate) struct Scribe {
    pub(super) places: [Place; PLACES],
    /// The generation of which there should be copies.
    pub(super) newest: u64,
    /// Write units of a label: what can be read of a chunk that is written so far is the first.
    units: u32,
    step: Step,
    /// A copy of the newest generation was hard to read, or not to be read.
    pub(super) worn: bool,
    pub(super) counts: Counts,
}

impl Scribe {
    /// These chunks, of which nothing is known.
    pub(super) fn new(shape: &Shape, chunks: [u32; PLACES]) -> Scribe {
        let place =
            |chunk| Place { chunk, held: Held::Unknown, pu: shape.pu_of(chunk), tried: false };
        Scribe {
            places: chunks.map(place),
            newest: 0,
            units: (1 + shape.pair.div_ceil(shape.unit)).min(shape.sectors / shape.unit),
            step: Step::Idle,
            worn: false,
            counts: Counts::default(),
        }
    }

    /// Write units of a label.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Copies of the newest generation.
    pub(super) fn copies(&self) -> usize {
        self.places.iter().filter(|p| p.held == Held::Copy(self.newest)).count()
    }

    /// The generations of all copies.
    pub(super) fn generations(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.iter().filter_map(|p| match p.held {
            Held::Copy(generation) => Some(generation),
            _ => None,
        })
    }

    /// All copies are read next.
    pub(super) fn look(&mut self) {
        self.worn = false;
        self.step = Step::Look(0);
    }

    /// What copies are missing of the newest generation are written next, as far as there are places.
    pub(super) fn complete(&mut self) {
        self.places.iter_mut().for_each(|p| p.tried = false);
        self.step = Step::Idle;
        self.choose();
    }

    /// A new generation is written next. Returns whether there is a place for it.
    pub(super) fn renew(&mut self) -> bool {
        self.places.iter_mut().for_each(|p| p.tried = false);
        let Some(newest) = self.newest.checked_add(1) else { return false };
        if self.target(newest).is_none() {
            return false;
        }
        self.newest = newest;
        self.complete();
        true
    }

    /// The next command; none if nothing is to be done.
    pub(super) fn next(&self) -> Option<Command> {
        let chunk = |at: usize| self.places[at].chunk;
        Some(match self.step {
            Step::Idle => return None,
            Step::Look(from) => {
                let at = self.look_from(from)?;
                Command::Read { chunk: chunk(at) }
            }
            Step::Erase(at) => Command::Erase { chunk: chunk(at) },
            Step::Program(at, unit) => {
                Command::Program { chunk: chunk(at), unit, generation: self.newest }
            }
            Step::Check(at) => Command::Read { chunk: chunk(at) },
        })
    }

    /// The next command has ended.
    pub(super) fn done(&mut self, outcome: Outcome) {
        if outcome == Outcome::Refused {
            return self.refused();
        }
        let ok = outcome != Outcome::Failed;
        self.counts.failures += u64::from(!ok);
        match self.step {
            Step::Idle => {}
            Step::Look(from) => {
                if let Some(at) = self.look_from(from) {
                    self.looked(at, outcome);
                    self.step = Step::Look(at + 1);
                }
                if let Step::Look(from) = self.step
                    && self.look_from(from).is_none()
                {
                    self.step = Step::Idle;
                }
            }
            Step::Erase(at) => {
                self.counts.erases += 1;
                self.places[at].held = if ok { Held::Nothing } else { Held::Gone };
                self.begin(at, ok);
            }
            Step::Program(at, unit) if ok => {
                self.places[at].held = Held::Unknown;
                let next = unit + 1;
                let written = next >= self.units;
                self.step = if written { Step::Check(at) } else { Step::Program(at, next) };
            }
            Step::Program(at, _) => {
                self.places[at].held = Held::Failing;
                self.choose();
            }
            Step::Check(at) => {
                self.counts.reads += 1;
                if let Outcome::Done(Some(found)) | Outcome::Hard(Some(found)) = outcome {
                    self.places[at].held = Held::Copy(found);
                }
                self.choose();
            }
        }
    }

    /// A drive that refuses is left alone: what the place holds that was being written is not known.
    fn refused(&mut self) {
        if let Step::Erase(at) | Step::Program(at, _) | Step::Check(at) = self.step {
            self.places[at].held = Held::Unknown;
        }
        self.counts.failures += 1;
        self.step = Step::Idle;
    }

    /// The first place from `from` on with a copy.
    fn look_from(&self, from: usize) -> Option<usize> {
        (from..PLACES).find(|at| matches!(self.places[*at].held, Held::Copy(_)))
    }

    fn looked(&mut self, at: usize, outcome: Outcome) {
        self.counts.reads += 1;
        let place = &mut self.places[at];
        let newest = place.held == Held::Copy(self.newest);
        match outcome {
            Outcome::Done(Some(found)) | Outcome::Hard(Some(found)) => {
                place.held = Held::Copy(found);
                self.worn |= newest && matches!(outcome, Outcome::Hard(_));
            }
            _ => {
                place.held = Held::Unknown;
                self.worn |= newest;
                self.counts.lost += u64::from(newest);
            }
        }
    }

    /// Chooses the next place to be written, if there are too few copies.
    fn choose(&mut self) {
        self.step = Step::Idle;
        if self.copies() >= COPIES {
            return;
        }
        let Some(at) = self.target(self.newest) else { return };
        self.places[at].tried = true;
        if self.places[at].held == Held::Nothing {
            self.step = Step::Program(at, 0);
        } else {
            self.step = Step::Erase(at);
        }
    }

    fn begin(&mut self, at: usize, erased: bool) {
        if erased {
            self.step = Step::Program(at, 0);
        } else {
            self.choose();
        }
    }

    /// The place that a copy of this generation goes to.
    fn target(&self, generation: u64) -> Option<usize> {
        let is_copy = |p: &&Place| matches!(p.held, Held::Copy(_));
        let spare = self.places.iter().filter(is_copy).count() > 1;
        let meets =
            |pu: u32| self.places.iter().any(|p| p.held == Held::Copy(generation) && p.pu == pu);
        let rank = |place: &Place| match place.held {
            Held::Nothing => Some((0, 0)),
            Held::Unknown => Some((1, 0)),
            Held::Copy(found) if spare && found != generation => Some((2, found)),
            Held::Failing => Some((3, 0)),
            Held::Copy(_) | Held::Gone => None,
        };
        let places = self.places.iter().enumerate().filter(|(_, p)| !p.tried);
        let ranked = places.filter_map(|(at, p)| Some((meets(p.pu), rank(p)?, at)));
        ranked.min().map(|(_, _, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;
    use rng::Rng;

    use super::*;

    fn shape(pus: u32) -> Shape {
        Shape::of(&Geometry {
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

    /// What is really there.
    #[derive(Clone, Copy, Debug, Default)]
    struct Media {
        /// Write units.
        written: u32,
        generation: u64,
        /// It cannot be read.
        lost: bool,
        /// It takes no program, no erase.
        failing: bool,
        gone: bool,
        erases: u64,
    }

    fn readable(m: &Media, units: u32) -> bool {
        m.written >= units && !m.lost && !m.gone
    }

    /// Carries a command out on the media.
    fn carry_out(media: &mut [Media], command: Command, units: u32, fail: bool) -> Outcome {
        let at = |chunk: u32| chunk as usize;
        match command {
            Command::Read { chunk } => {
                let m = &media[at(chunk)];
                let found = readable(m, units).then_some(m.generation);
                found.map_or(Outcome::Failed, |g| Outcome::Done(Some(g)))
            }
            Command::Erase { chunk } => {
                let m = &mut media[at(chunk)];
                assert!(m.written > 0 || m.failing || m.lost, "it is erased already");
                *m = Media { erases: m.erases + 1, gone: fail || m.gone, ..Media::default() };
                if m.gone { Outcome::Failed } else { Outcome::Done(None) }
            }
            Command::Program { chunk, unit, generation } => {
                let m = &mut media[at(chunk)];
                assert_eq!((m.written, m.failing), (unit, false), "in order");
                m.failing = fail || m.gone;
                if m.failing {
                    return Outcome::Failed;
                }
                (m.written, m.generation) = (unit + 1, generation);
                Outcome::Done(None)
            }
        }
    }

    /// Everything of the label's, by chunk number of the first parallel units.
    fn fresh(pus: u32) -> (Scribe, Vec<Media>) {
        let shape = shape(pus);
        let mut scribe = Scribe::new(&shape, super::super::places(&shape).unwrap());
        scribe.places.iter_mut().for_each(|p| p.held = Held::Nothing);
        scribe.newest = 1;
        (scribe, vec![Media::default(); (pus * 8) as usize])
    }

    #[test]
    fn places_take_turns_and_the_copies_are_on_different_units() {
        for pus in [1, 2, 3, 4, 8] {
            let (mut scribe, mut media) = fresh(pus);
            scribe.complete();
            for generation in 1..=40 {
                while let Some(command) = scribe.next() {
                    let outcome = carry_out(&mut media, command, scribe.units(), false);
                    scribe.done(outcome);
                }
                assert_eq!((scribe.newest, scribe.copies()), (generation, COPIES), "{pus}");
                let newest = scribe.places.iter().filter(|p| p.held == Held::Copy(generation));
                let pus_of: std::collections::BTreeSet<u32> = newest.map(|p| p.pu).collect();
                assert_eq!(pus_of.len(), COPIES.min(pus as usize), "{pus}: {:?}", scribe.places);
                assert!(scribe.renew());
            }
            // 40 generations of two copies on four places.
            let erases: Vec<u64> =
                scribe.places.iter().map(|p| media[p.chunk as usize].erases).collect();
            let most = erases.iter().max().unwrap() - erases.iter().min().unwrap();
            assert!(most <= 1, "{pus}: {erases:?}");
        }
    }

    #[test]
    fn there_is_a_label_at_every_moment_whatever_fails() {
        let seeds = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok());
        let seeds = seeds.map_or(0..2_000, |seed| seed..seed + 1);
        let (mut cuts, mut degraded) = (0, 0);
        for seed in seeds {
            let mut rng = Rng::new(seed);
            let (mut scribe, mut media) = fresh(1 + rng.below(5) as u32);
            let units = scribe.units();
            let (fails, ages) = (rng.f64() * 0.2, rng.f64() * 0.3);
            scribe.complete();
            while let Some(command) = scribe.next() {
                let outcome = carry_out(&mut media, command, units, false);
                scribe.done(outcome);
            }
            for _ in 0..60 {
                // Between rounds media age and go, but for one copy.
                for i in 0..media.len() {
                    let rest = |m: &&Media| readable(m, units);
                    if media.iter().filter(rest).count() > 1 || !readable(&media[i], units) {
                        media[i].lost |= media[i].written > 0 && rng.chance(ages);
                        media[i].gone |= rng.chance(0.002);
                    }
                }
                scribe.look();
                let mut looked = false;
                loop {
                    let Some(command) = scribe.next() else {
                        if std::mem::replace(&mut looked, true) {
                            break;
                        }
                        if rng.chance(0.7) || scribe.worn {
                            scribe.renew();
                        } else {
                            scribe.complete();
                        }
                        continue;
                    };
                    let outcome = carry_out(&mut media, command, units, rng.chance(fails));
                    // A cut now leaves a label, and the newest that can be read is a right one.
                    cuts += 1;
                    assert!(
                        media.iter().any(|m| readable(m, units)),
                        "seed {seed}: no label after {command:?}: {media:?}"
                    );
                    scribe.done(outcome);
                }
                degraded += u64::from(scribe.copies() < COPIES);
                for place in &scribe.places {
                    if let Held::Copy(generation) = place.held {
                        let m = &media[place.chunk as usize];
                        assert!(readable(m, units) && m.generation == generation, "seed {seed}");
                    }
                }
            }
        }
        println!("{cuts} commands, {degraded} rounds that ended with one copy");
        assert!(cuts > 100 && degraded > 0);
    }

    #[test]
    fn what_was_lost_altogether_is_written_again_and_the_last_place_is_left_alone() {
        let (mut scribe, mut media) = fresh(4);
        let run = |scribe: &mut Scribe, media: &mut Vec<Media>| {
            while let Some(command) = scribe.next() {
                let outcome = carry_out(media, command, scribe.units(), false);
                scribe.done(outcome);
            }
        };
        scribe.complete();
        run(&mut scribe, &mut media);
        media.iter_mut().for_each(|m| m.lost = m.written > 0);
        scribe.look();
        run(&mut scribe, &mut media);
        assert!(scribe.worn && scribe.copies() == 0 && scribe.renew());
        run(&mut scribe, &mut media);
        assert_eq!((scribe.newest, scribe.copies()), (2, COPIES));
        // With one place that is left nothing is risked.
        for place in &mut scribe.places[1..] {
            place.held = Held::Gone;
        }
        scribe.places[0].held = Held::Copy(2);
        assert!(!scribe.renew() && scribe.next().is_none());
        scribe.complete();
        assert_eq!((scribe.newest, scribe.next()), (2, None));
        // A drive that refuses is asked no more.
        scribe.places[1].held = Held::Unknown;
        scribe.complete();
        assert!(scribe.next().is_some());
        scribe.done(Outcome::Refused);
        assert_eq!(scribe.next(), None);
    }
}
