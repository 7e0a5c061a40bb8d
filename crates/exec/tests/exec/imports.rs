//! Every import does what docs/execute.md says.

use forebay_store::{ByteRange, ErrorKind, Execute, Input, Store};

use crate::support::{World, assert_kind, bytes, own};

/// Writes the results of calls, eight bytes each.
fn told(calls: &[&str], more: &str) -> String {
    let each = calls.iter().map(|call| {
        format!(
            "(i64.store (i32.const 60000) {call}) (call $write (i32.const 60000) (i32.const 8))"
        )
    });
    own(&each.collect::<String>(), more)
}

fn numbers(bytes: &[u8]) -> Vec<i64> {
    let (eights, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    eights
        .iter()
        .map(|eight| i64::from_le_bytes(*eight))
        .collect()
}

async fn results(world: &World, calls: &[&str], more: &str) -> Vec<i64> {
    let text = told(calls, more);
    numbers(&world.output(&text, &["one", "two"], b"arguments").await)
}

async fn world() -> World {
    let world = World::new().await;
    world.put("hers", "one", b"0123456789").await;
    world.put("hers", "two", b"").await;
    world
}

#[tokio::test]
async fn inputs_and_their_sizes() {
    let calls = [
        "(i64.extend_i32_s (call $inputs))",
        "(call $size (i32.const 0))",
        "(call $size (i32.const 1))",
        "(call $size (i32.const 2))",
        "(call $size (i32.const -1))",
    ];
    assert_eq!(
        results(&world().await, &calls, "").await,
        [2, 10, 0, -1, -1]
    );
}

#[tokio::test]
async fn keys_and_arguments_are_cut_to_the_room() {
    let calls = [
        "(i64.extend_i32_s (call $key (i32.const 0) (i32.const 0) (i32.const 2)))",
        "(i64.load (i32.const 0))",
        "(i64.extend_i32_s (call $key (i32.const 9) (i32.const 0) (i32.const 2)))",
        "(i64.extend_i32_s (call $arguments (i32.const 16) (i32.const 4)))",
        "(i64.load (i32.const 16))",
    ];
    let on = i64::from_le_bytes(*b"on\0\0\0\0\0\0");
    let argu = i64::from_le_bytes(*b"argu\0\0\0\0");
    assert_eq!(
        results(&world().await, &calls, "").await,
        [3, on, -1, 9, argu]
    );
}

#[tokio::test]
async fn reading_ends_at_the_end() {
    let read = |input, offset, len| {
        format!(
            "(i64.extend_i32_s (call $read (i32.const {input}) (i64.const {offset}) (i32.const 0) (i32.const {len})))"
        )
    };
    let calls = [
        read(0, 2, 3),
        "(i64.load (i32.const 0))".to_owned(),
        read(0, 8, 8),
        read(0, 10, 8),
        read(0, -1, 8),
        read(1, 0, 8),
        read(2, 0, 8),
    ];
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    let found = i64::from_le_bytes(*b"234\0\0\0\0\0");
    assert_eq!(
        results(&world().await, &calls, "").await,
        [3, found, 2, 0, 0, 0, -1]
    );
}

#[tokio::test]
async fn a_range_is_all_that_there_is() {
    let world = world().await;
    let text = told(
        &[
            "(call $size (i32.const 0))",
            "(call $pass (i32.const 0) (i64.const 1) (i64.const 100))",
        ],
        "",
    );
    let module = world.module(&text).await;
    let inputs = [Input {
        range: ByteRange::Inclusive(3, 6),
        ..Input::whole("hers", b"one")
    }];
    let call = Execute::inline("alice", module, &inputs, b"", 100);
    let output = bytes(&world.store.execute(call).await.unwrap());
    assert_eq!(&output[..8], 4_i64.to_le_bytes());
    assert_eq!(&output[8..11], b"456");
    assert_eq!(&output[11..], 3_i64.to_le_bytes());
}

#[tokio::test]
async fn output_says_how_much_of_it_arrives() {
    let world = world().await;
    let module = world
        .module(&told(&["(call $capacity)", "(i64.const 7)"], ""))
        .await;
    let call = Execute::inline("alice", module, &[], b"", 11);
    let executed = world.store.execute(call).await.unwrap();
    assert_eq!(executed.len, 16);
    assert_eq!(bytes(&executed), [11, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]);
}

#[tokio::test]
async fn logs_come_with_success_and_with_failure() {
    let world = world().await;
    let more = r#"(data (i32.const 0) "hello world")"#;
    let log = "(call $log (i32.const 0) (i32.const 5)) (call $log (i32.const 6) (i32.const 5))";
    let module = world.module(&own(log, more)).await;
    let executed = world.run(module, &[], b"").await.unwrap();
    assert_eq!(&executed.logs[..], b"hello\nworld\n");

    let fail = format!("{log} (call $fail (i32.const 42) (i32.const 6) (i32.const 5))");
    let error = world.failure(&own(&fail, more)).await;
    assert_kind(&error, ErrorKind::ProgramFailed);
    assert_eq!(error.message(), "the function failed with code 42: world");
    let fault = error.program().unwrap();
    assert_eq!(
        (fault.code, &fault.logs[..]),
        (Some(42), &b"hello\nworld\n"[..])
    );

    let error = world.failure(&own("(return (i32.const 7))", "")).await;
    assert_kind(&error, ErrorKind::ProgramFailed);
    assert_eq!(error.program().unwrap().code, Some(7));
}

#[tokio::test]
async fn sums_over_bytes() {
    let more = r#"(data (i32.const 0) "123456789--needle--")"#;
    let calls = [
        "(i64.extend_i32_u (call $crc32c (i32.const 0) (i32.const 0) (i32.const 9)))",
        "(call $crc64nvme (i64.const 0) (i32.const 0) (i32.const 9))",
        "(i64.extend_i32_u (call $crc32c (call $crc32c (i32.const 0) (i32.const 0) (i32.const 4)) (i32.const 4) (i32.const 5)))",
        "(call $crc64nvme (call $crc64nvme (i64.const 0) (i32.const 0) (i32.const 4)) (i32.const 4) (i32.const 5))",
        "(i64.extend_i32_s (call $count (i32.const 0) (i32.const 19) (i32.const 45)))",
        "(i64.extend_i32_s (call $find (i32.const 0) (i32.const 19) (i32.const 11) (i32.const 6)))",
        "(i64.extend_i32_s (call $find (i32.const 0) (i32.const 16) (i32.const 11) (i32.const 6)))",
        "(i64.extend_i32_s (call $find (i32.const 0) (i32.const 16) (i32.const 11) (i32.const 0)))",
    ];
    let crc64 = 0xAE8B_1486_0A79_9888_u64 as i64;
    let expected = [0xE306_9283, crc64, 0xE306_9283, crc64, 4, 11, -1, 0];
    assert_eq!(results(&world().await, &calls, more).await, expected);
}

#[tokio::test]
async fn sums_and_comparisons_of_elements() {
    // As i16 from address 1: 1, -2, 3, -4, 5, -6, 7, -8, 9.
    let data: String = (1..=9_i16)
        .map(|number| if number % 2 == 0 { -number } else { number })
        .flat_map(i16::to_le_bytes)
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    let more = format!(
        r#"(data (i32.const 1) "{data}") (data (i32.const 100) "\00\00")
           (data (i32.const 200) "\00\00\c0\3f\00\00\c0\7f\00\00\00\c0") (data (i32.const 300) "\00\00\00\00")"#
    );
    let calls = [
        "(call $sum_int (i32.const 3) (i32.const 1) (i32.const 9))",
        "(call $sum_int (i32.const 2) (i32.const 1) (i32.const 2))",
        "(i64.trunc_f64_s (call $sum_float (i32.const 3) (i32.const 1) (i32.const 9)))",
        // Which are greater than 0: five of nine; the seven bits after the last are clear.
        "(i64.extend_i32_s (call $compare (i32.const 3) (i32.const 4) (i32.const 1) (i32.const 9) (i32.const 100) (i32.const 110)))",
        "(i64.load16_u (i32.const 110))",
        "(i64.extend_i32_s (call $select (i32.const 2) (i32.const 1) (i32.const 9) (i32.const 110) (i32.const 120)))",
        "(call $sum_int (i32.const 3) (i32.const 120) (i32.const 5))",
        // 1.5, NaN, -2: a NaN is unequal to 0 and nothing else.
        "(i64.extend_i32_s (call $compare (i32.const 8) (i32.const 1) (i32.const 200) (i32.const 3) (i32.const 300) (i32.const 310)))",
        "(i64.extend_i32_s (call $compare (i32.const 8) (i32.const 5) (i32.const 200) (i32.const 3) (i32.const 300) (i32.const 310)))",
        "(i64.load8_u (i32.const 310))",
    ];
    let expected = [5, 1 + 65534, 5, 5, 0b1_0101_0101, 5, 25, 3, 1, 1];
    assert_eq!(results(&world().await, &calls, &more).await, expected);
}

#[tokio::test]
async fn what_lies_outside_the_memory_traps() {
    let world = world().await;
    for call in [
        "(call $write (i32.const 65535) (i32.const 2))",
        "(call $write (i32.const -1) (i32.const 1))",
        "(call $write (i32.const 1) (i32.const -1))",
        "(call $log (i32.const 65536) (i32.const 1))",
        "(call $fail (i32.const 1) (i32.const 65530) (i32.const 7))",
        "(drop (call $key (i32.const 0) (i32.const 65534) (i32.const 3)))",
        "(drop (call $arguments (i32.const 65530) (i32.const 7)))",
        "(drop (call $read (i32.const 0) (i64.const 0) (i32.const 65527) (i32.const 10)))",
        "(drop (call $crc32c (i32.const 0) (i32.const 65535) (i32.const 2)))",
        "(drop (call $crc64nvme (i64.const 0) (i32.const 65535) (i32.const 2)))",
        "(drop (call $count (i32.const 65535) (i32.const 2) (i32.const 0)))",
        "(drop (call $find (i32.const 0) (i32.const 8) (i32.const 65535) (i32.const 2)))",
        "(drop (call $sum_int (i32.const 6) (i32.const 65529) (i32.const 1)))",
        "(drop (call $sum_int (i32.const 6) (i32.const 0) (i32.const -1)))",
        "(drop (call $sum_int (i32.const 8) (i32.const 0) (i32.const 1)))",
        "(drop (call $sum_int (i32.const 10) (i32.const 0) (i32.const 1)))",
        "(drop (call $sum_float (i32.const -1) (i32.const 0) (i32.const 1)))",
        "(drop (call $compare (i32.const 0) (i32.const 6) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 8)))",
        "(drop (call $compare (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 65535)))",
        "(drop (call $compare (i32.const 6) (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 65529) (i32.const 8)))",
        "(drop (call $select (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8) (i32.const 16)))",
        "(drop (call $select (i32.const 65) (i32.const 0) (i32.const 1) (i32.const 8) (i32.const 16)))",
        "(i32.store8 (i32.const 100) (i32.const 255)) (drop (call $select (i32.const 4) (i32.const 0) (i32.const 8) (i32.const 100) (i32.const 65505)))",
    ] {
        let module = world.module(&own(call, "")).await;
        let error = world.run(module, &["one"], b"arguments").await.unwrap_err();
        assert_kind(&error, ErrorKind::ProgramFailed);
    }
    world.is_unharmed().await;
}
