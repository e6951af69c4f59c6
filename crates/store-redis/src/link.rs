//! The connection to Redis: opened when first needed, replaced when broken.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, RedisError, RedisResult, Value};

/// Commands that wait to be written, at most; beyond that senders wait.
const BUFFER: usize = 1_024;

/// A connection that many may use at once.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
}

impl Connection {
    /// Sends one command. The future has to be awaited to its end: what is written is executed, read or not.
    pub(crate) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let value = match self {
            Self::Single(connection) => connection.req_packed_command(command).await?,
        };
        value.extract_error()
    }
}

/// Where and how to connect.
pub(crate) enum Connector {
    Single(Client),
}

impl Connector {
    /// Reads the URL; connects to nothing.
    pub(crate) fn single(url: &str) -> RedisResult<Self> {
        // Small writes that must not wait for each other's acknowledgement.
        let settings = TcpSettings::default().set_nodelay(true);
        let info = url.into_connection_info()?.set_tcp_settings(settings);
        Ok(Self::Single(Client::open(info)?))
    }

    async fn connect(&self, timeout: Duration) -> RedisResult<Connection> {
        // No response timeout: whoever sent a take has to see its answer, however late, to give it back.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        match self {
            Self::Single(client) => {
                client.get_multiplexed_async_connection_with_config(&config).await.map(Connection::Single)
            }
        }
    }
}

/// The connection in use, if there is one.
pub(crate) struct Link {
    connector: Connector,
    timeout: Duration,
    current: ArcSwapOption<Connection>,
    /// One dials, the others wait for the result.
    dialling: tokio::sync::Mutex<()>,
}

/// A connection as it was at some moment, to say later which one broke.
pub(crate) type Current = Arc<Connection>;

impl Link {
    pub(crate) fn new(connector: Connector, timeout: Duration) -> Self {
        Self { connector, timeout, current: ArcSwapOption::empty(), dialling: tokio::sync::Mutex::default() }
    }

    /// The connection; opens one where there is none.
    pub(crate) async fn current(&self) -> Result<Current, RedisError> {
        if let Some(current) = self.current.load_full() {
            return Ok(current);
        }
        let _dialling = self.dialling.lock().await;
        if let Some(current) = self.current.load_full() {
            return Ok(current);
        }
        let fresh = self.fresh().await?;
        self.current.store(Some(Arc::clone(&fresh)));
        Ok(fresh)
    }

    /// A new connection, beside the one in use.
    pub(crate) async fn fresh(&self) -> Result<Current, RedisError> {
        self.connector.connect(self.timeout).await.map(Arc::new)
    }

    /// Puts `connection` in use.
    pub(crate) fn replace(&self, connection: Current) {
        self.current.store(Some(connection));
    }

    /// Takes `broken` out of use, unless another has taken its place already.
    pub(crate) fn discard(&self, broken: &Current) {
        self.current.compare_and_swap(broken, None);
    }
}
