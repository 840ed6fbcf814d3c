#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_retained::fuzzing::retained_memory(data));
