#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/comm.hpp"

namespace muonrt {

/// How ranks talk before, and beside, a communicator of device memory: host memory (but for
/// exchanges with a copy of the caller's), blocking, one call at a time. Every wait ends. Threads:
/// calls from one thread at a time; `abort` and `trouble` from any.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "mpi, 4 ranks": the same on every rank.
  virtual std::string describe() const = 0;

  /// `all` receives `bytes` from every rank, in rank order. Collective.
  virtual void allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// As Comm::exchange. With a `copy`, messages may lie wherever that reaches; only where
  /// receivers_copy.
  virtual void exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                        const CopyMessage* copy = nullptr) = 0;
  /// Whether ranks read each other's buffers themselves: all are of one process.
  virtual bool receivers_copy() const = 0;
  /// As Comm::reduce_max, Comm::reduce_sum.
  virtual void reduce_max(const float* in, float* out, int64_t n) = 0;
  virtual void reduce_sum(const int64_t* in, int64_t* out, int64_t n) = 0;
  /// One of its own over the same ranks. Collective.
  virtual std::unique_ptr<Bootstrap> duplicate() = 0;

  virtual int64_t timeout_ms() const = 0;
  virtual void set_timeout_ms(int64_t ms) = 0;
  /// Publishes an error: pending and later calls of every rank end with it.
  virtual void abort(const Error& error) noexcept = 0;
  /// The error that ended it, or that a peer has published, as far as it is known here.
  virtual std::optional<Error> pending_error() const = 0;
};

}  // namespace muonrt
