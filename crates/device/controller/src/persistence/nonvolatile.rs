//! [`NonVolatile`]: the settings that a drive keeps in non-volatile memory of its controller, as a real
//! one does in NOR flash. They survive power cuts and, beside an image, the process.
//!
//! The memory has sections, each of one part of the drive; a section that was never written is
//! zeros. Beside an image the sections are in the file `IMAGE.nvm` (`docs/format/sidecar.md`), which
//! exists once a section was written. Invariant: a write of a section changes all of it or nothing,
//! also when the process dies.

use std::ops::Range;
use std::path::PathBuf;

use collections::Seal;
use media::{DataStore, Nand};
use mem::SharedRegion;
use serde::{Deserialize, Serialize};

use crate::error::DriveError;
use crate::persistence::sidecar::{self, SidecarKind};

/// Bytes of the memory: the checksum, and the sections.
const BYTES: usize = 16 * 1024;

const SEAL: Seal = Seal::of_bytes_behind(0);

/// A part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingsSection {
    /// The parallel units of applications.
    Applications,
    /// The state of Sanitize.
    Sanitize,
    /// The number of installations of rule programs.
    RuleInstallations,
    /// The namespaces of the drive.
    Namespaces,
}

impl SettingsSection {
    const fn range(self) -> Range<usize> {
        match self {
            SettingsSection::Applications => 32..64,
            SettingsSection::Sanitize => 64..96,
            SettingsSection::RuleInstallations => 96..128,
            SettingsSection::Namespaces => 128..BYTES,
        }
    }

    /// Bytes of the section.
    pub(crate) const fn bytes(self) -> usize {
        let Range { start, end } = self.range();
        end - start
    }
}

/// The file of the memory beside an image.
#[derive(Debug)]
struct SettingsFile {
    path: PathBuf,
    /// Sectors of the medium.
    identity: u64,
}

/// The non-volatile memory of a controller. A copy of it, or what is read from a saved state, is in
/// memory only.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NonVolatile {
    contents: Box<[u8]>,
    #[serde(skip)]
    file: Option<SettingsFile>,
}

impl Clone for NonVolatile {
    fn clone(&self) -> NonVolatile {
        NonVolatile { contents: self.contents.clone(), file: None }
    }
}

impl NonVolatile {
    /// Opens the memory of a drive with this medium: from the file beside its image if there is one,
    /// otherwise empty.
    ///
    /// # Errors
    /// [`DriveError::Sidecar`] for a file that cannot be read, is damaged, or belongs to another
    /// medium. The file does not change.
    pub(crate) fn open(nand: &Nand) -> Result<NonVolatile, DriveError> {
        let mut contents = vec![0; BYTES].into_boxed_slice();
        let (image, keeps) = match &nand.config().data {
            DataStore::File(image) => (image, true),
            DataStore::Overlay(image) => (image, false),
            _ => return Ok(NonVolatile { contents, file: None }),
        };
        let path = sidecar::sidecar_path(image, "nvm");
        let identity = nand.layout().sector_count().into();
        let region = sidecar::open_overlay(&path, SidecarKind::NonVolatile, BYTES, identity)?;
        region.read(0, &mut contents);
        let is_empty = contents.iter().all(|byte| *byte == 0);
        if !is_empty && SEAL.check(&contents).is_err() {
            let what = "the checksum of its contents is wrong".to_owned();
            return Err(DriveError::Sidecar { path, what });
        }
        Ok(NonVolatile { contents, file: keeps.then_some(SettingsFile { path, identity }) })
    }

    /// Returns a section, zeros if it was never written.
    pub(crate) fn section(&self, section: SettingsSection) -> &[u8] {
        &self.contents[section.range()]
    }

    /// Replaces a section. `bytes` may be shorter than the section; zeros follow them.
    ///
    /// # Errors
    /// [`DriveError::Sidecar`] or [`DriveError::Memory`] if the file cannot be replaced; the section
    /// is as before.
    ///
    /// # Panics
    /// If `bytes` are longer than the section.
    pub(crate) fn replace(
        &mut self,
        section: SettingsSection,
        bytes: &[u8],
    ) -> Result<(), DriveError> {
        let mut contents = self.contents.clone();
        let (written, rest) = contents[section.range()].split_at_mut(bytes.len());
        written.copy_from_slice(bytes);
        rest.fill(0);
        SEAL.store(&mut contents);
        if let Some(SettingsFile { path, identity }) = &self.file {
            let region = SharedRegion::anonymous(BYTES).map_err(DriveError::Memory)?;
            region.write(0, &contents);
            sidecar::replace(path, SidecarKind::NonVolatile, &region, *identity)?;
        }
        self.contents = contents;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use media::{CellType, ErrorModel, NandConfig, NandGeometry, NandTiming};
    use time::Nanos;

    use super::*;

    fn nand(image: &Path) -> Nand {
        let config = NandConfig {
            geometry: NandGeometry {
                channels: 1,
                pus: 2,
                planes: 1,
                chunks: 4,
                pages: 4,
                page_bytes: 4096,
                sector_bytes: 4096,
                oob_bytes: 16,
            },
            cell: CellType::Slc,
            one_shot: false,
            paired_page_distance: 0,
            timing: NandTiming::uniform(Nanos(50), Nanos(500), Nanos(3000), 0),
            errors: ErrorModel::default(),
            data: DataStore::File(image.to_owned()),
            seed: 1,
        };
        Nand::open_or_create(config).unwrap()
    }

    #[test]
    fn sections_survive_the_process_and_damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("drive.img");
        let file = folder.path().join("drive.img.nvm");
        let nand = nand(&image);
        let mut memory = NonVolatile::open(&nand).unwrap();
        assert!(memory.section(SettingsSection::Namespaces).iter().all(|byte| *byte == 0));
        assert!(!file.exists(), "nothing was written");
        memory.replace(SettingsSection::Sanitize, b"runs").unwrap();
        memory.replace(SettingsSection::Namespaces, b"two").unwrap();
        drop(memory);
        let memory = NonVolatile::open(&nand).unwrap();
        assert_eq!(memory.section(SettingsSection::Sanitize)[..5], *b"runs\0");
        assert_eq!(memory.section(SettingsSection::Namespaces)[..4], *b"two\0");
        let good = std::fs::read(&file).unwrap();
        for (at, what) in [(70, "checksum"), (BYTES + 40, "trailer"), (0, "checksum")] {
            let mut bytes = good.clone();
            bytes[at] ^= 0x55;
            std::fs::write(&file, &bytes).unwrap();
            let error = NonVolatile::open(&nand).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("drive.img.nvm"), "{error}");
            assert_eq!(std::fs::read(&file).unwrap(), bytes, "untouched");
        }
    }

    #[test]
    fn a_section_that_cannot_be_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let nand = nand(&folder.path().join("drive.img"));
        let mut memory = NonVolatile::open(&nand).unwrap();
        memory.replace(SettingsSection::Sanitize, b"old").unwrap();
        std::fs::create_dir(folder.path().join("drive.img.nvm.new")).unwrap();
        assert!(memory.replace(SettingsSection::Sanitize, b"new").is_err());
        assert_eq!(memory.section(SettingsSection::Sanitize)[..4], *b"old\0");
        assert_eq!(
            NonVolatile::open(&nand).unwrap().section(SettingsSection::Sanitize)[..4],
            *b"old\0"
        );
    }
}
