//! [`Preset`]: the drives that Sluice includes. Each is the `[drive]` section of a scenario in a
//! file beside this one, with the source of every number as a comment.

use std::fmt::Write as _;

/// A drive that Sluice includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name of the preset in a scenario: `preset = "…"`.
    pub name: &'static str,
    /// Description of the drive.
    pub about: &'static str,
    /// Source of its numbers.
    pub source: &'static str,
    /// TOML text of the preset.
    pub text: &'static str,
}

macro_rules! preset {
    ($name:literal, $about:literal, $source:literal) => {
        Preset {
            name: $name,
            about: $about,
            source: $source,
            text: include_str!(concat!($name, ".toml")),
        }
    };
}

static PRESETS: [Preset; 17] = [
    preset!(
        "ocssd-mlc-128pu",
        "open-channel, 2 TB MLC, 16 channels × 8 PUs, 4 planes",
        "LightNVM paper (FAST 2017), Table 1 and sections 2 to 5"
    ),
    preset!(
        "ocssd-mlc-128pu-small",
        "ocssd-mlc-128pu with 64 GiB: steady state is near",
        "as ocssd-mlc-128pu"
    ),
    preset!(
        "openssd-jasmine",
        "open-channel, 64 GB, 2 channels, SATA 2",
        "thesis, chapter 6 section 5"
    ),
    preset!("nvme-null", "no media: 35 us per 4 KB, 380 MB/s", "thesis, chapter 6 section 5"),
    preset!(
        "dc-nvme-mlc",
        "data-centre NVMe, 400 GB (P3700 class)",
        "maker's product brief; geometry chosen to meet it"
    ),
    preset!(
        "consumer-nvme",
        "consumer NVMe, 400 GB (Intel 750 class)",
        "maker's product brief; geometry chosen to meet it"
    ),
    preset!(
        "sata-840pro",
        "one SATA drive of six, 256 GB, 32 tags",
        "HIOPS paper (ATC 2014), section 4; maker's data sheet"
    ),
    preset!("sata-840pro-small", "sata-840pro with 8 GiB", "as sata-840pro"),
    preset!(
        "mqsim-default",
        "512 GiB MLC, 8 channels × 8 PUs, 2 planes",
        "MQSim's shipped configuration"
    ),
    preset!(
        "mqsim-default-small",
        "mqsim-default with 16 GiB: steady state is near",
        "as mqsim-default"
    ),
    preset!(
        "femu-default",
        "16 GiB, 8 channels × 8 PUs, no transfer time",
        "FEMU's shipped script"
    ),
    preset!("tlc-2020s", "1 TB TLC, programmed page by page", "FEMU's TLC figures; makers' briefs"),
    preset!(
        "tlc-2020s-oneshot",
        "1 TB TLC, word lines programmed in one shot",
        "FEMU's TLC figures; makers' briefs"
    ),
    preset!("tlc-2020s-small", "tlc-2020s with 36 GiB: steady state is near", "as tlc-2020s"),
    preset!("qlc-2020s", "2 TB QLC, programmed page by page", "makers' briefs"),
    preset!("qlc-2020s-small", "qlc-2020s with 48 GiB: steady state is near", "as qlc-2020s"),
    preset!(
        "pcm",
        "phase-change memory, 8 GiB, 5 us to read and to write",
        "speculation paper (ATC 2014), Table 1"
    ),
];

/// Returns all presets in the order of the listing.
pub fn all() -> &'static [Preset] {
    &PRESETS
}

/// Returns the preset with this name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}

impl Preset {
    /// Returns the name of its text in messages.
    pub fn file_name(&self) -> String {
        format!("presets/{}.toml", self.name)
    }
}

/// Returns the output of `sluice drive presets`.
pub fn listing() -> String {
    let width = PRESETS.iter().map(|p| p.name.len()).max().unwrap_or(0);
    let about = PRESETS.iter().map(|p| p.about.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for p in &PRESETS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<width$}  {:<about$}  {}", p.name, p.about, p.source);
    }
    text.push_str("\nUse one with `[drive] preset = \"…\"`, and change what you like below it.\n");
    text
}

#[cfg(test)]
mod tests;
