//! [`Namespace`]: the opened character device of a namespace, with its Identify data and the
//! kernel's limits.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use io_uring::{cqueue, squeue};
use nvme::{
    AdminCommand, HealthLog, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace,
    MetadataTransfer, Status, cns, log_page,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::entry::CommandEntry;
use super::{NvmeCommandFlow, call};
use crate::controller::info::CommandSupport;
use crate::uring::backend::{CommandFlow, SqeData, UringBackend};
use crate::uring::ring::Ring;
use crate::uring::{UringConfig, UringError};
use crate::{ControllerInfo, DataPointers, DriverError, Limits, Op, Request, Tag};

/// Time that the kernel waits for an admin command.
const ADMIN_TIMEOUT_MS: u32 = 10_000;
/// The namespace identifier of all namespaces.
const ALL_NAMESPACES: u32 = u32::MAX;
/// Maximum number of pages per command if the kernel does not report it: the minimum of the
/// kernel's driver since 5.19.
const SEGMENTS_DEFAULT: u64 = 127;

/// An opened namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    /// The block device, kept open exclusively so that it cannot be mounted.
    _block_device: Option<File>,
    path: PathBuf,
    info: ControllerInfo,
    /// Required alignment of transfers with a fixed buffer.
    fixed_align: u32,
    read_only: bool,
}

/// Returns the kernel's name of the namespace, if the file is the generic character device of an
/// NVMe namespace.
fn name(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = std::fs::canonicalize(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    let subsystem = std::fs::canonicalize(node.join("subsystem")).ok()?;
    let generic = subsystem.file_name()? == "nvme-generic";
    generic.then(|| node.file_name()?.to_str().map(str::to_owned)).flatten()
}

/// Reads a numeric limit of the block device's queue.
fn queue_limit(block: &str, what: &str) -> Option<u64> {
    let path = Path::new("/sys/block").join(block).join("queue").join(what);
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the number of I/O queues that the kernel has on the controller.
fn io_queues(name: &str) -> u16 {
    let path = Path::new("/sys/class/nvme-generic").join(name).join("device/queue_count");
    let count = std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<u16>().ok());
    count.map_or(1, |count| count.saturating_sub(1).max(1))
}

impl Namespace {
    /// Returns whether `path` is the generic character device of an NVMe namespace.
    pub(super) fn is_nvme_char_device(path: &Path) -> bool {
        std::fs::metadata(path)
            .is_ok_and(|found| found.file_type().is_char_device() && name(found.rdev()).is_some())
    }

    pub(super) fn open(path: &Path, config: &UringConfig) -> Result<Namespace, UringError> {
        let path_buf = || path.to_path_buf();
        let refused = |source, hint| UringError::Open { path: path_buf(), hint, source };
        let found = std::fs::metadata(path).map_err(|e| refused(e, ""))?;
        let name = match found.file_type().is_char_device() {
            true => name(found.rdev()),
            false => None,
        };
        let kind = "not the character device of an NVMe namespace";
        let name = name.ok_or_else(|| UringError::Kind { path: path_buf(), kind })?;
        let read_only = config.read_only;
        let file = OpenOptions::new().read(true).write(!read_only).open(path).map_err(|e| {
            let forbidden = e.kind() == io::ErrorKind::PermissionDenied && !read_only;
            refused(e, if forbidden { "; perhaps it can be opened for reading only" } else { "" })
        })?;
        // The kernel names both devices after the controller and the namespace.
        let block = name.replacen("ng", "nvme", 1);
        let held = match config.exclusive && !read_only {
            true => open_exclusive(path, &path.with_file_name(&block))?,
            false => None,
        };
        let said = |source| UringError::Nvme { path: path_buf(), source };
        let nsid = call::nsid(file.as_fd()).map_err(|e| refused(e, ""))?;
        let identify = |cns, nsid| -> Result<[u8; IDENTIFY_BYTES], UringError> {
            let mut page = [0; IDENTIFY_BYTES];
            let command = AdminCommand::Identify { cns, nsid };
            admin(file.as_fd(), path, command, &mut page)?;
            Ok(page)
        };
        let controller = IdentifyController::from_bytes(identify(cns::CONTROLLER, 0)?);
        let namespace = IdentifyNamespace::from_bytes(identify(cns::NAMESPACE, nsid)?);
        let how = CommandSupport { data_pointers: DataPointers::Sgl, own_commands: false };
        let queues = io_queues(&name);
        let mut info =
            ControllerInfo::new(&controller, nsid, &namespace, None, queues, how).map_err(said)?;
        if info
            .metadata
            .is_some_and(|metadata| metadata.transfer != MetadataTransfer::ControllerOnly)
        {
            let bytes = info.oob_bytes;
            return Err(said(DriverError::Metadata { nsid, bytes }));
        }
        // The kernel passes on what its block layer would. Data that does not begin on a page
        // touches one page more.
        let page = mem::PAGE_BYTES as u64;
        let segments = queue_limit(&block, "max_segments").unwrap_or(SEGMENTS_DEFAULT);
        let most = queue_limit(&block, "max_hw_sectors_kb").map_or(u64::MAX, |kib| kib << 10);
        let most = most.min(segments.saturating_sub(1).max(1) * page);
        let most = (most / u64::from(info.sector_bytes)).max(1);
        info.max_sectors = info.max_sectors.min(u32::try_from(most).unwrap_or(u32::MAX));
        info.features.segments = info.features.segments.min(segments as u16);
        info.features.extents = false;
        // The kernel copies data with another alignment, but not from fixed buffers with more pages
        // than a vector has (Linux's `bio_alloc_map_data`).
        let mask = queue_limit(&block, "dma_alignment").and_then(|mask| u32::try_from(mask).ok());
        let fixed_align = mask.map_or(512, |mask| mask.saturating_add(1).next_power_of_two());
        Ok(Namespace { file, _block_device: held, path: path_buf(), info, fixed_align, read_only })
    }

    pub(super) fn info(&self) -> &ControllerInfo {
        &self.info
    }

    pub(super) fn fixed_align(&self) -> u32 {
        self.fixed_align
    }

    pub(super) fn read_only(&self) -> bool {
        self.read_only
    }

    /// Sends an admin command and waits for its completion.
    pub(super) fn admin(&self, command: AdminCommand, data: &mut [u8]) -> Result<u32, UringError> {
        admin(self.file.as_fd(), &self.path, command, data)
    }

    /// Reads the health log.
    pub(super) fn health(&self) -> Result<HealthLog, UringError> {
        let mut bytes = [0; HealthLog::BYTES];
        let length = bytes.len() as u64;
        let command = AdminCommand::GetLogPage {
            lid: log_page::HEALTH,
            nsid: ALL_NAMESPACES,
            bytes: length,
            offset: 0,
            retain: false,
        };
        self.admin(command, &mut bytes)?;
        Ok(HealthLog::from_bytes(bytes))
    }
}

fn admin(
    file: BorrowedFd<'_>,
    path: &Path,
    command: AdminCommand,
    data: &mut [u8],
) -> Result<u32, UringError> {
    let name = command.name();
    let mut entry = CommandEntry::new(&command.to_sqe());
    entry.set_timeout(ADMIN_TIMEOUT_MS);
    let status = call::admin(file, &mut entry, data).map_err(|source| UringError::Open {
        path: path.to_path_buf(),
        hint: "; it did not take an admin command",
        source,
    })?;
    let status = Status::from_bits(status);
    match status.is_success() {
        true => Ok(entry.result()),
        false => {
            let source = DriverError::Command { command: name, queue: 0, status };
            Err(UringError::Nvme { path: path.to_path_buf(), source })
        }
    }
}

/// Opens the block device exclusively, unless it is in use; returns `None` if it does not exist.
fn open_exclusive(path: &Path, block: &Path) -> Result<Option<File>, UringError> {
    let flags = OFlags::EXCL.bits() as i32;
    match OpenOptions::new().read(true).custom_flags(flags).open(block) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) => {
            Err(UringError::InUse { path: path.to_path_buf() })
        }
        Err(source) => Err(UringError::Open { path: block.to_path_buf(), hint: "", source }),
    }
}

impl UringBackend for Arc<Namespace> {
    type Submission = squeue::Entry128;
    type Completion = cqueue::Entry32;
    type Flow = NvmeCommandFlow;

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    #[inline]
    fn plan(&self, request: &Request, limits: &Limits) -> Result<NvmeCommandFlow, Status> {
        if self.read_only && !matches!(request.op, Op::Read | Op::Flush) {
            return Err(Status::WRITE_PROTECTED);
        }
        let mut course = NvmeCommandFlow::plan(self.info.nsid, request, limits)?;
        if let Some(metadata) = &self.info.metadata {
            course.set_metadata_flags(metadata);
        }
        Ok(course)
    }

    #[inline]
    fn push(ring: &mut Ring<Self>, tag: Tag, course: &NvmeCommandFlow) -> bool {
        ring.push_nvme(tag, course.sqe(), course.data() != SqeData::None)
    }
}
