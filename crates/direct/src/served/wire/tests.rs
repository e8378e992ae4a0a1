use rng::Rng;

use super::*;
use crate::served::name::Name;

fn name(rng: &mut Rng) -> Name {
    match rng.below(4) {
        0 => Name::NONE,
        n => Name::new(&"drive-0/x".replace('/', "_").repeat(n as usize)).unwrap(),
    }
}

fn subject(rng: &mut Rng) -> Subject {
    match rng.below(3) {
        0 => Subject::Uid(rng.next_u64() as u32),
        1 => Subject::Gid(rng.next_u64() as u32),
        _ => Subject::Anyone,
    }
}

fn grant(rng: &mut Rng) -> Grant {
    let rate = |rng: &mut Rng| rng.chance(0.5).then(|| 1 + rng.below(1 << 40));
    Grant {
        write: rng.chance(0.5),
        queues: rng.next_u64() as u16,
        depth: rng.next_u64() as u16,
        iops: rate(rng),
        bytes_per_sec: rate(rng),
    }
}

fn span(rng: &mut Rng) -> Span {
    match rng.below(2) {
        0 => Span::Sectors { first: rng.next_u64(), count: rng.next_u64() },
        _ => {
            let (first, count) = (rng.next_u64() as u32, rng.next_u64() as u32);
            Span::ParallelUnits { first, count }
        }
    }
}

fn rule(rng: &mut Rng) -> Rule {
    Rule { subject: subject(rng), device: name(rng), partition: name(rng), grant: grant(rng) }
}

fn refusal(rng: &mut Rng) -> Refusal {
    let code = Code::ALL[rng.below(Code::ALL.len() as u64) as usize];
    Refusal::new(code, "w\u{f6}rter ".repeat(rng.below(27) as usize))
}

/// Any message.
fn message(rng: &mut Rng) -> Message {
    let word = |rng: &mut Rng| rng.next_u64() as u32;
    match rng.below(15) {
        0 => Message::Hello,
        1 => Message::Welcome { admin: rng.chance(0.5), uid: word(rng), pid: word(rng) },
        2 => {
            let (device, partition) = (name(rng), name(rng));
            Message::Open { device, partition, queues: rng.next_u64() as u16 }
        }
        3 => Message::Granted(Granted {
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
        6 => Message::Refused(refusal(rng)),
        7 => Message::Ending(refusal(rng)),
        8 => Message::Allow(rule(rng)),
        9 => Message::Deny { subject: subject(rng), device: name(rng), partition: name(rng) },
        10 => Message::Kick(match rng.below(2) {
            0 => Whom::Client(rng.next_u64()),
            _ => Whom::Subject(subject(rng)),
        }),
        11 => Message::List { index: word(rng) },
        12 => Message::Entry(Entry::Partition {
            device: name(rng),
            name: name(rng),
            span: span(rng),
            taken: rng.chance(0.5),
            clients: word(rng),
        }),
        13 => Message::Entry(Entry::Rule(rule(rng))),
        _ => Message::Entry(Entry::Client(ClientEntry {
            client: rng.next_u64(),
            uid: word(rng),
            gid: word(rng),
            pid: word(rng),
            device: name(rng),
            partition: name(rng),
            queues_granted: rng.next_u64() as u16,
            queues: rng.next_u64() as u16,
            commands: rng.next_u64(),
            bytes: rng.next_u64(),
            refused: rng.next_u64(),
            held: rng.next_u64(),
            outstanding: word(rng),
            stalled: word(rng),
            registered: rng.next_u64(),
            seconds: rng.next_u64(),
        })),
    }
}

/// What is encoded is decoded to the same; what is damaged is refused, or is another message that is
/// encoded to just these bytes: there is one way to say a thing.
fn fuzz(rounds: u64) {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let mut rng = Rng::new(seed);
    let (mut refused, mut others) = (0, 0);
    for round in 0..rounds {
        let packet = Packet { serial: rng.next_u64() as u32, message: message(&mut rng) };
        let mut bytes = [0; MAX_BYTES];
        let encoded = packet.encode(&mut bytes).to_vec();
        let back = Packet::decode(&encoded);
        assert_eq!(back.as_ref(), Ok(&packet), "SLUICE_SEED={seed}, round {round}");
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
        match Packet::decode(&damaged) {
            Err(_) => refused += 1,
            Ok(other) => {
                others += 1;
                let mut bytes = [0; MAX_BYTES];
                let again = other.encode(&mut bytes);
                assert_eq!(again, damaged, "SLUICE_SEED={seed}, round {round}: {other:?}");
            }
        }
    }
    assert!(refused > rounds / 4 && others > rounds / 20, "{refused} refused, {others} others");
}

#[test]
fn messages_survive_the_wire_and_damage_does_not() {
    fuzz(20_000);
}

#[test]
#[ignore = "long: the fuzz target of the socket's codec"]
fn fuzz_the_socket_codec() {
    fuzz(20_000_000);
}

#[test]
fn the_format_is_as_it_is_documented() {
    let open = Message::Open {
        device: Name::new("drive0").unwrap(),
        partition: Name::new("db").unwrap(),
        queues: 3,
    };
    let mut bytes = [0; MAX_BYTES];
    let bytes = Packet { serial: 0x0102_0304, message: open }.encode(&mut bytes);
    assert_eq!(&bytes[..16], b"SLSK\x01\0\x03\0\x58\0\0\0\x04\x03\x02\x01");
    assert_eq!((&bytes[16..23], &bytes[48..51], bytes[80]), (&b"drive0\0"[..], &b"db\0"[..], 3));
    assert_eq!(bytes.len(), 88);
    let mut other = bytes.to_vec();
    other[4] = 9;
    assert_eq!(Packet::decode(&other), Err(WireError::Version { found: 9 }));
    let longest = (0..=64).filter_map(body_bytes).max().unwrap();
    assert!(HEADER_BYTES + longest <= MAX_BYTES);
}
