//! The tier of a name that nobody knows: limit by limit, the strictest figures of any tier.

use std::cmp::Ordering;

use super::tier::{Tier, TierLimit};
use crate::Figures;

/// The strictest tier. A limit that is unlimited in every tier is not in it.
pub(super) fn tier<'a>(limits: impl Iterator<Item = &'a str>, tiers: &[(Box<str>, Tier)]) -> Tier {
    let strictest = limits.filter_map(|name| {
        let of_tiers =
            tiers.iter().filter_map(|(_, tier)| tier.limits.iter().find(|limit| limit.limit.name().as_str() == name));
        of_tiers.min_by(|one, other| compare(one, other)).cloned()
    });
    Tier { limits: strictest.collect() }
}

/// The smaller is the stricter: blocked, then the smallest refill per time, then the smallest capacity.
fn compare(one: &TierLimit, other: &TierLimit) -> Ordering {
    match (one.limit.figures(), other.limit.figures()) {
        (Figures::Limited(one), Figures::Limited(other)) => {
            one.rate().cmp_speed(&other.rate()).then(one.capacity().cmp(&other.capacity()))
        }
        (one, other) => rank(one).cmp(&rank(other)),
    }
}

fn rank(figures: &Figures) -> u8 {
    match figures {
        Figures::Blocked => 0,
        Figures::Limited(_) => 1,
        Figures::Unlimited => 2,
    }
}
