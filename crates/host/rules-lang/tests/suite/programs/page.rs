//! Programs 1 and 2: a page-mapped SSD, and temperature with wear leveling.

use std::collections::BTreeMap;

use rules::{InputOp, RuleInput, RuleStatus, TableId};
use rules_lang::RuleTemplate;
use testkit::choices::{Choices, seed};

use super::compiled::demo;
use super::drive::{APP, Ended, ModelDrive};

/// Writes at skewed addresses and reads; every read returns the last write.
fn run(drive: &mut ModelDrive, writes: u64, hot_share: f64, choices: &mut Choices) {
    let sectors = drive.sectors();
    let mut model = BTreeMap::new();
    let fill = (0..sectors).map(|lba| (lba, false));
    let fill: Vec<_> = fill.chain((0..writes).map(|_| (0, true))).collect();
    for (at, (lba, is_random)) in fill.into_iter().enumerate() {
        let lba = match is_random {
            true if choices.chance(hot_share) => choices.below(sectors / 10),
            true => choices.below(sectors),
            false => lba,
        };
        let bytes = (at as u64).to_le_bytes().to_vec();
        assert!(matches!(drive.write(lba, &bytes), Ended::Written(_)));
        model.insert(lba, bytes);
        if at % 3 == 0 {
            let lba = choices.below(sectors);
            let expected = model.get(&lba).cloned().unwrap_or_default();
            assert_eq!(drive.read(lba), Ended::Data(expected), "lba {lba}");
        }
        if at % 400 == 0 {
            drive.periodic();
        }
        if at % 64 == 0 {
            drive.flash.is_idle = true;
            drive.background();
            drive.flash.is_idle = false;
        }
    }
    for (lba, expected) in model {
        assert_eq!(drive.read(lba), Ended::Data(expected), "lba {lba}");
    }
}

// guarantee: V-12
#[test]
fn three_rules_are_a_drive() {
    for seed in seed()..seed() + 3 {
        let mut drive = ModelDrive::new(&demo("page.rules"), 64);
        run(&mut drive, 20_000, 0.0, &mut Choices::seeded(seed));
        assert!(drive.flash.erases > 200 && drive.flash.placed[1] > 1000, "seed {seed}");
        let counters = drive.engine.counters();
        assert!(counters.iter().all(|rule| rule.matches > 0 && rule.faults == 0), "{counters:?}");
    }
}

#[test]
fn commands_past_the_end_and_without_rules_end_once() {
    let mut drive = ModelDrive::new(&demo("page.rules"), 64);
    let last = drive.sectors() - 1;
    let out = Ended::Completed(RuleStatus::IndexOutOfRange, 0, Vec::new());
    for (lba, sectors) in [(last + 1, 1), (last, 2), (u64::MAX, 1), (1, u64::MAX)] {
        for op in [InputOp::Read, InputOp::Write] {
            let input = RuleInput::new(op, lba, sectors);
            assert_eq!(drive.command(&input, &[]), out, "{op:?} {lba} {sectors}");
        }
    }
    for op in [InputOp::Trim, InputOp::Flush] {
        let input = RuleInput::new(op, 0, 1);
        assert_eq!(drive.command(&input, &[]), Ended::PassedThrough);
    }
    assert_eq!(drive.command(&RuleInput::new(InputOp::Scan, 0, 1), &[]), Ended::Missed);
    assert!(matches!(drive.write(last, &[1]), Ended::Written(_)));
    assert_eq!(drive.read(last), Ended::Data(vec![1]));
}

#[test]
fn hot_data_has_a_stream_and_wear_is_leveled() {
    let mut drive = ModelDrive::new(&demo("temperature.rules"), 64);
    run(&mut drive, 60_000, 0.98, &mut Choices::seeded(seed()));
    let [host, gc, hot, cold] = drive.flash.placed;
    assert!(hot > 10_000 && host > 500 && cold > 0, "host {host}, gc {gc}, hot {hot}, cold {cold}");
    // Without the rule, the lines of cold data are not erased.
    let without = demo("temperature.rules").replace("> 48", "> 1000000");
    let mut worn = ModelDrive::new(&without, 64);
    run(&mut worn, 60_000, 0.98, &mut Choices::seeded(seed()));
    let [spread, without] = [&drive, &worn].map(|drive| {
        let [min, max] = drive.flash.wear();
        max - min
    });
    assert!(2 * spread < without, "{spread} with the rule, {without} without");
    // The counters of regions halve.
    let heat = TableId::new(1);
    let before = drive.engine.load(APP, heat, 0).expect("a region");
    let periods: Vec<u64> = drive.engine.periodic_rules().map(|(_, period)| period).collect();
    assert!(before > 100 && periods == [10_000_000_000], "{before}, {periods:?}");
    drive.periodic();
    assert_eq!(drive.engine.load(APP, heat, 0), Ok(before / 2));
}

#[test]
fn templates_are_drives() {
    use RuleTemplate::{Endurance, Predictable, Throughput};
    for template in [Throughput, Predictable, Endurance] {
        let mut drive = ModelDrive::new(&template.source(63, 330_000), 64);
        run(&mut drive, 10_000, 0.5, &mut Choices::seeded(seed()));
        assert!(drive.flash.erases > 50, "{}: {}", template.name(), drive.flash.erases);
        // A line of `predictable` is moved at an eighth of the 64 parallel units at a time.
        let units = (template == Predictable).then_some(8);
        assert_eq!(drive.moved_units, units, "{}", template.name());
    }
}
