use super::*;
use crate::served::name::Name;

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
