//! Functions sent to the data of a server elsewhere: the calls of `forebay.v1.Execution`.

use std::time::Duration;

use bytes::Bytes;
use forebay_api::v1;
use forebay_api::v1::execute_response::Part;
use tonic::Streaming;

use crate::direct::{Options, Rpc};
use crate::{Credentials, Endpoint, Error, Result};

/// The trailing metadata with what a failed function had logged.
const LOGS_METADATA: &str = "forebay-logs-bin";

/// A gRPC endpoint and who has functions run there.
#[derive(Debug, Clone)]
pub struct Execution {
    rpc: Rpc,
    deadline: Duration,
}

/// A function that has run, and its output on the way.
#[derive(Debug)]
pub struct Executing {
    rpc: Rpc,
    parts: Streaming<v1::ExecuteResponse>,
    executed: Option<v1::Executed>,
}

/// Why a function has not run to its end.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotExecuted {
    /// Why.
    pub error: Error,
    /// The last that it had logged.
    pub logs: Vec<u8>,
}

impl From<Error> for NotExecuted {
    fn from(error: Error) -> NotExecuted {
        NotExecuted {
            error,
            logs: Vec::new(),
        }
    }
}

impl Execution {
    /// Of the server at `endpoint`; nothing is sent before the first call. Of the options the deadline and the trust count.
    ///
    /// # Errors
    /// When there are no certificates to trust.
    pub fn new(
        endpoint: &Endpoint,
        credentials: &Credentials,
        options: &Options,
    ) -> Result<Execution> {
        let tls = options.tls.as_ref();
        Ok(Execution {
            rpc: Rpc::new(endpoint, credentials, tls, options.deadline)?,
            deadline: options.deadline,
        })
    }

    pub(crate) fn of(rpc: Rpc, deadline: Duration) -> Execution {
        Execution { rpc, deadline }
    }

    /// Runs a function. How long it may take the server knows.
    ///
    /// # Errors
    /// [`NotExecuted`], with what was logged.
    pub async fn execute(
        &self,
        asked: v1::ExecuteRequest,
    ) -> std::result::Result<Executing, NotExecuted> {
        let mut client = self.rpc.execution();
        match client.execute(self.rpc.signed(asked)?).await {
            Ok(parts) => Ok(Executing {
                rpc: self.rpc.clone(),
                parts: parts.into_inner(),
                executed: None,
            }),
            Err(status) => {
                let logs = status.metadata().get_bin(LOGS_METADATA);
                let logs = logs.and_then(|logs| logs.to_bytes().ok());
                Err(NotExecuted {
                    logs: logs.map(|logs| logs.to_vec()).unwrap_or_default(),
                    error: self.rpc.refused(&status),
                })
            }
        }
    }

    /// The modules that are allowed to tenants that the caller may see.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's reason as its code, or without an answer within [`Options::deadline`].
    pub async fn list_modules(&self) -> Result<Vec<v1::AllowedModule>> {
        let mut client = self.rpc.execution();
        let asked = self.rpc.signed(v1::ListModulesRequest {})?;
        let answer = self.in_time(client.list_modules(asked)).await?;
        Ok(answer.into_inner().modules)
    }

    /// Allows a module.
    ///
    /// # Errors
    /// As [`Execution::list_modules`].
    pub async fn add_module(&self, asked: v1::AddModuleRequest) -> Result<v1::AllowedModule> {
        let mut client = self.rpc.execution();
        let asked = self.rpc.signed(asked)?;
        let answer = self.in_time(client.add_module(asked)).await?;
        Ok(answer.into_inner())
    }

    /// Forbids a module.
    ///
    /// # Errors
    /// As [`Execution::list_modules`].
    pub async fn remove_module(&self, asked: v1::RemoveModuleRequest) -> Result<()> {
        let mut client = self.rpc.execution();
        let asked = self.rpc.signed(asked)?;
        self.in_time(client.remove_module(asked)).await.map(drop)
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = std::result::Result<T, tonic::Status>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.deadline, call).await {
            Ok(answer) => answer.map_err(|status| self.rpc.refused(&status)),
            Err(_) => Err(Error::TimedOut(self.deadline)),
        }
    }
}

impl Executing {
    /// The next bytes of the output; `None` after the last.
    ///
    /// # Errors
    /// When the connection is lost, or what comes is no output.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let next = self.parts.message().await;
        match next
            .map_err(|status| self.rpc.refused(&status))?
            .map(|response| response.part)
        {
            Some(Some(Part::Data(bytes))) if self.executed.is_none() => Ok(Some(bytes)),
            Some(Some(Part::Executed(executed))) if self.executed.is_none() => {
                self.executed = Some(executed);
                Ok(None)
            }
            None if self.executed.is_some() => Ok(None),
            _ => Err(Error::Protocol("an output without its end".to_owned())),
        }
    }

    /// What came of the function, when all of its output has come.
    pub fn executed(&self) -> Option<&v1::Executed> {
        self.executed.as_ref()
    }
}
