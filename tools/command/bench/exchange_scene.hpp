#pragma once

#include <cstdint>
#include <memory>
#include <vector>

struct muonrt_comm;

namespace muonrt::tool {

/// Bytes that each rank sends to each, itself included: [from][to].
using ExchangeSizes = std::vector<std::vector<int64_t>>;

/// Every rank sends `bytes` in equal shares; the first ones are a byte larger if there is a rest.
ExchangeSizes exchange_sizes(int ranks, int64_t bytes);

/// A rank's part of one all-to-all-v, over what carries the exchanges of an optimizer, and memory
/// that holds what it sends and receives. Every byte follows from sender, receiver and place.
class ExchangeScene {
 public:
  /// @param comm   of this rank. @param gpu  its index; the host's memory where that is negative.
  /// Throws Error where there is no such device.
  ExchangeScene(muonrt_comm* comm, int gpu, const ExchangeSizes& sizes);
  ~ExchangeScene();

  /// Milliseconds until all has arrived on this rank. Collective.
  double run();
  /// Milliseconds of a copy of what this rank sends, on its device.
  double copy();
  /// As if nothing had arrived.
  void forget();
  /// Bytes that have not arrived, since then, as they were sent.
  int64_t wrong();

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
