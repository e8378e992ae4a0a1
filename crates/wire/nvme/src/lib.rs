//! NVMe data structures and commands, as encoded on the wire. No I/O, and no allocation on the hot
//! path.
//!
//! An entry of a queue is an [`Sqe`] or a [`Cqe`]. [`IoCommand`] and [`AdminCommand`] are the typed
//! commands parsed from entries. The other modules define identify data, log pages, features,
//! registers, and the address formats of open-channel drives.
//!
//! # References
//!
//! The bibliography (`docs/bibliography.md`) resolves the citations. NVMe 1.4 contains the NVM
//! command set. The Open-Channel SSD specification 2.0 succeeds the interface of [LightNVM17 §3].
//! `docs/format/ppa.md` specifies the vendor-specific parts.

#![forbid(unsafe_code)]

mod admin_command;
mod chunk;
mod chunk_notification;
mod cqe;
pub mod feature;
mod geometry;
mod geometry_page;
mod identify;
mod io_command;
pub mod log_page;
mod metadata;
pub mod opcode;
mod ppa;
mod range;
pub mod register;
mod sqe;
mod status;
mod vector_hints;
mod vendor_extensions;
mod wire;

pub use admin_command::{AdminCommand, FeatureSelect, QueuePriority};
pub use chunk::{ChunkDescriptor, ChunkState};
pub use chunk_notification::{
    AsyncEvent, ChunkNotification, ChunkNotificationKind, ChunkNotificationScope,
};
pub use cqe::Cqe;
pub use geometry::{Address, Geometry, GeometryError};
pub use geometry_page::{GeometryPage, MediaTiming};
pub use identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceList, PowerState,
    cns,
};
pub use io_command::{IoCommand, MAX_BLOCKS, MAX_RANGES, MAX_VECTOR_ADDRESSES, PpaList};
pub use log_page::{DeviceL2pLog, ErrorEntry, FirmwareLog, HealthLog};
pub use metadata::{MetadataFormat, MetadataTransfer, ProtectionType};
pub use ppa::{InvalidPpa, Ppa, PpaFormat};
pub use range::{DsmRange, LbaStatusDescriptor};
pub use register::{Cap, Cc, CmbLocation, CmbSize, Csts};
pub use sqe::{DataPointer, SglDescriptor, Sqe};
pub use status::{Status, StatusType};
pub use vector_hints::{PlaneMode, VectorHints};
pub use vendor_extensions::VendorExtensions;
