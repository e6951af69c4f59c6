//! The parent's side: starts replicas, gives them orders, adds up what they say. Dropping it ends them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tidegate_store_mesh::certs::Authority;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) per_second: u64,
    pub(crate) span: Duration,
}

pub(crate) struct Fleet {
    directory: PathBuf,
    nodes: Vec<Node>,
    said: Receiver<(usize, String)>,
    sender: Sender<(usize, String)>,
}

struct Node {
    child: Child,
    address: Option<String>,
    admitted: u64,
    done: bool,
    members: Option<usize>,
}

impl Fleet {
    /// So many replicas, ready, all of which know all.
    pub(crate) fn start(size: usize) -> Result<Self, String> {
        let directory = std::env::temp_dir().join(format!("tidegate-processes-{}", std::process::id()));
        let authority = Authority::new("fleet").map_err(|error| error.to_string())?;
        let (sender, said) = channel();
        let mut fleet = Self { directory, nodes: Vec::new(), said, sender };
        for index in 0..size {
            fleet.write_identity(&authority, index).map_err(|error| error.to_string())?;
            let seed = fleet.nodes.first().and_then(|node| node.address.clone());
            let node = fleet.spawn(index, 0, seed.as_deref().unwrap_or("-"))?;
            fleet.nodes.push(node);
            fleet.until("a replica to be ready", |fleet| fleet.nodes[index].address.is_some())?;
        }
        fleet.until_all_list(size)?;
        Ok(fleet)
    }

    pub(crate) fn load(&mut self, index: usize, load: Load) -> Result<(), String> {
        self.order(index, &format!("load {} {}", load.per_second, load.span.as_millis()))
    }

    /// Waits until all loads are over: what each replica admitted.
    pub(crate) fn finish(&mut self) -> Result<Vec<u64>, String> {
        self.until("the loads to end", |fleet| fleet.nodes.iter().all(|node| node.done))?;
        Ok(self.nodes.iter().map(|node| node.admitted).collect())
    }

    /// What all replicas, living and dead, have admitted.
    pub(crate) fn admitted(&self) -> u64 {
        self.nodes.iter().map(|node| node.admitted).sum()
    }

    pub(crate) fn let_run(&mut self, span: Duration) {
        let until = Instant::now() + span;
        while self.hear(until.saturating_duration_since(Instant::now())) {}
    }

    /// Ends a replica as the system would: at once.
    pub(crate) fn kill(&mut self, index: usize) {
        let child = &mut self.nodes[index].child;
        // Fails only where it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Starts a killed one again, at its port.
    pub(crate) fn restart(&mut self, index: usize) -> Result<(), String> {
        let address = self.nodes[index].address.take().ok_or("it had an address")?;
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).ok_or("it had a port")?;
        let seed = self.nodes[0].address.clone().ok_or("the first is never killed")?;
        let node = self.spawn(index, port, &seed)?;
        let before = std::mem::replace(&mut self.nodes[index], node);
        self.nodes[index].admitted = before.admitted;
        self.until("the restarted replica to be ready", |fleet| fleet.nodes[index].address.is_some())
    }

    /// Waits until each replica lists exactly so many members, lost ones among them.
    pub(crate) fn until_all_list(&mut self, size: usize) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            for index in 0..self.nodes.len() {
                self.nodes[index].members = None;
                self.order(index, "members")?;
            }
            self.until("the members", |fleet| fleet.nodes.iter().all(|node| node.members.is_some()))?;
            if self.nodes.iter().all(|node| node.members == Some(size)) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let lists: Vec<_> = self.nodes.iter().map(|node| node.members).collect();
                return Err(format!("not all list {size} members: {lists:?}"));
            }
            self.let_run(Duration::from_millis(50));
        }
    }

    fn order(&mut self, index: usize, line: &str) -> Result<(), String> {
        let input = self.nodes[index].child.stdin.as_mut().ok_or("its input is open")?;
        writeln!(input, "{line}").map_err(|error| format!("replica {index} takes no orders: {error}"))
    }

    fn until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) -> Result<(), String> {
        let begun = Instant::now();
        while !reached(self) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("waited in vain for {what}"));
            }
            self.hear(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Takes in one line. `false` when there was none in time.
    fn hear(&mut self, patience: Duration) -> bool {
        let (index, line) = match self.said.recv_timeout(patience) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
        };
        let node = &mut self.nodes[index];
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["ready", address] => node.address = Some(address.to_owned()),
            ["admitted", units] => node.admitted += units.parse::<u64>().unwrap_or(0),
            ["members", count] => node.members = count.parse().ok(),
            ["done"] => node.done = true,
            _ => println!("replica {index}: {line}"),
        }
        true
    }

    fn spawn(&self, index: usize, port: u16, seed: &str) -> Result<Node, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .arg("node")
            .arg(self.home(index))
            .args([&port.to_string(), seed])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let output = child.stdout.take().ok_or("its output is piped")?;
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((index, line)).is_err() {
                    return;
                }
            }
        });
        Ok(Node { child, address: None, admitted: 0, done: false, members: None })
    }

    fn home(&self, index: usize) -> PathBuf {
        self.directory.join(index.to_string())
    }

    fn write_identity(&self, authority: &Authority, index: usize) -> Result<(), Box<dyn std::error::Error>> {
        let pem = authority.issue_pem(&format!("node-{index}"))?;
        let home = self.home(index);
        std::fs::create_dir_all(&home)?;
        let write = |name: &str, text: &str| std::fs::write(Path::new(&home).join(name), text);
        write("certificate.pem", &pem.certificate)?;
        write("key.pem", &pem.key)?;
        write("authorities.pem", &pem.authorities)?;
        write("secret", &pem.secret)?;
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for index in 0..self.nodes.len() {
            self.kill(index);
        }
        // What is left behind is small, and the directory is the system's to clean.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
