#pragma once

#include <cstddef>

/// What a fuzzer calls: libFuzzer, or `mutate.cpp` where there is none. Returns 0; a fault is a
/// crash, a trap, or an exception that is not the parser's own.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size);
