//! The metadata of a volume in memory: inodes, names and extents.

pub(crate) mod extents;
pub(crate) mod inode;
pub(crate) mod name;
pub(crate) mod tree;
