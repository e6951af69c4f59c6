//! Real Redis servers for tests: started on free ports in directories of their own, gone when dropped.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running redis-server.
pub struct RedisServer {
    child: Option<Child>,
    arguments: Vec<String>,
    directory: tempfile::TempDir,
    port: u16,
}

impl RedisServer {
    /// Starts one without persistence.
    ///
    /// # Panics
    /// When redis-server is not installed or does not start.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with further settings, such as `["--maxmemory", "1mb"]`.
    pub fn start_with(settings: &[&str]) -> Self {
        // Between finding a free port and using it somebody else may take it.
        for _ in 0..10 {
            let port = free_port();
            let directory = tempfile::tempdir().expect("a temporary directory");
            let arguments = settings.iter().map(ToString::to_string).collect();
            let mut server = Self { child: None, arguments, directory, port };
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server does not start: is it installed? `./test` installs it");
    }

    /// Its port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// SIGKILL: it closes nothing, it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on its port, empty.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "redis-server does not start again on port {}", self.port);
    }

    /// SIGSTOP: connections stay open, nothing answers.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Sends one command over a connection of its own and returns the raw reply.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn raw(&self, command: &[&str]) -> String {
        ask(self.port, command).expect("an answer from redis-server")
    }

    fn launch(&mut self) -> bool {
        let port = self.port.to_string();
        let child = Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--enable-debug-command", "yes"])
            .args(&self.arguments)
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server: it has to be installed; `./test` installs it");
        let child = self.child.insert(child);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(20) {
            // Any answer will do: one that wants a password has started too.
            if ask(self.port, &["PING"]).is_some() {
                return true;
            }
            if !matches!(child.try_wait(), Ok(None)) {
                return false;
            }
            // Another process starts: it tells nobody when it is ready.
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn signal(&self, signal: &str) {
        let id = self.child.as_ref().expect("a running server").id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill");
        assert!(status.success(), "kill {signal} {id}");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody uses at this moment.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// One command and its reply, as text; nothing where nobody answers within a second.
pub fn ask(port: u16, command: &[&str]) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut text = format!("*{}\r\n", command.len());
    for word in command {
        let _ = write!(text, "${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(text.as_bytes()).ok()?;
    // Enough for the short replies that tests ask for this way.
    let mut buffer = vec![0; 65_536];
    let length = stream.read(&mut buffer).ok()?;
    (length > 0).then(|| String::from_utf8_lossy(&buffer[..length]).into_owned())
}
