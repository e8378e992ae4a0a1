use std::path::Path;

use scenario::Scenario;
use stack::Stack;

use super::prepared::prepare;
use super::*;

fn scenario(text: &str) -> Scenario {
    Scenario::parse(Path::new("s.toml"), text).unwrap()
}

#[test]
fn several_drives_have_endpoints_of_their_own() {
    let drive = |name| format!("[[drive]]\nname = \"{name}\"\npreset = \"pcm\"\n");
    let two = scenario(&(drive("a") + &drive("b")));
    let given: Vec<Endpoint> =
        ["unix:/tmp/s", "tcp:127.0.0.1:10809", "tcp:[::1]:0"].map(|e| e.parse().unwrap()).into();
    let at = |s: &Scenario, i| -> Vec<String> {
        endpoints_of(s, i, &given).unwrap().iter().map(Endpoint::to_string).collect()
    };
    assert_eq!(at(&two, 0), ["unix:/tmp/s.a", "tcp:127.0.0.1:10809", "tcp:[::1]:0"]);
    assert_eq!(at(&two, 1), ["unix:/tmp/s.b", "tcp:127.0.0.1:10810", "tcp:[::1]:0"]);
    let one = scenario(&drive("a"));
    assert_eq!(at(&one, 0), ["unix:/tmp/s", "tcp:127.0.0.1:10809", "tcp:[::1]:0"]);
    let last = ["tcp:127.0.0.1:65535".parse().unwrap()];
    let error = endpoints_of(&two, 1, &last).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("65535 + 1"), "{error}");
}

#[test]
fn a_preconditioned_drive_is_at_rest_at_instant_zero() {
    for (personality, target) in [("block", ""), ("open-channel", "[target]\nkind = \"pblk\"\n")] {
        let text = format!(
            "[drive]\npreset = \"femu-default\"\npersonality = \"{personality}\"\n\
             geometry.chunks = 12\ngeometry.pages = 32\ngeometry.channels = 2\n{target}\
             [precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n"
        );
        let s = scenario(&text);
        let mut told = Vec::new();
        let (mut stack, at) = prepare(&s, 0, &s.drives[0], &mut |e| {
            if let ServeEvent::Preconditioning(name, part) = e {
                told.push((name.to_owned(), part));
            }
        })
        .unwrap();
        assert_eq!(at, Nanos::ZERO);
        assert_eq!(time::Component::deadline(&stack.drive), Nanos::MAX);
        assert!(stack.drive.is_idle());
        assert!(
            stack.ftl_stats().unwrap().gc_relocations > 0,
            "{personality}: garbage was collected"
        );
        assert_eq!(
            told.first().unwrap(),
            &("drive0".to_owned(), 0.0),
            "told before it takes its time"
        );
        assert_eq!(told.last().unwrap(), &("drive0".to_owned(), 1.0));
    }
}

#[test]
fn an_image_is_preconditioned_once_unless_it_was_not_finished() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[drive]\npreset = \"femu-default\"\ngeometry.chunks = 12\ngeometry.pages = 16\n\
                geometry.channels = 2\ndata = \"file\"\npath = \"drive.img\"\n\
                [precondition]\nfill = \"sequential\"\n";
    let s = Scenario::parse(&dir.path().join("s.toml"), text).unwrap();
    let times = |s: &Scenario| {
        let (mut filled, mut kept) = (0, 0);
        let mut tell = |e: ServeEvent<'_>| match e {
            ServeEvent::Preconditioning(_, part) if part >= 1.0 => filled += 1,
            ServeEvent::ImageKept(_) => kept += 1,
            _ => {}
        };
        let (stack, _) = prepare(s, 0, &s.drives[0], &mut tell).unwrap();
        let Stack { drive, device, .. } = stack;
        drop(device);
        drive.shut_down().unwrap();
        (filled, kept)
    };
    assert_eq!(times(&s), (1, 0), "new");
    assert_eq!(times(&s), (0, 1), "somebody's data");
    std::fs::write(dir.path().join("drive.img.preconditioning"), "").unwrap();
    assert_eq!(times(&s), (1, 0), "it was interrupted");
    assert_eq!(times(&s), (0, 1));
}
