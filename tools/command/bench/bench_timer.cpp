#include "command/bench/bench_timer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "command/bench/median.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kLeastFiller = int64_t{1} << 20, kMostFiller = int64_t{64} << 20;
constexpr double kFillerMs = 0.2, kMostFillerMs = 50;  // before it is known what it is for
constexpr double kSlowCopyMs = 1;                      // an emulated GPU's
constexpr double kRegionMs = 0.33, kMostRegionMs = 20, kWarmMs = 50;
constexpr double kLeadMs = 20;                         // a GPU looks at its power every few ms
constexpr double kMostLead = 5000, kMostLeadMs = 100;  // of the host: an emulated GPU's

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A person looks for the rows that the host has slowed down.
Cell ahead_cell(const std::optional<bool>& ahead) {
  if (!ahead) return cell::nothing();
  return *ahead ? Cell{"yes", "true"} : Cell{"HOST", "false"};
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
  while (bytes_ < kMostFiller && copy_ms_ < kSlowCopyMs) {
    bytes_ = std::max(2 * bytes_, kLeastFiller);
    from_ = Buffer(bench.device(), bytes_);
    to_ = Buffer(bench.device(), bytes_);
    timed();  // a first one takes longer
    copy_ms_ = timed();
  }
}

void Filler::enqueue(Workbench& bench, int64_t copies) const {
  for (int64_t i = 0; i < copies; ++i)
    bench.ops().copy(bench.stream(), to_.data(), from_.data(), bytes_);
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
  if (!filler_->there()) return take(0);
  Taken out = take(copies_);
  while (!out.ahead && 2 * static_cast<double>(copies_) * filler_->copy_ms() < kMostFillerMs) {
    copies_ *= 2;
    out = take(copies_);
  }
  return out;
}

void TimedWork::learn() {
  // The first run makes what products need; the second tells how many the host has time for.
  take(0);
  if (!filler_->there()) return;
  const double begin = now_ms();
  take(0);
  run_ms_ = now_ms() - begin;
  most_repeats_ = std::clamp<int64_t>(std::llround(kMostRegionMs / run_ms_), 1, kMostRepeats);
  copies_ = std::max<int64_t>(1, std::llround(kFillerMs / filler_->copy_ms()));
}

void TimedWork::warm_up() {
  if (warmed_ && most_ == kPlainTimes) return;
  on_behalf_of(name_, [&] {
    const bool first = !warmed_;
    warmed_ = true;
    if (first) learn();
    if (most_repeats_ == 1) {
      if (!first) lead(take_ahead().ms);
      return;
    }
    const double ms = take_ahead().ms;
    times_.repeats =
        std::clamp<int64_t>(static_cast<int64_t>(std::ceil(kRegionMs / ms)), 1, most_repeats_);
    lead(ms);
  });
}

void TimedWork::lead(double ms) {
  if (!keeps_power_ || !filler_->there()) return;
  const double most = std::clamp(kMostLeadMs / run_ms_, 1.0, kMostLead);
  lead_ = std::llround(std::clamp(std::ceil(kLeadMs / std::max(ms, 1e-4)), 1.0, most));
  if (ms >= kLeadMs) lead_ = 0;
}

void TimedWork::measure() {
  if (std::ssize(times_.ms) >= most_) return;
  const Taken taken = on_behalf_of(name_, [&] { return take_ahead(); });
  times_.ms.push_back(taken.ms);
  times_.enqueue_ms.push_back(taken.enqueue_ms);
  if (filler_->there()) times_.ahead = times_.ahead.value_or(true) && taken.ahead;
}

void time_in_turns(const DeviceArguments& a, const Filler& filler, std::vector<TimedWork>& works) {
  const double end = now_ms() + std::max(filler.there() ? kWarmMs : 0, a.steady * 1e3);
  for (TimedWork& work : works)
    if (a.steady > 0) work.keep_power();
  for (int round = 0; round < std::max(1, a.warmup) || now_ms() < end; ++round)
    for (TimedWork& work : works) work.warm_up();
  for (int round = 0; round < a.iters; ++round)
    for (TimedWork& work : works) work.measure();
}

std::vector<Table::Column> time_columns() {
  return {{"min_ms", "min ms", Table::Align::kRight, 9},
          {"median_ms", "median ms", Table::Align::kRight, 9},
          {"max_ms", "max ms", Table::Align::kRight, 9},
          {"repeats", "repeats"},
          {"enqueue_ms", "enqueue", Table::Align::kRight, 7},
          {"ahead", "ahead"}};
}

std::vector<Cell> time_cells(const Times& times) {
  const auto [least, most] = std::minmax_element(times.ms.begin(), times.ms.end());
  return {cell::number(*least, 4),
          cell::number(median_of(times.ms), 4),
          cell::number(*most, 4),
          cell::count(times.repeats),
          cell::number(median_of(times.enqueue_ms), 4),
          ahead_cell(times.ahead)};
}

}  // namespace muonrt::tool
