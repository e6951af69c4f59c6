//! A request to the script, owned: what the limiter's rules become.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tidegate_core::{Answer, Answers, Outcome, Reason, Rule, Standing, StoreError};

use crate::figures::{Figures, RawMark};

/// What a group of rules is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    /// Debit all or none.
    Take,
    /// Only look.
    Peek,
    /// Give back.
    Give,
    /// Debit, there or not.
    Charge,
    /// Forget.
    Reset,
    /// Undo the debits that left these marks.
    Undo(Vec<RawMark>),
}

impl Operation {
    /// What the script calls it.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Peek => "peek",
            Self::Give => "give",
            Self::Charge => "charge",
            Self::Reset => "reset",
            Self::Undo(_) => "undo",
        }
    }

    /// Whether it may leave more in a bucket than a denial before it has seen.
    pub(crate) const fn gives(&self) -> bool {
        !matches!(self, Self::Take | Self::Peek | Self::Charge)
    }

    /// Whether sending it twice by mistake can only deny more, never admit more.
    pub(crate) const fn is_safe_twice(&self) -> bool {
        matches!(self, Self::Take | Self::Peek | Self::Reset)
    }
}

/// One rule that the script counts.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// The whole key, prefix included.
    pub(crate) key: String,
    /// A hash of key and shape.
    pub(crate) hash: u64,
    /// The limit's shape: name, key fields and figures.
    pub(crate) shape: u64,
    pub(crate) figures: Figures,
    pub(crate) cost: u64,
}

/// All rules of one request that the script counts, and what it needs to be told from others.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) counted: Arc<[Counted]>,
    /// A hash of keys and shapes: equal for requests that may travel together.
    pub(crate) identity: u64,
    /// Rules that need no counting, by their place: the limit is a word.
    pub(crate) words: Vec<(usize, Outcome)>,
}

impl Rules {
    /// Prepares `rules`; `prefix` begins each key.
    pub(crate) fn new(prefix: &str, rules: &[Rule<'_>]) -> Result<Self, StoreError> {
        let mut counted = Vec::with_capacity(rules.len());
        let mut words = Vec::new();
        let mut hasher = DefaultHasher::new();
        for (place, rule) in rules.iter().enumerate() {
            let figures = Figures::of(rule.limit).map_err(|_| unfit(rule))?;
            let Some(figures) = figures else {
                let blocked = *rule.limit.figures() == tidegate_core::Figures::Blocked;
                words.push((place, if blocked { Outcome::Blocked } else { Outcome::Allowed }));
                continue;
            };
            let key = key(prefix, rule, &figures);
            let shape = rule.limit.shape();
            let hash = hash(&(shape, &key));
            hash.hash(&mut hasher);
            counted.push(Counted { key, hash, shape, figures, cost: rule.cost });
        }
        Ok(Self { counted: counted.into(), identity: hasher.finish(), words })
    }

    /// Whether no wait would ever let this pass.
    pub(crate) fn never_fits(&self) -> bool {
        self.words.iter().any(|(_, outcome)| *outcome == Outcome::Blocked)
            || self.counted.iter().any(|rule| !rule.figures.fits(rule.cost))
    }

    /// Whether all costs are zero.
    pub(crate) fn only_look(&self) -> bool {
        self.counted.iter().all(|rule| rule.cost == 0)
    }

    /// Puts the answers for the words among those of the counted rules.
    pub(crate) fn complete(&self, mut answers: Answers) -> Answers {
        for (place, outcome) in &self.words {
            answers.insert((*place).min(answers.len()), word_answer(*outcome));
        }
        answers
    }

    /// Whether both are about the same buckets with the same figures.
    pub(crate) fn same_buckets(&self, other: &Self) -> bool {
        self.identity == other.identity && same_buckets(&self.counted, &other.counted)
    }

    /// Whether `counted` are the same buckets, asked for the same.
    pub(crate) fn is_same_request(&self, counted: &[Counted]) -> bool {
        same_buckets(&self.counted, counted) && self.counted.iter().zip(counted).all(|(a, b)| a.cost == b.cost)
    }

    /// Whether both ask for the same of them.
    pub(crate) fn same_costs(&self, other: &Self) -> bool {
        self.counted.iter().zip(&*other.counted).all(|(a, b)| a.cost == b.cost)
    }
}

fn same_buckets(a: &[Counted], b: &[Counted]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.shape == b.shape && a.key == b.key)
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// `<prefix><limit>.<algorithm>:{<identity>}[:<route>]`: another algorithm under the same name is another key.
fn key(prefix: &str, rule: &Rule<'_>, figures: &Figures) -> String {
    let text = rule.key_text();
    // The name's own colons and braces are escaped, so the first is the separator.
    let (name, rest) = text.split_at(text.find(":{").unwrap_or(text.len()));
    format!("{prefix}{name}.{}{rest}", figures.name())
}

fn unfit(rule: &Rule<'_>) -> StoreError {
    StoreError::Refused(format!(
        "the figures of limit `{}` are beyond what the script can count exactly: at most 2^51 microseconds to fill and \
         2^51 parts of a microsecond per token",
        rule.limit.name()
    ))
}

fn word_answer(outcome: Outcome) -> Answer {
    let standing = Standing {
        outcome,
        limit: 0,
        remaining: 0,
        retry_after: tidegate_core::Nanos::ZERO,
        next_unit_in: tidegate_core::Nanos::ZERO,
        full_in: tidegate_core::Nanos::ZERO,
        delay: tidegate_core::Nanos::ZERO,
        mark: tidegate_core::algorithm::Mark::default(),
    };
    Answer { standing, reason: Reason::Word }
}
