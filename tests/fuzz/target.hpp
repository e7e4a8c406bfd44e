#pragma once

#include <cstddef>

/// Runs one input and returns 0. libFuzzer or `mutate.cpp` calls it. A crash, a trap, or an
/// exception that the parser does not throw on purpose is a fault.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size);
