//! What a person sees when a server has started.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use super::args::{Backend, ServeArgs};
use super::listeners::Listeners;
use super::nvme::device_path;
use super::shards::DiskIo;
use super::{absolute, credentials, socket};

/// Prints the doors, the credentials and three commands to try.
pub fn print(args: &ServeArgs, listeners: &Listeners, disk_io: &DiskIo) {
    let text = text(args, listeners, disk_io);
    // Nobody may be reading.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn text(args: &ServeArgs, listeners: &Listeners, disk_io: &DiskIo) -> String {
    let dir = absolute(&args.dir);
    let keeps = match &args.backend {
        Backend::Memory => "memory: everything is gone when it ends".to_owned(),
        kept => kept.to_string(),
    };
    let mut text = format!(
        "forebay {} serves {} ({keeps})\n",
        env!("CARGO_PKG_VERSION"),
        dir.display()
    );
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<12} {value}");
    };
    if let Some(url) = listeners.s3_url() {
        line("s3", &url);
    }
    if let Some(rpc) = &listeners.rpc {
        line("rpc", &format!("{}  (gRPC)", rpc.url()));
    }
    if let Some(address) = listeners.direct_listens() {
        let how = match listeners.direct_is_secure() {
            true => "iWARP over TLS",
            false => "iWARP",
        };
        line("direct", &format!("{address}  ({how})"));
    }
    if let Some(nvme) = &listeners.nvme {
        line("nvme", &format!("{}  (NVMe/TCP)", nvme.address));
    }
    if let Some(dir) = &args.vfio_user {
        line("vfio-user", &device_path(dir).display().to_string());
    }
    if let Some(console) = &listeners.console {
        let url = console.url();
        line("console", &format!("{url}  (/metrics /healthz /readyz)"));
    }
    let same_host = match args.no_direct {
        true => "",
        false => "  (shared memory)",
    };
    let socket = socket::path(&dir).display().to_string();
    line("this host", &format!("{socket}{same_host}"));
    line(
        "credentials",
        &credentials::path(&dir).display().to_string(),
    );
    line("disk I/O", &disk_io.to_string());
    if let Some(url) = listeners.s3_url() {
        let credentials = quoted(&credentials::path(&dir));
        let program = program();
        let dir = quoted(&dir);
        let more = match url.starts_with("https") {
            true => (" --ca CA.pem", " --ca-bundle CA.pem", ", verify='CA.pem'"),
            false => ("", "", ""),
        };
        text.push_str(&format!(
            "\nTry, in another terminal:\n  \
             {program} cp --dir {dir}{} --make-namespace /etc/os-release fb://demo/hello\n  \
             AWS_SHARED_CREDENTIALS_FILE={credentials} aws --endpoint-url {url}{} s3 ls s3://demo/\n  \
             AWS_SHARED_CREDENTIALS_FILE={credentials} python3 -c \"import boto3; \
             print(boto3.client('s3', endpoint_url='{url}'{}).get_object(Bucket='demo', Key='hello')['Body'].read().decode())\"\n\n",
            more.0, more.1, more.2
        ));
    }
    text
}

/// This program as the shell finds it: by name when it is on the path.
fn program() -> String {
    let Ok(this) = std::env::current_exe() else {
        return "forebay".to_owned();
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).any(|dir| dir.join("forebay") == this);
    if named {
        "forebay".to_owned()
    } else {
        quoted(&this)
    }
}

/// For a POSIX shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text
        .chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ',' | '@'));
    if plain {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
