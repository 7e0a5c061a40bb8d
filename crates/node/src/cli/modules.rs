//! `forebay admin module`: which functions may be executed over whose objects.

use clap::Subcommand;
use forebay_control::MODULE_BYTES_MAX;
use forebay_control::api::{Module, ModuleSource, NewModule};
use http::Method;

use super::address::Place;
use super::server::ServerArgs;
use super::{admin, show};
use crate::exit::{Exit, Failure, Outcome};

#[derive(Debug, Subcommand)]
pub enum ModuleCommand {
    /// Allow a module to be executed; what the same module had there before is replaced
    #[command(after_help = "\
Examples:
  forebay admin module add lines.wasm --tenant vision --name lines
  forebay admin module add fb://tools/quantise.wasm --tenant vision --namespace cache --id 16")]
    Add {
        /// A file, or fb://NAMESPACE/KEY; a copy is kept
        module: Place,
        /// Over whose objects it may run
        #[arg(long, default_value = forebay_control::ROOT_TENANT)]
        tenant: String,
        /// Only over those of this namespace
        #[arg(long)]
        namespace: Option<String>,
        /// A name by which calls find it
        #[arg(long)]
        name: Option<String>,
        /// A number by which calls find it: the operation of an NVMe Execute
        #[arg(long, value_name = "N")]
        id: Option<u32>,
        /// The function that is called when a call names none [default: run]
        #[arg(long, value_name = "NAME")]
        function: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List the modules that are allowed
    #[command(after_help = "Example: forebay admin module list")]
    List(ServerArgs),
    /// Forbid a module where it was allowed
    #[command(after_help = "Example: forebay admin module rm count --tenant vision")]
    Rm {
        /// Its name, or sha256:HEX
        module: String,
        /// To whom it was allowed
        #[arg(long, default_value = forebay_control::ROOT_TENANT)]
        tenant: String,
        /// Where it was allowed, when that was one namespace
        #[arg(long)]
        namespace: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Administers modules.
pub async fn run(command: ModuleCommand) -> Outcome {
    match command {
        ModuleCommand::Add {
            module,
            tenant,
            namespace,
            name,
            id,
            function,
            server,
        } => {
            let new = NewModule {
                tenant,
                namespace,
                name,
                number: id,
                function,
                source: source(module)?,
            };
            let module: Module = server.ask(Method::POST, &["modules"], &new).await?;
            show_modules(&server, &[module])
        }
        ModuleCommand::List(server) => {
            let modules: Vec<Module> = server.ask(Method::GET, &["modules"], &()).await?;
            show_modules(&server, &modules)
        }
        ModuleCommand::Rm {
            module,
            tenant,
            namespace,
            server,
        } => {
            let module = module.strip_prefix("sha256:").unwrap_or(&module);
            let path = ["modules", &tenant, module].into_iter();
            let path: Vec<&str> = path.chain(namespace.as_deref()).collect();
            admin::remove(&server, &path).await
        }
    }
}

fn source(module: Place) -> Outcome<ModuleSource> {
    match module {
        Place::Remote(address) => Ok(ModuleSource::Object {
            namespace: address.namespace,
            key: address.key,
        }),
        Place::Local(path) => Ok(ModuleSource::of(&read(&path)?)),
        Place::Standard => Err(Failure::new(Exit::Usage, "a module is a file or an object")),
    }
}

/// The bytes of a module in a file.
pub fn read(path: &std::path::Path) -> Outcome<Vec<u8>> {
    let size = std::fs::metadata(path).map_err(Failure::file(path))?;
    if size.len() > MODULE_BYTES_MAX as u64 {
        let text = format_args!(
            "{}: a module has at most {MODULE_BYTES_MAX} bytes",
            path.display()
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    std::fs::read(path).map_err(Failure::io(path.display()))
}

fn show_modules(server: &ServerArgs, modules: &[Module]) -> Outcome {
    if server.json {
        return modules.iter().try_for_each(show::json);
    }
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let rows = modules.iter().map(|module| {
        vec![
            module.sha256.clone(),
            module.tenant.clone(),
            or_none(&module.namespace),
            or_none(&module.name),
            module
                .number
                .map_or_else(|| "-".to_owned(), |number| number.to_string()),
            or_none(&module.function),
            show::millis(module.created),
        ]
    });
    let heads = [
        "sha256",
        "tenant",
        "namespace",
        "name",
        "id",
        "function",
        "allowed",
    ];
    show::table(&heads, rows.collect())
}
