//! Files beside bytes, over a Unix socket.
#![forbid(unsafe_code)]

mod lingering;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Instant;

use forebay_io::eventfd::Raise;
use forebay_io::passing::{
    finish, give_up, send, take_files, try_recv, try_recv_files, try_send, wait_for_end,
};
use lingering::{LINGER, lingering};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixStream;
use tokio::runtime::Builder;

fn run(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(test);
}

#[test]
fn a_file_comes_with_its_bytes() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send(&here, b"first", None).await.unwrap();
        send(&here, b"second", Some(writer.as_fd())).await.unwrap();
        drop(writer);
        let (mut bytes, mut files) = ([0; 11], VecDeque::new());
        let mut have = 0;
        while have < bytes.len() {
            there.readable().await.unwrap();
            have += try_recv(&there, &mut bytes[have..], &mut files, None).unwrap_or(0);
        }
        assert_eq!(&bytes, b"firstsecond");
        let mut passed = File::from(files.pop_front().unwrap().into_known());
        assert!(files.is_empty());
        passed.write_all(b"through the pipe").unwrap();
        drop(passed);
        let mut got = String::new();
        reader.read_to_string(&mut got).unwrap();
        assert_eq!(got, "through the pipe");
    });
}

#[test]
fn more_files_than_are_taken_are_refused() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let many = [file.as_fd(); 20];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        assert!(beside.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(
            here.as_fd(),
            &[IoSlice::new(b"x")],
            &mut beside,
            SendFlags::empty(),
        )
        .unwrap();
        there.readable().await.unwrap();
        let refused = try_recv(&there, &mut [0; 10], &mut VecDeque::new(), None);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidData);
    });
}

#[test]
fn a_full_socket_would_block_and_the_end_is_seen() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let full = loop {
            if let Err(error) = try_send(&here, &[7; 64], None) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        finish(&here);
        // What was sent before is passed over.
        wait_for_end(&there);
        there.readable().await.unwrap();
        assert_eq!(
            try_recv(&there, &mut [0; 10], &mut VecDeque::new(), None).unwrap(),
            0
        );
        try_send(&here, b"late", None).unwrap_err();
    });
}

#[test]
fn closing_what_was_passed_holds_nobody() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let mut others = Vec::new();
        let mut pass = async |bytes: &[u8]| {
            let (stream, other) = lingering();
            others.push(other);
            send(&here, bytes, Some(stream.as_fd())).await.unwrap();
            there.readable().await.unwrap();
        };
        let begin = Instant::now();
        let mut files = VecDeque::new();
        pass(b"not wanted").await;
        assert_eq!(
            try_recv(&there, &mut [0; 100], &mut files, None).unwrap(),
            10
        );
        assert_eq!(files.len(), 1);
        drop(files);
        pass(b"too many").await;
        let refused = try_recv_files(&there, &mut [0; 100], &mut VecDeque::new(), 0);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidData);
        pass(b"no eventfd").await;
        let mut files = VecDeque::new();
        try_recv(&there, &mut [0; 100], &mut files, None).unwrap();
        Raise::received(files.pop_front().unwrap()).unwrap_err();
        pass(b"not read").await;
        pass(b"either").await;
        give_up(&there);
        drop(there);
        assert!(begin.elapsed() < LINGER / 2, "{:?}", begin.elapsed());
    });
}

#[test]
fn who_takes_no_files_is_passed_none() {
    run(async {
        let (here, there) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        take_files(&there, false);
        match try_send(&here, b"x", Some(file.as_fd())) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied),
            // A kernel that takes all.
            Ok(_) => return,
        }
        assert_eq!(try_send(&here, b"x", None).unwrap(), 1);
        take_files(&there, true);
        assert_eq!(try_send(&here, b"x", Some(file.as_fd())).unwrap(), 1);
    });
}
