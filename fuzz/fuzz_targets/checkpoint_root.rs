#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_format::fuzzing::checkpoint_root(data));
