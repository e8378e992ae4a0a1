//! [`RuleTemplate`]: programs that come with Sluice, as sources.

/// A template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTemplate {
    /// One stream for the host, and collection when lines are needed or the drive is idle.
    Throughput,
    /// Collection of a few write units at a time, more of them only when space is short.
    Predictable,
    /// Hot data in a stream of its own, and static wear leveling.
    Endurance,
    /// Writes return the physical name that the drive chose.
    Nameless,
}

impl RuleTemplate {
    /// All templates.
    pub const ALL: [RuleTemplate; 4] = [
        RuleTemplate::Throughput,
        RuleTemplate::Predictable,
        RuleTemplate::Endurance,
        RuleTemplate::Nameless,
    ];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            RuleTemplate::Throughput => "throughput",
            RuleTemplate::Predictable => "predictable",
            RuleTemplate::Endurance => "endurance",
            RuleTemplate::Nameless => "nameless",
        }
    }

    /// Returns the template with a name.
    pub fn named(name: &str) -> Option<RuleTemplate> {
        RuleTemplate::ALL.into_iter().find(|template| template.name() == name)
    }

    /// Returns the source, for an application `app_0` on the parallel units 0 to `last_unit` with a
    /// spare share in millionths.
    pub fn source(self, last_unit: u32, spare_ppm: u32) -> String {
        let rules = match self {
            RuleTemplate::Throughput => include_str!("throughput.rules"),
            RuleTemplate::Predictable => include_str!("predictable.rules"),
            RuleTemplate::Endurance => include_str!("endurance.rules"),
            RuleTemplate::Nameless => include_str!("nameless.rules"),
        };
        let (whole, part) = (spare_ppm / 1_000_000, spare_ppm % 1_000_000);
        format!("app app_0 {{ units = 0-{last_unit}, spare = {whole}.{part:06} }}\n{rules}")
    }
}
