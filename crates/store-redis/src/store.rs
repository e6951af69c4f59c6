//! The store: what the limiter asks, and what goes on behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, RedisError, Value};
use tidegate_core::{Answers, BoxFuture, Operation as Asked, RemoteStore, Rule, StoreError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::batch::{Batch, Call, Decided, Outcomes, Settled};
use crate::breaker::Breaker;
use crate::builder::{BuildError, RedisStoreBuilder, Settings};
use crate::failure::{classify, is_broken, is_unknown_script};
use crate::link::{Current, Link};
use crate::log::Gate;
use crate::memory::Memory;
use crate::queue::{Pushed, Queue};
use crate::request::{Operation, Rules};
use crate::script::Script;
use crate::stats::{Counters, Stats};

/// Groups of rules that one script call decides, at most: it blocks the server for as long as it runs.
const GROUPS_PER_CALL: usize = 32;

/// Counts `exact` limits in Redis, to the unit, for any number of processes.
///
/// Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct RedisStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    link: Link,
    script: Script,
    settings: Settings,
    runtime: Handle,
    queue: Queue,
    breaker: Breaker,
    counters: Counters,
    refusals: Gate,
    memory: Option<Memory>,
}

impl RedisStore {
    /// Connects with all settings at their defaults.
    ///
    /// # Errors
    /// [`BuildError`] when the URL is of no use, no runtime is there, or Redis does not answer. To start without Redis use
    /// [`builder`](Self::builder).
    pub async fn connect(url: &str) -> Result<Self, BuildError> {
        let store = Self::builder(url).build()?;
        store.ready().await.map_err(BuildError::Unreachable)?;
        Ok(store)
    }

    /// Settings for a store at `url`.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }

    /// Waits until Redis has answered once: one attempt, no longer than the connect timeout and the deadline together.
    ///
    /// # Errors
    /// What the attempt met. The state is unchanged; call again.
    pub async fn ready(&self) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.0);
        let probing = self.0.runtime.spawn(async move {
            let current = inner.link.current().await.map_err(|error| classify(&error))?;
            inner.ask(&current).await
        });
        probing.await.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }

    /// What the store has counted about itself.
    pub fn stats(&self) -> Stats {
        self.0.counters.snapshot()
    }

    /// Whether calls are not sent because Redis was found away.
    pub fn is_open(&self) -> bool {
        self.0.breaker.is_open()
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore")
            .field("open", &self.is_open())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl RemoteStore for RedisStore {
    fn apply(&self, operation: Asked, rules: &[Rule<'_>]) -> BoxFuture<Result<Answers, StoreError>> {
        let inner = Arc::clone(&self.0);
        inner.counters.requests.add(1);
        match Rules::new(&inner.settings.prefix, rules) {
            Ok(rules) => Box::pin(async move {
                let result = Arc::clone(&inner).apply(operation, rules).await;
                if let Err(error) = &result {
                    inner.failed(error);
                }
                result
            }),
            Err(error) => {
                inner.failed(&error);
                Box::pin(std::future::ready(Err(error)))
            }
        }
    }
}

impl Inner {
    pub(crate) fn new(link: Link, script: Script, settings: Settings, runtime: Handle) -> Self {
        let breaker = Breaker::new(settings.open_after);
        let memory = settings.denial_memory.then(Memory::default);
        Self {
            link,
            script,
            settings,
            runtime,
            queue: Queue::default(),
            breaker,
            counters: Counters::default(),
            refusals: Gate::new(Duration::from_secs(10)),
            memory,
        }
    }

    async fn apply(self: Arc<Self>, asked: Asked, rules: Rules) -> Result<Answers, StoreError> {
        let operation = match asked {
            // What can never pass takes nothing: it only has to be told how things stand.
            Asked::Take if rules.never_fits() || rules.only_look() => Operation::Peek,
            Asked::Take => Operation::Take,
            Asked::Peek => Operation::Peek,
            Asked::Refund => Operation::Give,
            Asked::Charge => Operation::Charge,
            Asked::Reset => Operation::Reset,
        };
        if rules.counted.is_empty() {
            return Ok(rules.complete(Answers::new()));
        }
        let sent = Instant::now();
        let memory = self.memory.as_ref().filter(|_| operation == Operation::Take);
        if let Some(answers) = memory.and_then(|memory| memory.recall(&rules, sent)) {
            self.counters.denied_from_memory.add(1);
            return Ok(answers);
        }
        if self.breaker.is_open() {
            return Err(StoreError::Open);
        }
        let epoch = memory.map(Memory::epoch);
        let (sender, receiver) = oneshot::channel();
        let waiting = Waiting { inner: Arc::clone(&self), rules: rules.clone(), receiver };
        self.submit(Call { operation, rules: rules.clone(), reply: Some(sender) });
        let decided = waiting.answer().await?;
        if let (Some(memory), Some(epoch), Some(denial)) = (memory, epoch, decided.denial) {
            memory.remember(&rules, denial, sent, Instant::now(), epoch);
        }
        Ok(decided.answers)
    }

    /// Queues `call` and sees to it that a flight takes it.
    fn submit(self: &Arc<Self>, call: Call) {
        match self.queue.push(call) {
            Pushed::StartFlight => drop(self.runtime.spawn(Arc::clone(self).fly())),
            Pushed::Waits => {}
            Pushed::Full(call) => {
                self.deliver((call, Err(StoreError::Unavailable("too many calls are waiting".into()))));
            }
        }
    }

    /// Sends what waits until nothing does.
    async fn fly(self: Arc<Self>) {
        while let Some(mut calls) = self.take() {
            calls.retain(|call| !call.is_abandoned());
            let batches = Batch::of(calls, GROUPS_PER_CALL);
            let mut sending = std::pin::pin!(join_all(batches.into_iter().map(|batch| self.send(batch))));
            if timeout(self.settings.deadline, &mut sending).await.is_err() {
                // Frozen or cut off. What was sent may still be executed: the answers are waited for and given back,
                // but nothing waits behind them.
                self.queue.leave();
                self.away(&StoreError::Timeout);
                self.resume();
                sending.await;
                return;
            }
        }
    }

    /// What a flight takes along next. While the circuit is open nothing leaves: who waits is told so, the rest stays.
    fn take(self: &Arc<Self>) -> Option<Vec<Call>> {
        if !self.breaker.is_open() {
            return self.queue.take();
        }
        self.queue.leave();
        self.refuse_waiting();
        // It may have closed in between.
        self.resume();
        None
    }

    /// Starts a flight for what waits, if the circuit is closed.
    fn resume(self: &Arc<Self>) {
        if !self.breaker.is_open() && self.queue.resume() {
            drop(self.runtime.spawn(Arc::clone(self).fly()));
        }
    }

    fn refuse_waiting(self: &Arc<Self>) {
        for call in self.queue.drain_waited() {
            self.deliver((call, Err(StoreError::Open)));
        }
    }

    /// Sends one script call and hands out its answers.
    async fn send(self: &Arc<Self>, batch: Batch) {
        let result = self.exchange(&batch).await;
        if result.is_ok() {
            self.breaker.succeeded();
        }
        for settled in batch.settle(result) {
            self.deliver(settled);
        }
    }

    async fn exchange(self: &Arc<Self>, batch: &Batch) -> Result<Value, StoreError> {
        self.counters.coalesced.add(batch.coalesced());
        let mut retried = false;
        loop {
            let current = match self.link.current().await {
                Ok(current) => current,
                Err(error) => {
                    let error = classify(&error);
                    self.away(&error);
                    return Err(error);
                }
            };
            let error = match self.call(&current, batch.evalsha(&self.script), || batch.eval(&self.script)).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if is_broken(&error) {
                self.link.discard(&current);
                // A server that restarted or closed an idle connection answers a new one. Were the first call executed after
                // all, its debits would count twice: that denies, it never admits.
                if !retried && batch.is_safe_twice() && batch.is_waited() {
                    retried = true;
                    continue;
                }
            }
            let error = classify(&error);
            if matches!(error, StoreError::Unavailable(_)) {
                self.away(&error);
            }
            return Err(error);
        }
    }

    /// One command by digest, and by text where the server does not know it.
    async fn call(&self, current: &Current, known: Cmd, whole: impl FnOnce() -> Cmd) -> Result<Value, RedisError> {
        let mut connection = (**current).clone();
        self.counters.commands.add(1);
        match connection.send(&known).await {
            Err(error) if is_unknown_script(&error) => {
                self.counters.scripts_sent.add(1);
                connection.send(&whole()).await
            }
            result => result,
        }
    }

    /// Asks the script for nothing, on `current`.
    async fn ask(&self, current: &Current) -> Result<(), StoreError> {
        let nothing = Batch::default();
        let asking = self.call(current, nothing.evalsha(&self.script), || nothing.eval(&self.script));
        match timeout(self.settings.deadline, asking).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                if is_broken(&error) {
                    self.link.discard(current);
                }
                Err(classify(&error))
            }
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Hands a call its answer. What was taken for somebody who has gone is given back.
    fn deliver(self: &Arc<Self>, (call, outcome): Settled) {
        if let Some(memory) = self.memory.as_ref().filter(|_| call.operation.gives()) {
            memory.forget(&call.rules);
        }
        match call.reply {
            // Whoever waits counts what it is told.
            Some(reply) => {
                if let Err(Ok(decided)) = reply.send(outcome) {
                    self.give_back(&call.rules, decided);
                }
            }
            None => {
                if let Err(error) = &outcome {
                    self.failed(error);
                }
            }
        }
    }

    fn give_back(self: &Arc<Self>, rules: &Rules, decided: Decided) {
        if decided.marks.is_empty() {
            return;
        }
        self.counters.given_back.add(1);
        self.submit(Call { operation: Operation::Undo(decided.marks), rules: rules.clone(), reply: None });
    }

    /// Counts a failed request, and names in the log what an operator has to mend.
    fn failed(&self, error: &StoreError) {
        match error {
            StoreError::Timeout => self.counters.timeouts.add(1),
            StoreError::Open => self.counters.not_sent.add(1),
            StoreError::Unavailable(_) => self.counters.unavailable.add(1),
            _ => {
                self.counters.refused.add(1);
                if let Some(suppressed) = self.refusals.pass(Instant::now()) {
                    tracing::error!(%error, suppressed, "Redis refuses what this store asks: this needs an operator, not a retry");
                }
            }
        }
    }

    /// Redis did not answer: opens the circuit if it is time to, and starts probing.
    fn away(self: &Arc<Self>, error: &StoreError) {
        if !self.breaker.failed() {
            return;
        }
        self.counters.opened.add(1);
        tracing::warn!(%error, "the exact store is away: fallbacks decide until a probe is answered");
        self.refuse_waiting();
        self.runtime.spawn(probe(Arc::downgrade(self)));
    }
}

/// Probes beside the callers until Redis answers, or until nobody holds the store any more.
async fn probe(store: std::sync::Weak<Inner>) {
    let opened = Instant::now();
    let Some(mut pause) = store.upgrade().map(|inner| inner.settings.probe_first) else { return };
    loop {
        let Some(inner) = store.upgrade() else { return };
        inner.counters.probes.add(1);
        // A new connection: the old one may be a black hole that swallows everything for minutes.
        let answered = match inner.link.fresh().await {
            Ok(fresh) => inner.ask(&fresh).await.map(|()| fresh),
            Err(error) => Err(classify(&error)),
        };
        match answered {
            Ok(fresh) => {
                inner.link.replace(fresh);
                inner.breaker.close();
                inner.counters.closed.add(1);
                let stats = inner.counters.snapshot();
                tracing::info!(away_for = ?opened.elapsed(), ?stats, "the exact store is back");
                inner.resume();
                return;
            }
            Err(error) => tracing::debug!(%error, "the exact store is still away"),
        }
        let most = inner.settings.probe_most;
        drop(inner);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(most);
    }
}

/// A caller's wait for its answer. Going away early gives back what was taken.
struct Waiting {
    inner: Arc<Inner>,
    rules: Rules,
    receiver: oneshot::Receiver<Outcomes>,
}

impl Waiting {
    async fn answer(mut self) -> Outcomes {
        match timeout(self.inner.settings.deadline, &mut self.receiver).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(StoreError::Unavailable("the runtime of the store has shut down".into())),
            Err(_) => {
                self.receiver.close();
                // It may have come between the two.
                if let Ok(outcome) = self.receiver.try_recv() {
                    return outcome;
                }
                Err(StoreError::Timeout)
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.receiver.close();
        // An answer that nobody has read; one that was read is not here any more.
        if let Ok(Ok(decided)) = self.receiver.try_recv() {
            self.inner.give_back(&self.rules, decided);
        }
    }
}
