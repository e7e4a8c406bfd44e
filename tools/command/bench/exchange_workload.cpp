#include "command/bench/exchange_workload.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "api/handles.hpp"
#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"
#include "command/bench/bench_values.hpp"
#include "command/bench/peer_copies.hpp"
#include "host/host_device.hpp"

namespace muonrt::tool {

namespace {

int64_t sum_of(const std::vector<int64_t>& list) {
  return std::accumulate(list.begin(), list.end(), int64_t{0});
}

/// Writes the message from rank `from` to rank `to`.
void fill(unsigned char* at, int64_t bytes, size_t from, size_t to) {
  const uint64_t seed = static_cast<uint64_t>(from) << 32 | to;
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = bench_word(seed, i);
    std::memcpy(at + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
  }
}

std::unique_ptr<Device> device_of(int gpu) {
  if (gpu < 0) return host::make_host_device({});
  return make_cuda_device(gpu, {.naive_products = true});  // used only for copies
}

class DeviceExchange final : public ExchangeWorkload {
 public:
  DeviceExchange(Comm& comm, int gpu, const ExchangeSizes& sizes)
      : comm_(comm),
        gpu_(gpu),
        sizes_(sizes),
        bench_(device_of(gpu)),
        // On the host, this thread waits for each exchange anyway, so it may also run the exchange.
        stream_(bench_.device().create_stream(gpu < 0 ? StreamKind::kCommOnCaller
                                                      : comm.stream_kind())),
        done_(bench_.device().create_event()) {
    const auto me = static_cast<size_t>(comm.rank());
    std::vector<unsigned char> sent(static_cast<size_t>(sum_of(sizes[me])));
    int64_t received = 0;
    for (const auto& row : sizes) received += row[me];
    expected_.resize(static_cast<size_t>(received));
    out_ = static_cast<unsigned char*>(bench_.take(std::ssize(sent)));
    copied_ = static_cast<unsigned char*>(bench_.take(std::ssize(sent)));
    in_ = static_cast<unsigned char*>(bench_.take(received));
    int64_t from_here = 0, to_here = 0;
    for (size_t peer = 0; peer < sizes.size(); ++peer) {
      const auto number = static_cast<int32_t>(peer);
      const int64_t going = sizes[me][peer], coming = sizes[peer][me];
      fill(sent.data() + from_here, going, me, peer);
      fill(expected_.data() + to_here, coming, peer, me);
      if (going > 0) sends_.push_back({number, out_ + from_here, going});
      if (coming > 0) receives_.push_back({number, in_ + to_here, coming});
      from_here += going;
      to_here += coming;
    }
    sent_bytes_ = from_here;
    bench_.put(out_, sent.data(), sent_bytes_);
  }

  ExchangeTime run() override {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    const auto start = std::chrono::steady_clock::now();
    comm_.exchange(*stream_, sends_, receives_);
    const Milliseconds enqueued = std::chrono::steady_clock::now() - start;
    bench_.device().record(*done_, *stream_);
    bench_.device().synchronize(*done_, Deadline::in_ms(600'000));
    const Milliseconds took = std::chrono::steady_clock::now() - start;
    if (const auto error = bench_.device().error()) throw Error(*error);
    if (const auto error = comm_.error()) throw Error(*error);
    return {took.count(), enqueued.count()};
  }
  double copy() override {
    return bench_.time_once(
        [&] { bench_.ops().copy(bench_.stream(), copied_, out_, sent_bytes_); });
  }
  double copy_to_peers() override {
    if (!peers_) peers_ = PeerCopies::of(comm_, gpu_, out_, in_, sizes_);
    return peers_->run();
  }
  void forget() override {
    const std::vector<unsigned char> nothing(expected_.size(), 0xff);
    bench_.put(in_, nothing.data(), std::ssize(nothing));
  }
  int64_t wrong() override {
    std::vector<unsigned char> got(expected_.size());
    bench_.get(got.data(), in_, std::ssize(got));
    int64_t out = 0;
    for (size_t k = 0; k < got.size(); ++k) out += got[k] != expected_[k];
    return out;
  }

 private:
  Comm& comm_;
  int gpu_;
  ExchangeSizes sizes_;
  Workbench bench_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
  int64_t sent_bytes_ = 0;
  unsigned char *out_ = nullptr, *copied_ = nullptr, *in_ = nullptr;
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_;
  std::vector<unsigned char> expected_;
  std::unique_ptr<PeerCopies> peers_;
};

}  // namespace

ExchangeSizes exchange_sizes(int ranks, int64_t bytes) {
  std::vector<int64_t> shares;
  for (int64_t to = 0; to < ranks; ++to)
    shares.push_back(bytes / ranks + (to < bytes % ranks ? 1 : 0));
  return ExchangeSizes(static_cast<size_t>(ranks), shares);
}

std::unique_ptr<ExchangeWorkload> ExchangeWorkload::of(muonrt_comm* comm, int gpu,
                                                       const ExchangeSizes& sizes) {
  return std::make_unique<DeviceExchange>(comm->body->for_optimizer(), gpu, sizes);
}

}  // namespace muonrt::tool
