//! `[target]`: who manages the flash of an open-channel drive.

use ftl::FtlConfig;

use super::ftl_keys::FtlDraft;
use super::section::{Result, Section};
use super::source::Place;

/// What turns block requests into physical commands on the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Nothing: the drive manages its flash, or nobody does.
    None,
    /// `pblk`, a flash translation layer on the host (LightNVM paper section 4.2).
    Pblk(FtlConfig),
    /// `rrpc`, the same over the drive's own map, in the thesis's choices (chapter 6, section 4.3).
    Rrpc(FtlConfig),
}

impl Target {
    /// Its translation layer on the host, if it has one.
    pub fn ftl(&self) -> Option<&FtlConfig> {
        match self {
            Target::None => None,
            Target::Pblk(config) | Target::Rrpc(config) => Some(config),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    None,
    Pblk,
    Rrpc,
}

/// A target being read.
#[derive(Clone, Debug)]
pub(super) struct TargetDraft {
    whole: Place,
    kind: Kind,
    kind_place: Option<Place>,
    ftl: FtlDraft,
}

impl TargetDraft {
    pub(super) fn read(mut section: Section<'_>) -> Result<TargetDraft> {
        let mut draft = TargetDraft {
            whole: section.place(),
            kind: Kind::None,
            kind_place: None,
            ftl: FtlDraft::default(),
        };
        let kinds = [("none", Kind::None), ("pblk", Kind::Pblk), ("rrpc", Kind::Rrpc)];
        let Some(value) = section.get("kind") else {
            return Err(section.missing("kind", "allowed: \"none\", \"pblk\", \"rrpc\""));
        };
        draft.kind = value.choice_or_later(&kinds, &["kv", "ppa"])?;
        draft.kind_place = Some(value.place());
        if draft.kind == Kind::Rrpc {
            draft.ftl = FtlDraft::of(lightnvm::Rrpc::config());
        }
        // A target of "none" may keep its other keys, so that one line switches it off.
        draft.ftl.read(&mut section)?;
        section.finish()?;
        Ok(draft)
    }

    pub(super) fn finish(&self, sector_bytes: u32) -> Target {
        match self.kind {
            Kind::None => Target::None,
            Kind::Pblk => Target::Pblk(self.ftl.config(sector_bytes)),
            Kind::Rrpc => Target::Rrpc(self.ftl.config(sector_bytes)),
        }
    }

    pub(super) fn place(&self, key: &str) -> Option<&Place> {
        self.ftl.place(key)
    }

    pub(super) fn kind_place(&self) -> &Place {
        self.kind_place.as_ref().unwrap_or(&self.whole)
    }
}
