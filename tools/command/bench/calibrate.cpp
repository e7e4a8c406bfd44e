#include "command/bench/calibrate.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <exception>
#include <optional>
#include <thread>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_parts.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/machine_file.hpp"
#include "host/host_device.hpp"
#include "opt_json/output_file.hpp"

namespace muonrt::tool {

namespace {

// If measuring a size takes longer than this, the table contains no larger sizes.
constexpr double kLongProductMs = 12, kLongPassMs = 10;
constexpr double kLongMeasurement = 2;  // host seconds, because an emulated GPU's clock differs
constexpr int64_t kSmallest = 16, kLargest = 16384;
constexpr int64_t kFootprints[] = {int64_t{1} << 18, int64_t{1} << 21, int64_t{1} << 24,
                                   int64_t{1} << 27, int64_t{1} << 30};
constexpr int kManyOps = 100, kFewOps = 10;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Calibration {
 public:
  Calibration(const DeviceArguments& a, DeviceReport& report, const TimeExchange& exchange)
      : a_(a), report_(report), exchange_(exchange), gpu_(a.device == "cuda") {
    provider_ = {"default", [&a, gpu = gpu_]() -> std::unique_ptr<Device> {
                   if (gpu) return make_cuda_device(0);
                   return host::make_host_device({a.threads});
                 }};
    out_.gpu = gpu_;
    out_.name = "calibrated";
  }

  MachineFile run() {
    measure_device();
    measure_latencies();
    measure_products();
    measure_passes();
    measure_exchanges();
    out_.source = fmt::format("measured by muonrt bench calibrate, {:%Y-%m-%d}, {}, {}",
                              fmt::localtime(std::time(nullptr)), out_.title,
                              gpu_ ? "one GPU" : fmt::format("{} compute threads", a_.threads));
    return out_;
  }

 private:
  void add(const std::string& field, const std::string& at, double value, int64_t wrong = 0) {
    report_.add({cell::word(field), cell::word(at), cell::scientific(value)}, wrong);
  }

  void measure_device() {
    Workbench bench(provider_, report_);
    out_.title = bench.device().describe();
    if (gpu_) {
      const CudaDeviceSize size = cuda_device_size(0);
      out_.memory_bytes = static_cast<double>(size.memory_bytes);
      out_.processors = size.sms;
      out_.node_ranks = std::max(1, cuda_device_count());
      out_.exchange_processors = std::min(8, size.sms - 1);
    } else {
      out_.processors = std::max(1u, std::thread::hardware_concurrency());
      out_.node_ranks = std::max(1.0, std::floor(out_.processors / a_.threads));
      out_.memory_bytes = std::floor(host_memory_bytes() / out_.node_ranks);
      out_.exchange_processors = 1;
    }
    add("memory_bytes", "", out_.memory_bytes);
    add("processors", "", out_.processors);
  }

  /// Runs `work` on all ranks of the host at the same time, and returns the mean of their times. On
  /// a GPU, runs `work` only once.
  template <class Times, class Work>
  Times on_all_ranks(const Work& work) const {
    std::vector<Times> all(gpu_ ? 1 : static_cast<size_t>(out_.node_ranks));
    std::vector<std::exception_ptr> failed(all.size());
    std::vector<std::thread> threads;
    for (size_t i = 1; i < all.size(); ++i)
      threads.emplace_back([&, i] {
        try {
          all[i] = work();
        } catch (...) {
          failed[i] = std::current_exception();
        }
      });
    try {
      all[0] = work();
    } catch (...) {
      failed[0] = std::current_exception();
    }
    for (std::thread& t : threads) t.join();
    for (const std::exception_ptr& error : failed)
      if (error) std::rethrow_exception(error);
    Times out = all[0];
    for (size_t i = 1; i < all.size(); ++i) out += all[i];
    return out / static_cast<double>(all.size());
  }
  ProductTimes products_of(int64_t size, int64_t count, DType dtype) {
    return on_all_ranks<ProductTimes>([&] {
      return time_products(report_, provider_, {size, size, count}, dtype);
    });
  }

  void measure_latencies() {
    Workbench bench(provider_, report_);
    Device& device = bench.device();
    const auto other = device.create_stream(StreamKind::kComm);
    const auto there = device.create_event(), back = device.create_event();
    void* const memory = bench.take(256);
    const auto pass = [&](Stream& stream) { bench.ops().fill(stream, memory, 0, 64); };
    out_.pass_seconds = time_repeated(
                            bench, a_.iters, [&] { pass(bench.stream()); }, kManyOps) *
                        1e-3;
    const auto handover = [&](int64_t most) {
      const double ms = time_repeated(
          bench, a_.iters,
          [&] {
            device.record(*there, bench.stream());
            device.wait(*other, *there);
            pass(*other);
            device.record(*back, *other);
            device.wait(bench.stream(), *back);
            pass(bench.stream());
          },
          most);
      return std::max(1e-9, ms * 1e-3 / 2 - out_.pass_seconds);
    };
    out_.handover_seconds = handover(kManyOps);
    if (!gpu_) {
      std::atomic<bool> stop = false;
      std::vector<std::thread> busy;
      for (double core = 0; core < out_.processors; ++core)
        busy.emplace_back([&] {
          while (!stop.load(std::memory_order_relaxed)) continue;
        });
      out_.busy_handover_seconds = std::max(out_.handover_seconds, handover(kFewOps));
      stop = true;
      for (std::thread& t : busy) t.join();
      add("busy_handover_seconds", "", out_.busy_handover_seconds);
    }
    std::vector<double> enqueue;
    for (int i = 0; i < a_.iters; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      for (int k = 0; k < kManyOps; ++k) pass(bench.stream());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      enqueue.push_back(took.count() / kManyOps);
      bench.finish();
    }
    out_.launch_seconds = std::max(1e-9, median_of(enqueue));
    add("pass_seconds", "", out_.pass_seconds);
    add("handover_seconds", "", out_.handover_seconds);
    add("launch_seconds", "", out_.launch_seconds);
  }

  /// The table is measured in the dtype of the iteration: f32 on the host, and 16 bits on a GPU.
  void measure_products() {
    const DType dtype = gpu_ ? DType::kBF16 : DType::kF32;
    const ProductTimes smallest = products_of(kSmallest, 1, dtype);
    out_.product_seconds = std::min(smallest.symmetric_ms, smallest.general_ms) * 1e-3;
    add("product_seconds", "", out_.product_seconds, smallest.wrong);
    for (int64_t size = 2 * kSmallest; size <= kLargest; size *= 2) {
      const auto begin = std::chrono::steady_clock::now();
      const int64_t count = gpu_ ? std::clamp<int64_t>((1 << 21) / (size * size), 1, 16) : 1;
      const ProductTimes times = products_of(size, count, dtype);
      const double flops =
          2.0 * static_cast<double>(count * size) * static_cast<double>(size * size);
      const auto rate = [&](double ms) {
        const double seconds = ms * 1e-3;
        return flops / std::max(seconds - out_.product_seconds, seconds / 4);
      };
      out_.products.push_back(
          {static_cast<double>(size), rate(times.symmetric_ms), rate(times.general_ms)});
      const std::string at = fmt::format("{} x {}", size, size);
      add("products: symmetric", at, out_.products.back().symmetric, times.wrong);
      add("products: general", at, out_.products.back().general);
      if (std::max(times.symmetric_ms, times.general_ms) > kLongProductMs) break;
      if (seconds_since(begin) > kLongMeasurement) break;
    }
    const auto size = static_cast<int64_t>(out_.products[out_.products.size() / 2].size);
    const ProductTimes other =
        time_products(report_, provider_, {size, size, 1}, gpu_ ? DType::kF32 : DType::kBF16);
    const ProductTimes same = products_of(size, 1, dtype);
    const double ratio =
        (same.symmetric_ms + same.general_ms) / (other.symmetric_ms + other.general_ms);
    out_.f32_ratio = std::clamp(gpu_ ? ratio : 1 / ratio, 1e-3, 1e3);
    if (!gpu_) {
      for (ProductRate& r : out_.products) {
        r.symmetric /= out_.f32_ratio;
        r.general /= out_.f32_ratio;
      }
    }
    add("f32_ratio", fmt::format("{} x {}", size, size), out_.f32_ratio, same.wrong + other.wrong);
  }

  /// Names of passes of `bench elementwise`, indexed by PassKind.
  static constexpr std::array<std::array<const char*, 2>, kPassKinds> kPassesOfKind = {
      {{"copy", nullptr},
       {"pack", nullptr},
       {"unpack tall", "pack tall"},
       {"normalize", nullptr},
       {"commit", nullptr},
       {"commit stochastic", nullptr},
       {"adamw", nullptr}}};

  void measure_passes() {
    for (const int64_t footprint : kFootprints) {
      const auto begin = std::chrono::steady_clock::now();
      PassRate& row = out_.passes.emplace_back();
      row.footprint = static_cast<double>(footprint);
      double longest = 0;
      for (size_t kind = 0; kind < kPassKinds; ++kind) {
        double seconds = 0, bytes = 0;
        int64_t wrong = 0;
        for (const char* name : kPassesOfKind[kind]) {
          if (!name) continue;
          const PassTime one = on_all_ranks<PassTime>([&] {
            return time_pass(report_, provider_, name,
                             gpu_ ? footprint : footprint / static_cast<int64_t>(out_.node_ranks));
          });
          seconds += std::max(one.ms * 1e-3 - out_.pass_seconds, one.ms * 1e-3 / 4);
          bytes += static_cast<double>(one.bytes);
          wrong += one.wrong;
          longest = std::max(longest, one.ms);
        }
        row.rates[kind] = bytes / seconds;
        add(fmt::format("passes: {}", kPassNames[kind]), cell::bytes(footprint).text,
            row.rates[kind], wrong);
      }
      if (longest > kLongPassMs || seconds_since(begin) > 5 * kLongMeasurement) break;
    }
    out_.pass_bytes = out_.passes.back().rates[static_cast<size_t>(PassKind::kCommit)];
    out_.normalize_ratio = std::clamp(
        out_.passes.back().rates[static_cast<size_t>(PassKind::kNormalize)] / out_.pass_bytes, 1e-3,
        1e3);
    add("pass_bytes", "commit", out_.pass_bytes);
    add("normalize_ratio", "", out_.normalize_ratio);
  }

  void measure_exchanges() {
    constexpr int64_t kFew = 64, kBytes = int64_t{1} << 20;
    int64_t wrong = 0;
    const double few = exchange_(2, kFew, wrong), many = exchange_(2, kBytes, wrong),
                 four = exchange_(4, kFew, wrong);
    const auto at = [](int64_t bytes) { return cell::bytes(bytes).text; };
    out_.exchange_seconds =
        std::max({few * 1e-3 - 2 * out_.handover_seconds, few * 1e-3 / 4, 1e-9});
    out_.node_bytes = static_cast<double>(kBytes) / (std::max(many - few, many / 4) * 1e-3);
    out_.message_seconds = std::max(0.0, (four - few) / 2 * 1e-3);
    out_.network_bytes = gpu_ ? 45e9 : 1.1e9;
    add("exchange_seconds", at(kFew), out_.exchange_seconds, wrong);
    add("node_bytes", at(kBytes), out_.node_bytes);
    add("message_seconds", at(kFew), out_.message_seconds);
  }

  const DeviceArguments& a_;
  DeviceReport& report_;
  const TimeExchange& exchange_;
  bool gpu_;
  Provider provider_;
  MachineFile out_;
};

}  // namespace

int calibrate(const DeviceArguments& a, const std::string& file, const TimeExchange& exchange) {
  DeviceReport report(a, {{"field", "field", Table::Align::kLeft, 22},
                          {"at", "at", Table::Align::kLeft, 14},
                          {"value", "value", Table::Align::kRight, 12}});
  report.title = "A profile for `muonrt plan --machine`,";
  report.notes =
      "value: FLOP/s, bytes/s or seconds (tools/machines); #wrong: elements or bytes that differ\n"
      "from the expected ones";
  report.fields = {{"out", json_text(file)}};
  std::optional<MachineFile> made;
  const int code = report.run([&] { made = Calibration(a, report, exchange).run(); });
  if (code == 0 && made) write_text_file(file, made->text());
  return code;
}

}  // namespace muonrt::tool
