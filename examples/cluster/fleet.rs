//! The replicas: each an HTTP server with the layer, a limiter, and an endpoint of the mesh.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http_headers::TIER;
use tidegate::http::{HeaderValue, RateLimitLayer};
use tidegate::mesh::certs::Authority;
use tidegate::mesh::naive::Naive;
use tidegate::mesh::{Mesh, MeshConfig, Mind, Replica};
use tidegate::redis::RedisStore;
use tidegate::{Limiter, Policy};

/// The fleet's cap on the mesh: at once, and per second.
pub(crate) const CAP: u64 = 1_000;
/// The exact quota of a user: at once, and per second.
pub(crate) const QUOTA: (u64, u64) = (50, 10);

/// What the demo sends to say who asks. A real service takes both from its authentication.
pub(crate) mod http_headers {
    pub(crate) const TIER: axum::http::HeaderName = axum::http::HeaderName::from_static("x-tier");
}

pub(crate) struct Fleet {
    replicas: Vec<RunningReplica>,
}

struct RunningReplica {
    address: SocketAddr,
    mesh: RunningMesh,
}

/// A replica's part in the mesh, by the rule of this crate or by the naive one.
enum RunningMesh {
    Bounded(Mesh<Replica>),
    Naive(Mesh<Naive>),
}

impl Fleet {
    /// Starts `size` replicas; all but the first find the fleet at the first.
    pub(crate) async fn start(size: usize, naive: bool, redis: Option<&str>) -> anyhow::Result<Self> {
        let authority = Authority::new("demo")?;
        let mut replicas: Vec<RunningReplica> = Vec::new();
        for index in 0..size {
            let seeds = replicas.first().map(|first| first.mesh.address().to_string());
            let config = MeshConfig::new(authority.issue(&format!("replica-{index}"))?, seeds)
                .listen(([127, 0, 0, 1], 0).into())
                .gossip_interval(Duration::from_millis(100));
            let builder = Limiter::builder(policy(redis.is_some())?);
            let (builder, mesh) = if naive {
                let mesh = Mesh::start_naive(config).await?;
                (builder.mesh(mesh.clone()), RunningMesh::Naive(mesh))
            } else {
                let mesh = Mesh::start(config).await?;
                (builder.mesh(mesh.clone()), RunningMesh::Bounded(mesh))
            };
            let builder = match redis {
                // The whole fleet and its clients share this machine's cores: a call may wait for its turn.
                Some(url) => builder.exact(RedisStore::builder(url).deadline(Duration::from_millis(500)).build()?),
                None => builder,
            };
            let address = serve(builder.build()?).await?;
            replicas.push(RunningReplica { address, mesh });
        }
        Ok(Self { replicas })
    }

    /// Waits until every replica lists every member and has its share.
    pub(crate) async fn assembled(&self, patience: Duration) -> anyhow::Result<()> {
        let all = async {
            for replica in &self.replicas {
                replica.mesh.ready().await;
                while replica.mesh.members() < self.replicas.len() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        Ok(tokio::time::timeout(patience, all).await?)
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().map(|replica| replica.address).collect()
    }

    pub(crate) async fn shutdown(&self) {
        for replica in &self.replicas {
            match &replica.mesh {
                RunningMesh::Bounded(mesh) => mesh.shutdown().await,
                RunningMesh::Naive(mesh) => mesh.shutdown().await,
            }
        }
    }
}

impl RunningMesh {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Bounded(mesh) => mesh.local_addr(),
            Self::Naive(mesh) => mesh.local_addr(),
        }
    }

    fn members(&self) -> usize {
        fn count<M: Mind>(mesh: &Mesh<M>) -> usize {
            mesh.members().len()
        }
        match self {
            Self::Bounded(mesh) => count(mesh),
            Self::Naive(mesh) => count(mesh),
        }
    }

    async fn ready(&self) {
        match self {
            Self::Bounded(mesh) => mesh.ready().await,
            Self::Naive(mesh) => mesh.ready().await,
        }
    }
}

/// Two tiers: `capped` shares one cap on the mesh, `metered` has an exact quota for each user.
fn policy(exact: bool) -> anyhow::Result<Policy> {
    let mut text = format!(
        r#"
        default_tier = "capped"
        [limits.fleet]
        key = ["tier"]
        store = "mesh"
        capacity = {CAP}
        refill = "{CAP}/s"
        [tiers.capped]
        "#
    );
    if exact {
        text = format!(
            r#"{text}requests = "unlimited"
            [limits.requests]
            key = ["user"]
            store = "exact"
            fallback = "deny"
            capacity = {}
            refill = "{}/s"
            [tiers.metered]
            fleet = "unlimited"
            "#,
            QUOTA.0, QUOTA.1
        );
    }
    Ok(Policy::from_toml(&text)?)
}

/// Serves on a free port of loopback, for as long as the process lives.
async fn serve(limiter: Limiter) -> anyhow::Result<SocketAddr> {
    let layer = RateLimitLayer::new(limiter)
        .tier(HeaderValue::new(TIER))
        // One user asks at all replicas: what they count together is exact.
        .field("user", |_: &axum::http::request::Parts| Some("ada".to_owned()));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}
