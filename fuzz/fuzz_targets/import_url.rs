#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_server::fuzzing::import_url(data));
