//! [`DriveKind`]: `kind` of a drive, and the keys that every kind has.

use controller::{
    ControllerConfig, DriveConfig, NullConfig, PersonalityKind, PuScheduling, SataDriveConfig,
    TransferConfig, WriteBuffer,
};
use media::MediaConfig;

use super::real_keys::{FileDrive, KernelDrive, PciDrive};
use crate::DriveSpec;
use crate::choice::Impossible;
use crate::section::{Keyword, Result, Section};
use crate::source::SourceSpan;
use crate::target::{HostTarget, TargetBuilder};

/// The kind of a drive.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DriveKind {
    /// An emulated NVMe drive.
    #[default]
    Nvme,
    /// An emulated SATA drive at a port of the scenario's AHCI controller.
    Ahci(Box<SataDriveConfig>),
    /// A file or block device of the host.
    File(FileDrive),
    /// A namespace of a controller that the kernel drives.
    Kernel(KernelDrive),
    /// An NVMe controller of this machine.
    Pci(PciDrive),
}

impl DriveKind {
    /// Returns the word of the kind in a scenario.
    pub fn word(&self) -> &'static str {
        match self {
            DriveKind::Nvme => "nvme",
            DriveKind::Ahci(_) => "ahci",
            DriveKind::File(_) => "file",
            DriveKind::Kernel(_) => "kernel",
            DriveKind::Pci(_) => "pci",
        }
    }
}

/// The word of a kind in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindWord {
    Nvme,
    /// An NVMe drive with the null personality.
    Null,
    Ahci,
    File,
    Kernel,
    Pci,
}

impl KindWord {
    /// Reads `kind`; without it the drive is an NVMe drive.
    pub(crate) fn read(s: &mut Section<'_>) -> Result<KindWord> {
        let mut word = KindWord::Nvme;
        let kinds = [
            Keyword("nvme", KindWord::Nvme),
            Keyword("null", KindWord::Null),
            Keyword("ahci", KindWord::Ahci),
            Keyword("file", KindWord::File),
            Keyword("kernel", KindWord::Kernel),
            Keyword("pci", KindWord::Pci),
        ];
        s.set("kind", &mut word, |v| v.choice(&kinds))?;
        Ok(word)
    }
}

/// The keys of an NVMe drive, which other kinds do not have or only in part.
const NVME_KEYS: &[&str] = &[
    "capacity",
    "data",
    "flush",
    "prealloc",
    "lba_bytes",
    "atomic",
    "protection",
    "preset",
    "personality",
    "media",
    "cell",
    "one_shot",
    "paired_page_distance",
    "path",
    "seed",
    "pu_scheduling",
    "suspend",
    "suspend_hint",
    "device_l2p",
    "cmb",
    "cmb_persistent",
    "pmr",
    "page_register",
    "cache_program",
    "cache_read",
    "dedicated_read_register",
    "page_transfers",
    "geometry",
    "timing",
    "errors",
    "write_buffer",
    "controller",
    "null",
    "ftl",
    "rules",
    "target",
];

/// Refuses the keys of an NVMe drive in the section of a drive of another kind, `except` some.
pub(crate) fn refuse_keys(s: &Section<'_>, kind: &'static str, except: &[&str]) -> Result<()> {
    let refused: Vec<_> = NVME_KEYS.iter().copied().filter(|key| !except.contains(key)).collect();
    match s.first_of(&refused) {
        Some((key, at)) => Err(at.error(Impossible::NotNvme { key, kind }.into())),
        None => Ok(()),
    }
}

/// Reads the name of a drive.
pub(crate) fn read_name(s: &mut Section<'_>) -> Result<Option<(String, SourceSpan)>> {
    let Some(value) = s.get("name") else { return Ok(None) };
    let name = value.string()?;
    let fits =
        (1..=20).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
    if !fits {
        return Err(value.refuse(
            "1 to 20 printable ASCII letters without spaces or slashes: it is also the drive's \
             serial number",
        ));
    }
    Ok(Some((name.to_owned(), value.source_span())))
}

/// Checks that the target of the scenario, which is on every drive, is none.
pub(crate) fn check_no_target(target: Option<&TargetBuilder>) -> Result<()> {
    let Some(target) = target else { return Ok(()) };
    let wanted = target.finish(512);
    if wanted == HostTarget::None {
        return Ok(());
    }
    Impossible::check_flash(PersonalityKind::Null, || wanted.label())
        .map_err(|why| target.kind_span_or_section().error(why.into()))
}

impl DriveSpec {
    /// Returns the SATA drive, if it is one.
    pub fn sata(&self) -> Option<&SataDriveConfig> {
        match &self.kind {
            DriveKind::Ahci(sata) => Some(sata),
            _ => None,
        }
    }

    /// Returns whether the drive is a device of this machine, which takes its own time.
    pub fn is_real(&self) -> bool {
        match self.kind {
            DriveKind::Nvme | DriveKind::Ahci(_) => false,
            DriveKind::File(_) | DriveKind::Kernel(_) | DriveKind::Pci(_) => true,
        }
    }

    /// Returns a drive that shows neither flash nor NVMe queues.
    pub(crate) fn without_flash(
        name: String,
        kind: DriveKind,
        bytes: u64,
        sector_bytes: u32,
    ) -> DriveSpec {
        let config = DriveConfig {
            name,
            personality: PersonalityKind::Null,
            media: MediaConfig::Null { bytes, sector_bytes },
            controller: ControllerConfig { max_io_queues: 1, ..ControllerConfig::default() },
            pu_scheduling: PuScheduling::Fifo,
            page_register: true,
            cache_program: true,
            transfers: TransferConfig::default(),
            write_buffer: WriteBuffer::None,
            ftl: DriveConfig::default_ftl(),
            null: NullConfig::default(),
            open_channel: Default::default(),
            lba_bytes: None,
            protection: None,
            pmr: None,
            rules: None,
        };
        DriveSpec {
            kind,
            config,
            target: HostTarget::None,
            shards: None,
            scrub: None,
            preset: None,
            capacity: None,
            namespace: None,
            app: None,
            seed_given: false,
        }
    }
}
