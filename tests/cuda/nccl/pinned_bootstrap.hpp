#pragma once

#include <memory>
#include <utility>

#include "comm/transport_bootstrap.hpp"

namespace cuda_test {

/// A bootstrap that reports that ranks cannot access each other's memory, as with MPI or TCP.
class PinnedBootstrap final : public muonrt::Bootstrap {
 public:
  explicit PinnedBootstrap(std::unique_ptr<muonrt::Bootstrap> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string describe() const override { return inner_->describe(); }
  void allgather(const void* mine, void* all, int64_t bytes) override {
    inner_->allgather(mine, all, bytes);
  }
  void exchange(std::span<const muonrt::SendTo> sends,
                std::span<const muonrt::ReceiveFrom> receives,
                const muonrt::CopyMessage* copy) override {
    MUONRT_CHECK_INTERNAL(!copy, "only messages in host memory");
    inner_->exchange(sends, receives);
  }
  bool receivers_copy() const override { return false; }
  void reduce_max(const float* in, float* out, int64_t n) override {
    inner_->reduce_max(in, out, n);
  }
  void reduce_sum(const int64_t* in, int64_t* out, int64_t n) override {
    inner_->reduce_sum(in, out, n);
  }
  std::unique_ptr<muonrt::Bootstrap> duplicate() override {
    return std::make_unique<PinnedBootstrap>(inner_->duplicate());
  }
  int64_t timeout_ms() const override { return inner_->timeout_ms(); }
  void set_timeout_ms(int64_t ms) override { inner_->set_timeout_ms(ms); }
  void abort(const muonrt::Error& error) noexcept override { inner_->abort(error); }
  std::optional<muonrt::Error> pending_error() const override { return inner_->pending_error(); }

 private:
  const std::unique_ptr<muonrt::Bootstrap> inner_;
};

}  // namespace cuda_test
