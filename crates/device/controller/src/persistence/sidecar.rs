//! Sidecar files: drive state beside an image that is not on the medium. `docs/format/sidecar.md`
//! is the byte map.
//!
//! The contents come first, so that a mapping of them is page aligned; a trailer page identifies
//! them. Invariants: a refused file is not changed. A file is created under another name and
//! renamed, so it is complete or absent. The lock of the image also covers its sidecar files.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collections::{HeaderError, Seal, SealedHeader, put_at, u32_at, u64_at};
use mem::{PAGE_BYTES, SharedRegion};

use crate::error::DriveError;

/// The kind of a sidecar file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SidecarKind {
    /// A controller memory buffer.
    Cmb = 1,
    /// A device L2P.
    DeviceL2p = 2,
    /// Non-volatile settings of a controller.
    NonVolatile = 3,
    /// A persistent memory region.
    Pmr = 4,
}

const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICSID",
    version: 1,
    version_bytes: 4,
    seal: Seal::of_bytes_before(PAGE_BYTES - 4),
};

/// Returns the path of a sidecar file.
pub(crate) fn sidecar_path(image: &Path, extension: &str) -> PathBuf {
    let mut name = OsString::from(image.as_os_str());
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

/// Opens the file at `path`, or creates it with zeros. The file stores `identity`, which must match
/// when it is opened.
///
/// # Errors
/// [`DriveError::Sidecar`] for an error of the operating system, or a file that does not match.
pub(crate) fn open_or_create(
    path: &Path,
    kind: SidecarKind,
    bytes: usize,
    identity: u64,
) -> Result<Arc<SharedRegion>, DriveError> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let trailer = trailer(kind, bytes as u64, identity);
            return create(path, &trailer, bytes, None).map_err(|e| sidecar_error(path, e));
        }
        Err(e) => return Err(sidecar_error(path, e)),
    };
    check(&file, path, kind, bytes, identity)?;
    map(file, bytes).map_err(|e| sidecar_error(path, e))
}

/// Checks that `file` is the expected sidecar file.
fn check(
    file: &File,
    path: &Path,
    kind: SidecarKind,
    bytes: usize,
    identity: u64,
) -> Result<(), DriveError> {
    let trailer = trailer(kind, bytes as u64, identity);
    let length = file.metadata().map_err(|e| sidecar_error(path, e))?.len();
    let mut found = [0; PAGE_BYTES];
    let start = length.checked_sub(PAGE_BYTES as u64);
    let Some(start) = start else {
        return Err(sidecar_error(path, format!("it is {length} bytes long, and no sidecar")));
    };
    file.read_exact_at(&mut found, start).map_err(|e| sidecar_error(path, e))?;
    check_trailer(&found, &trailer).map_err(|what| sidecar_error(path, what))?;
    if start != bytes as u64 {
        return Err(sidecar_error(
            path,
            format!("it holds {start} bytes, and {bytes} are asked for"),
        ));
    }
    Ok(())
}

/// Maps the contents of the file at `path` copy-on-write, or zeros if there is no such file. The
/// file never changes.
///
/// # Errors
/// [`DriveError::Sidecar`], as [`open_or_create`].
pub(crate) fn open_overlay(
    path: &Path,
    kind: SidecarKind,
    bytes: usize,
    identity: u64,
) -> Result<Arc<SharedRegion>, DriveError> {
    match File::open(path) {
        Ok(file) => {
            check(&file, path, kind, bytes, identity)?;
            SharedRegion::copy_on_write(&file, bytes).map_err(|e| sidecar_error(path, e))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            SharedRegion::anonymous(bytes).map_err(DriveError::Memory)
        }
        Err(e) => Err(sidecar_error(path, e)),
    }
}

/// Replaces the file at `path` by a new one with these contents. Existing mappings keep the old
/// file.
///
/// # Errors
/// [`DriveError::Sidecar`] for an error of the operating system.
pub(crate) fn replace(
    path: &Path,
    kind: SidecarKind,
    contents: &SharedRegion,
    identity: u64,
) -> Result<Arc<SharedRegion>, DriveError> {
    let trailer = trailer(kind, contents.len() as u64, identity);
    create(path, &trailer, contents.len(), Some(contents)).map_err(|e| sidecar_error(path, e))
}

fn sidecar_error(path: &Path, what: impl ToString) -> DriveError {
    DriveError::Sidecar { path: path.to_owned(), what: what.to_string() }
}

fn create(
    path: &Path,
    trailer: &[u8; PAGE_BYTES],
    bytes: usize,
    contents: Option<&SharedRegion>,
) -> io::Result<Arc<SharedRegion>> {
    let making = sidecar_path(path, "new");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&making)?;
    let made = (|| {
        file.set_len((bytes + PAGE_BYTES) as u64)?;
        file.write_all_at(trailer, bytes as u64)?;
        let region = map(file.try_clone()?, bytes)?;
        if let Some(contents) = contents {
            SharedRegion::copy(contents, 0, &region, 0, bytes);
        }
        file.sync_all()?;
        std::fs::rename(&making, path)?;
        Ok(region)
    })();
    if made.is_err() {
        // An unfinished file takes no space and is ignored when the sidecar is opened.
        let _ = std::fs::remove_file(&making);
    }
    made
}

/// Allocates space for the contents and maps them, so that a store to the mapping cannot fail on a
/// full disk.
fn map(file: File, bytes: usize) -> io::Result<Arc<SharedRegion>> {
    let region = SharedRegion::file(file, bytes)?;
    region.reserve(0, bytes)?;
    Ok(region)
}

fn trailer(kind: SidecarKind, bytes: u64, identity: u64) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    HEADER.begin(&mut page);
    put_at(&mut page, 12, &(kind as u32).to_le_bytes());
    put_at(&mut page, 16, &bytes.to_le_bytes());
    put_at(&mut page, 24, &identity.to_le_bytes());
    HEADER.seal.store(&mut page);
    page
}

/// Checks a trailer against the expected one, and describes the difference.
fn check_trailer(found: &[u8; PAGE_BYTES], wanted: &[u8; PAGE_BYTES]) -> Result<(), String> {
    HEADER.check(found).map_err(|error| match error {
        HeaderError::Magic => "it is something else (no magic number)".into(),
        HeaderError::Version(version) => {
            format!("it has version {version}, and this reads {}", HEADER.version)
        }
        HeaderError::Truncated | HeaderError::Seal(_) => "its trailer is damaged".to_owned(),
    })?;
    for (what, at) in [("bytes", 16), ("identity", 24)] {
        if let (Some(has), Some(wants)) = (u64_at(found, at), u64_at(wanted, at))
            && has != wants
        {
            if what == "identity" && u32_at(wanted, 12) == Some(SidecarKind::Pmr as u32) {
                return Err("it belongs to a drive with another name".into());
            }
            return Err(format!("its {what} is {has}, but the drive needs {wants}"));
        }
    }
    if u32_at(found, 12) != u32_at(wanted, 12) {
        return Err(
            "it is of another kind (1 controller memory buffer, 2 device L2P, 3 settings, \
                    4 persistent memory region)"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_survive_and_other_files_are_refused_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let path = sidecar_path(&folder.path().join("drive.img"), "cmb");
        assert!(path.ends_with("drive.img.cmb"));
        let region = open_or_create(&path, SidecarKind::Cmb, 8192, 7).unwrap();
        region.write(5000, b"stays");
        drop(region);
        let region = open_or_create(&path, SidecarKind::Cmb, 8192, 7).unwrap();
        let mut found = [0; 5];
        region.read(5000, &mut found);
        assert_eq!(&found, b"stays");
        for (kind, bytes, identity, what) in [
            (SidecarKind::DeviceL2p, 8192, 7, "kind"),
            (SidecarKind::Cmb, 4096, 7, "bytes"),
            (SidecarKind::Cmb, 8192, 8, "identity"),
        ] {
            let e = open_or_create(&path, kind, bytes, identity).unwrap_err().to_string();
            assert!(e.contains(what) && e.contains("drive.img.cmb"), "{e}");
        }
        // After a replacement, the old mapping is detached from the file.
        let fresh = SharedRegion::anonymous(8192).unwrap();
        fresh.write(0, b"new");
        let renewed = replace(&path, SidecarKind::Cmb, &fresh, 7).unwrap();
        region.write(0, b"old");
        let mut start = [0; 3];
        renewed.read(0, &mut start);
        assert_eq!(&start, b"new");
        // Damaged files.
        let good = std::fs::read(&path).unwrap();
        for (at, what) in [(8192, "magic"), (8192 + 8, "version"), (8192 + 40, "damaged")] {
            let mut bytes = good.clone();
            bytes[at] ^= 0x55;
            std::fs::write(&path, &bytes).unwrap();
            let e = open_or_create(&path, SidecarKind::Cmb, 8192, 7).unwrap_err().to_string();
            assert!(e.contains(what), "{e}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "untouched");
        }
        for short in [0, 100, 4096] {
            std::fs::write(&path, &good[..short]).unwrap();
            assert!(open_or_create(&path, SidecarKind::Cmb, 8192, 7).is_err());
        }
    }
}
