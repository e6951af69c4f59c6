//! The policy as written: what serde reads, field by field, before it is checked as a whole.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use crate::rate::parse_span;
use crate::{Fallback, Nanos, OnMissing, Rate, StoreKind};

/// A policy as written.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicySpec {
    pub(super) default_tier: Option<String>,
    #[serde(default)]
    pub(super) limits: Ordered<LimitSpec>,
    #[serde(default)]
    pub(super) tiers: Ordered<Ordered<OverrideSpec>>,
}

/// A limit as written, or what a tier changes of it. Nothing is required here; the checks come with the whole.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitSpec {
    pub(super) key: Option<Vec<String>>,
    #[serde(rename = "match")]
    pub(super) scope: Option<ScopeSpec>,
    pub(super) exempt: Option<Ordered<Vec<String>>>,
    pub(super) on_missing: Option<OnMissing>,
    pub(super) cost: Option<CostSpec>,
    pub(super) store: Option<StoreKind>,
    pub(super) fallback: Option<Fallback>,
    pub(super) share: Option<Percent>,
    pub(super) shadow: Option<bool>,
    pub(super) algorithm: Option<AlgorithmName>,
    pub(super) capacity: Option<u64>,
    pub(super) refill: Option<Rate>,
    pub(super) max_overshoot: Option<Percent>,
    pub(super) reserve: Option<Percent>,
    pub(super) max_wait: Option<Span>,
}

/// What a tier says of a limit: a word, or a table of what differs.
#[derive(Clone, Debug)]
pub(super) enum OverrideSpec {
    Unlimited,
    Blocked,
    Changed(Box<LimitSpec>),
}

/// Which requests a limit applies to.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScopeSpec {
    pub(super) route: Option<String>,
    pub(super) method: Option<String>,
}

/// The algorithms by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AlgorithmName {
    TokenBucket,
}

impl AlgorithmName {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
        }
    }
}

/// What a request costs at a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CostSpec {
    Request,
    Fixed(u64),
    Field(String),
}

/// A part, in parts per million; written `"10%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Percent(pub(super) u32);

/// A span of time; written `"15min"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Nanos);

/// A table whose order is kept and whose names are told apart.
#[derive(Clone, Debug)]
pub(super) struct Ordered<T>(pub(super) Vec<(String, T)>);

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Ordered<T> {
    pub(super) fn find(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Ordered<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries = Ordered::<T>::default();
                while let Some(name) = map.next_key::<String>()? {
                    if entries.find(&name).is_some() {
                        return Err(de::Error::custom(format!("`{name}` is given twice")));
                    }
                    let value = map.next_value()?;
                    entries.0.push((name, value));
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl<'de> Deserialize<'de> for OverrideSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = OverrideSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"unlimited\", \"blocked\" or a table of what differs")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<OverrideSpec, E> {
                match word {
                    "unlimited" => Ok(OverrideSpec::Unlimited),
                    "blocked" => Ok(OverrideSpec::Blocked),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OverrideSpec, A::Error> {
                let table = LimitSpec::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(OverrideSpec::Changed(Box::new(table)))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

impl<'de> Deserialize<'de> for CostSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Costs;
        impl Visitor<'_> for Costs {
            type Value = CostSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"request\", \"field:<name>\" or a whole number of at least 1")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<CostSpec, E> {
                match word.strip_prefix("field:") {
                    _ if word == "request" => Ok(CostSpec::Request),
                    Some(name) if !name.is_empty() => Ok(CostSpec::Field(name.to_owned())),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_u64<E: de::Error>(self, cost: u64) -> Result<CostSpec, E> {
                if cost == 0 {
                    Err(E::invalid_value(de::Unexpected::Unsigned(0), &self))
                } else {
                    Ok(CostSpec::Fixed(cost))
                }
            }

            fn visit_i64<E: de::Error>(self, cost: i64) -> Result<CostSpec, E> {
                let wrong = E::invalid_value(de::Unexpected::Signed(cost), &self);
                u64::try_from(cost).map_err(|_| wrong).and_then(|cost| self.visit_u64(cost))
            }
        }
        deserializer.deserialize_any(Costs)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong =
            || de::Error::custom(format!("`{text}` is no part: write a percentage such as \"10%\" or \"2.5%\""));
        let number = text.trim().strip_suffix('%').ok_or_else(wrong)?.trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 4 {
            return Err(wrong());
        }
        // Parts per million: a percent is 10^4 of them, so four decimals are exact.
        let ppm: u32 = format!("{whole}{fraction:0<4}").parse().map_err(|_| wrong())?;
        Ok(Self(ppm))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || {
            de::Error::custom(format!("`{text}` is no span: write a number and a unit such as \"15min\" or \"20ms\""))
        };
        parse_span(&text).map(Self).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
