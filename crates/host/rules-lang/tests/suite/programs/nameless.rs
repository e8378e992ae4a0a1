//! Program 5: nameless writes.

use std::collections::BTreeMap;

use rules::{InputOp, RuleEngine, RuleInput, RuleStatus, TableId};
use testkit::choices::{Choices, seed};

use super::compiled::demo;
use super::drive::{APP, Ended, ModelDrive};

const FORWARD: TableId = TableId::new(0);

fn input(op: InputOp, arg0: u64, arg1: u64) -> RuleInput {
    RuleInput { arg0, arg1, ..RuleInput::new(op, 0, 1) }
}

/// A host that keeps names: by tag the name and the data.
#[derive(Default)]
struct NamingHost {
    sectors: BTreeMap<u64, (u64, Vec<u8>)>,
    next_tag: u64,
}

impl NamingHost {
    fn write(&mut self, drive: &mut ModelDrive) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let bytes = tag.to_le_bytes().to_vec();
        match drive.command(&input(InputOp::Write, tag, 0), &bytes) {
            Ended::Written(name) => drop(self.sectors.insert(tag, (name, bytes))),
            ended => panic!("{ended:?}"),
        }
    }

    /// Takes new names from events; acknowledges them if `acknowledges`.
    fn process_events(&mut self, drive: &mut ModelDrive, acknowledges: bool) {
        for [old, new, tag] in std::mem::take(&mut drive.events) {
            if let Some((name, _)) = self.sectors.get_mut(&tag) {
                assert_eq!(*name, old, "events come in order");
                *name = new;
            }
            if acknowledges {
                let ended = drive.command(&input(InputOp::Ack, old, 0), &[]);
                assert_eq!(ended, Ended::Completed(RuleStatus::Ok, 0, Vec::new()));
            }
        }
    }

    fn check(&self, drive: &mut ModelDrive) {
        for (tag, (name, bytes)) in &self.sectors {
            let read = drive.command(&input(InputOp::Read, *name, *tag), &[]);
            assert_eq!(read, Ended::Data(bytes.clone()), "tag {tag}, name {name}");
        }
    }

    fn delete_one(&mut self, drive: &mut ModelDrive, choices: &mut Choices) {
        let at = choices.below(self.sectors.len() as u64) as usize;
        let tag = *self.sectors.keys().nth(at).expect("a sector");
        let (name, _) = self.sectors.remove(&tag).expect("a sector");
        // An old name leads to the sector until the host acknowledged the new one.
        let mut name = name;
        loop {
            match drive.engine.load(APP, FORWARD, name) {
                // No sector moves to name 0, which the first write has.
                Ok(new) if new != 0 => name = new,
                _ => break drive.invalidate(name),
            }
        }
    }
}

#[test]
fn names_lead_to_data_through_collection() {
    for seed in seed()..seed() + 3 {
        let mut choices = Choices::seeded(seed);
        let mut drive = ModelDrive::new(&demo("nameless.rules"), 64);
        let mut host = NamingHost::default();
        for _ in 0..3000 {
            host.write(&mut drive);
        }
        for round in 0..10_000 {
            host.delete_one(&mut drive, &mut choices);
            host.write(&mut drive);
            if round % 50 == 0 {
                host.process_events(&mut drive, true);
            }
            if round % 1000 == 0 {
                host.process_events(&mut drive, true);
                host.check(&mut drive);
            }
        }
        host.process_events(&mut drive, true);
        host.check(&mut drive);
        assert!(drive.flash.erases > 100, "{} erases", drive.flash.erases);
    }
}

#[test]
fn old_names_work_until_they_are_acknowledged() {
    let mut choices = Choices::seeded(seed());
    let mut drive = ModelDrive::new(&demo("nameless.rules"), 64);
    let mut host = NamingHost::default();
    for _ in 0..3000 {
        host.write(&mut drive);
    }
    for _ in 0..600 {
        host.delete_one(&mut drive, &mut choices);
    }
    let before = host.sectors.clone();
    drive.flash.is_idle = true;
    for _ in 0..100 {
        drive.background();
    }
    assert!(drive.events.len() > 100);
    host.check(&mut drive);
    let forwards = drive.engine.clone();
    host.process_events(&mut drive, true);
    host.check(&mut drive);
    // Acknowledging twice changes nothing; names that were never written return no data.
    let (tag, (old, _)) =
        before.iter().find(|(tag, old)| host.sectors[tag].0 != old.0).expect("one");
    let again = drive.command(&input(InputOp::Ack, *old, 0), &[]);
    assert_eq!(again, Ended::Completed(RuleStatus::Ok, 0, Vec::new()));
    assert_eq!(drive.command(&input(InputOp::Read, *old, *tag), &[]), Ended::Refused, "stale");
    for (name, status) in [(1 << 40, None), (u64::MAX, Some(RuleStatus::BadAddress))] {
        let expected = status.map_or(Ended::Refused, |s| Ended::Completed(s, 0, Vec::new()));
        assert_eq!(drive.command(&input(InputOp::Read, name, 0), &[]), expected, "forged");
    }
    // The journal has the forwards: a new engine that applies it answers alike.
    let mut restored = RuleEngine::install(forwards.program().clone(), Default::default());
    let acknowledged = drive.journal.iter().filter(|change| change.value.is_none()).count();
    assert!(acknowledged > 100);
    for change in drive.journal.iter().filter(|change| change.value.is_some()) {
        restored.restore(change);
    }
    for (name, _) in before.values() {
        let load = |engine: &RuleEngine| engine.load(APP, FORWARD, *name);
        assert_eq!(load(&restored), load(&forwards), "name {name}");
    }
}

#[test]
fn a_host_that_never_acknowledges_stops_collection_only() {
    let mut choices = Choices::seeded(seed());
    let source = demo("nameless.rules").replace("[4096]", "[300]");
    let mut drive = ModelDrive::new(&source, 64);
    let mut host = NamingHost::default();
    for _ in 0..3400 {
        host.write(&mut drive);
    }
    for _ in 0..1000 {
        host.delete_one(&mut drive, &mut choices);
    }
    drive.flash.is_idle = true;
    for _ in 0..200 {
        drive.background();
    }
    let moved = drive.events.len() as u64;
    assert!((200..=300).contains(&moved), "{moved} forwards");
    let before = drive.background_actions;
    drive.background();
    assert_eq!(drive.background_actions, before, "no line fits the forwards that are left");
    host.check(&mut drive);
}
