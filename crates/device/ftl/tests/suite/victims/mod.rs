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
