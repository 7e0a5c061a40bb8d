//! The layer: a store that runs functions, over one that need not.

use std::sync::Arc;

use bytes::Bytes;
use forebay_mem::BLOCK_MIN_BYTES;
use forebay_store::{
    Address, Effort, ErrorKind, Execute, Executed, Module, NamespaceInfo, Result, Space, Store,
    StoreError, Upload,
};
use forebay_store::{Output as Wanted, limits::check_key};

use crate::brief::{Prepared, Ran};
use crate::exchange::{Exchange, Patience, Service, exchange};
use crate::executor::Executor;
use crate::host::{Done, Host};
use crate::inputs::Inputs;
use crate::limits::{ARGUMENTS_BYTES_MAX, INPUTS_MAX, NAME_BYTES_MAX};
use crate::output::{Output, Way};
use crate::service;
use crate::workers::{Turn, Work};

/// A store whose values functions may be sent to; in all else the store below it.
#[derive(Clone)]
pub struct Exec<S> {
    store: S,
    executor: Option<Arc<Executor>>,
}

impl<S: Store> Exec<S> {
    /// The layer over `store`; without an executor it runs nothing.
    pub fn new(store: S, executor: Option<Arc<Executor>>) -> Exec<S> {
        Exec { store, executor }
    }

    /// The store below.
    pub fn below(&self) -> &S {
        &self.store
    }

    /// What runs functions.
    pub fn executor(&self) -> Option<&Arc<Executor>> {
        self.executor.as_ref()
    }

    /// Refuses values that the caller could not reach otherwise. The namespaces in which the others are, each once if they follow
    /// each other.
    fn check(&self, call: &Execute<'_>) -> Result<Vec<Arc<NamespaceInfo>>> {
        if call.inputs.len() > INPUTS_MAX || call.arguments.len() > ARGUMENTS_BYTES_MAX {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                format!(
                    "a call has at most {INPUTS_MAX} inputs, and {ARGUMENTS_BYTES_MAX} bytes of arguments"
                ),
            ));
        }
        let module = match call.module {
            Module::Name(name) => Some(name),
            Module::Digest(_) | Module::Number(_) => None,
        };
        let mut names = call.function.into_iter().chain(module);
        if names.any(|name| name.len() > NAME_BYTES_MAX) {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                format!("the name of a function or module has at most {NAME_BYTES_MAX} bytes"),
            ));
        }
        let mut admitted: Vec<Arc<NamespaceInfo>> = Vec::new();
        for address in addresses(call) {
            let theirs = self.store.namespace(address.namespace)?;
            if theirs.config.tenant != call.tenant {
                return Err(StoreError::no_namespace(address.namespace));
            }
            if admitted.last().is_none_or(|last| last.id != theirs.id) {
                admitted.push(theirs);
            }
            if address.space != Space::Objects {
                return Err(StoreError::new(
                    ErrorKind::Invalid,
                    "functions see objects alone",
                ));
            }
            check_key(address.space, address.key)?;
        }
        Ok(admitted)
    }

    /// Refuses to go on when a name no longer stands for the namespace that the call was let into. Numbers are never used again: what
    /// was opened under the name until now was in that one.
    fn still(&self, admitted: &[Arc<NamespaceInfo>]) -> Result<()> {
        for namespace in admitted {
            match self.store.namespace(&namespace.name) {
                Ok(now) if now.id == namespace.id => {}
                _ => return Err(StoreError::no_namespace(&namespace.name)),
            }
        }
        Ok(())
    }

    async fn run(&self, executor: &Executor, call: Execute<'_>) -> Result<Executed> {
        let admitted = self.check(&call)?;
        let deadline = call.deadline.map_or(executor.limits.deadline, |asked| {
            asked.min(executor.limits.deadline)
        });
        let patience = Patience::new(executor.clock.clone(), deadline);
        let allowed = executor.allowed();
        let allowed = allowed.find(call.tenant, call.module, &admitted)?;
        let into_memory = matches!(call.output, Wanted::Into(_));
        let mut room = executor.rooms.of(call.tenant);
        if let Wanted::Inline { capacity } = call.output {
            // A function that has no room for what it writes is not run in vain.
            let taken = room.take(capacity.min(BLOCK_MIN_BYTES));
            taken.map_err(|ending| ending.into_error(Bytes::new()))?;
        }
        let opening = async {
            let store = &self.store;
            let program = executor.programs.get(executor, store, allowed).await?;
            let inputs = service::open(store, call.inputs).await?;
            let (way, upload) = match call.output {
                Wanted::Inline { capacity } => (Way::Inline { capacity }, None),
                Wanted::Into(target) => (Way::Into(target), None),
                Wanted::Store {
                    address,
                    options,
                    seal,
                } => {
                    let upload = store.store(address, options).await?;
                    (Way::Store, Some((upload, seal)))
                }
            };
            Ok((program, inputs, way, upload))
        };
        let opened = patience.within(opening).await;
        // It takes its time, in which anybody may be given the name: of that one's values nothing is told, nor what they are refused for.
        self.still(&admitted)?;
        let (program, (mut opened, known), way, upload) = opened?;
        let host = Host {
            exchange: Exchange::here(patience.clone()),
            inputs: Inputs::new(known, executor.window_bytes),
            output: Output::new(
                way,
                executor.pool.clone(),
                room,
                executor.limits.output_bytes,
            ),
            arguments: call.arguments,
            logs: Vec::new(),
            log_bytes: executor.limits.log_bytes,
            ended: None,
            refused: false,
            memory_peak: 0,
        };
        let named = call.function.or(allowed.function.as_deref());
        let function = named.unwrap_or(Execute::FUNCTION);
        let (mut upload, seal) = upload.unzip();
        let done = match executor.run_here(&program, function, host) {
            Ran::Done(_, done) => done,
            Ran::Not(host) => {
                let (mut service, turn) =
                    executor.hand_over(call.tenant, program, function, host, patience)?;
                if !turn.at_once {
                    opened.iter_mut().for_each(service::Opened::let_go);
                }
                let served =
                    service::serve(&self.store, opened, upload.as_mut(), &mut service).await;
                if served.is_err() && into_memory {
                    // Once the caller has the refusal the memory is its own again.
                    service.give_up().await;
                }
                served?
            }
        };
        let effort = Effort {
            read: done.read,
            nanos: done.nanos,
            memory: done.memory as u64,
        };
        executor.metrics.took(&effort, done.len);
        let Done {
            ending,
            len,
            bytes,
            room,
            logs,
            ..
        } = done;
        if let Err(ending) = ending {
            return Err(ending.into_error(logs));
        }
        // Once it has begun it is waited for, as when anything is stored: who is told that a call was stopped knows that nothing was.
        let stored = match (upload, seal) {
            (Some(upload), Some(seal)) => Some(upload.commit(seal).await?),
            _ => None,
        };
        Ok(Executed {
            len,
            bytes: room.go_with(bytes),
            stored,
            logs,
            effort,
        })
    }
}

impl Executor {
    /// Runs a function in this task, if it is likely to be short and all that it may ask for is at hand.
    fn run_here(&self, program: &Prepared, function: &str, host: Host) -> Ran {
        let may = program.is_short() && host.inputs.are_whole() && !host.output.is_stored();
        let place = may.then(|| self.places.take()).flatten();
        if place.is_none() {
            return Ran::Not(host);
        }
        let ran = program.run(function, host, &*self.clock);
        if let Ran::Done(..) = ran {
            self.metrics.here.inc();
        }
        ran
    }

    /// Has a thread of the tenant's run a function, which the returned end is to be served by, as long as its turn is kept. One that has to
    /// wait for its turn has nothing of its inputs at hand: those whose turn it is before may wait for memory.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when as many calls wait already as may.
    fn hand_over(
        &self,
        tenant: &str,
        program: Arc<Prepared>,
        function: &str,
        host: Host,
        patience: Patience,
    ) -> Result<(Service<Done>, Turn<'_>)> {
        let (exchange, service) = exchange(patience);
        let mut host = host.again(exchange);
        let (function, clock) = (function.to_owned(), self.clock.clone());
        let mut let_go = Vec::new();
        let work = |at_once: bool| -> Work {
            if !at_once {
                let_go = host.inputs.let_go();
            }
            Box::new(move || {
                if host.exchange.patience.begin()
                    && let Ran::Done(exchange, done) = program.run(&function, host, &*clock)
                {
                    exchange.done(done);
                }
            })
        };
        let turn = self.workers.submit(tenant, work)?;
        // Not while others wait to submit theirs.
        drop(let_go);
        Ok((service, turn))
    }
}

/// Every value that a call names.
fn addresses<'c, 'a>(call: &'c Execute<'a>) -> impl Iterator<Item = Address<'a>> + use<'c, 'a> {
    let output = match &call.output {
        Wanted::Store { address, .. } => Some(*address),
        Wanted::Inline { .. } | Wanted::Into(_) => None,
    };
    let inputs = call.inputs.iter().map(|input| input.address);
    inputs.chain(output)
}

#[warn(clippy::missing_trait_methods)]
impl<S: Store> Store for Exec<S> {
    type Upload = S::Upload;
    type Body = S::Body;

    async fn execute(&self, call: Execute<'_>) -> Result<Executed> {
        let Some(executor) = &self.executor else {
            return self.store.execute(call).await;
        };
        let executed = self.run(executor, call).await;
        executor.metrics.ended(&executed);
        executed
    }

    forebay_store::pass_on! {
        store: caps, retrieve, retrieve_into, exist, stat, store, compose, amend, delete, away, let_go, take_back, forgotten,
        settle, list, list_versions, create_namespace, delete_namespace, update_namespace, namespace, namespaces, usage,
        set_tenant_quota, tenant_quota, changes
    }
}
