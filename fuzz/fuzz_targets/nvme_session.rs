#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_frontend::fuzzing::nvme_session(data));
