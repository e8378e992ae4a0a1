//! [`TargetEntry`]: an entry of the partition table; [`NewTarget`]: the specification of a new target.
//!
//! A target is a share of a drive: parallel units, all or some of their chunks, and the kind of
//! interface that it exposes (the partition manager of [LightNVM17 §4.1]).

use std::fmt;
use std::str::FromStr;

use collections::{PutBytes, Reader};

use crate::table::bytes::{PutTable, ReadTable};
use crate::{ChunkRate, PuSet, QuotaLimits};

/// Maximum length of a name in bytes.
pub const NAME_BYTES_MAX: usize = 32;

/// Id of a target on its drive, from 1; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u32);

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A random identifier that distinguishes a recreated target from an earlier one with the same
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub u128);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let (a, b, c) = (&hex[..8], &hex[8..12], &hex[12..16]);
        write!(f, "{a}-{b}-{c}-{}-{}", &hex[16..20], &hex[20..])
    }
}

/// The interface that a target exposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetKind {
    /// A block device with an FTL on the host [LightNVM17 §4.2].
    Pblk,
    /// A block device that maps round robin over its parallel units.
    Rrpc,
    /// A key-value store.
    Kv,
    /// Physical addressing by the application.
    Ppa,
}

impl TargetKind {
    const ALL: [TargetKind; 4] =
        [TargetKind::Pblk, TargetKind::Rrpc, TargetKind::Kv, TargetKind::Ppa];

    /// Returns the name used on the command line and in scenarios.
    pub fn as_str(self) -> &'static str {
        match self {
            TargetKind::Pblk => "pblk",
            TargetKind::Rrpc => "rrpc",
            TargetKind::Kv => "kv",
            TargetKind::Ppa => "ppa",
        }
    }

    fn code(self) -> u8 {
        self as u8 + 1
    }

    fn from_code(code: u8) -> Option<TargetKind> {
        TargetKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns whether the target is a block device, which has options such as over-provisioning.
    pub fn is_block(self) -> bool {
        matches!(self, TargetKind::Pblk | TargetKind::Rrpc)
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that is not a target kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of target: there are pblk, rrpc, kv and ppa")]
pub struct ParseTargetKindError(pub String);

impl FromStr for TargetKind {
    type Err = ParseTargetKindError;

    fn from_str(text: &str) -> Result<TargetKind, ParseTargetKindError> {
        let found = TargetKind::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| ParseTargetKindError(text.into()))
    }
}

/// Whether a target owns its parallel units exclusively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Owns every good chunk of its units.
    Exclusive,
    /// Acquires chunks one by one; other targets may do so on the same units.
    Shared,
}

/// Options given when the target was created; `None` leaves the choice to the target. They
/// determine the data layout and must not change later.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TargetOptions {
    /// Spare space: physical over logical sectors, minus 1 (block devices).
    pub over_provisioning: Option<f64>,
    /// Parallel units written at the same time; 0 for all (block devices).
    pub active_pus: Option<u32>,
    /// Whether relocated data is written to separate lines (block devices).
    pub hot_cold: Option<bool>,
}

impl TargetOptions {
    /// Returns the names of the options that are given.
    pub fn given_names(&self) -> impl Iterator<Item = &'static str> {
        let op = self.over_provisioning.map(|_| "over-provisioning");
        let active = self.active_pus.map(|_| "active parallel units");
        let hot_cold = self.hot_cold.map(|_| "separation of hot and cold data");
        op.into_iter().chain(active).chain(hot_cold)
    }
}

impl NewTarget {
    /// Returns whether a target keeps every granted chunk between two opens, written or not. This
    /// applies to exclusive targets, and to those that allocate all their chunks on first open
    /// ([`MediaManager::allocate_all`](crate::MediaManager::allocate_all)).
    pub fn has_fixed_chunks(&self) -> bool {
        self.sharing == Sharing::Exclusive || self.kind != TargetKind::Ppa
    }
}

/// The specification of a new target.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTarget {
    /// Name on the drive: 1 to [`NAME_BYTES_MAX`] ASCII letters, digits, `-`, `_` and `.`, the
    /// first a letter or digit.
    pub name: String,
    /// Interface that it exposes.
    pub kind: TargetKind,
    /// Parallel units.
    pub pus: PuSet,
    /// Whether it owns its units exclusively.
    pub sharing: Sharing,
    /// Options.
    pub options: TargetOptions,
    /// Limits on its chunks, if it shares its units.
    pub limits: QuotaLimits,
}

/// An entry of the partition table.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetEntry {
    /// Id.
    pub id: TargetId,
    /// Identifier.
    pub uid: Uid,
    /// Specification.
    pub spec: NewTarget,
    /// The table's sequence number when the target was created; later targets have higher ones.
    pub created_at: u64,
}

/// Returns whether a text is a valid target name.
pub fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

const SHARED: u8 = 1 << 0;

/// Tags of options and limits, which are encoded as pairs of tag and value; absent ones take no
/// space.
mod tag {
    pub(super) const OVER_PROVISIONING: u8 = 1;
    pub(super) const ACTIVE_PUS: u8 = 2;
    pub(super) const HOT_COLD: u8 = 3;
    pub(super) const MAX_CHUNKS: u8 = 16;
    pub(super) const RATE: u8 = 17;
}

/// Writes pairs of tag and value, by ascending tag.
fn put_pairs(w: &mut Vec<u8>, pairs: &[(u8, u64)]) {
    w.put_u8(pairs.len() as u8);
    for (tag, value) in pairs {
        w.put_u8(*tag);
        w.put_varint(*value);
    }
}

/// Reads pairs of tag and value; `None` if their tags do not ascend.
fn read_pairs(r: &mut Reader<'_>) -> Option<Vec<(u8, u64)>> {
    let mut pairs: Vec<(u8, u64)> = Vec::new();
    for _ in 0..r.u8()? {
        let (tag, value) = (r.u8()?, r.varint()?);
        if pairs.last().is_some_and(|(before, _)| tag <= *before) {
            return None;
        }
        pairs.push((tag, value));
    }
    Some(pairs)
}

impl QuotaLimits {
    /// Returns the limits that are set, as pairs of tag and value.
    fn pairs(&self) -> impl Iterator<Item = (u8, u64)> {
        let rate = self.rate.map(|r| {
            (tag::RATE, u64::from(r.millichunks_per_sec()) << 32 | u64::from(r.burst_chunks()))
        });
        self.max_chunks.map(|n| (tag::MAX_CHUNKS, n.into())).into_iter().chain(rate)
    }

    /// Sets the limit of a pair; `None` if there is no such limit, or the value is invalid.
    fn read_pair(&mut self, tag: u8, value: u64) -> Option<()> {
        match tag {
            tag::MAX_CHUNKS => self.max_chunks = Some(u32::try_from(value).ok()?),
            tag::RATE => self.rate = Some(ChunkRate::new((value >> 32) as u32, value as u32)?),
            _ => return None,
        }
        Some(())
    }

    pub(super) fn encode(&self, w: &mut Vec<u8>) {
        put_pairs(w, &self.pairs().collect::<Vec<_>>());
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Option<QuotaLimits> {
        let mut limits = QuotaLimits::default();
        for (tag, value) in read_pairs(r)? {
            limits.read_pair(tag, value)?;
        }
        Some(limits)
    }
}

impl TargetEntry {
    /// Returns the maximum size of an entry in bytes, on a drive with `pus` parallel units.
    pub(super) fn bytes_max(pus: u32) -> u64 {
        // Id, uid, name, kind, flags, count and five pairs; a run of units covers at least two
        // units.
        (5 + 16 + 1 + NAME_BYTES_MAX as u64 + 1 + 1 + 10 + 1 + 5 * 11)
            + 3
            + 6 * u64::from(pus.div_ceil(2))
    }

    pub(super) fn encode(&self, w: &mut Vec<u8>) {
        let NewTarget { name, kind, pus, sharing, options, limits } = &self.spec;
        w.put_varint(self.id.0.into());
        w.put_u128(self.uid.0);
        w.put_text(name);
        w.put_u8(kind.code());
        w.put_u8(if *sharing == Sharing::Shared { SHARED } else { 0 });
        w.put_varint(self.created_at);
        w.put_pus(pus);
        let mut pairs: Vec<(u8, u64)> = Vec::new();
        pairs.extend(options.over_provisioning.map(|op| (tag::OVER_PROVISIONING, op.to_bits())));
        pairs.extend(options.active_pus.map(|n| (tag::ACTIVE_PUS, n.into())));
        pairs.extend(options.hot_cold.map(|yes| (tag::HOT_COLD, yes.into())));
        pairs.extend(limits.pairs());
        put_pairs(w, &pairs);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Option<TargetEntry> {
        let id = TargetId(r.varint_u32().filter(|id| *id > 0)?);
        let uid = Uid(r.u128()?);
        let name = r.text(NAME_BYTES_MAX).filter(|name| is_name(name))?.to_owned();
        let kind = TargetKind::from_code(r.u8()?)?;
        let sharing = match r.u8()? {
            0 => Sharing::Exclusive,
            SHARED => Sharing::Shared,
            _ => return None,
        };
        let created_at = r.varint()?;
        let pus = r.pus().filter(|pus| !pus.is_empty())?;
        let (mut options, mut limits) = (TargetOptions::default(), QuotaLimits::default());
        for (tag, value) in read_pairs(r)? {
            match tag {
                tag::OVER_PROVISIONING => options.over_provisioning = Some(f64::from_bits(value)),
                tag::ACTIVE_PUS => options.active_pus = Some(u32::try_from(value).ok()?),
                tag::HOT_COLD if value < 2 => options.hot_cold = Some(value == 1),
                _ => limits.read_pair(tag, value)?,
            }
        }
        let spec = NewTarget { name, kind, pus, sharing, options, limits };
        Some(TargetEntry { id, uid, spec, created_at })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::PuId;

    pub(in crate::table) fn full() -> TargetEntry {
        TargetEntry {
            id: TargetId(u32::MAX),
            uid: Uid(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
            spec: NewTarget {
                name: "a".repeat(NAME_BYTES_MAX),
                kind: TargetKind::Ppa,
                pus: (0..64).map(|i| PuId(2 * i)).collect(),
                sharing: Sharing::Shared,
                options: TargetOptions {
                    over_provisioning: Some(0.11),
                    active_pus: Some(u32::MAX),
                    hot_cold: Some(true),
                },
                limits: QuotaLimits {
                    max_chunks: Some(u32::MAX),
                    rate: ChunkRate::new(u32::MAX, u32::MAX),
                },
            },
            created_at: u64::MAX,
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_never_larger_than_announced() {
        let spare = TargetEntry {
            id: TargetId(1),
            spec: NewTarget {
                sharing: Sharing::Exclusive,
                kind: TargetKind::Pblk,
                name: "x".into(),
                pus: PuSet::range(PuId(0), PuId(4)),
                options: TargetOptions::default(),
                limits: QuotaLimits::default(),
            },
            ..full()
        };
        for target in [full(), spare] {
            let mut w = Vec::new();
            target.encode(&mut w);
            assert!(w.len() as u64 <= TargetEntry::bytes_max(128), "{} bytes", w.len());
            let mut r = Reader::new(&w);
            assert_eq!(TargetEntry::decode(&mut r), Some(target));
            assert!(r.is_at_end());
            for end in 0..w.len() {
                assert_eq!(TargetEntry::decode(&mut Reader::new(&w[..end])), None);
            }
        }
    }

    #[test]
    fn names_kinds_and_identifiers() {
        for good in ["a", "db-1", "x.y_z", "0"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-a", ".", "a b", "ä", "a/b", &"a".repeat(33)] {
            assert!(!is_name(bad), "{bad}");
        }
        for kind in TargetKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
            assert_eq!(TargetKind::from_code(kind.code()), Some(kind));
        }
        assert!("ftl".parse::<TargetKind>().unwrap_err().to_string().contains("pblk, rrpc"));
        assert_eq!(full().uid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
