#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/comm.hpp"

namespace muonrt {

/// Exchanges messages between ranks before a communicator of device memory exists, and next to it.
/// Messages are in host memory, except in an exchange with a `copy`. Calls block, and every wait
/// ends. Threads: one call at a time; `abort` and `pending_error` from any thread.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Such as "mpi, 4 ranks"; equal on all ranks.
  virtual std::string describe() const = 0;

  /// `all` receives `bytes` from every rank, in rank order. Collective.
  virtual void allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// As Comm::exchange. With `copy`, messages may be in any memory that `copy` can access. It
  /// requires receivers_copy().
  virtual void exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                        const CopyMessage* copy = nullptr) = 0;
  /// Returns whether receivers read the senders' buffers, because all ranks are in one process.
  virtual bool receivers_copy() const = 0;
  /// As Comm::reduce_max, Comm::reduce_sum.
  virtual void reduce_max(const float* in, float* out, int64_t n) = 0;
  virtual void reduce_sum(const int64_t* in, int64_t* out, int64_t n) = 0;
  /// Returns a separate bootstrap over the same ranks. Collective.
  virtual std::unique_ptr<Bootstrap> duplicate() = 0;

  virtual int64_t timeout_ms() const = 0;
  virtual void set_timeout_ms(int64_t ms) = 0;
  /// Publishes an error: pending and later calls on every rank throw it.
  virtual void abort(const Error& error) noexcept = 0;
  /// Returns the error that ended this bootstrap, or that a peer has published, if this rank has
  /// received it.
  virtual std::optional<Error> pending_error() const = 0;
};

}  // namespace muonrt
