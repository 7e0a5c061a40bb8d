#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::vfio_user::vfio_user(data));
