#include "command/bench/exchange_scene.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "api/handles.hpp"
#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"
#include "command/bench/bench_values.hpp"
#include "host/host_device.hpp"

namespace muonrt::tool {

namespace {

constexpr unsigned char kNothing = 0xff;

int64_t sum_of(const std::vector<int64_t>& list) {
  return std::accumulate(list.begin(), list.end(), int64_t{0});
}

/// What rank `from` sends to rank `to`, at `at`.
void fill(unsigned char* at, int64_t bytes, size_t from, size_t to) {
  const uint64_t seed = static_cast<uint64_t>(from) << 32 | to;
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = bench_word(seed, i);
    std::memcpy(at + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
  }
}

std::unique_ptr<Device> device_of(int gpu) {
  if (gpu < 0) return host::make_host_device({});
  return make_cuda_device(gpu, {.naive_products = true});  // copies alone
}

}  // namespace

ExchangeSizes exchange_sizes(int ranks, int64_t bytes) {
  std::vector<int64_t> shares;
  for (int64_t to = 0; to < ranks; ++to)
    shares.push_back(bytes / ranks + (to < bytes % ranks ? 1 : 0));
  return ExchangeSizes(static_cast<size_t>(ranks), shares);
}

struct ExchangeScene::Inside {
  Inside(Comm& over, int gpu) : comm(over), bench(device_of(gpu)) {}
  Comm& comm;
  Workbench bench;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> done;
  int64_t sent_bytes = 0, received_bytes = 0;
  unsigned char *out = nullptr, *copied = nullptr, *in = nullptr;
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  std::vector<unsigned char> expected;
};

ExchangeScene::ExchangeScene(muonrt_comm* comm, int gpu, const ExchangeSizes& sizes)
    : inside_(new Inside(comm->body->for_optimizer(), gpu)) {
  Inside& i = *inside_;
  const auto me = static_cast<size_t>(i.comm.rank());
  i.stream = i.bench.device().create_stream(i.comm.stream_kind());
  i.done = i.bench.device().create_event();
  i.sent_bytes = sum_of(sizes[me]);
  for (const auto& row : sizes) i.received_bytes += row[me];
  i.out = static_cast<unsigned char*>(i.bench.take(i.sent_bytes));
  i.copied = static_cast<unsigned char*>(i.bench.take(i.sent_bytes));
  i.in = static_cast<unsigned char*>(i.bench.take(i.received_bytes));
  i.expected.resize(static_cast<size_t>(i.received_bytes));
  std::vector<unsigned char> sent(static_cast<size_t>(i.sent_bytes));
  int64_t from_here = 0, to_here = 0;
  for (size_t peer = 0; peer < sizes.size(); ++peer) {
    const auto number = static_cast<int32_t>(peer);
    const int64_t going = sizes[me][peer], coming = sizes[peer][me];
    fill(sent.data() + from_here, going, me, peer);
    fill(i.expected.data() + to_here, coming, peer, me);
    if (going > 0) i.sends.push_back({number, i.out + from_here, going});
    if (coming > 0) i.receives.push_back({number, i.in + to_here, coming});
    from_here += going;
    to_here += coming;
  }
  i.bench.put(i.out, sent.data(), i.sent_bytes);
}

ExchangeScene::~ExchangeScene() = default;

double ExchangeScene::run() {
  Inside& i = *inside_;
  Device& device = i.bench.device();
  const auto start = std::chrono::steady_clock::now();
  i.comm.exchange(*i.stream, i.sends, i.receives);
  device.record(*i.done, *i.stream);
  device.synchronize(*i.done, Deadline::in_ms(600'000));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (const auto error = device.error()) throw Error(*error);
  if (const auto error = i.comm.error()) throw Error(*error);
  return took.count();
}

double ExchangeScene::copy() {
  Inside& i = *inside_;
  return i.bench.time_once(
      [&] { i.bench.ops().copy(i.bench.stream(), i.copied, i.out, i.sent_bytes); });
}

void ExchangeScene::forget() {
  Inside& i = *inside_;
  const std::vector<unsigned char> nothing(i.expected.size(), kNothing);
  i.bench.put(i.in, nothing.data(), i.received_bytes);
}

int64_t ExchangeScene::wrong() {
  Inside& i = *inside_;
  std::vector<unsigned char> got(i.expected.size());
  i.bench.get(got.data(), i.in, i.received_bytes);
  int64_t out = 0;
  for (size_t k = 0; k < got.size(); ++k) out += got[k] != i.expected[k];
  return out;
}

}  // namespace muonrt::tool
