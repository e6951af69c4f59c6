//! A TCP proxy that can turn into a black hole: connections stay open, bytes vanish.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Forwards to a port on 127.0.0.1.
pub struct Proxy {
    port: u16,
    swallows: Arc<AtomicBool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts one in front of `port`.
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let swallows = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&swallows);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, to, Arc::clone(&flag)));
            }
        });
        Self { port, swallows, accepting }
    }

    /// The URL of what is behind it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Whether bytes vanish. A connection that has lost some never carries any again, as one whose packets were dropped for long.
    pub fn swallow(&self, on: bool) {
        self.swallows.store(on, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(client: TcpStream, to: u16, swallows: Arc<AtomicBool>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let lost = Arc::new(AtomicBool::new(false));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    tokio::join!(
        copy(client_read, server_write, Arc::clone(&swallows), Arc::clone(&lost)),
        copy(server_read, client_write, swallows, lost),
    );
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    swallows: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 16_384];
    while let Ok(length) = from.read(&mut buffer).await {
        if length == 0 {
            return;
        }
        if swallows.load(Ordering::SeqCst) {
            lost.store(true, Ordering::SeqCst);
        }
        if !lost.load(Ordering::SeqCst) && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
