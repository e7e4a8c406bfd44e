#pragma once

#include <cstddef>

/// The function that libFuzzer or `mutate.cpp` calls. Returns 0. A fault is a crash, a trap, or an
/// exception that is not the parser's own.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size);
