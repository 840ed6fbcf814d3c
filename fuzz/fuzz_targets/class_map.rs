#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_guest::fuzzing::class_map(data));
