//! Sectors with names: writes, reads and frees of the host, and moves by garbage collection. The state is in
//! [`named`](crate::mapping::named).
//!
//! # The path of a write
//!
//! [`Ftl::write_named`](crate::Ftl::write_named) queues it with the host's tag. It is admitted into the ring of
//! the host as any write, with a barrier behind it. There is no name, and no read of the sector, before the
//! program of its unit has succeeded; then the sector is valid. Until it is readable from the media, reads get
//! it from its slot.
//!
//! # The path of a move
//!
//! Garbage collection reads the valid sectors of a victim into its own ring, with their tags. When the copy is
//! on the media and the old sector is still valid, the copy becomes valid in its place, and the owner of the
//! names is told both names. The erase gate of the old line counts the sector as in flight until the owner has
//! confirmed the move.
//!
//! # Durability of a free
//!
//! A free is one bit in memory. After a power cut, freed sectors of lines that were not erased are valid
//! again. The owner of the names builds its index from the tags then
//! ([`Ftl::take_found_names`](crate::Ftl::take_found_names)), and frees what it does not want. So a tag must tell
//! the versions of an object apart.

mod moves;
mod read;
mod write;
