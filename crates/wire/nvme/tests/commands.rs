//! Entries and typed commands: byte positions, no panics in parsing, and parsing as the inverse of
//! encoding.

use proptest::prelude::*;
use sluice_nvme::{
    AdminCommand, DataPointer, FeatureSelect, IoCommand, MAX_BLOCKS, MAX_RANGES,
    MAX_VECTOR_ADDRESSES, PlaneMode, Ppa, PpaList, QueuePriority, RULE_BUFFER_BYTES_MAX,
    RULE_TABLE_ENTRIES_MAX, RuleCommand, RuleCommandKind, RuleTableAction, SanitizeAction,
    SanitizeCommand, SecureErase, SglDescriptor, Sqe, Status, VectorHints,
};
use zerocopy::IntoBytes;

fn dwords(sqe: &Sqe) -> [u32; 6] {
    [sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13, sqe.cdw14, sqe.cdw15].map(|d| d.get())
}

#[test]
fn io_entries_have_their_fields_where_the_specification_puts_them() {
    let read = Sqe::read(7, 0x1_0000_0002, 256);
    assert_eq!(read.as_bytes()[..8], [0x02, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(dwords(&read), [2, 1, 255, 0, 0, 0]);
    assert_eq!(dwords(&Sqe::write(1, 0, MAX_BLOCKS, true)), [0, 0, 0x4000_ffff, 0, 0, 0]);
    assert_eq!(dwords(&Sqe::write_zeroes(1, 5, 1, true)), [5, 0, 1 << 25, 0, 0, 0]);
    assert_eq!(dwords(&Sqe::dataset_management(1, 256, true)), [255, 4, 0, 0, 0, 0]);
    assert_eq!(dwords(&Sqe::lba_status(1, 9, 70_000, 256)), [9, 0, 1023, 70_000, 0, 0]);
    assert_eq!(Sqe::flush(1).as_bytes()[0], 0);
    let mut compare = Sqe::compare(1, 5, 2);
    compare.set_fua();
    assert_eq!((compare.as_bytes()[0], dwords(&compare)), (0x05, [5, 0, 0x4000_0001, 0, 0, 0]));
    let verify = Sqe::verify(1, 0x3_0000_0000, MAX_BLOCKS);
    assert_eq!((verify.as_bytes()[0], dwords(&verify)), (0x0c, [0, 3, 0xffff, 0, 0, 0]));
    let poison = Sqe::write_uncorrectable(1, 7, 3);
    assert_eq!((poison.as_bytes()[0], dwords(&poison)), (0x04, [7, 0, 2, 0, 0, 0]));
    let copy = Sqe::copy(1, 0x1_0000_0009, 128);
    assert_eq!((copy.as_bytes()[0], dwords(&copy)), (0x19, [9, 1, 127, 0, 0, 0]));

    let list = PpaList::List { at: 0x2_0000_1000, count: 64 };
    let opcode = |sqe: Sqe| sqe.as_bytes()[0];
    assert_eq!(opcode(Sqe::vector_reset(1, list)), 0x90);
    assert_eq!(opcode(Sqe::vector_write(1, list)), 0x91);
    assert_eq!(opcode(Sqe::vector_read(1, list)), 0x92);
    assert_eq!(dwords(&Sqe::vector_read(1, list)), [0x1000, 2, 63, 0, 0, 0]);
    let one = PpaList::One(Ppa(0x3_0000_0004));
    assert_eq!(dwords(&Sqe::vector_write(1, one)), [4, 3, 0, 0, 0, 0]);
    let copy = Sqe::vector_copy(1, list, PpaList::List { at: 0x5_0000_6000, count: 64 });
    assert_eq!(opcode(copy), 0x93);
    assert_eq!(dwords(&copy), [0x1000, 2, 63, 0, 0x6000, 5]);
    let hints = VectorHints { planes: PlaneMode::Dual, suspend: true, limited_retry: true };
    assert_eq!(dwords(&copy.with_hints(hints)), [0x1000, 2, 0x8081_003f, 0, 0x6000, 5]);
    let trim = Sqe::device_trim(1, 256, 0x1234_5678_9abc);
    assert_eq!((opcode(trim), dwords(&trim)), (0x95, [255, 0, 0, 0, 0x5678_9abc, 0x1234]));
}

#[test]
fn admin_entries_have_their_fields_where_the_specification_puts_them() {
    let sq = AdminCommand::CreateSq {
        qid: 3,
        entries: 256,
        at: 0x1234_5000,
        cqid: 4,
        priority: QueuePriority::Low,
    };
    assert_eq!(dwords(&sq.to_sqe())[..2], [0x00ff_0003, 0x0004_0007]);
    assert_eq!(sq.to_sqe().data(), DataPointer::Prp(0x1234_5000, 0));
    let cq = AdminCommand::CreateCq { qid: 3, entries: 65_536, at: 0, vector: Some(9) };
    assert_eq!(dwords(&cq.to_sqe())[..2], [0xffff_0003, 0x0009_0003]);
    let log = AdminCommand::GetLogPage {
        lid: 0xca,
        nsid: 1,
        bytes: 4 * 0x1_0002,
        offset: 0x7_0000_0008,
        retain: true,
    };
    assert_eq!(dwords(&log.to_sqe()), [0x0001_80ca, 1, 8, 7, 0, 0]);
    let set = AdminCommand::SetFeatures { fid: 7, save: true, value: 5 };
    assert_eq!(dwords(&set.to_sqe())[..2], [0x8000_0007, 5]);
    let get = AdminCommand::GetFeatures { fid: 7, select: FeatureSelect::Default, member: 0 };
    assert_eq!(dwords(&get.to_sqe())[..2], [0x107, 0]);
    let format = AdminCommand::FormatNvm {
        nsid: u32::MAX,
        lba_format: 3,
        protection: 0b10101,
        erase: SecureErase::UserData,
    };
    assert_eq!((format.to_sqe().as_bytes()[0], dwords(&format.to_sqe())[0]), (0x80, 0x353));
    let command = SanitizeCommand {
        passes: 5,
        inverts: true,
        pattern: 0x1234,
        ..SanitizeCommand::new(SanitizeAction::Overwrite)
    };
    let sanitize = AdminCommand::Sanitize(command).to_sqe();
    assert_eq!(
        (sanitize.as_bytes()[0], dwords(&sanitize)[..2].to_vec()),
        (0x84, vec![0x153, 0x1234])
    );
    assert_eq!(dwords(&AdminCommand::Abort { sqid: 1, cid: 2 }.to_sqe())[0], 0x2_0001);
}

#[test]
fn malformed_io_entries_get_the_status_that_says_why() {
    let of = |change: fn(&mut Sqe)| {
        let mut sqe = Sqe::read(1, 0, 1);
        change(&mut sqe);
        IoCommand::parse(&sqe).unwrap_err()
    };
    assert_eq!(of(|s| s.opcode = 0x7f), Status::INVALID_OPCODE);
    assert_eq!(of(|s| s.flags = 0x01), Status::INVALID_FIELD, "fused");
    assert_eq!(of(|s| s.flags = 0xc0), Status::INVALID_FIELD, "reserved PSDT");
    assert_eq!(of(|s| *s = Sqe { opcode: 0x92, cdw12: 64.into(), ..*s }), Status::INVALID_FIELD);
    assert_eq!(of(|s| *s = Sqe { opcode: 0x93, cdw12: 64.into(), ..*s }), Status::INVALID_FIELD);
    assert_eq!(
        of(|s| *s = Sqe { opcode: 0x92, cdw12: 0x3_0000.into(), ..*s }),
        Status::INVALID_FIELD
    );
    assert_eq!(
        of(|s| *s = Sqe { opcode: 0x95, cdw15: 0x1_0000.into(), ..*s }),
        Status::INVALID_FIELD
    );
    let directive = |s: &mut Sqe| *s = Sqe { opcode: 1, cdw12: (1 << 20).into(), ..*s };
    assert_eq!(of(directive), Status::INVALID_FIELD);
    // Reserved bits, and descriptor formats and directives that are not supported.
    let with = |opcode, cdw12: u32, cdw13: u32| {
        let sqe = Sqe { opcode, cdw12: cdw12.into(), cdw13: cdw13.into(), ..Sqe::read(1, 0, 1) };
        IoCommand::parse(&sqe).err()
    };
    for bit in 0..32 {
        let refused = |reserved: std::ops::Range<u32>| {
            reserved.contains(&bit).then_some(Status::INVALID_FIELD)
        };
        assert_eq!(with(0x05, 1 << bit, 0), refused(16..26), "Compare, bit {bit}");
        assert_eq!(with(0x0c, 1 << bit, 0), refused(16..26), "Verify, bit {bit}");
        assert_eq!(with(0x04, 1 << bit, 0), refused(16..32), "Write Uncorrectable, bit {bit}");
        let copy = refused(8..12).or(refused(16..26));
        assert_eq!(with(0x19, 1 << bit, 0), copy, "Copy, bit {bit}");
        assert_eq!(with(0x19, 0, 1 << bit), refused(16..32), "Copy, directive bit {bit}");
    }
    // A buffer of three dwords, although a descriptor has four; and an empty query.
    let short = |s: &mut Sqe| *s = Sqe { opcode: 0x86, cdw12: 2.into(), cdw13: 1.into(), ..*s };
    assert_eq!(of(short), Status::INVALID_FIELD);
    assert_eq!(of(|s| *s = Sqe { opcode: 0x86, cdw12: 3.into(), ..*s }), Status::INVALID_FIELD);
}

#[test]
fn malformed_admin_entries_get_the_status_that_says_why() {
    let sq = AdminCommand::CreateSq {
        qid: 1,
        entries: 2,
        at: 0x1000,
        cqid: 1,
        priority: QueuePriority::Medium,
    };
    let of = |change: fn(&mut Sqe)| {
        let mut sqe = sq.to_sqe();
        change(&mut sqe);
        AdminCommand::parse(&sqe).unwrap_err()
    };
    assert_eq!(of(|s| s.opcode = 0x7f), Status::INVALID_OPCODE);
    assert_eq!(of(|s| s.cdw10 = 0x1_0000.into()), Status::INVALID_QID);
    assert_eq!(of(|s| s.cdw10 = 1.into()), Status::INVALID_QUEUE_SIZE);
    assert_eq!(of(|s| s.cdw11 = 1.into()), Status::INVALID_CQ);
    assert_eq!(of(|s| s.cdw11 = 0x1_0000.into()), Status::INVALID_FIELD, "not contiguous");
    assert_eq!(of(|s| s.set_prp(0x1008, 0)), Status::PRP_OFFSET_INVALID);
    assert_eq!(of(|s| *s = Sqe { opcode: 0, ..Sqe::default() }), Status::INVALID_QID);
    let odd = |s: &mut Sqe| *s = Sqe { opcode: 2, cdw12: 2.into(), ..Sqe::default() };
    assert_eq!(of(odd), Status::INVALID_FIELD);
    // A reserved erasure, and reserved bits.
    let ses = |s: &mut Sqe| *s = Sqe { opcode: 0x80, cdw10: (3 << 9).into(), ..Sqe::default() };
    assert_eq!(of(ses), Status::INVALID_FIELD);
    for bit in 12..32 {
        let sqe = Sqe { opcode: 0x80, cdw10: (1 << bit).into(), ..Sqe::default() };
        assert_eq!(AdminCommand::parse(&sqe), Err(Status::INVALID_FIELD), "bit {bit}");
    }
    let select = |s: &mut Sqe| *s = Sqe { opcode: 0x0a, cdw10: 0x400.into(), ..Sqe::default() };
    assert_eq!(of(select), Status::INVALID_FIELD);
}

fn addresses(count: u8, word: u64) -> PpaList {
    if count == 1 { PpaList::One(Ppa(word)) } else { PpaList::List { at: word, count } }
}

fn hints() -> impl Strategy<Value = VectorHints> {
    let planes = prop::sample::select(vec![
        PlaneMode::Auto,
        PlaneMode::Single,
        PlaneMode::Dual,
        PlaneMode::Quad,
    ]);
    (planes, any::<bool>(), any::<bool>())
        .prop_map(|(planes, suspend, limited_retry)| VectorHints { planes, suspend, limited_retry })
}

fn io_command() -> impl Strategy<Value = IoCommand> {
    let nlb = || prop_oneof![Just(1), Just(MAX_BLOCKS), 1..=MAX_BLOCKS];
    let count = || prop_oneof![Just(1), 1..=MAX_VECTOR_ADDRESSES];
    let list = || (count(), any::<u64>()).prop_map(|(n, word)| addresses(n, word));
    prop_oneof![
        Just(IoCommand::Flush),
        (any::<u64>(), nlb(), any::<bool>(), any::<bool>()).prop_map(
            |(slba, nlb, fua, limited_retry)| IoCommand::Read { slba, nlb, fua, limited_retry }
        ),
        (any::<u64>(), nlb(), any::<bool>(), any::<bool>()).prop_map(
            |(slba, nlb, fua, limited_retry)| IoCommand::Write { slba, nlb, fua, limited_retry }
        ),
        (any::<u64>(), nlb(), any::<bool>(), any::<bool>()).prop_map(
            |(slba, nlb, deallocate, fua)| IoCommand::WriteZeroes { slba, nlb, deallocate, fua }
        ),
        (any::<u64>(), nlb(), any::<bool>(), any::<bool>()).prop_map(
            |(slba, nlb, fua, limited_retry)| IoCommand::Compare { slba, nlb, fua, limited_retry }
        ),
        (any::<u64>(), nlb(), any::<bool>(), any::<bool>()).prop_map(
            |(slba, nlb, fua, limited_retry)| IoCommand::Verify { slba, nlb, fua, limited_retry }
        ),
        (any::<u64>(), nlb()).prop_map(|(slba, nlb)| IoCommand::WriteUncorrectable { slba, nlb }),
        (any::<u64>(), 1..=MAX_RANGES, any::<bool>(), any::<bool>()).prop_map(
            |(slba, ranges, fua, limited_retry)| IoCommand::Copy {
                slba,
                ranges,
                fua,
                limited_retry
            }
        ),
        (1..=MAX_RANGES, any::<bool>())
            .prop_map(|(ranges, deallocate)| IoCommand::DatasetManagement { ranges, deallocate }),
        (any::<u64>(), 1..=u32::MAX, 1..1u32 << 30).prop_map(|(slba, nlb, max_descriptors)| {
            IoCommand::LbaStatus { slba, nlb, max_descriptors }
        }),
        (list(), hints()).prop_map(|(addresses, hints)| IoCommand::VectorRead { addresses, hints }),
        (list(), hints())
            .prop_map(|(addresses, hints)| IoCommand::VectorWrite { addresses, hints }),
        (list(), hints())
            .prop_map(|(addresses, hints)| IoCommand::VectorReset { addresses, hints }),
        (count(), any::<u64>(), any::<u64>(), hints()).prop_map(|(n, from, to, hints)| {
            IoCommand::VectorCopy { from: addresses(n, from), to: addresses(n, to), hints }
        }),
        (1..=MAX_RANGES, 0..1u64 << 48)
            .prop_map(|(ranges, sequence)| IoCommand::DeviceTrim { ranges, sequence }),
        (0..RuleCommandKind::ALL.len(), any::<[u64; 3]>(), nlb(), 0..=RULE_BUFFER_BYTES_MAX)
            .prop_map(|(kind, [slba, arg0, arg1], nlb, buffer_bytes)| {
                let (kind, _) = RuleCommandKind::ALL[kind];
                let buffer_bytes = if kind.returns_data() { buffer_bytes } else { 0 };
                IoCommand::Rule(RuleCommand { kind, slba, nlb, arg0, arg1, buffer_bytes })
            }),
    ]
}

fn admin_command() -> impl Strategy<Value = AdminCommand> {
    let erase = prop::sample::select(vec![
        SecureErase::None,
        SecureErase::UserData,
        SecureErase::Cryptographic,
    ]);
    let qid = || 1..=u16::MAX;
    let entries = || prop_oneof![Just(2u32), Just(1 << 16), 2..=1u32 << 16];
    let page = || any::<u64>().prop_map(|at| at & !0xfff);
    let priority = prop_oneof![
        Just(QueuePriority::Urgent),
        Just(QueuePriority::High),
        Just(QueuePriority::Medium),
        Just(QueuePriority::Low),
    ];
    let select = prop_oneof![
        Just(FeatureSelect::Current),
        Just(FeatureSelect::Default),
        Just(FeatureSelect::Saved),
        Just(FeatureSelect::Capabilities),
    ];
    prop_oneof![
        qid().prop_map(|qid| AdminCommand::DeleteSq { qid }),
        qid().prop_map(|qid| AdminCommand::DeleteCq { qid }),
        (qid(), entries(), page(), qid(), priority).prop_map(
            |(qid, entries, at, cqid, priority)| {
                AdminCommand::CreateSq { qid, entries, at, cqid, priority }
            }
        ),
        (qid(), entries(), page(), any::<Option<u16>>()).prop_map(|(qid, entries, at, vector)| {
            AdminCommand::CreateCq { qid, entries, at, vector }
        }),
        (any::<u8>(), any::<u32>(), 1..=1u64 << 32, 0..1u64 << 62, any::<bool>()).prop_map(
            |(lid, nsid, dwords, offset, retain)| AdminCommand::GetLogPage {
                lid,
                nsid,
                bytes: dwords * 4,
                offset: offset * 4,
                retain,
            }
        ),
        any::<(u8, u32)>().prop_map(|(cns, nsid)| AdminCommand::Identify { cns, nsid }),
        any::<(u16, u16)>().prop_map(|(sqid, cid)| AdminCommand::Abort { sqid, cid }),
        any::<(u8, bool, u32)>().prop_map(|(fid, save, value)| AdminCommand::SetFeatures {
            fid,
            save,
            value
        }),
        (any::<u8>(), select, any::<u32>()).prop_map(|(fid, select, member)| {
            AdminCommand::GetFeatures { fid, select, member }
        }),
        Just(AdminCommand::AsyncEventRequest),
        (any::<u64>(), any::<u16>(), 1..=1u64 << 32).prop_map(|(slba, nlb, n)| {
            AdminCommand::GetLbaStatus { nsid: 7, slba, nlb, bytes: n * 4 }
        }),
        (any::<u32>(), 0..16u8, 0..32u8, erase).prop_map(
            |(nsid, lba_format, protection, erase)| AdminCommand::FormatNvm {
                nsid,
                lba_format,
                protection,
                erase,
            }
        ),
        (1..5u32, 0..128u32, any::<u32>()).prop_map(|(action, bits, pattern)| {
            let command = SanitizeCommand::from_dwords(action | bits << 3, pattern);
            AdminCommand::Sanitize(command.unwrap())
        }),
        (any::<u32>(), 1..=1u64 << 32)
            .prop_map(|(offset, bytes)| AdminCommand::RuleDownload { offset, bytes }),
        Just(AdminCommand::RuleInstall),
        any::<Option<u8>>().prop_map(|op| AdminCommand::RuleReject { op }),
        (any::<u8>(), 0..3u8, 1..=RULE_TABLE_ENTRIES_MAX).prop_map(|(table, action, entries)| {
            use RuleTableAction::{Add, Remove, Set};
            let action = [Set, Add, Remove][usize::from(action)];
            AdminCommand::RuleTableEdit { table, action, entries }
        }),
        (any::<u8>(), any::<u64>(), 1..=RULE_TABLE_ENTRIES_MAX).prop_map(
            |(table, first, entries)| AdminCommand::RuleTableRead { table, first, entries }
        ),
        any::<u32>().prop_map(|nsid| AdminCommand::Geometry { nsid }),
    ]
}

/// Entries that are mostly known commands with random fields.
fn any_entry() -> impl Strategy<Value = Sqe> {
    let opcode = prop_oneof![
        any::<u8>(),
        0..16u8,
        prop::sample::select(vec![
            0x04, 0x05, 0x0c, 0x19, 0x86, 0x90, 0x91, 0x92, 0x93, 0x95, 0xc1, 0xc8, 0xe2
        ]),
    ];
    (any::<[u64; 8]>(), opcode, any::<bool>()).prop_map(|(words, opcode, plain)| {
        let sqe = Sqe::from_words(words);
        Sqe { opcode, flags: if plain { 0 } else { sqe.flags }, ..sqe }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_entry_makes_parsing_panic(sqe in any_entry()) {
        let _ = format!("{sqe:?}");
        // A parsed command can be encoded, and parsed again with an equal result.
        if let Ok(command) = IoCommand::parse(&sqe) {
            let made = command.to_sqe(sqe.nsid.get());
            prop_assert_eq!(IoCommand::parse(&made), Ok(command));
            prop_assert_eq!(made.opcode, sqe.opcode);
        }
        if let Ok(command) = AdminCommand::parse(&sqe) {
            prop_assert_eq!(AdminCommand::parse(&command.to_sqe()), Ok(command));
        }
    }

    #[test]
    fn io_commands_survive_the_wire(command in io_command(), nsid: u32, cid: u16) {
        let mut sqe = command.to_sqe(nsid);
        sqe.cid = cid.into();
        sqe.set_sgl(SglDescriptor::DataBlock { address: 1 << 40, length: 4096 });
        prop_assert_eq!(IoCommand::parse(&sqe), Ok(command));
        prop_assert_eq!(sqe.nsid.get(), nsid);
    }

    #[test]
    fn admin_commands_survive_the_wire(command in admin_command()) {
        prop_assert_eq!(AdminCommand::parse(&command.to_sqe()), Ok(command));
    }
}
