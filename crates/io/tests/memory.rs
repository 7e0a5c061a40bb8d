//! Files that are memory of this process.

use std::sync::Arc;

use forebay_io::File;
use forebay_io::files::OpenFile;
use forebay_mem::{PAGE_BYTES, Pool, Region};

const LEN: u64 = 1 << 20;

#[tokio::test]
async fn memory_is_read_and_written_like_a_file() {
    let pool = Pool::new(8 << 20);
    let file = OpenFile::in_memory(LEN).unwrap();
    assert_eq!(file.len().unwrap(), LEN);
    let mut buf = pool.take(9000).await;
    buf.set_len(9000);
    for (at, byte) in buf.iter_mut().enumerate() {
        *byte = (at / 7) as u8;
    }
    let written = buf.freeze();
    file.write_at(5000, written.clone()).await.unwrap();
    let (done, got) = file.read_at(5000, pool.take(9000).await, 9000).await;
    done.unwrap();
    assert_eq!(got[..], written[..]);
    // Whoever blocks sees the same bytes, and is seen.
    let mut bytes = [0; 100];
    file.read_exact_at(5100, &mut bytes).unwrap();
    assert_eq!(bytes[..], written[100..200]);
    file.write_all_at(5100, &[9; 100]).unwrap();
    let region = Region::anonymous(4 * PAGE_BYTES).unwrap();
    let into = region.slice(10..210).unwrap();
    let read = file.read_into(5050, into.clone(), Arc::new(())).await;
    assert_eq!(read.unwrap(), 200);
    let mut seen = [0; 200];
    assert!(into.read(0, &mut seen));
    assert_eq!(seen[..50], written[50..100]);
    assert_eq!(seen[50..150], [9; 100]);
    file.punch(0, LEN).unwrap();
    let (done, got) = file.read_at(5000, got, 9000).await;
    done.unwrap();
    assert!(got.len() == 9000 && got.iter().all(|byte| *byte == 0));
    file.sync_data().unwrap();
}

#[tokio::test]
async fn memory_ends_where_it_ends() {
    let pool = Pool::new(8 << 20);
    let file = OpenFile::in_memory(LEN).unwrap();
    for (at, there) in [(LEN - 10, 10), (LEN, 0), (u64::MAX / 2, 0)] {
        let (done, got) = file.read_at(at, pool.take(100).await, 100).await;
        // What is beyond all files is refused, or not there.
        assert!(done.is_err() || got.len() == there, "{at}");
    }
    let mut buf = pool.take(100).await;
    buf.set_len(100);
    file.write_at(LEN - 10, buf.freeze()).await.unwrap_err();
    file.set_len(LEN / 2).unwrap_err();
    assert_eq!(file.len().unwrap(), LEN);
    assert!(OpenFile::in_memory(0).is_err());
}
