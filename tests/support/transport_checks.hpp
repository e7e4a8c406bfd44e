#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport.hpp"

// Exchanges in which each byte is a function of (seed, sender, receiver, exchange, index), so that
// every rank can compute what it must receive. These functions contain no Catch2 assertions,
// because the ranks may be threads.
namespace transport_test {

/// Returns pseudorandom bits that depend on `seed` and `x`.
uint64_t scramble(uint64_t seed, uint64_t x);

/// A pattern of messages: the number of bytes that `from` sends to `to` in a world of `size` ranks,
/// or 0 for no message.
struct Pattern {
  std::string name;
  int64_t (*bytes)(int from, int to, int size);
};

/// Returns all patterns. They include dense, sparse, empty, one-sided and triangular patterns,
/// messages to the sender itself, and odd sizes.
const std::vector<Pattern>& patterns();

/// Runs one exchange with `pattern`. Returns the problems on this rank, or "" if every byte is
/// correct, no byte outside the messages was written, and the sent data is unchanged. Throws the
/// errors of the transport.
std::string check_exchange(muonrt::Transport& transport, const Pattern& pattern, uint64_t seed,
                           int64_t exchange);

/// Like check_exchange, but for an allgather of `bytes` from each rank.
std::string check_allgather(muonrt::Transport& transport, int64_t bytes, uint64_t seed);

/// Like check_exchange, but for reductions: the maximum and the sum of `n` values. The values
/// include NaN, infinities, both zeros, and integers whose sum wraps around.
std::string check_reductions(muonrt::Transport& transport, int64_t n, uint64_t seed);

/// Like check_exchange, but for `count` exchanges between random pairs of ranks. The seed
/// determines the pairs. Only ranks with a message take part in an exchange.
std::string check_sparse_sequence(muonrt::Transport& transport, int64_t count, uint64_t seed);

}  // namespace transport_test
