#include "comm/transport_bootstrap.hpp"

namespace muonrt {

namespace {

class TransportBootstrap final : public Bootstrap {
 public:
  explicit TransportBootstrap(std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  std::string describe() const override {
    return cat(transport_->name(), ", ", size(), size() == 1 ? " rank" : " ranks");
  }
  void allgather(const void* mine, void* all, int64_t bytes) override {
    with_comm_error([&] { transport_->allgather(mine, all, bytes); });
  }
  void exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                const CopyMessage* copy) override {
    with_comm_error([&] { transport_->exchange(sends, receives, copy); });
  }
  bool receivers_copy() const override { return transport_->receivers_copy(); }
  void reduce_max(const float* in, float* out, int64_t n) override {
    with_comm_error([&] { transport_->reduce_max(in, out, n); });
  }
  void reduce_sum(const int64_t* in, int64_t* out, int64_t n) override {
    with_comm_error([&] { transport_->reduce_sum(in, out, n); });
  }
  std::unique_ptr<Bootstrap> duplicate() override {
    // allocated before the collective, because a failed allocation after it would leave the peers
    // waiting
    auto out = std::make_unique<TransportBootstrap>(nullptr);
    with_comm_error([&] { out->transport_ = transport_->duplicate(); });
    return out;
  }
  int64_t timeout_ms() const override { return transport_->timeout_ms(); }
  void set_timeout_ms(int64_t ms) override { transport_->set_timeout_ms(ms); }
  void abort(const Error& error) noexcept override { transport_->abort(error); }
  std::optional<Error> pending_error() const override {
    if (const auto own = transport_->error()) return own;
    return transport_->published_error();
  }

 private:
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<Bootstrap> make_bootstrap(std::unique_ptr<Transport> transport) {
  return std::make_unique<TransportBootstrap>(std::move(transport));
}

}  // namespace muonrt
