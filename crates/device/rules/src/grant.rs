//! [`RuleGrant`]: what the sender of a program may use. The drive has it; it never comes with a
//! program.

/// Parallel units that an application may own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppGrant {
    /// Name of the application.
    pub name: String,
    /// First parallel unit.
    pub first_unit: u32,
    /// Last parallel unit.
    pub last_unit: u32,
}

/// Limits and rights of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleGrant {
    /// Parallel units of the drive.
    pub units: u32,
    /// Logical sectors of a parallel unit at most, without spare space.
    pub unit_sectors: u64,
    /// Applications that the program may have; `None` for any that fit the drive.
    pub apps: Option<Vec<AppGrant>>,
    /// Bytes of all tables.
    pub table_bytes: u64,
    /// Operations of a command in the worst case, all hops included.
    pub command_ops: u64,
    /// Operations of a poll of background rules, of a periodic rule, and of a moved sector.
    pub background_ops: u64,
    /// Whether the program may have global rules: collection and wear leveling of the whole drive.
    pub allows_global: bool,
}

/// The resources that a program may use, and the drive that it is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimits {
    /// The grant.
    pub grant: RuleGrant,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Lines that can be a victim at most.
    pub lines: u32,
}

impl Default for RuleGrant {
    fn default() -> RuleGrant {
        RuleGrant {
            units: 128,
            unit_sectors: 1 << 18,
            apps: None,
            table_bytes: 64 << 20,
            command_ops: 4096,
            background_ops: 1 << 24,
            allows_global: false,
        }
    }
}
