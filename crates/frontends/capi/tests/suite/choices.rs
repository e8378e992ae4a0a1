//! The choices of a scenario, from C: a combination that cannot be is refused with the reason of the
//! other front ends, and a handle waits by the method of completion, and a SATA drive is a device.

// guarantee: B-18, B-24, B-37, B-44

use std::ffi::CString;
use std::ptr::{null, null_mut};
use std::time::Instant;

use scenario::CompletionMethod;
use scenario::choice::{Choice, FrontEnd};
use sluice_c::*;

use crate::support::last_error;

fn written(dir: &tempfile::TempDir, text: &str) -> CString {
    let file = dir.path().join("c.toml");
    std::fs::write(&file, text).unwrap();
    CString::new(file.to_str().unwrap()).unwrap()
}

/// One combination for each reason.
#[test]
fn a_refused_combination_has_the_reason_of_the_matrix() {
    let dir = tempfile::tempdir().unwrap();
    let mut told = Vec::new();
    for choice in Choice::all().filter(|choice| choice.front == FrontEnd::Application) {
        let Err(why) = choice.check() else { continue };
        if told.contains(&why.to_string()) {
            continue;
        }
        let name = written(&dir, &choice.scenario());
        let mut device: *mut sluice_device = null_mut();
        // SAFETY: the pointers are to live objects.
        let code =
            unsafe { sluice_open_version(SLUICE_VERSION, name.as_ptr(), null(), &mut device) };
        let said = last_error();
        assert_eq!(code, -libc::EINVAL, "{choice:?}: {said}");
        assert!(device.is_null());
        for part in [why.to_string(), why.help()] {
            assert!(said.contains(&part), "{choice:?}: {said}, not {part}");
        }
        assert!(said.contains("c.toml:"), "{said}");
        told.push(why.to_string());
    }
    assert!(told.len() >= 8, "{told:?}");
}

/// A handle with default options sleeps where the scenario says so, and spins where it does not.
#[test]
fn a_handle_waits_by_the_method_of_the_scenario() {
    let dir = tempfile::tempdir().unwrap();
    let drive = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\nnull = { latency = \"5ms\" }\n[path]\n";
    for method in CompletionMethod::ALL {
        for model in ["raw", "sq", "mq"] {
            if method.needs_handler() && model != "sq" {
                continue;
            }
            let keys = format!("queue_model = \"{model}\"\ncompletion = \"{}\"\n", method.word());
            let name = written(&dir, &format!("{drive}{keys}"));
            let (mut device, mut queue) = (null_mut(), null_mut());
            let (mut handle, mut buffer) = (null_mut(), null_mut());
            ok!(sluice_open_version(SLUICE_VERSION, name.as_ptr(), null(), &mut device));
            ok!(sluice_queue_create(device, null(), &mut queue));
            ok!(sluice_handle_create(queue, null(), &mut handle));
            ok!(sluice_buffer_create(device, 4096, &mut buffer));
            let begin = Instant::now();
            for _ in 0..8 {
                ok!(sluice_read(handle, 0, 1, buffer, 0));
            }
            assert!(begin.elapsed().as_millis() >= 40, "{keys}");
            let mut stats = options!(sluice_handle_stats {});
            ok!(sluice_handle_get_stats(handle, &mut stats));
            assert_eq!(stats.sleeps > 0, *method != CompletionMethod::Poll, "{keys}");
            ok!(sluice_handle_destroy(handle));
            ok!(sluice_queue_destroy(queue));
            // SAFETY: no call uses these objects any more.
            unsafe {
                sluice_buffer_destroy(buffer);
                assert_eq!(sluice_close(device), 0);
            }
        }
    }
}

/// A SATA drive reads what was written, alone and in a set, with and without a block layer.
#[test]
fn a_sata_drive_keeps_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let drive =
        |name: &str| format!("[[drive]]\nname = \"{name}\"\nkind = \"ahci\"\ncapacity = \"64M\"\n");
    let drives = drive("a")
        + &drive("b")
        + &drive("c")
        + "[[set]]\nname = \"ab\"\nmembers = [\"a\", \"b\"]\nstripe = \"4K\"\n";
    for keys in ["", "queue_model = \"sq\"\ncompletion = \"interrupt\"\n", "queue_model = \"mq\"\n"]
    {
        let text = format!("{drives}[path]\n{keys}");
        for (what, sectors) in [("c", 131_072), ("ab", 262_144)] {
            let file = written(&dir, &text);
            let name = CString::new(format!("{}#{what}", file.to_str().unwrap())).unwrap();
            let (mut device, mut queue) = (null_mut(), null_mut());
            let (mut handle, mut buffer) = (null_mut(), null_mut());
            ok!(sluice_open_version(SLUICE_VERSION, name.as_ptr(), null(), &mut device));
            let mut info = options!(sluice_device_info {});
            ok!(sluice_device_get_info(device, &mut info));
            assert_eq!((info.sector_bytes, info.sectors), (512, sectors), "{what}");
            ok!(sluice_queue_create(device, null(), &mut queue));
            ok!(sluice_handle_create(queue, null(), &mut handle));
            ok!(sluice_buffer_create(device, 16 << 10, &mut buffer));
            // SAFETY: the buffer has as many bytes, and no request uses them now.
            let data = unsafe {
                std::slice::from_raw_parts_mut(sluice_buffer_data(buffer).cast::<u8>(), 16 << 10)
            };
            let pattern = |round: usize, byte: usize| (round * 31 + byte / 7) as u8;
            for round in 0..8 {
                data.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(round, i));
                ok!(sluice_write(handle, 32 * round as u64, 32, buffer, 0, 0));
            }
            ok!(sluice_flush(handle));
            for round in 0..8 {
                data.fill(0xee);
                ok!(sluice_read(handle, 32 * round as u64, 32, buffer, 0));
                let read = data.iter().enumerate();
                assert!(read.clone().all(|(i, byte)| *byte == pattern(round, i)), "{what} {keys}");
            }
            ok!(sluice_handle_destroy(handle));
            ok!(sluice_queue_destroy(queue));
            // SAFETY: no call uses these objects any more.
            unsafe {
                sluice_buffer_destroy(buffer);
                assert_eq!(sluice_close(device), 0);
            }
        }
    }
}

/// An image that was made with shards is refused without, and the reverse.
#[test]
fn an_image_with_other_shards_is_refused() {
    let scenario = "[drive]\nname = \"d\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
        geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }\n\
        data = \"file\"\npath = \"drive.img\"\n[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n";
    let refused = |has: &str, wanted: u32, shards: u32| {
        format!(
            "the image of drive d has {has}, not {wanted}: set target.shards = {shards}, or remove \
             the image"
        )
    };
    for (made, other, says) in [(2, 1, refused("2 shards", 1, 2)), (1, 2, refused("1 shard", 2, 1))]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut device: *mut sluice_device = null_mut();
        let mut open = |shards: u32| {
            let name = written(&dir, &format!("{scenario}shards = {shards}\n"));
            // SAFETY: the pointers are to live objects.
            unsafe { sluice_open_version(SLUICE_VERSION, name.as_ptr(), null(), &mut device) }
        };
        assert_eq!(open(made), 0, "{}", last_error());
        let mut queue: *mut sluice_queue = null_mut();
        let mut handle: *mut sluice_handle = null_mut();
        let mut buffer: *mut sluice_buffer = null_mut();
        ok!(sluice_queue_create(device, null(), &mut queue));
        ok!(sluice_handle_create(queue, null(), &mut handle));
        ok!(sluice_buffer_create(device, 4096, &mut buffer));
        ok!(sluice_write(handle, 0, 1, buffer, 0, 0));
        ok!(sluice_flush(handle));
        ok!(sluice_handle_destroy(handle));
        ok!(sluice_queue_destroy(queue));
        // SAFETY: no call uses these objects any more.
        unsafe {
            sluice_buffer_destroy(buffer);
            assert_eq!(sluice_close(device), 0);
        }
        let mut device: *mut sluice_device = null_mut();
        let name = written(&dir, &format!("{scenario}shards = {other}\n"));
        // SAFETY: the pointers are to live objects.
        let code =
            unsafe { sluice_open_version(SLUICE_VERSION, name.as_ptr(), null(), &mut device) };
        assert_eq!((code, last_error()), (-libc::EINVAL, says));
        assert!(device.is_null());
    }
}
