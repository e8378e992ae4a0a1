//! The keys of a medium: `[drive.geometry]`, `[drive.timing]`, `[drive.errors]`, and the keys of
//! `[drive]` for cells and data.

use std::path::PathBuf;

use media::{
    CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming, PcmConfig,
};
use nvme::GeometryError;
use time::Nanos;

use crate::error::ProblemKind;
use crate::ranges::{AGE, MEDIA_TIME};
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceSpan;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MediaKind {
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

/// Up to where a flush of a drive with an image writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FlushLevel {
    /// To the image, which survives the death of the process.
    Process,
    /// To the stable storage of the host.
    Host,
}

/// Builder of a medium: the value of every key, and the spans of those that are set.
#[derive(Clone, Debug)]
pub(crate) struct MediaBuilder {
    pub(crate) kind: Option<MediaKind>,
    geometry: NandGeometry,
    timing: NandTiming,
    errors: ErrorModel,
    cell: CellType,
    one_shot: bool,
    pair_distance: u32,
    capacity: u64,
    data: Data,
    /// Bytes of memory that are allocated at the start.
    prealloc: u64,
    image: Option<PathBuf>,
    flush: FlushLevel,
    pub(crate) seed: Option<u64>,
    /// Keys that the preset or the scenario sets.
    given: Vec<&'static str>,
    spans: Vec<(&'static str, SourceSpan)>,
}

const CELLS: [Keyword<'static, CellType>; 4] = [
    Keyword("slc", CellType::Slc),
    Keyword("mlc", CellType::Mlc),
    Keyword("tlc", CellType::Tlc),
    Keyword("qlc", CellType::Qlc),
];

/// Keys of a NAND medium without a default.
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

impl Default for MediaBuilder {
    fn default() -> MediaBuilder {
        MediaBuilder {
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
            cell: CellType::Slc,
            one_shot: false,
            pair_distance: 0,
            capacity: 0,
            data: Data::Memory,
            prealloc: 0,
            image: None,
            flush: FlushLevel::Process,
            seed: None,
            given: Vec::new(),
            spans: Vec::new(),
        }
    }
}

impl MediaBuilder {
    /// Reads the keys of a medium in a `[drive]` section.
    pub(crate) fn read(&mut self, drive: &mut Section<'_>) -> Result<()> {
        let kinds = [
            Keyword("nand", MediaKind::Nand),
            Keyword("pcm", MediaKind::Pcm),
            Keyword("null", MediaKind::Null),
        ];
        let place = drive.set("media", &mut self.kind, |v| v.choice(&kinds).map(Some))?;
        self.record_span("media", place);
        let place = drive.set("cell", &mut self.cell, |v| v.choice(&CELLS))?;
        self.record_span("cell", place);
        let place = drive.set("one_shot", &mut self.one_shot, |v| v.boolean())?;
        self.record_span("one_shot", place);
        let place = drive.set("paired_page_distance", &mut self.pair_distance, |v| v.u32())?;
        self.record_span("paired_page_distance", place);
        let place = drive.set("capacity", &mut self.capacity, |v| v.size())?;
        self.record_span("capacity", place);
        let place = drive.set("seed", &mut self.seed, |v| v.u64().map(Some))?;
        self.record_span("seed", place);
        let stores = [
            Keyword("memory", Data::Memory),
            Keyword("file", Data::File),
            Keyword("none", Data::None),
        ];
        let place = drive.set("data", &mut self.data, |v| v.choice(&stores))?;
        self.record_span("data", place);
        let place = drive.set("prealloc", &mut self.prealloc, |v| v.size())?;
        self.record_span("prealloc", place);
        let source = drive.source;
        let place = drive
            .set("path", &mut self.image, |v| v.string().map(|path| Some(source.resolve(path))))?;
        self.record_span("path", place);
        let levels = [Keyword("process", FlushLevel::Process), Keyword("host", FlushLevel::Host)];
        let place = drive.set("flush", &mut self.flush, |v| v.choice(&levels))?;
        self.record_span("flush", place);
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
            self.record_span(key, place);
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
            self.record_span(key, place);
        }
        s.finish()
    }

    fn read_errors(&mut self, mut s: Section<'_>) -> Result<()> {
        let e = &mut self.errors;
        s.set("factory_bad_ratio", &mut e.factory_bad, |v| v.number(0.0..=0.9))?;
        s.set("program_failure_rate", &mut e.program_fail, |v| v.number(0.0..=1.0))?;
        s.set("erase_failure_rate", &mut e.erase_fail, |v| v.number(0.0..=1.0))?;
        s.set("die_failure_rate", &mut e.die_fail, |v| v.number(0.0..=1.0))?;
        s.set("rber", &mut e.rber, |v| v.number(0.0..=0.5))?;
        s.set("rber_growth", &mut e.rber_growth, |v| v.number(1.0..=1e9))?;
        s.set("ecc_bits", &mut e.ecc_bits, |v| v.u32_in(&(0..=1 << 19)))?;
        s.set("endurance", &mut e.endurance, |v| v.u32_in(&(0..=1_000_000_000)))?;
        s.set("read_retries", &mut e.read_retries, |v| v.u32_in(&(0..=1000)))?;
        s.set("retry_error_fraction", &mut e.retry_error_fraction, |v| v.number(0.0..=1.0))?;
        s.set("retention_doubling_time", &mut e.retention, |v| v.duration_in(&AGE))?;
        s.set("read_disturb_doubling", &mut e.disturb_reads, |v| v.u32())?;
        s.finish()
    }

    fn record_span(&mut self, key: &'static str, place: Option<SourceSpan>) {
        if let Some(place) = place {
            self.given.push(key);
            self.spans.push((key, place));
        }
    }

    /// Returns the span of a key's last setting by the scenario.
    pub(crate) fn span(&self, key: &str) -> Option<&SourceSpan> {
        self.spans.iter().rev().find(|(k, _)| *k == key).map(|(_, place)| place)
    }

    /// Clears the spans of keys, which come from a preset.
    pub(crate) fn clear_spans(&mut self) {
        self.spans.clear();
    }

    /// Returns the configured capacity and its span.
    pub(crate) fn capacity(&self) -> Option<(u64, &SourceSpan)> {
        self.span("capacity").map(|place| (self.capacity, place))
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.geometry.sector_bytes
    }

    /// Returns the checked medium. Errors point to `whole` if no single key is the cause.
    pub(crate) fn finish(
        &self,
        kind: MediaKind,
        seed: u64,
        whole: &SourceSpan,
    ) -> Result<MediaConfig> {
        let at = |key: &str| self.span(key).unwrap_or(whole);
        let data = match (self.data, &self.image) {
            (Data::Memory, None) if self.prealloc == 0 => DataStore::Memory,
            (Data::Memory, None) => DataStore::Preallocated(self.prealloc),
            (Data::None, None) => DataStore::None,
            (Data::File, Some(path)) => match self.flush {
                FlushLevel::Process => DataStore::File(path.clone()),
                FlushLevel::Host => DataStore::DurableFile(path.clone()),
            },
            (Data::File, None) => {
                return Err(at("data").error(ProblemKind::MissingKey {
                    section: "[drive] with data = \"file\"".into(),
                    key: "path",
                    help: "name the image file, relative to the scenario".into(),
                }));
            }
            (_, Some(_)) => {
                return Err(at("path").error(ProblemKind::Conflict {
                    message: "`path` names an image file, but the data is not kept in one".into(),
                    help: "set data = \"file\", or remove `path`".into(),
                }));
            }
        };
        let is_in_memory = matches!(data, DataStore::Preallocated(_)) && kind != MediaKind::Null;
        if self.prealloc > 0 && !is_in_memory {
            return Err(at("prealloc").error(ProblemKind::Conflict {
                message: "`prealloc` is memory for data, and the drive keeps none in memory".into(),
                help: "set data = \"memory\", or remove `prealloc`".into(),
            }));
        }
        if self.flush == FlushLevel::Host && !(data.flushes_to_host() && kind != MediaKind::Null) {
            return Err(at("flush").error(ProblemKind::Conflict {
                message: "flush = \"host\" writes an image to its device, and the drive has none"
                    .into(),
                help: "set data = \"file\" and `path`, or remove `flush`".into(),
            }));
        }
        if let (MediaKind::Pcm, true) = (kind, data.flushes_to_host())
            && self.geometry.sector_bytes > 4096
        {
            return Err(at("flush").error(ProblemKind::Conflict {
                message: "a crash of the host may tear a sector of phase-change memory that is \
                          larger than a page of 4096 bytes"
                    .into(),
                help: "set geometry.sector_bytes to at most 4096, or flush = \"process\"".into(),
            }));
        }
        match kind {
            MediaKind::Nand => self.finish_nand(data, seed, whole),
            MediaKind::Pcm => self.finish_pcm(data, whole),
            MediaKind::Null => {
                self.check_capacity(whole)?;
                Ok(MediaConfig::Null {
                    bytes: self.capacity,
                    sector_bytes: self.geometry.sector_bytes,
                })
            }
        }
    }

    fn finish_nand(&self, data: DataStore, seed: u64, whole: &SourceSpan) -> Result<MediaConfig> {
        for (key, help) in NEEDED {
            if !self.given.contains(&key) {
                let section = if matches!(key, "read" | "program" | "erase") {
                    "[drive.timing]"
                } else {
                    "[drive.geometry]"
                };
                return Err(whole.error(ProblemKind::MissingKey {
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
            paired_page_distance: self.pair_distance,
            timing: self.timing,
            errors: self.errors,
            data,
            seed,
        };
        // Multiply in 128 bits first, because the checks below may multiply in fewer.
        let g = &self.geometry;
        let bytes = [g.channels, g.pus, g.planes, g.chunks, g.pages, g.page_bytes]
            .iter()
            .map(|n| u128::from(*n))
            .fold(1u128, |product, n| product.saturating_mul(n));
        if bytes > u128::from(u64::MAX) {
            return Err(span_of_key(self, "chunks", whole).error(ProblemKind::Geometry(
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
            span_of_key(self, key, whole).error(ProblemKind::Geometry(e))
        })?;
        if self.one_shot && self.pair_distance != 0 {
            let place =
                self.span("paired_page_distance").or(self.span("one_shot")).unwrap_or(whole);
            return Err(place.error(ProblemKind::Conflict {
                message: "one-shot programming writes all pages of a pair at once, so they have \
                          no distance"
                    .into(),
                help: "set paired_page_distance = 0".into(),
            }));
        }
        Ok(MediaConfig::Nand(nand))
    }

    fn finish_pcm(&self, data: DataStore, whole: &SourceSpan) -> Result<MediaConfig> {
        let g = &self.geometry;
        for (key, n) in [("channels", g.channels), ("pus", g.pus)] {
            if n == 0 {
                let error = ProblemKind::Geometry(GeometryError::Zero { what: key_of(key) });
                return Err(span_of_key(self, key, whole).error(error));
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

    /// Checks capacity and sectors of a medium without chunks.
    fn check_capacity(&self, whole: &SourceSpan) -> Result<()> {
        let sector = self.geometry.sector_bytes;
        if !sector.is_power_of_two() || !(512..=65536).contains(&sector) {
            return Err(span_of_key(self, "sector_bytes", whole).error(ProblemKind::Geometry(
                GeometryError::Unfit {
                    what: "sector_bytes",
                    value: sector.into(),
                    allowed: "it must be a power of two from 512 to 65536".into(),
                },
            )));
        }
        if self.capacity == 0 {
            if self.given.contains(&"capacity") {
                let zero = ProblemKind::Geometry(GeometryError::Zero { what: "capacity" });
                return Err(span_of_key(self, "capacity", whole).error(zero));
            }
            return Err(whole.error(ProblemKind::MissingKey {
                section: "[drive]".into(),
                key: "capacity",
                help: "how many bytes it holds, such as \"8G\"".into(),
            }));
        }
        if !self.capacity.is_multiple_of(u64::from(sector)) {
            return Err(span_of_key(self, "capacity", whole).error(ProblemKind::Geometry(
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

fn span_of_key<'p>(draft: &'p MediaBuilder, key: &str, whole: &'p SourceSpan) -> &'p SourceSpan {
    draft.span(key).unwrap_or(whole)
}

/// Returns the scenario's key for the name in a [`GeometryError`].
fn key_of(what: &str) -> &'static str {
    match what {
        "groups" | "channels" => "channels",
        "PUs per group" | "pus" => "pus",
        "planes" => "planes",
        "pages" | "sectors per chunk" | "ws_opt" | "ws_min" => "pages",
        "page_bytes" => "page_bytes",
        "sector_bytes" => "sector_bytes",
        "pair_distance" => "paired_page_distance",
        _ => "chunks",
    }
}

/// Reads one duration for all page types, or an array with one per page type of the cell.
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
    // A scenario may increase the bits of the preset's cell; its new page types have the timing of
    // the last one.
    let last = times[bits - 1];
    times[bits..].fill(last);
    Ok(times)
}
