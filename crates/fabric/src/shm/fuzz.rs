//! What the fuzzer calls: any bytes are taken for a hello and for a frame. Without a fuzzer the test below replays
//! `fuzz/corpus/shm_frame` through the same function.

use super::frame::{FRAME_BYTES, Frame, WAKE, hello, proof_of};

/// What a peer sends over the socket, as far as one frame goes.
pub fn frame(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<FRAME_BYTES>() else {
        return;
    };
    if let Some(proof) = proof_of(bytes) {
        assert_eq!(hello(&proof), *bytes);
    }
    if let Some(frame) = Frame::decode(bytes) {
        let again = frame.encoded();
        assert_ne!(again[0], WAKE);
        assert_eq!(Frame::decode(&again), Some(frame));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::frame::Refusal;
    use super::*;
    use crate::sessions::{LinkId, PROOF_BYTES};
    use crate::{Access, CloseReason, Stag};

    #[test]
    fn seeds_are_what_their_names_say() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/shm_frame");
        for seed in fs::read_dir(&corpus).unwrap() {
            frame(&fs::read(seed.unwrap().path()).unwrap());
        }
        let seed = |name: &str| -> [u8; FRAME_BYTES] {
            let seed = fs::read(corpus.join(name)).unwrap();
            seed.try_into().unwrap()
        };
        let stag = Stag(0x0102_0304);
        let terminated = |words: &str| Frame::Close {
            reason: CloseReason::Terminated(words.to_owned()),
        };
        let expose = Frame::Expose {
            stag,
            access: Access::ReadWrite,
            offset: 5,
            len: u64::MAX,
        };
        let refused = Frame::Refused {
            stag,
            why: Refusal::Invalid,
        };
        let close = Frame::Close {
            reason: CloseReason::Done,
        };
        for (name, is) in [
            ("welcome", Frame::Welcome { link: LinkId(7) }),
            ("expose", expose),
            ("exposed", Frame::Exposed { stag }),
            ("refused", refused),
            ("withdraw", Frame::Withdraw { stag }),
            ("withdrawn", Frame::Withdrawn { stag }),
            ("close", close),
            ("close_with_words", terminated("why")),
        ] {
            assert_eq!(Frame::decode(&seed(name)), Some(is.clone()), "{name}");
            assert_eq!(is.encoded(), seed(name), "{name}");
        }
        let escapes = terminated(&format!("?[31m{}", "?".repeat(35)));
        assert_eq!(Frame::decode(&seed("close_escapes")), Some(escapes));
        for name in [
            "welcome_other_rings",
            "expose_for_nothing",
            "refused_for_nothing",
            "wake",
        ] {
            assert_eq!(Frame::decode(&seed(name)), None, "{name}");
        }
        assert_eq!(proof_of(&seed("hello")), Some([9; PROOF_BYTES]));
        for name in ["hello_version_2", "hello_more_behind", "wake"] {
            assert_eq!(proof_of(&seed(name)), None, "{name}");
        }
    }
}
