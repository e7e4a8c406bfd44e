#include "command/bench/bench_timer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

namespace muonrt::tool {

namespace {

constexpr int64_t kLeastFiller = int64_t{1} << 20, kMaxFiller = int64_t{64} << 20;
constexpr double kFillerMs = 0.2, kMaxFillerMs = 50;  // filler until the first time is known
constexpr double kSlowCopyMs = 1;                     // exceeded only on emulated GPUs
constexpr double kRegionMs = 0.33, kMaxRegionMs = 20, kWarmMs = 50;
constexpr double kRepeatedMs = 1;
constexpr double kLeadMs = 20;  // a GPU regulates its power every few ms
constexpr std::chrono::milliseconds kClockPeriod(20);
constexpr double kMaxLead = 5000, kMaxLeadMs = 100;  // 100 ms on the host, for emulated GPUs

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Filler::Filler(Workbench& bench) {
  if (bench.device().host_reaches_memory()) return;
  const auto timed = [&] {
    const double begin = now_ms();
    enqueue(bench, 1);
    bench.finish();
    return now_ms() - begin;
  };
  while (bytes_ < kMaxFiller && copy_ms_ < kSlowCopyMs) {
    bytes_ = std::max(2 * bytes_, kLeastFiller);
    from_ = Buffer(bench.device(), bytes_);
    to_ = Buffer(bench.device(), bytes_);
    timed();  // a warm-up, because the first copy takes longer
    copy_ms_ = timed();
  }
}

void Filler::enqueue(Workbench& bench, int64_t copies) const {
  for (int64_t i = 0; i < copies; ++i)
    bench.ops().copy(bench.stream(), to_.data(), from_.data(), bytes_);
}

ClockSampler::ClockSampler(bool reads) {
  if (reads && read_gpu_clock(0)) thread_ = std::thread([this] { run(); });
}

ClockSampler::~ClockSampler() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ClockSampler::read_into(std::vector<GpuClock>* samples) {
  const std::lock_guard lock(mutex_);
  // Work that took less than 20 ms has no sample yet, so read the clock now.
  if (samples_ && samples_->empty() && thread_.joinable())
    if (const auto now = read_gpu_clock(0)) samples_->push_back(*now);
  samples_ = samples;
}

void ClockSampler::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (samples_)
      if (const auto now = read_gpu_clock(0)) samples_->push_back(*now);
    changed_.wait_for(lock, kClockPeriod, [this] { return ends_; });
  }
}

TimedWork::Taken TimedWork::take(int64_t copies) {
  Device& device = bench_->device();
  if (!clock_.data()) clock_ = Buffer::shared(device, 2 * sizeof(int64_t));
  auto* const clock = clock_.as<int64_t>();
  const std::atomic_ref<int64_t> first(clock[0]);
  first = 0;
  for (int64_t i = 0; i < lead_; ++i) enqueue_(next_++);
  filler_->enqueue(*bench_, copies);
  device.timestamp(bench_->stream(), clock);
  const double begin = now_ms();
  for (int64_t i = 0; i < times_.repeats; ++i) enqueue_(next_++);
  const double end = now_ms();
  device.timestamp(bench_->stream(), clock + 1);
  const bool ahead = first == 0;
  bench_->finish();
  const auto runs = static_cast<double>(times_.repeats);
  return {static_cast<double>(clock[1] - clock[0]) * 1e-6 / runs, (end - begin) / runs, ahead};
}

TimedWork::Taken TimedWork::take_ahead() {
  if (filler_->empty()) return take(0);
  Taken out = take(copies_);
  while (!out.ahead && 2 * static_cast<double>(copies_) * filler_->copy_ms() < kMaxFillerMs) {
    copies_ *= 2;
    out = take(copies_);
  }
  return out;
}

void TimedWork::warm_up(bool steady) {
  if (portable_ && next_ > 0) return;
  on_behalf_of(name_, [&] {
    const bool first = next_ == 0;
    if (first) take(0);  // allocates the memory that products need
    if (filler_->empty()) return;
    if (first) {
      const double begin = now_ms();
      take(0);
      run_ms_ = now_ms() - begin;
      copies_ = std::max<int64_t>(1, std::llround(kFillerMs / filler_->copy_ms()));
    }
    const auto most = std::clamp<int64_t>(std::llround(kMaxRegionMs / run_ms_), 1, kMaxRepeats);
    if (first && most == 1) return;
    const double ms = std::max(take_ahead().ms, 1e-4);
    times_.repeats = std::clamp<int64_t>(std::llround(std::ceil(kRegionMs / ms)), 1, most);
    if (steady && ms < kLeadMs)
      lead_ = std::llround(
          std::max(1.0, std::min({std::ceil(kLeadMs / ms), kMaxLeadMs / run_ms_, kMaxLead})));
  });
}

void TimedWork::measure(ClockSampler& clocks) {
  if (portable_ && times_.ms.size() == 2) return;
  clocks.read_into(&times_.clocks);
  const Taken taken = on_behalf_of(name_, [&] { return take_ahead(); });
  clocks.read_into(nullptr);
  times_.ms.push_back(taken.ms);
  times_.enqueue_ms.push_back(taken.enqueue_ms);
  if (!filler_->empty()) times_.ahead = times_.ahead.value_or(true) && taken.ahead;
}

double time_repeated(Workbench& bench, int iters, const std::function<void()>& enqueue,
                     int64_t most) {
  // Keep the stream busy while the host enqueues the runs: with a fill on the host, with copies on
  // a GPU.
  const Filler filler(bench);
  const Buffer busy(bench.device(), filler.empty() ? int64_t{8} << 20 : 0);
  const int64_t copies =
      filler.empty() ? 0 : std::max<int64_t>(1, std::llround(kRepeatedMs / filler.copy_ms()));
  const auto timed = [&](int64_t runs) {
    if (filler.empty()) bench.ops().fill(bench.stream(), busy.data(), 0, busy.bytes());
    filler.enqueue(bench, copies);
    const double ms = bench.time_once([&] {
      for (int64_t i = 0; i < runs; ++i) enqueue();
    });
    return std::max(1e-6, ms) / static_cast<double>(runs);
  };
  timed(1);  // allocates the memory that products need
  const double once = timed(1);
  const auto runs = std::clamp<int64_t>(std::llround(kRepeatedMs / once), 1, most);
  std::vector<double> all;
  for (int i = 0; i < iters; ++i) all.push_back(timed(runs));
  return median_of(all);
}

void time_in_turns(const DeviceArguments& a, const Filler& filler, std::vector<TimedWork>& works) {
  const double end = now_ms() + std::max(filler.empty() ? 0 : kWarmMs, a.steady * 1e3);
  for (int round = 0; round < std::max(1, a.warmup) || now_ms() < end; ++round)
    for (TimedWork& work : works) work.warm_up(a.steady > 0);
  ClockSampler clocks(!filler.empty());
  for (int round = 0; round < a.iters; ++round)
    for (TimedWork& work : works) work.measure(clocks);
}

std::vector<Table::Column> time_columns() {
  return joined<Table::Column>({range_columns(),
                                {{"repeats", "repeats"},
                                 {"enqueue_ms", "enqueue", Table::Align::kRight, 7},
                                 {"ahead", "ahead"},
                                 {"mhz", "MHz", Table::Align::kRight, 5},
                                 {"watts", "W", Table::Align::kRight, 4}}});
}

std::vector<Cell> time_cells(const Times& times) {
  Cell ahead = cell::nothing();
  if (times.ahead) ahead = *times.ahead ? Cell{"yes", "true"} : Cell{"HOST", "false"};
  const auto median = [&](double GpuClock::*value) {
    std::vector<double> list;
    for (const GpuClock& clock : times.clocks) list.push_back(clock.*value);
    return list.empty() ? cell::nothing() : cell::number(median_of(list), 0);
  };
  return joined<Cell>({range_cells(times.ms),
                       {cell::count(times.repeats), cell::number(median_of(times.enqueue_ms), 4),
                        ahead, median(&GpuClock::mhz), median(&GpuClock::watts)}});
}

}  // namespace muonrt::tool
