#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport.hpp"

// Exchanges whose every byte follows from (seed, sender, receiver, exchange, index), so that each
// rank knows what it must receive. Nothing here asserts: ranks may be threads.
namespace transport_test {

/// Scrambled bits that follow from the two numbers.
uint64_t scramble(uint64_t seed, uint64_t x);

/// Bytes that `from` sends `to` in a world of `size`; 0 where the pair is left out.
struct Pattern {
  std::string name;
  int64_t (*bytes)(int from, int to, int size);
};

/// Dense, sparse, empty, one-sided, only to oneself, triangular, of odd sizes.
const std::vector<Pattern>& patterns();

/// What is wrong in one exchange of `pattern` as `transport`'s rank sees it: "" if every byte came,
/// nothing beside the messages was written, and what was sent is as before. Throws what it throws.
std::string check_exchange(muonrt::Transport& transport, const Pattern& pattern, uint64_t seed,
                           int64_t exchange);

/// The same for allgather of `bytes` from each rank.
std::string check_allgather(muonrt::Transport& transport, int64_t bytes, uint64_t seed);

/// The same for both reductions of n values: NaN, infinities, both zeros, sums that wrap.
std::string check_reductions(muonrt::Transport& transport, int64_t n, uint64_t seed);

/// A sequence of `count` exchanges between pairs drawn from the seed; a rank that has no message in
/// one of them passes it by.
std::string check_sparse_sequence(muonrt::Transport& transport, int64_t count, uint64_t seed);

}  // namespace transport_test
