#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_control::fuzzing::import_url(data));
