//! What was compiled once is compiled by no later process, as long as it lies on disk as it was.

use std::path::{Path, PathBuf};

use forebay_store::{Address, Module, Store};

use crate::support::{MODULES, World, bytes, own};

/// A module that writes the first bytes of its input.
fn text() -> String {
    own(
        "(call $write (i32.const 0) (call $read (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 100)))",
        "",
    )
}

/// How often a module was at hand, restored and compiled.
fn counted(world: &World) -> [u64; 3] {
    let metrics = world.metrics();
    ["found", "restored", "compiled"].map(|what| {
        let name = format!("forebay_exec_modules_{what}_total ");
        let told = metrics.lines().find_map(|line| line.strip_prefix(&name));
        told.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
    })
}

async fn works(world: &World, module: Module<'_>) {
    let ran = world.run(module, &["a"], b"").await.unwrap();
    assert_eq!(bytes(&ran), b"bytes of an object");
}

/// The only file in it.
fn only(folder: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(folder).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

#[tokio::test]
async fn a_compiled_module_outlives_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("modules");
    let world = World::keeping(&kept).await;
    world.put("hers", "a", b"bytes of an object").await;
    let module = world.module(&text()).await;
    works(&world, module).await;
    works(&world, module).await;
    assert_eq!(counted(&world), [1, 0, 1]);

    let world = world.restarted(&kept);
    // What it was made of is not even looked at.
    let Module::Digest(digest) = module else {
        panic!("{module:?}");
    };
    let wasm = digest.to_string();
    let address = Address::object(MODULES, wasm.as_bytes());
    let gone = world.store.delete(address, Default::default()).await;
    assert!(gone.unwrap().existed);
    works(&world, module).await;
    works(&world, module).await;
    assert_eq!(counted(&world), [1, 1, 0]);
}

#[tokio::test]
async fn who_may_not_run_a_module_may_not_because_it_was_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::keeping(folder.path()).await;
    world.put("hers", "a", b"bytes of an object").await;
    let module = world.module(&text()).await;
    works(&world, module).await;
    world.forget();
    let world = world.restarted(folder.path());
    world.run(module, &["a"], b"").await.unwrap_err();
    assert_eq!(counted(&world), [0, 0, 0]);
}

#[tokio::test]
async fn what_is_damaged_or_gone_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::keeping(folder.path()).await;
    world.put("hers", "a", b"bytes of an object").await;
    let module = world.module(&text()).await;
    works(&world, module).await;
    let file = only(folder.path());
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for left in [Some(&damaged[..]), Some(&whole[..100]), Some(b""), None] {
        match left {
            Some(bytes) => std::fs::write(&file, bytes).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        world = world.restarted(folder.path());
        works(&world, module).await;
        assert_eq!(counted(&world), [0, 0, 1]);
        // And kept again.
        world = world.restarted(folder.path());
        works(&world, module).await;
        assert_eq!(counted(&world), [0, 1, 0]);
    }
}
