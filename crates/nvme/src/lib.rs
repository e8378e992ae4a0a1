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
//! | [`hint`](Hints) | how a vector command wants the media used |
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
//! | [`extension`](Extensions) | what drives can do beyond the specifications |
//! | [`ppa`](Ppa) | physical page addresses and their bit-field format, with holes |

#![forbid(unsafe_code)]

mod admin_command;
mod chunk;
mod cqe;
mod extension;
pub mod feature;
mod geometry;
mod geometry_page;
mod hint;
mod identify;
mod io_command;
pub mod log_page;
mod metadata;
mod notification;
pub mod opcode;
mod ppa;
mod range;
pub mod register;
mod sqe;
mod status;
mod wire;

pub use admin_command::{AdminCommand, FeatureSelect, QueuePriority};
pub use chunk::{ChunkDescriptor, ChunkState};
pub use cqe::Cqe;
pub use extension::Extensions;
pub use geometry::{Address, Geometry, GeometryError};
pub use geometry_page::{GeometryPage, MediaTiming};
pub use hint::{Hints, PlaneMode};
pub use identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceList, PowerState,
    cns,
};
pub use io_command::{IoCommand, MAX_BLOCKS, MAX_RANGES, MAX_VECTOR, PpaList};
pub use log_page::{ErrorEntry, FirmwareLog, HealthLog, MapLog};
pub use metadata::{Metadata, MetadataPlace, Protection};
pub use notification::{AsyncEvent, ChunkNotification, MediaNotice, MediaScope};
pub use ppa::{InvalidPpa, Ppa, PpaFormat};
pub use range::{DsmRange, LbaStatusDescriptor};
pub use register::{Capabilities, CmbLocation, CmbSize, Configuration, ControllerStatus};
pub use sqe::{DataPointer, SglDescriptor, Sqe};
pub use status::{Status, StatusType};
