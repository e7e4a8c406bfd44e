#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backend/comm.hpp"

/// Forwards all calls to another communicator. A test overrides the functions whose calls it
/// observes or changes.
class ForwardingComm : public muonrt::Comm {
 public:
  explicit ForwardingComm(std::unique_ptr<muonrt::Comm> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string describe() const override { return inner_->describe(); }
  muonrt::StreamKind stream_kind() const override { return inner_->stream_kind(); }
  bool serves(const muonrt::Device& device) const override { return inner_->serves(device); }
  int occupied_sms() const override { return inner_->occupied_sms(); }
  void exchange(muonrt::Stream& stream, std::span<const muonrt::SendTo> sends,
                std::span<const muonrt::ReceiveFrom> receives) override {
    inner_->exchange(stream, sends, receives);
  }
  void reduce_max(muonrt::Stream& stream, const float* in, float* out, int64_t n) override {
    inner_->reduce_max(stream, in, out, n);
  }
  void reduce_sum(muonrt::Stream& stream, const int64_t* in, int64_t* out, int64_t n) override {
    inner_->reduce_sum(stream, in, out, n);
  }
  void clear_if_aborted(muonrt::Stream& stream, int64_t* entered) override {
    inner_->clear_if_aborted(stream, entered);
  }
  void prepare_exchange(const muonrt::Messages& messages) override {
    inner_->prepare_exchange(messages);
  }
  void prepare_reduction(int64_t bytes) override { inner_->prepare_reduction(bytes); }
  void connect(muonrt::Stream& stream) override { inner_->connect(stream); }
  void allgather(const void* mine, void* all, int64_t bytes) override {
    inner_->allgather(mine, all, bytes);
  }
  std::unique_ptr<muonrt::Comm> duplicate() override { return inner_->duplicate(); }
  void set_timeout_ms(int64_t ms) override { inner_->set_timeout_ms(ms); }
  void abort(muonrt::Status status, const std::string& message) noexcept override {
    inner_->abort(status, message);
  }
  std::optional<muonrt::Error> error() const override { return inner_->error(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  int64_t exchanges() const override { return inner_->exchanges(); }

 protected:
  std::unique_ptr<muonrt::Comm> inner_;
};
