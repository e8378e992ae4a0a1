//! Tests of kinds of drives: SATA drives at an AHCI controller, and devices of this machine.

// guarantee: B-27, B-36

use controller::{PmrConfig, PmrStore, RegionCosts, RegisterConfig};

use super::*;
use crate::{DriveKind, FileDrive};

fn drives(count: usize) -> String {
    (0..count).map(|i| format!("[[drive]]\nname = \"d{i}\"\nkind = \"ahci\"\n")).collect()
}

#[test]
fn a_sata_drive_has_the_keys_of_its_model() {
    let s = parse(
        "[ahci]\nuplink_bandwidth = \"2GB/s\"\nlink_up = \"2ms\"\n\
         [[drive]]\nkind = \"ahci\"\ncapacity = \"1G\"\ndata = \"none\"\n\
         [drive.sata]\nsector_bytes = 4096\nqueue_depth = 16\narray_read = \"50us\"\ncache = 0\n\
         [[drive]]\nname = \"b\"\nkind = \"ahci\"\nsata = { sector_bytes = 4096 }\n\
         [[drive]]\nkind = \"nvme\"\npreset = \"femu-default\"\n",
    )
    .unwrap();
    let ahci = s.ahci().unwrap();
    assert_eq!((ahci.drives.len(), ahci.uplink_bytes_per_sec), (2, 2_000_000_000));
    assert_eq!(s.sata_drives().collect::<Vec<_>>(), [0, 1]);
    let first = s.drives[0].sata().unwrap();
    assert_eq!((first.sectors, first.queue_depth, first.cache_bytes), (1 << 18, 16, 0));
    assert_eq!((s.drives[0].sector_bytes(), first.serial.as_str()), (4096, "drive0"));
    assert_eq!(s.drives[1].sata().unwrap().sectors, 500_118_192 / 8);
    assert_eq!((&s.drives[2].kind, s.drives[2].is_block_device()), (&DriveKind::Nvme, true));
    assert!(parse(&drives(32)).unwrap().ahci().is_some());
    assert_eq!(parse("[drive]\npreset = \"femu-default\"\n").unwrap().ahci(), None);
}

#[test]
fn a_controller_has_32_ports_and_one_sector_size() {
    assert_refused(&drives(33), 97, "[[drive]]", &["drive d32 has no port", "1 to 32 drives"]);
    let odd =
        format!("{}[[drive]]\nkind = \"ahci\"\nsata = {{ sector_bytes = 4096 }}\n", drives(1));
    assert_refused(&odd, 4, "[[drive]]", &["sectors of 4096 bytes", "equal sectors"]);
}

// guarantee: B-80

#[test]
fn a_logical_block_is_at_most_what_the_drive_maps() {
    for preset in ["tlc-2020s", "qlc-2020s-small", "dc-nvme-mlc", "nvme-null", "consumer-nvme"] {
        let text = format!("[drive]\npreset = \"{preset}\"\nlba_bytes = 512\n");
        let s = parse(&text).unwrap();
        assert_eq!((s.drives[0].config.lba_bytes, s.drives[0].sector_bytes()), (Some(512), 512));
        assert_eq!(s.drives[0].config.sector_bytes(), 4096);
        assert!(s.drives[0].config.check().is_ok(), "{preset}");
    }
    // A block of a sector is none that is smaller.
    let same = parse("[drive]\npreset = \"femu-default\"\nlba_bytes = \"4k\"\n").unwrap();
    let without = parse("[drive]\npreset = \"femu-default\"\n").unwrap();
    assert_eq!(same.drives[0].config, without.drives[0].config);
    let block = "[drive]\npreset = \"femu-default\"\n";
    for value in ["0", "256", "513", "768", "131072", "\"1M\""] {
        let text = format!("{block}lba_bytes = {value}\n");
        assert_refused(&text, 3, value, &["a power of two from 512 to 65536"]);
    }
    assert_refused(
        &format!("{block}lba_bytes = 8192\n"),
        3,
        "8192",
        &["is larger than a sector of the drive, which has 4096", "from 512 to 4096"],
    );
    assert_refused(
        &format!("{block}lba_bytes = 1024\n[drive.geometry]\nsector_bytes = 512\n"),
        3,
        "1024",
        &["is larger than a sector of the drive, which has 512"],
    );
    for target in ["", "[target]\nkind = \"pblk\"\n", "[target]\nkind = \"rrpc\"\n"] {
        let map = if target.contains("rrpc") { "device_l2p = true\n" } else { "" };
        let open = format!("{block}lba_bytes = 512\npersonality = \"open-channel\"\n{map}{target}");
        let says = ["addresses physical sectors of 4096 bytes", "set personality = \"block\""];
        assert_refused(&open, 3, "512", &says);
    }
    assert_refused(
        "[drive]\npreset = \"pcm\"\nlba_bytes = 512\n",
        3,
        "512",
        &["written in place in sectors of 4096 bytes", "set geometry.sector_bytes = 512"],
    );
    assert_refused(
        "[drive]\nkind = \"ahci\"\nlba_bytes = 512\n",
        3,
        "lba_bytes",
        &["describes an emulated NVMe drive"],
    );
}

// guarantee: B-95

#[test]
fn protection_information_needs_flash_of_the_drive_data_and_out_of_band_bytes() {
    let block = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\n";
    let with = |keys: &str| format!("{block}protection = \"type1\"\n{keys}");
    let config = |text: &str| parse(text).unwrap().drives[0].config.clone();
    for (keys, bytes) in [("", 24), ("lba_bytes = 512\n", 80), ("lba_bytes = 1024\n", 48)] {
        let config = config(&with(&format!("{keys}geometry.oob_bytes = {bytes}\n")));
        assert_eq!(config.protection, Some(nvme::ProtectionType::Type1));
        assert_eq!(config.protected_oob_bytes(), bytes);
        assert!(config.check().is_ok());
        let less = with(&format!("{keys}geometry.oob_bytes = {}\n", bytes - 1));
        let help = format!("set geometry.oob_bytes to {bytes} or more");
        assert_refused(&less, 4, "\"type1\"", &["16 for the FTL and 8", &help]);
    }
    assert_eq!(config(&format!("{block}protection = \"none\"\n")).protection, None);
    let none = "[drive]\npreset = \"femu-default\"\ndata = \"none\"\nprotection = \"type1\"\n";
    assert_refused(none, 4, "\"type1\"", &["nothing to protect", "data = \"memory\""]);
    for target in ["", "[target]\nkind = \"pblk\"\n", "[target]\nkind = \"rrpc\"\n"] {
        let map = if target.contains("rrpc") { "device_l2p = true\n" } else { "" };
        let open = with(&format!("personality = \"open-channel\"\n{map}{target}"));
        let says = ["the host manages the out-of-band bytes", "set personality = \"block\""];
        assert_refused(&open, 4, "\"type1\"", &says);
    }
    for preset in ["pcm", "nvme-null"] {
        let text = format!("[drive]\npreset = \"{preset}\"\nprotection = \"type1\"\n");
        assert_refused(&text, 3, "\"type1\"", &["only NAND has the out-of-band bytes"]);
    }
    assert_refused(
        "[drive]\nkind = \"ahci\"\nprotection = \"type1\"\n",
        3,
        "protection",
        &["describes an emulated NVMe drive"],
    );
    let wrong = format!("{block}protection = \"type2\"\n");
    assert_refused(&wrong, 4, "\"type2\"", &["none", "type1"]);
    // Faults of information that the drive does not have, and of bytes that nothing has.
    let fault =
        "[[job]]\nrw = \"read\"\n[[fault]]\nat = \"1s\"\nkind = \"corrupted-data\"\nlba = 1\n";
    let guard = format!("{block}{fault}what = \"guard\"\n");
    assert_refused(&guard, 8, "\"corrupted-data\"", &["no protection information", "type1"]);
    let nothing = format!("{block}{fault}what = \"nothing\"\n");
    assert_refused(&nothing, 10, "\"nothing\"", &["data", "guard", "reference-tag"]);
}

#[test]
fn keys_of_other_kinds_are_refused_by_name() {
    let ahci = "[drive]\nkind = \"ahci\"\n";
    for (text, line, caret, says) in [
        ("personality = \"open-channel\"\n", 3, "personality", "describes an emulated NVMe drive"),
        ("preset = \"femu-default\"\n", 3, "preset", "kind = \"ahci\""),
        ("device_l2p = true\n", 3, "device_l2p", "set kind = \"nvme\""),
        ("[drive.geometry]\nchannels = 1\n", 3, "geometry", "remove `geometry`"),
        ("[drive.controller]\nmax_io_queues = 4\n", 3, "controller", "remove `controller`"),
        ("data = \"file\"\n", 3, "\"file\"", "\"memory\", \"none\""),
        ("capacity = 1000\n", 3, "1000", "sectors of 512 bytes"),
        ("capacity = 0\n", 3, "0", "sectors of 512 bytes"),
        ("capacity = \"65T\"\n", 3, "\"65T\"", "64 TiB"),
        ("frobs = 1\n", 3, "frobs", "allowed: name, kind, data, capacity, sata"),
        ("sata = { queue_depth = 33 }\n", 3, "33", "whole numbers from 1 to 32"),
        ("sata = { units = 0 }\n", 3, "0", "whole numbers from 1 to 4096"),
        ("sata = { sector_bytes = 520 }\n", 3, "520", "powers of two"),
        ("sata = { unit_bytes = 0 }\n", 3, "0", "1 byte and more"),
        ("sata = { dies = 1 }\n", 3, "dies", "[drive.sata] has no key"),
        ("[ahci]\nports = 2\n", 4, "ports", "[ahci] has no key"),
        ("[target]\nkind = \"pblk\"\n", 4, "\"pblk\"", "does not expose it"),
    ] {
        assert_refused(&format!("{ahci}{text}"), line, caret, &[says]);
    }
    let nvme = "[drive]\npreset = \"femu-default\"\n";
    assert_refused(&format!("{nvme}sata = {{}}\n"), 3, "sata", &["has no key `sata`"]);
    assert_refused(
        "[drive]\nkind = \"scsi\"\n",
        2,
        "\"scsi\"",
        &["\"nvme\", \"null\", \"ahci\", \"file\", \"kernel\", \"pci\""],
    );
}

#[test]
fn a_port_has_one_command_list() {
    let why = "one command list";
    let mq = "[path]\nqueue_model = \"mq\"\ncores = 4\n";
    assert!(parse(&format!("{}{mq}", drives(1))).is_ok());
    assert!(parse(&format!("{}{mq}queues = 1\n", drives(1))).is_ok());
    let several = format!("{}{mq}queues = 2\n", drives(1));
    assert_refused(&several, 7, "2", &[why, "2 hardware queues", "allowed: 1 queue"]);
    let path = |name: &str| format!("[[path]]\nname = \"{name}\"\nover = \"d0\"\n");
    let both = format!("{}{}{}", drives(1), path("a"), path("b"));
    assert_refused(&both, 9, "\"d0\"", &[why, "path a and another"]);
    let set = "[[set]]\nname = \"s\"\nmembers = [\"d0\", \"d1\"]\n";
    let member = format!("{}{set}{}", drives(2), path("a"));
    assert_refused(&member, 12, "\"d0\"", &[why, "set s and another"]);
    let target = "[[target]]\nname = \"t\"\nkind = \"pblk\"\npus = \"0\"\n";
    let refused = format!("{}{target}", drives(1));
    assert_refused(&refused, 6, "\"pblk\"", &["target t manages the flash itself"]);
}

#[test]
fn devices_of_this_machine_have_their_keys() {
    let s = parse(
        "[[drive]]\nname = \"f\"\nkind = \"file\"\npath = \"disk.img\"\ndirect = false\n\
         sector_bytes = 4096\nqueue_depth = 8\n\
         [[drive]]\nname = \"k\"\nkind = \"kernel\"\npath = \"/dev/ng0n1\"\n\
         [[drive]]\nname = \"p\"\nkind = \"pci\"\naddress = \"0000:01:00.0\"\nnamespace = 2\n\
         [[set]]\nname = \"s\"\nmembers = [\"f\", \"k\"]\n\
         [[path]]\nname = \"one\"\nover = \"p\"\nqueue_model = \"mq\"\ncores = 2\nqueues = 2\n\
         [[path]]\nname = \"two\"\nover = \"s\"\n",
    )
    .unwrap();
    let DriveKind::File(FileDrive { path, sector_bytes, direct, queue_depth }) = &s.drives[0].kind
    else {
        panic!("{:?}", s.drives[0].kind)
    };
    assert!(path.ends_with("disk.img"));
    assert_eq!((*sector_bytes, *direct, *queue_depth), (Some(4096), false, 8));
    assert!(s.drives.iter().all(|drive| drive.is_real() && drive.is_block_device()));
    let words: Vec<&str> = s.drives.iter().map(|drive| drive.kind.word()).collect();
    assert_eq!(words, ["file", "kernel", "pci"]);
    let DriveKind::Pci(pci) = &s.drives[2].kind else { panic!("{:?}", s.drives[2].kind) };
    assert_eq!((pci.address.to_string(), pci.namespace), ("0000:01:00.0".to_owned(), Some(2)));
    let null = parse("[drive]\nkind = \"null\"\ncapacity = \"1M\"\n").unwrap();
    let spelled = parse("[drive]\npersonality = \"null\"\ncapacity = \"1M\"\n").unwrap();
    assert_eq!(null.drives, spelled.drives);
}

#[test]
fn keys_of_emulated_drives_are_refused_for_devices_of_this_machine() {
    for (text, line, caret, says) in [
        ("kind = \"file\"\n", 1, "[drive]", "[drive] needs `path`"),
        ("kind = \"kernel\"\n", 1, "[drive]", "/dev/ng0n1"),
        ("kind = \"pci\"\n", 1, "[drive]", "0000:01:00.0"),
        ("kind = \"pci\"\naddress = \"nvme0\"\n", 3, "\"nvme0\"", "0000:01:00.0"),
        ("kind = \"pci\"\naddress = \"1:0.0\"\nnamespace = 0\n", 4, "0", "from 1 on"),
        ("kind = \"pci\"\npath = \"x\"\n", 3, "path", "describes an emulated NVMe drive"),
        ("kind = \"file\"\npath = \"x\"\ncapacity = \"1G\"\n", 4, "capacity", "kind = \"file\""),
        ("kind = \"file\"\npath = \"x\"\ndata = \"none\"\n", 4, "data", "kind = \"file\""),
        ("kind = \"file\"\npath = \"x\"\nqueue_depth = 0\n", 4, "0", "from 1"),
        ("kind = \"file\"\npath = \"x\"\nqueue_depth = 40000\n", 4, "40000", "1 to 32768"),
        ("kind = \"file\"\npath = \"x\"\nsector_bytes = 100\n", 4, "100", "powers of two"),
        ("kind = \"kernel\"\npath = \"x\"\ndirect = true\n", 4, "direct", "has no key `direct`"),
        (
            "kind = \"file\"\npath = \"x\"\n[target]\nkind = \"pblk\"\n",
            5,
            "\"pblk\"",
            "does not expose",
        ),
        ("kind = \"null\"\npersonality = \"block\"\n", 3, "\"block\"", "has the null personality"),
    ] {
        assert_refused(&format!("[drive]\n{text}"), line, caret, &[says]);
    }
}

/// Members of a set that have memory of their own are refused; files and devices of the kernel use
/// that of the others.
#[test]
fn a_set_has_one_memory() {
    let drive = |name: &str, keys: &str| format!("[[drive]]\nname = \"{name}\"\n{keys}");
    let drives = drive("p", "kind = \"pci\"\naddress = \"0000:01:00.0\"\n")
        + &drive("q", "kind = \"pci\"\naddress = \"0000:02:00.0\"\n")
        + &drive("s", "kind = \"ahci\"\n")
        + &drive("t", "kind = \"ahci\"\n")
        + &drive("f", "kind = \"file\"\npath = \"disk.img\"\n")
        + &drive("k", "kind = \"kernel\"\npath = \"/dev/ng0n1\"\n")
        + &drive("n", "kind = \"null\"\ncapacity = \"1G\"\ngeometry.sector_bytes = 512\n");
    let with = |members: &str| format!("{drives}[[set]]\nname = \"all\"\nmembers = [{members}]\n");
    for members in ["\"p\"", "\"f\", \"p\", \"k\", \"n\"", "\"k\", \"s\", \"t\", \"f\", \"n\""] {
        parse(&with(members)).unwrap_or_else(|error| panic!("{members}: {error}"));
    }
    let line = drives.lines().count() + 3;
    for (members, caret, says) in [
        ("\"p\", \"f\", \"q\"", "\"q\"", "drive q transfers data"),
        ("\"s\", \"p\"", "\"p\"", "so does s"),
        ("\"p\", \"t\"", "\"t\"", "so does p"),
    ] {
        assert_refused(&with(members), line, caret, &[says, "at most one drive with kind"]);
    }
}

#[test]
fn registers_are_a_choice_with_two_times() {
    let text = |value: &str| format!("{SMALL}controller = {{ registers = {value} }}\n");
    let registers =
        |value: &str| parse(&text(value)).unwrap().drives[0].config.controller.registers;
    assert_eq!(registers("false"), None);
    assert_eq!(registers("true"), Some(RegisterConfig::default()));
    let (ready_time, timeout) = (Nanos::from_millis(300), Nanos::from_millis(127_000));
    assert_eq!(
        registers("{ ready_time = \"300ms\", timeout = \"127s\" }"),
        Some(RegisterConfig { ready_time, timeout })
    );
    for (bad, marked, says) in [
        ("1", "1", "true, false, or a table"),
        ("{ timeout = \"0s\" }", "\"0s\"", "127 s"),
        ("{ timeout = \"128s\" }", "\"128s\"", "127 s"),
        ("{ ready = \"1s\" }", "ready", "ready_time"),
    ] {
        assert_refused(&text(bad), 3, marked, &[says]);
    }
}

// guarantee: B-89

#[test]
fn namespaces_are_sizes_of_a_drive_that_manages_its_flash() {
    let drive = "[drive]\npreset = \"femu-default\"\n";
    let layout = |keys: &str| {
        let s = parse(&format!("{drive}{keys}")).unwrap();
        let layout = s.drives[0].config.controller.namespaces;
        (layout.count(), layout.sizes().collect::<Vec<_>>())
    };
    assert_eq!(layout(""), (1, vec![]));
    assert_eq!(
        layout("namespaces = [\"4M\", \"rest\", 4096]\n"),
        (3, vec![Some(4 << 20), None, Some(4096)])
    );
    let list = "a list of sizes, such as";
    for (value, says) in [
        ("\"4G\"", list),
        ("[]", list),
        ("[0, \"rest\"]", "namespace 1 has no bytes"),
        ("[\"rest\", \"rest\"]", "namespace 2 is the second one that has the rest"),
        ("[\"1T\", \"rest\"]", "on a drive that holds"),
    ] {
        assert_refused(&format!("{drive}namespaces = {value}\n"), 3, value, &[says]);
    }
    let many = format!("[{}]", vec!["1"; 33].join(", "));
    assert_refused(&format!("{drive}namespaces = {many}\n"), 3, &many, &["33 namespaces"]);
    for (item, says) in [("\"half\"", "\"half\""), ("true", "namespaces")] {
        assert_refused(&format!("{drive}namespaces = [{item}]\n"), 3, item, &[says]);
    }
    for other in ["preset = \"femu-default\"\npersonality = \"open-channel\"", "preset = \"pcm\""] {
        let text = format!("[drive]\n{other}\nnamespaces = [\"rest\"]\n");
        let line = text.lines().count();
        assert_refused(&text, line, "[\"rest\"]", &["only a drive that manages its flash"]);
    }
    assert_refused(
        "[drive]\nkind = \"null\"\ncapacity = \"1G\"\nnamespaces = [\"rest\"]\n",
        4,
        "[\"rest\"]",
        &["only a drive that manages its flash"],
    );
}

#[test]
fn a_path_leads_to_a_namespace_of_its_drive() {
    let drive = "[drive]\npreset = \"femu-default\"\n";
    let two = "namespaces = [\"4M\", \"rest\"]\n";
    let s = parse(&format!("{drive}{two}[path]\nnamespace = 2\n")).unwrap();
    assert_eq!(s.drives[0].namespace, Some(2));
    let named = "[[path]]\nname = \"p\"\nover = \"drive0\"\nnamespace = 2\n";
    let s = parse(&format!("{drive}{two}{named}")).unwrap();
    let path = &s.paths()[0];
    assert_eq!((s.drives[0].namespace, path.config.namespace), (None, Some(2)));
    assert_eq!(s.reduced_to(path).drives[0].namespace, Some(2));
    assert_eq!(
        parse(&format!("{drive}[path]\nnamespace = 1\n")).unwrap().drives[0].namespace,
        Some(1)
    );
    assert_refused(&format!("{drive}[path]\nnamespace = 2\n"), 4, "2", &["1 to 1, the namespaces"]);
    for nsid in ["0", "3"] {
        let text = format!("{drive}{two}[path]\nnamespace = {nsid}\n");
        assert_refused(&text, 5, nsid, &["1 to 2, the namespaces of drive drive0"]);
    }
    let target = "personality = \"open-channel\"\n[target]\nkind = \"pblk\"\n";
    let text = format!("{drive}{target}[path]\nnamespace = 1\n");
    assert_refused(&text, 7, "1", &["no emulated NVMe drive without a target"]);
    let set = "[[drive]]\nname = \"a\"\npreset = \"femu-default\"\n[[set]]\nname = \"s\"\n\
               members = [\"a\"]\n[[path]]\nname = \"p\"\nover = \"s\"\nnamespace = 1\n";
    assert_refused(set, 10, "1", &["\"s\" is no drive, and has no namespaces"]);
    let export = "[[export]]\nsocket = \"unix:/tmp/s\"\n".replace("unix:", "");
    let text = format!("{drive}{two}[path]\nnamespace = 2\n{export}");
    assert_refused(&text, 7, "\"/tmp/s\"", &["partitions of the drive's namespace 1"]);
}

// guarantee: D-59

#[test]
fn atomic_writes_need_an_ftl_with_the_map() {
    let block = "[drive]\npreset = \"femu-default\"\n";
    let is_atomic = |text: &str| parse(text).unwrap().drives[0].config.ftl.atomic_writes;
    assert!(is_atomic(&format!("{block}atomic = true\n")));
    assert!(!is_atomic(&format!("{block}atomic = false\n")) && !is_atomic(block));
    let cached = "data = \"memory\"\n[drive.ftl]\nl2p_cache = \"1G\"\n";
    assert!(is_atomic(&format!("{block}atomic = true\n{cached}")));
    let pblk = |keys: &str| {
        format!("{block}personality = \"open-channel\"\n[target]\nkind = \"pblk\"\n{keys}")
    };
    let target = |text: &str| parse(text).unwrap().drives[0].target.ftl().copied().unwrap();
    assert!(target(&pblk("atomic = true\n")).atomic_writes);
    assert!(!target(&pblk("")).atomic_writes);
    let open = format!("{block}atomic = true\npersonality = \"open-channel\"\n");
    assert_refused(&open, 3, "true", &["which the host manages", "set atomic in the `[target]`"]);
    let pcm = "[drive]\npreset = \"pcm\"\natomic = true\n";
    assert_refused(pcm, 3, "true", &["writes each sector in its place"]);
    let null = "[drive]\npreset = \"nvme-null\"\natomic = true\n";
    assert_refused(null, 3, "true", &["stores nothing"]);
    let ahci = "[drive]\nkind = \"ahci\"\natomic = true\n";
    assert_refused(ahci, 3, "atomic", &["describes an emulated NVMe drive"]);
    let rrpc = format!(
        "{block}personality = \"open-channel\"\ndevice_l2p = true\n[target]\nkind = \"rrpc\"\natomic = true\n"
    );
    assert_refused(&rrpc, 7, "true", &["only the writes of pblk"]);
}

// guarantee: B-98

#[test]
fn a_persistent_memory_region_has_a_size_and_costs() {
    let region = |text: &str| {
        let drive = "[drive]\npreset = \"femu-default\"\n";
        parse(&format!("{drive}{text}")).unwrap().drives[0].config.pmr.clone()
    };
    let costs = RegionCosts { store: Nanos(8), persist: Nanos(300) };
    let store = PmrStore::Emulated { bytes: 64 << 20 };
    let wanted = PmrConfig { store, costs };
    let text = "pmr = { size = \"64M\", store = \"8ns\", persist = \"300ns\" }\n";
    assert_eq!(region(text), Some(wanted));
    let dax = PmrStore::Dax { path: "dir/pmem/d".into() };
    let wanted = PmrConfig { store: dax, costs: RegionCosts::default() };
    assert_eq!(region("pmr.dax = \"pmem/d\"\n"), Some(wanted));
    assert_eq!(region(""), None);
    let drive = "[drive]\npreset = \"femu-default\"\n";
    let with = |keys: &str| format!("{drive}pmr = {{ {keys} }}\n");
    for size in ["0", "1", "4095", "4097", "\"1T\""] {
        assert_refused(&with(&format!("size = {size}")), 3, size, &["multiple of 4k", "64G"]);
    }
    for (text, says) in [
        (with("size = \"64k\", store = \"-1ns\""), "store"),
        (with("size = \"64k\", persist = \"900s\""), "durations from"),
        (with("size = \"64k\", persit = \"1us\""), "persist"),
        (with("size = \"64k\", dax = \"x\""), "remove `size` or `dax`"),
        (with("store = \"1ns\""), "without a size"),
        (format!("{drive}pmr = \"64M\"\n"), "size"),
        (format!("{drive}pmr = true\n"), "size"),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let file = format!("{drive}data = \"file\"\npath = \"x\"\nflush = \"host\"\n");
    let error = parse(&format!("{file}pmr.size = \"64k\"\n")).unwrap_err().to_string();
    assert!(error.contains("does not cover") && error.contains("remove `pmr`"), "{error}");
    assert!(parse(&format!("{file}pmr.dax = \"y\"\n")).is_ok());
    for kind in ["ahci", "file", "kernel", "pci"] {
        let text = format!("[drive]\nkind = \"{kind}\"\npmr.size = \"64k\"\n");
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("`drive.pmr`"), "{kind}: {error}");
    }
    let open = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npmr.size = \"64k\"\n";
    parse(open).unwrap().drives[0].config.check().unwrap();
}

// guarantee: B-50

#[test]
fn a_path_has_a_log_in_the_memory_of_its_drive() {
    let drive = "[drive]\npreset = \"femu-default\"\npmr.size = \"1M\"\n";
    let s = parse(&format!("{drive}[path]\nlog = \"512k\"\n")).unwrap();
    assert_eq!(s.path.log, Some(512 << 10));
    let layer = "[path]\nlog = \"1M\"\nqueue_model = \"mq\"\ncores = 2\n";
    assert_eq!(parse(&format!("{drive}{layer}")).unwrap().path.log, Some(1 << 20));
    for size in ["0", "65535", "65537", "\"1T\"", "\"32k\""] {
        let text = format!("{drive}[path]\nlog = {size}\n");
        assert_refused(&text, 5, size, &["multiples of 64 bytes from 64k"]);
    }
    let text = format!("{drive}[path]\nlog = \"2M\"\n");
    assert_refused(&text, 5, "\"2M\"", &["up to 1048576 bytes, the size of `pmr`"]);
    let plain = "[drive]\npreset = \"femu-default\"\n";
    let text = format!("{plain}[path]\nlog = \"1M\"\n");
    assert_refused(&text, 4, "\"1M\"", &["no persistent memory region", "add `pmr`"]);
    for kind in ["ahci", "file\"\npath = \"x", "kernel\"\npath = \"/dev/ng0n1"] {
        let text = format!("[drive]\nkind = \"{kind}\"\n[path]\nlog = \"1M\"\n");
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains("no persistent memory region"), "{error}");
    }
    let open = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npmr.size = \"1M\"\n";
    let text = format!("{open}[path]\nlog = \"1M\"\n");
    assert_refused(&text, 5, "\"1M\"", &["no logical blocks for a log"]);
    let machine = format!("[host]\nmachine = \"i7-4770\"\n{drive}[path]\nlog = \"1M\"\n");
    assert_refused(&machine, 7, "\"1M\"", &["not modeled", "`machine`"]);
    let named = "[[path]]\nname = \"p\"\nover = \"drive0\"\nlog = \"1M\"\n\
                 [[path]]\nname = \"q\"\nover = \"drive0\"\nlog = \"512k\"\n";
    let text = format!("{drive}{named}");
    assert_refused(&text, 11, "\"512k\"", &["path p has a log in the memory of this drive"]);
    let set = "[[drive]]\nname = \"a\"\npreset = \"femu-default\"\npmr.size = \"1M\"\n[[set]]\nname = \"s\"\n\
               members = [\"a\"]\n[[path]]\nname = \"p\"\nover = \"s\"\nlog = \"1M\"\n";
    assert_refused(set, 11, "\"1M\"", &["\"s\" is a set"]);
    let export = "[[export]]\nsocket = \"/tmp/s\"\n";
    let text = format!("{drive}[path]\nlog = \"1M\"\n{export}");
    assert_refused(&text, 7, "\"/tmp/s\"", &["has a log on the host"]);
}
