#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_server::fuzzing::image_file(data));
