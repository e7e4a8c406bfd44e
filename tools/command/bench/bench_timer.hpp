#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// Sets of operands that fill this are out of a GPU's L2 when their turn comes again.
constexpr int64_t kColdBytes = int64_t{128} << 20;
/// A work's runs in one time that is taken; no more sets of operands than that are of use.
constexpr int64_t kMostRepeats = 100;
/// Of a product, or of Newton-Schulz, by plain loops, which are slow.
constexpr double kMostPlainFlops = 2e9;

/// Copies of some tens of MiB that keep a GPU busy, L2 emptied of all else, while the host enqueues
/// what is measured. For all devices of one GPU, one at a time. Nothing on the host.
class Filler {
 public:
  explicit Filler(Workbench& bench);
  /// Whether time is taken behind it.
  bool there() const { return bytes_ > 0; }
  double copy_ms() const { return copy_ms_; }  // on the host's clock
  void enqueue(Workbench& bench, int64_t copies) const;

 private:
  Buffer from_, to_;
  int64_t bytes_ = 0;
  double copy_ms_ = 0;
};

/// Milliseconds of one run, on the device's clock.
struct Times {
  std::vector<double> ms;
  std::vector<double> enqueue_ms;  // of the host
  int64_t repeats = 1;             // runs in each time
  /// Whether each time began on the GPU when all of it was enqueued: else the host's time may be in
  /// it. None on the host.
  std::optional<bool> ahead;
};

/// A piece of work to be timed: on the host by itself; on a GPU behind a filler that lasts until
/// the host has enqueued all, as often as a third of a millisecond takes.
class TimedWork {
 public:
  /// @param enqueue   gets the number of the run, for those that take turns with their operands.
  /// @param provider  for errors.
  TimedWork(Workbench& bench, const Filler& filler, std::function<void(int64_t run)> enqueue,
            const Provider& provider)
      : bench_(&bench),
        filler_(&filler),
        enqueue_(std::move(enqueue)),
        name_(provider.name),
        most_(provider.plain ? kPlainTimes : kAllTimes) {}

  /// From now on runs for 20 ms, 5000 at most, go before each time, behind which a GPU has the
  /// power and the clocks of this work; none before one that takes longer, which has its own soon.
  void keep_power() { keeps_power_ = true; }
  /// A run, or more, that is not measured; of plain loops once.
  void warm_up();
  /// Another time; of plain loops two at most.
  void measure();
  const Times& times() const { return times_; }

 private:
  struct Taken {
    double ms, enqueue_ms;
    bool ahead;  // all was enqueued before the first run began
  };
  Taken take(int64_t copies);
  Taken take_ahead();
  /// How many runs go before a time. @param ms  of one.
  void lead(double ms);
  /// Finds out how often to repeat.
  void learn();

  static constexpr int kPlainTimes = 2, kAllTimes = 1 << 30;
  Workbench* bench_;
  const Filler* filler_;
  std::function<void(int64_t run)> enqueue_;
  std::string name_;
  int most_;
  bool warmed_ = false, keeps_power_ = false;
  int64_t next_ = 0, lead_ = 0, copies_ = 0, most_repeats_ = 1;
  double run_ms_ = 0;  // of one, on the host's clock
  Times times_;
  Buffer clock_;
};

/// Works that take turns, each once in a round, so that clocks and heat are the same for all.
/// `warmup` rounds are not measured; on a GPU more, for 50 ms, and for `steady` seconds on any
/// device, behind which a GPU's times are taken at the power of the works (`keep_power`).
void time_in_turns(const DeviceArguments& arguments, const Filler& filler,
                   std::vector<TimedWork>& works);

/// min_ms, median_ms, max_ms, repeats, enqueue_ms, ahead.
std::vector<Table::Column> time_columns();
std::vector<Cell> time_cells(const Times& times);

}  // namespace muonrt::tool
