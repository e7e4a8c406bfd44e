#pragma once

#include <cstdint>
#include <memory>
#include <vector>

struct muonrt_comm;

namespace muonrt::tool {

/// The number of bytes that rank `from` sends to rank `to`, at [from][to]. A rank may send to
/// itself.
using ExchangeSizes = std::vector<std::vector<int64_t>>;

/// Returns the sizes if every rank sends `bytes` in equal shares. If there is a remainder, the
/// first shares are one byte larger.
ExchangeSizes exchange_sizes(int ranks, int64_t bytes);

/// One rank's part of an all-to-all-v over the communicator that an optimizer uses, with memory for
/// the sent and received bytes. The value of each byte depends on sender, receiver and position.
class ExchangeWorkload {
 public:
  /// @param comm  this rank's communicator.
  /// @param gpu   index of the GPU; if negative, the memory is host memory. Throws Error if the
  /// device does not exist.
  static std::unique_ptr<ExchangeWorkload> of(muonrt_comm* comm, int gpu,
                                              const ExchangeSizes& sizes);
  virtual ~ExchangeWorkload() = default;

  /// Returns the milliseconds until all bytes have arrived on this rank. Collective.
  virtual double run() = 0;
  /// Copies the bytes that this rank sends on its device, and returns the milliseconds.
  virtual double copy() = 0;
  /// Overwrites the received bytes, so that missing bytes are detected.
  virtual void forget() = 0;
  /// Returns the number of received bytes that differ from the sent bytes.
  virtual int64_t wrong() = 0;
};

}  // namespace muonrt::tool
