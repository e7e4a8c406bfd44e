#pragma once

#include <memory>

#include "backend/comm.hpp"
#include "backend/ops.hpp"

namespace cuda_test {

/// A communicator of one rank on any device. The rank sends messages only to itself, and the
/// messages are copied on the stream.
class SelfComm final : public muonrt::Comm {
 public:
  SelfComm() = default;

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string describe() const override { return "self, on the device"; }
  muonrt::StreamKind stream_kind() const override { return muonrt::StreamKind::kComm; }
  bool serves(const muonrt::Device& device) const override {
    *device_ = const_cast<muonrt::Device*>(&device);
    return true;
  }

  void exchange(muonrt::Stream& stream, std::span<const muonrt::SendTo> sends,
                std::span<const muonrt::ReceiveFrom> receives) override {
    for (size_t i = 0; i < sends.size(); ++i)
      (*device_)->ops().copy(stream, receives[i].data, sends[i].data, sends[i].bytes);
    ++exchanges_;
  }
  void reduce_max(muonrt::Stream& stream, const float* in, float* out, int64_t n) override {
    (*device_)->ops().copy(stream, out, in, n * 4);
  }
  void reduce_sum(muonrt::Stream& stream, const int64_t* in, int64_t* out, int64_t n) override {
    (*device_)->ops().copy(stream, out, in, n * 8);
  }
  void allgather(const void* mine, void* all, int64_t bytes) override {
    std::memcpy(all, mine, static_cast<size_t>(bytes));
  }
  std::unique_ptr<muonrt::Comm> duplicate() override { return std::make_unique<SelfComm>(*this); }
  void set_timeout_ms(int64_t) override {}
  void abort(muonrt::Status, const std::string&) noexcept override {}
  int64_t bytes_sent() const override { return 0; }
  int64_t exchanges() const override { return exchanges_; }

 private:
  std::shared_ptr<muonrt::Device*> device_ = std::make_shared<muonrt::Device*>(nullptr);
  int64_t exchanges_ = 0;
};

}  // namespace cuda_test
