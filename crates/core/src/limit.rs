//! A limit as the policy resolved it for one tier: valid by construction, ready for the stores.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hasher;
use std::sync::{LazyLock, Mutex, PoisonError};

use siphasher::sip::SipHasher13;

use crate::algorithm::Algorithm;
use crate::{Nanos, StoreKind};

/// The name of a limit: a copy costs nothing.
///
/// Names are interned for the life of the process: a policy has few of them, and a verdict carries them without
/// touching a counter that all threads share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName(&'static str);

impl LimitName {
    /// Interns `name`.
    pub fn new(name: &str) -> Self {
        static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
        // A poisoned set is a whole set: it is only ever added to.
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let interned = names.get(name).copied().unwrap_or_else(|| {
            let leaked: &'static str = Box::leak(name.into());
            names.insert(leaked);
            leaked
        });
        Self(interned)
    }

    /// The name as text.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How much a limit allows.
#[derive(Clone, Debug, PartialEq)]
pub enum Figures {
    /// Everything: the limit does not apply.
    Unlimited,
    /// Nothing.
    Blocked,
    /// What the algorithm admits.
    Limited(Algorithm),
}

/// What decides when the exact store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// Everything passes.
    Allow,
    /// Nothing passes.
    Deny,
    /// This process counts alone, with its share of the limit.
    Local,
    /// The same limit goes on, on the mesh.
    Mesh,
}

/// What to do with a request that lacks a field of the limit's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMissing {
    /// It passes this limit, uncounted.
    Allow,
    /// It is denied.
    Deny,
    /// All such requests share one bucket.
    Shared,
}

/// What a limit says for the mesh. Ratios are parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MeshFigures {
    /// By how much of its capacity the fleet may overshoot: default 100,000 (10 %).
    pub max_overshoot_ppm: u32,
    /// Below this part of the capacity every replica takes its fair part only: default 150,000 (15 %).
    pub reserve_ppm: u32,
    /// How long the asynchronous call waits for an acknowledgement when credit is short: default 20 ms.
    pub max_wait: Nanos,
}

impl Default for MeshFigures {
    fn default() -> Self {
        Self { max_overshoot_ppm: 100_000, reserve_ppm: 150_000, max_wait: Nanos::from_millis(20) }
    }
}

/// What a limit is made of; [`Limit::new`] makes it one.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitParts {
    /// Its name.
    pub name: LimitName,
    /// The fields of the request that tell buckets apart; none is one bucket for everybody.
    pub key: Box<[Box<str>]>,
    /// Where it is counted.
    pub store: StoreKind,
    /// How much it allows.
    pub figures: Figures,
    /// What decides when the exact store is away; only for [`StoreKind::Exact`].
    pub fallback: Option<Fallback>,
    /// Counts and reports, never denies.
    pub shadow: bool,
    /// What to do with a request that lacks a key field.
    pub on_missing: Option<OnMissing>,
    /// Its figures for the mesh.
    pub mesh: MeshFigures,
}

/// One limit with the figures of one tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    parts: LimitParts,
    shape: u64,
}

impl Limit {
    /// Makes `parts` a limit.
    pub fn new(parts: LimitParts) -> Self {
        // A fixed key: the shape has to be the same in every process of a fleet.
        let mut hasher = SipHasher13::new();
        let text = format!("{}\0{:?}\0{:?}", parts.name, parts.key, parts.figures);
        hasher.write(text.as_bytes());
        Self { shape: hasher.finish(), parts }
    }

    /// Its name.
    pub const fn name(&self) -> LimitName {
        self.parts.name
    }

    /// The request's fields that tell its buckets apart.
    pub const fn key(&self) -> &[Box<str>] {
        &self.parts.key
    }

    /// Where it is counted.
    pub const fn store(&self) -> StoreKind {
        self.parts.store
    }

    /// How much it allows.
    pub const fn figures(&self) -> &Figures {
        &self.parts.figures
    }

    /// Its algorithm, unless it is a word.
    pub const fn algorithm(&self) -> Option<&Algorithm> {
        match &self.parts.figures {
            Figures::Limited(algorithm) => Some(algorithm),
            Figures::Unlimited | Figures::Blocked => None,
        }
    }

    /// What decides when the exact store is away.
    pub const fn fallback(&self) -> Option<Fallback> {
        self.parts.fallback
    }

    /// Whether it only counts and reports.
    pub const fn shadow(&self) -> bool {
        self.parts.shadow
    }

    /// What to do with a request that lacks a key field.
    pub const fn on_missing(&self) -> Option<OnMissing> {
        self.parts.on_missing
    }

    /// Its figures for the mesh.
    pub const fn mesh(&self) -> MeshFigures {
        self.parts.mesh
    }

    /// A hash of name, key and figures, the same in every process: what a memory store's keys start with, so that a word is
    /// never read with figures other than those it was written with.
    pub const fn shape(&self) -> u64 {
        self.shape
    }

    /// All of it, to derive another limit from.
    pub const fn parts(&self) -> &LimitParts {
        &self.parts
    }
}
