//! One replica as a process: takes orders on its standard input, tells what happens on its standard output.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tidegate_core::algorithm::{Algorithm, TokenBucket};
use tidegate_core::{
    Clock, Figures, Limit, LimitName, LimitParts, MemoryStore, MeshFigures, Rate, Rule, StoreKind, SystemClock,
};
use tidegate_store_mesh::certs::{Identity, IdentityFiles};
use tidegate_store_mesh::{Mesh, MeshConfig, MeshRuntime};

use crate::{CAPACITY, REFILL};

/// `DIRECTORY PORT SEED`: the certificates, the port, and whom to ask for the fleet.
pub(crate) fn run(arguments: &[String]) {
    let [directory, port, seed] = arguments else { panic!("usage: node DIRECTORY PORT SEED") };
    let file = |name: &str| std::path::Path::new(directory).join(name);
    let files = IdentityFiles {
        certificate: file("certificate.pem"),
        key: file("key.pem"),
        authorities: file("authorities.pem"),
        secret: file("secret"),
    };
    let identity = Identity::from_files("fleet", &files).expect("the test wrote an identity");
    let port: u16 = port.parse().expect("a port");
    let seeds = Some(seed.clone()).filter(|seed| seed != "-");
    let config = MeshConfig::new(identity, seeds)
        .listen(([127, 0, 0, 1], port).into())
        .gossip_interval(Duration::from_millis(50))
        .runtime(MeshRuntime::OwnThread);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mesh = runtime.block_on(start(&config));
    mesh.register(&limit());
    runtime.block_on(mesh.ready());
    say(&format!("ready {}", mesh.local_addr()));
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the parent writes lines");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["load", per_second, millis] => {
                let (mesh, per_second) = (mesh.clone(), per_second.parse().expect("a number"));
                let span = Duration::from_millis(millis.parse().expect("a number"));
                std::thread::spawn(move || load(&mesh, per_second, span));
            }
            ["members"] => say(&format!("members {}", mesh.members().len() + mesh.report().fleet.lost.len())),
            ["leave"] => return runtime.block_on(mesh.shutdown()),
            _ => panic!("no such order: {line}"),
        }
    }
}

/// After a kill the port may take a moment to come free.
async fn start(config: &MeshConfig) -> Mesh {
    let begun = Instant::now();
    loop {
        match Mesh::start(config.clone()).await {
            Ok(mesh) => return mesh,
            Err(error) if begun.elapsed() > Duration::from_secs(10) => panic!("{error}"),
            // The kernel frees the port, and tells nobody when.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn load(mesh: &Mesh, per_second: u64, span: Duration) {
    let (limit, clock, begun) = (limit(), SystemClock::new(), Instant::now());
    let rule = Rule { limit: &limit, values: SmallVec::new(), cost: 1 };
    let (mut offered, mut admitted) = (0, 0);
    while begun.elapsed() < span {
        let due =
            u64::try_from(u128::from(per_second) * begun.elapsed().as_nanos() / 1_000_000_000).unwrap_or(u64::MAX);
        while offered < due {
            offered += 1;
            let answer = mesh.hold(&rule, clock.now());
            if answer.standing.is_allowed() {
                mesh.commit(&rule, answer.standing.mark, clock.now());
                admitted += 1;
            }
        }
        if admitted > 0 {
            say(&format!("admitted {}", std::mem::take(&mut admitted)));
        }
        // Paces real load between real processes; what is asserted are counts.
        std::thread::sleep(Duration::from_millis(1));
    }
    say("done");
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // When nobody listens any more the parent is gone, and so should this be.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

fn limit() -> Limit {
    let refill = Rate::per_second(REFILL).expect("a rate");
    Limit::new(LimitParts {
        name: LimitName::new("requests"),
        key: Box::default(),
        store: StoreKind::Mesh,
        figures: Figures::Limited(Algorithm::TokenBucket(TokenBucket::new(CAPACITY, refill).expect("figures"))),
        fallback: None,
        shadow: false,
        on_missing: None,
        mesh: MeshFigures::default(),
    })
}
