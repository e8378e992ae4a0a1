//! The rules file: rules set by administrators persist; a damaged file is refused with its line
//! number; a change that cannot be saved has no effect.

// guarantee: A-13, S-18

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use share_proto::{AclRule, Code, Grant, ListEntry, Principal};
use share_server::{AclError, AclFile, ShareError};
use testkit::choices::{Choices, seed};
use user_io::remote::{Admin, RemoteDeviceError};

use super::harness::{Server, name, table};

fn rule(subject: Principal, partition: &str, queues: u16) -> AclRule {
    AclRule {
        principal: subject,
        device: name("d"),
        partition: name(partition),
        grant: Grant::with_queues(queues),
    }
}

fn listed(server: &Server) -> Vec<AclRule> {
    let entries = Admin::connect(&server.socket).unwrap().list().unwrap();
    let rules = entries.into_iter().filter_map(|entry| match entry {
        ListEntry::Rule(rule) => Some(rule),
        _ => None,
    });
    rules.collect()
}

fn start(path: &Path) -> Result<Server, ShareError> {
    let mut table = table();
    table.allow(rule(Principal::Uid(5), "a", 3)).unwrap();
    Server::keeping(table, Some(AclFile::new(path)))
}

#[test]
fn what_administrators_say_outlives_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules");
    let server = start(&path).unwrap();
    let begun = [rule(Principal::Uid(5), "a", 3)];
    assert_eq!(listed(&server), begun, "without a file, those of the scenario");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "written at once, for nobody else");
    let rated = Grant {
        write: false,
        depth: 16,
        iops: Some(1_000),
        bytes_per_sec: Some(u64::MAX),
        ..Grant::with_queues(2)
    };
    let other = AclRule { grant: rated, ..rule(Principal::Gid(7), "b", 2) };
    let mut admin = Admin::connect(&server.socket).unwrap();
    admin.allow(other).unwrap();
    admin.allow(rule(Principal::Anyone, "b", 1)).unwrap();
    admin.deny(Principal::Uid(5), name("d"), None).unwrap();
    let rules = listed(&server);
    assert_eq!(rules, [other, rule(Principal::Anyone, "b", 1)]);
    drop((admin, server));
    // A rule of the scenario that an administrator removed stays removed.
    for _ in 0..2 {
        let server = start(&path).unwrap();
        assert_eq!(listed(&server), rules);
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left beside it: {left:?}");
}

#[test]
fn what_cannot_be_written_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let server = start(&folder.join("rules")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let mut admin = Admin::connect(&server.socket).unwrap();
    for refused in [
        admin.allow(rule(Principal::Anyone, "b", 1)).map(drop),
        admin.deny(Principal::Uid(5), name("d"), None).map(drop),
    ] {
        let Err(RemoteDeviceError::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.code, Code::Resources);
        assert!(refusal.text.contains("nothing has changed"), "{refusal}");
    }
    assert_eq!(listed(&server), [rule(Principal::Uid(5), "a", 3)]);
    // A server does not start if it could not save rules.
    let error = start(&folder.join("rules")).err().unwrap();
    assert!(matches!(error, ShareError::Acl(AclError::Io { .. })), "{error}");
}

fn wrong(path: &Path) -> (usize, String) {
    let before = std::fs::read(path).unwrap();
    let mut table = table();
    let error = AclFile::new(path).load_or_create(&mut table).unwrap_err();
    assert_eq!(std::fs::read(path).unwrap(), before, "it is left as it is");
    assert!(table.rules().is_empty());
    let AclError::Line { line, .. } = error else { panic!("{error}") };
    let text = error.to_string();
    assert!(text.starts_with(&format!("{}:{line}: ", path.display())), "{text}");
    (line, text)
}

#[test]
fn damage_is_named_by_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules");
    let rules = [
        rule(Principal::Uid(5), "a", 3),
        rule(Principal::Gid(6), "a", 3),
        rule(Principal::Anyone, "b", 3),
    ];
    AclFile::new(&path).save(&rules).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5);
    let put = |lines: &[&str], end: &str| {
        std::fs::write(&path, format!("{}{end}", lines.join("\n"))).unwrap();
    };
    for (lines, end, line, says) in [
        (vec!["x"], "\n", 1, "sluice-rules 1"),
        (vec!["sluice-rules 2", lines[1]], "\n", 1, "sluice-rules 1"),
        (vec![], "", 1, "cut short"),
        (lines[..4].to_vec(), "\n", 5, "cut short"),
        (lines.clone(), "", 5, "cut short"),
        (vec![lines[0], lines[1], lines[1], lines[4]], "\n", 3, "a second rule"),
        (vec![lines[0], lines[1], lines[2], lines[4]], "\n", 4, "the end of 3 rules, after 2"),
        ([&lines[..], &lines[1..2]].concat(), "\n", 6, "after the end"),
        (vec![lines[0], "allow anyone d/a"], "\n", 2, "without a checksum"),
    ] {
        put(&lines, end);
        let (found, text) = wrong(&path);
        assert!(found == line && text.contains(says), "{lines:?}: {text}");
    }
    // A rule for a partition that does not exist any more.
    let gone = [rule(Principal::Anyone, "a", 1), rule(Principal::Anyone, "gone", 1)];
    AclFile::new(&path).save(&gone).unwrap();
    let (line, text) = wrong(&path);
    assert!(line == 3 && text.contains("d/gone is not there"), "{text}");

    // Any bit of any line.
    AclFile::new(&path).save(&rules).unwrap();
    let good = std::fs::read(&path).unwrap();
    let mut choices = Choices::seeded(seed());
    for _ in 0..300 {
        let mut bytes = good.clone();
        let at = choices.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << choices.below(8);
        std::fs::write(&path, &bytes).unwrap();
        let (line, text) = wrong(&path);
        let truth = 1 + good[..at].iter().filter(|byte| **byte == b'\n').count();
        // Damage to a line's end is found on the next line.
        assert!(line == truth || (good[at] == b'\n' && line == truth + 1), "{at}: {text}");
    }
    std::fs::write(&path, &good).unwrap();
    let mut table = table();
    assert!(AclFile::new(&path).load_or_create(&mut table).unwrap());
    assert_eq!(table.rules(), rules);
}

fn in_use(error: &ShareError, path: &Path) -> bool {
    let text = error.to_string();
    matches!(error, ShareError::Acl(AclError::InUse { .. }))
        && text.contains(&path.display().to_string())
}

#[test]
fn a_file_is_one_servers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules");
    let first = start(&path).unwrap();
    let mut admin = Admin::connect(&first.socket).unwrap();
    // Every replacement of the file is locked, too.
    for queues in 1..4 {
        let before = std::fs::read(&path).unwrap();
        let error = start(&path).err().unwrap();
        assert!(in_use(&error, &path), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        admin.allow(rule(Principal::Anyone, "b", queues)).unwrap();
    }
    let rules = listed(&first);
    drop((admin, first));
    let second = start(&path).unwrap();
    assert_eq!(listed(&second), rules);
    drop(second);
    // A damaged file is unlocked again.
    let good = std::fs::read(&path).unwrap();
    std::fs::write(&path, "x").unwrap();
    assert!(matches!(start(&path).err(), Some(ShareError::Acl(AclError::Line { .. }))));
    std::fs::write(&path, good).unwrap();
    assert_eq!(listed(&start(&path).unwrap()), rules);
}

#[test]
fn of_many_that_begin_without_a_file_one_has_it() {
    for _ in 0..50 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules");
        let gate = std::sync::Barrier::new(4);
        let begun: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    let (file, gate) = (AclFile::new(&path), &gate);
                    scope.spawn(move || {
                        let mut table = table();
                        table.allow(rule(Principal::Uid(n), "a", 1)).unwrap();
                        gate.wait();
                        let begun = file.load_or_create(&mut table);
                        (n, file, begun)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut has = begun.iter().filter(|(_, _, begun)| begun.is_ok());
        let (uid, file, _) = has.next().expect("one");
        assert!(has.next().is_none(), "two have it");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!("uid:{uid} ")), "{text}");
        let refused = begun.iter().filter(|(_, _, begun)| begun.is_err());
        for (_, _, begun) in refused {
            assert!(matches!(begun, Err(AclError::InUse { .. })), "{begun:?}");
        }
        file.save(&[]).unwrap();
        let another = AclFile::new(&path).load_or_create(&mut table());
        assert!(matches!(another, Err(AclError::InUse { .. })), "{another:?}");
    }
}
