//! The policy: which limits there are, and what each tier gets of them.

mod build;
mod error;
mod figures;
mod locate;
mod scope;
mod source;
mod spec;
mod strictest;
mod tier;

use std::path::Path;

pub use error::{Code, PolicyError, Problem};

pub(crate) use tier::{Applies, Tier, TierLimit};

use crate::{Limit, StoreKind};
use locate::Format;
use source::Source;

/// The limits of a service, checked: once built, a policy is valid.
///
/// ```
/// use tidegate_core::Policy;
/// let policy = Policy::from_toml(r#"
///     [limits.requests]
///     key = ["user"]
///     store = "local"
///     capacity = 20
///     refill = "100/min"
/// "#).unwrap();
/// assert_eq!(policy.limits(None).count(), 1);
///
/// let error = Policy::from_toml("[limits.requests]\nkey = []\nstore = \"local\"\ncapacity = 0\nrefill = \"1/s\"").unwrap_err();
/// assert!(error.to_string().starts_with("policy:4:1: TG003 limits.requests.capacity"), "{error}");
/// ```
#[derive(Debug, PartialEq)]
pub struct Policy {
    tiers: Vec<(Box<str>, Tier)>,
    default: usize,
    unknown: Tier,
    warnings: Vec<Problem>,
}

impl Policy {
    /// Reads a policy file: TOML, JSON or (feature `yaml`) YAML, by its extension.
    ///
    /// # Errors
    /// [`PolicyError`] with everything that is wrong, each with file, line, column, field and a remedy.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let unreadable = |message: String, remedy: &str| PolicyError {
            problems: vec![Source { file: file.clone(), text: None }.problem(Code::Unreadable, &[], message, remedy)],
        };
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Format::Toml,
            Some("json") => Format::Json,
            #[cfg(feature = "yaml")]
            Some("yaml" | "yml") => Format::Yaml,
            #[cfg(not(feature = "yaml"))]
            Some("yaml" | "yml") => {
                return Err(unreadable("this build reads no YAML".to_owned(), "turn on the feature `yaml`"));
            }
            _ => {
                return Err(unreadable("the extension is none of toml, json, yaml, yml".to_owned(), "rename the file"));
            }
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| unreadable(format!("cannot be read: {error}"), "check the path and its permissions"))?;
        Self::load(&Source { file: file.clone(), text: Some((text, format)) })
    }

    /// Reads a policy in TOML.
    ///
    /// # Errors
    /// As [`Policy::from_path`].
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        Self::load(&Source { file: "policy".to_owned(), text: Some((text.to_owned(), Format::Toml)) })
    }

    /// Reads a policy in JSON.
    ///
    /// # Errors
    /// As [`Policy::from_path`].
    pub fn from_json(text: &str) -> Result<Self, PolicyError> {
        Self::load(&Source { file: "policy".to_owned(), text: Some((text.to_owned(), Format::Json)) })
    }

    /// Reads a policy in YAML.
    ///
    /// # Errors
    /// As [`Policy::from_path`].
    #[cfg(feature = "yaml")]
    pub fn from_yaml(text: &str) -> Result<Self, PolicyError> {
        Self::load(&Source { file: "policy".to_owned(), text: Some((text.to_owned(), Format::Yaml)) })
    }

    fn load(source: &Source) -> Result<Self, PolicyError> {
        let spec = source.parse().map_err(|problem| PolicyError { problems: vec![*problem] })?;
        let resolved = build::resolve(&spec, source).map_err(|problems| PolicyError { problems })?;
        let build::Resolved { named, default, unknown, warnings } = resolved;
        Ok(Self { tiers: named, default, unknown, warnings })
    }

    /// The limits of a tier; `None` is the default tier, an unknown name gets the strictest figures of any tier.
    pub fn limits(&self, tier: Option<&str>) -> impl Iterator<Item = &Limit> {
        let (Ok(tier) | Err(tier)) = self.tier(tier);
        tier.limits.iter().map(|limit| &limit.limit)
    }

    /// The names of the tiers; none where the policy has no tiers.
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        self.tiers.iter().map(|(name, _)| &**name).filter(|name| !name.is_empty())
    }

    /// What is valid but cannot work as meant.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Every limit of every tier, and those that stand in while the exact store is away.
    pub fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        let all = self.tiers.iter().map(|(_, tier)| tier).flat_map(|tier| &tier.limits);
        all.flat_map(|limit| std::iter::once(&limit.limit).chain(&limit.fallback))
    }

    /// The first limit that a store of this kind counts.
    pub(crate) fn needs(&self, store: StoreKind) -> Option<&Limit> {
        self.all_limits().find(|limit| limit.store() == store)
    }

    /// The tier of that name, or `Err` with the strictest one.
    pub(crate) fn tier(&self, name: Option<&str>) -> Result<&Tier, &Tier> {
        let Some(name) = name else { return Ok(&self.tiers[self.default].1) };
        let known = self.tiers.iter().find(|(tier, _)| **tier == *name && !tier.is_empty());
        known.map(|(_, tier)| tier).ok_or(&self.unknown)
    }
}
