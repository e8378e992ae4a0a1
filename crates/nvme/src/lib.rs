//! NVMe as it is on the wire. No I/O, and no allocation on the hot path.
//!
//! Specifications cited: *NVMe* is the NVM Express Base Specification 1.4 (with the NVM command
//! set, which that revision contains); *OC* is the Open-Channel Solid State Drives Specification,
//! revision 2.0 (January 2018), the successor of the interface in section 3 of the LightNVM paper.
//!
//! | file | noun |
//! |---|---|
//! | [`sqe`](Sqe) | the 64-byte submission queue entry |
//! | [`cqe`](Cqe) | the 16-byte completion queue entry |
//! | [`status`](Status) | status codes: generic, command-specific, media, vendor |
//! | [`opcode`] | what an entry asks for |
//! | [`hint`](VectorHints) | how a vector command wants the media used |
//! | [`geometry`](Geometry) | groups, parallel units, chunks, sectors; write sizes |
//! | [`io_command`](IoCommand) | an entry of an I/O queue, understood; constructors of entries |
//! | [`admin_command`](AdminCommand) | an entry of the admin queue, understood |
//! | [`feature`] | feature identifiers and values |
//! | [`range`](DsmRange) | Dataset Management ranges and LBA status descriptors |
//! | [`chunk`](ChunkDescriptor) | chunk states, and the chunk information log page's entries |
//! | [`metadata`](Metadata) | what a namespace keeps beside its blocks, and how it is protected |
//! | [`identify`](IdentifyController) | controller, namespace, namespace list |
//! | [`geometry_page`](GeometryPage) | a geometry as the Geometry command returns it |
//! | [`log_page`] | health, errors, firmware slots |
//! | [`notification`](ChunkNotification) | what a drive tells of its media unasked |
//! | [`register`] | a controller's registers: capabilities, configuration, status, memory buffer |
//! | [`extension`](VendorExtensions) | what drives can do beyond the specifications |
//! | [`ppa`](Ppa) | physical page addresses and their bit-field format, with holes |

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
