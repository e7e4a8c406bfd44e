#include "muonrt/bench_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace muonrt::tool {

void add_device_options(CLI::App& command, DeviceArguments& a) {
  command.add_option("--device", a.device, "host or cuda")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  command.add_option("--index", a.index, "which GPU")->check(CLI::NonNegativeNumber);
  command.add_option("--threads", a.threads, "compute threads of the host")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command
      .add_option("--reserved-sms", a.reserved_sms,
                  "SMs that grids which fill the GPU leave free, as for a communicator")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--warmup", a.warmup, "runs that are not measured")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--iters", a.iters, "runs that are measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("--json", a.json, "print JSON");
}

std::vector<Provider> present_providers(const DeviceArguments& where) {
  std::vector<Provider> out;
  std::optional<Error> why_not;
  for (const Provider& provider : providers(where)) {
    try {
      provider.make();
      out.push_back(provider);
    } catch (const Error& error) {
      if (error.status() != Status::kNotSupported && error.status() != Status::kDevice) throw;
      why_not = error;
    }
  }
  if (out.empty()) throw Error(*why_not);
  return out;
}

Workbench::Workbench(std::unique_ptr<Device> made)
    : device_(std::move(made)),
      stream_(device_->create_stream(StreamKind::kCompute)),
      done_(device_->create_event()),
      clock_(Buffer::shared(*device_, 2 * sizeof(int64_t))) {}

void Workbench::finish() {
  device_->record(*done_, *stream_);
  device_->synchronize(*done_, Deadline::in_ms(600'000));
  if (const auto error = device_->error()) throw Error(*error);
}

void* Workbench::take(int64_t bytes) {
  memory_.emplace_back(*device_, bytes);
  return memory_.back().data();
}

void Workbench::put(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const Buffer staging = Buffer::shared(*device_, bytes);
  std::memcpy(staging.data(), from, static_cast<size_t>(bytes));
  ops().copy(*stream_, to, staging.data(), bytes);
  finish();
}

void Workbench::get(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const Buffer staging = Buffer::shared(*device_, bytes);
  ops().copy(*stream_, staging.data(), from, bytes);
  finish();
  std::memcpy(to, staging.data(), static_cast<size_t>(bytes));
}

double Workbench::time_once(const std::function<void()>& enqueue) {
  auto* const clock = clock_.as<int64_t>();
  device_->timestamp(*stream_, clock);
  enqueue();
  device_->timestamp(*stream_, clock + 1);
  finish();
  return static_cast<double>(clock[1] - clock[0]) * 1e-6;
}

std::vector<double> Workbench::time(int warmup, int iters, const std::function<void()>& enqueue) {
  return alternate(warmup, iters, {[&] { return time_once(enqueue); }})[0];
}

std::vector<std::vector<double>> alternate(int warmup, int iters,
                                           const std::vector<std::function<double()>>& runs) {
  std::vector<std::vector<double>> out(runs.size());
  for (int round = -std::max(1, warmup); round < iters; ++round) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const double took = runs[i]();
      if (round >= 0) out[i].push_back(took);
    }
  }
  return out;
}

int finish_bench(const DeviceArguments& a, const std::string& title, const Fields& fields,
                 const Table& table, int64_t wrong) {
  if (a.json) {
    Fields all = fields;
    all.emplace_back("wrong", fmt::format("{}", wrong));
    all.emplace_back("rows", table.json());
    fmt::print("{}\n", json_object(all));
  } else {
    fmt::print("{}\n\n{}", title, table.text());
  }
  return wrong > 0 ? 1 : 0;
}

uint64_t bench_word(uint64_t seed, int64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(index) + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

float bench_value(uint64_t seed, int64_t index) {
  const int32_t whole = static_cast<int32_t>(bench_word(seed, index) >> 41) - (1 << 22);
  return (static_cast<float>(whole) + 0.5f) * 0x1p-22f;
}

std::vector<unsigned char> bench_values(uint64_t seed, DType dtype, int64_t count) {
  std::vector<unsigned char> out(static_cast<size_t>(count * size_of(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const float x = bench_value(seed, i);
    if (dtype == DType::kF32) {
      std::memcpy(out.data() + 4 * i, &x, 4);
    } else {
      const bf16 half = to_bf16(x);
      std::memcpy(out.data() + 2 * i, &half, 2);
    }
  }
  return out;
}

float bench_load(const void* from, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(from)[index];
  return to_f32(static_cast<const bf16*>(from)[index]);
}

}  // namespace muonrt::tool
