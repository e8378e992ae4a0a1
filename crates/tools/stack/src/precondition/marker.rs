//! Detection of new drives. A drive with an image is preconditioned once, when the image is
//! created; later the image contains a user's data. A marker file beside the image exists until
//! preconditioning is complete, so that an incomplete image is not mistaken for data.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use controller::SataData;
use media::{DataStore, MediaConfig};
use scenario::DriveSpec;

/// Suffix of the marker file.
const MARKER_SUFFIX: &str = ".preconditioning";

fn store(plan: &DriveSpec) -> &DataStore {
    match &plan.config.media {
        MediaConfig::Nand(nand) => &nand.data,
        MediaConfig::Pcm(pcm) => &pcm.data,
        MediaConfig::Null { .. } => &DataStore::None,
    }
}

/// Returns whether written data can be read again.
pub fn stores_data(plan: &DriveSpec) -> bool {
    if let Some(sata) = plan.sata() {
        return sata.data == SataData::Memory;
    }
    *store(plan) != DataStore::None
}

/// Returns the path of a drive's image, if it has one.
pub fn image(plan: &DriveSpec) -> Option<&Path> {
    store(plan).image()
}

fn marker_path(image: &Path) -> PathBuf {
    let mut path = OsString::from(image);
    path.push(MARKER_SUFFIX);
    path.into()
}

/// Returns the drive with an overlay in place of its image. The overlay starts from the contents of
/// the image, and neither the image nor the files beside it are modified. An image with incomplete
/// preconditioning counts as empty.
pub fn with_overlay(plan: &DriveSpec) -> DriveSpec {
    let mut plan = plan.clone();
    let unfinished = image(&plan).is_some_and(|image| marker_path(image).exists());
    let data = match &mut plan.config.media {
        MediaConfig::Nand(nand) => &mut nand.data,
        MediaConfig::Pcm(pcm) => &mut pcm.data,
        MediaConfig::Null { .. } => return plan,
    };
    if let DataStore::File(path) | DataStore::DurableFile(path) = data {
        *data = if unfinished { DataStore::Memory } else { DataStore::Overlay(path.clone()) };
    }
    plan
}

/// Returns whether the drive has no data to preserve. Must be called before the drive is powered
/// on, which creates its image.
pub fn is_fresh(plan: &DriveSpec) -> bool {
    let is_empty = |image: &Path| image.metadata().is_ok_and(|file| file.len() == 0);
    image(plan)
        .is_none_or(|image| !image.exists() || is_empty(image) || marker_path(image).exists())
}

/// Marker of a drive that is being preconditioned.
#[derive(Debug)]
pub struct PreconditionMarker {
    path: Option<PathBuf>,
}

impl PreconditionMarker {
    /// Creates the marker file, if the drive has an image.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn set(plan: &DriveSpec) -> io::Result<PreconditionMarker> {
        let path = image(plan).map(marker_path);
        if let Some(path) = &path {
            std::fs::write(path, "This image was being preconditioned, and is not finished.\n")?;
        }
        Ok(PreconditionMarker { path })
    }

    /// Removes the marker file when preconditioning is complete.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn remove(self) -> io::Result<()> {
        self.path.map_or(Ok(()), std::fs::remove_file)
    }
}
