//! What is shown: live while the load runs, and the table that judges it.

use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fleet::{CAP, QUOTA};
use crate::load::{Counts, Tally};

/// Prints a line. Unlike `println!` it does not panic when nobody reads any more: the exit code still tells.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($text)*)));
    }};
}
pub(crate) use say;

/// Admitted, denied and failed requests.
#[derive(Clone, Copy, Default)]
struct Sum {
    admitted: u64,
    denied: u64,
    failed: u64,
}

/// A cap and how far it was kept, for a bucket that started full.
struct Cap {
    ideal: u64,
    /// The most that may be admitted.
    bound: u64,
    /// The least that has to be, where more was asked for.
    least: u64,
}

impl Sum {
    fn of<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Self {
        tallies.fold(Self::default(), |sum, tally| Self {
            admitted: sum.admitted + tally.admitted.load(Ordering::Relaxed),
            denied: sum.denied + tally.denied.load(Ordering::Relaxed),
            failed: sum.failed + tally.failed.load(Ordering::Relaxed),
        })
    }

    fn offered(self) -> u64 {
        self.admitted + self.denied + self.failed
    }

    fn row(self, name: &str) -> String {
        format!("{name:<12}{:>10}{:>10}{:>10}{:>8}", self.offered(), self.admitted, self.denied, self.failed)
    }
}

impl Cap {
    /// What `capacity`, refilled with `refill` per second, admits in `elapsed`; `over` is the overshoot allowed, in percent.
    fn new(capacity: u64, refill: u64, elapsed: Duration, over: u64) -> Self {
        let refilled = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).saturating_mul(refill).div_ceil(1_000);
        let ideal = capacity + refilled;
        Self { ideal, bound: ideal + capacity * over / 100, least: ideal * 9 / 10 }
    }

    fn fleet(elapsed: Duration) -> Self {
        Self::new(CAP, CAP, elapsed, 25)
    }
}

/// A table that is drawn over itself in a terminal, and one line a second elsewhere.
#[derive(Default)]
pub(crate) struct Live {
    drawn: usize,
    last_second: u64,
}

impl Live {
    pub(crate) fn show(&mut self, counts: &[Counts], elapsed: Duration) {
        let mut out = std::io::stdout();
        if out.is_terminal() {
            let table = table(counts, elapsed);
            if self.drawn > 0 {
                let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn);
            }
            let _ = write!(out, "{table}");
            self.drawn = table.lines().count();
        } else if elapsed.as_secs() > self.last_second {
            self.last_second = elapsed.as_secs();
            let sum = Sum::of(counts.iter().map(|counts| &counts.capped));
            let cap = Cap::fleet(elapsed);
            let over = sum.admitted.saturating_sub(cap.ideal);
            let _ = writeln!(
                out,
                "{:>4} s  offered {:>8}  admitted {:>7}  cap {:>7}  bound {:>7}  overshoot {over}",
                self.last_second,
                sum.offered(),
                sum.admitted,
                cap.ideal,
                cap.bound
            );
        }
        // A terminal that is gone is no reason to stop: the exit code still tells.
        let _ = out.flush();
    }
}

fn table(counts: &[Counts], elapsed: Duration) -> String {
    let mut lines = vec![format!("{:<12}{:>10}{:>10}{:>10}{:>8}", "mesh", "offered", "admitted", "denied", "failed")];
    for (index, counts) in counts.iter().enumerate() {
        lines.push(Sum::of([&counts.capped].into_iter()).row(&format!("replica-{index}")));
    }
    let sum = Sum::of(counts.iter().map(|counts| &counts.capped));
    let cap = Cap::fleet(elapsed);
    lines.push(sum.row("fleet"));
    let over = sum.admitted.saturating_sub(cap.ideal);
    lines.push(format!("cap {} + {CAP}/s = {}; bound {}; overshoot {over}", CAP, cap.ideal, cap.bound));
    let metered = Sum::of(counts.iter().map(|counts| &counts.metered));
    if metered.offered() > 0 {
        let cap = Cap::new(QUOTA.0, QUOTA.1, elapsed, 0);
        lines.push(metered.row("exact"));
        lines.push(format!(
            "quota {} + {}/s = {}; overshoot {}",
            QUOTA.0,
            QUOTA.1,
            cap.ideal,
            metered.admitted.saturating_sub(cap.ideal)
        ));
    }
    lines.join("\n") + "\n"
}

/// Prints the last table and says whether every cap was kept, and used where there was enough demand.
pub(crate) fn judge(counts: &[Counts], elapsed: Duration, exact: bool) -> bool {
    say!("\nafter {:.1} s, counted by the clients:\n{}", elapsed.as_secs_f64(), table(counts, elapsed));
    let mesh =
        verdict("the cap on the mesh", Sum::of(counts.iter().map(|counts| &counts.capped)), &Cap::fleet(elapsed));
    let quota = Cap::new(QUOTA.0, QUOTA.1, elapsed, 0);
    let exact = !exact || verdict("the exact quota", Sum::of(counts.iter().map(|counts| &counts.metered)), &quota);
    mesh && exact
}

fn verdict(name: &str, sum: Sum, cap: &Cap) -> bool {
    // With little demand the cap is no yardstick: then nearly all has to pass.
    let least = cap.least.min(sum.offered() * 9 / 10);
    if sum.admitted > cap.bound {
        say!("BROKEN: {name} admitted {}, more than its bound {}", sum.admitted, cap.bound);
    } else if sum.admitted < least {
        say!("WASTED: {name} admitted {}, less than {least} of {} offered", sum.admitted, sum.offered());
    } else if sum.failed > 0 {
        say!("FAILED: {} requests in {name} had neither 200 nor 429", sum.failed);
    } else {
        say!("kept: {name}: {} admitted, bound {}", sum.admitted, cap.bound);
        return true;
    }
    false
}
