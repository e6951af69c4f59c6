//! Checks a policy as a whole and resolves it, tier by tier, to limits that stores understand.

use std::collections::HashSet;

use super::error::{Code, Problem};
use super::scope::{RoutePattern, Scope};
use super::source::Source;
use super::spec::{CostSpec, LimitSpec, OverrideSpec, PolicySpec, ScopeSpec};
use super::tier::{Cost, Tier, TierLimit};
use super::{figures, strictest};
use crate::{Fallback, Figures, Limit, LimitName, LimitParts, MeshFigures, StoreKind};

/// The tiers of a policy: those named, and the one for names that are not.
pub(super) struct Resolved {
    pub(super) named: Vec<(Box<str>, Tier)>,
    pub(super) default: usize,
    pub(super) unknown: Tier,
    pub(super) warnings: Vec<Problem>,
}

/// Checks and resolves `spec`; all that is wrong with it, at once, if anything is.
pub(super) fn resolve(spec: &PolicySpec, source: &Source) -> Result<Resolved, Vec<Problem>> {
    let mut checks = Checks { source, problems: Vec::new() };
    checks.names(spec);
    checks.overrides(spec);
    let default = checks.default_tier(spec);
    let mut named: Vec<(Box<str>, Tier)> = Vec::new();
    for (name, overrides) in &spec.tiers.0 {
        let limits = spec.limits.0.iter().map(|(limit, base)| {
            let path = ["tiers", name, limit];
            checks.tier_limit(limit, base, overrides.find(limit), &path)
        });
        let limits: Vec<_> = limits.collect();
        named.push((name.as_str().into(), Tier { limits: limits.into_iter().flatten().collect() }));
    }
    if named.is_empty() {
        let limits =
            spec.limits.0.iter().filter_map(|(limit, base)| checks.tier_limit(limit, base, None, &["limits", limit]));
        let limits = limits.collect();
        named.push(("".into(), Tier { limits }));
    }
    let mut seen = HashSet::new();
    checks.problems.retain(|problem| seen.insert((problem.code, problem.field.clone(), problem.message.clone())));
    if !checks.problems.is_empty() {
        return Err(checks.problems);
    }
    let unknown = strictest::tier(spec.limits.0.iter().map(|(name, _)| name.as_str()), &named);
    let warnings = figures::warnings(&named, source);
    Ok(Resolved { named, default, unknown, warnings })
}

/// The checks, gathering problems rather than stopping at the first.
pub(super) struct Checks<'a> {
    source: &'a Source,
    problems: Vec<Problem>,
}

impl Checks<'_> {
    pub(super) fn report(&mut self, code: Code, path: &[&str], message: impl Into<String>, remedy: &str) {
        self.problems.push(self.source.problem(code, path, message.into(), remedy));
    }

    fn names(&mut self, spec: &PolicySpec) {
        if spec.limits.0.is_empty() {
            self.report(Code::Empty, &[], "there is no limit", "add a table [limits.<name>]");
        }
        let limits = spec.limits.0.iter().map(|(name, _)| ("limits", name));
        let tiers = spec.tiers.0.iter().map(|(name, _)| ("tiers", name));
        for (table, name) in limits.chain(tiers) {
            let fits =
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
            if !fits {
                let remedy = "use letters, digits, `_`, `-` and `.`";
                self.report(Code::Name, &[table, name], format!("`{name}` cannot be a name"), remedy);
            }
        }
    }

    fn default_tier(&mut self, spec: &PolicySpec) -> usize {
        let known = || spec.tiers.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        match &spec.default_tier {
            Some(name) => spec.tiers.0.iter().position(|(tier, _)| tier == name).unwrap_or_else(|| {
                let remedy = format!("add [tiers.{name}] or name one of: {}", known());
                self.report(Code::DefaultTier, &["default_tier"], format!("there is no tier `{name}`"), &remedy);
                0
            }),
            None if spec.tiers.0.is_empty() => 0,
            None => {
                let remedy = format!("add default_tier, one of: {}", known());
                self.report(Code::DefaultTier, &["tiers"], "there are tiers but no default_tier", &remedy);
                0
            }
        }
    }

    fn overrides(&mut self, spec: &PolicySpec) {
        for (tier, overrides) in &spec.tiers.0 {
            for (name, change) in &overrides.0 {
                let path = ["tiers", tier.as_str(), name.as_str()];
                let Some(base) = spec.limits.find(name) else {
                    let known = spec.limits.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                    let remedy = format!("name one of: {known}");
                    self.report(Code::UnknownLimit, &path, format!("there is no limit `{name}`"), &remedy);
                    continue;
                };
                if let OverrideSpec::Changed(change) = change {
                    self.change(base, change, &path);
                }
            }
        }
    }

    fn change(&mut self, base: &LimitSpec, change: &LimitSpec, path: &[&str; 3]) {
        let fixed = [
            ("key", change.key.is_some()),
            ("match", change.scope.is_some()),
            ("exempt", change.exempt.is_some()),
            ("on_missing", change.on_missing.is_some()),
            ("cost", change.cost.is_some()),
        ];
        for (field, given) in fixed {
            if given {
                let message = format!("a tier cannot change `{field}`");
                self.report(
                    Code::NotOverridable,
                    &[path[0], path[1], path[2], field],
                    message,
                    "set it on the limit itself",
                );
            }
        }
        let shared = base.key.as_ref().is_some_and(Vec::is_empty);
        if shared && (figures::any(change) || change.store.is_some() || change.algorithm.is_some()) {
            let message = "this bucket is one for all tiers, so a tier cannot change it";
            self.report(Code::SharedBucket, path, message, "put \"tier\" into the limit's key, or make another limit");
        }
    }

    /// One limit as one tier sees it; `None` if it is unlimited there or wrong.
    fn tier_limit(
        &mut self,
        name: &str,
        base: &LimitSpec,
        change: Option<&OverrideSpec>,
        path: &[&str],
    ) -> Option<TierLimit> {
        let own = ["limits", name];
        let (spec, figures) = match change {
            Some(OverrideSpec::Unlimited) => return None,
            Some(OverrideSpec::Blocked) => (base.clone(), Some(Figures::Blocked)),
            Some(OverrideSpec::Changed(change)) => (merge(base, change), None),
            None => (base.clone(), None),
        };
        let path = if change.is_some() { path } else { &own };
        let Some(key) = &spec.key else {
            self.report(
                Code::MissingFigure,
                &own,
                "`key` is missing",
                "name the fields that tell buckets apart, such as key = [\"user\"]; [] is one bucket for all",
            );
            return None;
        };
        let Some(store) = spec.store else {
            self.report(Code::MissingFigure, &own, "`store` is missing", "choose \"local\", \"exact\" or \"mesh\"");
            return None;
        };
        let figures = figures.map_or_else(|| figures::figures(&spec, path, self), Some)?;
        let before = self.problems.len();
        self.store_checks(&spec, store, path);
        if self.problems.len() > before {
            return None;
        }
        let parts = LimitParts {
            name: LimitName::new(name),
            key: key.iter().map(|field| field.as_str().into()).collect(),
            store,
            figures,
            fallback: spec.fallback,
            shadow: spec.shadow.unwrap_or(false),
            on_missing: spec.on_missing,
            mesh: mesh_figures(&spec),
        };
        let fallback = match spec.fallback {
            Some(Fallback::Local) => {
                let share = spec.share.map_or(1_000_000, |share| share.0);
                let figures = figures::scale(&parts.figures, share);
                Some(Limit::new(LimitParts { store: StoreKind::Local, fallback: None, figures, ..parts.clone() }))
            }
            Some(Fallback::Mesh) => {
                Some(Limit::new(LimitParts { store: StoreKind::Mesh, fallback: None, ..parts.clone() }))
            }
            Some(Fallback::Allow | Fallback::Deny) | None => None,
        };
        let cost = match &spec.cost {
            None | Some(CostSpec::Request) => Cost::Request,
            Some(CostSpec::Fixed(cost)) => Cost::Fixed(*cost),
            Some(CostSpec::Field(field)) => Cost::Field(field.as_str().into()),
        };
        Some(TierLimit { limit: Limit::new(parts), fallback, scope: scope(&spec), cost })
    }

    fn store_checks(&mut self, spec: &LimitSpec, store: StoreKind, path: &[&str]) {
        let exact = store == StoreKind::Exact;
        if exact && spec.fallback.is_none() {
            let remedy =
                "choose what decides while Redis is away: fallback = \"allow\", \"deny\", \"local\" or \"mesh\"";
            self.report(Code::NoFallback, path, "an exact limit has no fallback", remedy);
        }
        if !exact && spec.fallback.is_some() {
            let message = format!("a {} limit has no use for a fallback", store.as_str());
            self.report(Code::UnusedFigure, &[path, &["fallback"]].concat(), message, "remove it");
        }
        match (spec.fallback, spec.share) {
            (Some(Fallback::Local), None) => {
                let remedy = "add share = \"25%\" (of four processes) or, if each may use all of it, share = \"100%\"";
                self.report(Code::NoFallback, path, "the fallback `local` needs this process's share", remedy);
            }
            (Some(Fallback::Local), Some(share)) if share.0 == 0 || share.0 > 1_000_000 => {
                self.report(
                    Code::Figure,
                    &[path, &["share"]].concat(),
                    "a share is above 0% and at most 100%",
                    "mend it",
                );
            }
            (Some(Fallback::Local), Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                let message = "only the fallback `local` has a share";
                self.report(Code::UnusedFigure, &[path, &["share"]].concat(), message, "remove it");
            }
        }
        let mesh = store == StoreKind::Mesh || spec.fallback == Some(Fallback::Mesh);
        let mesh_only = [
            ("max_overshoot", spec.max_overshoot.is_some()),
            ("reserve", spec.reserve.is_some()),
            ("max_wait", spec.max_wait.is_some()),
        ];
        for (field, given) in mesh_only {
            if given && !mesh {
                let message = format!("`{field}` has no meaning for a {} limit", store.as_str());
                self.report(Code::UnusedFigure, &[path, &[field]].concat(), message, "remove it, or use the mesh");
            }
        }
        if spec.max_overshoot.is_some_and(|part| part.0 == 0) {
            let message = "max_overshoot = \"0%\" is the mode `strict`, which is not there yet";
            self.report(
                Code::Figure,
                &[path, &["max_overshoot"]].concat(),
                message,
                "give a part above 0%, or use the exact store",
            );
        }
        if spec.max_overshoot.is_some_and(|part| part.0 > 1_000_000)
            || spec.reserve.is_some_and(|part| part.0 > 1_000_000)
        {
            self.report(Code::Figure, path, "max_overshoot and reserve are at most 100%", "lower it");
        }
    }
}

fn mesh_figures(spec: &LimitSpec) -> MeshFigures {
    let default = MeshFigures::default();
    MeshFigures {
        max_overshoot_ppm: spec.max_overshoot.map_or(default.max_overshoot_ppm, |part| part.0),
        reserve_ppm: spec.reserve.map_or(default.reserve_ppm, |part| part.0),
        max_wait: spec.max_wait.map_or(default.max_wait, |span| span.0),
    }
}

fn scope(spec: &LimitSpec) -> Scope {
    let ScopeSpec { route, method } = spec.scope.clone().unwrap_or_default();
    let exempt = spec
        .exempt
        .iter()
        .flat_map(|exempt| &exempt.0)
        .map(|(field, values)| (field.as_str().into(), values.iter().map(|value| value.as_str().into()).collect()));
    Scope {
        route: route.map(|route| RoutePattern::new(&route)),
        method: method.map(Into::into),
        exempt: exempt.collect(),
    }
}

/// `base` with what `change` says instead. Another store drops an inherited fallback, another algorithm inherited figures.
fn merge(base: &LimitSpec, change: &LimitSpec) -> LimitSpec {
    let mut merged = base.clone();
    if change.store.is_some_and(|store| base.store != Some(store)) {
        merged =
            LimitSpec { fallback: None, share: None, max_overshoot: None, reserve: None, max_wait: None, ..merged };
    }
    if change.algorithm.is_some_and(|algorithm| base.algorithm != Some(algorithm)) {
        merged = figures::without(merged);
    }
    macro_rules! take {
        ($($field:ident)+) => { $(if change.$field.is_some() { merged.$field.clone_from(&change.$field); })+ };
    }
    take!(store fallback share shadow algorithm capacity refill max_overshoot reserve max_wait);
    merged
}
