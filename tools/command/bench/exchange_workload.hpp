#pragma once

#include <cstdint>
#include <memory>
#include <vector>

struct muonrt_comm;

namespace muonrt::tool {

/// The number of bytes that rank `from` sends to rank `to`, at [from][to]. A rank may send to
/// itself.
using ExchangeSizes = std::vector<std::vector<int64_t>>;

/// Returns the sizes of an exchange in which every rank sends `bytes` in equal shares. If there is
/// a remainder, the first shares are one byte larger.
ExchangeSizes exchange_sizes(int ranks, int64_t bytes);

/// The times of an exchange on one rank, in milliseconds.
struct ExchangeTime {
  double ms, enqueue_ms;  // until all bytes have arrived; until the host has enqueued the exchange
};

/// One rank's part of an all-to-all-v over the communicator that an optimizer uses, with the memory
/// for the sent and received bytes. Sender, receiver and position determine the value of each byte.
class ExchangeWorkload {
 public:
  /// @param comm  this rank's communicator.
  /// @param gpu   index of the GPU; if negative, the memory is host memory.
  /// Throws Error if the device does not exist.
  static std::unique_ptr<ExchangeWorkload> of(muonrt_comm* comm, int gpu,
                                              const ExchangeSizes& sizes);
  virtual ~ExchangeWorkload() = default;

  /// Exchanges the bytes. Collective.
  virtual ExchangeTime run() = 0;
  /// Copies the bytes that this rank sends to another buffer on the same device. Returns the time
  /// in milliseconds.
  virtual double copy() = 0;
  /// Copies the bytes that this rank sends into the receive buffers of all ranks (PeerCopies).
  /// Returns the time in milliseconds. The first call is collective.
  virtual double copy_to_peers() = 0;
  /// Overwrites the received bytes.
  virtual void forget() = 0;
  /// Returns the number of received bytes that differ from the sent bytes.
  virtual int64_t wrong() = 0;
};

}  // namespace muonrt::tool
