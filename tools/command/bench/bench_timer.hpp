#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// Bytes of operands after which the first ones are no longer in the L2 of a GPU.
constexpr int64_t kColdBytes = int64_t{128} << 20;
/// Maximum number of runs in one measurement, and therefore of sets of operands.
constexpr int64_t kMaxRepeats = 100;
/// A limit for products and Newton-Schulz in portable loops, which are slow.
constexpr double kMaxPortableFlops = 2e9;

/// Copies of up to 64 MiB that keep a GPU busy, and evict everything else from L2, while the host
/// enqueues the work to be measured. For all devices of one GPU, one at a time. Empty on the host.
class Filler {
 public:
  explicit Filler(Workbench& bench);
  bool empty() const { return bytes_ == 0; }
  double copy_ms() const { return copy_ms_; }  // on the host's clock
  void enqueue(Workbench& bench, int64_t copies) const;

 private:
  Buffer from_, to_;
  int64_t bytes_ = 0;
  double copy_ms_ = 0;
};

/// Reads the clock and the power of a GPU every 20 ms on a separate thread, for the work that runs.
class ClockSampler {
 public:
  /// @param reads  whether there is a GPU.
  explicit ClockSampler(bool reads);
  ~ClockSampler();
  ClockSampler(const ClockSampler&) = delete;
  ClockSampler& operator=(const ClockSampler&) = delete;
  /// Adds the samples from now on to `samples`; null: drops them.
  void read_into(std::vector<GpuClock>* samples);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GpuClock>* samples_ = nullptr;
  bool ends_ = false;
  std::thread thread_;
};

/// Milliseconds of one run, on the device's clock.
struct Times {
  std::vector<double> ms;
  std::vector<double> enqueue_ms;  // of the host
  int64_t repeats = 1;             // runs in each time
  /// Whether the host had enqueued all runs of each time before the GPU began; otherwise a time may
  /// contain the host's. None on the host.
  std::optional<bool> ahead;
  std::vector<GpuClock>
      clocks;  // while the times were taken; on a GPU at least one, if it has NVML
};

/// Work to be timed: on the host by itself; on a GPU after a filler that lasts until the host has
/// enqueued all runs, as many as take a third of a millisecond.
class TimedWork {
 public:
  /// @param enqueue  gets the number of the run, for work that alternates between operands.
  /// @param name     of the provider, for errors. @param portable  slow: measured at most twice.
  TimedWork(Workbench& bench, const Filler& filler, std::function<void(int64_t run)> enqueue,
            const std::string& name, bool portable = false)
      : bench_(&bench),
        filler_(&filler),
        enqueue_(std::move(enqueue)),
        name_(name),
        portable_(portable) {}

  /// Runs that are not measured; only one if the work is portable.
  /// @param steady  from now on 20 ms of runs, at most 5000, precede each time that is shorter, so
  ///                that a GPU has the power and the clocks of this work.
  void warm_up(bool steady);
  void measure(ClockSampler& clocks);
  const Times& times() const { return times_; }

 private:
  struct Taken {
    double ms, enqueue_ms;
    bool ahead;
  };
  Taken take(int64_t copies);
  Taken take_ahead();

  Workbench* bench_;
  const Filler* filler_;
  std::function<void(int64_t run)> enqueue_;
  std::string name_;
  bool portable_;
  int64_t next_ = 0, lead_ = 0, copies_ = 0;
  double run_ms_ = 0;  // of one, on the host's clock
  Times times_;
  Buffer clock_;
};

/// Milliseconds of one run of work that is repeated on a busy stream: the medians of `iters` times,
/// each of as many runs as take about a millisecond, but at least one.
/// @param most  runs, at most.
double time_repeated(Workbench& bench, int iters, const std::function<void()>& enqueue,
                     int64_t most = 200);

/// Runs works alternately, each once in a round, so that clocks and heat are the same for all. The
/// warm-up lasts at least --warmup rounds, on a GPU 50 ms, and the seconds of --steady.
void time_in_turns(const DeviceArguments& arguments, const Filler& filler,
                   std::vector<TimedWork>& works);

/// min_ms, median_ms, max_ms, repeats, enqueue_ms, ahead, mhz, watts.
std::vector<Table::Column> time_columns();
std::vector<Cell> time_cells(const Times& times);

}  // namespace muonrt::tool
