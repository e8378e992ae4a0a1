use super::*;
use time::Nanos;

use crate::interval::{DoorbellSummary, DoorbellUnknown, LatencySummary, RequestCounts};
use crate::name::ResourceName;
use crate::namespace::{NamespaceAction, NamespaceEntry};
use crate::setting::{LimiterSetting, VictimSetting};

#[test]
fn the_format_is_as_it_is_documented() {
    let open = Message::Open {
        device: ResourceName::new("drive0").unwrap(),
        partition: ResourceName::new("db").unwrap(),
        queues: 3,
    };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let bytes = Packet { serial: 0x0102_0304, message: open }.encode(&mut bytes);
    assert_eq!(&bytes[..16], b"SLSK\x01\0\x03\0\x58\0\0\0\x04\x03\x02\x01");
    assert_eq!((&bytes[16..23], &bytes[48..51], bytes[80]), (&b"drive0\0"[..], &b"db\0"[..], 3));
    assert_eq!(bytes.len(), 88);
    let mut other = bytes.to_vec();
    other[4] = 9;
    assert_eq!(Packet::decode(&other), Err(WireError::Version { found: 9 }));
    let longest = (0..=64).filter_map(body_bytes).max().unwrap();
    assert!(HEADER_BYTES + longest <= MESSAGE_BYTES_MAX);
}

#[test]
fn settings_keep_every_field_and_wrong_ones_are_refused() {
    let device = ResourceName::new("left").unwrap();
    let pid = LimiterSetting::Pid { kp: 1.5, ki: 0.25, kd: -0.0 };
    let changes = [
        SettingChange::ActivePus(7),
        SettingChange::RateLimiter(LimiterSetting::Proportional),
        SettingChange::RateLimiter(pid),
        SettingChange::VictimPolicy(VictimSetting::CostWear),
    ];
    for (key, change) in [1, 2, 2, 3].into_iter().zip(changes) {
        let packet = Packet { serial: 5, message: Message::Set { device, change } };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let bytes = packet.encode(&mut bytes).to_vec();
        assert_eq!((bytes.len(), bytes[6], bytes[48]), (88, 25, key), "as documented");
        assert_eq!(Packet::decode(&bytes), Ok(packet));
        let field = Err(WireError::Field { kind: 25 });
        // The name, the key, bytes above its value, a kind of limiter.
        for (at, value) in [(16, b'/'), (48, 4), (48, 0), (59, 9)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert_eq!(Packet::decode(&other), field, "byte {at} of {change:?}");
        }
        for cut in 0..bytes.len() {
            assert!(Packet::decode(&bytes[..cut]).is_err());
        }
    }
    // Gains that are no numbers.
    for gain in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let change = SettingChange::RateLimiter(LimiterSetting::Pid { kp: 0.0, ki: gain, kd: 0.0 });
        let packet = Packet { serial: 5, message: Message::Set { device, change } };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let refused = Packet::decode(packet.encode(&mut bytes));
        assert_eq!(refused, Err(WireError::Field { kind: 25 }), "{gain}");
    }
    let (shards, active_pus, active_pus_max) = (2, 3, 8);
    let victim_policy = VictimSetting::Greedy;
    let (device, rate_limiter) = (ResourceName::NONE, pid);
    let entry =
        SettingsEntry { device, shards, active_pus, active_pus_max, rate_limiter, victim_policy };
    let message = Message::Entry(ListEntry::Settings(entry));
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let bytes = Packet { serial: 6, message }.encode(&mut bytes).to_vec();
    assert_eq!((bytes.len(), bytes[6], bytes[48], bytes[60]), (96, 26, 2, 1), "as documented");
    for (at, value) in [(60, 0), (60, 5), (64, 3), (68, 1)] {
        let mut other = bytes.clone();
        other[at] = value;
        assert_eq!(Packet::decode(&other), Err(WireError::Field { kind: 26 }), "byte {at}");
    }
}

fn interval() -> Message {
    let latency =
        |p50, p99, max| LatencySummary { p50: Nanos(p50), p99: Nanos(p99), max: Nanos(max) };
    let stats = Box::new(IntervalStats {
        interval: Nanos(1_000),
        uptime: Nanos(2_000),
        requests: RequestCounts { reads: 3, errors: 1, ..Default::default() },
        read_latency: Some(latency(4, 5, 6)),
        queue_depth: 7,
        queue_depth_mean_milli: 7_500,
        lateness: latency(8, 9, 10),
        lateness_machine: latency(0, 6, 7),
        lateness_own: latency(8, 3, 4),
        doorbell_to_fetch: DoorbellSummary::Measured(latency(1, 2, 3)),
        socket_clients: 11,
        ..IntervalStats::default()
    });
    Message::Interval { device: ResourceName::new("drive0").unwrap(), stats }
}

#[test]
fn intervals_keep_every_field_and_other_layouts_are_refused() {
    let packet = Packet { serial: 5, message: interval() };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let bytes = packet.encode(&mut bytes).to_vec();
    assert_eq!(bytes.len(), 336, "as documented");
    assert_eq!(Packet::decode(&bytes), Ok(packet));
    // The layout version; the median of the write latency, whose other fields are absent; and a
    // counter of the FTL, which is absent. Then waits of doorbells with a reason for their absence,
    // and a reason that does not exist.
    let code = 48 + 8 + 30 * 8;
    for (at, value) in
        [(48, 2), (48 + 8 + 11 * 8, 0), (48 + 8 + 16 * 8, 1), (code, 1), (code, 4), (code + 7, 1)]
    {
        let mut other = bytes.clone();
        other[at] = value;
        assert_eq!(Packet::decode(&other), Err(WireError::Field { kind: 24 }), "byte {at}");
    }
    for cut in 0..bytes.len() {
        assert!(Packet::decode(&bytes[..cut]).is_err());
    }
    let reasons = [DoorbellUnknown::NoStamps, DoorbellUnknown::Ahci, DoorbellUnknown::RealDevice];
    for (value, reason) in (1..).zip(reasons) {
        let doorbell_to_fetch = DoorbellSummary::Unknown(reason);
        let stats = Box::new(IntervalStats { doorbell_to_fetch, ..IntervalStats::default() });
        let message = Message::Interval { device: ResourceName::NONE, stats };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let bytes = Packet { serial: 5, message: message.clone() }.encode(&mut bytes).to_vec();
        assert_eq!(bytes[code], value, "as documented");
        assert_eq!(Packet::decode(&bytes).unwrap().message, message);
    }
    let ask = Packet { serial: 6, message: Message::Stats { index: 2 } };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let bytes = ask.encode(&mut bytes);
    assert_eq!((bytes.len(), bytes[6], bytes[16]), (24, 23, 2));
    assert_eq!(Packet::decode(bytes), Ok(ask));
}

#[test]
fn a_fault_is_a_drive_and_a_text() {
    let (device, fault) = (ResourceName::new("d").unwrap(), "die-failure pu=3".to_owned());
    let packet = Packet { serial: 5, message: Message::Fault { device, fault } };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let bytes = packet.encode(&mut bytes).to_vec();
    assert_eq!((bytes.len(), bytes[6], bytes[48]), (288, 27, b'd'), "as documented");
    assert_eq!(Packet::decode(&bytes), Ok(packet));
    let field = Err(WireError::Field { kind: 27 });
    for (at, byte) in [(48, 0xff), (287, 1)] {
        let mut other = bytes.clone();
        other[at] = byte;
        assert_eq!(Packet::decode(&other), field, "byte {at}");
    }
}

/// Encodes a message, after a check that a shorter packet is refused.
fn encoded(message: Message) -> Vec<u8> {
    let packet = Packet { serial: 5, message };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let bytes = packet.encode(&mut bytes).to_vec();
    assert_eq!(Packet::decode(&bytes), Ok(packet));
    for cut in 0..bytes.len() {
        assert!(Packet::decode(&bytes[..cut]).is_err());
    }
    bytes
}

#[test]
fn rules_are_sent_in_parts_and_wrong_ones_are_refused() {
    let device: ResourceName = "d".parse().unwrap();
    let program: Vec<u8> = (0..500).map(|n| n as u8).collect();
    let parts: Vec<ValuePart> =
        [0, 240, 480, 500, 900].map(|at| ValuePart::of(&program, at)).into();
    assert_eq!(
        parts.iter().map(|part| part.bytes().len()).collect::<Vec<_>>(),
        [240, 240, 20, 0, 0]
    );
    assert_eq!(parts[1].bytes(), &program[240..480]);
    for part in parts {
        for message in [
            Message::UploadRules { device, offset: 240, part: part.clone() },
            Message::Rules { total: 500, part: part.clone() },
        ] {
            let mut bytes = encoded(message.clone());
            assert_eq!(Packet::decode(&bytes).unwrap().message, message);
            // More bytes than a part has, and bytes behind it.
            let len = bytes.len();
            let kind = u16::from_le_bytes([bytes[6], bytes[7]]);
            if part.bytes().len() < ValuePart::LEN_MAX {
                bytes[len - 1] = 1;
                assert_eq!(Packet::decode(&bytes), Err(WireError::Field { kind }));
            }
            bytes[len - 248..len - 244].copy_from_slice(&241_u32.to_le_bytes());
            assert_eq!(Packet::decode(&bytes), Err(WireError::Field { kind }));
        }
    }
    for message in [
        Message::InstallRules { device },
        Message::RejectMisses { device, op: "write".parse().unwrap() },
        Message::RejectMisses { device, op: ResourceName::default() },
        Message::ReadRules { device, offset: 7 },
    ] {
        assert_eq!(Packet::decode(&encoded(message.clone())).unwrap().message, message);
    }
}

#[test]
fn changes_and_values_of_tables_are_whole() {
    let (device, table) = ("d".parse().unwrap(), 200);
    let entries = |bytes: usize| ValuePart::of(&vec![7; bytes], 0);
    let edit = |action, bytes| {
        let entries = entries(bytes);
        Message::EditRuleTable { device, table, action, entries }
    };
    let values = |bytes| Message::RuleTableValues { values: entries(bytes) };
    for message in [
        edit(RuleTableAction::Set, 0),
        edit(RuleTableAction::Add, 16),
        edit(RuleTableAction::Remove, 240),
        Message::ReadRuleTable { device, table, first: u64::MAX, count: u32::MAX },
        values(0),
        values(240),
    ] {
        assert_eq!(Packet::decode(&encoded(message.clone())).unwrap().message, message);
    }
    // A part that ends within an entry or a value.
    for (message, kind) in [(edit(RuleTableAction::Set, 16), 36), (values(16), 38)] {
        let mut bytes = encoded(message);
        let at = bytes.len() - ValuePart::WIRE_BYTES;
        bytes[at] = 15;
        bytes[at + 8 + 15] = 0;
        assert_eq!(Packet::decode(&bytes), Err(WireError::Field { kind }));
    }
    // A table above 255, and an unknown action.
    let bytes = encoded(edit(RuleTableAction::Remove, 16));
    let at = bytes.len() - ValuePart::WIRE_BYTES;
    for byte in [at - 7, at - 4] {
        let mut other = bytes.clone();
        other[byte] = 3;
        assert_eq!(Packet::decode(&other), Err(WireError::Field { kind: 36 }));
    }
}

#[test]
fn namespaces_keep_every_field_and_wrong_ones_are_refused() {
    let device = ResourceName::new("d").unwrap();
    let refused = |bytes: &[u8], at: usize, value: u8| {
        let mut other = bytes.to_vec();
        other[at] = value;
        let field = Err(WireError::Field { kind: u16::from(bytes[6]) });
        assert_eq!(Packet::decode(&other), field, "byte {at}");
    };
    let actions = [
        (NamespaceAction::Create { bytes: Some(0x0102) }, 1, 0, 0x0102),
        (NamespaceAction::Create { bytes: None }, 1, 0, u64::MAX),
        (NamespaceAction::Delete(Some(2)), 2, 2, 0),
        (NamespaceAction::Delete(None), 2, u32::MAX, 0),
        (NamespaceAction::Attach(3), 3, 3, 0),
        (NamespaceAction::Detach(4), 4, 4, 0),
    ];
    for (action, code, nsid, size) in actions {
        let bytes = encoded(Message::ChangeNamespaces { device, action });
        assert_eq!((bytes.len(), bytes[6], bytes[48]), (64, 28, code), "as documented");
        assert_eq!(bytes[52..56], u32::to_le_bytes(nsid));
        assert_eq!(bytes[56..], u64::to_le_bytes(size));
        refused(&bytes, 48, 0);
        refused(&bytes, 48, 5);
        refused(&bytes, 16, b'/');
        // A size of another action, an identifier of a namespace that does not exist yet.
        refused(&bytes, if code == 1 { 52 } else { 56 }, 1);
    }
    let bytes = encoded(Message::ListNamespaces { device, index: 7 });
    assert_eq!((bytes.len(), bytes[6], bytes[48]), (56, 29, 7), "as documented");
    refused(&bytes, 52, 1);
    let entry = NamespaceEntry {
        nsid: 2,
        is_attached: true,
        block_bytes: 512,
        blocks: 3,
        used_blocks: 4,
        allocated_bytes: 5,
        nguid: [6; 16],
    };
    let bytes = encoded(Message::Namespace(entry));
    let numbers = [16, 20, 24, 32, 40, 48, 56].map(|at| bytes[at]);
    assert_eq!((bytes.len(), bytes[6], numbers), (72, 30, [2, 1, 0, 3, 4, 5, 6]), "as documented");
    for (at, value) in [(20, 2), (21, 1), (28, 1)] {
        refused(&bytes, at, value);
    }
}
