#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_control::fuzzing::send_stream(data));
