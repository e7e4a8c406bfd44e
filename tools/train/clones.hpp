#pragma once

#include <cstdint>

// Marks a function that is compiled once for each x86-64 level and picked when the program starts.
// As contraction is off and every sum has a fixed number of lanes, all of them give the same bits.
// Sanitizers run before the choice can be made, so they get the plain version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MUONRT_TRAIN_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MUONRT_TRAIN_CLONES
#endif

// The body that such a function shares with its siblings of other scalar types.
#define MUONRT_TRAIN_INLINE [[gnu::always_inline]] inline
