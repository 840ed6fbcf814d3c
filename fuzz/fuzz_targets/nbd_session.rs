#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_frontend::fuzzing::nbd_session(data));
