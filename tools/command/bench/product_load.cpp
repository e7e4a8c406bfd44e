#include "command/bench/product_load.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

namespace {

constexpr int kTimes = 5;  // number of measurements of a product; the median is used
constexpr int64_t kMaxProducts = 50;
constexpr std::chrono::milliseconds kMaxStart(10);

}  // namespace

ProductLoad::ProductLoad(int gpu, const BenchShape& shape, int reserved_sms)
    : bench_(make_cuda_device(gpu, {.reserved_sms = reserved_sms})),
      clock_(Buffer::shared(bench_.device(), 2 * sizeof(int64_t))) {
  const auto matrices = [&](int64_t cols) {
    MatrixBatch m{nullptr, DType::kBF16, shape.rows, cols, 0, shape.count, 0};
    m.ld = bench_.ops().leading_dimension(cols, m.dtype);
    m.stride = m.rows * m.ld;
    m.data = bench_.take(m.count * m.stride * size_of(m.dtype));
    return m;
  };
  product_.a = product_.b = matrices(shape.cols);
  product_.c = matrices(shape.rows);
  product_.transpose_b = product_.symmetric = true;
  product_.alpha = 1;
  bench_.put_values(product_.a.data, DType::kBF16, product_.a.count * product_.a.stride,
                    [](int64_t index) { return bench_value(1, index); });
  product_ms_ =
      time_repeated(bench_, kTimes, [&] { bench_.ops().multiply(bench_.stream(), product_); });
}

void ProductLoad::set_duration(double ms) {
  repeats_ = std::clamp<int64_t>(std::llround(ms / product_ms_), 1, kMaxProducts);
}

void ProductLoad::start() {
  auto* const clock = clock_.as<int64_t>();
  const std::atomic_ref<int64_t> begun(clock[0]);
  begun = 0;
  bench_.device().timestamp(bench_.stream(), clock);
  for (int64_t i = 0; i < repeats_; ++i) bench_.ops().multiply(bench_.stream(), product_);
  bench_.device().timestamp(bench_.stream(), clock + 1);
  const auto end = std::chrono::steady_clock::now() + kMaxStart;
  while (begun == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

double ProductLoad::finish() {
  bench_.finish();
  return static_cast<double>(clock_.as<int64_t>()[1] - clock_.as<int64_t>()[0]) * 1e-6;
}

}  // namespace muonrt::tool
