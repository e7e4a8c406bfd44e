#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/comm.hpp"

namespace muonrt {

/// Exchanges messages between ranks before a communicator for device memory exists, and later
/// transfers errors and host data. Messages are in host memory, unless exchange() is called with
/// `copy`. Calls block, and every wait has a time limit. Threads: only one call at a time; abort()
/// and pending_error() may be called from any thread.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns a description, for example "mpi, 4 ranks". It is the same on every rank.
  virtual std::string describe() const = 0;

  /// Gathers `bytes` bytes from every rank into `all`, in rank order. Collective.
  virtual void allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// Like Comm::exchange(). If `copy` is not null, messages may be in any memory that `copy` can
  /// access. Pass `copy` only if receivers_copy() returns true.
  virtual void exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                        const CopyMessage* copy = nullptr) = 0;
  /// Returns true if all ranks are in one process, so receivers read directly from the senders'
  /// buffers.
  virtual bool receivers_copy() const = 0;
  /// Like Comm::reduce_max() and Comm::reduce_sum().
  virtual void reduce_max(const float* in, float* out, int64_t n) = 0;
  virtual void reduce_sum(const int64_t* in, int64_t* out, int64_t n) = 0;
  /// Returns a new, independent bootstrap over the same ranks. Collective.
  virtual std::unique_ptr<Bootstrap> duplicate() = 0;

  virtual int64_t timeout_ms() const = 0;
  virtual void set_timeout_ms(int64_t ms) = 0;
  /// Publishes an error. Pending and later calls on every rank throw it.
  virtual void abort(const Error& error) noexcept = 0;
  /// Returns the error that made this bootstrap unusable. The error may be one that a peer has
  /// published and this rank has received.
  virtual std::optional<Error> pending_error() const = 0;
};

}  // namespace muonrt
