//! Redis for the exact tier: the one given, or one of our own.

use std::process::Stdio;
use std::time::Duration;

use crate::report::say;
use anyhow::Context;
use tidegate::redis::RedisStore;
use tokio::process::{Child, Command};

/// A Redis that answers.
pub(crate) struct Redis {
    url: String,
    /// The server that was started for this run; killed when dropped.
    _server: Option<Child>,
}

impl Redis {
    /// The one at `url`, else a server of our own on a free port, else none.
    pub(crate) async fn find(url: Option<&str>) -> anyhow::Result<Option<Self>> {
        if let Some(url) = url {
            RedisStore::connect(url)
                .await
                .with_context(|| format!("no Redis at {url}: start it, or leave --redis out"))?;
            return Ok(Some(Self { url: url.to_owned(), _server: None }));
        }
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let Ok(server) = server else {
            say!("no --redis and no redis-server on PATH: the exact tier is left out, the mesh tier needs none");
            return Ok(None);
        };
        let url = format!("redis://127.0.0.1:{port}/");
        let connected = async {
            while RedisStore::connect(&url).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), connected)
            .await
            .context("the redis-server started does not answer")?;
        say!("the exact tier counts in a redis-server started on port {port}");
        Ok(Some(Self { url, _server: Some(server) }))
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}
