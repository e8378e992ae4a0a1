//! The keys that describe a medium: `[drive.geometry]`, `[drive.timing]`, `[drive.errors]`, and those
//! of `[drive]` about cells and data.

use std::path::PathBuf;

use clock::Nanos;
use media::{
    Cell, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming, PcmConfig,
};
use nvme::GeometryError;

use super::error::Problem;
use super::ranges::{AGE, MEDIA_TIME};
use super::section::{Result, Section, Value};
use super::source::Place;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Nand,
    Pcm,
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Memory,
    File,
    None,
}

/// A medium being read: every key, whether given or default, and where the given ones were.
#[derive(Clone, Debug)]
pub(super) struct MediaDraft {
    pub(super) kind: Option<Kind>,
    geometry: NandGeometry,
    timing: NandTiming,
    errors: ErrorModel,
    cell: Cell,
    one_shot: bool,
    pair_distance: u32,
    capacity: u64,
    data: Data,
    image: Option<PathBuf>,
    pub(super) seed: Option<u64>,
    /// Keys given by anybody, preset or user.
    given: Vec<&'static str>,
    places: Vec<(&'static str, Place)>,
}

const CELLS: [(&str, Cell); 4] =
    [("slc", Cell::Slc), ("mlc", Cell::Mlc), ("tlc", Cell::Tlc), ("qlc", Cell::Qlc)];

/// Keys of a NAND medium that have no default.
const NEEDED: [(&str, &str); 9] = [
    ("channels", "how many channels the drive has"),
    ("pus", "how many parallel units (dies) a channel has"),
    ("planes", "how many planes a parallel unit has"),
    ("chunks", "how many chunks (blocks per plane) a parallel unit has"),
    ("pages", "how many pages a block has"),
    ("page_bytes", "how many data bytes a page of one plane has, such as \"16k\""),
    ("read", "tR, such as \"58us\", or one per page type: [\"56us\", \"78us\", \"106us\"]"),
    ("program", "tPROG, such as \"1.39ms\", or one per page type"),
    ("erase", "tBERS, such as \"3ms\""),
];

impl Default for MediaDraft {
    fn default() -> MediaDraft {
        MediaDraft {
            kind: None,
            geometry: NandGeometry {
                channels: 0,
                pus: 0,
                planes: 0,
                chunks: 0,
                pages: 0,
                page_bytes: 0,
                sector_bytes: 4096,
                oob_bytes: 16,
            },
            timing: NandTiming::uniform(Nanos::ZERO, Nanos::ZERO, Nanos::ZERO, 0),
            errors: ErrorModel::default(),
            cell: Cell::Slc,
            one_shot: false,
            pair_distance: 0,
            capacity: 0,
            data: Data::Memory,
            image: None,
            seed: None,
            given: Vec::new(),
            places: Vec::new(),
        }
    }
}

impl MediaDraft {
    /// Reads the keys that a `[drive]` section has about its medium.
    pub(super) fn read(&mut self, drive: &mut Section<'_>) -> Result<()> {
        let kinds = [("nand", Kind::Nand), ("pcm", Kind::Pcm), ("null", Kind::Null)];
        let place = drive.set("media", &mut self.kind, |v| v.choice(&kinds).map(Some))?;
        self.note("media", place);
        let place = drive.set("cell", &mut self.cell, |v| v.choice(&CELLS))?;
        self.note("cell", place);
        let place = drive.set("one_shot", &mut self.one_shot, |v| v.boolean())?;
        self.note("one_shot", place);
        let place = drive.set("pair_distance", &mut self.pair_distance, |v| v.u32())?;
        self.note("pair_distance", place);
        let place = drive.set("capacity", &mut self.capacity, |v| v.size())?;
        self.note("capacity", place);
        let place = drive.set("seed", &mut self.seed, |v| v.u64().map(Some))?;
        self.note("seed", place);
        let stores = [("memory", Data::Memory), ("file", Data::File), ("none", Data::None)];
        let place = drive.set("data", &mut self.data, |v| v.choice(&stores))?;
        self.note("data", place);
        let source = drive.source;
        let place = drive
            .set("path", &mut self.image, |v| v.string().map(|path| Some(source.resolve(path))))?;
        self.note("path", place);
        if let Some(value) = drive.get("geometry") {
            self.read_geometry(value.section()?)?;
        }
        if let Some(value) = drive.get("timing") {
            self.read_timing(value.section()?)?;
        }
        if let Some(value) = drive.get("errors") {
            self.read_errors(value.section()?)?;
        }
        Ok(())
    }

    fn read_geometry(&mut self, mut s: Section<'_>) -> Result<()> {
        let g = &mut self.geometry;
        let places = [
            ("channels", s.set("channels", &mut g.channels, |v| v.u32())?),
            ("pus", s.set("pus", &mut g.pus, |v| v.u32())?),
            ("planes", s.set("planes", &mut g.planes, |v| v.u32())?),
            ("chunks", s.set("chunks", &mut g.chunks, |v| v.u32())?),
            ("pages", s.set("pages", &mut g.pages, |v| v.u32())?),
            ("page_bytes", s.set("page_bytes", &mut g.page_bytes, |v| v.size_u32())?),
            ("sector_bytes", s.set("sector_bytes", &mut g.sector_bytes, |v| v.size_u32())?),
            ("oob_bytes", s.set("oob_bytes", &mut g.oob_bytes, |v| v.size_u32())?),
        ];
        for (key, place) in places {
            self.note(key, place);
        }
        s.finish()
    }

    fn read_timing(&mut self, mut s: Section<'_>) -> Result<()> {
        let bits = self.cell.bits() as usize;
        let t = &mut self.timing;
        let places = [
            ("read", s.set("read", &mut t.read, |v| by_page_type(v, bits))?),
            ("program", s.set("program", &mut t.program, |v| by_page_type(v, bits))?),
            ("erase", s.set("erase", &mut t.erase, |v| v.duration_in(&MEDIA_TIME))?),
            (
                "channel",
                s.set("channel", &mut t.channel_bytes_per_sec, |v| v.channel_rate_or_none())?,
            ),
        ];
        for (key, place) in places {
            self.note(key, place);
        }
        s.finish()
    }

    fn read_errors(&mut self, mut s: Section<'_>) -> Result<()> {
        let e = &mut self.errors;
        s.set("factory_bad", &mut e.factory_bad, |v| v.number(0.0..=0.9))?;
        s.set("program_fail", &mut e.program_fail, |v| v.number(0.0..=1.0))?;
        s.set("erase_fail", &mut e.erase_fail, |v| v.number(0.0..=1.0))?;
        s.set("rber", &mut e.rber, |v| v.number(0.0..=0.5))?;
        s.set("rber_growth", &mut e.rber_growth, |v| v.number(1.0..=1e9))?;
        s.set("ecc_bits", &mut e.ecc_bits, |v| v.u32_in(&(0..=1 << 19)))?;
        s.set("endurance", &mut e.endurance, |v| v.u32_in(&(0..=1_000_000_000)))?;
        s.set("read_retries", &mut e.read_retries, |v| v.u32_in(&(0..=1000)))?;
        s.set("retry_leaves", &mut e.retry_leaves, |v| v.number(0.0..=1.0))?;
        s.set("retention", &mut e.retention, |v| v.duration_in(&AGE))?;
        s.set("disturb_reads", &mut e.disturb_reads, |v| v.u32())?;
        s.finish()
    }

    fn note(&mut self, key: &'static str, place: Option<Place>) {
        if let Some(place) = place {
            self.given.push(key);
            self.places.push((key, place));
        }
    }

    /// Where the user last set a key.
    pub(super) fn place(&self, key: &str) -> Option<&Place> {
        self.places.iter().rev().find(|(k, _)| *k == key).map(|(_, place)| place)
    }

    /// Forgets where keys were: they come from a preset.
    pub(super) fn forget_places(&mut self) {
        self.places.clear();
    }

    /// The capacity that was asked for, and where.
    pub(super) fn capacity(&self) -> Option<(u64, &Place)> {
        self.place("capacity").map(|place| (self.capacity, place))
    }

    pub(super) fn sector_bytes(&self) -> u32 {
        self.geometry.sector_bytes
    }

    /// The medium, checked. `whole` is where to point when no single key is to blame.
    pub(super) fn finish(&self, kind: Kind, seed: u64, whole: &Place) -> Result<MediaConfig> {
        let at = |key: &str| self.place(key).unwrap_or(whole);
        let data = match (self.data, &self.image) {
            (Data::Memory, None) => DataStore::Memory,
            (Data::None, None) => DataStore::None,
            (Data::File, Some(path)) => DataStore::File(path.clone()),
            (Data::File, None) => {
                return Err(at("data").error(Problem::MissingKey {
                    section: "[drive] with data = \"file\"".into(),
                    key: "path",
                    help: "name the image file, relative to the scenario".into(),
                }));
            }
            (_, Some(_)) => {
                return Err(at("path").error(Problem::Conflict {
                    message: "`path` names an image file, but the data is not kept in one".into(),
                    help: "set data = \"file\", or remove `path`".into(),
                }));
            }
        };
        match kind {
            Kind::Nand => self.finish_nand(data, seed, whole),
            Kind::Pcm => self.finish_pcm(data, whole),
            Kind::Null => {
                self.check_capacity(whole)?;
                Ok(MediaConfig::Null {
                    bytes: self.capacity,
                    sector_bytes: self.geometry.sector_bytes,
                })
            }
        }
    }

    fn finish_nand(&self, data: DataStore, seed: u64, whole: &Place) -> Result<MediaConfig> {
        for (key, help) in NEEDED {
            if !self.given.contains(&key) {
                let section = if matches!(key, "read" | "program" | "erase") {
                    "[drive.timing]"
                } else {
                    "[drive.geometry]"
                };
                return Err(whole.error(Problem::MissingKey {
                    section: section.into(),
                    key,
                    help: format!("{help}; or start from a preset (`sluice drive presets`)"),
                }));
            }
        }
        let nand = NandConfig {
            geometry: self.geometry,
            cell: self.cell,
            one_shot: self.one_shot,
            pair_distance: self.pair_distance,
            timing: self.timing,
            errors: self.errors,
            data,
            seed,
        };
        // Multiplied out in 128 bits first: the checks below may multiply in fewer.
        let g = &self.geometry;
        let bytes = [g.channels, g.pus, g.planes, g.chunks, g.pages, g.page_bytes]
            .iter()
            .map(|n| u128::from(*n))
            .fold(1u128, |product, n| product.saturating_mul(n));
        if bytes > u128::from(u64::MAX) {
            return Err(at_blame(self, "chunks", whole).error(Problem::Geometry(
                GeometryError::Unfit {
                    what: "capacity in bytes",
                    value: u64::MAX,
                    allowed: "it must be below 2 to the power of 64".into(),
                },
            )));
        }
        nand.check().map_err(|e| {
            let key = match &e {
                GeometryError::Zero { what } | GeometryError::Unfit { what, .. } => key_of(what),
                GeometryError::TooManyBits { .. } => "chunks",
            };
            at_blame(self, key, whole).error(Problem::Geometry(e))
        })?;
        if self.one_shot && self.pair_distance != 0 {
            let place = self.place("pair_distance").or(self.place("one_shot")).unwrap_or(whole);
            return Err(place.error(Problem::Conflict {
                message: "one-shot programming writes all pages of a pair at once, so they have \
                          no distance"
                    .into(),
                help: "set pair_distance = 0".into(),
            }));
        }
        Ok(MediaConfig::Nand(nand))
    }

    fn finish_pcm(&self, data: DataStore, whole: &Place) -> Result<MediaConfig> {
        let g = &self.geometry;
        for (key, n) in [("channels", g.channels), ("pus", g.pus)] {
            if n == 0 {
                let error = Problem::Geometry(GeometryError::Zero { what: key_of(key) });
                return Err(at_blame(self, key, whole).error(error));
            }
        }
        self.check_capacity(whole)?;
        Ok(MediaConfig::Pcm(PcmConfig {
            channels: g.channels,
            pus: g.pus,
            bytes: self.capacity,
            sector_bytes: g.sector_bytes,
            read: self.timing.read[0],
            write: self.timing.program[0],
            channel_bytes_per_sec: self.timing.channel_bytes_per_sec,
            data,
        }))
    }

    /// Capacity and sectors of a medium without chunks.
    fn check_capacity(&self, whole: &Place) -> Result<()> {
        let sector = self.geometry.sector_bytes;
        if !sector.is_power_of_two() || !(512..=65536).contains(&sector) {
            return Err(at_blame(self, "sector_bytes", whole).error(Problem::Geometry(
                GeometryError::Unfit {
                    what: "sector_bytes",
                    value: sector.into(),
                    allowed: "it must be a power of two from 512 to 65536".into(),
                },
            )));
        }
        if self.capacity == 0 {
            if self.given.contains(&"capacity") {
                let zero = Problem::Geometry(GeometryError::Zero { what: "capacity" });
                return Err(at_blame(self, "capacity", whole).error(zero));
            }
            return Err(whole.error(Problem::MissingKey {
                section: "[drive]".into(),
                key: "capacity",
                help: "how many bytes it holds, such as \"8G\"".into(),
            }));
        }
        if !self.capacity.is_multiple_of(u64::from(sector)) {
            return Err(at_blame(self, "capacity", whole).error(Problem::Geometry(
                GeometryError::Unfit {
                    what: "capacity",
                    value: self.capacity,
                    allowed: format!("it must be a multiple of sector_bytes ({sector})"),
                },
            )));
        }
        Ok(())
    }
}

fn at_blame<'p>(draft: &'p MediaDraft, key: &str, whole: &'p Place) -> &'p Place {
    draft.place(key).unwrap_or(whole)
}

/// The scenario's key for what a [`GeometryError`] calls it.
fn key_of(what: &str) -> &'static str {
    match what {
        "groups" | "channels" => "channels",
        "PUs per group" | "pus" => "pus",
        "planes" => "planes",
        "pages" | "sectors per chunk" | "ws_opt" | "ws_min" => "pages",
        "page_bytes" => "page_bytes",
        "sector_bytes" => "sector_bytes",
        "pair_distance" => "pair_distance",
        _ => "chunks",
    }
}

/// One duration for all page types, or an array with one for each page type of the cell.
fn by_page_type(value: &Value<'_>, bits: usize) -> Result<[Nanos; 4]> {
    let Some(items) = value.items() else {
        return value.duration_in(&MEDIA_TIME).map(|d| [d; 4]);
    };
    if items.len() != bits {
        return Err(value.refuse(format!(
            "one duration, or {bits} of them: one for each page type of the cell"
        )));
    }
    let mut times = [Nanos::ZERO; 4];
    for (time, item) in times.iter_mut().zip(&items) {
        *time = item.duration_in(&MEDIA_TIME)?;
    }
    // A scenario may give the preset's cell more bits later; its new page types are like the last.
    let last = times[bits - 1];
    times[bits..].fill(last);
    Ok(times)
}
