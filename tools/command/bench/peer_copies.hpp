#pragma once

#include <cstdint>
#include <memory>

#include "backend/comm.hpp"
#include "command/bench/exchange_workload.hpp"

namespace muonrt::tool {

/// One rank's part of an all-to-all-v in which each rank copies its messages into the receive
/// buffers of all ranks. The copy engines of a GPU can run these copies, so they need no SM.
/// Buffers of other processes are opened with CUDA IPC. For benchmarks only: a receiver is not
/// notified when its messages have arrived.
class PeerCopies {
 public:
  /// Opens the receive buffers of all ranks. Collective. Errors, on every rank: NOT_SUPPORTED if
  /// the build has no CUDA backend; DEVICE if a buffer of another rank cannot be opened.
  /// @param out, in  this rank's send and receive buffers, both from Device::allocate().
  static std::unique_ptr<PeerCopies> of(Comm& comm, int gpu, const void* out, void* in,
                                        const ExchangeSizes& sizes);
  virtual ~PeerCopies() = default;

  /// Copies all messages of this rank. Returns the milliseconds until they have arrived.
  virtual double run() = 0;
};

}  // namespace muonrt::tool
