//! The on-media format (`docs/format/volume.md`): layout, superblock, journal, records and snapshots.

pub(crate) mod journal;
pub(crate) mod layout;
pub(crate) mod record;
pub(crate) mod snapshot;
pub(crate) mod superblock;
