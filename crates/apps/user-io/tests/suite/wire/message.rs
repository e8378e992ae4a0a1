//! Random messages, and bytes that may not be messages (`docs/format/socket.md`).

use share_proto::{
    AclRule, ClientEntry, ClientProcess, ClientTraffic, Code, Grant, KickTarget, LimiterSetting,
    ListEntry, MESSAGE_BYTES_MAX, Message, NamespaceAction, NamespaceEntry, Packet, PartitionSpan,
    Principal, ProtocolError, ResourceName, SessionGrant, SettingChange, SettingsEntry,
    VictimSetting,
};
use testkit::choices::Choices;

fn name(rng: &mut Choices) -> ResourceName {
    match rng.below(4) {
        0 => ResourceName::NONE,
        n => ResourceName::new(&"drive-0/x".replace('/', "_").repeat(n as usize)).unwrap(),
    }
}

fn principal(rng: &mut Choices) -> Principal {
    match rng.below(3) {
        0 => Principal::Uid(rng.next_u64() as u32),
        1 => Principal::Gid(rng.next_u64() as u32),
        _ => Principal::Anyone,
    }
}

fn grant(rng: &mut Choices) -> Grant {
    let rate = |rng: &mut Choices| rng.chance(0.5).then(|| 1 + rng.below(1 << 40));
    Grant {
        write: rng.chance(0.5),
        queues: rng.next_u64() as u16,
        depth: rng.next_u64() as u16,
        iops: rate(rng),
        bytes_per_sec: rate(rng),
    }
}

fn span(rng: &mut Choices) -> PartitionSpan {
    match rng.below(2) {
        0 => PartitionSpan::Sectors { first: rng.next_u64(), count: rng.next_u64() },
        _ => {
            let (first, count) = (rng.next_u64() as u32, rng.next_u64() as u32);
            PartitionSpan::ParallelUnits { first, count }
        }
    }
}

fn rule(rng: &mut Choices) -> AclRule {
    AclRule {
        principal: principal(rng),
        device: name(rng),
        partition: name(rng),
        grant: grant(rng),
    }
}

fn protocol_error(rng: &mut Choices) -> ProtocolError {
    let code = Code::ALL[rng.below(Code::ALL.len() as u64) as usize];
    ProtocolError::new(code, "w\u{f6}rter ".repeat(rng.below(27) as usize))
}

fn limiter(rng: &mut Choices) -> LimiterSetting {
    let gain = |rng: &mut Choices| (rng.next_u64() as i64 as f64) / 3.0;
    match rng.below(2) {
        0 => LimiterSetting::Proportional,
        _ => LimiterSetting::Pid { kp: gain(rng), ki: gain(rng), kd: -gain(rng) },
    }
}

fn victim_policy(rng: &mut Choices) -> VictimSetting {
    use VictimSetting::{CostBenefit, CostWear, Fifo, Greedy};
    [Greedy, CostBenefit, Fifo, CostWear][rng.below(4) as usize]
}

fn setting_change(rng: &mut Choices) -> SettingChange {
    match rng.below(3) {
        0 => SettingChange::ActivePus(rng.next_u64() as u32),
        1 => SettingChange::RateLimiter(limiter(rng)),
        _ => SettingChange::VictimPolicy(victim_policy(rng)),
    }
}

fn namespace_action(rng: &mut Choices) -> NamespaceAction {
    let nsid = rng.below(u64::from(u32::MAX)) as u32;
    match rng.below(4) {
        0 => NamespaceAction::Create { bytes: rng.chance(0.5).then(|| rng.below(1 << 60)) },
        1 => NamespaceAction::Delete(rng.chance(0.5).then_some(nsid)),
        2 => NamespaceAction::Attach(nsid),
        _ => NamespaceAction::Detach(nsid),
    }
}

/// Returns a random message.
pub fn message(rng: &mut Choices) -> Message {
    let word = |rng: &mut Choices| rng.next_u64() as u32;
    match rng.below(21) {
        0 => Message::Hello,
        18 => Message::ChangeNamespaces { device: name(rng), action: namespace_action(rng) },
        19 => Message::ListNamespaces { device: name(rng), index: word(rng) },
        20 => Message::Namespace(NamespaceEntry {
            nsid: word(rng),
            is_attached: rng.chance(0.5),
            block_bytes: word(rng),
            blocks: rng.next_u64(),
            used_blocks: rng.next_u64(),
            allocated_bytes: rng.next_u64(),
            nguid: [rng.next_u64() as u8; 16],
        }),
        1 => Message::Welcome { admin: rng.chance(0.5), uid: word(rng), pid: word(rng) },
        2 => {
            let (device, partition) = (name(rng), name(rng));
            Message::Open { device, partition, queues: rng.next_u64() as u16 }
        }
        3 => Message::Granted(SessionGrant {
            client: rng.next_u64(),
            device: name(rng),
            partition: name(rng),
            span: span(rng),
            grant: grant(rng),
            regions: word(rng),
            bytes: rng.next_u64(),
            port: rng.next_u64().to_le_bytes(),
        }),
        4 => Message::Register { slot: word(rng), bytes: rng.next_u64() },
        5 => Message::Done { count: rng.next_u64() },
        6 => Message::Refused(protocol_error(rng)),
        7 => Message::Disconnect(protocol_error(rng)),
        8 => Message::Allow(rule(rng)),
        9 => Message::Deny { subject: principal(rng), device: name(rng), partition: name(rng) },
        10 => Message::Kick(match rng.below(2) {
            0 => KickTarget::Client(rng.next_u64()),
            _ => KickTarget::Subject(principal(rng)),
        }),
        11 => Message::List { index: word(rng) },
        12 => Message::Entry(ListEntry::Partition {
            device: name(rng),
            name: name(rng),
            span: span(rng),
            in_use: rng.chance(0.5),
            clients: word(rng),
        }),
        13 => Message::Entry(ListEntry::Rule(rule(rng))),
        14 => Message::Set { device: name(rng), change: setting_change(rng) },
        15 => Message::Entry(ListEntry::Settings(SettingsEntry {
            device: name(rng),
            shards: word(rng),
            active_pus: word(rng),
            active_pus_max: word(rng),
            rate_limiter: limiter(rng),
            victim_policy: victim_policy(rng),
        })),
        16 => {
            let fault = format!("slow-die pu={} factor=2", word(rng));
            Message::Fault { device: name(rng), fault }
        }
        _ => Message::Entry(ListEntry::Client(ClientEntry {
            client: rng.next_u64(),
            process: ClientProcess { uid: word(rng), gid: word(rng), pid: word(rng) },
            device: name(rng),
            partition: name(rng),
            queues_granted: rng.next_u64() as u16,
            queues: rng.next_u64() as u16,
            traffic: ClientTraffic {
                commands: rng.next_u64(),
                bytes: rng.next_u64(),
                refused: rng.next_u64(),
                throttled: rng.next_u64(),
                outstanding: word(rng),
                stalled: word(rng),
            },
            registered: rng.next_u64(),
            seconds: rng.next_u64(),
        })),
    }
}

/// Checks that bytes are refused, or decode to a message with exactly this encoding. Returns
/// whether they decode.
pub fn decodes(bytes: &[u8]) -> bool {
    let Ok(packet) = Packet::decode(bytes) else { return false };
    let mut again = [0; MESSAGE_BYTES_MAX];
    assert_eq!(packet.encode(&mut again), bytes, "{packet:?}");
    true
}

/// Checks that a message survives encoding, and judges a damaged copy by [`decodes`]. Returns
/// whether the damaged copy decodes.
pub fn survives(rng: &mut Choices) -> bool {
    let packet = Packet { serial: rng.next_u64() as u32, message: message(rng) };
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let encoded = packet.encode(&mut bytes).to_vec();
    assert_eq!(Packet::decode(&encoded).as_ref(), Ok(&packet));
    let mut damaged = encoded.clone();
    match rng.below(4) {
        0 => damaged.truncate(rng.below(encoded.len() as u64) as usize),
        1 => damaged.extend((0..1 + rng.below(200)).map(|_| 0)),
        2 => damaged.iter_mut().for_each(|b| *b = rng.next_u64() as u8),
        _ => {
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(damaged.len() as u64) as usize;
                damaged[at] ^= 1 << rng.below(8);
            }
        }
    }
    decodes(&damaged)
}

/// Uses a fuzzer's bytes as input and as choices.
pub fn fuzz(bytes: &[u8]) {
    decodes(bytes);
    survives(&mut Choices::of(bytes));
}
