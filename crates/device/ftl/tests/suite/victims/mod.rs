//! Victims that the owner of the flash chooses in place of the FTL's policy.

use ftl::{
    ChosenLine, ChunkReport, FlashGeometry, Ftl, FtlConfig, LineId, LineMetadata, VictimDecision,
    VictimLines, VictimPolicyKind,
};
use nvme::Status;
use time::Nanos;

use crate::common::golden::CallHash;
use crate::common::{TestFlash, check, geometry};

/// How victims are chosen in a run.
type Choose = fn(&VictimLines<'_>) -> VictimDecision;

struct Run {
    calls: CallHash,
    choices: u64,
    reclaimed: u64,
    failed: u64,
}

/// Random writes and trims of sectors that are overwritten five times.
fn run(seed: u64, policy: VictimPolicyKind, choose: Option<Choose>) -> Run {
    let shape = FlashGeometry::from_geometry(&geometry(2, 2, 40, 64, 4, 8));
    // Lines with metadata may have different sizes, and the policy compares shares.
    let line_metadata = LineMetadata::Off;
    let config = FtlConfig { victim_policy: policy, line_metadata, ..FtlConfig::default() };
    let mut ftl = Ftl::new(shape, config, |_| ChunkReport::Free).expect("an FTL");
    let mut flash = TestFlash::new(shape, false, ftl.slots(), seed);
    flash.choose = choose;
    let mut rng = rng::Rng::new(seed);
    let (sectors, mut failed) = (ftl.sectors(), 0);
    for at in 0..6 * sectors {
        let lba = if at < sectors { at } else { rng.below(sectors) };
        match rng.chance(0.05) {
            true => ftl.trim(0, lba, 1),
            false => ftl.write(0, lba, 1, false),
        }
        ftl.kick(Nanos(0), &mut flash);
        let done = loop {
            if let Some(done) = ftl.pop_completion() {
                break done;
            }
            assert!(flash.step(&mut ftl), "stuck\n{}", ftl.debug_state());
        };
        failed += u64::from(done.status != Status::SUCCESS);
    }
    check(&ftl);
    let reclaimed = ftl.stats().lines_reclaimed;
    Run { calls: flash.calls, choices: flash.choices, reclaimed, failed }
}

/// The line with the largest number of sectors that are not valid; among equals the lowest.
fn emptiest(lines: &VictimLines<'_>) -> VictimDecision {
    let mut best: Option<(u32, LineId)> = None;
    for id in lines.ids() {
        let line = lines.get(id).expect("a line that can be a victim");
        let gain = line.sectors - line.valid;
        if gain > 0 && best.is_none_or(|(largest, _)| gain > largest) {
            best = Some((gain, id));
        }
    }
    best.map_or(VictimDecision::None, |(_, line)| VictimDecision::Line(ChosenLine::new(line)))
}

#[test]
fn a_greedy_choice_equals_the_greedy_policy() {
    for seed in 0..5 {
        let policy = run(seed, VictimPolicyKind::Greedy, None);
        // The policy of the configuration is another one, so that the choice is what decides.
        let chosen = run(seed, VictimPolicyKind::Fifo, Some(emptiest));
        assert!(chosen.choices > 50 && chosen.reclaimed > 50, "{}", chosen.reclaimed);
        assert_eq!(chosen.calls, policy.calls, "seed {seed}");
        assert_eq!((chosen.failed, policy.failed), (0, 0));
    }
}

#[test]
fn a_choice_that_is_no_closed_line_is_no_victim() {
    fn wrong(lines: &VictimLines<'_>) -> VictimDecision {
        assert_eq!(lines.get(LineId::new(1 << 20)), None);
        match lines.is_critical() {
            true => VictimDecision::Policy,
            false => VictimDecision::Line(ChosenLine::new(LineId::new(1 << 20))),
        }
    }
    let chosen = run(1, VictimPolicyKind::Greedy, Some(wrong));
    assert!(chosen.reclaimed > 50 && chosen.failed == 0, "{} reclaimed", chosen.reclaimed);
}

/// The line of [`emptiest`], with one or two write units in flight.
fn emptiest_slowly(lines: &VictimLines<'_>) -> VictimDecision {
    match emptiest(lines) {
        VictimDecision::Line(chosen) => {
            VictimDecision::Line(ChosenLine { units_in_flight: Some(2), ..chosen })
        }
        other => other,
    }
}

/// Overwrites a drive. Returns, by the number of write units that are read for garbage collection while
/// more than half of the space between the watermarks is free, how often that was.
fn reads_in_flight(choose: Choose) -> Vec<u32> {
    let shape = FlashGeometry::from_geometry(&geometry(2, 4, 40, 64, 4, 8));
    // With so much spare space the watermarks are two lines apart.
    let line_metadata = LineMetadata::Off;
    let config = FtlConfig { over_provisioning: 0.5, line_metadata, ..FtlConfig::default() };
    let mut ftl = Ftl::new(shape, config, |_| ChunkReport::Free).expect("an FTL");
    let mut flash = TestFlash::new(shape, false, ftl.slots(), 5);
    flash.choose = Some(choose);
    let mut rng = rng::Rng::new(5);
    let (sectors, mut counts) = (ftl.sectors(), vec![0; 64]);
    for at in 0..5 * sectors {
        ftl.write(0, if at < sectors { at } else { rng.below(sectors) }, 1, false);
        ftl.kick(Nanos(0), &mut flash);
        while ftl.pop_completion().is_none() {
            assert!(flash.step(&mut ftl), "stuck\n{}", ftl.debug_state());
        }
        // A line is half of the space between the watermarks.
        if ftl.victim_lines().free_lines() > 0 {
            counts[flash.relocation_reads()] += 1;
        }
        // The flash has the time for an operation beside each write.
        flash.step(&mut ftl);
    }
    check(&ftl);
    assert!(ftl.stats().lines_reclaimed > 50, "{} reclaimed", ftl.stats().lines_reclaimed);
    counts
}

// guarantee: B-131
#[test]
fn a_choice_may_bound_the_units_in_flight() {
    let (bounded, free) = (reads_in_flight(emptiest_slowly), reads_in_flight(emptiest));
    let above = |counts: &[u32]| counts[3..].iter().sum::<u32>();
    assert!(bounded[1] + bounded[2] > 0 && above(&free) > 0, "{bounded:?} {free:?}");
    // Reads that began when less space was free end in a moment.
    assert!(above(&bounded) * 50 < above(&free), "{bounded:?} {free:?}");
}
