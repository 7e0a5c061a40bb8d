#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fabric::shm::fuzz::frame(data));
