//! What is wrong with a policy, said so that it can be mended.

use std::fmt;

/// One thing that is wrong with a policy, or that cannot work.
///
/// Shown as `file:line:column: TG004 limits.requests.fallback: message; remedy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The stable code, listed in [`Code`].
    pub code: Code,
    /// The file, as it was named; `policy` for one built in code.
    pub file: String,
    /// Line and column, counted from 1; none for a policy built in code.
    pub position: Option<(usize, usize)>,
    /// The path of the field, such as `limits.requests.capacity`.
    pub field: String,
    /// The offending value as written, where one value is to blame.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.code)?;
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        write!(f, ": {}", self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A policy that was refused. Nothing was loaded: what was in force still is. Mend the file as each problem says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    pub(super) problems: Vec<Problem>,
}

impl PolicyError {
    /// What is wrong; at least one problem.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyError {}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal,)+) => {
        /// The stable codes of what can be wrong with a policy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The code as text, such as `TG001`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)+
                }
            }
        }
    };
}

codes! {
    /// The file cannot be read, or its extension is none of `toml`, `yaml`, `yml`, `json`.
    Unreadable = "TG001",
    /// The text is not well formed, has an unknown field or a value of the wrong type.
    Syntax = "TG002",
    /// A figure that makes no limit: zero, too large, out of range.
    Figure = "TG003",
    /// An exact limit without a fallback: there is no silent default.
    NoFallback = "TG004",
    /// A figure that the algorithm needs is missing.
    MissingFigure = "TG005",
    /// A figure or setting that the algorithm or the store does not know.
    UnusedFigure = "TG006",
    /// A tier names a limit that does not exist.
    UnknownLimit = "TG007",
    /// `default_tier` names a tier that does not exist, or is missing although there are tiers.
    DefaultTier = "TG008",
    /// A tier changes the figures of a bucket that several tiers share.
    SharedBucket = "TG009",
    /// The store cannot run this algorithm.
    StoreAlgorithm = "TG010",
    /// A name that is empty or cannot be used in a header or a key.
    Name = "TG011",
    /// A tier tries to change what only the limit itself can say.
    NotOverridable = "TG012",
    /// A policy without any limit.
    Empty = "TG013",
    /// A mesh limit too small or too fast for the fleet: the bound holds, but the limit will be under-used.
    MeshInfeasible = "TG014",
    /// A sliding-window log that needs much memory for each key.
    LargeLog = "TG015",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
