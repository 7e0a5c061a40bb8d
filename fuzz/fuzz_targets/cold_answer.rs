#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_tier::cold::fuzz::answer(data));
