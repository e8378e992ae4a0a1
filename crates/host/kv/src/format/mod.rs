//! Encodings: keys, records, the out-of-band bytes of sectors, and tags of commands.

pub(crate) mod command_tag;
pub(crate) mod key;
pub(crate) mod oob;
pub(crate) mod record;
