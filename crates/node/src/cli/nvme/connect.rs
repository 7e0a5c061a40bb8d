//! Which device is meant, and as whom we come.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use forebay_nvme::initiator::{
    Address, Controller, DiscoveryEntry, Error, HostIdentity, KeyValueNamespace, NamespaceContent,
    NamespaceInfo, NamespaceUrl, Options, Scheme, Secret, SecureChannel, SubsystemType,
    discover as ask, uuid,
};
use serde_json::{Value, json};

use super::super::show;
use crate::exit::{Exit, Failure, Outcome};
use crate::serve::nvme::flags::{host_nqn, tls_key};

/// Where a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A device of the kernel's driver, or a vfio-user socket, with a namespace's number behind it or without.
    Path(PathBuf),
    /// At an address: which subsystem and which namespace, as far as that was said.
    Remote {
        address: Address,
        subsystem: Option<String>,
        nsid: Option<u32>,
    },
}

impl FromStr for Place {
    type Err = String;

    /// `/dev/ng0n1`; `[kv://]/DIR/cntrl[/NSID]`; `[kv://]HOST[:PORT][/SUBNQN][/NSID]`.
    fn from_str(text: &str) -> Result<Place, String> {
        let rest = match text.split_once("://") {
            None => text,
            Some(("kv" | "nvme+tcp" | "nvme+vfio-user", rest)) => rest,
            Some((scheme, _)) => {
                return Err(format!("{scheme:?} is not kv, nvme+tcp or nvme+vfio-user"));
            }
        };
        if rest.starts_with('/') {
            return Ok(Place::Path(PathBuf::from(rest)));
        }
        let (address, rest) = match rest.split_once('/') {
            Some((address, rest)) => (address, rest),
            None => (rest, ""),
        };
        let address = address.parse().map_err(|error| format!("{error}"))?;
        // What follows an NQN's last slash is a part of it unless it is a number.
        let number = |text: &str| text.parse().ok().filter(|nsid: &u32| *nsid != 0);
        let (subsystem, nsid) = match (number(rest), rest.rsplit_once('/')) {
            (Some(nsid), _) => ("", Some(nsid)),
            (None, Some((subsystem, last))) if number(last).is_some() => (subsystem, number(last)),
            (None, _) => (rest, None),
        };
        if !subsystem.is_empty() && !subsystem.starts_with("nqn.") {
            return Err(format!(
                "{subsystem:?} is neither a subsystem's NQN nor a namespace's number"
            ));
        }
        Ok(Place::Remote {
            address,
            subsystem: Some(subsystem.to_owned()).filter(|name| !name.is_empty()),
            nsid,
        })
    }
}

/// Of each flag: one of the whole would stand over whatever follows it, too.
const HEADING: &str = "Host";

/// As whom we come.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Our NVMe Qualified Name [default: of /etc/nvme/hostnqn, else one that is made up]
    #[arg(long, help_heading = HEADING, value_name = "NQN", value_parser = host_nqn)]
    host_nqn: Option<String>,
    /// What proves it (DH-HMAC-CHAP): DHHC-1:...
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "SECRET",
        env = "FOREBAY_NVME_CHAP_SECRET",
        hide_env_values = true
    )]
    chap_secret: Option<String>,
    /// Ask the controller to prove this, too
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "SECRET",
        env = "FOREBAY_NVME_CONTROLLER_SECRET",
        hide_env_values = true
    )]
    controller_secret: Option<String>,
    /// The key of TLS, as nvme-cli writes it: NVMeTLSkey-1:...; with one nothing is said in the clear
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "KEY",
        env = "FOREBAY_NVME_TLS_KEY",
        hide_env_values = true
    )]
    tls_key: Option<String>,
    /// A CRC32C over headers
    #[arg(long, help_heading = HEADING)]
    header_digest: bool,
    /// A CRC32C over data
    #[arg(long, help_heading = HEADING)]
    data_digest: bool,
    /// Print JSON, one object a line
    #[arg(long, help_heading = HEADING)]
    pub json: bool,
}

impl HostArgs {
    fn options(&self) -> Outcome<Options> {
        let host = match &self.host_nqn {
            None => HostIdentity::of_this_machine(),
            Some(nqn) => HostIdentity::named(nqn),
        };
        Ok(Options {
            host,
            secret: self.chap_secret.clone().map(Secret),
            controller_secret: self.controller_secret.clone().map(Secret),
            tls_key: self.tls_key.as_deref().map(tls_key).transpose()?,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            ..Options::default()
        })
    }

    /// The namespace of keys and values that is meant.
    pub async fn key_value(&self, place: &Place) -> Outcome<KeyValueNamespace> {
        let missing = || {
            Failure::new(
                Exit::Usage,
                "which namespace: kv://HOST[:PORT]/NSID (`forebay nvme list` shows them)",
            )
        };
        if let Place::Remote { nsid: None, .. } = place {
            return Err(missing());
        }
        let (controller, nsid) = self.controller(place).await?;
        if let Some(nsid) = nsid {
            // What cannot be asked for so is not there so.
            return controller
                .key_value(nsid)
                .await
                .map_err(|error| match error {
                    Error::Invalid(_) => Failure::new(Exit::NotFound, error),
                    error => error.into(),
                });
        }
        for nsid in controller.namespaces().await? {
            let kind = controller.namespace(nsid).await?.kind;
            if matches!(kind, NamespaceContent::KeyValue(_)) {
                return Ok(controller.key_value(nsid).await?);
            }
        }
        let none = "there is no namespace of keys and values";
        Err(Failure::new(Exit::NotFound, none))
    }

    /// The controller that is meant, and the namespace as far as that was said.
    async fn controller(&self, place: &Place) -> Outcome<(Controller, Option<u32>)> {
        match place {
            Place::Remote {
                address,
                subsystem,
                nsid,
            } => Ok((self.dial(address, subsystem.as_deref()).await?, *nsid)),
            Place::Path(path) => {
                let none = || format!("{}: there is no vfio-user socket", path.display());
                let (socket, nsid) =
                    socket_at(path).ok_or_else(|| Failure::new(Exit::Usage, none()))?;
                let options = self.options()?;
                let proofs = [&options.secret, &options.controller_secret];
                if options.tls_key.is_some() || proofs.into_iter().any(Option::is_some) {
                    let what = "a vfio-user socket asks for no secret and has no TLS: who may open it may use it";
                    return Err(Failure::new(Exit::Usage, what));
                }
                Ok((Controller::open(&socket, options).await?, nsid))
            }
        }
    }

    /// A controller of the subsystem that is meant, or of the only one.
    async fn dial(&self, address: &Address, subsystem: Option<&str>) -> Outcome<Controller> {
        let options = self.options()?;
        if let Some(subsystem) = subsystem {
            return Ok(Controller::connect(address.clone(), subsystem, options).await?);
        }
        let mut names: Vec<String> = self
            .subsystems(address)
            .await?
            .into_iter()
            .map(|found| found.subnqn)
            .collect();
        names.sort_unstable();
        names.dedup();
        match names.as_slice() {
            [only] => Ok(Controller::connect(address.clone(), only, options).await?),
            [] => Err(unknown(address, &options)),
            several => Err(Failure::new(
                Exit::Usage,
                format_args!("several subsystems at {address}: {}", several.join(", ")),
            )),
        }
    }

    /// The subsystems with namespaces that are reached by TCP.
    async fn subsystems(&self, address: &Address) -> Outcome<Vec<DiscoveryEntry>> {
        let mut found = self.discovered(address).await?;
        found.retain(|one| one.kind == SubsystemType::Nvm && Address::of(one).is_some());
        Ok(found)
    }

    /// What the discovery controller shows us, which to a host that it does not know is nothing.
    async fn discovered(&self, address: &Address) -> Outcome<Vec<DiscoveryEntry>> {
        let options = self.options()?;
        let found = ask(address.clone(), options.clone()).await?;
        match found.is_empty() {
            true => Err(unknown(address, &options)),
            false => Ok(found),
        }
    }
}

fn unknown(address: &Address, options: &Options) -> Failure {
    let nqn = &options.host.nqn;
    Failure::new(
        Exit::Denied,
        format_args!(
            "{address} shows this host no subsystem; there, `forebay admin host add {nqn}` lets it in"
        ),
    )
}

/// The socket of `SOCKET` or `SOCKET/NSID`.
pub fn socket_at(path: &Path) -> Option<(PathBuf, Option<u32>)> {
    let is_socket = |path: &Path| {
        path.metadata()
            .is_ok_and(|meta| meta.file_type().is_socket())
    };
    if is_socket(path) {
        return Some((path.to_owned(), None));
    }
    let nsid = path.file_name()?.to_str()?.parse().ok()?;
    let parent = path.parent().filter(|parent| is_socket(parent))?;
    Some((parent.to_owned(), Some(nsid)))
}

fn address(place: &Place) -> Outcome<&Address> {
    match place {
        Place::Remote { address, .. } => Ok(address),
        Place::Path(path) => Err(Failure::new(
            Exit::Usage,
            format_args!("{} is not an address", path.display()),
        )),
    }
}

/// `forebay nvme discover`.
pub async fn discover(place: &Place, host: &HostArgs) -> Outcome {
    let address = address(place)?;
    let found = host.discovered(address).await?;
    let rows = found.iter().map(|one| {
        let kind = match one.kind {
            SubsystemType::Referral => "referral".to_owned(),
            SubsystemType::Nvm => "namespaces".to_owned(),
            SubsystemType::CurrentDiscovery => "discovery".to_owned(),
            SubsystemType::Other(kind) => format!("kind {kind}"),
        };
        let transport = match one.transport {
            1 => "rdma".to_owned(),
            2 => "fc".to_owned(),
            3 => "tcp".to_owned(),
            other => format!("transport {other}"),
        };
        [
            kind,
            transport,
            one.address.clone(),
            one.service.clone(),
            one.subnqn.clone(),
            match one.secure_channel {
                SecureChannel::NotSpecified => "-",
                SecureChannel::Required => "required",
                SecureChannel::NotRequired => "not required",
            }
            .to_owned(),
        ]
    });
    if !host.json {
        let heading = [
            "kind",
            "transport",
            "address",
            "service",
            "subsystem",
            "TLS",
        ];
        return show::table(&heading, rows.map(Vec::from).collect());
    }
    for [kind, transport, address, service, subsystem, tls] in rows {
        show::json(&json!({
            "kind": kind, "transport": transport, "address": address, "service": service,
            "subsystem": subsystem, "tls": tls,
        }))?;
    }
    Ok(())
}

/// Whether a shell takes a name for a word that stands for itself: it is a stranger's.
fn is_word(name: &str) -> bool {
    let stands_for_itself = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_+@,/%".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(stands_for_itself)
}

/// `forebay nvme connect-string`.
pub async fn connect_string(place: &Place, host: &HostArgs) -> Outcome {
    let address = address(place)?;
    let mut shown = false;
    let mut refused = Vec::new();
    for found in host.subsystems(address).await? {
        let Some(at) = Address::of(&found) else {
            continue;
        };
        let family = if at.host.contains(':') {
            "IPv6"
        } else {
            "IPv4"
        };
        let (subsystem, port) = (&found.subnqn, at.port);
        if let Some(odd) = [subsystem, &at.host]
            .into_iter()
            .find(|name| !is_word(name))
        {
            // It hides no other.
            refused.push(format!(
                "{odd:?}, which {address} tells of, is no name to type"
            ));
            continue;
        }
        shown = true;
        let tls = match found.secure_channel {
            SecureChannel::Required => " --tls",
            SecureChannel::NotRequired | SecureChannel::NotSpecified => "",
        };
        let nvme = format!(
            "nvme connect -t tcp -a {} -s {port} -n {subsystem}{tls}",
            at.host
        );
        let spdk = format!(
            "trtype:TCP adrfam:{family} traddr:{} trsvcid:{port} subnqn:{subsystem}",
            at.host
        );
        let url = format!("kv://{at}/{subsystem}");
        match host.json {
            true => show::json(&json!({
                "subsystem": subsystem, "nvme_cli": nvme, "spdk": spdk, "url": url,
            }))?,
            false => show::table(
                &["for", "type"],
                vec![
                    vec!["nvme-cli".to_owned(), nvme],
                    vec!["SPDK".to_owned(), spdk],
                    vec!["forebay".to_owned(), format!("{url}/NSID")],
                ],
            )?,
        }
    }
    if !shown && let Some(refused) = refused.first() {
        return Err(Failure::new(Exit::Failed, refused));
    }
    for refused in refused {
        eprintln!("left out: {refused}");
    }
    Ok(())
}

/// `forebay nvme list`.
pub async fn list(place: &Place, host: &HostArgs) -> Outcome {
    let (controller, only) = host.controller(place).await?;
    let mut rows = Vec::new();
    for nsid in controller.namespaces().await? {
        if only.is_none_or(|only| only == nsid) {
            rows.push(Row::of(&controller, &controller.namespace(nsid).await?));
        }
    }
    controller.close().await;
    if host.json {
        return rows.iter().try_for_each(|row| show::json(&row.json()));
    }
    let rows = rows.into_iter().map(|row| {
        vec![
            row.nsid.to_string(),
            row.kind,
            show::size(row.bytes),
            show::bound(row.used, show::size),
            row.unit,
            row.uuid,
        ]
    });
    show::table(
        &["nsid", "keeps", "size", "used", "unit", "uuid"],
        rows.collect(),
    )
}

/// A namespace as it is shown.
struct Row {
    nsid: u32,
    kind: String,
    bytes: u64,
    used: Option<u64>,
    unit: String,
    uuid: String,
    url: Option<String>,
}

impl Row {
    fn of(controller: &Controller, info: &NamespaceInfo) -> Row {
        let url = |scheme| {
            let url = NamespaceUrl {
                scheme,
                place: controller.place().clone(),
                nsid: info.nsid,
            };
            Some(url.to_string())
        };
        let row = Row {
            nsid: info.nsid,
            kind: String::new(),
            bytes: 0,
            used: None,
            unit: String::new(),
            uuid: info.uuid.as_ref().map(uuid).unwrap_or_default(),
            url: None,
        };
        match &info.kind {
            NamespaceContent::Block(block) => Row {
                kind: "blocks".to_owned(),
                bytes: block.blocks.saturating_mul(u64::from(block.block_bytes)),
                unit: format!("blocks of {} B", block.block_bytes),
                url: url(Scheme::Block),
                ..row
            },
            NamespaceContent::KeyValue(values) => Row {
                kind: "keys".to_owned(),
                bytes: values.capacity_bytes,
                used: Some(values.used_bytes),
                unit: format!("values to {}", show::size(values.value_bytes_max.into())),
                url: url(Scheme::KeyValue),
                ..row
            },
            NamespaceContent::Other(csi) => Row {
                kind: format!("command set {csi:02x}h"),
                ..row
            },
        }
    }

    fn json(&self) -> Value {
        json!({
            "nsid": self.nsid, "keeps": self.kind, "bytes": self.bytes, "used": self.used,
            "unit": self.unit, "uuid": self.uuid, "url": self.url,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        let remote = |host: &str, port, subsystem: Option<&str>, nsid| {
            Ok(Place::Remote {
                address: Address {
                    host: host.to_owned(),
                    port,
                },
                subsystem: subsystem.map(str::to_owned),
                nsid,
            })
        };
        let parse = |text: &str| text.parse::<Place>();
        assert_eq!(
            parse("/dev/ng0n1"),
            Ok(Place::Path(PathBuf::from("/dev/ng0n1")))
        );
        assert_eq!(
            parse("kv:///run/vm/cntrl/7"),
            Ok(Place::Path(PathBuf::from("/run/vm/cntrl/7")))
        );
        assert_eq!(parse("host"), remote("host", 4420, None, None));
        assert_eq!(parse("kv://host:5/7"), remote("host", 5, None, Some(7)));
        assert_eq!(parse("kv://[::1]/7"), remote("::1", 4420, None, Some(7)));
        let (nqn, odd) = ("nqn.2026-01.org.example:a", "nqn.2026-01.org.example:a/b");
        assert_eq!(
            parse(&format!("kv://host/{nqn}/3")),
            remote("host", 4420, Some(nqn), Some(3))
        );
        assert_eq!(
            parse(&format!("nvme+tcp://host/{odd}")),
            remote("host", 4420, Some(odd), None)
        );
        for wrong in [
            "",
            "s3://host/1",
            "kv://",
            "kv://host:x/1",
            "host/0",
            "host/some",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
