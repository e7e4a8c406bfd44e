#pragma once

#include <cstdint>
#include <memory>
#include <vector>

struct muonrt_comm;

namespace muonrt::tool {

/// Bytes that each rank sends to each, itself included: [from][to].
using ExchangeSizes = std::vector<std::vector<int64_t>>;

/// Every rank sends `bytes` in equal shares; the first ones are a byte larger if there is a
/// remainder.
ExchangeSizes exchange_sizes(int ranks, int64_t bytes);

/// A rank's part of one all-to-all-v, over the communicator of an optimizer's exchanges, and the
/// memory that it sends from and receives into. Sender, receiver and position determine each byte.
class ExchangeWorkload {
 public:
  /// @param comm   of this rank. @param gpu  its index; the host's memory if it is negative.
  /// Throws Error if there is no such device.
  static std::unique_ptr<ExchangeWorkload> of(muonrt_comm* comm, int gpu,
                                              const ExchangeSizes& sizes);
  virtual ~ExchangeWorkload() = default;

  /// Milliseconds until all bytes have arrived on this rank. Collective.
  virtual double run() = 0;
  /// Milliseconds of a copy of the bytes that this rank sends, on its device.
  virtual double copy() = 0;
  /// Overwrites the received bytes.
  virtual void forget() = 0;
  /// Received bytes that differ from the sent ones.
  virtual int64_t wrong() = 0;
};

}  // namespace muonrt::tool
