//! Functions sent to the data, and which may be.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use forebay_api::v1::execute_request::{self, Output as Asked};
use forebay_api::v1::{self, add_module_request, execute_response, execution_server};
use forebay_fabric::{Access, Placed};
use forebay_mem::{Buf, CopySite, count_copy};
use forebay_store::{
    Address, Execute, Executed, Input, Module, ModuleDigest, Output, Seal, Store, StoreError,
    StoreOptions, VersionId,
};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::codegen::BoxStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use super::admission::Ticket;
use super::identity::Caller;
use super::metrics::Way;
use super::status::{Outcome, Refusal};
use super::{Door, INLINE_BYTES_MAX, Service, answers, attributes, convert};
use crate::{AllowedModule, Leave};

/// The most output that an answer carries, or memory that is not mapped is given, in bytes.
pub const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Parts of an output that are copied ahead of their reader: one that HTTP/2 has, one that it takes next, and one behind them.
const AHEAD: usize = 3;
/// Logs of a failed function that its refusal carries.
const LOGS_BYTES_MAX: usize = 4 << 10;
const LOGS_METADATA: &str = "forebay-logs-bin";

impl<S: Store> Service<S> {
    /// Runs the function; the proof that nothing more lands comes with what was placed.
    async fn executed(
        &self,
        caller: &Caller,
        asked: &v1::ExecuteRequest,
    ) -> Result<(Executed, Way), Status> {
        let inputs: Vec<Input<'_>> = asked
            .inputs
            .iter()
            .map(|input| Input {
                address: Address::object(&input.namespace, &input.key),
                version: input.version.map(VersionId),
                range: convert::range(input.range),
            })
            .collect();
        let call = Execute {
            tenant: caller.tenant(),
            module: module(asked)?,
            function: Some(asked.function.as_str()).filter(|name| !name.is_empty()),
            inputs: &inputs,
            arguments: asked.arguments.clone(),
            output: Output::Inline { capacity: 0 },
            deadline: Some(asked.deadline_ms)
                .filter(|deadline| *deadline > 0)
                .map(Duration::from_millis),
        };
        let with = |output| Execute {
            output,
            ..call.clone()
        };
        match &asked.output {
            None => Ok((self.run(caller, call).await?, Way::Message)),
            Some(Asked::Capacity(capacity)) => {
                let capacity = (*capacity).min(OUTPUT_BYTES_MAX) as usize;
                let executed = self.run(caller, with(Output::Inline { capacity }));
                Ok((executed.await?, Way::Message))
            }
            Some(Asked::Target(target)) => {
                let output = Output::Store {
                    address: Address::object(&target.namespace, &target.key),
                    options: StoreOptions {
                        size: None,
                        condition: convert::condition(target.condition.clone())?,
                    },
                    seal: Seal {
                        etag: None,
                        attributes: attributes::kept(target.attributes.clone())?,
                        expires: target.expires_ms,
                    },
                };
                Ok((self.run(caller, with(output)).await?, Way::Message))
            }
            Some(Asked::Place(place)) => {
                let place = (&asked.session[..], Some(place));
                let (executed, _placed, way) = self.run_into(caller, place, with).await?;
                Ok((executed, way))
            }
        }
    }

    /// Runs the function for the memory that a place names.
    async fn run_into<'c>(
        &self,
        caller: &Caller,
        (session, place): (&[u8], Option<&v1::Place>),
        with: impl FnOnce(Output<'c>) -> Execute<'c>,
    ) -> Result<(Executed, Placed, Way), Status> {
        let find = || self.target(caller, session, place, Access::Write);
        let mut target = find()?;
        let executed = match target.mapped() {
            Some(memory) => self.run(caller, with(Output::Into(memory))).await,
            None if target.length() > OUTPUT_BYTES_MAX => {
                let words = format!(
                    "the fabric does not map memory, and is given at most {OUTPUT_BYTES_MAX} bytes of output"
                );
                return Err(Refusal::invalid(words).into());
            }
            None => {
                let capacity = target.length() as usize;
                let executed = self.run(caller, with(Output::Inline { capacity }));
                let mut executed = executed.await?;
                // What was lent when the function began need not be so any more.
                target = find()?;
                let sent = target.send(std::mem::take(&mut executed.bytes)).await;
                sent.map(|()| executed).map_err(Status::from)
            }
        };
        // A refusal, too, is an answer after which nothing may land.
        let placed = target.fence().await?;
        let executed = executed?;
        let sent = executed.len.min(target.length());
        target.count_sent(sent);
        self.sent(caller, target.way(), sent);
        Ok((executed, placed, target.way()))
    }

    async fn run(&self, caller: &Caller, call: Execute<'_>) -> Result<Executed, Status> {
        let executed = self.store.execute(call).await;
        // A function takes its time: what it has to say is for a key that still is one.
        self.must_stand(caller)?;
        executed.map_err(with_logs)
    }
}

/// The refusal of a function, with what it had logged.
fn with_logs(error: StoreError) -> Status {
    let logs = error.program().map(|fault| fault.logs.clone());
    let mut status = Status::from(Refusal::from(error));
    if let Some(logs) = logs.filter(|logs| !logs.is_empty()) {
        // The end is where it went wrong.
        let end = logs.slice(logs.len().saturating_sub(LOGS_BYTES_MAX)..);
        let value = MetadataValue::from_bytes(&end);
        status.metadata_mut().insert_bin(LOGS_METADATA, value);
    }
    status
}

fn module(asked: &v1::ExecuteRequest) -> Outcome<Module<'_>> {
    match &asked.module {
        None => Err(Refusal::invalid("no module is named")),
        Some(execute_request::Module::Name(name)) => Ok(Module::Name(name)),
        Some(execute_request::Module::Number(number)) => Ok(Module::Number(*number)),
        Some(execute_request::Module::Sha256(digest)) => match digest.as_ref().try_into() {
            Ok(digest) => Ok(Module::Digest(ModuleDigest(digest))),
            Err(_) => Err(Refusal::invalid("a SHA-256 has 32 bytes")),
        },
    }
}

fn told(module: &AllowedModule) -> v1::AllowedModule {
    let digest = module.digest().unwrap_or(ModuleDigest([0; 32]));
    v1::AllowedModule {
        sha256: Bytes::copy_from_slice(&digest.0),
        tenant: module.tenant.clone(),
        namespace: module.namespace.clone().unwrap_or_default(),
        name: module.name.clone().unwrap_or_default(),
        number: module.number,
        function: module.function.clone().unwrap_or_default(),
        size: module.size,
        created_ms: module.created,
    }
}

/// What one of them takes in a list.
fn memory_of(module: &AllowedModule) -> usize {
    let named = [&module.namespace, &module.name, &module.function];
    let named = named.into_iter().flatten().map(String::len);
    let texts = module.tenant.len() + named.sum::<usize>();
    size_of::<v1::AllowedModule>() + size_of::<ModuleDigest>() + texts
}

fn data(part: &[u8]) -> v1::ExecuteResponse {
    count_copy(CopySite::RpcMessage, part.len());
    v1::ExecuteResponse {
        part: Some(execute_response::Part::Data(Bytes::copy_from_slice(part))),
    }
}

fn end(executed: &Executed, way: Way) -> v1::ExecuteResponse {
    let stored = executed.stored.as_ref();
    v1::ExecuteResponse {
        part: Some(execute_response::Part::Executed(v1::Executed {
            length: executed.len,
            logs: executed.logs.clone(),
            object: stored.map(|stored| convert::object(&stored.meta)),
            replaced: stored.is_some_and(|stored| stored.replaced),
            read: executed.effort.read,
            thread_ns: executed.effort.nanos,
            memory: executed.effort.memory,
            path: way.name().to_owned(),
        })),
    }
}

/// What is left of an answer.
struct Parts {
    bytes: VecDeque<Buf>,
    end: Option<v1::ExecuteResponse>,
}

impl Parts {
    fn next(&mut self) -> Option<v1::ExecuteResponse> {
        while let Some(buf) = self.bytes.pop_front() {
            let len = buf.len().min(INLINE_BYTES_MAX);
            if len < buf.len() {
                self.bytes.push_front(buf.slice(len..buf.len()));
            }
            if len > 0 {
                return Some(data(&buf[..len]));
            }
        }
        self.end.take()
    }

    fn len(&self) -> usize {
        self.bytes.iter().map(|buf| buf.len()).sum()
    }

    /// An answer of these parts.
    ///
    /// HTTP/2 asks for a part when its client's window has room, and that may be never. So a task of its own lets go of all of them when none
    /// has moved for as long as `patience`. `open` is held until it ends.
    fn answer(
        mut self,
        patience: Duration,
        open: watch::Receiver<bool>,
    ) -> BoxStream<v1::ExecuteResponse> {
        answers::made_by(1, |places| async move {
            let _open = open;
            while self.end.is_some() {
                let Ok(Ok(place)) = timeout(patience, places.reserve()).await else {
                    let words = "the output was not read in time";
                    return Err(Refusal::new(v1::Reason::Stopped, words));
                };
                if let Some(part) = self.next() {
                    place.send(part);
                }
            }
            Ok(())
        })
    }
}

#[tonic::async_trait]
impl<S: Store> execution_server::Execution for Door<S> {
    type ExecuteStream = BoxStream<v1::ExecuteResponse>;

    async fn execute(
        &self,
        request: Request<v1::ExecuteRequest>,
    ) -> Result<Response<Self::ExecuteStream>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        call.hold(asked.inputs.capacity() * size_of::<v1::ExecuteInput>())?;
        let (mut executed, way) = self.executed(&caller, &asked).await?;
        let bytes = VecDeque::from(std::mem::take(&mut executed.bytes));
        let end = Some(end(&executed, way));
        let parts = Parts { bytes, end };
        let sent = parts.len();
        call.hold(sent.min(AHEAD * INLINE_BYTES_MAX))?;
        self.sent(&caller, Way::Message, sent as u64);
        let (patience, open) = (self.config.patience, self.closing.subscribe());
        Ok(Response::new(parts.answer(patience, open)))
    }

    async fn list_modules(
        &self,
        request: Request<v1::ListModulesRequest>,
    ) -> Result<Response<v1::ListModulesResponse>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, _) = Caller::of(request)?;
        let mut modules = self.identities.modules();
        modules.retain(|module| caller.sees(&module.tenant));
        call.hold(modules.iter().map(|module| memory_of(module)).sum())?;
        Ok(Response::new(v1::ListModulesResponse {
            modules: modules.iter().map(|module| told(module)).collect(),
        }))
    }

    async fn add_module(
        &self,
        request: Request<v1::AddModuleRequest>,
    ) -> Result<Response<v1::AllowedModule>, Status> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let leave = Leave {
            tenant: asked.tenant,
            namespace: given(asked.namespace),
            name: given(asked.name),
            number: asked.number,
            function: given(asked.function),
        };
        let wasm = match asked.source {
            None => return Err(Refusal::invalid("no module is given").into()),
            Some(add_module_request::Source::Wasm(wasm)) => wasm.to_vec(),
            Some(add_module_request::Source::Object(object)) => {
                let read = self.admin.read_module(&object.namespace, &object.key);
                read.await.map_err(Refusal::from)?
            }
        };
        let added = self.admin.add_module_bytes(leave, wasm).await;
        Ok(Response::new(told(&added.map_err(Refusal::from)?)))
    }

    async fn remove_module(
        &self,
        request: Request<v1::RemoveModuleRequest>,
    ) -> Result<Response<v1::RemoveModuleResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        caller.must_be_root()?;
        let namespace = Some(asked.namespace.as_str()).filter(|name| !name.is_empty());
        let removed = self
            .admin
            .remove_module(&asked.tenant, namespace, &asked.module);
        removed.await.map_err(Refusal::from)?;
        Ok(Response::new(v1::RemoveModuleResponse {}))
    }
}
