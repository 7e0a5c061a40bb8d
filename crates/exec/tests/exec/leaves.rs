//! What may run where, and what is kept ready.

use forebay_exec::Allowed;
use forebay_store::{Address, DeleteOptions, ErrorKind, Execute, Input, Module, Store};

use crate::support::{MODULES, World, assert_kind, bytes, own};

#[tokio::test]
async fn names_numbers_and_functions() {
    let world = World::new().await;
    world.put("hers", "x", b"").await;
    let more = r#"(data (i32.const 0) "hello")
        (func (export "other") (result i32) (call $write (i32.const 1) (i32.const 2)) (i32.const 0))"#;
    let text = own("(call $write (i32.const 0) (i32.const 5))", more);
    let Module::Digest(digest) = world.module(&text).await else {
        unreachable!()
    };
    world.forget();
    let run = async |module: Module<'_>, function: Option<&str>| {
        let inputs = [Input::whole("hers", b"x")];
        let call = Execute {
            function,
            ..Execute::inline("alice", module, &inputs, b"", 100)
        };
        world
            .store
            .execute(call)
            .await
            .map(|executed| bytes(&executed))
    };
    let denied = run(Module::Digest(digest), None).await.unwrap_err();
    assert_kind(&denied, ErrorKind::Denied);
    assert_eq!(
        denied.message(),
        format!("module {digest} is not allowed here")
    );
    world.allow(Allowed {
        digest,
        tenant: "alice".to_owned(),
        namespace: Some("hers".to_owned()),
        namespace_id: None,
        name: Some("greet".to_owned()),
        number: Some(7),
        function: Some("other".to_owned()),
        place: (MODULES.to_owned(), digest.to_string().into_bytes()),
    });
    assert_eq!(run(Module::Name("greet"), None).await.unwrap(), b"el");
    assert_eq!(run(Module::Number(7), None).await.unwrap(), b"el");
    assert_eq!(run(Module::Number(7), Some("run")).await.unwrap(), b"hello");
    assert_kind(
        &run(Module::Number(8), None).await.unwrap_err(),
        ErrorKind::Denied,
    );
    assert_kind(
        &run(Module::Name("run"), None).await.unwrap_err(),
        ErrorKind::Denied,
    );
    world.forget();
    assert_kind(
        &run(Module::Number(7), None).await.unwrap_err(),
        ErrorKind::Denied,
    );
}

#[tokio::test]
async fn a_leave_that_is_taken_away_meanwhile_is_none() {
    let world = World::new().await;
    let module = world.module(&own("", "")).await;
    let Module::Digest(digest) = module else {
        unreachable!()
    };
    // Its bytes go with it, before this call has them.
    let digest = digest.to_string();
    let kept = Address::object(MODULES, digest.as_bytes());
    let deleted = world.store.delete(kept, DeleteOptions::default());
    deleted.await.unwrap();
    let denied = world.run(module, &[], b"").await.unwrap_err();
    assert_kind(&denied, ErrorKind::Denied);
    assert_eq!(
        denied.message(),
        format!("module {digest} is not allowed here")
    );
}

#[tokio::test]
async fn bytes_that_are_not_the_module_are_not_run() {
    let world = World::new().await;
    let module = world.module(&own("", "")).await;
    let Module::Digest(digest) = module else {
        unreachable!()
    };
    let other = wat::parse_str(own("unreachable", "")).unwrap();
    world.put(MODULES, &digest.to_string(), &other).await;
    let error = world.run(module, &[], b"").await.unwrap_err();
    assert_kind(&error, ErrorKind::Corrupt);
    // With the right ones it runs, and then without any.
    world.module(&own("", "")).await;
    world.run(module, &[], b"").await.unwrap();
    world.put(MODULES, &digest.to_string(), b"").await;
    world.run(module, &[], b"").await.unwrap();
}

#[tokio::test]
async fn many_who_want_the_same_module_have_it_made_once() {
    let world = std::sync::Arc::new(World::new().await);
    let module = world
        .module(&own("(call $write (i32.const 0) (i32.const 5))", ""))
        .await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move { world.run(module, &[], b"").await.map(|done| done.len) })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 5);
    }
    let text = world.metrics();
    assert!(
        text.contains("forebay_exec_modules_compiled_total 1\n"),
        "{text}"
    );
    assert!(
        text.contains("forebay_exec_calls_total{outcome=\"done\"} 50\n"),
        "{text}"
    );
    assert!(
        text.contains("forebay_exec_written_bytes_total 250\n"),
        "{text}"
    );
}
