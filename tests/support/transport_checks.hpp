#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport.hpp"

// Exchanges whose every byte follows from (seed, sender, receiver, exchange, index), so that each
// rank knows what it must receive. Nothing here asserts: ranks may be threads.
namespace transport_test {

/// Pseudorandom bits that depend on the two numbers.
uint64_t scramble(uint64_t seed, uint64_t x);

/// Number of bytes that `from` sends to `to` in a world of `size` ranks; 0 if there is no message.
struct Pattern {
  std::string name;
  int64_t (*bytes)(int from, int to, int size);
};

/// Dense, sparse, empty, one-sided, only to oneself, triangular, of odd sizes.
const std::vector<Pattern>& patterns();

/// Runs one exchange of `pattern` and returns the problems on this rank: "" if every byte is
/// correct, no byte outside the messages was written, and the sent data is unchanged. Throws the
/// errors of the transport.
std::string check_exchange(muonrt::Transport& transport, const Pattern& pattern, uint64_t seed,
                           int64_t exchange);

/// The same for allgather of `bytes` from each rank.
std::string check_allgather(muonrt::Transport& transport, int64_t bytes, uint64_t seed);

/// The same for both reductions of n values: NaN, infinities, both zeros, sums that wrap.
std::string check_reductions(muonrt::Transport& transport, int64_t n, uint64_t seed);

/// A sequence of `count` exchanges between pairs drawn from the seed. A rank without a message in
/// an exchange does not call it.
std::string check_sparse_sequence(muonrt::Transport& transport, int64_t count, uint64_t seed);

}  // namespace transport_test
