//! The copying itself: pairs, many at once.

use std::cell::Cell;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};

use forebay_client::{Attributes, Error, Kind, transfer};
use futures_util::stream::{self, StreamExt};

use super::super::address::{Address, Place};
use super::super::door::{Door, Listed};
use super::super::{glob, show, versions};
use super::files::{self, broken, checksum};
use super::plan::{self, Upload, folder, local_path};
use super::tally::{self, Broken, Done, Tally};
use super::{Context, usage};
use crate::exit::{Failure, Outcome};

/// From this size on it pays to ask whether an object is there already before it is moved.
pub const COMPARE_BYTES_MIN: u64 = 1 << 20;

/// Copies every source to the target. Where one fails of several, the others are copied, but to standard output: what is there would have
/// a hole.
pub async fn run(context: &Context, sources: &[Place], target: &Place) -> Outcome<Tally> {
    for source in sources {
        check_ends(source, target, sources.len() > 1)?;
    }
    let mut tally = Tally {
        verified: true,
        ..Tally::default()
    };
    if let [source] = sources {
        copy(context, source, target, false, &mut tally).await?;
        return Ok(tally);
    }
    for (at, source) in sources.iter().enumerate() {
        let copied = copy(context, source, target, true, &mut tally);
        let failed = copied.await.err();
        let ends = failed.is_some() && *target == Place::Standard;
        tally.failures.extend(failed);
        if ends {
            tally.untried += sources.len() - at - 1;
            break;
        }
    }
    Ok(tally)
}

/// Refuses what is no copy between here and a server, or inside one.
fn check_ends(source: &Place, target: &Place, several: bool) -> Outcome {
    match (source, target) {
        (Place::Standard, Place::Remote(target)) if !several => {
            match target.key.is_empty() || target.key.ends_with('/') {
                true => Err(usage(format_args!(
                    "standard input needs a key: {target}NAME"
                ))),
                false => Ok(()),
            }
        }
        (Place::Standard, _) => Err(usage("standard input goes to one fb://NAMESPACE/KEY")),
        (Place::Local(_), Place::Local(_) | Place::Standard) => Err(usage(
            "one side of a copy is fb://NAMESPACE/KEY; for files there is cp(1)",
        )),
        _ => Ok(()),
    }
}

async fn copy(
    context: &Context,
    source: &Place,
    target: &Place,
    several: bool,
    tally: &mut Tally,
) -> Outcome {
    match (source, target) {
        (Place::Local(source), Place::Remote(target)) => {
            let walk = plan::uploads(source, target, several)?;
            tally.skipped += walk.skipped;
            tally.leftovers += walk.leftovers;
            tally.failures.extend(walk.failures);
            upload(context, walk.uploads, target, tally).await;
            Ok(())
        }
        (Place::Remote(source), Place::Local(target)) => {
            download(context, source, target, several, tally).await
        }
        (Place::Remote(source), Place::Remote(target)) => {
            copy_inside(context, source, target, several, tally).await
        }
        (Place::Remote(source), Place::Standard) => standard_output(context, source, tally).await,
        (Place::Standard, Place::Remote(target)) => standard_input(context, target, tally).await,
        (Place::Local(_) | Place::Standard, _) => check_ends(source, target, several),
    }
}

async fn standard_input(context: &Context, target: &Address, tally: &mut Tally) -> Outcome {
    let moved = transfer::upload_stream(
        &context.client,
        &target.namespace,
        &target.key,
        "standard input",
        std::io::stdin(),
        &context.put,
        &context.transfer,
    );
    let moved = moved
        .await
        .map_err(|error| context.not_sent(error).failure)?;
    tally.add(Ok(moved.into()));
    Ok(())
}

async fn standard_output(context: &Context, source: &Address, tally: &mut Tally) -> Outcome {
    context.progress.expect([find(context, source).await?]);
    let mut broken = None;
    let moved = transfer::download_stream(
        &context.client,
        &source.namespace,
        &source.key,
        None,
        &context.transfer,
        |bytes| show::bytes(bytes).map_err(|failure| show::stopped(failure, &mut broken)),
    );
    let moved = moved
        .await
        .map_err(|error| broken.unwrap_or_else(|| error.into()))?;
    tally.add(Ok(moved.into()));
    Ok(())
}

async fn upload(context: &Context, uploads: Vec<Upload>, target: &Address, tally: &mut Tally) {
    let context = &context.for_many(uploads.len());
    let sizes = uploads.iter().map(|upload| upload.size);
    context.progress.expect(sizes);
    let copies = uploads
        .into_iter()
        .map(|upload| upload_one(context, upload, target));
    all(copies, context.parallel, tally).await;
}

async fn upload_one(context: &Context, upload: Upload, target: &Address) -> Result<Done, Broken> {
    let Upload { path, size, key } = upload;
    let namespace = &target.namespace;
    if size == 0 {
        return upload_to_end(context, path, namespace, &key).await;
    }
    // The same bytes are another object when it is to have other attributes.
    let plain = context.put.attributes == Attributes::default();
    if context.transfer.resume && plain && size >= COMPARE_BYTES_MIN {
        match context.known(namespace, &key).await {
            Ok(there) if there.size == size => {
                if let Some(crc) = there.crc64nvme
                    && checksum(&path).await? == crc
                {
                    return Ok(context.unchanged(size));
                }
            }
            // Whoever may store need not be allowed to look.
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::Denied) => {
                return Err(error.into());
            }
            Ok(_) | Err(_) => {}
        }
    }
    let moved = transfer::upload_file(
        &context.client,
        namespace,
        &key,
        &path,
        &context.put,
        &context.transfer,
    );
    Ok(moved.await.map_err(|error| context.not_sent(error))?.into())
}

/// Sends what a file has, whatever it says.
async fn upload_to_end(
    context: &Context,
    path: PathBuf,
    namespace: &str,
    key: &str,
) -> Result<Done, Broken> {
    let name = path.display().to_string();
    let file = files::open(path).await?;
    let moved = transfer::upload_stream(
        &context.client,
        namespace,
        key,
        &name,
        file,
        &context.put,
        &context.transfer,
    );
    Ok(moved.await.map_err(|error| context.not_sent(error))?.into())
}

async fn download(
    context: &Context,
    source: &Address,
    target: &Path,
    several: bool,
    tally: &mut Tally,
) -> Outcome {
    let into_folder =
        several || target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/");
    let pattern = is_pattern(context, source).await?;
    if !pattern && !is_prefix(source) {
        let path = match into_folder {
            true => {
                let name = source.key.rsplit('/').next().unwrap_or_default();
                local_path(target, name)
                    .ok_or_else(|| usage(format_args!("{source} cannot be a file's name")))?
            }
            false => target.to_owned(),
        };
        context.progress.expect([find(context, source).await?]);
        if into_folder {
            make_folder(target)?;
        }
        let done = download_one(context, source, &source.key, path, None).await;
        tally.add(done);
        return Ok(());
    }
    let (base, found) = search(&context.door, source, pattern).await?;
    make_folder(target)?;
    let context = &context.for_many(found.len());
    let sizes = found.iter().map(|object| object.size);
    context.progress.expect(sizes);
    let copies = found.into_iter().map(|object| async move {
        let key = object.text()?;
        let relative = key.get(base..).unwrap_or_default();
        // What other tools leave for a folder.
        let folder = match relative {
            "" => Some(target.to_owned()),
            _ => {
                let name = relative.strip_suffix('/');
                name.and_then(|name| local_path(target, name))
            }
        };
        if let Some(path) = folder
            && object.size == 0
        {
            fs::create_dir_all(&path).map_err(broken(&path))?;
            return Ok(transfer::Moved {
                verified: true,
                ..transfer::Moved::default()
            }
            .into());
        }
        let path = local_path(target, relative).ok_or_else(|| {
            let target = target.display();
            Broken::one(format_args!("key {key:?} cannot be a file below {target}"))
        })?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(broken(parent))?;
        }
        download_one(context, source, key, path, Some(object.size)).await
    });
    all(copies, context.parallel, tally).await;
    Ok(())
}

/// Makes the folder that objects go to.
fn make_folder(target: &Path) -> Outcome {
    match target.metadata() {
        Ok(there) if !there.is_dir() => Err(usage(format_args!(
            "{} is a file, and what was named goes into a folder",
            target.display()
        ))),
        _ => fs::create_dir_all(target).map_err(Failure::io(target.display())),
    }
}

async fn download_one(
    context: &Context,
    source: &Address,
    key: &str,
    path: PathBuf,
    size: Option<u64>,
) -> Result<Done, Broken> {
    let there = fs::metadata(&path)
        .ok()
        .filter(|there| there.is_file() && there.len() >= COMPARE_BYTES_MIN);
    if let Some(there) = there
        && context.transfer.resume
        && size.is_none_or(|size| size == there.len())
    {
        let known = context.known(&source.namespace, key).await;
        let info = context.found(known, &source.namespace, key).await?;
        if info.size == there.len()
            && let Some(crc) = info.crc64nvme
            && checksum(&path).await? == crc
        {
            return Ok(context.unchanged(info.size));
        }
    }
    let moved = transfer::download_file(
        &context.client,
        &source.namespace,
        key,
        &path,
        size,
        &context.transfer,
    );
    let moved = context.found(moved.await, &source.namespace, key).await?;
    Ok(moved.into())
}

async fn copy_inside(
    context: &Context,
    source: &Address,
    target: &Address,
    several: bool,
    tally: &mut Tally,
) -> Outcome {
    let client = &context.client;
    let pattern = is_pattern(context, source).await?;
    if !pattern && !is_prefix(source) {
        let into_folder = several || target.key.is_empty() || target.key.ends_with('/');
        let key = match into_folder {
            true => {
                let name = source.key.rsplit('/').next().unwrap_or_default();
                format!("{}{name}", folder(&target.key))
            }
            false => target.key.clone(),
        };
        context.progress.expect([find(context, source).await?]);
        let (from, to) = (
            (&*source.namespace, &*source.key),
            (&*target.namespace, &*key),
        );
        let moved = match transfer::copy_object(client, from, to, &context.transfer).await {
            Err(error) if is_namespace_missing(&error) => {
                return Err(context.not_sent(error).failure);
            }
            moved => moved?,
        };
        tally.add(Ok(moved.into()));
        return Ok(());
    }
    let (base, mut found) = search(&context.door, source, pattern).await?;
    let prefix = &folder(&target.key);
    // The folder's own key is that of the new folder, which a namespace does not have.
    found.retain(|object| object.size > 0 || object.key.len() > base || !prefix.is_empty());
    let context = &context.for_many(found.len());
    let sizes = found.iter().map(|object| object.size);
    context.progress.expect(sizes);
    let copies = found.into_iter().map(|object| async move {
        let key = object.text()?;
        let relative = key.get(base..).unwrap_or_default();
        let copy = format!("{prefix}{relative}");
        let (from, to) = ((&*source.namespace, key), (&*target.namespace, &*copy));
        let moved = transfer::copy_object(&context.client, from, to, &context.transfer);
        let moved = match moved.await {
            Err(error) if is_namespace_missing(&error) => return Err(context.not_sent(error)),
            moved => context.found(moved, from.0, from.1).await?,
        };
        Ok(moved.into())
    });
    all(copies, context.parallel, tally).await;
    Ok(())
}

/// Whether there was no namespace: where the object that is copied was found just now, that of the target.
fn is_namespace_missing(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.code == "NoSuchBucket")
}

/// Whether an address stands for all that lies below.
pub fn is_prefix(source: &Address) -> bool {
    source.key.is_empty() || source.key.ends_with('/')
}

/// Whether it stands for what matches. Where a version is meant, it is that of the object of just this name, which may be deleted.
async fn is_pattern(context: &Context, source: &Address) -> Outcome<bool> {
    let door = &context.door;
    Ok(context.version.is_none() && door.is_pattern(source, is_prefix(source)).await?)
}

/// The size of one object; when there is none but others lie below that name, says how to mean those.
async fn find(context: &Context, source: &Address) -> Outcome<u64> {
    match (
        context.known(&source.namespace, &source.key).await,
        &context.version,
    ) {
        (Err(error), Some(id)) => Err(versions::failed(error, source, id)),
        (Err(error), None) if error.kind() == Kind::NotFound => {
            let below = "; there are objects below it: write a / at the end";
            Err(context.door.missing(source, below).await)
        }
        (info, _) => Ok(info?.size),
    }
}

/// The objects that an address stands for, and how much of each key is not part of its name below the target.
async fn search(door: &Door, source: &Address, pattern: bool) -> Outcome<(usize, Vec<Listed>)> {
    let prefix = &source.prefix(pattern);
    let base = prefix.rfind('/').map_or(0, |slash| slash + 1);
    let mut found = Vec::new();
    let mut next = None;
    loop {
        let page = door.list(&source.namespace, prefix, None, next).await?;
        let fits = |object: &Listed| !pattern || glob::matches(&source.key, &object.shown());
        found.extend(page.objects.into_iter().filter(fits));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    source.must_stand_for(!found.is_empty())?;
    Ok((base, found))
}

/// Runs the copies, `parallel` at a time, and begins no more once one fails in a way that the others will, too. Those that have begun may
/// have made what they are to make, and are waited for.
async fn all<F: Future<Output = Result<Done, Broken>>>(
    mut copies: impl ExactSizeIterator<Item = F>,
    parallel: usize,
    tally: &mut Tally,
) {
    let stop = Cell::new(false);
    let begun = std::iter::from_fn(|| match stop.get() {
        true => None,
        false => copies.next(),
    });
    let mut running = stream::iter(begun).buffer_unordered(parallel);
    while let Some(done) = running.next().await {
        if tally.add(done) {
            stop.set(true);
        }
    }
    drop(running);
    tally.untried += copies.len();
}

impl Context {
    async fn known(&self, namespace: &str, key: &str) -> Result<transfer::Known, Error> {
        transfer::known(&self.client, namespace, key, &self.transfer).await
    }

    /// A failure to send, with what would help.
    fn not_sent(&self, error: Error) -> Broken {
        let missing = error.kind() == Kind::NotFound;
        let mut broken = Broken::from(error);
        if missing {
            broken.failure.message.push_str(self.hint);
        }
        broken
    }

    /// What came of an object that was there. A HEAD does not say whether it has gone, or its namespace has: that is asked for. So is,
    /// where a failure does not say whether the others will fail so too, whether the server still knows this one.
    async fn found<T>(
        &self,
        found: Result<T, Error>,
        namespace: &str,
        key: &str,
    ) -> Result<T, Broken> {
        let error = match found {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if matches!(&error, Error::Refused(refusal) if refusal.code == "NotFound")
            && let Err(missing) = self.door.list(namespace, key, Some("/"), None).await
            && missing.kind() == Kind::NotFound
        {
            return Err(missing.into());
        }
        let may_be_alone = tally::may_be_alone(&error);
        let mut broken = Broken::from(error);
        let once = self.client.trying_once();
        broken.alone |= may_be_alone && once.head(namespace, key).await.is_ok();
        Err(broken)
    }

    /// With many files in flight each gets few parts in flight.
    fn for_many(&self, files: usize) -> Context {
        let mut context = self.clone();
        context.transfer.parallel = (self.parallel / files.clamp(1, self.parallel)).max(1);
        context
    }

    fn unchanged(&self, bytes: u64) -> Done {
        self.progress.moved(bytes);
        Done {
            moved: transfer::Moved {
                bytes,
                resumed: bytes,
                verified: true,
                path: None,
            },
            unchanged: true,
        }
    }
}
