//! Namespaces of a drive that manages its own flash: the table, the translation of the blocks that
//! commands address, and the admin commands that read and change the table.
//!
//! A namespace has extents of the space that the FTL maps, in units of an allocation granule, so
//! that only capacity decides whether a namespace can be created. A drive with its one original
//! namespace translates nothing ([`NamespaceTable::is_direct`]).

pub(crate) mod identify;
pub(crate) mod layout;
pub(crate) mod management;
pub(crate) mod request;
pub(crate) mod settings;
pub(crate) mod table;
pub(crate) mod translation;

pub(crate) use table::NamespaceTable;
