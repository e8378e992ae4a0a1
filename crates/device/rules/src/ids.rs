//! Numbers of the parts of a program, of contexts and of lines.

collections::id_type! {
    /// An application of a program.
    pub struct AppId(pub u8), "application ";
}

impl AppId {
    /// The owner of global rules: collection and wear leveling of the whole drive.
    pub const GLOBAL: AppId = AppId::new(u8::MAX);
}

collections::id_type! {
    /// A table of a program.
    pub struct TableId(pub u8), "table ";
}

collections::id_type! {
    /// A record layout of a program.
    pub struct LayoutId(pub u8), "layout ";
}

collections::id_type! {
    /// A rule of a program.
    pub struct RuleId(pub u16), "rule ";
}

collections::id_type! {
    /// An input that the engine has not finished.
    pub struct ContextId(pub u16), "context ";
}

collections::id_type! {
    /// A line of the drive, as the drive numbers it.
    pub struct RuleLine(pub u32), "line ";
}
